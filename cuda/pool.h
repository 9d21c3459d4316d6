/* A pool in device memory: what its files share.
 *
 * All memory is one block on the device:
 *
 *   records   (pages) each: per layer, per KV head, a packed record: the CPU pool's sealed leaf
 *   raw       (2 * max_seqs slots) each: per layer, per KV head, 64 rows of K, then of V
 *   sinks     (2 * max_seqs slots) each: the CPU pool's sink leaf
 *   scratch   raw rows of one layer while a step appends more than a token to a sequence
 *   words     lengths, slots and page tables of the step, as kernels read them
 *   channel orders, ALiBi slopes, learned sinks; workspaces; the counter of bad values
 *
 * Sequence s has slots 2s and 2s+1, for even and odd pages, so that the raw rows of the page sealed
 * last outlive it until the page after the next one starts. Both have the sinks, because attention
 * finds own rows and sinks by one slot.
 *
 * `words` has a mirror on the host. A step changes few of them; those that changed go to the device
 * as arguments of a launch (pool_rows.cu), so there is no staging memory that the device might
 * still be reading. */
#ifndef QUIRE_CUDA_POOL_H
#define QUIRE_CUDA_POOL_H

#include <vector>

#include "fail.h"
#include "feedback.h"
#include "pool_rows.h"
#include "record.h"

namespace quire_cuda {

struct Layer {
    quire_layer config; /* codecs resolved; pointers are NULL */
    int32_t source;     /* the layer whose cache it attends over: itself, or `share` */
    size_t record_bytes, raw_record_bytes, sink_record_bytes; /* of one KV head */
    size_t records_at, raw_at, sinks_at;                      /* in a page or slot */
    const uint16_t *order;                                    /* device, or NULL */
    const float *alibi, *sink_logits;                         /* device, or NULL */
    int32_t plan, run;                                        /* of the pool's plans and runs */
};

/* Plans of layers with the same shape and logits, which share a workspace. */
struct Plans {
    quire_cuda_decode_options options;
    quire_cuda_decode_plan *decode;
    quire_cuda_prefill_plan *many, *few; /* NULL: no kernel */
    size_t decode_workspace;             /* in the block */
};

/* Neighbouring layers of one shape and RoPE: their heads are sealed in one launch. */
struct Run {
    int32_t first, n_layers;
    bool has_feedback;              /* its K is rounded with feedback (feedback.h); else: */
    std::vector<uint16_t> channels; /* what feedback.h wants, on the host ... */
    std::vector<uint16_t> places;
    std::vector<double> angles, turns;
    Feedback feedback; /* ... and on the device */
};

/* Rows that the narrow tiles of prefill are for. */
constexpr int FEW_ROWS = 16;

struct Item {
    quire_cuda_seq *seq;
    int32_t n_tokens, before;
};

} // namespace quire_cuda

struct quire_cuda_seq {
    quire_cuda_pool *pool;
    int32_t slot, length;
    int32_t raw_page; /* pages from this one on still have their raw rows */
    /* Pages before this one have been given back, because all windows have moved past them; the
     * first pool.kept_pages stay. */
    int32_t live_from;
    bool used, in_step;
    uint64_t version;           /* of the table, unique in the pool */
    std::vector<int32_t> table; /* (max_pages): ids of length / 64 pages */
};

struct quire_cuda_pool {
    quire_cuda_pool_options options;
    int32_t max_pages, n_pages;
    int32_t window, kept_pages; /* the longest of all layers, and what they keep; 0: one has none */
    std::vector<quire_cuda::Layer> layers;
    std::vector<quire_cuda::Plans> plans;
    std::vector<quire_cuda::Run> runs;
    size_t page_bytes, raw_bytes, sink_bytes; /* of a page, a slot */
    uint64_t form;                            /* hash of what the bytes of a sequence depend on */

