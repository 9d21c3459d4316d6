/* quire.h: a language model's K/V cache, quantized and paged, with attention computed on the
 * packed pages.
 *
 * The life of a step
 *   quire_batch_begin    plan: checks everything, reserves every page; fails before anything is
 *                        written
 *   quire_batch_append    per layer: the new K and V rows; a page that fills is packed ("sealed")
 *                        at once
 *   quire_batch_attend   per layer: softmax(q K^T) V over raw and packed pages
 *   quire_batch_commit   the tokens now belong to their sequences;  quire_batch_abort: nothing
 *                        happened
 *
 * Caveats, before the functions
 * - A page is 64 consecutive tokens of one sequence. The page being filled is open: its rows are
 *   raw. A full page is sealed by its layer's codecs and never changes again, unless the pool is
 *   given others (quire_pool_requantize).
 * - A query at position i sees token t packed if t/64 < i/64, and its own page raw. Results
 *   therefore depend on positions alone: not on how a prompt is cut into batches, on batch
 *   neighbours, on the number of workers, or on which pages the pool handed out. All of this
 *   holds bit for bit on one machine. Four calls make the values of tokens depend on history: a
 *   trim deep into a sealed page, quire_pool_requantize, loading with `reseal`, quire_seq_shift.
 *   A sequence and its files remember them (quire_history).
 * - A pool takes all its memory when it is created, within its byte budget, and allocates
 *   nothing afterwards.
 * - Threads: functions on one pool may be called from any thread (a lock guards the page
 *   tables), but one sequence or one batch is used by one thread at a time. The exceptions are
 *   quire_batch_append and quire_batch_attend: all of the workers 0..nth-1 call them side by
 *   side, and all must have returned before the next call on that batch.
 * - Lifetime: sequences and batches belong to their pool and die with it.
 * - Errors: every function that can fail returns a quire_status and changes nothing when it
 *   fails. quire_last_error() says why, in words, for the last failure in the calling thread.
 *   The library never prints, exits or aborts.
 * - Pages are little-endian and the same on every machine; docs/FORMAT.md gives every bit.
 *
 * Shape letters: B rows of a batch, H query heads, G KV heads, DK and DV the sizes of a K and a
 * V head.
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

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0
#define QUIRE_PAGE_FORMAT 2 /* version of docs/FORMAT.md */

enum { QUIRE_PAGE_TOKENS = 64, QUIRE_DIM_MIN = 32, QUIRE_DIM_MAX = 576, QUIRE_DIM_STEP = 16 };

QUIRE_API const char *quire_version(void); /* "0.1.0" */

/* ------------------------------------------------------------------ status */

#define QUIRE_STATUS_MAP(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(E_INVALID, 1, "invalid argument")                                                            \
    X(E_UNSUPPORTED, 2, "codec cannot serve this shape or side")                                   \
    X(E_UNKNOWN, 3, "unknown name")                                                                \
    X(E_NOMEM, 4, "out of memory")                                                                 \
    X(E_TOO_BIG, 5, "size does not fit")                                                           \
    X(E_BUDGET, 6, "byte budget too small")                                                        \
    X(E_NO_PAGES, 7, "pool is out of pages")                                                       \
    X(E_NO_SLOT, 8, "no free sequence or batch")                                                   \
    X(E_BUSY, 9, "sequence is in a batch")                                                         \
    X(E_STATE, 10, "call out of order")                                                            \
    X(E_VALUE, 11, "value is not finite or does not fit")                                          \
    X(E_GONE, 12, "page has left the window")                                                      \
    X(E_FORMAT, 13, "bytes are not a page of this pool")                                           \
    X(E_IO, 14, "file cannot be read or written")                                                  \
    X(E_MODEL, 15, "not a model that can run")                                                     \
    X(E_ABORTED, 16, "stopped by the caller")                                                      \
    X(E_FOREIGN, 17, "not a saved cache")                                                          \
    X(E_VERSION, 18, "file is of another format")                                                  \
    X(E_TRUNCATED, 19, "file is cut off")                                                          \
    X(E_CORRUPT, 20, "file is damaged")                                                            \
    X(E_IDENTITY, 21, "cache belongs to another model")                                            \
    X(E_CODEC, 22, "cache was saved under other codecs")                                           \
    X(E_HISTORY, 23, "cache is not what computing its text gives")                                 \
    X(E_DEVICE, 24, "GPU is missing or failed")

typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, value, text) QUIRE_##name = value,
    QUIRE_STATUS_MAP(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;

QUIRE_API const char *quire_status_name(quire_status status); /* "QUIRE_E_NO_PAGES" */
QUIRE_API const char *quire_status_text(quire_status status); /* "pool is out of pages" */
QUIRE_API const char *
quire_last_error(void); /* the calling thread's last failure in words; "" before the first */

/* ------------------------------------------------------------------ codecs */

typedef enum quire_type { QUIRE_F32 = 0, QUIRE_F16 = 1, QUIRE_BF16 = 2 } quire_type;

/* X(enum, number in files, name, family, bits, group, sides): sides 1 = K, 2 = V, 3 = both.
 * docs/FORMAT.md defines each family; `quire codecs` prints this table. */
#define QUIRE_CODEC_MAP(X)                                                                         \
    X(RAW, 1, "raw", RAW, 0, 0, 3) /* the pool's raw type */                                       \
    X(F32, 2, "f32", RAW, 32, 0, 3)                                                                \
    X(F16, 3, "f16", RAW, 16, 0, 3)                                                                \
    X(BF16, 4, "bf16", RAW, 16, 0, 3)                                                              \
    X(KC8, 16, "kc8", CHANNEL, 8, 0, 1) /* K: scale and zero per channel and page */               \
    X(KC4, 17, "kc4", CHANNEL, 4, 0, 1)                                                            \
    X(KC3, 18, "kc3", CHANNEL, 3, 0, 1)                                                            \
    X(KC2, 19, "kc2", CHANNEL, 2, 0, 1)                                                            \
    X(KM4, 20, "km4", CHANNEL, 4, 0,                                                               \
      1) /* K: the same with 5, 4 and 3 bits, in an order of channels: quire_layer */              \
    X(KM3, 21, "km3", CHANNEL, 3, 0, 1) /* 4, 3 and 2 bits */                                      \
    X(VT8, 24, "vt8", UNIFORM, 8, 0,                                                               \
      3) /* V: rotated, uniform codes, one scale per token (vt8: K too) */                         \
    X(VT4, 25, "vt4", UNIFORM, 4, 0, 2)                                                            \
    X(VT3, 26, "vt3", UNIFORM, 3, 0, 2)                                                            \
    X(VT2, 27, "vt2", UNIFORM, 2, 0, 2)                                                            \
    X(TQ4, 32, "tq4", BOOK, 4, 0, 3) /* TurboQuant, mse: rotated, Lloyd-Max codebook */            \
    X(TQ3, 33, "tq3", BOOK, 3, 0, 3)                                                               \
    X(TQ2, 34, "tq2", BOOK, 2, 0, 3)                                                               \
    X(TQP4, 36, "tqp4", PROD, 4, 0,                                                                \
      1) /* TurboQuant, prod: one bit fewer of mse, and a sign of the residual */                  \
    X(TQP3, 37, "tqp3", PROD, 3, 0, 1)                                                             \
    X(A8G32, 48, "a8g32", AFFINE, 8, 32, 3) /* as mlx.core.quantize */                             \
    X(A8, 49, "a8", AFFINE, 8, 64, 3)                                                              \
    X(A8G128, 50, "a8g128", AFFINE, 8, 128, 3)                                                     \
    X(A4G32, 51, "a4g32", AFFINE, 4, 32, 3)                                                        \
    X(A4, 52, "a4", AFFINE, 4, 64, 3)                                                              \
    X(A4G128, 53, "a4g128", AFFINE, 4, 128, 3)                                                     \
    X(A2G32, 54, "a2g32", AFFINE, 2, 32, 3)                                                        \
    X(A2, 55, "a2", AFFINE, 2, 64, 3)                                                              \
    X(A2G128, 56, "a2g128", AFFINE, 2, 128, 3)                                                     \
    X(Q8_0, 64, "q8_0", BLOCK, 8, 32, 3) /* as ggml */                                             \
    X(Q4_0, 65, "q4_0", BLOCK, 4, 32, 3)

typedef enum quire_codec {
    QUIRE_CODEC_DEFAULT = 0, /* in a quire_layer: as the policy says */
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
    int32_t bits;        /* of one code, for km on average; 0 for raw, whose type decides */
    int32_t group;       /* channels that share a scale; 0: none do */
    bool for_k, for_v;
    bool ordered; /* km: a layer needs k_order */
} quire_codec_info;

QUIRE_API bool quire_codec_is_ordered(
    quire_codec codec); /* km: a layer needs k_order; false for unknown numbers */
QUIRE_API size_t quire_codec_count(void);
QUIRE_API quire_status quire_codec_at(size_t index, quire_codec_info *info);
QUIRE_API const char *quire_codec_name(quire_codec codec); /* NULL for an unknown number */

typedef struct quire_preset_info {
    const char *name;
    quire_pair pair;
    int32_t sinks;
} quire_preset_info;

QUIRE_API size_t quire_preset_count(void);
QUIRE_API quire_status quire_preset_at(size_t index, quire_preset_info *info);

/* ------------------------------------------------------- policy: which codecs serve which layer */

typedef struct quire_policy {
    quire_pair pair;     /* every layer not named below */
    quire_pair windowed; /* layers with a sliding window: raw:raw unless changed */
    quire_pair edge;     /* the first `edge_first` and last `edge_last` layers */
    int32_t edge_first, edge_last;
    int32_t sinks; /* 0..64 first tokens that stay raw beside a packed page 0 */
} quire_policy;

/* "k8v4" (a preset) or "kc8:vt4" (K codec : V codec), with 4 sinks; "none" and "raw:raw" have 0.
 * E_UNKNOWN, E_UNSUPPORTED. */
QUIRE_API quire_status quire_policy_parse(const char *text, quire_policy *policy);

/* ------------------------------------------------------------------ one page, outside any pool
 * A page record holds 64 tokens of one layer and KV head. Used to move pages, to test, and to
 * read them elsewhere. A record knows nothing of orders: K rows of km4 and km3 go in and come
 * out with their channels as they stand in the record, place p being channel k_order[p] of the
 * head (quire_layer). */

typedef struct quire_page_shape {
    quire_pair pair;
    int32_t k_dim, v_dim;
    quire_type raw; /* what `raw` stands for, and the type of the scales of a8 a4 a2 */
} quire_page_shape;

QUIRE_API quire_status quire_page_bytes(const quire_page_shape *shape, size_t *bytes);
/* Pack 64 rows of K (64,DK) and V (64,DV). The first `skip` tokens (raw sinks) get zero bits.
 * E_VALUE: a value is not finite or too large for the codec. The same rows give the same bytes
 * on every machine. */
QUIRE_API quire_status quire_page_encode(const quire_page_shape *shape, const float *k,
                                         const float *v, int32_t skip, void *page);
QUIRE_API quire_status quire_page_decode(const quire_page_shape *shape, const void *page, float *k,
                                         float *v);

/* The same codes as other systems lay them out, row by row in token order (T = 64, D the head
 * size, g the group):
 *   a8 a4 a2   codes u32 (T, D*bits/32) little-endian bit stream, scales and biases (T, D/g) of
 *              type `raw`: mlx
 *   q8_0 q4_0  codes = ggml blocks (T, D/32 * block bytes), scales inside; scales, biases unused
 *   tq tqp     codes u32 (T, ceil(D*mse_bits/32)) bit stream, norms f32 (T); tqp also residual
 *              norms f32 (T) and signs u32 (T, ceil(D/32)): mlx-vlm's state arrays, its norms
 *              widened to f32. K of tq: also means f32 (D), added to every row after it is
 *              rotated back; mlx-vlm has none, and on import NULL stands for zeros
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
/* Writes one side's sections of `page` and leaves the other side's alone. E_VALUE: a scale,
 * bias, norm or mean is not finite or does not fit. */
QUIRE_API quire_status quire_page_import(const quire_page_shape *shape, quire_side side,
                                         const quire_arrays *in, void *page);

/* ------------------------------------------------------------------ pool */

typedef struct quire_pool quire_pool;
typedef struct quire_seq quire_seq;
typedef struct quire_batch quire_batch;

/* How a layer's K rows were rotated by their positions before they were stored. Pair j of a head
 * turns by position * scale * frequency[j] radians. Pairs are (0, n_rot/2), (1, n_rot/2 + 1) and
 * so on or, interleaved, (0, 1), (2, 3), counted from channel `first`. For YaRN and the like
 * give their frequencies; the factor on K stays. */
typedef struct quire_rope {
    int32_t first, n_rot; /* channels first .. first + n_rot - 1 turn; n_rot 0: none do (ALiBi, no
                             positions) */
    bool interleaved;
    float base;             /* frequency[j] = base ^ (-2 j / n_rot), unless given */
    float scale;            /* 0: 1 */
    const float *frequency; /* (n_rot/2), or NULL */
} quire_rope;

typedef struct quire_layer {
    int32_t n_heads, n_kv_heads; /* H, G: H is a multiple of G */
    int32_t k_dim, v_dim;        /* 32..576, multiples of 16 */
    int32_t window;              /* 0: none; else a query at i sees t with i - t < window ... */
    int32_t keep;                /* ... and the first `keep` tokens for ever */
    float scale;                 /* of the logits; 0: 1/sqrt(k_dim) */
    float softcap;               /* 0: none; else logits become softcap * tanh(logit / softcap) */
    const float *alibi;          /* (H) slopes, or NULL; copied. logit += slope * (t - i) */
    const float *sink_logits;    /* (H) learned sinks, or NULL; copied. Each adds exp(sink) to its
                                    head's denominator */
    quire_codec k, v;            /* QUIRE_CODEC_DEFAULT: as the policy says */
    int32_t
        share; /* -1; else this layer attends over that earlier layer's cache and stores nothing */
    /* (G, DK) for km4 and km3, NULL or unused for other codecs; copied. Place p of a packed K
     * row of head h holds channel k_order[h * DK + p]: a permutation. In the first DK/32
     * (rounded down) blocks of 16 places, the first 8 have codes of a bit more, the others of a
     * bit less. A layer that shares has its source's. Rows and queries are given, and come back,
     * in natural order. quire_channel_order makes one. */
    const uint16_t *k_order;
    /* (G, DK*DK/2), or NULL; copied. How rounding errors of K's channels are passed on to
     * others, for K codecs of fewer than 8 bits with channel scales; quire_channel_feedback
     * makes it. What is stored reads the same with or without it. */
    const float *k_feedback;
    const quire_rope *k_rope; /* that k_feedback was made with; copied */
} quire_layer;

/* An order for one K head: the 8*(DK/32) channels of largest importance get the wider codes,
 * those of least the narrower ones (of equal channels the lower is the more important). A good
 * measure is the range of a channel's K over a page, times the root mean square of q in it, over
 * some text; the order must not change while pages last. E_VALUE: NaN. */
QUIRE_API quire_status quire_channel_order(const float *importance /* (k_dim) */, int32_t k_dim,
                                           uint16_t *order /* (k_dim) */);

/* Feedback for one K head from the second moment of the queries that will meet it: moment[i * DK
 * + j] is the mean of q[i] * q[j] over the queries that look at a sequence's first page. Those
 * that look at a later page are taken to be the same, turned by `rope` as far as the page lies
 * behind the first (NULL: nothing turns). Errors of K then fall where queries do not look.
 * E_VALUE: not finite, or not a second moment. E_NOMEM. */
QUIRE_API quire_status quire_channel_feedback(const float *moment /* (k_dim, k_dim) */,
                                              const quire_rope *rope, int32_t k_dim,
                                              float *feedback /* (k_dim*k_dim/2) */);

/* Replaceable memory. `alloc` gets a power-of-two alignment and returns NULL when it cannot. */
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
    size_t budget_bytes; /* for everything the pool allocates */
    quire_type raw;      /* of open pages and of the codec `raw`: f16 (default), bf16 or f32 */
    int32_t max_seqs;    /* sequences alive at once; default 64 */
    int32_t max_tokens;  /* of one sequence; 0: as many as the budget can hold in the codecs it is
                            made with,  and no more than 4M */
    int32_t max_batch_tokens;         /* rows of one batch; default 512 */
    int32_t max_batches;              /* batches in flight at once; default 1 */
    int32_t max_workers;              /* the largest nth of store and attend; default 8 */
    const quire_allocator *allocator; /* NULL: aligned malloc */
    const char *cpu; /* highest kernel level: "ref", "neon", .. "neon_bf16"; NULL: $QUIRE_CPU, or
                        the best */
    /* Hold the raw rows of the page sealed last, so that a trim into it is exact; default.
     * Without, a sequence holds 64 raw rows less, and such a trim reopens the page from its
     * packed values. What quire_batch_commit takes back is exact either way. */
    bool exact_trim;
} quire_pool_options;

