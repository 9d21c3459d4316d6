/* Where a layer's records lie in the leaves of its group: the same in a pool and in a file. */
#include "base/element.h"
#include "base/size.h"
#include "page/pool.h"

static int32_t find_group(quire_group *group, int32_t *n_groups, const quire_layer *l, bool raw, int32_t sinks) {
    for (int32_t g = 0; g < *n_groups; g++)
        if (group[g].window == l->window && group[g].keep == l->keep && group[g].raw == raw)
            return g;
    group[*n_groups] = (quire_group){.window = l->window, .keep = l->keep, .raw = raw, .sinks = raw ? 0 : sinks};
    return (*n_groups)++;
}

void quire__place_layer(quire_layer_state *s, quire_group *group, int32_t *n_groups, quire_type type, int32_t sinks) {
    const quire_layer *l = &s->config;
    const quire_side_format *k = &s->format.k, *v = &s->format.v;
    const bool raw =
        k->family == QUIRE_FAMILY_RAW && v->family == QUIRE_FAMILY_RAW && k->type == type && v->type == type;
    s->group = find_group(group, n_groups, l, raw, sinks);
    quire_group *g = &group[s->group];
    const size_t size = quire__type_bytes(type), n_heads = (size_t)l->n_kv_heads;
    s->raw_v_offset = QUIRE_T * (size_t)l->k_dim * size;
    s->raw_record_bytes = s->raw_v_offset + QUIRE_T * (size_t)l->v_dim * size;
    s->sink_v_offset = (size_t)g->sinks * (size_t)l->k_dim * size;
    /* Leaves must end where a record may begin; sealing clears the gap, for the bytes may be saved. */
    s->sink_record_bytes =
        quire__align(s->sink_v_offset + (size_t)g->sinks * (size_t)l->v_dim * size, QUIRE_RECORD_ALIGN);
    s->sealed_offset = g->sealed_bytes;
    s->raw_offset = g->raw_bytes;
    s->sink_offset = g->sink_bytes;
    g->sealed_bytes += n_heads * s->format.bytes;
    g->raw_bytes += n_heads * s->raw_record_bytes;
    g->sink_bytes += n_heads * s->sink_record_bytes;
}
