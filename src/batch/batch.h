/* A batch in flight: its rows, the pages they touch, and where those pages live until commit.
 *
 * A tile is the rows of one sequence that fall into one page. For each tile and class:
 *   raw      the raw leaf that its rows are written to: the sequence's open leaf, a copy of it if
 *            shared, or a new one ...
 *   scratch  ... or, for pages in the middle of a long prompt, a scratch page of this batch (then
 *            raw is NO_LEAF)
 *   seal     the leaf that the page is packed into when the tile fills it, else NO_LEAF
 * Reserved leaves of full pages are already in the sequence's table, above its length, where
 * nothing else reads.
 */
#ifndef QUIRE_BATCH_BATCH_H
#define QUIRE_BATCH_BATCH_H

#include "kern/query_rows.h"
#include "seq/seq.h"

typedef struct quire_tile_class {
    int32_t raw, scratch, seal; /* leaf, scratch page, leaf */
    int32_t copy_from;          /* leaf whose earlier rows must be copied first, or NO_LEAF */
    int32_t sinks; /* leaf that takes the raw sinks when page 0 is packed, or NO_LEAF */
    /* Chunks of packed pages that its queries see: quire__tile_chunk. */
    int32_t n_pinned, first_chunk, n_chunks;
    bool sees_stale; /* some of these pages are stale, so each chunk is attended in two parts */
    /* The tile's first unit of work in this class, counted over tiles (times KV heads). */
    int32_t first_unit;
} quire_tile_class;

typedef struct quire_tile {
    int32_t item; /* in the batch */
    int32_t page;
    int32_t row, n_rows; /* of the batch */
    int32_t offset;      /* of the first row in the page */
    bool full;           /* the page is complete after it */
    bool split;          /* attend gives each chunk to a free worker, and the last one merges ... */
    int32_t first_slot;  /* ... from these partial results: (units, n_rows) */
    quire_tile_class *class; /* (n_classes) */
} quire_tile;

typedef struct quire_worker {
    float *k_rows, *v_rows;  /* (64, DK), (64, DV) while sealing */
    quire_query_rows q;      /* `ordered` only if a layer has an order */
    quire_state part, total; /* of one chunk, and merged */
    float *scores;
    void *workspace;                 /* the kernels' */
    const struct quire_tile *loaded; /* whose queries q holds, for KV head loaded_kv; NULL: none */
    int32_t loaded_kv;
} quire_worker;

struct quire_batch {
    quire_pool *pool;
    bool used;
    int32_t n_items, n_tiles;
    int32_t n_tokens;             /* of all items */
    int32_t n_rows;               /* of the tensors: tokens and padding */
    quire_batch_item *item;       /* (max_seqs) */
    int32_t *pad;                 /* (max_seqs) rows of padding before each item's own */
    bool padded;                  /* any */
    int32_t *before;              /* (max_seqs) length of each sequence at begin */
    quire_tile *tile;             /* (max_tiles) */
    quire_tile_class *tile_class; /* (max_tiles, n_classes) */
    int32_t *n_units;             /* (n_classes) */
    uint8_t *scratch;             /* (scratch pages, pool->scratch_bytes) */
    int32_t n_scratch;            /* pages in use */
    atomic_int *region_layer;     /* (n_regions) layer whose rows it has, or -1 */
    /* (n_layers, max_workers) out of how many workers this one has last appended to the layer; 0:
     * it has not. (n_layers) out of how many any has. */
    atomic_int *appended, *appended_nth;
    atomic_int next_unit, n_finished; /* of the attend call in progress */
    /* A worker's call to attend was refused before it could be counted: the two counters above are
     * of no use any more. */
    atomic_bool uncounted;
    atomic_int *tile_done; /* (max_tiles, KV heads) units finished, for split tiles */
    int32_t tile_done_stride;
    float *partial;        /* (split_rows, partial_floats) */
    size_t partial_floats; /* one row: largest H * (DV + 2) of any layer */
    quire_worker *worker;  /* (max_workers) */
    atomic_bool failed;
    char error[320]; /* written under the pool's lock */
};

/* The first n_pinned chunks have kept tokens; then come those of the window, or all. */
static inline int32_t quire__tile_chunk(const quire_tile_class *g, int32_t i) {
    return i < g->n_pinned ? i : g->first_chunk + i - g->n_pinned;
}

/* Partial results over packed pages: one per chunk, or two, stale pages first, if a tile sees both
 * forms. */
static inline int32_t quire__tile_parts(const quire_tile_class *g) {
    return g->n_chunks * (g->sees_stale ? 2 : 1);
}

/* Whether all workers of the last call to append have appended to the layer. */
bool quire__batch_appended(const quire_batch *batch, int32_t layer);
/* Stores the calling thread's last error for quire_batch_error, if it is the batch's first. Returns
 * `status`. */
quire_status quire__batch_note(quire_batch *batch, quire_status status);
/* The same, but in place of what the batch has survived; afterwards it can only be aborted. */
quire_status quire__batch_fail(quire_batch *batch, quire_status status);
/* Notes what it refuses. */
quire_status quire__batch_check_call(quire_batch *batch, int32_t layer, int32_t ith, int32_t nth);
/* Drops the leaves that were reserved for one tile and class. The caller holds the lock. */
void quire__batch_release(quire_batch *batch, quire_tile *tile, int32_t class);

/* Raw rows of a tile's page for one layer and KV head: K (64,DK), then V at raw_v_offset. */
static inline uint8_t *quire__tile_raw(const quire_batch *batch, const quire_tile *tile,
                                       const quire_layer_state *layer, int32_t head) {
    const quire_tile_class *g = &tile->class[layer->class];
    if (g->raw != QUIRE_NO_LEAF)
        return quire__raw_record(batch->pool, layer, g->raw, head);
    return batch->scratch + (size_t)g->scratch * batch->pool->scratch_bytes +
           layer->scratch_offset + (size_t)head * layer->raw_record_bytes;
}

#endif