QUIRE_API void quire_layer_default(quire_layer *layer);
QUIRE_API void quire_pool_options_default(quire_pool_options *options);
/* E_INVALID, E_UNSUPPORTED (a codec cannot serve a layer's shape), E_BUDGET, E_TOO_BIG, E_NOMEM. */
QUIRE_API quire_status quire_pool_create(quire_pool **pool, const quire_pool_options *options);
QUIRE_API void quire_pool_free(quire_pool *pool); /* NULL is fine */

/* The budget_bytes with which max_seqs sequences of max_tokens tokens each always fit, as long as
 * they only grow (a fork that is appended to adds a page of raw rows). options->budget_bytes is not
 * read; max_tokens must be set. E_TOO_BIG, and as quire_pool_create. */
QUIRE_API quire_status quire_pool_price(const quire_pool_options *options, size_t *bytes);
/* The other way round: how many tokens, in whole pages, each of max_seqs sequences can have within
 * budget_bytes. At most max_tokens, if that is set. E_BUDGET: not one page; the message gives the
 * least. */
QUIRE_API quire_status quire_pool_capacity(const quire_pool_options *options, int32_t *tokens);

/* ------------------------------------------------------------------ sequences */

QUIRE_API quire_status quire_seq_create(quire_pool *pool, quire_seq **seq); /* E_NO_SLOT */
/* A second sequence with the same tokens, sharing every page. O(pages), copies no payload. */
QUIRE_API quire_status quire_seq_fork(quire_seq *seq, quire_seq **child);
/* Keep the first n_tokens. Exact while the cut lies in the open page or the page sealed last, or
 * between pages; deeper inside a sealed page, that page is reopened from its packed values (counted
 * in quire_pool_stats.reopened_pages). E_GONE: a windowed layer no longer has every token that the
 * next query of the shorter sequence would see. E_NO_PAGES. */
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, int32_t n_tokens);
/* For a cache that comes from elsewhere, and that had nothing to put where tokens have left a
 * window: counts all tokens that no later query can see as gone, so that a trim back to them is
 * refused (E_GONE). E_BUSY. E_STATE: another sequence shares its pages. */
