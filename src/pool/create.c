/* Creating a pool: check the layers, sort them into classes, lay out leaves, and take all memory at
 * once. */
#include "page/pages.h"

#include <math.h>
#include <string.h>

#include "base/element.h"
#include "base/real.h"
#include "base/size.h"
#include "batch/batch.h"

_Static_assert(sizeof(size_t) == 8, "byte budgets are 64-bit");

enum { MOST_SPLIT = 520 }; /* partial results of one row over 512K tokens */
enum {
    MAX_LAYERS = 4096,
    MAX_HEADS = 4096,
    DEFAULT_MAX_TOKENS = 1 << 22,
    MAX_TOKENS = 1 << 30,
    CACHE_LINE = 64
};
static const size_t LARGEST_BUDGET = (size_t)1 << 46; /* keeps every product below within 64 bits */

void quire_layer_default(quire_layer *layer) {
    if (layer)
        *layer = (quire_layer){.share = -1};
}

void quire_pool_options_default(quire_pool_options *options) {
    if (!options)
        return;
    *options = (quire_pool_options){.struct_size = sizeof *options,
                                    .raw = QUIRE_F16,
                                    .max_seqs = 64,
                                    .max_batch_tokens = 512,
                                    .max_batches = 1,
                                    .max_workers = 8,
                                    .exact_trim = true};
    quire_policy_parse("none", &options->policy);
}

/* ------------------------------------------------------------------ checks */

static quire_status check_range(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_INVALID, "%s is %lld, must be %lld to %lld", name, (long long)value,
                       (long long)low, (long long)high);
}

static quire_status check_options(const quire_pool_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_pool_options_default");
    if (!o->layers)
        return quire__fail(QUIRE_E_INVALID, "options.layers is NULL");
    QUIRE_TRY(check_range("n_layers", o->n_layers, 1, MAX_LAYERS));
    QUIRE_TRY(check_range("max_seqs", o->max_seqs, 1, 1 << 16));
    QUIRE_TRY(check_range("max_tokens", o->max_tokens, 0, MAX_TOKENS));
    QUIRE_TRY(check_range("max_batch_tokens", o->max_batch_tokens, 1, 1 << 20));
    QUIRE_TRY(check_range("max_batches", o->max_batches, 1, 1 << 10));
    QUIRE_TRY(check_range("max_workers", o->max_workers, 1, 1 << 12));
    QUIRE_TRY(check_range("policy.sinks", o->policy.sinks, 0, QUIRE_T));
    QUIRE_TRY(check_range("policy.edge_first", o->policy.edge_first, 0, o->n_layers));
    QUIRE_TRY(check_range("policy.edge_last", o->policy.edge_last, 0, o->n_layers));
    if (!quire__type_valid(o->raw))
        return quire__fail(QUIRE_E_INVALID, "raw type %d is not f32, f16 or bf16", (int)o->raw);
    if (o->allocator && (!o->allocator->alloc || !o->allocator->free))
        return quire__fail(QUIRE_E_INVALID, "allocator has a NULL function");
    if (o->budget_bytes > LARGEST_BUDGET)
        return quire__fail(QUIRE_E_TOO_BIG, "budget of %zu bytes is beyond 64 TiB",
                           o->budget_bytes);
    return QUIRE_OK;
}

static quire_status check_layer(const quire_layer *l, int32_t i) {
    if (l->n_kv_heads < 1 || l->n_heads < 1 || l->n_heads > MAX_HEADS || l->n_heads % l->n_kv_heads)
        return quire__fail(QUIRE_E_INVALID, "layer %d: %d query heads over %d KV heads", (int)i,
                           (int)l->n_heads, (int)l->n_kv_heads);
    if (l->window < 0 || l->window > MAX_TOKENS || l->keep < 0 || l->keep > MAX_TOKENS)
        return quire__fail(QUIRE_E_INVALID, "layer %d: window %d, keep %d", (int)i, (int)l->window,
                           (int)l->keep);
    if (!(l->scale >= 0 && quire__finite(l->scale)) ||
        !(l->softcap >= 0 && quire__finite(l->softcap)))
        return quire__fail(QUIRE_E_INVALID, "layer %d: scale %g, softcap %g", (int)i,
                           (double)l->scale, (double)l->softcap);
    for (int32_t h = 0; h < l->n_heads; h++)
        if ((l->alibi && !quire__finite(l->alibi[h])) ||
            (l->sink_logits && !quire__finite(l->sink_logits[h])))
            return quire__fail(QUIRE_E_INVALID,
                               "layer %d: ALiBi slope or sink logit of head %d is not finite",
                               (int)i, (int)h);
    return QUIRE_OK;
}

