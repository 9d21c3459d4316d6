/* utf8.c: see utf8.h. */
#include "base/utf8.h"

int srv_utf8_length(const char *bytes, size_t n) {
    const unsigned char *s = (const unsigned char *)bytes;
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, and of the second */
        int length;
    } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                 {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                 {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                 {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        if (s[0] < forms[f].first || s[0] > forms[f].last)
            continue;
        for (int i = 1; i < forms[f].length; i++) {
            if ((size_t)i >= n)
                return 0;
            const unsigned char low = i == 1 ? forms[f].low : 0x80;
            const unsigned char high = i == 1 ? forms[f].high : 0xBF;
            if (s[i] < low || s[i] > high)
                return -i;
        }
        return forms[f].length;
    }
    return -1;
}