QUIRE_API quire_status quire_seq_forget(quire_seq *seq);
QUIRE_API quire_status quire_seq_free(quire_seq *seq); /* E_BUSY while in a batch; NULL is fine */
QUIRE_API int32_t quire_seq_length(const quire_seq *seq);

/* What was done to a sequence that computing its tokens from the start, under the pool's policy,
 * would not have done. A model's rows depend on all that their queries saw, so from the first token
 * that such a call touches on, rows are no longer bit for bit what a fresh computation gives; those
 * before it are. Forks, lists, files and loading carry this along; a trim that takes all such
 * tokens away clears it.
 *   TRIMMED      cut deep inside a sealed page, which was reopened from its packed values: from the
 *                start of that page on. Cuts between pages, in the open page, or in the page sealed
 *                last (while its raw rows are kept) are exact
 *   REQUANTIZED  had a full page when quire_pool_requantize changed the policy: from token 0 on.
 *                Packing every page from its raw rows does not help: the tokens behind the first
 *                page were computed by queries that saw the form before
 *   RESEALED     loaded from a file of other codecs, sinks or raw type: from token 0 on. If the
 *                file has no full page and the same raw type, nothing is sealed again, or noted
 *   SHIFTED      a middle range was dropped: from the start of the page where it began
 * quire_seq_page_load takes its caller's word, and notes nothing. */
