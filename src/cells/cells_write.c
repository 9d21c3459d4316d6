/* Writes rows into pages, and packs the pages that are complete. */
#include <string.h>

#include "base/element.h"
#include "cells/cells.h"

void quire__cells_decode(const quire_cells *cells, const quire_cells_layer *layer, int side,
                         int32_t page, int32_t head, float *rows) {
    const quire_cells_side *s = &layer->side[side];
    const int32_t sinks = quire__cells_sinks(cells, layer, page);
    quire__record_rows(layer->form, head, s->is_v, quire__cells_record(layer, page, head), rows);
    if (sinks > 0)
        cells->pool->kernels.rows->from_raw(cells->pool->raw,
                                            quire__cells_sink_rows(cells, layer, side, page, head),
                                            (size_t)sinks * (size_t)s->format->dim, rows);
}

/* Rounds one row of one head to the raw type. False: it has NaN. */
static bool write_row(const quire_cells *cells, quire_cells_layer *layer, const quire_cells_side *s,
                      quire_type type, const void *from, uint8_t *to) {
    const quire_row_kernels *kernels = cells->pool->kernels.rows;
    const size_t dim = (size_t)s->format->dim;
    const float largest = quire__largest_value(cells->pool->raw, s->format);
    float row[QUIRE_DIM_MAX];
    kernels->from_raw(type, from, dim, row);
    if (quire__first_beyond(row, dim, largest) < dim) {
        uint64_t clamped = 0;
        for (size_t d = 0; d < dim; d++) {
            if (row[d] != row[d])
                return false;
            clamped += row[d] > largest || row[d] < -largest;
        }
        quire__clamp_rows(row, dim, largest);
        atomic_fetch_add_explicit(&layer->clamped, clamped, memory_order_relaxed);
    }
    kernels->to_raw(cells->pool->raw, to, dim, row);
    return true;
}

static void seal(const quire_cells *cells, quire_cells_layer *layer, int side, int32_t page,
                 int32_t head, const uint8_t *raw, float *rows) {
    const quire_cells_side *s = &layer->side[side];
    const quire_row_kernels *kernels = cells->pool->kernels.rows;
    const int32_t sinks = quire__cells_sinks(cells, layer, page);
    kernels->from_raw(cells->pool->raw, raw, QUIRE_T * (size_t)s->format->dim, rows);
    if (sinks > 0)
        memcpy(quire__cells_sink_rows(cells, layer, side, page, head), raw,
               s->head_bytes / QUIRE_T * (size_t)sinks);
    quire__seal_side_rows(kernels, layer->form, head, page % cells->pages_per_stream, s->is_v, rows,
                          sinks, quire__cells_record(layer, page, head));
}

/* Zeros for a row that is not a number: a codec could not hold it, and the rest of the page must
 * not be lost with it. Attention remembers the cell. */
static void write_bad_row(quire_cells_layer *layer, const quire_cells_side *s, int32_t page,
                          int32_t offset, uint8_t *to) {
    memset(to, 0, s->head_bytes / QUIRE_T);
    atomic_fetch_or_explicit(&s->bad[page], (uint64_t)1 << offset, memory_order_relaxed);
    atomic_store_explicit(&layer->has_bad, true, memory_order_relaxed);
}

/* -> the first row that is not a number, or -1. */
static int32_t write_touch(const quire_cells *cells, quire_cells_layer *layer, int side,
                           int32_t head, const quire_cells_touch *t, quire_rows from, float *rows) {
    const quire_cells_side *s = &layer->side[side];
    const size_t dim = (size_t)s->format->dim, size = quire__type_bytes(from.type),
                 dense = (size_t)layer->form->config.n_kv_heads * dim,
                 row_bytes = (from.row_stride ? from.row_stride : dense) * size;
    uint8_t *raw = quire__cells_raw(cells, layer, side, t->page, head);
    if (t->decode) {
        quire__cells_decode(cells, layer, side, t->page, head, rows);
        quire__clamp_rows(rows, QUIRE_T * dim, quire__largest_value(cells->pool->raw, s->format));
        cells->pool->kernels.rows->to_raw(cells->pool->raw, raw, QUIRE_T * dim, rows);
    } else if (t->fresh) {
        memset(raw, 0, s->head_bytes);
    }
    int32_t bad = -1;
    for (int32_t r = t->first_row; r >= 0; r = s->next_row[r]) {
        uint8_t *to = raw + (size_t)s->offset[r] * (s->head_bytes / QUIRE_T);
        if (write_row(
                cells, layer, s, from.type,
                (const uint8_t *)from.data + (size_t)r * row_bytes + (size_t)head * dim * size, to))
            continue;
        write_bad_row(layer, s, t->page, s->offset[r], to);
        bad = bad < 0 ? r : bad;
    }
    if (t->seal)
        seal(cells, layer, side, t->page, head, raw, rows);
    return bad;
}

quire_status quire_cells_write(quire_cells *cells, int32_t layer, quire_side which, quire_rows rows,
                               int32_t ith, int32_t nth) {
    QUIRE_TRY(quire__cells_check(cells, layer, which));
    quire_cells_layer *l = &cells->layer[layer];
    const int side = which == QUIRE_SIDE_V;
    quire_cells_side *s = &l->side[side];
    const size_t dense = (size_t)l->form->config.n_kv_heads * (size_t)s->format->dim;
    if (!s->planned)
        return quire__fail(QUIRE_E_STATE, "layer %d: plan a write before making it", (int)layer);
    if (nth < 1 || nth > cells->max_workers || ith < 0 || ith >= nth)
        return quire__fail(QUIRE_E_INVALID, "worker %d of %d; cells were created for %d", (int)ith,
                           (int)nth, (int)cells->max_workers);
    if (s->n_rows > 0 && (!rows.data || !quire__type_valid(rows.type) ||
                          (rows.row_stride && rows.row_stride < dense)))
        return quire__fail(QUIRE_E_INVALID,
                           "layer %d: rows are NULL, of an unknown type, or overlap", (int)layer);
    const int32_t n_heads = l->form->config.n_kv_heads, n_units = s->n_touch * n_heads;
    float *buffer = cells->worker[ith].rows;
    int32_t bad_row = -1, bad_head = 0;
    for (int32_t unit = ith; unit < n_units; unit += nth) {
        const int32_t bad =
            write_touch(cells, l, side, unit % n_heads, &s->touch[unit / n_heads], rows, buffer);
        if (bad_row < 0 && bad >= 0) {
            bad_row = bad;
            bad_head = unit % n_heads;
        }
    }
    if (ith == 0) {
        uint64_t sealed = 0;
        for (int32_t i = 0; i < s->n_touch; i++)
            sealed += s->touch[i].seal;
        atomic_fetch_add_explicit(&l->sealed, sealed, memory_order_relaxed);
        s->nth = nth;
    }
    atomic_fetch_add(&s->finished, 1);
    if (bad_row >= 0)
        return quire__fail(QUIRE_E_VALUE, "layer %d, row %d, KV head %d: %s is not a number",
                           (int)layer, (int)bad_row, (int)bad_head, s->is_v ? "V" : "K");
    return QUIRE_OK;
}
