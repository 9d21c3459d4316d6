/* The form that a policy gives a pool's layers: codecs, and where records lie in the leaves of a
 * class. */
#include "base/element.h"
#include "base/size.h"
#include "page/pages.h"

quire_pair quire__form_pair(const quire_pool *pool, const quire_policy *p, int32_t i) {
    const quire_layer_state *s = &pool->layer[i];
    quire_pair pair = s->config.window > 0                                      ? p->windowed
                      : i < p->edge_first || i >= pool->n_layers - p->edge_last ? p->edge
                                                                                : p->pair;
    if (s->asked.k != QUIRE_CODEC_DEFAULT)
        pair.k = s->asked.k;
    if (s->asked.v != QUIRE_CODEC_DEFAULT)
        pair.v = s->asked.v;
    return pair;
}

quire_status quire__form_layer(const quire_pool *pool, const quire_policy *policy, int32_t i,
                               quire_layer_state *s) {
    const quire_pair pair = quire__form_pair(pool, policy, i);
    const quire_status status =
        quire__format_init(&s->format, pair, s->config.k_dim, s->config.v_dim, pool->raw);
    if (status != QUIRE_OK)
        return quire__fail_where(status, "layer %d", (int)i);
    if (s->format.k.n_mixed && !s->config.k_order)
        return quire__fail(QUIRE_E_INVALID,
                           "layer %d: codec %s needs a channel order: set quire_layer.k_order "
                           "when the pool is created (quire_channel_order makes one)",
                           (int)i, quire_codec_name(pair.k));
    s->config.k = pair.k;
    s->config.v = pair.v;
    s->packed = quire__attend_kernel(&pool->kernels, &s->format);
    return QUIRE_OK;
}

bool quire__form_is_raw(const quire_layer_state *s, quire_type raw) {
    const quire_side_format *k = &s->format.k, *v = &s->format.v;
    return k->family == QUIRE_FAMILY_RAW && v->family == QUIRE_FAMILY_RAW && k->type == raw &&
           v->type == raw;
}

int32_t quire__form_class(quire_class *class, int32_t *n_classes, const quire_layer *l) {
    for (int32_t g = 0; g < *n_classes; g++)
        if (class[g].window == l->window && class[g].keep == l->keep)
            return g;
    class[*n_classes] = (quire_class){.window = l->window, .keep = l->keep};
    return (*n_classes)++;
}

static void place(quire_layer_state *s, quire_class *g, quire_type raw) {
    const quire_layer *l = &s->config;
    const size_t size = quire__type_bytes(raw), n_heads = (size_t)l->n_kv_heads;
    s->raw_v_offset = QUIRE_T * (size_t)l->k_dim * size;
    s->raw_record_bytes = s->raw_v_offset + QUIRE_T * (size_t)l->v_dim * size;
    s->sinks = quire__form_is_raw(s, raw) ? 0 : g->sinks;
    s->sink_v_offset = (size_t)s->sinks * (size_t)l->k_dim * size;
    /* A leaf must end where a record may begin. Sealing clears the gap, because the bytes may be
     * saved. */
    s->sink_record_bytes = quire__align(
        s->sink_v_offset + (size_t)s->sinks * (size_t)l->v_dim * size, QUIRE_RECORD_ALIGN);
    s->sealed_offset = g->sealed_bytes;
    s->raw_offset = g->raw_bytes;
    s->sink_offset = g->sink_bytes;
    g->sealed_bytes += n_heads * s->format.bytes;
    g->raw_bytes += n_heads * s->raw_record_bytes;
    g->sink_bytes += n_heads * s->sink_record_bytes;
}

void quire__form_copy(quire_layer_state *to, const quire_layer_state *from) {
    to->format = from->format;
    to->sinks = from->sinks;
    to->packed = from->packed;
    to->sealed_offset = from->sealed_offset;
    to->raw_offset = from->raw_offset;
    to->sink_offset = from->sink_offset;
    to->raw_record_bytes = from->raw_record_bytes;
    to->raw_v_offset = from->raw_v_offset;
    to->sink_record_bytes = from->sink_record_bytes;
    to->sink_v_offset = from->sink_v_offset;
    to->config.k = from->config.k;
    to->config.v = from->config.v;
}

void quire__form_place(quire_type raw, int32_t sinks, quire_layer_state *layer, int32_t n_layers,
                       quire_class *class, int32_t n_classes) {
    for (int32_t g = 0; g < n_classes; g++) {
        class[g].raw = true;
        class[g].raw_side = false;
        class[g].sealed_bytes = class[g].raw_bytes = class[g].sink_bytes = 0;
    }
    for (int32_t i = 0; i < n_layers; i++)
        if (layer[i].source == i && !quire__form_is_raw(&layer[i], raw))
            class[layer[i].class].raw = false;
    for (int32_t i = 0; i < n_layers; i++)
        if (layer[i].source == i && quire__form_is_raw(&layer[i], raw))
            class[layer[i].class].raw_side = !class[layer[i].class].raw;
    for (int32_t g = 0; g < n_classes; g++)
        class[g].sinks = class[g].raw ? 0 : sinks;
    for (int32_t i = 0; i < n_layers; i++) {
        /* A layer that shares another's cache has the same form; only its query heads differ. */
        const int32_t source = layer[i].source;
        layer[i].class = layer[source].class;
        if (source == i)
            place(&layer[i], &class[layer[i].class], raw);
        else
            quire__form_copy(&layer[i], &layer[source]);
    }
}