typedef enum quire_history {
    QUIRE_HISTORY_TRIMMED = 1,
    QUIRE_HISTORY_REQUANTIZED = 2,
    QUIRE_HISTORY_RESEALED = 4,
    QUIRE_HISTORY_SHIFTED = 8,
    QUIRE_HISTORY_ALL = 15
} quire_history;

QUIRE_API const char *
quire_history_name(quire_history one); /* "trimmed" ..; NULL for anything but one of the four */
/* The calls that left a mark, ORed; 0: none. *exact_tokens (may be NULL): how many first tokens
 * they left alone. */
QUIRE_API uint32_t quire_seq_history(const quire_seq *seq, int32_t *exact_tokens);

/* Drop tokens from .. to-1 of a sequence: those behind them move down, with K turned to its new
 * position. `rope` has one entry for all layers (n_rope 1) or one for each. Only this sequence
 * changes; pages before `from` stay shared.
 * - The rows behind the cut are decoded, turned and packed again: codec errors of K add up once
 *   more for each shift, and raw pages lose a rounding (docs/ARCHITECTURE.md has the errors). V
 *   keeps its bytes if from and to are multiples of 64.
 * - What later layers computed from the dropped tokens stays in the rows behind: this is an
 *   approximation of a prompt without them. For a model whose frequencies depend on the length
 *   of its context it is wrong: do not use it there.
 * - Needs room for one page more than there is, and as many as are shared with other sequences.
 *   to == length: a trim.
 * E_UNSUPPORTED: K has two bits, which a few shifts would turn into noise. E_GONE: a windowed
 * layer no longer holds what the shorter sequence would see. E_BUSY, E_NO_PAGES, E_INVALID. */
QUIRE_API quire_status quire_seq_shift(quire_seq *seq, int32_t from, int32_t to,
                                       const quire_rope *rope, int32_t n_rope);

/* A list of sequences that are decoded together. The array is the caller's; its sequences are
 * ordinary ones, to be put into quire_batch_item in this order. Each call costs O(pages), copies
 * no payload, and succeeds for all or changes nothing. A list and its sequences are used by one
 * thread at a time. */
typedef struct quire_list {
    quire_seq **seq; /* (capacity) of which the first n are in use, all of one pool */
    int32_t n, capacity;
} quire_list;

/* Append a fork of each of the n sequences (the same one may come several times: branches over
 * one prefix), which stay as they are. E_TOO_BIG: capacity; E_NO_SLOT, E_BUSY. */
QUIRE_API quire_status quire_list_merge(quire_list *list, quire_seq *const *seqs, int32_t n);
QUIRE_API quire_status quire_list_extract(const quire_list *list, int32_t index,
                                          quire_seq **seq); /* a fork of that one */
/* Keep list->seq[keep[0]], list->seq[keep[1]] .. in that order and free the others. E_INVALID:
 * an index twice, or out of range; E_BUSY: one of the others is in a batch. */
