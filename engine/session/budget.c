/* budget.c: counts pages and rows of every layer. */
#include "session/budget.h"

#include "base/status.h"

#include <math.h>

static const double BOOKKEEPING_BYTES = 4.0 * 1024 * 1024;
static const double BYTES_PER_WORKER = 1024.0 * 1024;
static const double SPARE = 1.0625;

static quire_status page_bytes(const quire_layer *layer, quire_pair pair, quire_type raw,
                               double *bytes) {
    const quire_page_shape shape = {
        .pair = pair, .k_dim = layer->k_dim, .v_dim = layer->v_dim, .raw = raw};
    size_t found;
    QUIRE_TRY(quire_page_bytes(&shape, &found));
    *bytes = (double)found * layer->n_kv_heads;
    return QUIRE_OK;
}

static quire_pair pair_of(const quire_pool_options *o, int32_t i) {
    const quire_layer *layer = &o->layers[i];
    const quire_policy *p = &o->policy;
    quire_pair pair = p->pair;
    if (layer->window > 0)
        pair = p->windowed;
    else if (i < p->edge_first || i >= o->n_layers - p->edge_last)
        pair = p->edge;
    if (layer->k != QUIRE_CODEC_DEFAULT)
        pair.k = layer->k;
    if (layer->v != QUIRE_CODEC_DEFAULT)
        pair.v = layer->v;
    return pair;
}

/* In double: 53 bits hold any size that memory can, and an absurd request ends in a refusal
 * instead of a wrap. */
quire_status quire__pool_budget(const quire_pool_options *o, size_t *bytes) {
    const double batch_pages = ceil((double)o->max_batch_tokens / QUIRE_PAGE_TOKENS) + 1;
    double cache = 0, row_floats = 0;
    for (int32_t i = 0; i < o->n_layers; i++) {
        const quire_layer *layer = &o->layers[i];
        const double floats = (double)layer->n_heads * (layer->k_dim + 4.0 * layer->v_dim + 8);
        row_floats = floats > row_floats ? floats : row_floats;
        if (layer->share >= 0)
            continue;
        double packed, raw;
        QUIRE_TRY(page_bytes(layer, pair_of(o, i), o->raw, &packed));
        QUIRE_TRY(page_bytes(layer, (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}, o->raw, &raw));
        double held = o->max_tokens;
        /* A window holds its edge page whole, and for a moment the rows of the step in flight. */
        const double seen =
            (double)layer->window + layer->keep + o->max_batch_tokens + 2 * QUIRE_PAGE_TOKENS;
        if (layer->window > 0 && seen < held)
            held = seen;
        const double pages = ceil(held / QUIRE_PAGE_TOKENS) + 2;
        /* Raw: the open page, the page sealed last, sinks. */
        cache += o->max_seqs * (pages * packed + 3 * raw) + batch_pages * raw;
    }
    const double work = (double)o->max_batch_tokens * row_floats * sizeof(float) +
                        o->max_workers * BYTES_PER_WORKER;
    const double total = SPARE * (cache + work) + BOOKKEEPING_BYTES;
    if (total > 9e15 || total > (double)(SIZE_MAX / 2))
        return quire__fail(QUIRE_E_TOO_BIG, "a cache of %d tokens for %d sequences does not fit",
                           (int)o->max_tokens, (int)o->max_seqs);
    *bytes = (size_t)total;
    return QUIRE_OK;
}
