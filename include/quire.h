/* quire.h: a language model's K/V cache, quantized and paged, with attention computed on the
 * packed pages.
 *
 * A step
 *   quire_batch_begin    plans the step: checks everything and reserves every page, so that it
 *                        fails before anything is written
 *   quire_batch_append   per layer: appends the new K and V rows; a page that fills up is packed
 *                        ("sealed") at once
 *   quire_batch_attend   per layer: softmax(q K^T) V over raw and packed pages
 *   quire_batch_commit   adds the tokens to their sequences; quire_batch_abort undoes the step
 *
 * Rules
 * - A page is 64 consecutive tokens of one sequence. The page being filled is open: its rows are
 *   raw. A full page is sealed with its layer's codecs and then never changes, unless the pool
 *   gets another policy (quire_pool_requantize).
 * - A query at position i sees token t packed if t/64 < i/64, and its own page raw. The first
 *   `sinks` tokens (quire_policy) it always sees raw. So results depend only on positions: not on
 *   how a prompt is split into batches, on the other rows of a batch, on the number of workers, or
 *   on which pages the pool handed out. On one machine all of this holds bit for bit. Four calls
 *   make values depend on history: a trim deep into a sealed page, quire_pool_requantize, loading
 *   with `reseal`, and quire_seq_shift. A sequence and its files record them (quire_history).
 * - A pool allocates all its memory when it is created, within its byte budget, and nothing
 *   afterwards.
 * - Threads: functions on one pool may be called from any thread (a lock guards the page tables),
 *   but only one thread at a time may use a given sequence or batch. The exceptions are
 *   quire_batch_append and quire_batch_attend: workers 0 .. nth-1 all call them concurrently, and
 *   all must have returned before the next call on that batch.
 * - Lifetime: sequences and batches belong to their pool and are freed with it.
 * - Errors: a function that can fail returns a quire_status. If it fails, it changes nothing,
 *   unless its comment says otherwise. quire_last_error() describes the last failure in the calling
 *   thread. The library never prints, exits or aborts.
 * - Pages are little-endian and the same on every machine; docs/FORMAT.md defines every bit.
 *
 * Sections marked "stable" change only with a new minor version; those marked "experimental" may
 * change in any release.
 *
 * Dimensions: B rows of a batch, H query heads, G KV heads, DK and DV the sizes of a K and a V
 * head.
 */
#ifndef QUIRE_H
#define QUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(QUIRE_BUILD) && defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

/* ------------------------------------------------------------ version (stable) */

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0
#define QUIRE_PAGE_FORMAT 2 /* version of docs/FORMAT.md */

enum { QUIRE_PAGE_TOKENS = 64, QUIRE_DIM_MIN = 32, QUIRE_DIM_MAX = 576, QUIRE_DIM_STEP = 16 };

QUIRE_API const char *quire_version(void); /* "0.1.0" */

/* ------------------------------------------------------------ status (stable) */

#define QUIRE_STATUS_MAP(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(E_INVALID, 1, "invalid argument")                                                            \
    X(E_UNSUPPORTED, 2, "not supported")                                                           \
    X(E_UNKNOWN, 3, "unknown name")                                                                \
    X(E_NOMEM, 4, "out of memory")                                                                 \
    X(E_TOO_BIG, 5, "size does not fit")                                                           \
    X(E_BUDGET, 6, "byte budget too small")                                                        \
    X(E_NO_PAGES, 7, "pool is out of pages")                                                       \
    X(E_NO_SLOT, 8, "no free sequence or batch")                                                   \
    X(E_BUSY, 9, "in use")                                                                         \
    X(E_STATE, 10, "call out of order")                                                            \
    X(E_VALUE, 11, "value is not finite or does not fit")                                          \
    X(E_GONE, 12, "no longer there")                                                               \
    X(E_FORMAT, 13, "contents are not valid")                                                      \
    X(E_IO, 14, "file cannot be read or written")                                                  \
    X(E_MODEL, 15, "not a model that can run")                                                     \
    X(E_ABORTED, 16, "stopped by the caller")                                                      \
    X(E_FOREIGN, 17, "not made by Quire")                                                          \
    X(E_VERSION, 18, "unknown format version")                                                     \
    X(E_TRUNCATED, 19, "file is cut off")                                                          \
    X(E_CORRUPT, 20, "file is damaged")                                                            \
    X(E_IDENTITY, 21, "cache belongs to another model")                                            \
    X(E_CODEC, 22, "cache was saved under other codecs")                                           \
    X(E_HISTORY, 23, "cache differs from a fresh computation of its text")                         \
    X(E_DEVICE, 24, "GPU is missing or failed")

typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, value, text) QUIRE_##name = value,
    QUIRE_STATUS_MAP(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;

QUIRE_API const char *quire_status_name(quire_status status); /* "QUIRE_E_NO_PAGES" */
QUIRE_API const char *quire_status_text(quire_status status); /* "pool is out of pages" */
/* The calling thread's last failure, as a sentence; "" before the first one. */
QUIRE_API const char *quire_last_error(void);

/* ------------------------------------------------------------ codecs (stable) */

typedef enum quire_type { QUIRE_F32 = 0, QUIRE_F16 = 1, QUIRE_BF16 = 2 } quire_type;

/* X(enum, number in files, name, family, bits, scale group, sides). Sides: 1 K, 2 V, 3 both.
 * docs/FORMAT.md defines each family; `quire codecs` prints this table. */
#define QUIRE_CODEC_MAP(X)                                                                         \
    /* rows as they are; `raw` is the pool's raw type */                                           \
    X(RAW, 1, "raw", RAW, 0, 0, 3)                                                                 \
    X(F32, 2, "f32", RAW, 32, 0, 3)                                                                \
    X(F16, 3, "f16", RAW, 16, 0, 3)                                                                \
    X(BF16, 4, "bf16", RAW, 16, 0, 3)                                                              \
    /* K: one scale and zero per channel and page */                                               \
    X(KC8, 16, "kc8", CHANNEL, 8, 0, 1)                                                            \
    X(KC4, 17, "kc4", CHANNEL, 4, 0, 1)                                                            \
    X(KC3, 18, "kc3", CHANNEL, 3, 0, 1)                                                            \
    X(KC2, 19, "kc2", CHANNEL, 2, 0, 1)                                                            \
    /* the same with mixed bit widths, in a channel order (quire_layer.k_order): km4 has 5, 4      \
     * and 3 bits, km3 has 4, 3 and 2 */                                                           \
    X(KM4, 20, "km4", CHANNEL, 4, 0, 1)                                                            \
    X(KM3, 21, "km3", CHANNEL, 3, 0, 1)                                                            \
    /* V (vt8: K too): rotated, uniform codes, one scale per token */                              \
    X(VT8, 24, "vt8", UNIFORM, 8, 0, 3)                                                            \
    X(VT4, 25, "vt4", UNIFORM, 4, 0, 2)                                                            \
    X(VT3, 26, "vt3", UNIFORM, 3, 0, 2)                                                            \
    X(VT2, 27, "vt2", UNIFORM, 2, 0, 2)                                                            \
    /* TurboQuant mse: rotated, Lloyd-Max codebook */                                              \
    X(TQ4, 32, "tq4", BOOK, 4, 0, 3)                                                               \
    X(TQ3, 33, "tq3", BOOK, 3, 0, 3)                                                               \
    X(TQ2, 34, "tq2", BOOK, 2, 0, 3)                                                               \
    /* TurboQuant prod: mse with one bit less, plus a sign of the residual */                      \
    X(TQP4, 36, "tqp4", PROD, 4, 0, 1)                                                             \
    X(TQP3, 37, "tqp3", PROD, 3, 0, 1)                                                             \
    /* as mlx.core.quantize */                                                                     \
    X(A8G32, 48, "a8g32", AFFINE, 8, 32, 3)                                                        \
    X(A8, 49, "a8", AFFINE, 8, 64, 3)                                                              \
    X(A8G128, 50, "a8g128", AFFINE, 8, 128, 3)                                                     \
    X(A4G32, 51, "a4g32", AFFINE, 4, 32, 3)                                                        \
    X(A4, 52, "a4", AFFINE, 4, 64, 3)                                                              \
    X(A4G128, 53, "a4g128", AFFINE, 4, 128, 3)                                                     \
    X(A2G32, 54, "a2g32", AFFINE, 2, 32, 3)                                                        \
    X(A2, 55, "a2", AFFINE, 2, 64, 3)                                                              \
    X(A2G128, 56, "a2g128", AFFINE, 2, 128, 3)                                                     \
    /* as ggml */                                                                                  \
    X(Q8_0, 64, "q8_0", BLOCK, 8, 32, 3)                                                           \
    X(Q4_0, 65, "q4_0", BLOCK, 4, 32, 3)

typedef enum quire_codec {
    QUIRE_CODEC_DEFAULT = 0, /* in a quire_layer: the policy decides */
#define QUIRE_CODEC_ENUM(name, value, text, family, bits, group, sides) QUIRE_CODEC_##name = value,
    QUIRE_CODEC_MAP(QUIRE_CODEC_ENUM)
#undef QUIRE_CODEC_ENUM
} quire_codec;

typedef struct quire_pair {
    quire_codec k, v;
} quire_pair;

typedef struct quire_codec_info {
    quire_codec codec;
    const char *name;
    const char *family;  /* "channel", "uniform", ... */
    const char *summary; /* one line */
    int32_t bits;        /* per code (km: on average); 0 for `raw`, whose type decides */
    int32_t group;       /* channels that share a scale; 0: none do */
    bool for_k, for_v;
    bool ordered; /* km: a layer needs k_order */
} quire_codec_info;

QUIRE_API size_t quire_codec_count(void);
QUIRE_API quire_status quire_codec_at(size_t index, quire_codec_info *info);
QUIRE_API const char *quire_codec_name(quire_codec codec); /* NULL for an unknown number */
/* km: whether a layer needs k_order. False for unknown numbers. */
QUIRE_API bool quire_codec_is_ordered(quire_codec codec);

typedef struct quire_preset_info {
    const char *name;
    quire_pair pair;
    int32_t sinks;
} quire_preset_info;

QUIRE_API size_t quire_preset_count(void);
QUIRE_API quire_status quire_preset_at(size_t index, quire_preset_info *info);

/* ------------------------------------------------------------ policy (stable) */

/* Which codecs serve which layer. */
typedef struct quire_policy {
    quire_pair pair;     /* every layer not covered below */
    quire_pair windowed; /* layers with a sliding window: raw:raw unless changed */
    quire_pair edge;     /* the first `edge_first` and last `edge_last` layers */
    int32_t edge_first, edge_last;
    int32_t sinks; /* 0..64: the first tokens, which stay raw beside a packed page 0 */
} quire_policy;

/* Parses "k8v4" (a preset) or "kc8:vt4" (K codec : V codec). Policies have 4 sinks; "none" and
 * "raw:raw" have 0. E_UNKNOWN, E_UNSUPPORTED. */
QUIRE_API quire_status quire_policy_parse(const char *text, quire_policy *policy);

/* ------------------------------------------------------------ pool (stable) */

typedef struct quire_pool quire_pool;
typedef struct quire_seq quire_seq;
typedef struct quire_batch quire_batch;

/* The RoPE that was applied to a layer's K rows before they were appended. Pair j of a head turns
 * by position * scale * frequency[j] radians. The pairs are (0, n_rot/2), (1, n_rot/2 + 1) and so
 * on or, if interleaved, (0, 1), (2, 3) and so on, counted from channel `first`. For YaRN and
 * similar schemes pass their frequencies; a factor that they put on K is left as it is. */
typedef struct quire_rope {
    /* Channels first .. first + n_rot - 1 turn; n_rot 0: none do (ALiBi, or no positions). */
    int32_t first, n_rot;
    bool interleaved;
    float base;             /* frequency[j] = base ^ (-2 j / n_rot), unless given */
    float scale;            /* 0 means 1 */
    const float *frequency; /* (n_rot/2), or NULL */
} quire_rope;

typedef struct quire_layer {
    int32_t n_heads, n_kv_heads; /* H, G: H is a multiple of G */
    int32_t k_dim, v_dim;        /* 32..576, multiples of 16 */
    int32_t window;              /* 0: none; else a query at i sees t with i - t < window ... */
    int32_t keep;                /* ... and always the first `keep` tokens */
    float scale;                 /* of the logits; 0: 1/sqrt(k_dim) */
    float softcap;               /* 0: none; else logits become softcap * tanh(logit / softcap) */
    const float *alibi;          /* (H) slopes, or NULL; copied. logit += slope * (t - i) */
    /* (H) learned sinks, or NULL; copied. Each adds exp(sink) to its head's denominator. */
    const float *sink_logits;
    quire_codec k, v; /* QUIRE_CODEC_DEFAULT: the policy decides */
    /* -1; else the layer attends over the cache of this earlier layer and has none itself. */
    int32_t share;
    /* (G, DK) for km4 and km3; copied. With other codecs it may be NULL; if it is given, it is
     * checked, and used if the pool gets one of these later. A permutation: place p of a packed K
     * row of head h holds channel k_order[h * DK + p]. In each of the first DK/32 (rounded down)
     * blocks of 16 places, the first 8 codes have one bit more and the others one bit less. A layer
     * that shares a cache has the order of its source. Rows and queries are passed and returned in
     * natural order. quire_channel_order makes an order. */
    const uint16_t *k_order;
    /* (G, DK*DK/2), or NULL; copied. Query-aware rounding for K codecs with channel scales and
     * fewer than 8 bits: how the rounding error of one channel is passed on to others.
     * quire_channel_feedback computes it. Pages read the same with or without it. */
    const float *k_feedback;
    const quire_rope *k_rope; /* the RoPE that k_feedback was made for; copied */
} quire_layer;

/* Replaceable memory. `alloc` gets a power-of-two alignment and returns NULL on failure. */
typedef struct quire_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *memory);
    void *user;
} quire_allocator;

