/* work_units.h: workers take units of work from a shared counter. */
#ifndef QUIRE_ATTN_WORK_UNITS_H
#define QUIRE_ATTN_WORK_UNITS_H

#include <stdatomic.h>
#include <stdint.h>

/* Takes the next run of units. They are neighbours, because a chunk prefetches the next one and
 * shares its queries. A run is half of a fair share of what is left, so that the last runs are
 * short and no worker waits long. Nothing is left if *end is the result. */
static inline int32_t quire__take_units(atomic_int *next, int32_t n_units, int32_t nth,
                                        int32_t *end) {
    int first = atomic_load_explicit(next, memory_order_relaxed), past;
    do {
        const int left = n_units - first, share = left / (2 * nth);
        past = first + (left <= 0 ? 0 : share > 1 ? share : 1);
    } while (!atomic_compare_exchange_weak(next, &first, past));
    *end = past;
    return first;
}

#endif