static quire_status check_share(const quire_pool_options *o, int32_t i) {
    const quire_layer *l = &o->layers[i];
    if (l->share < 0 || l->share >= i || o->layers[l->share].share != -1)
        return quire__fail(QUIRE_E_INVALID,
                           "layer %d shares layer %d: must be an earlier layer that stores", (int)i,
                           (int)l->share);
    const quire_layer *s = &o->layers[l->share];
    if (l->n_kv_heads != s->n_kv_heads || l->k_dim != s->k_dim || l->v_dim != s->v_dim ||
        l->window != s->window || l->keep != s->keep)
        return quire__fail(
            QUIRE_E_INVALID,
            "layer %d shares layer %d but differs in KV heads, sizes, window or keep", (int)i,
            (int)l->share);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ layers and classes */

static float *copy_heads(float **heads, const float *from, int32_t n) {
    if (!from)
        return NULL;
    float *to = *heads;
    for (int32_t h = 0; h < n; h++)
        to[h] = from[h] * QUIRE_LOG2E;
    *heads += n;
    return to;
}

/* Of a layer whose sizes are sound. */
static quire_status copy_order(quire_layer *l, int32_t i, uint16_t **orders) {
    const size_t n = (size_t)l->n_kv_heads * (size_t)l->k_dim;
    for (int32_t h = 0; l->k_order && h < l->n_kv_heads; h++) {
        const uint16_t *order = l->k_order + (size_t)h * (size_t)l->k_dim;
        const int fault = quire__order_fault(order, l->k_dim);
        if (fault < l->k_dim)
            return quire__fail(
                QUIRE_E_INVALID, "layer %d, KV head %d: k_order[%d] is channel %d, %s", (int)i,
                (int)h, fault, (int)order[fault],
                order[fault] < l->k_dim ? "which came before" : "which does not exist");
    }
    if (l->k_order)
        l->k_order = memcpy(*orders, l->k_order, n * sizeof **orders);
    *orders += l->k_order ? n : 0;
    return QUIRE_OK;
}

static quire_status copy_feedback(quire_layer_state *s, int32_t i, float **feedbacks,
                                  quire_rope_pairs **turns) {
    quire_layer *l = &s->config;
    const size_t per_head = quire__n_feedback(l->k_dim), n = (size_t)l->n_kv_heads * per_head;
    const quire_rope *rope = l->k_rope;
    l->k_rope = NULL;
    if (!l->k_feedback)
        return QUIRE_OK;
    quire_status status = quire__rope_pairs_init(*turns, rope, l->k_dim);
    for (int32_t h = 0; h < l->n_kv_heads && status == QUIRE_OK; h++)
        status = quire__check_feedback(l->k_feedback + (size_t)h * per_head, l->k_dim);
    if (status != QUIRE_OK)
        return quire__fail_where(status, "layer %d", (int)i);
    s->turns = (*turns)++;
    l->k_feedback = memcpy(*feedbacks, l->k_feedback, n * sizeof **feedbacks);
    *feedbacks += n;
    return QUIRE_OK;
}

static quire_status init_layer(quire_pool *pool, const quire_pool_options *o, int32_t i,
                               float **heads, uint16_t **orders, float **feedbacks,
                               quire_rope_pairs **turns) {
    quire_layer_state *s = &pool->layer[i];
    s->config = o->layers[i];
    if (s->config.share != -1)
        QUIRE_TRY(check_share(o, i));
    s->source = s->config.share == -1 ? i : s->config.share;
    const quire_layer *l = &s->config;
    const float scale = l->scale > 0 ? l->scale : 1.0f / sqrtf((float)l->k_dim);
    s->q_scale = l->softcap > 0 ? scale / l->softcap : scale * QUIRE_LOG2E;
    s->config.alibi = copy_heads(heads, l->alibi, l->n_heads);
    s->config.sink_logits = copy_heads(heads, l->sink_logits, l->n_heads);

    if (s->source != i) {
        s->config.k_order = pool->layer[s->source].config.k_order;
        s->config.k_feedback = NULL, s->config.k_rope = NULL;
        return QUIRE_OK;
    }
    s->asked = (quire_pair){l->k, l->v};
    QUIRE_TRY(quire__form_layer(pool, &o->policy, i, s));
    QUIRE_TRY(copy_order(&s->config, i, orders));
    QUIRE_TRY(copy_feedback(s, i, feedbacks, turns));
    s->class = quire__form_class(pool->class, &pool->n_classes, l);
    return QUIRE_OK;
}

/* Scratch pages hold the raw rows of one layer at a time, so one region serves all layers; but a
 * layer that others share is read again later and needs a region of its own. Raw classes use
 * none, but may come to pack one day. */
static void lay_out_scratch(quire_pool *pool) {
    size_t common = 0, used;
    for (int32_t i = 0; i < pool->n_layers; i++)
        pool->layer[i].scratch_region = 0;
    pool->n_regions = 1;
    for (int32_t i = 0; i < pool->n_layers; i++)
        if (pool->layer[i].source != i)
            pool->layer[pool->layer[i].source].scratch_region = -1;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *s = &pool->layer[i];
        const size_t bytes = (size_t)s->config.n_kv_heads * s->raw_record_bytes;
        if (s->source == i && s->scratch_region == 0 && bytes > common)
            common = bytes;
    }
    used = common;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        quire_layer_state *s = &pool->layer[i];
        if (s->source != i) {
            s->scratch_region = pool->layer[s->source].scratch_region;
            s->scratch_offset = pool->layer[s->source].scratch_offset;
        } else if (s->scratch_region == -1) {
            s->scratch_region = pool->n_regions++;
            s->scratch_offset = used;
            used += (size_t)s->config.n_kv_heads * s->raw_record_bytes;
        }
    }
    pool->scratch_bytes = used;
}