typedef struct quire_pool_options {
    size_t struct_size;        /* set by quire_pool_options_default */
    const quire_layer *layers; /* (n_layers) borrowed during the call */
    int32_t n_layers;
    quire_policy policy;
    size_t budget_bytes; /* limit for everything the pool allocates */
    quire_type raw;      /* of open pages and of the codec `raw`: f16 (default), bf16 or f32 */
    int32_t max_seqs;    /* sequences alive at once; default 64 */
    /* Longest sequence; 0: what the budget holds with the codecs given here, at most 4M. */
    int32_t max_tokens;
    int32_t max_batch_tokens;         /* rows of one batch; default 512 */
    int32_t max_batches;              /* batches in flight at once; default 1 */
    int32_t max_workers;              /* largest nth of append and attend; default 8 */
    const quire_allocator *allocator; /* NULL: aligned malloc */
    /* Highest kernel level: "ref", "neon", .. "neon_bf16"; NULL: $QUIRE_CPU, or the best. */
    const char *cpu;
    /* Keep the raw rows of the page sealed last, so that a trim into it is exact; default true.
     * If false, each sequence holds 64 raw rows less, and such a trim reopens the page from its
     * packed values. What quire_batch_commit rolls back is exact either way. */
    bool exact_trim;
} quire_pool_options;

QUIRE_API void quire_layer_default(quire_layer *layer);
QUIRE_API void quire_pool_options_default(quire_pool_options *options);
/* E_INVALID, E_UNSUPPORTED (a codec cannot serve a layer's head size), E_UNKNOWN (no such codec
 * number or kernel level), E_BUDGET, E_TOO_BIG, E_NOMEM. */
QUIRE_API quire_status quire_pool_create(quire_pool **pool, const quire_pool_options *options);
QUIRE_API void quire_pool_free(quire_pool *pool); /* NULL is fine */

