/* comma_list.h: lists of words on the command line, separated by commas. */
#ifndef CLI_OPTIONS_COMMA_LIST_H
#define CLI_OPTIONS_COMMA_LIST_H

#include <stddef.h>

/* The parts of `text`; an empty part stays, to be refused by name (''). One block: free() it. NULL:
 * out of memory, which was reported. */
char **cli_list_split(const char *text, size_t *n);

#endif
