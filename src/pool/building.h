/* Building a pool, in three steps: check the options, describe (layers, classes, where records
 * lie), take the memory. Pricing does the first two. */
#ifndef QUIRE_POOL_BUILDING_H
#define QUIRE_POOL_BUILDING_H

#include "batch/batch.h"

enum { QUIRE_CACHE_LINE = 64, QUIRE_MAX_TOKENS = 1 << 30 };
#define QUIRE_LARGEST_BUDGET ((size_t)1 << 46) /* keeps all sums of bytes within 64 bits */

/* Hands out pieces of one block. With `base` NULL it only adds up sizes, so the same code sizes
 * a block and divides it. */
typedef struct quire_carver {
    uint8_t *base;
    size_t used;
    bool overflow; /* the sum does not fit size_t */
} quire_carver;

void *quire__carve(quire_carver *c, size_t count, size_t size);

/* ---- pool_options.c */
quire_status quire__pool_check(const quire_pool_options *o); /* all but the budget */
quire_status quire__pool_check_budget(const quire_pool_options *o);

/* ---- describe.c: a pool without memory for pages, tables and batches */
quire_status quire__pool_describe(const quire_pool_options *o, quire_pool **pool);
void quire__pool_discard(quire_pool *pool); /* whatever it has by now; NULL is fine */

/* ---- pool_memory.c */
/* Bytes of the pool itself, its tables and its batches, if the budget were `budget` bytes.
 * Tables grow with the budget. SIZE_MAX: too many. Sets the pool's numbers of pages and leaves. */
size_t quire__pool_fixed_bytes(quire_pool *pool, int32_t max_tokens, size_t budget);
/* The least arena that lets one sequence seal a page. */
size_t quire__pool_smallest_arena(const quire_pool *pool);
/* The least budget of at least `start` bytes that leaves `arena_bytes` for pages; SIZE_MAX: more
 * than QUIRE_LARGEST_BUDGET. */
size_t quire__pool_least_budget(quire_pool *pool, int32_t max_tokens, size_t arena_bytes,
                                size_t start);
quire_status quire__pool_take_memory(quire_pool *pool, int32_t max_tokens, size_t budget);

#endif
