/* helper.h: finds the helper scripts that this program runs. */
#ifndef CLI_OPTIONS_HELPER_H
#define CLI_OPTIONS_HELPER_H

/* The path of the helper `name`; free() it. Helpers are at a fixed place relative to the program,
 * in a build tree and in an installed one. NULL, with a message: the helper is missing, or another
 * user could have written it. */
char *cli_helper_find(const char *name);

#endif
