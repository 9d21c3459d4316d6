#include "base/text_filter.h"

#include <stdlib.h>
#include <string.h>

bool srv_bytes_add(srv_bytes *bytes, const char *data, size_t n) {
    if (bytes->n + n + 1 > bytes->capacity) {
        const size_t capacity = 2 * (bytes->n + n) + 32;
        char *larger = realloc(bytes->data, capacity);
        if (!larger)
            return false;
        bytes->data = larger;
        bytes->capacity = capacity;
    }
    if (n > 0)
        memcpy(bytes->data + bytes->n, data, n);
    bytes->n += n;
    bytes->data[bytes->n] = '\0';
    return true;
}

void srv_bytes_free(srv_bytes *bytes) {
    free(bytes->data);
    *bytes = (srv_bytes){0};
}

static void drop_front(srv_bytes *bytes, size_t n) {
    if (n == 0)
        return;
    memmove(bytes->data, bytes->data + n, bytes->n - n + 1);
    bytes->n -= n;
}

/* ------------------------------------------------------------------ UTF-8 */

/* What the bytes at `s` begin with: the length of a valid character; 0: one that may become valid
 * with more bytes; -k: k bytes that never will. */
static int character(const unsigned char *s, size_t n) {
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, and of the second */
        int length;
    } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                 {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                 {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                 {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
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

/* Appends the first n bytes that are held to `out`, as valid UTF-8. A character that n cuts off
 * stays, unless this is the end. */
static bool release(srv_filter *filter, size_t n, bool is_end, srv_bytes *out) {
    size_t done = 0;
    while (done < n) {
        const int length = character((const unsigned char *)filter->held.data + done, n - done);
        if (length == 0 && !is_end)
            break;
        const size_t step = length > 0 ? (size_t)length : length < 0 ? (size_t)-length : n - done;
        const bool added = length > 0 ? srv_bytes_add(out, filter->held.data + done, step)
                                      : srv_bytes_add(out, "\xEF\xBF\xBD", 3);
        if (!added)
            return false;
        done += step;
    }
    drop_front(&filter->held, done);
    return true;
}

/* ------------------------------------------------------------------ stop texts */

/* Where the first stop text begins; held.n: there is none. */
static size_t find_stop(const srv_filter *filter) {
    const srv_bytes *held = &filter->held;
    for (size_t at = 0; at < held->n; at++)
        for (int32_t s = 0; s < filter->n_stops; s++) {
            const size_t length = strlen(filter->stops[s]);
            if (length <= held->n - at && memcmp(held->data + at, filter->stops[s], length) == 0)
                return at;
        }
    return held->n;
}

/* How many of the held bytes cannot be the start of a stop text. */
static size_t certain(const srv_filter *filter) {
    const srv_bytes *held = &filter->held;
    for (size_t at = 0; at < held->n; at++)
        for (int32_t s = 0; s < filter->n_stops; s++)
            if (strncmp(filter->stops[s], held->data + at, held->n - at) == 0)
                return at;
    return held->n;
}

void srv_filter_init(srv_filter *filter, const char *const *stops, int32_t n_stops) {
    *filter = (srv_filter){.stops = stops, .n_stops = n_stops};
}

void srv_filter_free(srv_filter *filter) { srv_bytes_free(&filter->held); }

bool srv_filter_add(srv_filter *filter, const char *bytes, size_t n, srv_bytes *out) {
    if (filter->stopped || n == 0)
        return true;
    if (!srv_bytes_add(&filter->held, bytes, n))
        return false;
    const size_t stop = find_stop(filter);
    if (stop < filter->held.n) {
        filter->stopped = true;
        return release(filter, stop, true, out);
    }
    return release(filter, certain(filter), false, out);
}

bool srv_filter_end(srv_filter *filter, srv_bytes *out) {
    return filter->stopped || release(filter, filter->held.n, true, out);
}
