/* What a worker holds while it attends one chunk with AMX, and how it lies in memory.
 *
 * Everything is transposed against the other kernels: a vector holds 16 query rows (a strip), never
 * 16 tokens or channels.
 *
 *   scores   K.q   A = codes of K, 16 tokens x 64 channels    B = integer q     C = [token][row]
 *   output   p.V   A = codes of V, 16 channels x 64 tokens    B = weights       C = [channel][row]
 *
 * So maxima, sums and scales of rows are plain vectors, without shuffles or reductions, and integer
 * queries and weights come out of the arithmetic in the order that a B tile wants: [4 k][row][k].
 *
 * The pages of a chunk are unpacked once for all rows. Then 32 rows at a time (a set of two strips,
 * so that each code tile that is loaded meets two B tiles) pass over the chunk. Every row goes
 * through the same roundings in the same order as in packed_tmpl.h with fp16: a decode row,
 * which that kernel attends, and a prefill row have the same bits. */
#ifndef QUIRE_KERN_X86_AMX_WORK_H
#define QUIRE_KERN_X86_AMX_WORK_H

#include "kern/shared/job.h"
#include "kern/x86/amx/amx_tile.h"
#include "kern/x86/avx512_simd.h"

enum {
    STRIP = 16,
    STRIPS = 2,
    SET_ROWS = STRIPS * STRIP,
    CHUNK = QUIRE_CHUNK_PAGES,
    CHUNK_BLOCKS = CHUNK / PAGES,
    AMX_DIM_MAX = 256,
    PART = 64, /* channels of a code tile of K */
    PARTS_MAX = AMX_DIM_MAX / PART,
    K_TILES = T / TILE_ROWS,
    V_GROUP = 4 /* tiles of V that are multiplied at a time */
};

#define STRIPS_EACH UNROLL for (int strip = 0; strip < STRIPS; strip++)

/* How scores come about. CHANNEL: q times the page's channel scales, 8-bit integers by way of fp16
 * (channel_query.h). WIDE: the same in fp32, 15-bit integers in two planes of bytes. TOKEN:
 * integers of q alone; each token has a scale. */
typedef enum k_kind { CHANNEL, WIDE, TOKEN } k_kind;

typedef int8_t tile8[TILE_ROWS][TILE_ROW_BYTES];
typedef float strip_rows[STRIP];

/* The pages of a chunk. Of pages that are missing, tiles and scales are left as they were. */
typedef struct chunk_pages {
    tile8 *k8; /* (pages, 16 tokens each, parts) */
    tile8 *v8; /* (pages, 16 channels each) */
    /* CHANNEL: s' in both halves of each number; WIDE: fp32 bits; TOKEN: fp32 bits per token */
    _Alignas(64) uint32_t k_scale[CHUNK][AMX_DIM_MAX];
    float k_unit[CHUNK]; /* CHANNEL: what a unit of s' is worth */
    /* Where the codec has zeros: as they are loaded, page by page of D, and by channel. */
    float k_zero_of_page[CHUNK * AMX_DIM_MAX], k_zero[AMX_DIM_MAX][CHUNK];
    /* In fp16, in both halves of each number (half_weights.h); of 8-bit V: fp32 bits. */
    uint32_t v_scale[CHUNK][T];
    float v_unit[CHUNK]; /* what a unit of an fp16 scale is worth */
    bool present[CHUNK];
} chunk_pages;

/* A set's queries, transposed; kept from one chunk to the next. */
typedef struct set_queries {
    _Alignas(64) uint16_t half[AMX_DIM_MAX][SET_ROWS]; /* CHANNEL: q', strips packed by h_pack */
    strip_rows q[STRIPS][AMX_DIM_MAX];                 /* for WIDE, and for q.zero */
    tile8 q8[PARTS_MAX][STRIPS];                       /* TOKEN */
    strip_rows unit[STRIPS]; /* CHANNEL: of q'; TOKEN: value of an integer step */
} set_queries;

/* A set's state, transposed. */
typedef struct set_state {
    _Alignas(64) strip_rows m[STRIPS], l[STRIPS], o[STRIPS][AMX_DIM_MAX];
} set_state;

