/* json_utf8.h: bytes that may not be UTF-8 as a JSON string. */
#ifndef SERVER_API_JSON_UTF8_H
#define SERVER_API_JSON_UTF8_H

#include <jansson.h>
#include <stddef.h>

/* What is not UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *api_json_utf8(const char *bytes, size_t n);

/* How many bytes the character at `bytes` has; 0: no whole UTF-8 character is there. */
size_t api_utf8_length(const char *bytes, size_t n);

#endif