QUIRE_API quire_status quire_list_filter(quire_list *list, const int32_t *keep, int32_t n_keep);
/* Move all sequences of `other` behind those of `list`; `other` is then empty. E_TOO_BIG. */
QUIRE_API quire_status quire_list_extend(quire_list *list, quire_list *other);
QUIRE_API quire_status quire_list_clear(quire_list *list); /* frees all; E_BUSY */

/* ------------------------------------------------------------------ another policy for a pool
 * in use quire_pool_requantize changes the codecs of every layer that did not name its own: raw
 * to quantized, and any codec to any other, in pools that are full, wrapped or shared. From then
 * on pages seal under the new policy, and each call of quire_pool_requantize_step converts some
 * of the older ones. In between, and while steps run, the pool serves as ever: attention reads
 * both forms of pages (and is exact for what each of them holds).
 * - Lengths, positions, windows, forks and open pages stay. A page that several sequences share
 *   is converted once.
 * - Pages whose raw rows are at hand (raw pages, and the page sealed last) are packed from
 *   these: a raw cache that becomes quantized is bit for bit the cache that the same rows give
 *   when they arrive in a quantized pool, if no page had been packed before. (A model would have
 *   computed other rows there: quire_history.) Others go through their decoded values, and the
 *   errors of both codecs add. A layer whose codecs stay keeps its bytes.
 * - Pages are taken in the order of sequences (by their place in the pool), then positions.
 *   Those of sequences that are in a batch wait for a later call. So results between the first
 *   and the last step depend on when steps come; after it they do not, except for which pages
 *   had their raw rows at hand. */

typedef struct quire_requantize_stats {
    int64_t pages_done,
        pages_left; /* of 64 tokens in all layers of a window; shared ones count once */
    size_t bytes_before, bytes_after; /* of the pages done, raw sinks included */
} quire_requantize_stats;

/* The policy that the pool has: OK and nothing to do. E_BUSY: a batch is in flight. E_STATE: an
 * earlier change is not finished (it may be finished, or taken back by giving the policy of
 * before). E_VALUE: an open page holds what the new codecs cannot. E_UNSUPPORTED, E_UNKNOWN,
 * E_INVALID. Nothing changes when it fails. */
QUIRE_API quire_status quire_pool_requantize(quire_pool *pool, const quire_policy *policy);
/* Convert up to max_pages pages, holding the pool's lock; stats (NULL is fine) count from the
 * last quire_pool_requantize. Needs room for one page more, or none if pages become smaller.
 * E_NO_PAGES: no page that is left finds room. E_VALUE: a value does not fit the new codec; that
 * page and those after it stay as they are. Such a change can be taken back, and until then the
 * pool serves on. */
QUIRE_API quire_status quire_pool_requantize_step(quire_pool *pool, int32_t max_pages,
                                                  quire_requantize_stats *stats);

/* Copy sealed page `page` (tokens 64*page ..) of all layers out, or append such a page to a
 * sequence whose length is a multiple of 64. The bytes are what the pool holds; page 0 also carries
 * the raw sinks. Loading checks the size and that every value is finite (E_FORMAT), so that no
 * bytes can do harm; that they are the right ones is for the caller. Saving: E_GONE (also if the
 * page is there, but lost some of its tokens to a window), and E_STATE for a page that
 * quire_pool_requantize_step has not reached yet. */
QUIRE_API size_t quire_seq_page_bytes(const quire_pool *pool, int32_t page);
QUIRE_API quire_status quire_seq_page_save(const quire_seq *seq, int32_t page, void *bytes,
                                           size_t n_bytes);
QUIRE_API quire_status quire_seq_page_load(quire_seq *seq, const void *bytes, size_t n_bytes);

/* ------------------------------------------------------------------ files: a sequence saved,
 * and restored One file has all of a sequence: its token ids, packed pages, and the raw rows
 * beside them (open page, page sealed last, sinks), so that the restored sequence goes on, and
 * trims, bit for bit like the one that was saved. docs/FORMAT.md gives every byte. Every part
 * has a checksum; nothing of a file is believed before it has been checked. */

typedef struct quire_save_options {
    size_t struct_size; /* set by quire_save_options_default */
    /* What computed this cache (weights, tokenizer, RoPE ..): any bytes, at most 1 MiB. Loading
     * compares them. */
    const void *identity;
    size_t identity_bytes;
    /* Ids of all tokens of the sequence, and of any that are known to follow; NULL: not known. */
    const int32_t *tokens;
    int32_t n_tokens;
    bool any_attention; /* do not record query heads, scale, soft-cap, ALiBi and learned sinks: the
                           file may then be loaded whatever they are. For a cache that comes from
                           elsewhere */
} quire_save_options;

