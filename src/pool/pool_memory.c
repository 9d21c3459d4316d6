/* The memory of a pool: how much its tables and batches take, and taking all of it at once. */
#include <string.h>

#include "base/element.h"
#include "base/size.h"
#include "pool/building.h"

_Static_assert(sizeof(size_t) == 8, "byte budgets are 64-bit");

enum {
    MOST_SPLIT = 520, /* partial results of one row over 512K tokens */
    DEFAULT_MAX_TOKENS = 1 << 22
};

void *quire__carve(quire_carver *c, size_t count, size_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    size_t bytes, end;
    if (!quire__mul(count, size, &bytes) || !quire__add(c->used, bytes, &end) ||
        end > SIZE_MAX - QUIRE_CACHE_LINE)
        c->overflow = true;
    else
        c->used = quire__align(end, QUIRE_CACHE_LINE);
    return at;
}

typedef struct widest { /* over all layers */
    size_t kv_heads, heads_per_kv, q_floats, o_floats, k_dim, v_dim, partial_floats,
        workspace_bytes;
    size_t ordered_floats; /* q_floats, of layers with an order of channels */
} widest;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t tile_rows(const quire_pool *pool) {
    return pool->max_batch_tokens < QUIRE_T ? (size_t)pool->max_batch_tokens : QUIRE_T;
}

static widest widest_of(const quire_pool *pool) {
    widest w = {0};
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *l = &pool->layer[i].config;
        const size_t heads = (size_t)(l->n_heads / l->n_kv_heads), dk = (size_t)l->k_dim,
                     dv = (size_t)l->v_dim;
        w.kv_heads = larger(w.kv_heads, (size_t)l->n_kv_heads);
        w.heads_per_kv = larger(w.heads_per_kv, heads);
        w.q_floats = larger(w.q_floats, heads * dk);
        w.ordered_floats = larger(w.ordered_floats, l->k_order ? heads * dk : 0);
        w.o_floats = larger(w.o_floats, heads * dv);
        w.k_dim = larger(w.k_dim, dk);
        w.v_dim = larger(w.v_dim, dv);
        const int n_rows = (int)(tile_rows(pool) * heads);
        w.workspace_bytes = larger(
            w.workspace_bytes, quire__workspace_bytes(&pool->kernels, n_rows, l->k_dim, l->v_dim));
        w.partial_floats = larger(w.partial_floats, (size_t)l->n_heads * (dv + 2));
    }
    return w;
}

static void carve_state(quire_carver *c, quire_state *state, size_t rows, const widest *w) {
    const size_t n = rows * w->heads_per_kv + QUIRE_STATE_ROWS;
    state->m = quire__carve(c, n, sizeof *state->m);
    state->l = quire__carve(c, n, sizeof *state->l);
    state->o = quire__carve(c, rows * w->o_floats + QUIRE_STATE_ROWS * w->v_dim, sizeof *state->o);
}

static void carve_worker(quire_carver *c, quire_worker *worker, const quire_pool *pool,
                         const widest *w) {
    const size_t rows = tile_rows(pool);
    quire_worker sizing; /* while sizing there is no worker to write to */
    if (!c->base)
        worker = &sizing;
    worker->k_rows = quire__carve(c, QUIRE_T * w->k_dim, sizeof(float));
    worker->v_rows = quire__carve(c, QUIRE_T * w->v_dim, sizeof(float));
    worker->q.plain = quire__carve(c, rows * w->q_floats, sizeof(float));
    worker->q.rotated = quire__carve(c, rows * w->q_floats, sizeof(float));
    worker->q.projected = quire__carve(c, rows * w->q_floats, sizeof(float));
    worker->q.ordered = quire__carve(c, rows * w->ordered_floats, sizeof(float));
    worker->q.usable = quire__carve(c, rows * w->heads_per_kv, sizeof *worker->q.usable);
    worker->scores = quire__carve(c, rows * w->heads_per_kv * QUIRE_BLOCK_TOKENS, sizeof(float));
    worker->workspace = quire__carve(c, 1, w->workspace_bytes);
    carve_state(c, &worker->part, rows, w);
    carve_state(c, &worker->total, rows, w);
}

