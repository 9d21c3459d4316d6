/* Template, part of packed_tmpl.h: what a NEON worker holds while it attends one chunk.
 *
 * Query rows (positions x heads of one KV head) are taken in sets of four: two pairs. A single set
 * is enough to decode a model with up to four query heads per KV head; prefill runs 64 and more
 * sets over pages unpacked once. */
#ifndef QUIRE_KERN_NEON_WORK_TMPL_H
#define QUIRE_KERN_NEON_WORK_TMPL_H

#define SIMD "kern/neon/neon_simd.h"
#define PARAMS_LOCALITY 2

#include "kern/neon/products_tmpl.h"
#include "kern/shared/elements_tmpl.h"
#include "kern/shared/job.h"
#include "kern/shared/page_params_tmpl.h"

/* Whether this level computes u8 weights in fp16 (softmax16_tmpl.h). */
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define HAVE_SOFTMAX16 1
#else
#define HAVE_SOFTMAX16 0
#endif

enum {
    SET = 4,      /* rows of a set */
    PAIRS = 2,    /* of a set */
    OPERANDS = 4, /* pairs times planes */
    TOGETHER = 8  /* sets scored one after the other, then weighed: K stays in L1, then V */
};

/* Sets have 1 to 4 rows: the last pair of an odd number is a lone row. */
INLINE int pairs_of(const int rows) { return (rows + 1) / 2; }
INLINE bool is_lone(const int rows, const int pair) { return rows % 2 != 0 && pair == rows / 2; }
/* The two planes of a row that is alone in its set form one operand: half the products. */
INLINE bool is_folded(const int rows, const int planes) { return rows == 1 && planes == 2; }
INLINE int operands_of(const int rows, const int planes) {
    return is_folded(rows, planes) ? 1 : pairs_of(rows) * planes;
}
/* Whether operand r is a lone row and nothing else. */
INLINE bool is_single(const int rows, const int planes, const int r) {
    return !is_folded(rows, planes) && is_lone(rows, r % pairs_of(rows));
}
INLINE int cells_of(const bool lone) { return lone ? T / 4 : T / 2; } /* of a page */

typedef struct set_state {
    float32x4_t m[PAIRS], l[PAIRS]; /* l: two partial sums per row */
    /* mid times the sum of weights, in units of O; subtracted at the end. */
    float32x4_t shift[PAIRS];
} set_state;

/* One quantized query set against one page: operands [8 dims][pair, or pair of the low plane][2
 * rows x 8 dims]. */
typedef struct set_query {
    uint8_t q8[QUIRE_DIM_MAX / 8][OPERANDS][OPERAND_BYTES];
    float32x4_t scale[QUIRE_MAX_SCALE_GROUPS][PAIRS];  /* value of one integer step */
    float32x4_t centre[QUIRE_MAX_SCALE_GROUPS][PAIRS]; /* mid times the sum of the integers */
    float32x4_t offset[QUIRE_MAX_SCALE_GROUPS][PAIRS]; /* channel: q.zero; scale groups: sum of q */
} set_query;

/* A page's scores of a set, much as they left the multiplier, on a scale of their own: the logit of
 * s is peak + (s - top) * step. The difference of two such scores is exact where they are
 * integers. */
typedef struct set_scores {
    float s[PAIRS][T / 2][4]; /* cells; later the weights, if these are computed in fp32 */
    float32x4_t top[PAIRS];   /* the largest s */
    float32x4_t peak[PAIRS];  /* its logit; QUIRE_NOTHING_SEEN if all are hidden */
    float32x4_t step[PAIRS];
} set_scores;

typedef struct neon_work {
    set_query q[PAGES];
    set_scores scores[TOGETHER][PAGES], *score; /* score: those of the current set */
#if HAVE_SOFTMAX16
    float16_t w16[PAGES][PAIRS][T / 4][8], scale16[PAGES][T / 4][8]; /* softmax16_tmpl.h */
    int exponent16[PAGES];
#endif
    /* [8 tokens][pair, or pair of the low plane][2 rows x 8 tokens] */
    uint8_t p8[BLOCK / 8][OPERANDS][OPERAND_BYTES];
    /* Per channel (k_zero: for K of tq too), or per scale group and token. */
    float k_scale[PAGES][QUIRE_MAX_SCALE_GROUPS * T], k_zero[PAGES][QUIRE_MAX_SCALE_GROUPS * T];
    /* Per scale group and token. */
    float v_scale[QUIRE_MAX_SCALE_GROUPS * BLOCK], v_zero[QUIRE_MAX_SCALE_GROUPS * BLOCK];
    /* 255 where a token's scale of V is negative, in the order of atoms (unpack_tmpl.h). */
    uint8_t negative[PAGES][QUIRE_MAX_SCALE_GROUPS][8][16];
    float residual[PAGES][T];                /* prod */
    float scaled[PAGES][SET][QUIRE_DIM_MAX]; /* q times the channel scales */
    /* q and scales in fp16 (channel_query.h): a page's scales, and what one unit of them is worth;
     * the rows of q and their magnitudes, and what one unit is worth. The latter lie behind the
     * sets: (rows rounded up to sets, DK) each, (rows). */
    float16_t k_scale_fp16[PAGES][QUIRE_DIM_MAX];
    float k_unit[PAGES];
    float16_t *q_fp16, *q_magnitude;
    float *q_unit;
    float zero_row[QUIRE_DIM_MAX]; /* stands in for rows that a set lacks */
    /* Unpacked: [16 tokens][8 dims][token pair][2 tokens x 8 dims] */
    int8_t k8[PAGES][T * QUIRE_DIM_MAX];
    int8_t sign8[PAGES][T * QUIRE_DIM_MAX];
    /* Unpacked: [16 channels][8 tokens][channel pair][2 channels x 8 tokens] */
    int8_t v8[PAGES][T * QUIRE_DIM_MAX];
    set_state set[]; /* (rows / 4) */
} neon_work;

#endif
