/* Sorts pages by what a mask lets rows see of them, and rows into tiles.
 *
 * Pages that all rows of a tile see whole go the fast way, without a mask; pages that none of them
 * sees are not read; the rest is attended with the mask, cell by cell. */
#include <string.h>

#include "base/element.h"
#include "base/size.h"
#include "cells/cells.h"

enum {
    MOST_DIFFERENT = 2, /* pages that rows of one tile may see differently, their own aside */
    MOST_SPLIT_ROWS = 8
};

quire_status quire_sight_create(quire_cells *cells, quire_sight **result) {
    if (!cells || !result)
        return quire__fail(QUIRE_E_INVALID, "cells or result is NULL");
    *result = NULL;
    const quire_allocator *allocator = &cells->pool->allocator;
    const size_t rows = (size_t)cells->max_rows;
    quire_carver sizing = {NULL, 0, false};
    quire__carve(&sizing, 1, sizeof(quire_sight));
    quire__carve(&sizing, rows, sizeof(quire_sight_tile));
    quire__carve(&sizing, rows + 1, (size_t)cells->pages_per_stream);
    uint8_t *block =
        sizing.overflow ? NULL : quire__alloc(allocator, sizing.used, QUIRE_CACHE_LINE);
    if (!block)
        return quire__fail(QUIRE_E_NOMEM, "no memory for what %d rows see", (int)cells->max_rows);
    quire_carver c = {block, 0, false};
    quire_sight *sight = quire__carve(&c, 1, sizeof *sight);
    *sight = (quire_sight){.cells = cells};
    sight->tile = quire__carve(&c, rows, sizeof *sight->tile);
    sight->kind = quire__carve(&c, rows + 1, (size_t)cells->pages_per_stream);
    *result = sight;
    return QUIRE_OK;
}

void quire_sight_free(quire_sight *sight) {
    if (sight)
        quire__free(&sight->cells->pool->allocator, sight);
}

const void *quire__sight_mask(const quire_sight *sight, int32_t row) {
    const quire_sight_args *a = &sight->args;
    if (!a->mask)
        return NULL;
    const size_t at = (size_t)(row / a->rows_per_stream) * a->stream_stride +
                      (size_t)(row % a->rows_per_stream) * a->row_stride;
    return (const uint8_t *)a->mask + at * quire__type_bytes(a->mask_type);
}

/* -inf in n cells hides all of them, zeros show all. */
static quire_page_kind kind_of_f16(const uint16_t *mask, int n) {
    uint16_t any = 0, all = 0xffff;
    for (int i = 0; i < n; i++) {
        any |= mask[i];
        all &= mask[i];
    }
    return any == 0                         ? QUIRE_PAGE_SEEN
           : any == 0xfc00 && all == 0xfc00 ? QUIRE_PAGE_HIDDEN
                                            : QUIRE_PAGE_MIXED;
}

static quire_page_kind kind_of_f32(const uint32_t *mask, int n) {
    uint32_t any = 0, all = UINT32_MAX;
    for (int i = 0; i < n; i++) {
        any |= mask[i];
        all &= mask[i];
    }
    return any == 0                                   ? QUIRE_PAGE_SEEN
           : any == 0xff800000u && all == 0xff800000u ? QUIRE_PAGE_HIDDEN
                                                      : QUIRE_PAGE_MIXED;
}

static void kinds_of_row(const quire_sight *sight, int32_t row, uint8_t *kind) {
    const quire_sight_args *a = &sight->args;
    const void *mask = quire__sight_mask(sight, row);
    for (int32_t p = 0; p < sight->n_pages; p++) {
        const int32_t left = a->n_cells - p * QUIRE_T;
        const int n = left < QUIRE_T ? left : QUIRE_T;
        quire_page_kind k = QUIRE_PAGE_SEEN;
        if (mask)
            k = a->mask_type == QUIRE_F16
                    ? kind_of_f16((const uint16_t *)mask + (size_t)p * QUIRE_T, n)
                    : kind_of_f32((const uint32_t *)mask + (size_t)p * QUIRE_T, n);
        kind[p] = (uint8_t)(n < QUIRE_T && k == QUIRE_PAGE_SEEN ? QUIRE_PAGE_MIXED : k);
    }
}