QUIRE_API void quire_save_options_default(quire_save_options *options);
/* Writes PATH.part, brings it to stable storage and gives it its name: after a crash at any moment
 * PATH is the old file or the new one, whole. Readable by its owner alone. The sequence must not be
 * used meanwhile, other sequences may. options NULL: no identity, no tokens. E_BUSY: in a batch, or
 * somebody else is writing PATH. E_STATE: not all of its pages have been requantized yet.
 * E_TOO_BIG: token ids and page tables take more than 1 GiB. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, const char *path,
                                      const quire_save_options *options);

typedef struct quire_file
    quire_file; /* a saved sequence, open for reading; used by one thread at a time */

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
    int32_t exact_tokens; /* ... and the number of first tokens that it left alone; `length` if
                             history is 0 */
    /* (n_layers) codecs resolved; scale, softcap, alibi and sink_logits are not told, k_order
     * only for km4 and km3 */
    const quire_layer *layers;
    int32_t n_layers;
    quire_type raw;
    int32_t sinks;
    uint64_t packed_bytes, raw_bytes;   /* of pages; of open page, kept page and sinks */
    const quire_file_section *sections; /* (n_sections) in the order of the file */
    int32_t n_sections;
} quire_file_info;

/* Reads and checks everything but the pages. E_FOREIGN, E_VERSION, E_TRUNCATED, E_CORRUPT, E_FORMAT
 * (checksums right, contents impossible), E_TOO_BIG (more than 1 GiB before the pages; none of it
 * has been read then), E_IO, E_NOMEM. */
QUIRE_API quire_status quire_file_open(quire_file **file, const char *path);
QUIRE_API void quire_file_close(quire_file *file); /* NULL is fine */
QUIRE_API void quire_file_get_info(const quire_file *file,
                                   quire_file_info *info); /* pointers live as long as the file */
QUIRE_API quire_status
quire_file_check(quire_file *file); /* reads the pages too, every byte and every value */
/* One page of a layer and KV head: its packed record as quire_page_decode takes it (raw layers:
 * rows of the raw type); channels of km4 and km3 come out of that in the layer's k_order.
 * E_GONE: not in the file, for it had left the window. E_INVALID: not sealed. */
QUIRE_API quire_status quire_file_page(quire_file *file, int32_t layer, int32_t head, int32_t page,
                                       void *record, size_t n_bytes);
/* The same page, also the open one, as rows: raw ones where the file has them, else decoded. k
 * (64,DK), v (64,DV); *n_rows are in use. Of a page that has left the window the sinks may still be
 * there: *n_rows counts them. Rows that left a window before their page was made are zeros. */
QUIRE_API quire_status quire_file_rows(quire_file *file, int32_t layer, int32_t head, int32_t page,
                                       float *k, float *v, int32_t *n_rows);

typedef struct quire_load_options {
    size_t struct_size; /* set by quire_load_options_default */
    const void *identity;
    size_t identity_bytes; /* E_IDENTITY unless the file has the same bytes ... */
    bool any_identity;     /* ... or the caller has looked at them */
    bool reseal; /* codecs, sinks or raw type differ: decode each page and seal it as the pool does
                    (counted in quire_pool_stats.resealed_pages), instead of E_CODEC */
} quire_load_options;

QUIRE_API void quire_load_options_default(quire_load_options *options);
/* A new sequence from a file. All of it is read into fresh pages and checked before the sequence
 * exists: on failure the pool is as it was. E_IDENTITY (also: layers of another shape or
 * window), E_CODEC, E_CORRUPT, E_FORMAT, E_TRUNCATED, E_TOO_BIG, E_NO_SLOT, E_NO_PAGES, E_IO,
 * E_NOMEM. options NULL: the defaults. */
QUIRE_API quire_status quire_seq_load(quire_pool *pool, quire_file *file,
                                      const quire_load_options *options, quire_seq **seq);

/* ------------------------------------------------------------------ batches */

typedef struct quire_batch_item {
    quire_seq *seq;
    int32_t n_tokens; /* rows this sequence brings, appended after its last token; 0 is fine */
} quire_batch_item;

/* A tensor of B rows in item order. `row_stride` counts elements from one row to the next; 0:
 * rows are dense. */
typedef struct quire_rows {
    const void *data;
    quire_type type;
    size_t row_stride;
} quire_rows;

/* E_INVALID (a sequence twice, another pool's, too many rows), E_BUSY, E_NO_SLOT, E_NO_PAGES,
 * E_TOO_BIG. */
QUIRE_API quire_status quire_batch_begin(quire_pool *pool, const quire_batch_item *items,
                                         size_t n_items, quire_batch **batch);
/* The same for left-padded tensors: pad[i] rows of padding precede item i's own rows in every
 * tensor. Input of shape (items, L) has pad[i] + n_tokens == L for every i. Padding is never
 * read, never stored and has no position; it counts neither as tokens nor against
 * max_batch_tokens. Its rows of `out` become zeros and those of `lse` -inf. */
