/* Pages that are addressed by cell (quire_cells.h).
 *
 * One side (K or V) of one layer has, for each page of 64 cells, a place:
 *
 *   EMPTY     nothing was written
 *   slot >= 0 open: raw rows in that slot, (G, 64, D)
 *   PACKED    its part of the record holds it
 *
 *   page      0       1       2       3
 *           packed  packed   open   empty       place[]
 *           1..1    1..1     1110    0          written[]: one bit per cell
 *
 * Records hold both sides and lie page by page, head by head, as in a pool's leaf. A layer whose
 * codecs are both the raw type has no slots: rows go straight into the records, which are PACKED
 * from the first write on.
 *
 * A plan lists the pages that the next write touches. What it decides takes effect when the write
 * has run: quire__cells_settle, at the next plan, either frees the slots of pages that were packed,
 * or takes everything back if the workers did not all finish. Rows of pages that are completed by a
 * single write never get a slot: they wait in a region that layers share.
 */
#ifndef QUIRE_CELLS_CELLS_H
#define QUIRE_CELLS_CELLS_H

#include "attn/softmax_state.h"
#include "kern/query_rows.h"
#include "pool/building.h"
#include "quire_cells.h"

enum { QUIRE_CELLS_EMPTY = -1, QUIRE_CELLS_PACKED = -2, QUIRE_CELLS_TILE_ROWS = 64 };

/* One page of a planned write. */
typedef struct quire_cells_touch {
    int32_t page;
    int32_t
        first_row;  /* of the write, then quire_cells_side.next_row; -1: none, it is only packed */
    int32_t raw;    /* slot, or place in the region; unused by layers without slots */
    bool in_region; /* `raw` counts pages of the region */
    bool fresh;     /* no cell was written before: clear the raw rows */
    bool decode;    /* packed until now: decode it into the slot */
    bool seal;      /* pack it afterwards */
    uint64_t written;   /* cells that had been written before */
    uint64_t rewritten; /* cells that this write writes */
} quire_cells_touch;

typedef struct quire_cells_side {
    const quire_side_format *format;
    bool is_v;
    size_t head_bytes;         /* 64 raw rows of one head */
    uint8_t *slots;            /* (pages, G, 64, D) */
    int32_t *place;            /* (pages) */
    uint64_t *written;         /* (pages) */
    atomic_uint_fast64_t *bad; /* (pages) cells whose row was not a number: zeros stand for it */
    int32_t *slot_page;        /* (pages) page of a slot in use, or -1 */
    bool *slot_hot;     /* (pages) reopened: packed by the first write that leaves it alone */
    bool *slot_sealing; /* (pages) packed by the current write: the record is valid too */
    int32_t n_slots;    /* slots at or above this are free */
    int32_t n_resident; /* slots at or above this take no memory */
    uint8_t *sinks;     /* (streams, G, sinks, D) */
    /* the current write */
    quire_cells_touch *touch; /* (max_rows + pages) */
    int32_t n_touch, n_rows, region;
    int32_t *next_row; /* (max_rows) next row of the same page, or -1 */
    uint8_t *offset;   /* (max_rows) cell in its page */
    bool planned;
    atomic_int finished; /* workers */
    int nth;
} quire_cells_side;

/* What one layer measures of itself to order its K channels (cells_order.c). */
typedef struct quire_cells_measure {
    bool waiting; /* nothing is packed until the order is known */
    uint64_t
        *squares;    /* (G, DK) sum of q^2 in fixed point: the same in whatever order it is added */
    uint16_t *order; /* (G, DK), what the layer's config points to */
} quire_cells_measure;

typedef struct quire_cells_layer {
    quire_layer_state *form;  /* codecs, record layout, kernel: of the pool that describes them */
    bool in_place;            /* both sides in the raw type: no slots */
    uint8_t *records;         /* (pages, G, record bytes) */
    quire_cells_side side[2]; /* K, V */
    quire_cells_measure measure;
    atomic_bool has_bad; /* a cell of either side was bad since the last clear */
    atomic_uint_fast64_t packed_read, raw_read, attended_rows, fallbacks, sealed, reopened, clamped,
        masked;
} quire_cells_layer;

typedef struct quire_cells_worker {
    quire_query_rows q;
    quire_state part, extra, total;
    float *scores, *rows; /* rows: (64, largest D) */
    float *mask;          /* (a tile's rows or a row's heads, a chunk's cells) */
    void *workspace;
    uint8_t *raw[2]; /* (64, D): a page of which one side is raw and the other packed */
    int32_t loaded_tile, loaded_kv; /* whose queries q holds; -1: none */
    bool prepared;    /* the workspace was last used for all of them, over packed pages */
    uint8_t *scratch; /* where all of these buffers lie */
    size_t scratch_bytes;
    bool spread; /* the last step may have touched all of them: decode needs a small part */
} quire_cells_worker;