/* The budget_bytes with which max_seqs sequences of max_tokens tokens each always fit: they may
 * grow in any steps, fork, and be trimmed or shifted one at a time. options->budget_bytes is not
 * read; max_tokens must be set. E_TOO_BIG, and as quire_pool_create. */
QUIRE_API quire_status quire_pool_price(const quire_pool_options *options, size_t *bytes);
/* The other way round: how many tokens, in whole pages, each of max_seqs sequences can have in a
 * pool created with these options, or with max_tokens set to the result. At most max_tokens, if
 * that is set. E_INVALID: max_tokens is less than a page. E_BUDGET: not even one page fits; the
 * message gives the smallest budget that is enough. */
QUIRE_API quire_status quire_pool_capacity(const quire_pool_options *options, int32_t *tokens);

/* ------------------------------------------------------------ sequences (stable) */

QUIRE_API quire_status quire_seq_create(quire_pool *pool, quire_seq **seq); /* E_NO_SLOT */
/* A second sequence with the same tokens that shares every page. O(pages), copies no rows. */
QUIRE_API quire_status quire_seq_fork(quire_seq *seq, quire_seq **child);
/* Cuts the sequence to its first n_tokens. Exact if the cut lies between pages, in the open page,
 * or in the page sealed last. A cut deeper inside a sealed page reopens that page from its packed
 * values (counted in quire_pool_stats.reopened_pages). E_GONE: a windowed layer no longer has
 * every token that the next query of the shorter sequence would see. E_NO_PAGES. */
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, int32_t n_tokens);
QUIRE_API quire_status quire_seq_free(quire_seq *seq); /* E_BUSY while in a batch; NULL is fine */
QUIRE_API int32_t quire_seq_length(const quire_seq *seq);

/* Operations after which a sequence differs from one that was computed from its tokens, from the
 * start and under the pool's policy. A model's rows depend on everything that their queries saw:
 * from the first token that such an operation touches, rows are no longer bit for bit what a fresh
 * computation gives; all rows before it are. Forks, lists, files and loading preserve this record;
 * a trim that removes all affected tokens clears it.
 *   TRIMMED      cut deep inside a sealed page, which was reopened from its packed values: affects
 *                tokens from the start of that page. Cuts between pages, in the open page, or in
 *                the page sealed last (while its raw rows are held) are exact
 *   REQUANTIZED  had a full page when quire_pool_requantize changed the policy: affects all tokens.
 *                Packing every page from its raw rows does not help, because the tokens after the
 *                first page were computed by queries that saw the earlier codecs
 *   RESEALED     loaded from a file with other codecs, sinks or raw type: affects all tokens. If
 *                the file has no full page and the same raw type, nothing is sealed again and
 *                nothing is recorded
 *   SHIFTED      a range in the middle was dropped: affects tokens from the start of the page where
 *                that range began
 * quire_seq_page_load records nothing: the caller is responsible for the pages. */
typedef enum quire_history {
    QUIRE_HISTORY_TRIMMED = 1,
    QUIRE_HISTORY_REQUANTIZED = 2,
    QUIRE_HISTORY_RESEALED = 4,
    QUIRE_HISTORY_SHIFTED = 8,
    QUIRE_HISTORY_ALL = 15
} quire_history;

/* "trimmed" ..; NULL for anything but one of the four. */
QUIRE_API const char *quire_history_name(quire_history one);
/* The operations recorded for a sequence, ORed; 0: none. *exact_tokens (may be NULL): how many
 * first tokens they left unaffected. */
QUIRE_API uint32_t quire_seq_history(const quire_seq *seq, int32_t *exact_tokens);

/* ------------------------------------------------------------ batches (stable) */

typedef struct quire_batch_item {
    quire_seq *seq;
    int32_t n_tokens; /* rows to append to this sequence; 0 is fine */
} quire_batch_item;

/* A tensor of B rows in item order. `row_stride` counts elements from one row to the next; 0: the
 * rows are dense. */
typedef struct quire_rows {
    const void *data;
    quire_type type;
    size_t row_stride;
} quire_rows;

/* E_INVALID (a sequence twice, a sequence of another pool, too many rows), E_BUSY, E_NO_SLOT,
 * E_NO_PAGES, E_TOO_BIG. */
QUIRE_API quire_status quire_batch_begin(quire_pool *pool, const quire_batch_item *items,
                                         size_t n_items, quire_batch **batch);
/* The same for left-padded tensors: in every tensor pad[i] rows of padding precede the rows of item
 * i. Input of shape (items, L) has pad[i] + n_tokens == L for every i. Padding is never read or
 * cached and has no position; it counts neither as tokens nor towards max_batch_tokens. Its rows
 * of `out` become zeros and those of `lse` -inf. */
QUIRE_API quire_status quire_batch_begin_padded(quire_pool *pool, const quire_batch_item *items,
                                                size_t n_items, const int32_t *pad,
                                                quire_batch **batch);
QUIRE_API int32_t quire_batch_rows(const quire_batch *batch); /* B, padding included */
/* Appends k (B,G,DK) and v (B,G,DV) to a layer. Layers may come in any order, but attend a layer
 * before appending to the next one. E_VALUE: a value is not finite or does not fit; the message
 * names layer, row and head, and the batch can then only be aborted. */
