/* quire_cells.h: quantized pages for engines that address their cache by cell.
 *
 * Such an engine (llama.cpp is one) writes each token's K and V into a cell of its choice, and a
 * mask says which cells each query sees. Sequences, positions and windows are the engine's own
 * business. Here a page is 64 neighbouring cells of a stream. Codecs, kernels and page records are
 * those of quire.h.
 *
 * A step
 *   quire_sight_set      once: sorts the pages into seen, hidden and mixed, from the mask
 *   quire_cells_plan     per layer and side (K, V): which cells the next write changes
 *   quire_cells_write    per layer and side, by all workers: writes the rows; packs pages whose 64
 *                        cells have all been written
 *   quire_cells_attend   per layer, by all workers: softmax(q K^T) V over raw and packed pages
 *
 * Rules
 * - A page is open, with raw rows, until all of its cells have been written; then it is packed. A
 *   write to a packed page reopens it: its other cells keep their packed values (counted in
 *   quire_cells_stats.reopened_pages). It is packed again at the first later write that does not
 *   touch it. A write of all its 64 cells replaces it instead.
 * - A query sees the page of its own cell raw and all other complete pages packed. With one
 *   sequence in a stream, cells in order and a causal mask, results are those of a pool, bit for
 *   bit.
 * - The first `sinks` cells of each stream stay raw beside page 0, as the first tokens of a pool's
 *   sequence do.
 * - Values beyond what a codec holds are clamped and counted.
 * - A row with NaN is refused, the other rows of its write are not: its cell holds zeros (in the KV
 *   heads that have NaN), and until it is written again attention gives NaN to rows that see it.
 * - A write that was planned but not run to its end by all workers is taken back by the next plan:
 *   the cells that it would have written are undefined, all others are as they were.
 * - Memory for every page is reserved at once, but only touched as pages fill.
 * - Threads: one thread at a time may use a quire_cells and its sights, except that workers
 *   0 .. nth-1 all call quire_cells_write or quire_cells_attend concurrently.
 *
 * This header is experimental: it may change in any release.
 */
#ifndef QUIRE_CELLS_H
#define QUIRE_CELLS_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_cells quire_cells;
typedef struct quire_sight quire_sight;

typedef struct quire_cells_options {
    size_t struct_size; /* set by quire_cells_options_default */
    /* (n_layers) borrowed during the call. n_heads is the largest number of query heads that
     * quire_cells_attend may be given. With a window, policy.windowed decides the codecs. Ignored:
     * keep, scale, softcap, alibi, sink_logits. `share` must be -1: to share a cache, pass the
     * other layer's number to quire_cells_attend. */
    const quire_layer *layers;
    int32_t n_layers;
    quire_policy policy;
    quire_type raw;             /* of open pages; f16 by default */
    int32_t n_streams, n_cells; /* cells of one stream: a multiple of 64 */
    int32_t max_rows;           /* of one write or attend; default 512 */
    int32_t max_workers;        /* default 8 */
    /* Layers with km4 or km3 and without k_order measure an order on their first pages, which stay
     * raw until then; default true. If false, such a layer is refused (E_INVALID). */
    bool measure_order;
    const quire_allocator *allocator; /* NULL: aligned malloc */
    const char *cpu;                  /* as quire_pool_options */
} quire_cells_options;

QUIRE_API void quire_cells_options_default(quire_cells_options *options);
/* E_INVALID, E_UNSUPPORTED, E_TOO_BIG, E_NOMEM. */
QUIRE_API quire_status quire_cells_create(quire_cells **cells, const quire_cells_options *options);
QUIRE_API void quire_cells_free(quire_cells *cells); /* NULL is fine */
/* Bytes that will be touched when every page is packed, each stream has one open page, and all
 * workers have worked. */
QUIRE_API quire_status quire_cells_price(const quire_cells_options *options, size_t *bytes);

/* ------------------------------------------------------------ writing */

/* Plans the next write to one side of a layer: row i goes to cell[i], counted over all streams
 * (stream * n_cells + cell). `cell` is not kept. Each layer must be attended before another layer
 * that shares its `region` is written: rows of pages that this write completes are held raw in
 * region 0 .. QUIRE_CELLS_REGIONS - 1 until then. E_INVALID: a cell is out of range, too many rows.
 */
