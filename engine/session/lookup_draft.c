/* lookup_draft.c: prompt lookup. */
#include "session/lookup_draft.h"

#include <string.h>

enum { LONGEST_MATCH = 4, SHORTEST_MATCH = 2 };

/* The end of the last earlier copy of the final `n` tokens, or 0. */
static int32_t find_before(const int32_t *text, int32_t n_text, int32_t n) {
    const int32_t *tail = text + n_text - n;
    for (int32_t at = n_text - n - 1; at >= 0; at--)
        if (text[at] == tail[0] && memcmp(text + at, tail, (size_t)n * sizeof *text) == 0)
            return at + n;
    return 0;
}

int32_t quire__draft_lookup(const int32_t *text, int32_t n_text, int32_t *draft, int32_t max) {
    for (int32_t n = LONGEST_MATCH; n >= SHORTEST_MATCH; n--) {
        if (n_text <= n)
            continue;
        const int32_t from = find_before(text, n_text, n);
        if (from == 0)
            continue;
        const int32_t left = n_text - from, count = left < max ? left : max;
        memcpy(draft, text + from, (size_t)count * sizeof *draft);
        return count;
    }
    return 0;
}