QUIRE_API quire_status quire_batch_append(quire_batch *batch, int32_t layer, quire_rows k,
                                          quire_rows v, int32_t ith, int32_t nth);

typedef struct quire_attend_args {
    quire_rows q;      /* (B,H,DK) */
    float *out;        /* (B,H,DV) */
    size_t out_stride; /* floats from row to row; 0: dense */
    /* NULL, or (B,H): ln of the softmax denominator, learned sink included; -inf: nothing seen. */
    float *lse;
    /* NULL, or added to the logits: mask[row * mask_row_stride + head * mask_head_stride + t]. -inf
     * hides token t. From each row at least (position of the row's last token + 1) floats are
     * read. */
    const float *mask;
    size_t mask_row_stride;
    size_t mask_head_stride; /* 0: one mask for all heads */
    bool mask_per_kv_head;   /* `head` counts KV heads: all query heads of a group share a mask */
} quire_attend_args;

/* A row that may see nothing gives zeros. A row of q that is not finite gives NaN in that row
 * only. */
QUIRE_API quire_status quire_batch_attend(quire_batch *batch, int32_t layer,
                                          const quire_attend_args *args, int32_t ith, int32_t nth);
/* Why append or attend failed, in whichever worker; "" if none did. */
QUIRE_API const char *quire_batch_error(const quire_batch *batch);
/* n_accept NULL: every token is accepted. Else item i keeps only its first n_accept[i] tokens
 * (speculative decoding). This is exact, also for windowed layers, if the cut lies between pages,
 * in the page that was open at begin, in the last page that the item fills, or behind it; otherwise
 * E_INVALID, and the batch stays open. On success the batch is over. E_STATE: a layer was not
 * appended to. To try several branches of one prefix, make them items of one batch: fork the prefix
 * once per branch, append each branch to its fork, attend, commit the winner with n_accept, and
 * free the others. */
QUIRE_API quire_status quire_batch_commit(quire_batch *batch, const int32_t *n_accept);
QUIRE_API void quire_batch_abort(quire_batch *batch); /* NULL is fine */

/* ------------------------------------------------------------ statistics (stable)
 * Counted from the buffers in use and the bytes that kernels read, never from nominal bits. */

typedef struct quire_pool_stats {
    size_t budget_bytes;   /* as requested */
    size_t total_bytes;    /* allocated */
    size_t arena_bytes;    /* of which: memory for pages */
    size_t sealed_bytes;   /* in use: packed pages */
    size_t open_bytes;     /* in use: raw pages being filled */
    size_t last_raw_bytes; /* in use: raw rows of the page sealed last (exact roll-back) */
    size_t sink_bytes;     /* in use: raw sinks */
    size_t free_bytes;
    size_t largest_free_bytes; /* largest contiguous free range */
    size_t shadow_bytes;       /* raw bytes held beside sealed pages for any other reason: 0 */
    int64_t tokens;            /* in all sequences; shared ones count once per sequence */
    int32_t n_seqs, n_batches;
    uint64_t sealed_pages;   /* times a page was sealed: packed layers x KV heads x pages */
    uint64_t reopened_pages; /* times a trim had to reopen a page from packed values */
    uint64_t resealed_pages; /* of sealed_pages: sealed from another codec's or a file's values */
} quire_pool_stats;

typedef struct quire_layer_stats {
    quire_pair pair;                /* resolved: never DEFAULT */
    const char *kernel;             /* the kernel that attends over this layer's packed pages */
    double bits_per_element;        /* of a sealed record, parameters and padding included */
    size_t record_bytes;            /* one page of one KV head */
    size_t sealed_bytes, raw_bytes; /* in use: packed; open, last_raw and sink rows */
    uint64_t packed_read, raw_read; /* bytes read by attend so far */
    uint64_t attended_rows;
    /* Jobs that the reference ran because no kernel of the pool's level serves these codecs: 0. */
    uint64_t fallbacks;
} quire_layer_stats;

QUIRE_API void quire_pool_get_stats(const quire_pool *pool, quire_pool_stats *stats);
QUIRE_API quire_status quire_layer_get_stats(const quire_pool *pool, int32_t layer,
                                             quire_layer_stats *stats);
QUIRE_API const char *quire_pool_isa(const quire_pool *pool); /* the kernels in use, e.g. "ref" */

/* ------------------------------------------------------------ files (stable)
 * A file holds a whole sequence: its token ids, packed pages, and the raw rows beside them (open
 * page, page sealed last, sinks). The restored sequence continues and trims bit for bit like the
 * one that was saved. docs/FORMAT.md defines every byte. Every part has a checksum, and nothing in
 * a file is used before it has been checked. */

typedef struct quire_save_options {
    size_t struct_size; /* set by quire_save_options_default */
    /* What computed this cache (weights, tokenizer, RoPE ..): any bytes, at most 1 MiB. Loading
     * compares them. */
    const void *identity;
    size_t identity_bytes;
    /* Ids of all tokens of the sequence, and of any that are known to follow; NULL: unknown. */
    const int32_t *tokens;
    int32_t n_tokens;
    /* Do not record query heads, scale, soft-cap, ALiBi and learned sinks, so that the file can be
     * loaded whatever they are. For a cache that comes from elsewhere. */
    bool any_attention;
} quire_save_options;

