/* The kernel table: everything that an instruction set may do faster. It is filled going down the
 * ladder of levels (kern.c), from the best that the machine runs to the reference, which has
 * everything; what a higher level has stays. Each pool has a table of its own, read-only once
 * built.
 *
 * The arithmetic is part of the contract, because a row must get the same bits whatever runs beside
 * it:
 *
 *   chunk = 16 pages, block = 2 pages, both counted from position 0.
 *   A chunk is attended from an empty state, block by block; chunks are merged in order
 *   (attn/softmax_state.h). In a block, per query row and head:
 *     scores       integer K.q (quantized query below), then fp32: scale, soft-cap, ALiBi, mask;
 *                  base-2 logits
 *     m_b          largest visible score of the block; a block with none, or with m_b < m - 24,
 *                  is dropped whole
 *     e            2^(s - m_b), 0 where hidden;  l gains the sum of e, unquantized
 *     weights      w = e * |scale of V|; w / max(w) as u8 (8-bit V: as u16 in two u8 planes),
 *                  then integer p.V
 *     O, l, m      rescaled only when m grows; the block's part enters with factor 2^(m_b - m).
 *                  On x86-64 O and l are relative to the integer above m until the chunk ends, so
 *                  that rescaling rounds nothing, and may as well happen at once, at the end
 *   Integer scores are exact on every ISA: the quantization of q is canonical (ref/ref_query.c,
 *   shared/channel_query.h). The fp32 parts may differ by rounding between ISAs, but never between
 *   rows, batches or worker counts of one ISA.
 */
#ifndef QUIRE_KERN_KERN_H
#define QUIRE_KERN_KERN_H

#include <string.h>

#include "codec/codec.h"

enum {
    QUIRE_BLOCK_PAGES = 2,
    QUIRE_BLOCK_TOKENS = QUIRE_BLOCK_PAGES * QUIRE_PAGE_TOKENS,
    QUIRE_CHUNK_PAGES = 16,
    QUIRE_AHEAD_PAGES = 2 * QUIRE_BLOCK_PAGES, /* as far as kernels fetch ahead */
    QUIRE_STATE_ROWS = 4,
    QUIRE_MAX_PACKED = 8, /* packed kernels of a pool, all levels together */
    QUIRE_MAX_SCALE_GROUPS = QUIRE_DIM_MAX / 32
};

/* m of an empty state; finite, so that differences are never NaN */
#define QUIRE_NOTHING_SEEN (-1e30f)
/* A block whose best score is this far below the running maximum adds nothing. */
#define QUIRE_DROP_BELOW 24.0f

/* A query row as integers against one page, per scale group of K: one group for kc and tq, D/g for
 * affine and block. One int8 plane, or two for 8-bit K: q = 128 * plane[0] + plane[1]. */
typedef struct quire_int_query {
    int8_t plane[2][QUIRE_DIM_MAX];
    int n_planes;
    float scale[QUIRE_MAX_SCALE_GROUPS]; /* value of one integer step */
    int32_t sum[QUIRE_MAX_SCALE_GROUPS]; /* of the integers of a scale group */
    /* The same, each integer times twice the middle of its channel's codes. */
    int32_t centre[QUIRE_MAX_SCALE_GROUPS];
} quire_int_query;

/* What a query row may see. Shared by all rows of a job; rows are consecutive positions. */
typedef struct quire_visibility {
    int32_t first_position; /* of row 0 */
    int32_t window, keep;   /* as quire_layer */
    /* softcap * log2(e); 0: none. If set, q is scaled so that scores are logits / softcap. */
    float softcap_log2;
    const float *alibi; /* (n_group) slopes * log2(e) for this KV head's query heads, or NULL */
    const float *mask;  /* element (row 0, head 0, token 0) of the job's mask, or NULL */
    size_t mask_row_stride, mask_head_stride;
} quire_visibility;

/* Softmax state of rows x heads: O / l is the output, l the denominator at base-2 maximum m. */
typedef struct quire_state {
    float *m, *l; /* (n_rows * n_group) */
    float *o;     /* (n_rows * n_group, DV) */
} quire_state;

typedef struct quire_attend_job {
    const quire_format *format;
    int n_rows, n_group; /* query rows; query heads per KV head */
    /* (n_rows, n_group, DK), scaled; channels in the order of the job's K (km has its own). */
    const float *q;
    const float *q_rotated;   /* rotated; NULL unless K is */
    const float *q_projected; /* rotated and projected; NULL unless K is prod */
    /* False: the workspace was last used for these same queries and this format. */
    bool q_is_new;
    /* For kernels that gather chunks: the state holds those before this one, which is merged into
     * it; it need not be there before the last of them. */
    bool follows, goes_on;
    quire_visibility see;
    float *scratch;  /* (n_rows * n_group, 128), for the kernel's own use ... */
    void *workspace; /* ... as is this: workspace_bytes of the kernel, aligned to 64 */
    /* packed */
    int32_t first_page;                       /* a multiple of QUIRE_CHUNK_PAGES */
    const uint8_t *record[QUIRE_CHUNK_PAGES]; /* NULL: no row sees this page */
    /* The pages after the chunk, to fetch ahead; may be NULL. */
    const uint8_t *next[QUIRE_AHEAD_PAGES];
    /* Tokens below this position are raw sinks, not in the records. */
    int32_t skip;
    /* raw: runs of tokens, ascending */
    quire_type raw;
    struct quire_raw_run {
        int32_t first, count; /* tokens */
        const uint8_t *k, *v; /* (count, DK), (count, DV) */
    } run[2];
    int n_runs;
    /* out */
    uint64_t bytes_read;
} quire_attend_job;

