/* output.h: checks output files before long work. */
#ifndef CLI_OUTPUT_OUTPUT_H
#define CLI_OUTPUT_OUTPUT_H

/* Checks that `path` can be written: first as PATH.part, which is then renamed. Call it before work
 * that takes long. Creates nothing. NULL: no file is to be written. Returns an exit status, after a
 * message if it failed. */
int cli_output_check(const char *path);

#endif
