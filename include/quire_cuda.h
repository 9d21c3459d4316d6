/* quire_cuda.h: the same page records on an NVIDIA GPU.
 *
 *   quire_cuda_seal            packs 64 raw rows per page into page records, byte for byte those of
 *                              the CPU library
 *   quire_cuda_decode_create   plan of one attention layer: checks the shape, chooses a kernel,
 *                              sizes the workspace
 *   quire_cuda_decode          attention of one query per sequence over packed pages and raw rows,
 *                              in one launch
 *   quire_cuda_prefill_create, quire_cuda_prefill
 *                              the same for many query rows of each sequence: prompts, and drafted
 *                              tokens of speculative decoding
 *   quire_cuda_pool_create     the cache of a model: sequences, page tables and device memory over
 *                              the functions above
 *
 * Caveats, before the functions
 * - All pointers in `args` structures are device pointers. Only a pool allocates device memory.
 *   Otherwise the library never synchronizes, and launches only on the stream it is given, so every
 *   call may be captured in a CUDA graph. Sequence lengths and page tables are read from device
 *   memory: a captured graph serves later steps without being changed.
 * - Semantics are those of quire.h: a query at position i sees token t packed if t/64 < i/64, its
 *   own page raw, and the first `sinks` tokens raw.
 * - Scores and weights are computed in fp16 with fp32 sums, so results are within a bound of the
 *   CPU's, not equal to them (docs/CUDA.md). Equal inputs give equal bits in every run; other
 *   sequences in the batch may change the last bits, because they change where the work is split.
 *   Decode has an option (`exact`) that rules this out.
 * - Errors: functions return a quire_status, and quire_cuda_last_error() says why. Faults of a
 *   kernel while it runs show in the stream, as with any CUDA kernel. Device memory is not checked:
 *   page numbers and lengths must be right.
 * - Threads: a plan is immutable after creation and may be used from any thread. Launches that can
 *   overlap need a workspace each.
 * - libquire_cuda needs no other library of Quire. Programs that also use libquire link both.
 */
#ifndef QUIRE_CUDA_H
#define QUIRE_CUDA_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t is a pointer to it; NULL is the default stream */

/* The calling thread's last failure in this library, in words; "" before the first. */
QUIRE_API const char *quire_cuda_last_error(void);

/* OK if the current device can run the kernels here: compute capability 9.0 or later. E_DEVICE says
 * what is missing. */
QUIRE_API quire_status quire_cuda_available(void);

/* ------------------------------------------------------------------ where things lie in device
 * memory */

/* Page records. Record of page `id` and KV head g: base + id * page_stride + g * head_stride
 * (bytes, multiples of 128). A leaf that holds all layers is served by a base that points at the
 * layer's first record. */
typedef struct quire_cuda_records {
    void *base;
    size_t page_stride, head_stride;
} quire_cuda_records;

/* Raw rows, f16 or bf16. Row t of KV head g in slot s: k + s * slot + g * head + t * token
 * (elements, multiples of 8; pointers aligned to 16 bytes). */
typedef struct quire_cuda_rows {
    const void *k, *v;
    int64_t k_slot, k_head, k_token;
    int64_t v_slot, v_head, v_token;
} quire_cuda_rows;

/* ------------------------------------------------------------------ seal */

typedef struct quire_cuda_seal_args {
    quire_page_shape shape; /* K: kc8 kc4 kc3 kc2 km4 km3; V: vt8 vt4 vt3 vt2; raw: type of the
                               rows, f16, bf16 or f32 */
    int32_t n_kv_heads;
    int32_t n_pages;
    quire_cuda_rows rows;       /* 64 rows for each page; page i is in slot i, or slots[i] */
    const int32_t *slots;       /* (n_pages) or NULL */
    quire_cuda_records records; /* page i becomes record i, or ids[i] */
    const int32_t *ids;         /* (n_pages) or NULL */
    const int32_t *skip; /* (n_pages) first tokens that stay raw elsewhere, 0..64; or NULL: none */
    /* (G, DK) for km4 and km3, as in quire_layer: a permutation; else NULL. */
    const uint16_t *k_order;
    /* NULL, or incremented once for each page, KV head and side with a value that is not finite or
     * above 65504; such a record must not be used. */
    uint32_t *n_bad;
} quire_cuda_seal_args;

