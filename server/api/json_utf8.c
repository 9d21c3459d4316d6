/* json_utf8.c: see json_utf8.h. */
#include "api/json_utf8.h"
#include "base/growing_text.h"
#include "base/utf8.h"

size_t api_utf8_length(const char *bytes, size_t n) {
    const int length = srv_utf8_length(bytes, n);
    return length > 0 ? (size_t)length : 0;
}

json_t *api_json_utf8(const char *bytes, size_t n) {
    json_t *as_it_is = json_stringn(bytes, n);
    if (as_it_is)
        return as_it_is;
    srv_text text = {0};
    for (size_t i = 0; i < n;) {
        const size_t length = api_utf8_length(bytes + i, n - i);
        if (length > 0)
            srv_text_add(&text, bytes + i, length);
        else
            srv_text_put(&text, SRV_UTF8_REPLACEMENT);
        i += length > 0 ? length : 1;
    }
    json_t *replaced = text.failed ? NULL : json_stringn(text.bytes ? text.bytes : "", text.n);
    srv_text_free(&text);
    return replaced;
}