/* Attention over packed pages. */
typedef struct quire_attend_kernel {
    /* Attends one chunk from an empty state. The state has room for n_rows * n_group rounded up to
     * a multiple of QUIRE_STATE_ROWS; the excess is for the kernel's own use. */
    void (*attend)(quire_attend_job *job, const quire_state *state);
    /* Per worker, for n_rows = rows * heads per KV head. */
    size_t (*workspace_bytes)(int n_rows, int k_dim, int v_dim);
    bool (*serves)(const quire_format *format);
    const char *name; /* shown in statistics; "ref", "neon_i8mm" */
    /* Whether `attend` merges the chunks of so many rows itself, with the bits of
     * quire__states_merge: job->follows. The others ignore that; NULL: never. */
    bool (*gathers)(int n_rows);
} quire_attend_kernel;

static inline bool quire__gathers(const quire_attend_kernel *kernel, int n_rows) {
    return kernel->gathers && kernel->gathers(n_rows);
}

/* Attention over the raw runs of a job, as one block, from an empty state. */
typedef struct quire_raw_kernel {
    void (*attend)(quire_attend_job *job, const quire_state *state);
    size_t (*workspace_bytes)(int n_rows, int k_dim, int v_dim);
} quire_raw_kernel;

/* Rows and pages. Results are canonical: every ISA gives the same bits as the reference. */
typedef struct quire_row_kernels {
    void (*rotate)(float *x, int dim);
    void (*unrotate)(float *x, int dim);
    void (*project)(float *x, int dim);
    void (*blend)(float *x, float keep, const float *y, float add, int dim); /* quire__blend */
    void (*from_raw)(quire_type type, const void *at, size_t n, float *row);
    void (*to_raw)(quire_type type, void *at, size_t n, const float *row);
    /* Packs one side of a page, the gaps between its sections included. */
    void (*seal_side)(const quire_side_format *side, const float *rows, int skip, uint8_t *record);
    /* Rounds the K codes of a packed page again, with error feedback
     * (quire__side_round_with_feedback). */
    void (*round_with_feedback)(const quire_side_format *side, const float *rows, int skip,
                                const quire_page_feedback *feedback, uint8_t *record);
} quire_row_kernels;

typedef struct quire_kernels {
    const char *isa; /* "ref", ... */
    const quire_row_kernels *rows;
    const quire_raw_kernel *raw;
    /* Best first; the last is the reference, which serves everything. */
    const quire_attend_kernel *packed[QUIRE_MAX_PACKED];
    int n_packed;
} quire_kernels;

/* `level` NULL: the environment's QUIRE_CPU, or else the best level of this machine. E_UNKNOWN: no
 * such level; E_UNSUPPORTED: not on this machine. */
quire_status quire__kernels_init(quire_kernels *kernels, const char *level);
/* The same for a processor with these features (base/cpu.h); `level` NULL: the best that it has. */
quire_status quire__kernels_choose(quire_kernels *kernels, const char *level, unsigned features);
const char *quire__kernel_level(int i); /* from the bottom upwards; NULL past the last */
const quire_attend_kernel *quire__attend_kernel(const quire_kernels *kernels,
                                                const quire_format *format);
/* The most that any of them takes: the reference may step in, and codecs may change. */
size_t quire__workspace_bytes(const quire_kernels *kernels, int n_rows, int k_dim, int v_dim);
extern const quire_attend_kernel quire__attend_ref;
/* Whether a layer has the reference, which is slow, only because no kernel of its level serves the
 * layer's codecs. */
static inline bool quire__falls_back(const quire_kernels *kernels,
                                     const quire_attend_kernel *chosen) {
    return chosen == &quire__attend_ref && kernels->packed[0] != chosen;
}
extern const quire_raw_kernel quire__attend_ref_raw;
extern const quire_row_kernels quire__rows_ref, quire__rows_neon, quire__rows_avx2,
    quire__rows_avx512;

/* Packs both sides of a page, and clears what lies behind them in the record. */
static inline void quire__seal_page(const quire_row_kernels *kernels, const quire_format *format,
                                    const float *k, const float *v, int skip, uint8_t *record) {
    const size_t end = quire__side_end(&format->v);
    kernels->seal_side(&format->k, k, skip, record);
    kernels->seal_side(&format->v, v, skip, record);
    memset(record + end, 0, format->bytes - end);
}

/* Whether row r sees token t, masks aside. Inline, so that every kernel applies the same rule. */
static inline bool quire__sees(const quire_visibility *see, int r, int32_t t) {
    const int32_t i = see->first_position + r;
    return t <= i && (see->window == 0 || i - t < see->window || t < see->keep);
}

#endif
