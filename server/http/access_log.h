/* access_log.h: the server's log, one line per request and per event. Safe from any thread. */
#ifndef SERVER_HTTP_ACCESS_LOG_H
#define SERVER_HTTP_ACCESS_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct srv_log srv_log;

/* path NULL: stderr. NULL: the file cannot be opened; `why` is a sentence. */
srv_log *srv_log_open(const char *path, char *why, size_t n_why);
void srv_log_close(srv_log *log); /* NULL is fine */
/* After the file was renamed: goes on in a new one. If that fails, the old one stays in use. */
void srv_log_reopen(srv_log *log);

/* Writes "TIME text\n". Bytes that are not printable ASCII become \xNN, so that a client cannot
 * write lines, colours or cursor movements into the log. */
void srv_log_line(srv_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
void srv_log_vline(srv_log *log, const char *format, va_list args);
/* Writes "TIME before "text"\n" with a text of any length; quotes and backslashes get a \. */
void srv_log_quoted(srv_log *log, const char *before, const char *text);

/* Copies `text` with the escapes of srv_log_quoted and without the quotes, cut to the buffer. */
void srv_log_escape(const char *text, char *out, size_t n_out);

#endif