/* E_UNSUPPORTED (codec, or head size: V 64 80 96 128 256, K any up to 256), E_INVALID (also records
 * that would overlap), E_DEVICE. */
QUIRE_API quire_status quire_cuda_seal(const quire_cuda_seal_args *args,
                                       struct CUstream_st *stream);

/* ------------------------------------------------------------------ decode */

typedef struct quire_cuda_decode_options {
    size_t struct_size;          /* set by quire_cuda_decode_options_default */
    int32_t n_heads, n_kv_heads; /* H, G: up to 16 query heads per KV head */
    int32_t k_dim, v_dim;
    quire_pair pair;
    quire_type raw;   /* of q and raw rows: f16 (default) or bf16 */
    quire_type out;   /* of the result: f32 (default), f16 or bf16 */
    float scale;      /* of the logits; 0: 1/sqrt(k_dim) */
    int32_t sinks;    /* first tokens that are raw beside page 0; default 4 */
    int32_t max_seqs; /* of one call */
    int32_t window;   /* 0: none; else the query at i sees t with i - t < window ... */
    int32_t keep;     /* ... and the first `keep` tokens */
    float softcap;    /* 0: none; else logits become softcap * tanh(logit / softcap) */
    /* 0: a sequence's work is divided as suits the whole batch, which is fastest; other sequences
     * may then change the last bits of a result. 1 to 128: the work of a sequence and KV head is
     * cut into at most so many parts, by its length alone, and results do not depend on the batch.
     * Few parts cost little in large batches, many are faster in small ones (docs/CUDA.md). The
     * workspace holds max_seqs * n_kv_heads * exact partial results. */
    int32_t exact;
} quire_cuda_decode_options;

typedef struct quire_cuda_decode_plan
    quire_cuda_decode_plan; /* of the device that was current when it was made */

QUIRE_API void quire_cuda_decode_options_default(quire_cuda_decode_options *options);
/* Every pair of codecs, head sizes 32 to 256 in steps of 16. km4:vt4, kc4:vt4, kc8:vt4 and kc8:vt8
 * with equal head sizes of 64, 80, 96, 128 or 256 have fast kernels; all else shares one that is
 * many times slower (docs/CUDA.md). E_UNSUPPORTED: a codec that is not for its side or does not
 * divide the head size, other head sizes, more than 16 query heads per KV head, or more shared
 * memory than the GPU has; E_INVALID, E_DEVICE, E_NOMEM (of the host). */
QUIRE_API quire_status quire_cuda_decode_create(quire_cuda_decode_plan **plan,
                                                const quire_cuda_decode_options *options);
QUIRE_API void quire_cuda_decode_free(quire_cuda_decode_plan *plan); /* NULL is fine */
/* Bytes of the workspace, aligned to 256. Fill it with zeros once; calls leave it ready for the
 * next one. */
QUIRE_API size_t quire_cuda_decode_workspace(const quire_cuda_decode_plan *plan);
/* What runs, e.g. "km4:vt4 d128, 8 warps x 2 pages", or "tq4:vt3 d96 d96, kernel for all pairs". */
QUIRE_API const char *quire_cuda_decode_kernel(const quire_cuda_decode_plan *plan);

