/* Defaults and checks of pool options. */
#include "base/element.h"
#include "base/real.h"
#include "pool/building.h"

enum { MAX_LAYERS = 4096, MAX_HEADS = 4096 };

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

static quire_status check_range(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_INVALID, "%s is %lld, must be %lld to %lld", name, (long long)value,
                       (long long)low, (long long)high);
}

static quire_status check_numbers(const quire_pool_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_pool_options_default");
    if (!o->layers)
        return quire__fail(QUIRE_E_INVALID, "options.layers is NULL");
    QUIRE_TRY(check_range("n_layers", o->n_layers, 1, MAX_LAYERS));
    QUIRE_TRY(check_range("max_seqs", o->max_seqs, 1, 1 << 16));
    QUIRE_TRY(check_range("max_tokens", o->max_tokens, 0, QUIRE_MAX_TOKENS));
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
    return QUIRE_OK;
}

static quire_status check_layer(const quire_layer *l, int32_t i) {
    if (l->n_kv_heads < 1 || l->n_heads < 1 || l->n_heads > MAX_HEADS || l->n_heads % l->n_kv_heads)
        return quire__fail(QUIRE_E_INVALID, "layer %d: %d query heads over %d KV heads", (int)i,
                           (int)l->n_heads, (int)l->n_kv_heads);
    if (l->window < 0 || l->window > QUIRE_MAX_TOKENS || l->keep < 0 || l->keep > QUIRE_MAX_TOKENS)
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

quire_status quire__pool_check_budget(const quire_pool_options *o) {
    if (o->budget_bytes > QUIRE_LARGEST_BUDGET)
        return quire__fail(QUIRE_E_TOO_BIG, "budget of %zu bytes is beyond 64 TiB",
                           o->budget_bytes);
    return QUIRE_OK;
}

quire_status quire__pool_check(const quire_pool_options *o) {
    QUIRE_TRY(check_numbers(o));
    for (int32_t i = 0; i < o->n_layers; i++) {
        QUIRE_TRY(check_layer(&o->layers[i], i));
        if (o->layers[i].share != -1)
            QUIRE_TRY(check_share(o, i));
    }
    return QUIRE_OK;
}
