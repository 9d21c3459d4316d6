/* report.c: prints messages and JSON, and checks that the result was written. */
#include "output/report.h"

#include "command.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JSON_DIGITS = 9 }; /* enough for any float, and 0.1 prints as 0.1 */

void cli_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    /* There may be a progress bar on this line. */
    fputs(isatty(STDERR_FILENO) ? "\r\033[Kquire: " : "quire: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

int cli_quire_error(const char *doing, quire_status status, const char *reason) {
    if (!reason)
        reason = quire_last_error();
    if (!reason || !*reason)
        reason = quire_status_text(status);
    cli_error("%s: %s (%s)", doing, reason, quire_status_name(status));
    return CLI_FAILURE;
}

int cli_print_json(json_t *root) {
    if (!root) {
        cli_error("out of memory while writing JSON");
        return CLI_FAILURE;
    }
    /* cli_close_stdout reports write errors, so only other failures matter here. */
    int failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(JSON_DIGITS));
    json_decref(root);
    if (failed && !ferror(stdout)) {
        cli_error("out of memory while writing JSON");
        return CLI_FAILURE;
    }
    fputc('\n', stdout);
    return CLI_OK;
}

int cli_print_entries(json_t *list) {
    if (json_array_size(list) != 1) /* 0 for NULL too */
        return cli_print_json(list);
    json_t *entry = json_incref(json_array_get(list, 0));
    json_decref(list);
    return cli_print_json(entry);
}

void cli_json_append(json_t **list, json_t *item) {
    if (*list && json_array_append_new(*list, item) == 0)
        return;
    if (!*list)
        json_decref(item);
    json_decref(*list);
    *list = NULL;
}

/* Whether n bytes are valid UTF-8: jansson accepts nothing else. */
static bool is_utf8(const char *bytes, size_t n) {
    json_t *string = json_stringn(bytes, n);
    json_decref(string);
    return string != NULL;
}

/* The number of bytes of the UTF-8 character at `text`; 0: it is invalid. */
static size_t character_bytes(const char *text) {
    const unsigned char first = (unsigned char)*text;
    const size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    return strnlen(text, n) == n && is_utf8(text, n) ? n : 0;
}

json_t *cli_json_text(const char *text) {
    enum { ESCAPE = 4 }; /* \xff */
    if (is_utf8(text, strlen(text)))
        return json_string(text);
    char *escaped = malloc(ESCAPE * strlen(text) + 1), *to = escaped;
    if (!escaped)
        return NULL;
    while (*text) {
        const size_t n = character_bytes(text);
        if (n > 0)
            memcpy(to, text, n);
        else
            snprintf(to, ESCAPE + 1, "\\x%02x", (unsigned)(unsigned char)*text);
        to += n > 0 ? n : ESCAPE;
        text += n > 0 ? n : 1;
    }
    *to = '\0';
    json_t *string = json_string(escaped);
    free(escaped);
    return string;
}

json_t *cli_json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

int cli_close_stdout(int status) {
    if (status != CLI_OK)
        return status; /* already reported; exit flushes the rest */
    bool failed = ferror(stdout) != 0;
    errno = 0;
    /* Some file systems report a full disk only when the file is closed. */
    if (fflush(stdout) != 0 || fclose(stdout) != 0)
        failed = true;
    if (!failed)
        return status;
    int reason = errno; /* 0 if the error was earlier and nothing was left to flush */
    cli_error("cannot write to standard output%s%s", reason ? ": " : "",
              reason ? strerror(reason) : "");
    return CLI_FAILURE;
}
