/* Rows out of pages, pages from stream to stream, and what is resident. */
#include <string.h>

#include "base/element.h"
#include "cells/cells.h"

static quire_status check_range(const quire_cells *cells, int64_t first, int64_t n) {
    const int64_t n_cells = (int64_t)cells->n_pages * QUIRE_T;
    if (first < 0 || n < 0 || first > n_cells || n > n_cells - first)
        return quire__fail(QUIRE_E_INVALID, "cells %lld to %lld of %lld", (long long)first,
                           (long long)(first + n - 1), (long long)n_cells);
    return QUIRE_OK;
}

/* One page and head as fp32. */
static void page_rows(const quire_cells *cells, const quire_cells_layer *layer, int side,
                      int32_t page, int32_t head, float *rows) {
    const size_t n = QUIRE_T * (size_t)layer->side[side].format->dim;
    const uint8_t *raw = quire__cells_raw(cells, layer, side, page, head);
    if (layer->side[side].place[page] == QUIRE_CELLS_EMPTY)
        memset(rows, 0, n * sizeof *rows);
    else if (raw)
        cells->pool->kernels.rows->from_raw(cells->pool->raw, raw, n, rows);
    else
        quire__cells_decode(cells, layer, side, page, head, rows);
}

/* Bytes of the largest one in fp32, all heads. */
static size_t largest_page(const quire_cells *cells) {
    size_t most = 0;
    for (int32_t i = 0; i < cells->pool->n_layers; i++)
        for (int side = 0; side < 2; side++) {
            const quire_cells_layer *l = &cells->layer[i];
            const size_t n = (size_t)l->form->config.n_kv_heads * (size_t)l->side[side].format->dim;
            most = n > most ? n : most;
        }
    return most * QUIRE_T * sizeof(float);
}

/* All heads of a page, which are kept: who reads one cell after another, as llama.cpp does where
 * the cells of sequences alternate, would have the page decoded for each. NULL: out of memory. */
static const float *kept_page(quire_cells *cells, int32_t layer, int side, int32_t page) {
    const quire_cells_layer *l = &cells->layer[layer];
    const size_t n = QUIRE_T * (size_t)l->side[side].format->dim;
    if (cells->read.rows && cells->read.layer == layer && cells->read.side == side &&
        cells->read.page == page)
        return cells->read.rows;
    if (!cells->read.room)
        cells->read.room =
            quire__alloc(&cells->pool->allocator, largest_page(cells), QUIRE_CACHE_LINE);
    cells->read.rows = cells->read.room;
    if (!cells->read.rows)
        return NULL;
    for (int32_t head = 0; head < l->form->config.n_kv_heads; head++)
        page_rows(cells, l, side, page, head, cells->read.rows + (size_t)head * n);
    cells->read.layer = layer;
    cells->read.side = side;
    cells->read.page = page;
    return cells->read.rows;
}