QUIRE_API void quire_save_options_default(quire_save_options *options);
/* Writes PATH.part, syncs it to disk, then renames it: after a crash at any moment PATH is either
 * the complete old file or the complete new one. Only its owner can read it. The sequence must not
 * be used meanwhile; other sequences may. options NULL: no identity, no tokens. E_BUSY: the
 * sequence is in a batch, or another writer has PATH. E_STATE: requantizing is not finished.
 * E_TOO_BIG: token ids and page tables take more than 1 GiB. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, const char *path,
                                      const quire_save_options *options);

/* A saved sequence, open for reading. One thread at a time. */
typedef struct quire_file quire_file;

typedef struct quire_file_section {
    const char *name;    /* "pages" */
    int32_t layer_class; /* for pages; else 0 */
    uint64_t offset, bytes;
    uint8_t checksum[16];
} quire_file_section;

typedef struct quire_file_info {
    uint32_t version, page_format;
    uint64_t bytes;
    const void *identity;
    size_t identity_bytes;
    const int32_t *tokens; /* (n_tokens) */
    int32_t n_tokens;
    int32_t length;       /* tokens in the cache */
    uint32_t history;     /* quire_history, ORed ... */
    int32_t exact_tokens; /* ... and the first tokens it left unaffected; `length` if 0 */
    /* (n_layers) Codecs are resolved. scale, softcap, alibi and sink_logits are not filled in;
     * k_order only for km4 and km3. */
    const quire_layer *layers;
    int32_t n_layers;
    quire_type raw;
    int32_t sinks;
    uint64_t packed_bytes, raw_bytes;   /* of pages; of open page, page sealed last and sinks */
    const quire_file_section *sections; /* (n_sections) in file order */
    int32_t n_sections;
} quire_file_info;

/* Reads and checks everything but the pages. E_FOREIGN, E_VERSION, E_TRUNCATED, E_CORRUPT, E_FORMAT
 * (valid checksums, invalid contents), E_TOO_BIG (more than 1 GiB before the pages, of which
 * nothing is read), E_IO, E_NOMEM. */
QUIRE_API quire_status quire_file_open(quire_file **file, const char *path);
QUIRE_API void quire_file_close(quire_file *file); /* NULL is fine */
/* The pointers in *info are valid until the file is closed. */
QUIRE_API void quire_file_get_info(const quire_file *file, quire_file_info *info);
/* Reads the pages too and checks every byte and every value. */
QUIRE_API quire_status quire_file_check(quire_file *file);
/* One page of a layer and KV head: its packed record, as quire_page_decode takes it (raw layers:
 * rows of the raw type). For km4 and km3, quire_page_decode then gives channels in the layer's
 * k_order. E_GONE: not in the file, because it had left the window. E_INVALID: not sealed. */
QUIRE_API quire_status quire_file_page(quire_file *file, int32_t layer, int32_t head, int32_t page,
                                       void *record, size_t n_bytes);
/* The same page, or the open page, as rows: raw where the file has raw rows, else decoded. k is
 * (64,DK), v is (64,DV); *n_rows of them are valid. If a page has left the window, its sinks may
 * still be there, and *n_rows counts those. Rows that left a window before their page was made are
 * zeros. */
QUIRE_API quire_status quire_file_rows(quire_file *file, int32_t layer, int32_t head, int32_t page,
                                       float *k, float *v, int32_t *n_rows);

typedef struct quire_load_options {
    size_t struct_size; /* set by quire_load_options_default */
    const void *identity;
    size_t identity_bytes; /* E_IDENTITY unless the file has the same bytes ... */
    bool any_identity;     /* ... or this is set, because the caller has compared them */
    /* If codecs, sinks or raw type differ, decode each page and seal it with the pool's codecs
     * (counted in quire_pool_stats.resealed_pages) instead of failing with E_CODEC. */
    bool reseal;
} quire_load_options;

QUIRE_API void quire_load_options_default(quire_load_options *options);
/* Makes a new sequence from a file. The whole file is read into fresh pages and checked before the
 * sequence exists; on failure the pool is unchanged. E_IDENTITY (also for layers of another shape
 * or window), E_CODEC, E_CORRUPT, E_FORMAT, E_TRUNCATED, E_TOO_BIG, E_NO_SLOT, E_NO_PAGES, E_IO,
 * E_NOMEM. options NULL: the defaults. */
QUIRE_API quire_status quire_seq_load(quire_pool *pool, quire_file *file,
                                      const quire_load_options *options, quire_seq **seq);

/* ------------------------------------------------------------ lists (stable)
 * A list of sequences that are decoded together. The array belongs to the caller; its sequences are
 * ordinary ones, to be put into quire_batch_item in this order. Each call costs O(pages), copies no
 * rows, and either succeeds for all sequences or changes nothing. Only one thread at a time may use
 * a list and its sequences. */

typedef struct quire_list {
    quire_seq **seq; /* (capacity) of which the first n are in use, all of one pool */
    int32_t n, capacity;
} quire_list;

/* Appends a fork of each of the n sequences, which stay as they are. The same sequence may occur
 * several times (branches of one prefix). E_TOO_BIG: capacity; E_NO_SLOT, E_BUSY. */