struct quire_cells {
    quire_pool *pool; /* describes the layers; it has no memory of its own */
    int32_t n_streams, n_cells, n_pages /* of all streams */, pages_per_stream, max_rows,
        max_workers;
    quire_cells_layer *layer;
    void *meta, *records, *slots;
    uint8_t *region[QUIRE_CELLS_REGIONS]; /* K, then V: (region_pages, region_side_bytes) each */
    int32_t region_pages;
    size_t region_side_bytes;
    int32_t *touched; /* (pages) index of the touch of the plan being made, or -1 */
    quire_cells_worker *worker;
    size_t workspace_bytes;
    float *partial; /* (split_rows, partial_floats) */
    size_t partial_floats;
    int32_t split_rows, max_kv_heads, max_group;
    atomic_int *tile_done; /* (max_rows, KV heads) */
    atomic_int next_unit, n_finished;
    pthread_mutex_t lock; /* sums of queries (cells_order.c) */
    struct {              /* the page that was last read in part (cells_read.c) */
        int32_t layer, page;
        int side;
        float *rows; /* (KV heads, 64, dim), room for any layer; NULL: there is no page */
        float *room; /* NULL: not needed so far */
    } read;
};

/* ---- plan (cells_plan.c) */
/* Ends the write before: see above. */
void quire__cells_settle(quire_cells *cells, int32_t layer, int side);
quire_status quire__cells_check(const quire_cells *cells, int32_t layer, quire_side side);
/* A slot for the raw rows of a page, which is open from then on; the caller changes the page's
 * place before it frees one. */
int32_t quire__cells_take_slot(quire_cells_side *side, int32_t page);
void quire__cells_free_slot(quire_cells_side *side, int32_t slot);
/* Gives memory of free slots back once there are several. */
void quire__cells_give_back(quire_cells *cells, int32_t layer, int side);
/* Whether the record has the page, for queries whose own page is another one. */
bool quire__cells_is_packed(const quire_cells_layer *layer, int side, int32_t page);
/* The raw rows (64, D) of a page and head, or NULL if there are none. */
uint8_t *quire__cells_raw(const quire_cells *cells, const quire_cells_layer *layer, int side,
                          int32_t page, int32_t head);

static inline uint8_t *quire__cells_record(const quire_cells_layer *layer, int32_t page,
                                           int32_t head) {
    return layer->records + ((size_t)page * (size_t)layer->form->config.n_kv_heads + (size_t)head) *
                                layer->form->format.bytes;
}

/* Tokens of a page that stay raw beside its record. */
static inline int32_t quire__cells_sinks(const quire_cells *cells, const quire_cells_layer *layer,
                                         int32_t page) {
    return page % cells->pages_per_stream == 0 ? layer->form->sinks : 0;
}

static inline uint8_t *quire__cells_sink_rows(const quire_cells *cells,
                                              const quire_cells_layer *layer, int side,
                                              int32_t page, int32_t head) {
    const quire_cells_side *s = &layer->side[side];
    const size_t bytes = s->head_bytes / QUIRE_T * (size_t)layer->form->sinks;
    return s->sinks +
           ((size_t)(page / cells->pages_per_stream) * (size_t)layer->form->config.n_kv_heads +
            (size_t)head) *
               bytes;
}

/* ---- what is kept of a page that is read in parts (cells_read.c) */
/* Before pages change. */
static inline void quire__cells_forget_read(quire_cells *cells) { cells->read.rows = NULL; }

/* ---- rows of a page in fp32, sinks included (cells_write.c) */
void quire__cells_decode(const quire_cells *cells, const quire_cells_layer *layer, int side,
                         int32_t page, int32_t head, float *rows);

/* ---- the order of K's channels, measured (cells_order.c) */
/* Rows (n, DK) that were multiplied by q_scale. */
void quire__cells_measure_queries(quire_cells *cells, quire_cells_layer *layer, int32_t kv,
                                  const float *q, int32_t n, float q_scale);
/* Forgets the queries of an order that is not known yet. */
void quire__cells_measure_again(quire_cells_layer *layer);
/* Sets the order once enough pages are complete. */
void quire__cells_measure_order(quire_cells *cells, quire_cells_layer *layer);

/* ---- what rows see (sight.c) */
typedef enum quire_page_kind {
    QUIRE_PAGE_HIDDEN,
    QUIRE_PAGE_SEEN,
    QUIRE_PAGE_MIXED
} quire_page_kind;

/* How the rows of a tile see their own page. */
typedef enum quire_own_kind {
    QUIRE_OWN_NONE,   /* there is none */
    QUIRE_OWN_PREFIX, /* row r sees its first own_count + r cells */
    QUIRE_OWN_MASK
} quire_own_kind;

/* Consecutive rows with the same own page that see nearly the same pages. */
typedef struct quire_sight_tile {
    int32_t stream, row, n_rows; /* row: of the step, over all streams */
    int32_t own_page;            /* of the stream, or -1 */
    quire_own_kind own;
    int32_t own_count;
    int32_t first_chunk, n_chunks; /* with pages that are not hidden */
    bool split;
    int32_t first_slot, first_unit;
    uint8_t *kind; /* (pages of the stream) */
} quire_sight_tile;

struct quire_sight {
    quire_cells *cells;
    quire_sight_args args;
    int32_t n_pages; /* of a stream, that any row may see */
    int32_t n_rows, n_tiles, n_units;
    quire_sight_tile *tile; /* (max_rows) */
    uint8_t *kind;          /* (max_rows, pages of a stream) */
};

/* The mask of one row, from cell 0 of its stream; NULL: there is none. */
const void *quire__sight_mask(const quire_sight *sight, int32_t row);

#endif