quire_status quire_cells_read(quire_cells *cells, int32_t layer, quire_side which, int64_t first,
                              int64_t n, quire_type type, void *out) {
    QUIRE_TRY(quire__cells_check(cells, layer, which));
    QUIRE_TRY(check_range(cells, first, n));
    if (!quire__type_valid(type) || (n > 0 && !out))
        return quire__fail(QUIRE_E_INVALID, "rows is NULL or has an unknown type");
    const int side = which == QUIRE_SIDE_V;
    const quire_cells_layer *l = &cells->layer[layer];
    const size_t dim = (size_t)l->side[side].format->dim, size = quire__type_bytes(type),
                 n_heads = (size_t)l->form->config.n_kv_heads;
    quire__cells_settle(cells, layer, side);
    for (int64_t page = first / QUIRE_T; n > 0 && page <= (first + n - 1) / QUIRE_T; page++) {
        const int64_t from = page * QUIRE_T < first ? first : page * QUIRE_T,
                      to = (page + 1) * QUIRE_T > first + n ? first + n : (page + 1) * QUIRE_T;
        const float *kept =
            to - from < QUIRE_T ? kept_page(cells, layer, side, (int32_t)page) : NULL;
        for (size_t head = 0; head < n_heads; head++) {
            const float *rows = kept ? kept + head * QUIRE_T * dim : cells->worker[0].rows;
            if (!kept)
                page_rows(cells, l, side, (int32_t)page, (int32_t)head, cells->worker[0].rows);
            for (int64_t cell = from; cell < to; cell++)
                cells->pool->kernels.rows->to_raw(
                    type, (uint8_t *)out + (((size_t)(cell - first) * n_heads + head) * dim) * size,
                    dim, rows + (size_t)(cell - page * QUIRE_T) * dim);
        }
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ copies */

static void copy_page(quire_cells *cells, quire_cells_layer *l, int side, int32_t from,
                      int32_t to) {
    quire_cells_side *s = &l->side[side];
    const int32_t n_heads = l->form->config.n_kv_heads, place = s->place[from];
    const size_t page_bytes = (size_t)n_heads * s->head_bytes,
                 side_bytes = quire__side_end(s->format) - s->format->codes;
    if (s->place[to] >= 0)
        quire__cells_free_slot(s, s->place[to]);
    s->written[to] = s->written[from];
    atomic_store_explicit(&s->bad[to], atomic_load(&s->bad[from]), memory_order_relaxed);
    if (place >= 0) {
        const int32_t slot = quire__cells_take_slot(s, to);
        s->slot_hot[slot] = s->slot_hot[place];
        memcpy(s->slots + (size_t)slot * page_bytes, s->slots + (size_t)place * page_bytes,
               page_bytes);
        return;
    }
    s->place[to] = place;
    if (place == QUIRE_CELLS_EMPTY)
        return;
    for (int32_t head = 0; head < n_heads; head++) {
        memcpy(quire__cells_record(l, to, head) + s->format->codes,
               quire__cells_record(l, from, head) + s->format->codes, side_bytes);
        if (quire__cells_sinks(cells, l, from) > 0)
            memcpy(quire__cells_sink_rows(cells, l, side, to, head),
                   quire__cells_sink_rows(cells, l, side, from, head),
                   s->head_bytes / QUIRE_T * (size_t)l->form->sinks);
    }
}

quire_status quire_cells_copy(quire_cells *cells, int32_t layer, quire_side which, int64_t from,
                              int64_t to, int64_t n) {
    QUIRE_TRY(quire__cells_check(cells, layer, which));
    QUIRE_TRY(check_range(cells, from, n));
    QUIRE_TRY(check_range(cells, to, n));
    if (from % QUIRE_T || to % QUIRE_T || n % QUIRE_T || (from < to + n && to < from + n))
        return quire__fail(QUIRE_E_INVALID,
                           "copies are of whole pages that do not overlap: %lld cells from %lld "
                           "to %lld",
                           (long long)n, (long long)from, (long long)to);
    const int side = which == QUIRE_SIDE_V;
    if (cells->layer[layer].form->sinks > 0 &&
        (from / QUIRE_T - to / QUIRE_T) % cells->pages_per_stream != 0)
        return quire__fail(QUIRE_E_INVALID,
                           "a copy must keep each page at its place in the stream: %lld to %lld",
                           (long long)from, (long long)to);
    quire__cells_settle(cells, layer, side);
    quire__cells_forget_read(cells);
    for (int64_t i = 0; i < n / QUIRE_T; i++)
        copy_page(cells, &cells->layer[layer], side, (int32_t)(from / QUIRE_T + i),
                  (int32_t)(to / QUIRE_T + i));
    return QUIRE_OK;
}

quire_status quire_cells_clear(quire_cells *cells) {
    if (!cells)
        return quire__fail(QUIRE_E_INVALID, "cells is NULL");
    quire__cells_forget_read(cells);
    for (int32_t i = 0; i < cells->pool->n_layers; i++) {
        for (int side = 0; side < 2; side++) {
            quire_cells_side *s = &cells->layer[i].side[side];
            quire__cells_settle(cells, i, side);
            for (int32_t page = 0; page < cells->n_pages; page++) {
                s->place[page] = QUIRE_CELLS_EMPTY;
                s->written[page] = 0;
                atomic_store_explicit(&s->bad[page], 0, memory_order_relaxed);
                s->slot_page[page] = -1;
            }
            s->n_slots = 0;
            quire__cells_give_back(cells, i, side);
        }
        quire__cells_measure_again(&cells->layer[i]);
        atomic_store_explicit(&cells->layer[i].has_bad, false, memory_order_relaxed);
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ statistics */

quire_status quire_cells_get_stats(const quire_cells *cells, int32_t layer,
                                   quire_cells_stats *stats) {
    QUIRE_TRY(quire__cells_check(cells, layer, QUIRE_SIDE_K));
    if (!stats)
        return quire__fail(QUIRE_E_INVALID, "stats is NULL");
    const quire_cells_layer *l = &cells->layer[layer];
    const size_t n_heads = (size_t)l->form->config.n_kv_heads;
    *stats = (quire_cells_stats){.k_codec = quire_codec_name(l->form->format.k.codec),
                                 .v_codec = quire_codec_name(l->form->format.v.codec),
                                 .kernel = l->form->packed->name,
                                 .packed_read = atomic_load(&l->packed_read),
                                 .raw_read = atomic_load(&l->raw_read),
                                 .attended_rows = atomic_load(&l->attended_rows),
                                 .fallbacks = atomic_load(&l->fallbacks),
                                 .sealed_pages = atomic_load(&l->sealed),
                                 .reopened_pages = atomic_load(&l->reopened),
                                 .clamped_values = atomic_load(&l->clamped),
                                 .masked_pages = atomic_load(&l->masked)};
    for (int side = 0; side < 2; side++) {
        const quire_cells_side *s = &l->side[side];
        const size_t packed = n_heads * (quire__side_end(s->format) - s->format->codes);
        for (int32_t page = 0; page < cells->n_pages; page++) {
            stats->packed_bytes += s->place[page] == QUIRE_CELLS_PACKED ? packed : 0;
            stats->open_bytes += s->place[page] >= 0 ? n_heads * s->head_bytes : 0;
        }
    }
    return QUIRE_OK;
}