enum { QUIRE_CELLS_REGIONS = 4 };
QUIRE_API quire_status quire_cells_plan(quire_cells *cells, int32_t layer, quire_side side,
                                        const int64_t *cell, int32_t n_rows, int32_t region);
/* Writes the planned rows: (n_rows, G, D). E_VALUE: a row has NaN (see above); the write counts as
 * run. E_STATE: no plan. */
QUIRE_API quire_status quire_cells_write(quire_cells *cells, int32_t layer, quire_side side,
                                         quire_rows rows, int32_t ith, int32_t nth);

/* ------------------------------------------------------------ attention */

/* What the rows of a step see. */
typedef struct quire_sight_args {
    int32_t first_stream, n_streams, rows_per_stream;
    int32_t n_cells; /* of each stream; cells beyond are hidden */
    /* NULL: everything is seen. Else mask[stream * stream_stride + row * row_stride + cell] is
     * added to the logits; -inf hides a cell. Kept until the sight is set again. */
    const void *mask;
    quire_type mask_type; /* f16 or f32 */
    size_t row_stride, stream_stride;
    /* NULL, or (n_streams * rows_per_stream): the cell that each row's token was written to,
     * counted over all streams; -1: none. One beyond n_cells is hidden as all others there. */
    const int64_t *own;
} quire_sight_args;

QUIRE_API quire_status quire_sight_create(quire_cells *cells, quire_sight **sight);
QUIRE_API void quire_sight_free(quire_sight *sight); /* NULL is fine */
QUIRE_API quire_status quire_sight_set(quire_sight *sight, const quire_sight_args *args);

typedef struct quire_cells_attend_args {
    const quire_sight *sight;
    int32_t n_heads; /* H */
    /* (rows, H, DK): row r of stream s is row s * rows_per_stream + r. Strides in elements; 0:
     * dense. */
    const void *q;
    quire_type q_type;
    size_t q_row_stride, q_head_stride;
    float *out; /* (rows, H, DV) */
    size_t out_row_stride;
    float scale;              /* of the logits; 0: 1/sqrt(DK) */
    float softcap;            /* 0: none */
    const float *mask_slopes; /* (H): the mask is multiplied by these (ALiBi), or NULL */
    const float *sink_logits; /* (H) learned sinks, or NULL */
} quire_cells_attend_args;

/* A row that sees nothing gives zeros; a query that is not finite gives NaN in its row alone.
 * E_INVALID; E_STATE: the sight was never set. */
QUIRE_API quire_status quire_cells_attend(quire_cells *cells, int32_t layer,
                                          const quire_cells_attend_args *args, int32_t ith,
                                          int32_t nth);

/* ------------------------------------------------------------ rows in and out */

/* Reads cells first .. first + n - 1 (counted over all streams) of one side as (n, G, D), packed
 * ones decoded; cells that were never written are zero. Completes the last write first, or takes
 * it back if it was not run to its end. */
QUIRE_API quire_status quire_cells_read(quire_cells *cells, int32_t layer, quire_side side,
                                        int64_t first, int64_t n, quire_type type, void *rows);
/* Copies whole pages of one side, as they are. Both ranges start at a multiple of 64 and do not
 * overlap. Completes the last write first, as quire_cells_read does. */
QUIRE_API quire_status quire_cells_copy(quire_cells *cells, int32_t layer, quire_side side,
                                        int64_t from, int64_t to, int64_t n);
QUIRE_API quire_status quire_cells_clear(quire_cells *cells); /* forgets every cell */

typedef struct quire_cells_stats {
    const char *k_codec, *v_codec;  /* of the layer */
    const char *kernel;             /* that attends over its packed pages */
    uint64_t packed_read, raw_read; /* bytes */
    uint64_t attended_rows, fallbacks;
    uint64_t sealed_pages, reopened_pages; /* of either side */
    uint64_t clamped_values;
    uint64_t masked_pages; /* packed pages attended cell by cell, because rows see parts of them */
    size_t packed_bytes, open_bytes; /* resident now */
} quire_cells_stats;

QUIRE_API quire_status quire_cells_get_stats(const quire_cells *cells, int32_t layer,
                                             quire_cells_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