static void carve_batch(quire_carver *c, quire_batch *b, const quire_pool *pool, const widest *w) {
    /* A sequence's rows fall into n/64 + 2 pages at most, and never more pages than rows. */
    const size_t rows = (size_t)pool->max_batch_tokens, n_seqs = (size_t)pool->max_seqs,
                 n_classes = (size_t)pool->n_classes;
    const size_t loose = rows / QUIRE_T + 2 * n_seqs, n_tiles = loose < rows ? loose : rows;
    quire_batch sizing;
    if (!c->base)
        b = &sizing;
    b->item = quire__carve(c, n_seqs, sizeof *b->item);
    b->pad = quire__carve(c, n_seqs, sizeof *b->pad);
    b->before = quire__carve(c, n_seqs, sizeof *b->before);
    b->tile = quire__carve(c, n_tiles, sizeof *b->tile);
    b->tile_class = quire__carve(c, n_tiles * n_classes, sizeof *b->tile_class);
    b->n_units = quire__carve(c, n_classes, sizeof *b->n_units);
    b->scratch = quire__carve(c, rows / QUIRE_T, pool->scratch_bytes);
    b->region_layer = quire__carve(c, (size_t)pool->n_regions, sizeof *b->region_layer);
    b->appended =
        quire__carve(c, (size_t)pool->n_layers * (size_t)pool->max_workers, sizeof *b->appended);
    b->appended_nth = quire__carve(c, (size_t)pool->n_layers, sizeof *b->appended_nth);
    b->tile_done = quire__carve(c, n_tiles * w->kv_heads, sizeof *b->tile_done);
    b->tile_done_stride = (int32_t)w->kv_heads;
    b->partial = quire__carve(c, (size_t)pool->split_rows * w->partial_floats, sizeof *b->partial);
    b->partial_floats = w->partial_floats;
    b->worker = quire__carve(c, (size_t)pool->max_workers, sizeof *b->worker);
    for (int32_t i = 0; i < pool->max_workers; i++)
        carve_worker(c, b->worker ? b->worker + i : NULL, pool, w);
}

/* -> bytes used, SIZE_MAX if they do not fit */
static size_t carve_meta(quire_pool *pool, uint8_t *base) {
    const widest w = widest_of(pool);
    const size_t n_seqs = (size_t)pool->max_seqs, n_classes = (size_t)pool->n_classes;
    quire_carver c = {base, 0, false};
    pool->leaf = quire__carve(&c, (size_t)pool->max_leaves, sizeof *pool->leaf);
    pool->arena.hole = quire__carve(&c, (size_t)pool->max_leaves + 1, sizeof *pool->arena.hole);
    pool->seq = quire__carve(&c, n_seqs, sizeof *pool->seq);
    quire_seq_class *classes = quire__carve(&c, n_seqs * n_classes, sizeof *classes);
    int32_t *tables =
        quire__carve(&c, n_seqs * n_classes * (size_t)pool->max_pages, sizeof *tables);
    pool->spare_leaf = quire__carve(&c, n_classes * QUIRE_LEAF_KINDS + 1, sizeof *pool->spare_leaf);
    for (int i = 0; i < 3; i++)
        pool->rows[i] = quire__carve(&c, QUIRE_T * larger(w.k_dim, w.v_dim), sizeof **pool->rows);
    pool->reserved = quire__carve(&c, 3 * n_classes, sizeof *pool->reserved);
    pool->batch = quire__carve(&c, (size_t)pool->max_batches, sizeof *pool->batch);
    for (int32_t i = 0; i < pool->max_batches; i++)
        carve_batch(&c, base ? pool->batch + i : NULL, pool, &w);
    for (size_t i = 0; base && i < n_seqs; i++) {
        pool->seq[i].class = classes + i * n_classes;
        for (size_t g = 0; g < n_classes; g++)
            pool->seq[i].class[g].table = tables + (i * n_classes + g) * (size_t)pool->max_pages;
    }
    return c.overflow ? SIZE_MAX : c.used;
}

