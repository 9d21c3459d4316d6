/* Rows of a page of a sequence, from the most exact source: raw rows, else packed ones. */
#include <string.h>

#include "seq/seq.h"

quire_page_source quire__page_source(const quire_seq *seq, int32_t class, int32_t page) {
    const quire_seq_class *s = &seq->class[class];
    if (page == seq->length / QUIRE_T)
        return (quire_page_source){page, s->open, QUIRE_NO_LEAF, QUIRE_NO_LEAF};
    const int32_t leaf = s->table[page];
    const bool is_raw = leaf != QUIRE_NO_LEAF && seq->pool->leaf[leaf].kind == QUIRE_LEAF_RAW;
    return (quire_page_source){page,
                               is_raw                   ? leaf
                               : page == seq->last_page ? s->last_raw
                                                        : QUIRE_NO_LEAF,
                               leaf, page == 0 ? s->sinks : QUIRE_NO_LEAF};
}

uint64_t quire__source_held(const quire_pool *pool, const quire_page_source *source) {
    if (source->raw != QUIRE_NO_LEAF)
        return ~pool->leaf[source->raw].lost;
    const uint64_t in_page = source->leaf != QUIRE_NO_LEAF ? ~pool->leaf[source->leaf].lost : 0;
    if (source->sinks == QUIRE_NO_LEAF || quire__class_of(pool, source->sinks)->raw_side)
        return in_page; /* raw layers have no sinks: their page has these rows */
    const uint64_t sinks = quire__rows_below(quire__class_of(pool, source->sinks)->sinks);
    return (in_page & ~sinks) | (~pool->leaf[source->sinks].lost & sinks);
}

uint64_t quire__rows_held(const quire_seq *seq, int32_t class, int32_t page) {
    const quire_page_source source = quire__page_source(seq, class, page);
    return quire__source_held(seq->pool, &source);
}

static void clear_rows(uint64_t which, size_t dim, float *rows) {
    for (size_t t = 0; t < QUIRE_T && which; t++, which >>= 1)
        if (which & 1)
            memset(rows + t * dim, 0, dim * sizeof *rows);
}

static void known_rows(const quire_pool *pool, const quire_page_source *source, int32_t layer,
                       int32_t head, bool is_v, float *rows) {
    const quire_layer_state *l = &pool->layer[layer];
    const quire_row_kernels *kernels = pool->kernels.rows;
    const size_t dim = (size_t)(is_v ? l->config.v_dim : l->config.k_dim);
    if (source->raw != QUIRE_NO_LEAF) {
        const uint8_t *raw = quire__raw_record(pool, l, source->raw, head);
        kernels->from_raw(pool->raw, raw + (is_v ? l->raw_v_offset : 0), QUIRE_T * dim, rows);
        return;
    }
    if (source->leaf != QUIRE_NO_LEAF) {
        const quire_layer_state *form = quire__layer_of(pool, layer, source->leaf);
        quire__record_rows(form, head, is_v, quire__sealed_record(pool, form, source->leaf, head),
                           rows);
    }
    if (source->sinks != QUIRE_NO_LEAF) {
        const quire_layer_state *form = quire__layer_of(pool, layer, source->sinks);
        const uint8_t *sinks = quire__sink_record(pool, form, source->sinks, head);
        kernels->from_raw(pool->raw, sinks + (is_v ? form->sink_v_offset : 0),
                          (size_t)form->sinks * dim, rows);
    }
}

void quire__page_rows(const quire_pool *pool, const quire_page_source *source, int32_t layer,
                      int32_t head, bool is_v, float *rows) {
    const quire_layer *l = &pool->layer[layer].config;
    known_rows(pool, source, layer, head, is_v, rows);
    clear_rows(~quire__source_held(pool, source), (size_t)(is_v ? l->v_dim : l->k_dim), rows);
}
