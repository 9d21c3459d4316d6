/* growing_text.c: see growing_text.h. */
#include "base/growing_text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for n more bytes and the 0. */
static bool reserve(srv_text *text, size_t n) {
    if (text->failed || n >= SIZE_MAX / 2 - text->n) {
        text->failed = true;
        return false;
    }
    if (text->n + n < text->capacity)
        return true;
    size_t capacity = text->capacity ? text->capacity : 64;
    while (capacity <= text->n + n)
        capacity *= 2;
    char *moved = realloc(text->bytes, capacity);
    if (!moved) {
        text->failed = true;
        return false;
    }
    text->bytes = moved;
    text->capacity = capacity;
    return true;
}

void srv_text_add(srv_text *text, const char *bytes, size_t n) {
    if (!reserve(text, n))
        return;
    if (n > 0)
        memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    text->bytes[text->n] = '\0';
}

void srv_text_put(srv_text *text, const char *string) {
    srv_text_add(text, string, strlen(string));
}

void srv_text_print(srv_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (n < 0 || !reserve(text, (size_t)n)) {
        text->failed = true;
        return;
    }
    va_start(arguments, format);
    vsnprintf(text->bytes + text->n, (size_t)n + 1, format, arguments);
    va_end(arguments);
    text->n += (size_t)n;
}

void srv_text_drop(srv_text *text, size_t n) {
    if (n == 0 || n > text->n)
        return;
    memmove(text->bytes, text->bytes + n, text->n - n + 1);
    text->n -= n;
}

char *srv_text_take(srv_text *text) {
    srv_text_add(text, "", 0); /* an empty text is a string too */
    char *bytes = text->failed ? NULL : text->bytes;
    if (!bytes)
        free(text->bytes);
    *text = (srv_text){0};
    return bytes;
}

void srv_text_free(srv_text *text) {
    free(text->bytes);
    *text = (srv_text){0};
}
