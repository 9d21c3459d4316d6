/* The pages of a pool: many sequences in one fixed piece of memory.
 *
 * Layers with the same window and the same `keep` form a layer class, whatever their codecs, so
 * that files and the keys of stored pages do not depend on the policies that a pool has had. What
 * 64 tokens need in all layers of a class is one leaf, the unit of allocation, sharing, saving and
 * recycling:
 *
 *   sealed leaf   per layer, per KV head: a packed record (docs/FORMAT.md)
 *   raw leaf      per layer, per KV head: K rows (64,DK), V rows (64,DV) in the raw type
 *   sink leaf     raw rows of the first `sinks` tokens, only for layers that are not raw
 *
 *   sequence, one class:    page     0      1    ...   n-1   |   n
 *                                  sealed sealed ..   sealed | open (raw)
 *                                  + sinks            + last_raw
 *
 *   last_raw: the raw rows of page n-1, for an exact roll-back, until page n is sealed
 *
 * A class whose layers are all raw never packs: a full raw leaf moves into the table as it is, and
 * there is no last_raw. Raw layers in a class with packed ones have raw records in the sealed
 * leaves, and attend bit for bit as in a raw class. Leaves are reference-counted: a leaf with one
 * reference may be appended to, a shared one is copied first.
 *
 * A pool may get another policy while it is in use (requantize.c). Its layers and classes then
 * describe the new form of sealed and sink leaves, `layer_before` and `class_before` the previous
 * form, and a leaf is stale until it has been converted. Raw leaves look the same in both forms;
 * in a table they are stale if the class packs.
 *
 * A window drops whole pages, but some pages are rebuilt (converted, re-sealed or shifted) from
 * rows of which some have left the window. The leaf then has zeros in their place and marks them
 * in `lost`. quire__rows_held is the one place that says which rows of a page exist.
 *
 * Invariants (tests/unit/test_pool.c checks them through the statistics):
 *   - a leaf's references are those from table, open, last_raw and sinks of all sequences, plus
 *     what batches in flight have reserved
 *   - table[p] is a leaf for every sealed page a future query can see; below `live_from`, only
 *     pinned pages have one
 *   - open is a leaf exactly when length % 64 != 0; last_raw is one only for page last_page ==
 *     length/64 - 1, which stays in the table even if the window has moved past it
 *   - sealed leaves never change
 */
#ifndef QUIRE_PAGE_PAGES_H
#define QUIRE_PAGE_PAGES_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/internal.h"
#include "base/fp16.h"
#include "base/memory.h"
#include "base/status.h"
#include "kern/kern.h"
#include "page/arena.h"

enum { QUIRE_NO_LEAF = -1, QUIRE_T = QUIRE_PAGE_TOKENS };

typedef enum quire_leaf_kind {
    QUIRE_LEAF_SEALED,
    QUIRE_LEAF_RAW,
    QUIRE_LEAF_SINKS
} quire_leaf_kind;
enum { QUIRE_LEAF_KINDS = 3 };

typedef struct quire_leaf {
    size_t offset, bytes; /* in the arena */
    int32_t refs;         /* 0: free, and `next_free` is valid */
    int32_t next_free;
    int32_t class;
    quire_leaf_kind kind;
    bool stale;    /* sealed and sink leaves: still in the previous form */
    uint8_t marks; /* who holds it; only for statistics */
    /* Bit t: row t had left a window before this leaf was made. Undefined for rows that an open
     * page has not reached yet. */
    uint64_t lost;
} quire_leaf;

typedef struct quire_class {
    int32_t window, keep;
    bool raw;                                   /* all layers raw in the pool's type */
    bool raw_side;                              /* some are, beside packed ones */
    int32_t sinks;                              /* of the packed layers; 0 for raw classes */
    size_t sealed_bytes, raw_bytes, sink_bytes; /* of a leaf */
} quire_class;

typedef struct quire_layer_state {
    quire_pair asked; /* the codecs it was given; DEFAULT: the policy decides */
    /* Codecs resolved; alibi and sink logits (times log2 e), order and feedback point into the
     * pool; k_rope is NULL. */
    quire_layer config;
    const quire_rope_pairs *rope_pairs; /* the pairs of k_rope, where there is feedback */
    float q_scale;                      /* what q is multiplied by before scoring: kern.h */
    int32_t class;
    int32_t source; /* the layer whose cache this one reads: itself, or `share` */
    quire_format format;
    /* Tokens of page 0 that stay raw beside it; 0 for raw layers, whose page 0 has them. */
    int32_t sinks;
    const quire_attend_kernel *packed;             /* attends over its sealed pages */
    size_t sealed_offset, raw_offset, sink_offset; /* of the layer's first head in a leaf */
    size_t raw_record_bytes, raw_v_offset;         /* of one head */
    size_t sink_record_bytes, sink_v_offset;
    size_t scratch_offset; /* of its raw rows in a batch's scratch page */
    int32_t scratch_region;
    atomic_uint_fast64_t packed_read, raw_read, attended_rows, fallbacks;
} quire_layer_state;