/* How many leaves and pages a budget could ever hold: an upper bound, for the tables. */
static void count_pages(quire_pool *pool, int32_t wanted_tokens, size_t budget) {
    size_t smallest = SIZE_MAX, per_page = 0;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        if (class->sealed_bytes < smallest)
            smallest = class->sealed_bytes;
        /* Codecs may change: two bits for an element is the least that any takes. */
        const size_t least = class->raw_bytes / quire__type_bytes(pool->raw) / 4;
        if (least < smallest)
            smallest = least;
        if (class->window == 0)
            per_page += class->sealed_bytes;
    }
    size_t max_tokens = (size_t)wanted_tokens;
    if (max_tokens == 0) {
        max_tokens = per_page ? (budget / per_page + 1) * QUIRE_T : DEFAULT_MAX_TOKENS;
        if (max_tokens > DEFAULT_MAX_TOKENS)
            max_tokens = DEFAULT_MAX_TOKENS;
    }
    pool->max_tokens = (int32_t)max_tokens;
    pool->max_pages = (int32_t)((max_tokens + QUIRE_T - 1) / QUIRE_T);
    /* Sink leaves are small, but a sequence or batch holds at most one per class. */
    const size_t sinks =
        ((size_t)pool->max_seqs + (size_t)pool->max_batches * (size_t)pool->max_seqs) *
        (size_t)pool->n_classes;
    const size_t leaves = budget / smallest + 1 + sinks;
    pool->max_leaves = (int32_t)(leaves < INT32_MAX - 1 ? leaves : INT32_MAX - 1);
    const int32_t max_chunks = pool->max_pages / QUIRE_CHUNK_PAGES + 2;
    pool->split_rows = max_chunks < MOST_SPLIT ? max_chunks + 1 : MOST_SPLIT;
}

/* One sequence must at least be able to seal a page: a sealed leaf, the raw leaf it came from,
 * the next one, its sinks. */
size_t quire__pool_smallest_arena(const quire_pool *pool) {
    size_t bytes = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        bytes += pool->class[g].raw ? 2 * pool->class[g].raw_bytes
                                    : pool->class[g].sealed_bytes + 2 * pool->class[g].raw_bytes +
                                          pool->class[g].sink_bytes;
    return bytes;
}

size_t quire__pool_fixed_bytes(quire_pool *pool, int32_t max_tokens, size_t budget) {
    count_pages(pool, max_tokens, budget);
    const size_t meta_bytes = carve_meta(pool, NULL);
    size_t fixed;
    if (meta_bytes == SIZE_MAX || !quire__add(pool->head_bytes, meta_bytes, &fixed))
        return SIZE_MAX;
    return fixed;
}

/* Tables grow with the budget, so the bytes missing now are not yet enough: raise the budget until
 * it holds its own tables. */
size_t quire__pool_least_budget(quire_pool *pool, int32_t max_tokens, size_t arena_bytes,
                                size_t start) {
    size_t budget = start, need;
    for (;;) {
        const size_t fixed = quire__pool_fixed_bytes(pool, max_tokens, budget);
        if (fixed == SIZE_MAX || !quire__add(fixed, arena_bytes, &need) ||
            need > QUIRE_LARGEST_BUDGET)
            return SIZE_MAX;
        if (need <= budget)
            return budget;
        budget = need;
    }
}

static quire_status refuse_budget(quire_pool *pool, int32_t max_tokens, size_t budget) {
    const size_t arena = quire__pool_smallest_arena(pool);
    const size_t least = quire__pool_least_budget(pool, max_tokens, arena, budget);
    if (least == SIZE_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "a pool with these options needs more than 64 TiB");
    return quire__fail(
        QUIRE_E_BUDGET,
        "budget of %zu bytes is too small: at least %zu (%zu for tables and %d workers)", budget,
        least, least - arena, (int)pool->max_workers);
}

quire_status quire__pool_take_memory(quire_pool *pool, int32_t max_tokens, size_t budget) {
    const size_t fixed = quire__pool_fixed_bytes(pool, max_tokens, budget);
    size_t least;
    if (fixed == SIZE_MAX || !quire__add(fixed, quire__pool_smallest_arena(pool), &least) ||
        budget < least)
        return refuse_budget(pool, max_tokens, budget);
    const size_t meta_bytes = fixed - pool->head_bytes;
    const size_t arena_bytes = (budget - fixed) & ~(size_t)(QUIRE_RECORD_ALIGN - 1);
    pool->memory = quire__alloc(&pool->allocator, arena_bytes, 4096);
    if (!pool->memory)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of pages", arena_bytes);
    pool->meta = quire__alloc(&pool->allocator, meta_bytes, QUIRE_CACHE_LINE);
    if (!pool->meta)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of tables", meta_bytes);
    memset(pool->meta, 0, meta_bytes);
    carve_meta(pool, pool->meta);
    quire__arena_init(&pool->arena, arena_bytes, pool->arena.hole, pool->max_leaves + 1);
    pool->budget_bytes = budget;
    pool->total_bytes = fixed + arena_bytes;
    return QUIRE_OK;
}