/* The cells of page p that a row sees without any bias: the length of the prefix that they are, or
 * -1 if they are none. */
static int32_t prefix_of(const quire_sight *sight, int32_t row, int32_t p) {
    const quire_sight_args *a = &sight->args;
    const void *mask = quire__sight_mask(sight, row);
    const int32_t left = a->n_cells - p * QUIRE_T, n = left < QUIRE_T ? left : QUIRE_T;
    if (!mask)
        return n;
    int32_t count = 0;
    while (count < n &&
           quire__get_element(a->mask_type, mask, (size_t)p * QUIRE_T + (size_t)count) == 0)
        count++;
    for (int32_t i = count; i < n; i++) {
        const float x = quire__get_element(a->mask_type, mask, (size_t)p * QUIRE_T + (size_t)i);
        if (!(x < 0 && x - x != 0)) /* -inf */
            return -1;
    }
    return count;
}

/* A page beyond the sight's cells is hidden, also from the rows that were written there. */
static int32_t own_page(const quire_sight *sight, int32_t row) {
    const quire_sight_args *a = &sight->args;
    if (!a->own || a->own[row] < 0)
        return -1;
    const int32_t page = (int32_t)(a->own[row] % sight->cells->n_cells / QUIRE_T);
    return page < sight->n_pages ? page : -1;
}

/* Lets a row into a tile if it sees nearly the same. */
static bool join(const quire_sight *sight, quire_sight_tile *tile, const uint8_t *kind) {
    int32_t different = 0;
    for (int32_t p = 0; p < sight->n_pages; p++)
        different += p != tile->own_page && kind[p] != tile->kind[p];
    if (different > MOST_DIFFERENT)
        return false;
    for (int32_t p = 0; different > 0 && p < sight->n_pages; p++)
        if (kind[p] != tile->kind[p])
            tile->kind[p] = QUIRE_PAGE_MIXED;
    if (tile->own_page >= 0 && kind[tile->own_page] != tile->kind[tile->own_page])
        tile->kind[tile->own_page] = QUIRE_PAGE_MIXED; /* some rows may not see their own page */
    tile->n_rows++;
    return true;
}

static void finish_tile(const quire_sight *sight, quire_sight_tile *tile) {
    tile->own = QUIRE_OWN_NONE;
    if (tile->own_page >= 0) {
        tile->own = QUIRE_OWN_PREFIX;
        tile->own_count = prefix_of(sight, tile->row, tile->own_page);
        for (int32_t r = 0; r < tile->n_rows; r++) {
            const int32_t count = prefix_of(sight, tile->row + r, tile->own_page);
            if (count < 1 || count != tile->own_count + r)
                tile->own = QUIRE_OWN_MASK;
        }
    }
    int32_t first = sight->n_pages, last = -1;
    for (int32_t p = 0; p < sight->n_pages; p++)
        if (tile->kind[p] != QUIRE_PAGE_HIDDEN && p != tile->own_page) {
            first = p < first ? p : first;
            last = p;
        }
    tile->first_chunk = last < 0 ? 0 : first / QUIRE_CHUNK_PAGES;
    tile->n_chunks = last < 0 ? 0 : last / QUIRE_CHUNK_PAGES - tile->first_chunk + 1;
}