/* What is kept of a set from chunk to chunk. */
typedef struct row_set {
    set_queries q;
    set_state total; /* of the chunks so far */
} row_set;

/* How a block of pages changes the rows' states: O = O * keep + sums * unit. Of rows that it does
 * not matter to, `keep` is 1 and `unit` 0. */
typedef struct block_update {
    _Alignas(64) strip_rows keep[STRIPS], unit[STRIPS];
    bool alive; /* it matters to some row */
} block_update;

typedef struct amx_work {
    /* Integer scores of a block, then perhaps logits, then weights. In fp16, those of both strips
     * lie where the scores of the first one were. */
    _Alignas(64) union {
        int32_t i[PAGES][STRIPS][T][STRIP];
        float f[PAGES][STRIPS][T][STRIP];
        uint16_t half[PAGES][STRIPS][T][SET_ROWS];
    } s;
    int32_t s_high[STRIPS][T][STRIP]; /* WIDE: of the high bytes */
    tile8 q8[2][PARTS_MAX][STRIPS];   /* integer q against one page; WIDE: low bytes, high bytes */
    strip_rows step[PAGES][STRIPS], offset[CHUNK][STRIPS];
    strip_rows largest_score[PAGES][STRIPS], largest[PAGES][STRIPS]; /* and the logit of that */
    strip_rows sums[16];
    uint8_t p8[CHUNK_BLOCKS][2][PAGES][STRIPS][TILE_ROWS][TILE_ROW_BYTES]; /* [planes] */
    block_update update[CHUNK_BLOCKS];
    int32_t acc[2][V_GROUP][STRIPS][TILE_ROWS][STRIP]; /* [planes]: p.V of some tiles */
    strip_rows m[STRIPS], l[STRIPS], o[STRIPS][V_GROUP * TILE_ROWS]; /* the chunk's alone */
    strip_rows constant[STRIPS]; /* that O gets in all channels when the chunk ends */
    bool awake;                  /* stay_awake */
    chunk_pages pages;
    row_set sets[]; /* as many as the job's rows need; then the tiles of `pages` */
} amx_work;

/* Rows of the strip that starts with row `first` of the job. */
INLINE int strip_size(const quire_attend_job *job, int first) {
    const int left = job->n_rows * job->n_group - first;
    return left < 0 ? 0 : left < STRIP ? left : STRIP;
}

INLINE int parts_of(int dim) { return (dim + PART - 1) / PART; }
INLINE int sets_of(int n_rows) { return (n_rows + SET_ROWS - 1) / SET_ROWS; }
INLINE size_t k_tiles_of_chunk(int dim) { return (size_t)(CHUNK * K_TILES * parts_of(dim)); }
INLINE size_t v_tiles_of_chunk(int dim) { return (size_t)(CHUNK * (dim / TILE_ROWS)); }
INLINE void place_tiles(int n_rows, int k_dim, amx_work *w) {
    w->pages.k8 = (tile8 *)(void *)(w->sets + sets_of(n_rows));
    w->pages.v8 = w->pages.k8 + k_tiles_of_chunk(k_dim);
}
INLINE tile8 *k_tiles(chunk_pages *pages, int parts, int page) {
    return pages->k8 + page * K_TILES * parts;
}
INLINE tile8 *v_tiles(chunk_pages *pages, int dim, int page) {
    return pages->v8 + page * (dim / TILE_ROWS);
}

/* The unit that multiplies tiles goes to sleep when it has had no work for 320 ns, and takes 280 ns
 * to wake up, in which the core does little else (measured on Emerald Rapids). Other work that
 * takes 250 ns or more therefore gives it a product to throw away now and then, which costs 25 ns.
 * Where K and V both have 8 bits, the other work takes so long that sleep is cheaper. */
INLINE void stay_awake(const amx_work *w) {
    if (w->awake)
        TILE_SS(7, 4, 0); /* 7 is cleared before it is used again */
}

INLINE k_kind kind_of(const quire_side_format *k) {
    return k->family != QUIRE_FAMILY_CHANNEL ? TOKEN : k->bits == 8 ? WIDE : CHANNEL;
}

#endif