    uint8_t *memory; /* the block */
    size_t device_bytes;
    uint8_t *records, *raw, *sinks;
    uint8_t *scratch_k, *scratch_v, *scratch_sink_k, *scratch_sink_v, *prefill_workspace;
    int32_t *words;
    uint32_t *n_bad;
    int32_t max_blocks; /* of 64 rows, of the scratch */
    /* Where the parts of `words` start. A step's items: (max_seqs). Blocks of the scratch:
     * (max_blocks). Pages to seal: (max_blocks). */
    int32_t lengths_at, slots_at, starts_at, blocks_at, first_slots_at, block_items_at,
        seal_slots_at, seal_ids_at, seal_skip_at, seal_numbers_at, table_at, n_words;

    std::vector<int32_t> mirror;
    std::vector<quire_cuda::Word> pending; /* words that the device does not have yet */
    std::vector<uint64_t> shown;           /* (max_seqs): version of the table row there */
    std::vector<quire_cuda_seq> seqs;      /* (max_seqs) */
    std::vector<int32_t> refs;             /* (n_pages) */
    std::vector<int32_t> free_pages;
    uint64_t version;

    bool in_step, is_decode;
    bool has_appended; /* by a call: a graph, which only decode steps have, does not tell */
    std::vector<quire_cuda::Item> items;
    int32_t n_items, n_rows, n_blocks, n_seal, most_rows;
};

namespace quire_cuda {

/* Whether a layer's K is rounded with feedback. */
inline bool has_feedback(const quire_layer &layer) {
    const int bits = k_bits_of(layer.k);
    return layer.k_feedback && bits > 0 && bits < 8;
}
quire_status check_order(const quire_layer &layer, int32_t index);
/* Of a layer with a cache of its own: channels and angles of its RoPE. E_INVALID. */
quire_status read_feedback(const quire_layer &layer, int32_t index, Run *run);
/* Of all its layers, which have been added. */
void place_feedback(const quire_cuda_pool &pool, Run *run);
Feedback feedback_of(const quire_cuda_pool &pool, int32_t layer);

inline int32_t pages_of(int32_t tokens) { return tokens / T; }
int32_t page_take(quire_cuda_pool &pool); /* there must be a free one */
void page_drop(quire_cuda_pool &pool, int32_t id);
inline bool is_held(const quire_cuda_seq &seq, int32_t page) {
    return page >= seq.live_from || page < seq.pool->kept_pages;
}
/* The first page that a query at `position` sees through the longest window. */
inline int32_t window_page(const quire_cuda_pool &pool, int32_t position) {
    return pool.window == 0 || position < pool.window ? 0 : (position - pool.window + 1) / T;
}
void give_back_pages(quire_cuda_seq &seq);         /* those that no later query sees */
quire_status check_seq(const quire_cuda_seq *seq); /* E_INVALID: NULL, or freed */
quire_status check_cut(const quire_cuda_seq &seq, int32_t n_tokens);
void cut(quire_cuda_seq &seq, int32_t n_tokens); /* check_cut has allowed it */
quire_status check_pool_options(const quire_cuda_pool_options &options);
inline int32_t max_pages_of(const quire_cuda_pool_options &o) { return (o.max_tokens + T - 1) / T; }
inline int32_t n_pages_of(const quire_cuda_pool_options &o) { /* of checked options */
    return o.n_pages > 0 ? o.n_pages : o.max_seqs * max_pages_of(o);
}
/* Makes everything of an empty pool. */
quire_status make_pool(quire_cuda_pool &pool, const quire_cuda_pool_options &options);
/* Changes a word, and sends those that have changed to the device. */
void set(quire_cuda_pool &pool, int32_t at, int32_t value);
quire_status send_words(quire_cuda_pool &pool, cudaStream_t stream);
/* Blocks of `tokens` rows of one layer, all heads of a token together. */
quire_cuda_rows scratch_rows(const uint8_t *k, const uint8_t *v, const quire_layer &c,
                             int64_t tokens);
/* Packs pool.n_seal pages of n layers from `first` on, all of one shape, from rows of `type`. */
quire_status seal_pages(quire_cuda_pool &pool, int32_t first, int32_t n,
                        const quire_cuda_rows &rows, quire_type type, cudaStream_t stream);
quire_cuda_rows raw_rows_of(const quire_cuda_pool &pool, const Layer &layer);
quire_cuda_rows sink_rows_of(const quire_cuda_pool &pool, const Layer &layer);

} // namespace quire_cuda

#endif
