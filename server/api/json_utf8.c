/* json_utf8.c: see json_utf8.h. */
#include "api/json_utf8.h"
#include "api/growing_text.h"

#include <stdint.h>

size_t api_utf8_length(const char *bytes, size_t n) {
    const unsigned char *b = (const unsigned char *)bytes;
    if (n == 0)
        return 0;
    if (b[0] < 0x80)
        return 1;
    const size_t length = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : 2;
    if (b[0] < 0xC2 || b[0] > 0xF4 || n < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((b[i] & 0xC0) != 0x80)
            return 0;
    /* Longer than needed, a surrogate, or beyond Unicode. */
    if ((b[0] == 0xE0 && b[1] < 0xA0) || (b[0] == 0xED && b[1] > 0x9F) ||
        (b[0] == 0xF0 && b[1] < 0x90) || (b[0] == 0xF4 && b[1] > 0x8F))
        return 0;
    return length;
}

json_t *api_json_utf8(const char *bytes, size_t n) {
    json_t *as_it_is = json_stringn(bytes, n);
    if (as_it_is)
        return as_it_is;
    api_text text = {0};
    for (size_t i = 0; i < n;) {
        const size_t length = api_utf8_length(bytes + i, n - i);
        if (length > 0)
            api_text_add(&text, bytes + i, length);
        else
            api_text_put(&text, "\xEF\xBF\xBD");
        i += length > 0 ? length : 1;
    }
    json_t *replaced = text.failed ? NULL : json_stringn(text.bytes ? text.bytes : "", text.n);
    api_text_free(&text);
    return replaced;
}
