/* report.h: the two ways out. stdout carries the result alone; messages go to stderr. */
#ifndef CLI_OUTPUT_REPORT_H
#define CLI_OUTPUT_REPORT_H

#include "quire.h"

#include <jansson.h>
#include <stdbool.h>

#if defined(__GNUC__)
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_PRINTF(text, first)
#endif

/* "quire: " + message + newline, on stderr. */
void cli_error(const char *format, ...) CLI_PRINTF(1, 2);
/* A failed call of the library. reason NULL: what quire_last_error says. Returns CLI_FAILURE. */
int cli_quire_error(const char *doing, quire_status status, const char *reason);

/* Prints `root` and drops it. NULL means that it could not be built. Returns an exit status. */
int cli_print_json(json_t *root);
/* One entry prints as an object, several as an array: what --json does where a command takes a
 * list. */
int cli_print_entries(json_t *list);
/* Appends `item`, which it takes over. On failure *list becomes NULL, which cli_print_json tells
 * of. */
void cli_json_append(json_t **list, json_t *item);
/* Text that somebody else chose: a path, a name from a file. JSON is UTF-8, and such text may be
 * any bytes: those that are not UTF-8 become \xNN. Everything that is not a name of ours goes
 * through here. NULL: no memory. */
json_t *cli_json_text(const char *text);
/* JSON has no NaN or infinity: null. */
json_t *cli_json_number(double value);

/* Closes stdout. A result that could not be written is a failure, whatever the command thought. */
int cli_close_stdout(int status);

#endif
