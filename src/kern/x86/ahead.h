/* Fetching ahead: while a block is computed, the pages two blocks on come into L2.
 *
 * They are fetched page by page and in the order of their addresses, because the processor then
 * fetches ahead, too; and as evenly as can be, because a core that waits for a dozen lines stops at
 * the next one. Products fetch as many bytes as they read, which is nearly free: at constant
 * distances, between their instructions. Steps between the products fetch the rest: parameters, or
 * whole pages where codes are unpacked first. */
#ifndef QUIRE_KERN_X86_AHEAD_H
#define QUIRE_KERN_X86_AHEAD_H

#include <stddef.h>

#include "kern/shared/job.h"
#include "kern/x86/intrinsics.h"

enum { LINE = 64, LINES_AT_ONCE = 4 };
/* Steps of a block that fetch, products aside: four for every four rows. */
INLINE int ahead_steps(int rows) { return 4 * ((rows + 3) / 4); }

/* The pages being fetched, one after the other. */
typedef struct pages_ahead {
    const uint8_t *at, *end; /* what is left of the first; at >= end: nothing */
    const uint8_t *then;     /* the second, or NULL */
    ptrdiff_t bytes;         /* of a page */
    ptrdiff_t by_values;     /* of the second page, that the products of V fetch */
    int step;                /* lines that a step fetches */
} pages_ahead;

INLINE void fetch_line(const uint8_t *at) { __builtin_prefetch(at, 0, 2); }

/* Lines that products fetch while they read `bytes` of codes: none twice. */
INLINE int lines_beside(const int bytes) { return bytes / LINE; }

/* Fetches the lines beside `bytes` of codes; returns where the next ones are. */
INLINE const uint8_t *fetch_beside(const uint8_t *at, const int bytes) {
    UNROLL for (int i = 0; i < lines_beside(bytes); i++) fetch_line(at + i * LINE);
    return at + lines_beside(bytes) * LINE;
}

static inline void start_page(pages_ahead *a, const uint8_t *page) {
    a->at = page;
    a->end = page ? page + a->bytes : NULL;
}

/* Starts on pages `first` and first + 1 of the chunk. */
static inline void start_ahead(pages_ahead *a, const quire_attend_job *job, int first) {
    const uint8_t *one = page_ahead(job, first - PAGES),
                  *other = page_ahead(job, first - PAGES + 1);
    start_page(a, one ? one : other);
    a->then = one ? other : NULL;
}

/* Whether lines are left that the products of V do not fetch. */
static inline bool is_left(const pages_ahead *a) {
    return a->then || a->end - a->at > a->by_values;
}

/* Fetches a multiple of LINES_AT_ONCE lines, the last of which may lie behind the page. */
static inline void fetch_ahead(pages_ahead *a, int lines) {
    if (!is_left(a))
        return;
    if (a->at >= a->end) {
        start_page(a, a->then);
        a->then = NULL;
    }
    const uint8_t *at = a->at;
    for (int i = 0; i < lines; i += LINES_AT_ONCE, at += LINES_AT_ONCE * LINE)
        UNROLL for (int j = 0; j < LINES_AT_ONCE; j++) fetch_line(at + j * LINE);
    a->at = at;
}
static inline void fetch_step(pages_ahead *a) { fetch_ahead(a, a->step); }

/* Fetches all but what the products of V will. */
static inline void fetch_until_values(pages_ahead *a) {
    while (is_left(a))
        fetch_ahead(a, LINES_AT_ONCE);
    a->at = a->end ? a->end - a->by_values : NULL;
}

/* Where products fetch: what is ahead or, if nothing is left or they are not to, a page that they
 * read, which is here. */
static inline const uint8_t *ahead_or(const pages_ahead *a, bool fetches, const uint8_t *here) {
    return fetches && a->at < a->end ? a->at : here;
}
/* Products got as far as `at`. */
static inline void fetched(pages_ahead *a, const uint8_t *at) {
    if (a->at < a->end)
        a->at = at;
}

#endif
