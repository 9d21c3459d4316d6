/* helper.h: finds the scripts that this program runs. */
#ifndef CLI_OPTIONS_HELPER_H
#define CLI_OPTIONS_HELPER_H

/* The path of the helper `name`, which lies at a fixed place relative to this program, in a
 * build tree as in an installed one; free() it. NULL, with a message: it is not there, or
 * somebody else could have put it there. */
char *cli_helper_find(const char *name);

#endif
