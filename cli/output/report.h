/* report.h: prints results and messages. stdout gets only the result; messages go to stderr. */
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
/* Reports a failed library call: "DOING: REASON (STATUS)". reason NULL: quire_last_error(). Returns
 * CLI_FAILURE. */
int cli_quire_error(const char *doing, quire_status status, const char *reason);

/* Prints `root` and releases it. NULL: it could not be built. Returns an exit status. */
int cli_print_json(json_t *root);
/* Prints a list with one entry as an object, and other lists as an array: --json of commands that
 * take a list. */
int cli_print_entries(json_t *list);
/* Appends `item` and takes ownership of it. On failure *list becomes NULL, which cli_print_json
 * reports. */
void cli_json_append(json_t **list, json_t *item);
/* A string from outside, such as a path or a name from a file, which may contain any bytes. JSON is
 * UTF-8, so bytes that are not become \xNN. Use it for every string that is not a constant of this
 * program. NULL: out of memory. */
json_t *cli_json_text(const char *text);
/* A number, or null for NaN and infinity, which JSON does not have. */
json_t *cli_json_number(double value);

/* Closes stdout. Returns `status`, or CLI_FAILURE after a message if writing failed. */
int cli_close_stdout(int status);

#endif