static void find_tiles(quire_sight *sight) {
    const quire_sight_args *a = &sight->args;
    const size_t pages = (size_t)sight->cells->pages_per_stream;
    uint8_t *kind = sight->kind; /* of the next row; tiles have theirs behind it */
    sight->n_tiles = 0;
    for (int32_t row = 0; row < sight->n_rows; row++) {
        const int32_t stream = row / a->rows_per_stream, own = own_page(sight, row);
        quire_sight_tile *tile = sight->n_tiles > 0 ? &sight->tile[sight->n_tiles - 1] : NULL;
        kinds_of_row(sight, row, kind);
        if (tile && tile->stream == a->first_stream + stream && tile->own_page == own &&
            tile->n_rows < QUIRE_CELLS_TILE_ROWS && join(sight, tile, kind))
            continue;
        tile = &sight->tile[sight->n_tiles++];
        *tile = (quire_sight_tile){.stream = a->first_stream + stream,
                                   .row = row,
                                   .n_rows = 1,
                                   .own_page = own,
                                   .kind = sight->kind + (size_t)sight->n_tiles * pages};
        memcpy(tile->kind, kind, (size_t)sight->n_pages);
    }
}

/* Tiles of few rows that see many chunks are divided among the workers. */
static void count_units(quire_sight *sight) {
    int32_t slots = 0;
    sight->n_units = 0;
    for (int32_t i = 0; i < sight->n_tiles; i++) {
        quire_sight_tile *tile = &sight->tile[i];
        finish_tile(sight, tile);
        const int32_t wanted = tile->n_rows * (tile->n_chunks + 1);
        tile->split = tile->n_chunks > 1 && tile->n_rows <= MOST_SPLIT_ROWS &&
                      wanted <= sight->cells->split_rows - slots;
        tile->first_slot = slots;
        slots += tile->split ? wanted : 0;
        tile->first_unit = sight->n_units;
        sight->n_units += tile->split ? tile->n_chunks + 1 : 1;
    }
}

static quire_status check(const quire_cells *cells, const quire_sight_args *a) {
    if (a->n_streams < 1 || a->first_stream < 0 || a->n_streams > cells->n_streams ||
        a->first_stream > cells->n_streams - a->n_streams)
        return quire__fail(QUIRE_E_INVALID, "streams %d to %d of %d", (int)a->first_stream,
                           (int)(a->first_stream + a->n_streams - 1), (int)cells->n_streams);
    if (a->rows_per_stream < 1 || a->rows_per_stream > cells->max_rows / a->n_streams)
        return quire__fail(QUIRE_E_INVALID, "%d rows in each of %d streams; at most %d in all",
                           (int)a->rows_per_stream, (int)a->n_streams, (int)cells->max_rows);
    if (a->n_cells < 0 || a->n_cells > cells->n_cells)
        return quire__fail(QUIRE_E_INVALID, "%d cells, but a stream has %d", (int)a->n_cells,
                           (int)cells->n_cells);
    if (a->mask && ((a->mask_type != QUIRE_F16 && a->mask_type != QUIRE_F32) ||
                    (a->rows_per_stream > 1 && a->row_stride < (size_t)a->n_cells)))
        return quire__fail(QUIRE_E_INVALID, "the mask must be f16 or f32, and its rows dense");
    for (int32_t i = 0; a->own && i < a->n_streams * a->rows_per_stream; i++) {
        const int64_t stream = a->first_stream + i / a->rows_per_stream;
        if (a->own[i] >= 0 && a->own[i] / cells->n_cells != stream)
            return quire__fail(QUIRE_E_INVALID, "row %d: its own cell %lld is not in stream %lld",
                               (int)i, (long long)a->own[i], (long long)stream);
    }
    return QUIRE_OK;
}

quire_status quire_sight_set(quire_sight *sight, const quire_sight_args *args) {
    if (!sight || !args)
        return quire__fail(QUIRE_E_INVALID, "sight or args is NULL");
    QUIRE_TRY(check(sight->cells, args));
    sight->args = *args;
    sight->n_rows = args->n_streams * args->rows_per_stream;
    sight->n_pages = (args->n_cells + QUIRE_T - 1) / QUIRE_T;
    find_tiles(sight);
    count_units(sight);
    sight->args.own = NULL; /* no longer needed */
    return QUIRE_OK;
}