/* ------------------------------------------------------------------ memory */

/* The same code sizes the block (base NULL) and hands it out. */
typedef struct carver {
    uint8_t *base;
    size_t used;
    bool overflow; /* the sum does not fit size_t: noticed while sizing */
} carver;

static void *carve(carver *c, size_t count, size_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    size_t bytes, end;
    if (!quire__mul(count, size, &bytes) || !quire__add(c->used, bytes, &end) ||
        end > SIZE_MAX - CACHE_LINE)
        c->overflow = true;
    else
        c->used = quire__align(end, CACHE_LINE);
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
        for (int j = 0; j < pool->kernels.n_packed;
             j++) /* the reference may step in, and codecs may change */
            w.workspace_bytes =
                larger(w.workspace_bytes, pool->kernels.packed[j]->workspace_bytes(n_rows));
        w.workspace_bytes = larger(w.workspace_bytes, pool->kernels.raw->workspace_bytes(n_rows));
        w.partial_floats = larger(w.partial_floats, (size_t)l->n_heads * (dv + 2));
    }
    return w;
}

static void carve_state(carver *c, quire_state *state, size_t rows, const widest *w) {
    state->m = carve(c, rows * w->heads_per_kv, sizeof *state->m);
    state->l = carve(c, rows * w->heads_per_kv, sizeof *state->l);
    state->o = carve(c, rows * w->o_floats + QUIRE_STATE_ROWS * w->v_dim, sizeof *state->o);
}