QUIRE_API quire_status quire_list_merge(quire_list *list, quire_seq *const *seqs, int32_t n);
/* Forks the sequence at `index`. */
QUIRE_API quire_status quire_list_extract(const quire_list *list, int32_t index, quire_seq **seq);
/* Keeps list->seq[keep[0]], list->seq[keep[1]] .. in that order and frees the others. E_INVALID: an
 * index occurs twice or is out of range; E_BUSY: one of the others is in a batch. */
QUIRE_API quire_status quire_list_filter(quire_list *list, const int32_t *keep, int32_t n_keep);
/* Moves all sequences of `other` to the end of `list`; `other` is then empty. E_TOO_BIG. */
QUIRE_API quire_status quire_list_extend(quire_list *list, quire_list *other);
QUIRE_API quire_status quire_list_clear(quire_list *list); /* frees all; E_BUSY */

/* ------------------------------------------------------------ calibrated K (experimental)
 * The two inputs of quire_layer that are measured once per model: k_order and k_feedback. */

/* An order for one K head: the 8*(DK/32) most important channels get the wider codes, as many of
 * the least important ones the narrower codes (of two equal channels the lower one counts as more
 * important). A good measure of importance is the range of a channel's K over a page times the
 * root mean square of q in that channel, over some text. The order must not change while pages
 * exist. E_VALUE: NaN. */
QUIRE_API quire_status quire_channel_order(const float *importance /* (k_dim) */, int32_t k_dim,
                                           uint16_t *order /* (k_dim) */);

/* Error feedback for one K head from the second moment of its queries: moment[i * DK + j] is the
 * mean of q[i] * q[j] over the queries that attend to a sequence's first page. Queries that attend
 * to a later page are assumed to be the same, turned by `rope` by as many positions as the page
 * lies after the first (NULL: nothing turns). Rounding errors of K then go into directions that
 * queries hardly use. E_VALUE: not finite, or not a second moment. E_NOMEM. */
QUIRE_API quire_status quire_channel_feedback(const float *moment /* (k_dim, k_dim) */,
                                              const quire_rope *rope, int32_t k_dim,
                                              float *feedback /* (k_dim*k_dim/2) */);

/* k_order, k_feedback and k_rope of a model's layers as a file, for programs that do not measure
 * them themselves (docs/LLAMA.md). Layers without k_order are written as empty. E_INVALID, E_IO,
 * E_BUSY (another writer has PATH), E_TOO_BIG (more than 1 GiB). */
QUIRE_API quire_status quire_calibration_file_write(const char *path, const quire_layer *layers,
                                                    int32_t n_layers);
/* *layers: (n_layers) with n_kv_heads, k_dim and what was measured; n_kv_heads is 0 for empty ones.
 * One block: free() it. E_IO, E_FOREIGN, E_VERSION, E_TRUNCATED, E_CORRUPT, E_NOMEM. */
QUIRE_API quire_status quire_calibration_file_read(const char *path, quire_layer **layers,
                                                   int32_t *n_layers);

/* ------------------------------------------------------------ requantize (experimental)
 * quire_pool_requantize gives a pool in use another policy. It changes the codecs of every layer
 * that did not name its own: raw to quantized, or any codec to any other, also if the pool is full,
 * its windows have wrapped or pages are shared. From then on pages are sealed under the new policy,
 * and each quire_pool_requantize_step converts some of the older pages. Meanwhile the pool can be
 * used as usual: attention reads pages of both kinds, each exactly.
 * - Lengths, positions, windows, forks and open pages stay. A page that several sequences share
 *   is converted once.
 * - Pages whose raw rows are available (raw pages, and the page sealed last) are packed from those.
 *   A raw cache that becomes quantized is therefore bit for bit what the same rows give when they
 *   are appended to a quantized pool, provided no page was packed before. (A model would have
 *   computed other rows there: see quire_history.) All other pages are decoded and packed again,
 *   and the errors of both codecs add up. A layer whose codecs stay keeps its bytes.
 * - Pages are converted in the order of sequences (by their slot in the pool), then positions.
 *   Pages of sequences that are in a batch wait for a later call. So between the first and the
 *   last step results depend on when the steps run; after the last step they no longer do, except
 *   for which pages had their raw rows available. */

typedef struct quire_requantize_stats {
    /* Pages of 64 tokens in all layers of one window; shared ones count once. */
    int64_t pages_done, pages_left;
    size_t bytes_before, bytes_after; /* of the pages done, raw sinks included */
} quire_requantize_stats;

/* With the policy that the pool already has, this does nothing and returns OK. E_BUSY: a batch is
 * in flight. E_STATE: an earlier change is not finished; finish it, or take it back by passing the
 * previous policy. E_VALUE: an open page holds a value that the new codecs cannot. E_UNSUPPORTED,
 * E_UNKNOWN, E_INVALID. */
QUIRE_API quire_status quire_pool_requantize(quire_pool *pool, const quire_policy *policy);
/* Converts up to max_pages pages while holding the pool's lock. `stats` (may be NULL) counts since
 * the last quire_pool_requantize. Needs room for one more page, or none if pages become smaller.
 * E_NO_PAGES: none of the remaining pages finds room. E_VALUE: a value does not fit the new codec;
 * that page and all after it stay as they are. Such a change can be taken back; until then the
 * pool can still be used. */
QUIRE_API quire_status quire_pool_requantize_step(quire_pool *pool, int32_t max_pages,
                                                  quire_requantize_stats *stats);

