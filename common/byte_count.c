/* byte_count.c: parses numbers of bytes, such as 512M. */
#include "byte_count.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

/* "" is 0, "K" 10, .. "T" 40; -1: not a unit. */
static int unit_shift(const char *text) {
    static const char letters[] = "KMGT";
    if (!*text)
        return 0;
    const char *letter = strchr(letters, toupper((unsigned char)*text));
    if (!letter)
        return -1;
    text++;
    if (*text == 'i')
        text++;
    if (*text == 'B')
        text++;
    return *text ? -1 : 10 * (int)(letter - letters + 1);
}

bool quire__byte_count_parse(const char *text, size_t *bytes) {
    const char *end = text;
    size_t count = 0;
    for (; *end >= '0' && *end <= '9'; end++) {
        const size_t digit = (size_t)(*end - '0');
        if (count > (SIZE_MAX - digit) / 10)
            return false;
        count = 10 * count + digit;
    }
    const int shift = unit_shift(end);
    if (end == text || shift < 0)
        return false;
    for (int i = 0; i < shift; i += 10) { /* T is beyond a size_t of 32 bits */
        if (count > SIZE_MAX >> 10)
            return false;
        count <<= 10;
    }
    *bytes = count;
    return true;
}
