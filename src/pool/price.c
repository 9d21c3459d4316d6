/* What a pool costs, and what a budget buys.
 *
 * The most leaves that can be in use at once are counted, class by class, for sequences that only
 * grow: every sequence at its full length, and the rows of every batch in flight cut into pages in
 * the worst way. A leaf that is given back waits for the next of its size (page/leaf.c), so leaves
 * take exactly the sum of these.
 *
 * That rule is broken if leaves go back to the arena in between (quire_pool_get_stats does that),
 * and those of another size take a part of their place. The leaves of windows come and go all the
 * time: a sixteenth more is reserved for such gaps. Large sinks count as raw pages, whose places
 * they may take. */
#include "pool/building.h"

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Pages of one sequence that a class holds at once, those of rows in flight apart. */
static size_t held_pages(const quire_class *class, size_t n_pages) {
    if (class->window == 0)
        return n_pages;
    const size_t pinned = ((size_t) class->keep + QUIRE_T - 1) / QUIRE_T;
    /* A window may begin and end inside a page, and the page sealed last stays in any case. */
    return smaller(n_pages, (size_t) class->window / QUIRE_T + 3 + pinned);
}

/* Bytes of all leaves of a class. In double: 53 bits hold any size that memory can have, and an
 * absurd request ends in a refusal instead of a wrap. */
static double class_bytes(const quire_pool *pool, const quire_class *class, size_t n_tokens) {
    const size_t seqs = (size_t)pool->max_seqs, rows = (size_t)pool->max_batch_tokens;
    const size_t batches = (size_t)pool->max_batches;
    const size_t n_pages = class->raw ? (n_tokens + QUIRE_T - 1) / QUIRE_T : n_tokens / QUIRE_T;
    /* A shift takes a new page, an open one and sinks before it gives back what it had, and a trim
     * an open one: one leaf more of each. */
    double pages = (double)seqs * (double)held_pages(class, n_pages) + 1;
    if (class->window > 0) /* pages that rows in flight complete, before those behind them go */
        pages += (double)(smaller(rows / QUIRE_T + seqs, rows) * batches);
    if (class->raw) /* open pages are among them, but for that of a shift */
        return (pages + 1) * (double)class->raw_bytes;
    /* The open page and the raw rows of the page sealed last. In flight, one more for each sequence
     * whose rows reach another page, and another if they fill that one too. */
    const size_t moving = (smaller(seqs, rows / 2) + smaller(seqs, rows / QUIRE_T)) * batches;
    /* Of the place of a raw page, large sinks leave nothing that is of use. */
    const size_t sinks =
        3 * class->sink_bytes > class->raw_bytes ? class->raw_bytes : class->sink_bytes;
    return pages * (double)class->sealed_bytes +
           (double)(2 * seqs + moving + 1) * (double)class->raw_bytes +
           (double)(seqs + 1) * (double)sinks;
}

/* Of an arena for max_seqs sequences of so many tokens. */
static double arena_bytes(const quire_pool *pool, int32_t max_tokens) {
    double bytes = 0;
    bool windows = false;
    for (int32_t c = 0; c < pool->n_classes; c++) {
        bytes += class_bytes(pool, &pool->class[c], (size_t)max_tokens);
        windows = windows || pool->class[c].window > 0;
    }
    bytes += windows && pool->n_classes > 1 ? bytes / 16 : 0;
    const double least = (double)quire__pool_smallest_arena(pool);
    return bytes > least ? bytes : least;
}

/* The same in whole records; SIZE_MAX: beyond what a pool may have. */
static size_t arena_size(const quire_pool *pool, int32_t max_tokens) {
    const double arena = arena_bytes(pool, max_tokens);
    if (arena > (double)QUIRE_LARGEST_BUDGET)
        return SIZE_MAX;
    return ((size_t)arena + QUIRE_RECORD_ALIGN) & ~(size_t)(QUIRE_RECORD_ALIGN - 1);
}

static quire_status check(const quire_pool_options *o, const void *result) {
    if (!o || !result)
        return quire__fail(QUIRE_E_INVALID, "options or result is NULL");
    return quire__pool_check(o);
}

quire_status quire_pool_price(const quire_pool_options *o, size_t *bytes) {
    QUIRE_TRY(check(o, bytes));
    if (o->max_tokens == 0)
        return quire__fail(QUIRE_E_INVALID, "set max_tokens: a price depends on it");
    quire_pool *pool;
    QUIRE_TRY(quire__pool_describe(o, &pool));
    const size_t arena = arena_size(pool, o->max_tokens);
    const size_t found =
        arena == SIZE_MAX ? SIZE_MAX : quire__pool_least_budget(pool, o->max_tokens, arena, 0);
    quire__pool_discard(pool);
    if (found == SIZE_MAX)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "%d sequences of %d tokens need more than 64 TiB: lower one of the two",
                           (int)o->max_seqs, (int)o->max_tokens);
    *bytes = found;
    return QUIRE_OK;
}

/* The most pages of a sequence in a pool of the budget. Its tables are those that it is created
 * with: they follow from max_tokens, or from the budget, not from what finds room. */
static int32_t most_pages(quire_pool *pool, const quire_pool_options *o) {
    const size_t fixed = quire__pool_fixed_bytes(pool, o->max_tokens, o->budget_bytes);
    if (fixed > o->budget_bytes)
        return 0;
    int32_t low = 0, high = pool->max_tokens / QUIRE_T + 1; /* an arena grows with the tokens */
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (arena_size(pool, middle * QUIRE_T) <= o->budget_bytes - fixed)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static quire_status refuse_budget(quire_pool *pool, const quire_pool_options *o) {
    const size_t arena = arena_size(pool, QUIRE_T);
    const size_t least =
        arena == SIZE_MAX ? SIZE_MAX : quire__pool_least_budget(pool, o->max_tokens, arena, 0);
    if (least == SIZE_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "%d sequences of a page need more than 64 TiB",
                           (int)o->max_seqs);
    return quire__fail(QUIRE_E_BUDGET,
                       "budget of %zu bytes is too small for %d sequences: at least %zu",
                       o->budget_bytes, (int)o->max_seqs, least);
}

quire_status quire_pool_capacity(const quire_pool_options *o, int32_t *tokens) {
    QUIRE_TRY(check(o, tokens));
    QUIRE_TRY(quire__pool_check_budget(o));
    if (o->max_tokens > 0 && o->max_tokens < QUIRE_T)
        return quire__fail(QUIRE_E_INVALID, "max_tokens is %d: less than a page of %d tokens",
                           (int)o->max_tokens, QUIRE_T);
    quire_pool *pool;
    QUIRE_TRY(quire__pool_describe(o, &pool));
    const int32_t n_pages = most_pages(pool, o);
    const quire_status status = n_pages > 0 ? QUIRE_OK : refuse_budget(pool, o);
    quire__pool_discard(pool);
    if (status == QUIRE_OK)
        *tokens = n_pages * QUIRE_T;
    return status;
}
