/* Appends new K and V rows to their pages, and packs each page that fills up. */
#include <string.h>

#include "base/element.h"
#include "batch/batch.h"

typedef struct source {
    const uint8_t *data; /* row 0, head 0 */
    quire_type type;
    size_t row_bytes; /* from row to row */
    const quire_side_format *side;
    size_t target; /* offset of this side in a raw record */
} source;

static quire_status source_of(source *s, quire_rows rows, const quire_layer_state *layer, bool is_v,
                              int32_t index) {
    s->side = is_v ? &layer->format.v : &layer->format.k;
    s->data = rows.data;
    s->type = rows.type;
    s->target = is_v ? layer->raw_v_offset : 0;
    const size_t dense = (size_t)layer->config.n_kv_heads * (size_t)s->side->dim;
    if (!rows.data || !quire__type_valid(rows.type))
        return quire__fail(QUIRE_E_INVALID, "layer %d: %s is NULL or has an unknown type",
                           (int)index, is_v ? "V" : "K");
    if (rows.row_stride != 0 && rows.row_stride < dense)
        return quire__fail(QUIRE_E_INVALID,
                           "layer %d: %s row stride %zu is less than a row of %zu elements",
                           (int)index, is_v ? "V" : "K", rows.row_stride, dense);
    s->row_bytes = (rows.row_stride ? rows.row_stride : dense) * quire__type_bytes(rows.type);
    return QUIRE_OK;
}

/* Checks the rows of one tile and head, and writes them in the raw type. */
static quire_status append_rows(const quire_batch *batch, const quire_tile *tile, int32_t layer,
                                int32_t head, const source *s, uint8_t *raw) {
    const quire_type type = batch->pool->raw;
    const size_t dim = (size_t)s->side->dim, size = quire__type_bytes(s->type),
                 raw_size = quire__type_bytes(type);
    const float largest = quire__largest_value(type, s->side);
    const quire_row_kernels *kernels = batch->pool->kernels.rows;
    float row[QUIRE_DIM_MAX];
    for (int32_t r = 0; r < tile->n_rows; r++) {
        kernels->from_raw(
            s->type, s->data + (size_t)(tile->row + r) * s->row_bytes + (size_t)head * dim * size,
            dim, row);
        const size_t bad = quire__first_beyond(row, dim, largest);
        if (bad < dim)
            return quire__fail(QUIRE_E_VALUE,
                               "layer %d, row %d, KV head %d: %s[%zu] is %g; codec %s in a %s pool "
                               "holds finite values up to %g",
                               (int)layer, (int)(tile->row + r), (int)head,
                               s->side->is_v ? "V" : "K", bad, (double)row[bad],
                               quire_codec_name(s->side->codec),
                               type == QUIRE_F16    ? "f16"
                               : type == QUIRE_BF16 ? "bf16"
                                                    : "f32",
                               (double)largest);
        kernels->to_raw(type, raw + s->target + (size_t)(tile->offset + r) * dim * raw_size, dim,
                        row);
    }
    return QUIRE_OK;
}

/* Copies the earlier rows of a page that was shared with another sequence. */
static void copy_shared_rows(const quire_batch *batch, const quire_tile *tile,
                             const quire_layer_state *layer, int32_t head, uint8_t *raw) {
    const uint8_t *from =
        quire__raw_record(batch->pool, layer, tile->class[layer->class].copy_from, head);
    const size_t size = quire__type_bytes(batch->pool->raw), rows = (size_t)tile->offset;
    memcpy(raw, from, rows * (size_t)layer->config.k_dim * size);
    memcpy(raw + layer->raw_v_offset, from + layer->raw_v_offset,
           rows * (size_t)layer->config.v_dim * size);
}

