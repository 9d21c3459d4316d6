/* output.h: files that a command writes at its end. */
#ifndef CLI_OUTPUT_OUTPUT_H
#define CLI_OUTPUT_OUTPUT_H

/* Asked before anything that takes long: can PATH be written by way of PATH.part, which then
 * takes its name? An exit status, with a message if not. Creates nothing. NULL is no file, and
 * fine. */
int cli_output_check(const char *path);

#endif