QUIRE_API quire_status quire_batch_begin_padded(quire_pool *pool, const quire_batch_item *items,
                                                size_t n_items, const int32_t *pad,
                                                quire_batch **batch);
QUIRE_API int32_t quire_batch_rows(const quire_batch *batch); /* B, padding included */
/* k (B,G,DK), v (B,G,DV). Layers in any order, but attend a layer before storing the next one.
 * E_VALUE names the layer, row and head of a value that is not finite or does not fit; the batch
 * can then only be aborted. */
QUIRE_API quire_status quire_batch_append(quire_batch *batch, int32_t layer, quire_rows k,
                                          quire_rows v, int32_t ith, int32_t nth);

typedef struct quire_attend_args {
    quire_rows q;      /* (B,H,DK) */
    float *out;        /* (B,H,DV) */
    size_t out_stride; /* floats from row to row; 0: dense */
    float *lse; /* NULL, or (B,H): ln of the softmax denominator, learned sink included; -inf:
                   nothing seen */
    const float *mask; /* NULL, or added to the logits: mask[row*row_stride + head*head_stride + t],
                          -inf hides */
    size_t mask_row_stride;  /* at least the position of the row's last token + 1 floats are read
                                from each row */
    size_t mask_head_stride; /* 0: one mask for all heads */
    bool mask_per_kv_head;   /* `head` above counts KV heads: all query heads of a group share its
                                mask */
} quire_attend_args;

/* A row that may see nothing gives zeros. A row of q that is not finite gives NaN, for itself
 * alone. */
QUIRE_API quire_status quire_batch_attend(quire_batch *batch, int32_t layer,
                                          const quire_attend_args *args, int32_t ith, int32_t nth);
/* Why store or attend failed, in whichever worker; "" if none did. */
QUIRE_API const char *quire_batch_error(const quire_batch *batch);
/* n_accept NULL: every token stays. Else item i keeps only its first n_accept[i] tokens
 * (speculative decoding): exact, also for windowed layers, while it cuts in the last two pages,
 * else E_INVALID and the batch stays open. The batch is gone after success. E_STATE: a layer was
 * not stored. Several branches over one prefix are items of one batch: fork the prefix once for
 * each, append each branch to its fork, attend, commit the winner with n_accept, and free the
 * others. */
QUIRE_API quire_status quire_batch_commit(quire_batch *batch, const int32_t *n_accept);
QUIRE_API void quire_batch_abort(quire_batch *batch); /* NULL is fine */

/* ------------------------------------------------------------------ statistics: proof that the
 * codec is live Counted from the buffers in use and the bytes kernels touched, never from
 * nominal bits. */

typedef struct quire_pool_stats {
    size_t budget_bytes;   /* as asked */
    size_t total_bytes;    /* allocated */
    size_t arena_bytes;    /* of which: memory for pages */
    size_t sealed_bytes;   /* in use: packed pages */
    size_t open_bytes;     /* in use: raw pages being filled */
    size_t last_raw_bytes; /* in use: raw rows of the page sealed last (exact roll-back) */
    size_t sink_bytes;     /* in use: raw sinks */
    size_t free_bytes;
    size_t largest_free_bytes; /* in one piece */
    size_t shadow_bytes;       /* raw bytes held beside sealed pages for any other reason: 0 */
    int64_t tokens;            /* in all sequences, shared ones once per sequence */
    int32_t n_seqs, n_batches;
    uint64_t sealed_pages;   /* times a page was sealed: layers x KV heads x pages */
    uint64_t reopened_pages; /* times trim had to reopen from packed values */
    uint64_t resealed_pages; /* of the sealed ones, those from another codec's values or a file's */
} quire_pool_stats;

typedef struct quire_layer_stats {
    quire_pair pair;                /* resolved: never DEFAULT */
    const char *kernel;             /* what attends over this layer's packed pages */
    double bits_per_element;        /* of a sealed record, parameters and padding included */
    size_t record_bytes;            /* one page of one KV head */
    size_t sealed_bytes, raw_bytes; /* resident: packed; open, kept and sink rows */
    uint64_t packed_read, raw_read; /* bytes read by attend so far */
    uint64_t attended_rows;
    uint64_t fallbacks; /* work items that the layer's kernel declined and the reference ran: 0 */
} quire_layer_stats;

QUIRE_API void quire_pool_get_stats(const quire_pool *pool, quire_pool_stats *stats);
QUIRE_API quire_status quire_layer_get_stats(const quire_pool *pool, int32_t layer,
                                             quire_layer_stats *stats);
QUIRE_API const char *quire_pool_isa(const quire_pool *pool); /* the kernels in use, e.g. "ref" */

#ifdef __cplusplus
}
#endif
#endif