static quire_status seal(quire_batch *batch, const quire_tile *tile, int32_t index, int32_t head,
                         const uint8_t *raw, quire_worker *worker) {
    quire_pool *pool = batch->pool;
    const quire_layer_state *layer = &pool->layer[index];
    const quire_tile_class *plan = &tile->class[layer->class];
    const int32_t sinks = tile->page == 0 ? layer->sinks : 0;
    const size_t size = quire__type_bytes(pool->raw), dk = (size_t)layer->config.k_dim,
                 dv = (size_t)layer->config.v_dim;
    const quire_row_kernels *kernels = pool->kernels.rows;
    kernels->from_raw(pool->raw, raw, QUIRE_T * dk, worker->k_rows);
    kernels->from_raw(pool->raw, raw + layer->raw_v_offset, QUIRE_T * dv, worker->v_rows);
    /* Earlier rows may come from before a change of policy, whose codecs took larger values. */
    if (tile->offset > 0 && pool->raw != QUIRE_F16) {
        QUIRE_TRY(quire__check_rows(&layer->format.k, worker->k_rows, (size_t)tile->offset,
                                    tile->page, index, head));
        QUIRE_TRY(quire__check_rows(&layer->format.v, worker->v_rows, (size_t)tile->offset,
                                    tile->page, index, head));
    }
    quire__seal_rows(kernels, layer, head, tile->page, worker->k_rows, worker->v_rows, sinks,
                     quire__sealed_record(pool, layer, plan->seal, head));
    if (!quire__form_is_raw(layer, pool->raw))
        atomic_fetch_add(&pool->sealed_pages, 1);
    if (sinks == 0)
        return QUIRE_OK;
    uint8_t *to = quire__sink_record(pool, layer, plan->sinks, head);
    memset(to, 0, layer->sink_record_bytes);
    memcpy(to, raw, (size_t)sinks * dk * size);
    memcpy(to + layer->sink_v_offset, raw + layer->raw_v_offset, (size_t)sinks * dv * size);
    return QUIRE_OK;
}

static quire_status append_tile(quire_batch *batch, const quire_tile *tile, int32_t index,
                                int32_t head, const source *k, const source *v,
                                quire_worker *worker) {
    const quire_layer_state *layer = &batch->pool->layer[index];
    uint8_t *raw = quire__tile_raw(batch, tile, layer, head);
    if (tile->class[layer->class].copy_from != QUIRE_NO_LEAF)
        copy_shared_rows(batch, tile, layer, head, raw);
    QUIRE_TRY(append_rows(batch, tile, index, head, k, raw));
    QUIRE_TRY(append_rows(batch, tile, index, head, v, raw));
    if (tile->full && !batch->pool->class[layer->class].raw)
        return seal(batch, tile, index, head, raw, worker);
    return QUIRE_OK;
}

quire_status quire_batch_append(quire_batch *batch, int32_t index, quire_rows k_rows,
                                quire_rows v_rows, int32_t ith, int32_t nth) {
    QUIRE_TRY(quire__batch_check_call(batch, index, ith, nth));
    const quire_layer_state *layer = &batch->pool->layer[index];
    if (layer->source != index)
        return quire__batch_note(
            batch,
            quire__fail(QUIRE_E_STATE, "layer %d shares layer %d's cache: append only to that one",
                        (int)index, (int)layer->source));
    if (batch->n_rows == 0)
        return QUIRE_OK;
    source k, v;
    quire_status status = source_of(&k, k_rows, layer, false, index);
    if (status == QUIRE_OK)
        status = source_of(&v, v_rows, layer, true, index);
    if (status != QUIRE_OK)
        return quire__batch_note(batch, status);
    atomic_store(&batch->region_layer[layer->scratch_region], index);
    const int32_t n_heads = layer->config.n_kv_heads, n_units = batch->n_tiles * n_heads;
    for (int32_t unit = ith; unit < n_units; unit += nth) {
        status = append_tile(batch, &batch->tile[unit / n_heads], index, unit % n_heads, &k, &v,
                             &batch->worker[ith]);
        if (status != QUIRE_OK)
            return quire__batch_fail(batch, status);
    }
    atomic_store(&batch->appended[(ptrdiff_t)index * batch->pool->max_workers + ith], nth);
    atomic_store(&batch->appended_nth[index], nth);
    return QUIRE_OK;
}