typedef struct quire_cuda_decode_args {
    int32_t n_seqs; /* B */
    const void *q;  /* (B,H,DK) */
    void *out;      /* (B,H,DV) */
    float *lse;     /* NULL, or (B,H): ln of the softmax denominator, learned sink included */
    /* (B) tokens, that of the query included; 0: nothing is seen, out becomes zeros, lse -inf (or
     * the learned sink). */
    const int32_t *lengths;
    /* (B, pages_stride): ids of the sealed pages, of which the first (length - 1) / 64 count. Those
     * that a window leaves out are not read. */
    const int32_t *pages;
    int64_t pages_stride;
    quire_cuda_records records;
    /* Rows of the page that the query is in: length - 64 * ((length - 1) / 64) of them. */
    quire_cuda_rows own;
    quire_cuda_rows sink;    /* the first `sinks` rows; read where the query is not in page 0 */
    const int32_t *slots;    /* (B) slots of `own` and `sink`; NULL: 0, 1, 2 .. */
    const uint16_t *k_order; /* (G, DK) for km4 and km3; else NULL */
    const float *alibi;      /* (H) slopes, or NULL. logit += slope * (t - i) */
    /* (H) learned sinks, or NULL. Each adds exp(sink) to its head's denominator. */
    const float *sink_logits;
    void *workspace;
} quire_cuda_decode_args;

/* A row of q that is not finite gives NaN for that head alone. E_INVALID, E_DEVICE (the launch
 * failed). */
QUIRE_API quire_status quire_cuda_decode(const quire_cuda_decode_plan *plan,
                                         const quire_cuda_decode_args *args,
                                         struct CUstream_st *stream);

/* ------------------------------------------------------------------ prefill, and verification of
 * several rows */

typedef struct quire_cuda_prefill_options {
    size_t struct_size;          /* set by quire_cuda_prefill_options_default */
    int32_t n_heads, n_kv_heads; /* H, G: up to 16 query heads per KV head */
    int32_t k_dim, v_dim;
    quire_pair pair;
    quire_type raw;    /* of q and raw rows: f16 (default) or bf16 */
    quire_type out;    /* of the result: f32 (default), f16 or bf16 */
    float scale;       /* of the logits; 0: 1/sqrt(k_dim) */
    int32_t sinks;     /* first tokens that are raw beside page 0; default 4 */
    int32_t window;    /* 0: none; else a query at i sees t with i - t < window ... */
    int32_t keep;      /* ... and the first `keep` tokens */
    float softcap;     /* 0: none; else logits become softcap * tanh(logit / softcap) */
    int32_t rows_hint; /* rows of a sequence that calls usually have; 0: many. Any number works,
                          this one is fastest */
} quire_cuda_prefill_options;

typedef struct quire_cuda_prefill_plan
    quire_cuda_prefill_plan; /* of the device that was current when it was made */

QUIRE_API void quire_cuda_prefill_options_default(quire_cuda_prefill_options *options);
/* E_UNSUPPORTED: no kernel for this pair, head size or group, or a GPU other than compute
 * capability 9.0 (Hopper); E_INVALID, E_DEVICE, E_NOMEM (of the host). */
QUIRE_API quire_status quire_cuda_prefill_create(quire_cuda_prefill_plan **plan,
                                                 const quire_cuda_prefill_options *options);
QUIRE_API void quire_cuda_prefill_free(quire_cuda_prefill_plan *plan); /* NULL is fine */
/* Bytes of the workspace, aligned to 256. What is in it does not matter. */
QUIRE_API size_t quire_cuda_prefill_workspace(const quire_cuda_prefill_plan *plan);
/* What runs, e.g. "km4:vt4 d128, tiles of 176 queries". */
QUIRE_API const char *quire_cuda_prefill_kernel(const quire_cuda_prefill_plan *plan);

/* R rows of q belong to B sequences; those of sequence b are starts[b] .. starts[b + 1] - 1, and
 * are its last tokens. */
typedef struct quire_cuda_prefill_args {
    int32_t n_seqs;         /* B */
    const void *q;          /* (R,H,DK) */
    void *out;              /* (R,H,DV) */
    float *lse;             /* NULL, or (R,H): ln of the softmax denominator, as in decode */
    const int32_t *starts;  /* (B + 1) ascending */
    const int32_t *lengths; /* (B) tokens, those of the rows included */
    /* (B, pages_stride): ids of sealed pages, of which the first (length - 1) / 64 count: also
     * those that the rows themselves fill, which must be sealed before. */
    const int32_t *pages;
    int64_t pages_stride;
    quire_cuda_records records;
    /* Rows of the pages that the queries are in: token t of a sequence whose first query is at f
     * lies at row t - f / 64 * 64. All must be finite. */
    quire_cuda_rows own;
    quire_cuda_rows sink;    /* the first `sinks` rows; read where a query is not in page 0 */
    const int32_t *slots;    /* (B) slots of `own` and `sink`; NULL: 0, 1, 2 .. */
    const uint16_t *k_order; /* (G, DK) for km4; else NULL */
    const float *alibi;      /* as in decode */
    const float *sink_logits;
    void *workspace;
} quire_cuda_prefill_args;

