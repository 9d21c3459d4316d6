/* Pages of many sequences in one fixed piece of memory.
 *
 * Layers are put into groups: same window, same `keep`, and either all quantized or all raw. What 64 tokens need in all
 * layers of a group is one leaf, the unit of allocation, sharing, saving and recycling:
 *
 *   sealed leaf   per layer, per KV head: a packed record (docs/FORMAT.md)
 *   raw leaf      per layer, per KV head: K rows (64,DK), V rows (64,DV) in the raw type
 *   sink leaf     the same for the first `sinks` tokens only
 *
 *   sequence, one group:    page      0    1    2  ...  n-1 |  n
 *                                  sealed sealed ..   sealed | open (raw)       + kept: raw rows of page n-1
 *                                  + sinks                                        (exact roll-back), until n seals
 *
 * A group whose layers are all raw never packs: a full raw leaf moves into the table as it is, and nothing is kept twice.
 * Leaves are reference-counted; a leaf with one reference may be appended to, a shared one is copied first.
 *
 * Invariants (tests/test_pool.c checks them through the statistics):
 *   - a leaf's references = tables, open, kept, sinks of all sequences + what open batches have reserved
 *   - table[p] is a leaf for every sealed page a future query can see; below `live_from`, only pinned pages have one
 *   - open is a leaf exactly when length % 64 != 0; kept is one only for page kept_page == length/64 - 1
 *   - sealed leaves never change
 */
#ifndef QUIRE_PAGE_POOL_H
#define QUIRE_PAGE_POOL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/status.h"
#include "kern/kern.h"
#include "page/arena.h"

enum { QUIRE_NO_LEAF = -1, QUIRE_T = QUIRE_PAGE_TOKENS };

typedef enum quire_leaf_kind { QUIRE_LEAF_SEALED, QUIRE_LEAF_RAW, QUIRE_LEAF_SINKS } quire_leaf_kind;

typedef struct quire_leaf {
    size_t offset, bytes; /* in the arena */
    int32_t refs;         /* 0: free, and `next_free` counts */
    int32_t next_free;
    int32_t group;
    quire_leaf_kind kind;
    uint8_t marks; /* who holds it: for statistics alone */
} quire_leaf;

typedef struct quire_group {
    int32_t window, keep;
    bool raw;                                   /* all layers raw in the pool's type */
    int32_t sinks;                              /* 0 for raw groups: they need none */
    size_t sealed_bytes, raw_bytes, sink_bytes; /* of a leaf */
} quire_group;

typedef struct quire_layer_state {
    quire_layer config; /* codecs resolved; alibi (times log2 e) and sink logits (times log2 e) point into the pool */
    float q_scale;      /* what q is multiplied by before scoring: kern.h */
    int32_t group;
    int32_t source; /* the layer whose cache this one reads: itself, or `share` */
    quire_format format;
    const quire_attend_kernel *packed;             /* what attends over its sealed pages */
    size_t sealed_offset, raw_offset, sink_offset; /* of the layer's first head in a leaf */
    size_t raw_record_bytes, raw_v_offset;         /* of one head */
    size_t sink_record_bytes, sink_v_offset;
    size_t scratch_offset; /* of its raw rows in a batch's scratch page */
    int32_t scratch_region;
    atomic_uint_fast64_t packed_read, raw_read, attended_rows, fallbacks;
} quire_layer_state;

typedef struct quire_seq_group {
    int32_t *table;            /* (max_pages) leaf of each sealed page */
    int32_t live_from;         /* pages below have been recycled, pinned ones excepted */
    int32_t open, kept, sinks; /* leaves */
} quire_seq_group;

struct quire_seq {
    quire_pool *pool;
    quire_seq *next_free;
    quire_batch *batch; /* that it is in, or NULL */
    bool used;
    int32_t length;
    int32_t kept_page;      /* page that `kept` holds, or -1 */
    quire_seq_group *group; /* (n_groups) */
};

struct quire_pool {
    quire_allocator allocator;
    void *meta;           /* one block for everything but the arena and this struct */
    uint8_t *memory;      /* the arena */
    pthread_mutex_t lock; /* page tables, leaves, arena, sequence and batch slots */
    quire_kernels kernels;
    quire_type raw;
    bool exact_trim;
    size_t budget_bytes, total_bytes;
    int32_t n_layers, n_groups, max_seqs, max_pages, max_batch_tokens, max_batches, max_workers;
    int32_t n_regions;        /* scratch regions of a batch */
    size_t scratch_bytes;     /* of all regions, for one page */
    int32_t split_rows;       /* partial results a batch can hold: rows times (chunks + 1) */
    quire_layer_state *layer; /* (n_layers) */
    quire_group *group;       /* (n_groups) */
    quire_seq *seq;           /* (max_seqs) */
    quire_seq *free_seq;
    quire_batch *batch; /* (max_batches) */
    quire_leaf *leaf;   /* (max_leaves) */
    int32_t max_leaves, free_leaf;
    quire_arena arena;
    float *rows;       /* (64, largest head size) while a page is reopened; under the lock */
    int32_t *reserved; /* (2, n_groups) leaves about to be adopted; under the lock */
    atomic_uint_fast64_t sealed_pages;
    uint64_t reopened_pages;
};

/* ---- leaves; the caller holds the lock */
int32_t quire__leaf_take(quire_pool *pool, int32_t group, quire_leaf_kind kind); /* QUIRE_NO_LEAF: out of pages */
void quire__leaf_drop(quire_pool *pool, int32_t leaf);                           /* QUIRE_NO_LEAF is fine */
void quire__leaf_share(quire_pool *pool, int32_t leaf);                          /* QUIRE_NO_LEAF is fine */

static inline uint8_t *quire__leaf_memory(const quire_pool *pool, int32_t leaf) {
    return pool->memory + pool->leaf[leaf].offset;
}

/* ---- where a layer's rows of one KV head lie in a leaf */
static inline uint8_t *quire__sealed_record(const quire_pool *pool, const quire_layer_state *layer, int32_t leaf,
                                            int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->sealed_offset + (size_t)head * layer->format.bytes;
}

static inline uint8_t *quire__raw_record(const quire_pool *pool, const quire_layer_state *layer, int32_t leaf,
                                         int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->raw_offset + (size_t)head * layer->raw_record_bytes;
}

static inline uint8_t *quire__sink_record(const quire_pool *pool, const quire_layer_state *layer, int32_t leaf,
                                          int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->sink_offset + (size_t)head * layer->sink_record_bytes;
}

/* ---- sequences; the caller holds the lock (seq.c, trim.c) */
/* Whether page p of a group must outlive the window: it holds kept tokens that are not raw sinks. */
static inline bool quire__pinned(const quire_group *group, int32_t page) {
    return (int64_t)page * QUIRE_T < group->keep && !(page == 0 && group->keep <= group->sinks);
}

/* The lowest token a query at position `i` sees through the window. */
static inline int32_t quire__window_start(const quire_group *group, int32_t i) {
    return group->window == 0 || i < group->window ? 0 : i - group->window + 1;
}

void quire__seq_recycle(quire_seq *seq); /* drops pages that no query from `length` on can see */
void quire__seq_drop_kept(quire_seq *seq);
quire_status quire__seq_trim(quire_seq *seq, int32_t n_tokens);

#endif
