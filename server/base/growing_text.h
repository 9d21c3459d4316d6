/* growing_text.h: a text that grows. Running out of memory is remembered, not reported by each
 * call: look at `failed` once, at the end. */
#ifndef SERVER_BASE_GROWING_TEXT_H
#define SERVER_BASE_GROWING_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct srv_text {
    char *bytes; /* (n) and a 0 behind them; NULL while nothing was added */
    size_t n, capacity;
    bool failed;
} srv_text;

void srv_text_add(srv_text *text, const char *bytes, size_t n);
void srv_text_put(srv_text *text, const char *string);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void srv_text_print(srv_text *text, const char *format, ...);
/* Takes the first n bytes off. */
void srv_text_drop(srv_text *text, size_t n);
/* The bytes as a string that the caller frees; NULL: out of memory. The text is empty afterwards.
 */
char *srv_text_take(srv_text *text);
void srv_text_free(srv_text *text);

#endif
