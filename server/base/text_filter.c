/* text_filter.c: see text_filter.h. */
#include "base/text_filter.h"

#include "base/utf8.h"

#include <string.h>

/* Appends the first n bytes that are held to `out`, as valid UTF-8. A character that n cuts off
 * stays, unless this is the end. */
static void release(srv_filter *filter, size_t n, bool is_end, srv_text *out) {
    size_t done = 0;
    while (done < n) {
        const int length = srv_utf8_length(filter->held.bytes + done, n - done);
        if (length == 0 && !is_end)
            break;
        const size_t step = length > 0 ? (size_t)length : length < 0 ? (size_t)-length : n - done;
        if (length > 0)
            srv_text_add(out, filter->held.bytes + done, step);
        else
            srv_text_put(out, SRV_UTF8_REPLACEMENT);
        done += step;
    }
    srv_text_drop(&filter->held, done);
}

/* ------------------------------------------------------------------ stop texts */

/* Where the first stop text begins; held.n: there is none. */
static size_t find_stop(const srv_filter *filter) {
    const srv_text *held = &filter->held;
    for (size_t at = 0; at < held->n; at++)
        for (int32_t s = 0; s < filter->n_stops; s++) {
            const size_t length = strlen(filter->stops[s]);
            if (length <= held->n - at && memcmp(held->bytes + at, filter->stops[s], length) == 0)
                return at;
        }
    return held->n;
}

/* How many of the held bytes cannot be the start of a stop text. */
static size_t certain(const srv_filter *filter) {
    const srv_text *held = &filter->held;
    for (size_t at = 0; at < held->n; at++)
        for (int32_t s = 0; s < filter->n_stops; s++)
            if (strncmp(filter->stops[s], held->bytes + at, held->n - at) == 0)
                return at;
    return held->n;
}

void srv_filter_init(srv_filter *filter, const char *const *stops, int32_t n_stops) {
    *filter = (srv_filter){.stops = stops, .n_stops = n_stops};
}

void srv_filter_free(srv_filter *filter) { srv_text_free(&filter->held); }

void srv_filter_add(srv_filter *filter, const char *bytes, size_t n, srv_text *out) {
    if (filter->stopped || n == 0)
        return;
    srv_text_add(&filter->held, bytes, n);
    if (filter->held.failed) {
        out->failed = true;
        return;
    }
    const size_t stop = find_stop(filter);
    filter->stopped = stop < filter->held.n;
    release(filter, filter->stopped ? stop : certain(filter), filter->stopped, out);
}

void srv_filter_end(srv_filter *filter, srv_text *out) {
    if (!filter->stopped)
        release(filter, filter->held.n, true, out);
}
