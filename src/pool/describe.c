/* What a pool knows before it has memory for pages: its layers, their classes, where records lie.
 */
#include <math.h>
#include <string.h>

#include "base/real.h"
#include "pool/building.h"

/* What a pool copies of its layers' arrays, and where the next copy goes. */
typedef struct copies {
    float *heads; /* ALiBi slopes and sink logits */
    uint16_t *orders;
    float *feedback;
    quire_rope_pairs *pairs;
} copies;

static float *copy_heads(copies *to, const float *from, int32_t n) {
    if (!from)
        return NULL;
    float *copy = to->heads;
    for (int32_t h = 0; h < n; h++)
        copy[h] = from[h] * QUIRE_LOG2E;
    to->heads += n;
    return copy;
}

/* Of a layer whose sizes are sound. */
static quire_status copy_order(quire_layer *l, int32_t i, copies *to) {
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
        l->k_order = memcpy(to->orders, l->k_order, n * sizeof *to->orders);
    to->orders += l->k_order ? n : 0;
    return QUIRE_OK;
}

static quire_status copy_feedback(quire_layer_state *s, int32_t i, copies *to) {
    quire_layer *l = &s->config;
    const size_t per_head = quire__n_feedback(l->k_dim), n = (size_t)l->n_kv_heads * per_head;
    const quire_rope *rope = l->k_rope;
    l->k_rope = NULL;
    if (!l->k_feedback)
        return QUIRE_OK;
    quire_status status = quire__rope_pairs_init(to->pairs, rope, l->k_dim);
    for (int32_t h = 0; h < l->n_kv_heads && status == QUIRE_OK; h++)
        status = quire__check_feedback(l->k_feedback + (size_t)h * per_head, l->k_dim);
    if (status != QUIRE_OK)
        return quire__fail_where(status, "layer %d", (int)i);
    s->rope_pairs = to->pairs++;
    l->k_feedback = memcpy(to->feedback, l->k_feedback, n * sizeof *to->feedback);
    to->feedback += n;
    return QUIRE_OK;
}

static quire_status init_layer(quire_pool *pool, const quire_pool_options *o, int32_t i,
                               copies *to) {
    quire_layer_state *s = &pool->layer[i];
    s->config = o->layers[i];
    s->source = s->config.share == -1 ? i : s->config.share;
    const quire_layer *l = &s->config;
    const float scale = l->scale > 0 ? l->scale : 1.0f / sqrtf((float)l->k_dim);
    s->q_scale = l->softcap > 0 ? scale / l->softcap : scale * QUIRE_LOG2E;
    s->config.alibi = copy_heads(to, l->alibi, l->n_heads);
    s->config.sink_logits = copy_heads(to, l->sink_logits, l->n_heads);

    if (s->source != i) {
        s->config.k_order = pool->layer[s->source].config.k_order;
        s->config.k_feedback = NULL, s->config.k_rope = NULL;
        return QUIRE_OK;
    }
    s->asked = (quire_pair){l->k, l->v};
    QUIRE_TRY(quire__form_layer(pool, &o->policy, i, s));
    QUIRE_TRY(copy_order(&s->config, i, to));
    QUIRE_TRY(copy_feedback(s, i, to));
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

typedef struct counts { /* of what is copied */
    size_t heads, orders, feedback, pairs;
} counts;

static counts count_copies(const quire_pool_options *o) {
    counts n = {0};
    for (int32_t i = 0; i < o->n_layers; i++) {
        const quire_layer *l = &o->layers[i];
        n.heads += 2 * (size_t)l->n_heads;
        if (l->share != -1 || l->k_dim <= 0 || l->k_dim > QUIRE_DIM_MAX)
            continue; /* sizes beyond the limits are refused by quire__form_layer */
        n.orders += l->k_order ? (size_t)l->n_kv_heads * (size_t)l->k_dim : 0;
        n.feedback += l->k_feedback ? (size_t)l->n_kv_heads * quire__n_feedback(l->k_dim) : 0;
        n.pairs += l->k_feedback != NULL;
    }
    return n;
}

/* The pool, its layers and classes, and what it copies, in one block: -> its bytes. */
static size_t carve_head(uint8_t *base, size_t n_layers, counts n, copies *to) {
    quire_carver c = {base, 0, false};
    quire_pool sizing, *pool = quire__carve(&c, 1, sizeof *pool);
    if (!base)
        pool = &sizing;
    pool->layer = quire__carve(&c, n_layers, sizeof *pool->layer);
    pool->class = quire__carve(&c, n_layers, sizeof *pool->class);
    pool->layer_before = quire__carve(&c, n_layers, sizeof *pool->layer_before);
    pool->class_before = quire__carve(&c, n_layers, sizeof *pool->class_before);
    to->heads = quire__carve(&c, n.heads, sizeof *to->heads);
    to->orders = quire__carve(&c, n.orders, sizeof *to->orders);
    to->feedback = quire__carve(&c, n.feedback, sizeof *to->feedback);
    to->pairs = quire__carve(&c, n.pairs, sizeof *to->pairs);
    return c.used;
}

quire_status quire__pool_describe(const quire_pool_options *o, quire_pool **result) {
    const quire_allocator allocator = o->allocator ? *o->allocator : quire__default_allocator;
    const size_t n_layers = (size_t)o->n_layers;
    const counts n = count_copies(o);
    copies next;
    const size_t bytes = carve_head(NULL, n_layers, n, &next);
    uint8_t *block = quire__alloc(&allocator, bytes, QUIRE_CACHE_LINE);
    if (!block)
        return quire__fail(QUIRE_E_NOMEM, "no memory for a pool of %d layers", (int)o->n_layers);
    memset(block, 0, bytes);
    carve_head(block, n_layers, n, &next);
    quire_pool *pool = (quire_pool *)(void *)block;
    pool->allocator = allocator;
    pool->head_bytes = bytes;
    pool->raw = o->raw;
    pool->exact_trim = o->exact_trim;
    pool->n_layers = o->n_layers;
    pool->max_seqs = o->max_seqs;
    pool->max_batch_tokens = o->max_batch_tokens;
    pool->max_batches = o->max_batches;
    pool->max_workers = o->max_workers;

    quire_status status = quire__kernels_init(&pool->kernels, o->cpu);
    for (int32_t i = 0; i < o->n_layers && status == QUIRE_OK; i++)
        status = init_layer(pool, o, i, &next);
    if (status != QUIRE_OK) {
        quire__pool_discard(pool);
        return status;
    }
    quire__form_place(pool->raw, o->policy.sinks, pool->layer, pool->n_layers, pool->class,
                      pool->n_classes);
    lay_out_scratch(pool);
    *result = pool;
    return QUIRE_OK;
}

void quire__pool_discard(quire_pool *pool) {
    if (!pool)
        return;
    const quire_allocator allocator = pool->allocator;
    quire__free(&allocator, pool->meta);
    quire__free(&allocator, pool->memory);
    quire__free(&allocator, pool);
}
