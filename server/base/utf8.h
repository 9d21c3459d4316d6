/* utf8.h: characters in bytes that may not be UTF-8. */
#ifndef SERVER_BASE_UTF8_H
#define SERVER_BASE_UTF8_H

#include <stddef.h>

#define SRV_UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD, for what is not UTF-8 */

/* What the n bytes begin with: the length of a valid character; 0: nothing, or a character that may
 * become valid with more bytes; -k: k bytes that never will. */
int srv_utf8_length(const char *bytes, size_t n);

#endif
