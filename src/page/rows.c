/* Rows of a page out of and into leaves, in fp32: for pages that are opened again or rebuilt. */
#include <string.h>

#include "base/element.h"
#include "page/pool.h"

quire_page_source quire__page_source(const quire_seq *seq, int32_t group, int32_t page) {
    const quire_seq_group *s = &seq->group[group];
    if (page == seq->length / QUIRE_T)
        return (quire_page_source){page, s->open, QUIRE_NO_LEAF, QUIRE_NO_LEAF};
    const int32_t leaf = s->table[page];
    const bool is_raw = leaf != QUIRE_NO_LEAF && seq->pool->leaf[leaf].kind == QUIRE_LEAF_RAW;
    return (quire_page_source){page,
                               is_raw                   ? leaf
                               : page == seq->kept_page ? s->kept
                                                        : QUIRE_NO_LEAF,
                               leaf, page == 0 ? s->sinks : QUIRE_NO_LEAF};
}

void quire__page_rows(const quire_pool *pool, const quire_page_source *source, int32_t layer, int32_t head, bool is_v,
                      float *rows) {
    const quire_layer_state *l = &pool->layer[layer];
    const quire_row_kernels *kernels = pool->kernels.rows;
    const size_t dim = (size_t)(is_v ? l->config.v_dim : l->config.k_dim);
    if (source->raw != QUIRE_NO_LEAF) {
        const uint8_t *raw = quire__raw_record(pool, l, source->raw, head);
        kernels->load(pool->raw, raw + (is_v ? l->raw_v_offset : 0), QUIRE_T * dim, rows);
        return;
    }
    if (source->leaf != QUIRE_NO_LEAF) {
        const quire_layer_state *form = quire__layer_of(pool, layer, source->leaf);
        quire__side_decode(is_v ? &form->format.v : &form->format.k,
                           quire__sealed_record(pool, form, source->leaf, head), rows);
    } else { /* nobody sees them */
        memset(rows, 0, QUIRE_T * dim * sizeof *rows);
    }
    if (source->sinks != QUIRE_NO_LEAF) {
        const quire_layer_state *form = quire__layer_of(pool, layer, source->sinks);
        const uint8_t *sinks = quire__sink_record(pool, form, source->sinks, head);
        const size_t n = (size_t)quire__group_of(pool, source->sinks)->sinks;
        kernels->load(pool->raw, sinks + (is_v ? form->sink_v_offset : 0), n * dim, rows);
    }
}

void quire__clamp_rows(float *rows, size_t n, float largest) {
    for (size_t i = 0; i < n; i++)
        rows[i] = rows[i] > largest ? largest : rows[i] < -largest ? -largest : rows[i];
}

void quire__sink_rows(const quire_pool *pool, int32_t layer, int32_t head, const float *k, const float *v,
                      int32_t leaf) {
    const quire_layer_state *l = &pool->layer[layer];
    const size_t n = (size_t)pool->group[l->group].sinks;
    uint8_t *to = quire__sink_record(pool, l, leaf, head);
    memset(to, 0, l->sink_record_bytes);
    pool->kernels.rows->store(pool->raw, to, n * (size_t)l->config.k_dim, k);
    pool->kernels.rows->store(pool->raw, to + l->sink_v_offset, n * (size_t)l->config.v_dim, v);
}

void quire__raw_rows(const quire_pool *pool, int32_t layer, int32_t head, bool is_v, float *rows, int32_t leaf) {
    const quire_layer_state *l = &pool->layer[layer];
    const float limit = pool->raw == QUIRE_F16 ? QUIRE_F16_MAX : QUIRE_BF16_MAX;
    const size_t n = QUIRE_T * (size_t)(is_v ? l->config.v_dim : l->config.k_dim);
    quire__clamp_rows(rows, n, limit);
    pool->kernels.rows->store(pool->raw, quire__raw_record(pool, l, leaf, head) + (is_v ? l->raw_v_offset : 0), n,
                              rows);
}