/* A row of q that is not finite gives NaN for that head of it alone. E_INVALID, E_DEVICE (a launch
 * failed). */
QUIRE_API quire_status quire_cuda_prefill(const quire_cuda_prefill_plan *plan,
                                          const quire_cuda_prefill_args *args,
                                          struct CUstream_st *stream);

/* ------------------------------------------------------------------ pool: the cache of a model in
 * device memory (experimental)
 *
 *   quire_cuda_step_begin    plans a step of some sequences: reserves their pages, or changes
 *                            nothing and says why not
 *   quire_cuda_step_append   per layer: appends the new rows of K and V
 *   quire_cuda_step_attend   per layer: attention of the new rows' queries
 *   quire_cuda_step_end      packs the pages that are full; the tokens now belong to the sequences
 *
 * - The page tables, reference counts and lengths are on the host, rows and records on the device.
 *   No call waits for the device, except those that create, free and requantize a
 *   pool, and quire_cuda_pool_get_info.
 * - begin and end are cheap host work and at most a few small launches; where sequences move to
 *   other items, begin also sends their page tables, 480 pages with each launch. append and attend
 *   of a step with one token for each sequence may be captured in a graph, which then serves all
 *   steps with as many items: call begin, launch the graph, call end.
 * - Records, sinks and channel orders are those of a quire_pool with the same layers, codecs and
 *   sinks: the bytes of pages can be moved between the two (quire_cuda_seq_page_save).
 * - A sequence keeps the raw rows of its last two pages, so that a trim into them is exact.
 * - A page holds all layers. Where every layer has a window, pages that the longest one has moved
 *   past are given back when a step ends; a trim to before them is refused (E_GONE).
 * - Use a pool from one thread at a time, and on one stream, or on streams that you order by
 *   events. */

typedef struct quire_cuda_pool quire_cuda_pool; /* of the device that was current */
typedef struct quire_cuda_seq quire_cuda_seq;

typedef struct quire_cuda_pool_options {
    size_t struct_size;        /* set by quire_cuda_pool_options_default */
    const quire_layer *layers; /* (n_layers) in host memory; copied */
    int32_t n_layers;
    quire_pair pair;          /* of layers whose codecs are QUIRE_CODEC_DEFAULT; km4:vt4 */
    quire_type raw;           /* of q, k, v and raw rows: f16 (default) or bf16 */
    quire_type out;           /* of results: f32 (default), f16 or bf16 */
    int32_t sinks;            /* default 4 */
    int32_t max_seqs;         /* sequences alive at once; default 64 */
    int32_t max_tokens;       /* of one sequence; default 32768 */
    int32_t n_pages;          /* packed pages; 0: enough for max_seqs sequences of max_tokens */
    int32_t max_batch_tokens; /* rows of one step; default 2048 */
    int32_t exact;            /* as in quire_cuda_decode_options */
} quire_cuda_pool_options;

QUIRE_API void quire_cuda_pool_options_default(quire_cuda_pool_options *options);
/* Allocates everything, host and device. E_UNSUPPORTED: a codec or head size that quire_cuda_seal
 * or quire_cuda_decode does not have, or query-aware rounding that takes more shared memory than
 * the GPU has. E_TOO_BIG: page tables of so many sequences and tokens, or rows of a step.
 * E_INVALID, E_NOMEM (of the host or the device), E_DEVICE. */
QUIRE_API quire_status quire_cuda_pool_create(quire_cuda_pool **pool,
                                              const quire_cuda_pool_options *options);