static void carve_worker(carver *c, quire_worker *worker, const quire_pool *pool, const widest *w) {
    const size_t rows = tile_rows(pool);
    quire_worker sizing; /* while sizing there is no worker to write to */
    if (!c->base)
        worker = &sizing;
    worker->k_rows = carve(c, QUIRE_T * w->k_dim, sizeof(float));
    worker->v_rows = carve(c, QUIRE_T * w->v_dim, sizeof(float));
    worker->q = carve(c, rows * w->q_floats, sizeof(float));
    worker->q_rotated = carve(c, rows * w->q_floats, sizeof(float));
    worker->q_projected = carve(c, rows * w->q_floats, sizeof(float));
    worker->q_ordered = carve(c, rows * w->ordered_floats, sizeof(float));
    worker->usable = carve(c, rows * w->heads_per_kv, sizeof *worker->usable);
    worker->scores = carve(c, rows * w->heads_per_kv * QUIRE_BLOCK_TOKENS, sizeof(float));
    worker->workspace = carve(c, 1, w->workspace_bytes);
    carve_state(c, &worker->part, rows, w);
    carve_state(c, &worker->total, rows, w);
}

static void carve_batch(carver *c, quire_batch *b, const quire_pool *pool, const widest *w) {
    /* A sequence's rows fall into n/64 + 2 pages at most, and never more pages than rows. */
    const size_t rows = (size_t)pool->max_batch_tokens, n_seqs = (size_t)pool->max_seqs,
                 n_classes = (size_t)pool->n_classes;
    const size_t loose = rows / QUIRE_T + 2 * n_seqs, n_tiles = loose < rows ? loose : rows;
    quire_batch sizing;
    if (!c->base)
        b = &sizing;
    b->item = carve(c, n_seqs, sizeof *b->item);
    b->pad = carve(c, n_seqs, sizeof *b->pad);
    b->before = carve(c, n_seqs, sizeof *b->before);
    b->tile = carve(c, n_tiles, sizeof *b->tile);
    b->tile_class = carve(c, n_tiles * n_classes, sizeof *b->tile_class);
    b->n_units = carve(c, n_classes, sizeof *b->n_units);
    b->scratch = carve(c, rows / QUIRE_T, pool->scratch_bytes);
    b->region_layer = carve(c, (size_t)pool->n_regions, sizeof *b->region_layer);
    b->appended = carve(c, (size_t)pool->n_layers, sizeof *b->appended);
    b->appended_nth = carve(c, (size_t)pool->n_layers, sizeof *b->appended_nth);
    b->tile_done = carve(c, n_tiles * w->kv_heads, sizeof *b->tile_done);
    b->tile_done_stride = (int32_t)w->kv_heads;
    b->partial = carve(c, (size_t)pool->split_rows * w->partial_floats, sizeof *b->partial);
    b->partial_floats = w->partial_floats;
    b->worker = carve(c, (size_t)pool->max_workers, sizeof *b->worker);
    for (int32_t i = 0; i < pool->max_workers; i++)
        carve_worker(c, b->worker ? b->worker + i : NULL, pool, w);
}