/* ------------------------------------------------------------ context shift (experimental) */

/* Drops tokens from .. to-1 of a sequence: the tokens after them move down, with K turned to its
 * new positions. `rope` has one entry for all layers (n_rope 1) or one for each. Only this sequence
 * changes; pages before `from` stay shared.
 * - The rows after the cut are decoded, turned and packed again, so each shift adds the codec error
 *   of K once more, and raw pages are rounded once more (docs/ARCHITECTURE.md has measured errors).
 *   V keeps its bytes if from and to are multiples of 64.
 * - The rows after the cut still contain what later layers computed from the dropped tokens: the
 *   result approximates a prompt without them. Do not use it with a model whose frequencies depend
 *   on the length of the context: there it is wrong.
 * - Needs free room for one page, plus the pages that are shared with other sequences.
 * - to == length is a trim.
 * E_UNSUPPORTED: K has two bits, which a few shifts would turn into noise. E_GONE: a windowed layer
 * no longer holds what the shorter sequence would see. E_BUSY, E_NO_PAGES, E_INVALID. */
QUIRE_API quire_status quire_seq_shift(quire_seq *seq, int32_t from, int32_t to,
                                       const quire_rope *rope, int32_t n_rope);

/* ------------------------------------------------------------ page records (experimental)
 * A page record holds 64 tokens of one layer and KV head, outside any pool: for tests, for moving
 * pages, and for reading them elsewhere. A record does not know channel orders: K rows of km4 and
 * km3 go in and come out in the record's own order, where place p is channel k_order[p] of the head
 * (quire_layer). */

typedef struct quire_page_shape {
    quire_pair pair;
    int32_t k_dim, v_dim;
    quire_type raw; /* what `raw` stands for, and the type of the scales of a8 a4 a2 */
} quire_page_shape;

QUIRE_API quire_status quire_page_bytes(const quire_page_shape *shape, size_t *bytes);
/* Packs 64 rows of K (64,DK) and V (64,DV). The first `skip` tokens (raw sinks) get zero bits.
 * E_VALUE: a value is not finite or too large for the codec. The same rows give the same bytes on
 * every machine. */
QUIRE_API quire_status quire_page_encode(const quire_page_shape *shape, const float *k,
                                         const float *v, int32_t skip, void *page);
QUIRE_API quire_status quire_page_decode(const quire_page_shape *shape, const void *page, float *k,
                                         float *v);

/* ------------------------------------------------------------ page exchange (experimental) */

/* The codes of a page as other systems lay them out, row by row in token order (T = 64, D the head
 * size, g the scale group):
 *   a8 a4 a2   mlx: codes u32 (T, D*bits/32), a little-endian bit stream; scales and biases
 *              (T, D/g) of type `raw`
 *   q8_0 q4_0  ggml: codes are blocks (T, D/32 * block bytes) with their scales inside; scales and
 *              biases are unused
 *   tq tqp     mlx-vlm's state arrays, with norms widened to f32: codes u32
 *              (T, ceil(D*mse_bits/32)), a bit stream; norms f32 (T). tqp also has residual norms
 *              f32 (T) and signs u32 (T, ceil(D/32)). K of tq also has means f32 (D), added to
 *              every row after it is rotated back; mlx-vlm has none: on import NULL means zeros
 * Other codecs: E_UNSUPPORTED. Unused pointers may be NULL. */
typedef struct quire_arrays {
    void *codes;
    void *scales, *biases;
    float *norms, *residual_norms;
    uint32_t *signs;
    float *means;
} quire_arrays;

typedef enum quire_side { QUIRE_SIDE_K = 1, QUIRE_SIDE_V = 2 } quire_side;

QUIRE_API quire_status quire_page_export(const quire_page_shape *shape, quire_side side,
                                         const void *page, const quire_arrays *out);
/* Writes one side's sections of `page` and leaves the other side's alone. E_VALUE: a scale, bias,
 * norm or mean is not finite or does not fit, or a scale and a bias decode to values that do not.
 */
QUIRE_API quire_status quire_page_import(const quire_page_shape *shape, quire_side side,
                                         const quire_arrays *in, void *page);

/* Sealed page `page` (tokens 64*page ..) of all layers, copied out of a sequence, or appended to a
 * sequence whose length is a multiple of 64. The bytes are those that the pool holds; page 0 also
 * has the raw sinks. Loading checks the size and that every value is finite and within what its
 * codec stores (E_FORMAT), so that no bytes can do harm; the caller must make sure that they are
 * the right ones. Saving fails with E_INVALID (not sealed, or another size), E_GONE (also if the
 * page has lost some of its tokens to a window), and E_STATE for a page that
 * quire_pool_requantize_step has not reached yet. */
QUIRE_API size_t quire_seq_page_bytes(const quire_pool *pool, int32_t page);
QUIRE_API quire_status quire_seq_page_save(const quire_seq *seq, int32_t page, void *bytes,
                                           size_t n_bytes);
QUIRE_API quire_status quire_seq_page_load(quire_seq *seq, const void *bytes, size_t n_bytes);
/* For a cache that was filled from elsewhere and has no rows for tokens that had already left a
 * window: marks all tokens that no later query can see as gone, so that a trim back to them is
 * refused (E_GONE). E_BUSY. E_STATE: another sequence shares its pages. */
QUIRE_API quire_status quire_seq_forget(quire_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
