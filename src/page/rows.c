/* Converts rows of a page, in fp32, from and to records and leaves. */
#include <string.h>

#include "page/pages.h"

/* The order of the channels of a layer's packed K, or NULL. */
static const uint16_t *order_of(const quire_layer_state *layer, int32_t head) {
    return layer->format.k.n_mixed
               ? layer->config.k_order + (size_t)head * (size_t)layer->config.k_dim
               : NULL;
}

bool quire__layer_has_feedback(const quire_layer_state *layer) {
    return layer->config.k_feedback && quire__side_takes_feedback(&layer->format.k);
}

typedef void (*reorder)(const uint16_t *order, int dim, const float *from, float *to);

static void reorder_rows(reorder f, const uint16_t *order, int dim, float *rows /* (64, dim) */) {
    float row[QUIRE_DIM_MAX];
    for (int32_t t = 0; t < QUIRE_T; t++, rows += dim) {
        memcpy(row, rows, (size_t)dim * sizeof *row);
        f(order, dim, row, rows);
    }
}

void quire__seal_side_rows(const quire_row_kernels *kernels, const quire_layer_state *layer,
                           int32_t head, int32_t page, bool is_v, float *rows, int32_t skip,
                           uint8_t *record) {
    if (is_v) {
        const size_t end = quire__side_end(&layer->format.v);
        kernels->seal_side(&layer->format.v, rows, skip, record);
        memset(record + end, 0, layer->format.bytes - end);
        return;
    }
    const uint16_t *order = order_of(layer, head);
    if (order)
        reorder_rows(quire__into_order, order, layer->config.k_dim, rows);
    kernels->seal_side(&layer->format.k, rows, skip, record);
    if (!quire__layer_has_feedback(layer) || skip >= QUIRE_T)
        return;
    quire_page_feedback page_feedback;
    const float *feedback =
        layer->config.k_feedback + (size_t)head * quire__n_feedback(layer->config.k_dim);
    quire__page_feedback_init(&page_feedback, layer->rope_pairs, feedback, order, page);
    kernels->round_with_feedback(&layer->format.k, rows, skip, &page_feedback, record);
}

void quire__seal_rows(const quire_row_kernels *kernels, const quire_layer_state *layer,
                      int32_t head, int32_t page, float *k, float *v, int32_t skip,
                      uint8_t *record) {
    quire__seal_side_rows(kernels, layer, head, page, false, k, skip, record);
    quire__seal_side_rows(kernels, layer, head, page, true, v, skip, record);
}

void quire__record_rows(const quire_layer_state *layer, int32_t head, bool is_v,
                        const uint8_t *record, float *rows) {
    const uint16_t *order = is_v ? NULL : order_of(layer, head);
    quire__side_decode(is_v ? &layer->format.v : &layer->format.k, record, rows);
    if (order)
        reorder_rows(quire__from_order, order, layer->config.k_dim, rows);
}

quire_status quire__check_rows(const quire_side_format *side, const float *rows, size_t n_rows,
                               int32_t page, int32_t layer, int32_t head) {
    size_t bad;
    if (quire__side_accepts(side, rows, n_rows * (size_t)side->dim, &bad))
        return QUIRE_OK;
    return quire__fail(
        QUIRE_E_VALUE,
        "page %d, layer %d, KV head %d: %s has the value %g; codec %s holds values up to %g",
        (int)page, (int)layer, (int)head, side->is_v ? "V" : "K", (double)rows[bad],
        quire_codec_name(side->codec), (double)side->max_abs);
}

void quire__clamp_rows(float *rows, size_t n, float largest) {
    for (size_t i = 0; i < n; i++)
        rows[i] = rows[i] > largest ? largest : rows[i] < -largest ? -largest : rows[i];
}

void quire__sink_rows(const quire_pool *pool, int32_t layer, int32_t head, const float *k,
                      const float *v, int32_t leaf) {
    const quire_layer_state *l = &pool->layer[layer];
    const size_t n = (size_t)l->sinks;
    uint8_t *to = quire__sink_record(pool, l, leaf, head);
    memset(to, 0, l->sink_record_bytes);
    pool->kernels.rows->to_raw(pool->raw, to, n * (size_t)l->config.k_dim, k);
    pool->kernels.rows->to_raw(pool->raw, to + l->sink_v_offset, n * (size_t)l->config.v_dim, v);
}

void quire__raw_rows(const quire_pool *pool, int32_t layer, int32_t head, bool is_v, float *rows,
                     int32_t leaf) {
    const quire_layer_state *l = &pool->layer[layer];
    const float limit = pool->raw == QUIRE_F16 ? QUIRE_F16_MAX : QUIRE_BF16_MAX;
    const size_t n = QUIRE_T * (size_t)(is_v ? l->config.v_dim : l->config.k_dim);
    quire__clamp_rows(rows, n, limit);
    pool->kernels.rows->to_raw(
        pool->raw, quire__raw_record(pool, l, leaf, head) + (is_v ? l->raw_v_offset : 0), n, rows);
}