/* Waits for the device, then frees the pool and its sequences. NULL is fine. Not while a stream is
 * captured: CUDA refuses to free memory then, and it would be lost. */
QUIRE_API void quire_cuda_pool_free(quire_cuda_pool *pool);

typedef struct quire_cuda_pool_info {
    size_t device_bytes; /* all that the pool holds on the device */
    size_t page_bytes;   /* of a packed page, all layers */
    int32_t n_pages, free_pages;
    int32_t n_seqs;
    /* Page sides with a value that is not finite or above 65504 (K or V of one page, layer and KV
     * head). Such a sequence must not be used any more. Where a step has several tokens of a
     * sequence, append packs its pages: those count even if the tokens are not accepted. */
    uint32_t n_bad;
} quire_cuda_pool_info;

/* Waits for `stream`. */
QUIRE_API quire_status quire_cuda_pool_get_info(quire_cuda_pool *pool, quire_cuda_pool_info *info,
                                                struct CUstream_st *stream);

/* Gives a pool in use other codecs: `options` as for quire_cuda_pool_create, with all layers once
 * more. Codecs, channel orders, query-aware rounding, n_pages and what concerns steps may differ;
 * n_layers, raw, sinks, max_seqs and max_tokens may not, nor a layer's KV heads, head sizes,
 * window, keep and share. Sequences stay what they are.
 * - Every page is decoded and packed again on the device, shared ones once; pages whose raw rows
 *   are there (the page packed last) are packed from those. The bytes are those that
 *   quire_pool_requantize gives the same pages. A layer whose codecs stay keeps its bytes, and must
 *   have the same channel orders.
 * - Until it returns, the device holds both the old pool and the new one. It waits for the device.
 * - Graphs captured before hold the old addresses: capture them again.
 * If it fails, nothing has changed: E_BUSY (a step is under way), E_NO_PAGES (more pages are in use
 * than n_pages), and what quire_cuda_pool_create returns. */
QUIRE_API quire_status quire_cuda_pool_requantize(quire_cuda_pool *pool,
                                                  const quire_cuda_pool_options *options,
                                                  struct CUstream_st *stream);

QUIRE_API quire_status quire_cuda_seq_create(quire_cuda_pool *pool,
                                             quire_cuda_seq **seq); /* E_NO_SLOT */
/* A second sequence with the same tokens. It shares every packed page; raw rows are copied. */
QUIRE_API quire_status quire_cuda_seq_fork(quire_cuda_seq *seq, quire_cuda_seq **child,
                                           struct CUstream_st *stream);
/* Cuts the sequence to its first n_tokens. Between pages, or in the last two pages that were
 * appended; E_GONE: deeper inside a page, whose raw rows are no longer there, or before a window.
 */
QUIRE_API quire_status quire_cuda_seq_trim(quire_cuda_seq *seq, int32_t n_tokens);
/* Drops tokens from .. to-1: what quire_seq_shift does, with the same bytes. Rows after the cut are
 * decoded, turned and packed again on the device; nothing waits. to == length is a trim. Needs a
 * free page, and one for each page from `from` on that other sequences share. E_UNSUPPORTED: K has
 * two bits, or query-aware rounding of f32 rows takes more shared memory than the GPU has. E_GONE:
 * pages have been given back that a window left behind. E_BUSY (a step is under way), E_NO_PAGES,
 * E_INVALID, E_NOMEM (of the host). All these change nothing. E_DEVICE: a launch failed; the
 * sequence has the pages before that of `from` left, from / 64 * 64 tokens. */
QUIRE_API quire_status quire_cuda_seq_shift(quire_cuda_seq *seq, int32_t from, int32_t to,
                                            const quire_rope *rope, int32_t n_rope,
                                            struct CUstream_st *stream);
/* NULL is fine; E_BUSY. A freed handle is refused (E_INVALID) until another sequence gets it. */
QUIRE_API quire_status quire_cuda_seq_free(quire_cuda_seq *seq);
QUIRE_API int32_t quire_cuda_seq_length(const quire_cuda_seq *seq); /* 0: NULL, or freed */