/* -> bytes used, SIZE_MAX if they do not fit */
static size_t carve_meta(quire_pool *pool, uint8_t *base) {
    const widest w = widest_of(pool);
    const size_t n_seqs = (size_t)pool->max_seqs, n_classes = (size_t)pool->n_classes;
    carver c = {base, 0, false};
    pool->leaf = carve(&c, (size_t)pool->max_leaves, sizeof *pool->leaf);
    pool->arena.hole = carve(&c, (size_t)pool->max_leaves + 1, sizeof *pool->arena.hole);
    pool->seq = carve(&c, n_seqs, sizeof *pool->seq);
    quire_seq_class *classes = carve(&c, n_seqs * n_classes, sizeof *classes);
    int32_t *tables = carve(&c, n_seqs * n_classes * (size_t)pool->max_pages, sizeof *tables);
    pool->spare_leaf = carve(&c, n_classes * QUIRE_LEAF_KINDS + 1, sizeof *pool->spare_leaf);
    for (int i = 0; i < 3; i++)
        pool->rows[i] = carve(&c, QUIRE_T * larger(w.k_dim, w.v_dim), sizeof **pool->rows);
    pool->reserved = carve(&c, 3 * n_classes, sizeof *pool->reserved);
    pool->batch = carve(&c, (size_t)pool->max_batches, sizeof *pool->batch);
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
static void count_pages(quire_pool *pool, const quire_pool_options *o, size_t budget) {
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
    size_t max_tokens = (size_t)o->max_tokens;
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
static size_t smallest_arena(const quire_pool *pool) {
    size_t bytes = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        bytes += pool->class[g].raw ? 2 * pool->class[g].raw_bytes
                                    : pool->class[g].sealed_bytes + 2 * pool->class[g].raw_bytes +
                                          pool->class[g].sink_bytes;
    return bytes;
}

/* The least that a budget's own tables and the smallest arena take; SIZE_MAX if that does not
 * fit. */
static size_t least_bytes(quire_pool *pool, const quire_pool_options *o, size_t budget,
                          size_t head_bytes) {
    count_pages(pool, o, budget);
    const size_t meta_bytes = carve_meta(pool, NULL);
    size_t fixed, least;
    if (meta_bytes == SIZE_MAX || !quire__add(head_bytes, meta_bytes, &fixed))
        return SIZE_MAX;
    return quire__add(fixed, smallest_arena(pool), &least) ? least : SIZE_MAX;
}

/* Tables grow with the budget, so the bytes missing now are not yet enough: raise it until it
 * holds its own. */
static quire_status refuse_budget(quire_pool *pool, const quire_pool_options *o,
                                  size_t head_bytes) {
    size_t need = o->budget_bytes, least;
    while ((least = least_bytes(pool, o, need, head_bytes)) > need && least <= LARGEST_BUDGET)
        need = least;
    if (least > LARGEST_BUDGET)
        return quire__fail(QUIRE_E_TOO_BIG, "a pool with these options needs more than 64 TiB");
    return quire__fail(
        QUIRE_E_BUDGET,
        "budget of %zu bytes is too small: at least %zu (%zu for tables and %d workers)",
        o->budget_bytes, need, need - smallest_arena(pool), (int)pool->max_workers);
}

static quire_status take_memory(quire_pool *pool, const quire_pool_options *o, size_t head_bytes) {
    const size_t least = least_bytes(pool, o, o->budget_bytes, head_bytes),
                 fixed = least - smallest_arena(pool);
    if (o->budget_bytes < least)
        return refuse_budget(pool, o, head_bytes);
    const size_t meta_bytes = fixed - head_bytes;
    const size_t arena_bytes = (o->budget_bytes - fixed) & ~(size_t)(QUIRE_RECORD_ALIGN - 1);
    pool->memory = quire__alloc(&pool->allocator, arena_bytes, 4096);
    if (!pool->memory)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of pages", arena_bytes);
    pool->meta = quire__alloc(&pool->allocator, meta_bytes, CACHE_LINE);
    if (!pool->meta)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of tables", meta_bytes);
    memset(pool->meta, 0, meta_bytes);
    carve_meta(pool, pool->meta);
    quire__arena_init(&pool->arena, arena_bytes, pool->arena.hole, pool->max_leaves + 1);
    pool->budget_bytes = o->budget_bytes;
    pool->total_bytes = fixed + arena_bytes;
    return QUIRE_OK;
}

static void link_free_lists(quire_pool *pool) {
    for (int32_t i = pool->max_leaves - 1; i >= 0; i--) {
        pool->leaf[i].next_free = i + 1 < pool->max_leaves ? i + 1 : QUIRE_NO_LEAF;
        pool->leaf[i].refs = 0;
    }
    for (int32_t i = 0; i <= pool->n_classes * QUIRE_LEAF_KINDS; i++)
        pool->spare_leaf[i] = QUIRE_NO_LEAF;
    for (int32_t i = pool->max_seqs - 1; i >= 0; i--) {
        pool->seq[i].pool = pool;
        pool->seq[i].next_free = pool->free_seq;
        pool->free_seq = &pool->seq[i];
    }
    for (int32_t i = 0; i < pool->max_batches; i++)
        pool->batch[i].pool = pool;
}

quire_status quire_pool_create(quire_pool **result, const quire_pool_options *o) {
    if (!result || !o)
        return quire__fail(QUIRE_E_INVALID, "pool or options is NULL");
    *result = NULL;
    QUIRE_TRY(check_options(o));
    const quire_allocator allocator = o->allocator ? *o->allocator : quire__default_allocator;
    size_t n_head_values = 0, n_ordered = 0, n_feedback = 0, n_turns = 0;
    for (int32_t i = 0; i < o->n_layers; i++) {
        const quire_layer *l = &o->layers[i];
        QUIRE_TRY(check_layer(l, i));
        n_head_values += 2 * (size_t)l->n_heads;
        if (l->share != -1 || l->k_dim <= 0 ||
            l->k_dim > QUIRE_DIM_MAX) /* the latter are refused below */
            continue;
        n_ordered += l->k_order ? (size_t)l->n_kv_heads * (size_t)l->k_dim : 0;
        n_feedback += l->k_feedback ? (size_t)l->n_kv_heads * quire__n_feedback(l->k_dim) : 0;
        n_turns += l->k_feedback != NULL;
    }
    /* The pool, its layers, classes, per-head values, orders and feedback in one block. */
    const size_t n = (size_t)o->n_layers;
    carver head = {NULL, 0, false};
    carve(&head, 1, sizeof(quire_pool));
    for (int i = 0; i < 2; i++) {
        carve(&head, n, sizeof(quire_layer_state));
        carve(&head, n, sizeof(quire_class));
    }
    carve(&head, n_head_values, sizeof(float));
    carve(&head, n_ordered, sizeof(uint16_t));
    carve(&head, n_feedback, sizeof(float));
    carve(&head, n_turns, sizeof(quire_rope_pairs));
    const size_t head_bytes = head.used;
    uint8_t *block = quire__alloc(&allocator, head_bytes, CACHE_LINE);
    if (!block)
        return quire__fail(QUIRE_E_NOMEM, "no memory for a pool of %d layers", (int)o->n_layers);
    memset(block, 0, head_bytes);
    head = (carver){block, 0, false};
    quire_pool *pool = carve(&head, 1, sizeof(quire_pool));
    pool->layer = carve(&head, n, sizeof(quire_layer_state));
    pool->class = carve(&head, n, sizeof(quire_class));
    pool->layer_before = carve(&head, n, sizeof(quire_layer_state));
    pool->class_before = carve(&head, n, sizeof(quire_class));
    float *head_values = carve(&head, n_head_values, sizeof(float));
    uint16_t *orders = carve(&head, n_ordered, sizeof(uint16_t));
    float *feedbacks = carve(&head, n_feedback, sizeof(float));
    quire_rope_pairs *turns = carve(&head, n_turns, sizeof(quire_rope_pairs));
    pool->allocator = allocator;
    pool->raw = o->raw;
    pool->exact_trim = o->exact_trim;
    pool->n_layers = o->n_layers;
    pool->max_seqs = o->max_seqs;
    pool->max_batch_tokens = o->max_batch_tokens;
    pool->max_batches = o->max_batches;
    pool->max_workers = o->max_workers;

    quire_status status = quire__kernels_init(&pool->kernels, o->cpu);
    for (int32_t i = 0; i < o->n_layers && status == QUIRE_OK; i++)
        status = init_layer(pool, o, i, &head_values, &orders, &feedbacks, &turns);
    if (status == QUIRE_OK) {
        quire__form_place(pool->raw, o->policy.sinks, pool->layer, pool->n_layers, pool->class,
                          pool->n_classes);
        lay_out_scratch(pool);
        status = take_memory(pool, o, head_bytes);
    }
    if (status == QUIRE_OK && pthread_mutex_init(&pool->lock, NULL) != 0)
        status = quire__fail(QUIRE_E_NOMEM, "no mutex to be had");
    if (status != QUIRE_OK) {
        quire__free(&allocator, pool->meta);
        quire__free(&allocator, pool->memory);
        quire__free(&allocator, block);
        return status;
    }
    link_free_lists(pool);
    *result = pool;
    return QUIRE_OK;
}

void quire_pool_free(quire_pool *pool) {
    if (!pool)
        return;
    const quire_allocator allocator = pool->allocator;
    pthread_mutex_destroy(&pool->lock);
    quire__free(&allocator, pool->meta);
    quire__free(&allocator, pool->memory);
    quire__free(&allocator, pool);
}

const char *quire_pool_isa(const quire_pool *pool) { return pool->kernels.isa; }
