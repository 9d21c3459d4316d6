/* growing_text.h: a text that grows. Running out of memory is remembered, not reported by each
 * call: look at `failed` once, at the end. */
#ifndef SERVER_API_GROWING_TEXT_H
#define SERVER_API_GROWING_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct api_text {
    char *bytes; /* (n) and a 0 behind them; NULL while nothing was added */
    size_t n, capacity;
    bool failed;
} api_text;

void api_text_add(api_text *text, const char *bytes, size_t n);
void api_text_put(api_text *text, const char *string);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void api_text_print(api_text *text, const char *format, ...);
/* Takes the first n bytes off. */
void api_text_drop(api_text *text, size_t n);
/* The bytes as a string that the caller frees; NULL: out of memory. The text is empty afterwards.
 */
char *api_text_take(api_text *text);
void api_text_free(api_text *text);

#endif