typedef struct quire_cuda_step_item {
    quire_cuda_seq *seq; /* NULL: an empty place, without rows if n_tokens is 0 */
    int32_t n_tokens;
} quire_cuda_step_item;

/* The step's rows are those of the items, in order. If every item has one token (a decode step), an
 * empty place has a row too: give it n_tokens 1; its results are zeros. An item with any other
 * number of tokens, also 0, makes it a step of several rows, which takes prefill's kernels: leave
 * out sequences without tokens. E_BUSY: a sequence occurs twice, or a step is under way.
 * E_NO_PAGES, E_TOO_BIG, E_INVALID, E_DEVICE. */
QUIRE_API quire_status quire_cuda_step_begin(quire_cuda_pool *pool,
                                             const quire_cuda_step_item *items, int32_t n_items,
                                             struct CUstream_st *stream);
/* k (R,G,DK), v (R,G,DV), dense, in device memory, aligned to 16 bytes. A layer that shares
 * another's cache has none: leave it out. E_STATE, E_INVALID, E_DEVICE. */
QUIRE_API quire_status quire_cuda_step_append(quire_cuda_pool *pool, int32_t layer, const void *k,
                                              const void *v, struct CUstream_st *stream);
/* q (R,H,DK), out (R,H,DV), lse (R,H) or NULL. The layer's rows must have been appended.
 * E_UNSUPPORTED: a step other than a decode step, where quire_cuda_prefill has no kernel. */
QUIRE_API quire_status quire_cuda_step_attend(quire_cuda_pool *pool, int32_t layer, const void *q,
                                              void *out, float *lse, struct CUstream_st *stream);
/* n_accept NULL: every token is kept. Else item i keeps its first n_accept[i] tokens; the cut must
 * lie where quire_cuda_seq_trim is possible, else E_INVALID and the step stays open. All zeros
 * undoes the step. Not so if rows were appended, the last page of a sequence was open before, and
 * the rows reach the second page after it: its own raw rows have been overwritten (E_INVALID). Then
 * end the step with NULL, trim to a multiple of 64, and append what is missing once more. */
QUIRE_API quire_status quire_cuda_step_end(quire_cuda_pool *pool, const int32_t *n_accept,
                                           struct CUstream_st *stream);

/* Packed page `page` of all layers, copied to host memory or appended from it: the bytes of
 * quire_seq_page_save, if all layers of that pool have the same window. Copies run on the stream;
 * they overlap with other work if the memory is pinned. The bytes must stay until the stream has
 * got there. Loading does not look at them: check bytes from elsewhere with quire_seq_page_load
 * first. E_INVALID (also for a page that is not full, or n_bytes of another pool), E_STATE (the
 * sequence does not end with a full page), E_GONE (it has left the windows), E_NO_PAGES, E_TOO_BIG,
 * E_BUSY. */
QUIRE_API size_t quire_cuda_seq_page_bytes(const quire_cuda_pool *pool, int32_t page);
QUIRE_API quire_status quire_cuda_seq_page_save(const quire_cuda_seq *seq, int32_t page,
                                                void *bytes, size_t n_bytes,
                                                struct CUstream_st *stream);
QUIRE_API quire_status quire_cuda_seq_page_load(quire_cuda_seq *seq, const void *bytes,
                                                size_t n_bytes, struct CUstream_st *stream);

/* A whole sequence to host memory and back, raw rows included: the restored one continues and
 * trims bit for bit like the saved one. For sequences that must leave the device for a while; the
 * bytes are no file format. E_FORMAT: bytes of something else, or of a pool with other layers,
 * codecs, channel orders, windows, sinks or raw type (also of this one, before it was requantized).
 */
QUIRE_API size_t quire_cuda_seq_bytes(const quire_cuda_seq *seq);
QUIRE_API quire_status quire_cuda_seq_save(const quire_cuda_seq *seq, void *bytes, size_t n_bytes,
                                           struct CUstream_st *stream);
QUIRE_API quire_status quire_cuda_seq_load(quire_cuda_pool *pool, const void *bytes, size_t n_bytes,
                                           quire_cuda_seq **seq, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