struct quire_pool {
    quire_allocator allocator;
    void *meta;           /* one block for everything but the arena and this struct */
    uint8_t *memory;      /* the arena */
    pthread_mutex_t lock; /* page tables, leaves, arena, sequence and batch slots */
    quire_kernels kernels;
    quire_type raw;
    bool exact_trim;
    size_t budget_bytes, total_bytes;
    size_t head_bytes; /* of this struct and what lies in one block with it */
    int32_t n_layers, n_classes, max_seqs, max_tokens, max_pages, max_batch_tokens, max_batches,
        max_workers;
    int32_t n_regions;        /* scratch regions of a batch */
    size_t scratch_bytes;     /* of all regions, for one page */
    int32_t split_rows;       /* partial results a batch can hold: rows times (chunks + 1) */
    quire_layer_state *layer; /* (n_layers) */
    quire_class *class;       /* (n_classes) */
    /* (n_layers) while `changing`: the form of stale leaves. Other fields are undefined. */
    quire_layer_state *layer_before;
    quire_class *class_before; /* (n_classes) */
    bool changing;             /* there may be stale leaves */
    int32_t form_holds;        /* callers for whom the form must not change */
    quire_seq *seq;            /* (max_seqs) */
    quire_seq *free_seq;
    quire_batch *batch; /* (max_batches) */
    quire_leaf *leaf;   /* (max_leaves) */
    int32_t max_leaves, free_leaf;
    /* (n_classes, kinds) and one: free leaves that still have their range of the arena (leaf.c). */
    int32_t *spare_leaf;
    size_t spare_bytes; /* of all of them */
    quire_arena arena;
    float *rows[3];    /* (64, largest head size) while a page is rebuilt; under the lock */
    int32_t *reserved; /* (3, n_classes) leaves reserved by the call in progress; under the lock */
    atomic_uint_fast64_t sealed_pages;
    uint64_t reopened_pages, resealed_pages;
    quire_requantize_stats requantized; /* since the policy last changed */
};

/* ---- the form of sealed and sink leaves (page_layout.c) */
/* The codecs of layer i, which has a cache of its own. */
quire_pair quire__form_pair(const quire_pool *pool, const quire_policy *policy, int32_t i);
void quire__form_copy(quire_layer_state *to, const quire_layer_state *from);
/* Layer i under a policy: its codecs, format and kernel. */
quire_status quire__form_layer(const quire_pool *pool, const quire_policy *policy, int32_t i,
                               quire_layer_state *layer);
/* Whether both sides are in the pool's raw type, so that nothing is packed. */
bool quire__form_is_raw(const quire_layer_state *layer, quire_type raw);
/* The class of a layer that has a cache of its own; a new class if none fits. Classes are numbered
 * by their first layer. */
int32_t quire__form_class(quire_class *class, int32_t *n_classes, const quire_layer *layer);
/* Places every layer's records; (n_layers), (n_classes). A class is raw if all its layers are. */
void quire__form_place(quire_type raw, int32_t sinks, quire_layer_state *layer, int32_t n_layers,
                       quire_class *class, int32_t n_classes);

/* ---- leaves; the caller holds the lock */
/* A leaf with one reference; QUIRE_NO_LEAF: out of pages. */
int32_t quire__leaf_take(quire_pool *pool, int32_t class, quire_leaf_kind kind);
void quire__leaf_drop(quire_pool *pool, int32_t leaf);  /* QUIRE_NO_LEAF is fine */
void quire__leaf_share(quire_pool *pool, int32_t leaf); /* QUIRE_NO_LEAF is fine */
/* Returns the ranges of spare leaves to the arena. */
void quire__leaf_settle(quire_pool *pool);

static inline uint8_t *quire__leaf_memory(const quire_pool *pool, int32_t leaf) {
    return pool->memory + pool->leaf[leaf].offset;
}

/* Whether a leaf of a table, or a sink leaf, awaits conversion. */
static inline bool quire__leaf_stale(const quire_pool *pool, int32_t leaf) {
    const quire_leaf *l = &pool->leaf[leaf];
    return l->kind == QUIRE_LEAF_RAW ? !pool->class[l->class].raw : l->stale;
}

/* The layer and the class in the form that a leaf of a table, or a sink leaf, has. */
static inline const quire_layer_state *quire__layer_of(const quire_pool *pool, int32_t layer,
                                                       int32_t leaf) {
    return quire__leaf_stale(pool, leaf) ? &pool->layer_before[layer] : &pool->layer[layer];
}

static inline const quire_class *quire__class_of(const quire_pool *pool, int32_t leaf) {
    const int32_t g = pool->leaf[leaf].class;
    return quire__leaf_stale(pool, leaf) ? &pool->class_before[g] : &pool->class[g];
}

/* ---- where a layer's rows of one KV head lie in a leaf */
static inline uint8_t *quire__sealed_record(const quire_pool *pool, const quire_layer_state *layer,
                                            int32_t leaf, int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->sealed_offset +
           (size_t)head * layer->format.bytes;
}

static inline uint8_t *quire__raw_record(const quire_pool *pool, const quire_layer_state *layer,
                                         int32_t leaf, int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->raw_offset +
           (size_t)head * layer->raw_record_bytes;
}

static inline uint8_t *quire__sink_record(const quire_pool *pool, const quire_layer_state *layer,
                                          int32_t leaf, int32_t head) {
    return quire__leaf_memory(pool, leaf) + layer->sink_offset +
           (size_t)head * layer->sink_record_bytes;
}

/* ---- records <-> rows of one layer and KV head, channels in natural order (rows.c) */

/* Whether its packed K is rounded with error feedback. */
bool quire__layer_has_feedback(const quire_layer_state *layer);
/* Packs one side of page number `page` of a sequence. Overwrites K rows. */
void quire__seal_side_rows(const quire_row_kernels *kernels, const quire_layer_state *layer,
                           int32_t head, int32_t page, bool is_v, float *rows, int32_t skip,
                           uint8_t *record);
void quire__seal_rows(const quire_row_kernels *kernels, const quire_layer_state *layer,
                      int32_t head, int32_t page, float *k, float *v, int32_t skip,
                      uint8_t *record);
void quire__record_rows(const quire_layer_state *layer, int32_t head, bool is_v,
                        const uint8_t *record, float *rows);

/* E_VALUE: a value is too large for this codec. */
quire_status quire__check_rows(const quire_side_format *side, const float *rows, size_t n_rows,
                               int32_t page, int32_t layer, int32_t head);
/* Decoding, RoPE and rounding may exceed what the next codec takes. */
void quire__clamp_rows(float *rows, size_t n, float largest);
/* Writes the first rows of page 0 into a sink leaf, in the pool's current form. */
void quire__sink_rows(const quire_pool *pool, int32_t layer, int32_t head, const float *k,
                      const float *v, int32_t leaf);
/* Writes rows, clamped to the range of the raw type, into a raw leaf. */
void quire__raw_rows(const quire_pool *pool, int32_t layer, int32_t head, bool is_v, float *rows,
                     int32_t leaf);

/* The largest value that both the raw type and the codec can hold; rounding to raw never exceeds
 * it. The mask is a variable because gcc 12 on x86-64 compiles `is_bf16 ? bits_float(bits &
 * 0xffff0000) : x` to x. */
static inline float quire__largest_value(quire_type raw, const quire_side_format *side) {
    const uint32_t mask = raw == QUIRE_BF16 ? 0xffff0000u : 0xffffffffu;
    return raw == QUIRE_F16 ? QUIRE_F16_MAX /* no codec takes less */
                            : quire__bits_float(quire__float_bits(side->max_abs) & mask);
}

/* ---- windows */

/* Whether a page of a class must stay when the window has moved past it: it has kept tokens that
 * are not raw sinks of every layer. */
static inline bool quire__pinned(const quire_class *class, int32_t page) {
    return (int64_t)page * QUIRE_T < class->keep &&
           !(page == 0 && class->keep <= class->sinks && !class->raw_side);
}

/* The first token that a query at position `i` sees through the window. */
static inline int32_t quire__window_start(const quire_class *class, int32_t i) {
    return class->window == 0 || i < class->window ? 0 : i - class->window + 1;
}

/* Bits of rows 0 .. n-1 of a page. */
static inline uint64_t quire__rows_below(int64_t n) {
    return n >= QUIRE_T ? UINT64_MAX : n <= 0 ? 0 : ((uint64_t)1 << n) - 1;
}

/* Bits of the rows of a page that a later query, at `position`, sees. */
static inline uint64_t quire__rows_seen(const quire_class *class, int32_t page, int32_t position) {
    const int64_t first = (int64_t)page * QUIRE_T;
    const uint64_t in_window = ~quire__rows_below(quire__window_start(class, position) - first);
    return (in_window | quire__rows_below(class->keep - first)) &
           quire__rows_below(position - first);
}

#endif
