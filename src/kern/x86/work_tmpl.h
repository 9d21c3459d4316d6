/* What a worker keeps while it attends one chunk, and the block of two pages it is at.
 *
 * Query rows (positions x heads of one KV head) are taken in sets of four: codes are loaded and unpacked once for a set.
 * Everything is kept row by row, tokens and channels in their natural order, so a row cannot notice which rows share its
 * set. The including file names its instructions: PRODUCTS is avx2/products.h or avx512/products.h.
 */
#ifndef QUIRE_KERN_X86_WORK_TMPL_H
#define QUIRE_KERN_X86_WORK_TMPL_H

#if !defined(SIMD) || !defined(PRODUCTS)
#error "the kernels of packed pages need SIMD and PRODUCTS: packed_tmpl.h"
#endif
#define PARAMS_LOCALITY 3

#include "base/element.h"
#include "base/real.h"
#include "kern/shared/elements_tmpl.h"
#include "kern/shared/job.h"
#include "kern/shared/page_params_tmpl.h"
#include PRODUCTS

enum { SET = 4 }; /* rows of a set */

/* Where codes come from: the page itself, 4 or 8 bits wide, or int8 unpacked beforehand (unpack.h). MIXED, of K, is
 * SPLIT_5_3 in the first half of the columns (rounded down), whose bytes are 5 and 3 bits, then NIBBLES. */
typedef enum source_kind { NIBBLES, BYTES, UNPACKED, MIXED, SPLIT_5_3 } source_kind;

typedef struct set_query {
    int8_t plane[SET][2][QUIRE_DIM_MAX];     /* operands of the products, 8 bytes per octet of dims */
    float step[SET][QUIRE_MAX_SCALE_GROUPS]; /* value of one integer step, halved where scores are doubled */
    float offset[SET]
                [QUIRE_MAX_SCALE_GROUPS]; /* channel: q.zero; K of tq: q.mean of the page at hand; group: sum of q */
    int32_t centre[SET]
                  [QUIRE_MAX_SCALE_GROUPS]; /* sum of the integers times the middle code, doubled with the scores */
} set_query;

typedef struct x86_work {
    set_query q[PAGES];
    int32_t dots[SET][T];             /* integer scores of one page and group */
    float s[SET][BLOCK];              /* base-2 logits, then weights */
    uint8_t p[SET][2][BLOCK];         /* operands of the products, 8 bytes per atom of V */
    int32_t sums[SET][QUIRE_DIM_MAX]; /* integer p.V of one group */
    float k_scale[PAGES][QUIRE_MAX_SCALE_GROUPS * T],
        k_zero[PAGES][QUIRE_MAX_SCALE_GROUPS * T]; /* per channel, or group and token */
    float v_scale[QUIRE_MAX_SCALE_GROUPS * BLOCK],
        v_zero[QUIRE_MAX_SCALE_GROUPS * BLOCK]; /* per group and token of a block */
    float residual[PAGES][T];                   /* prod */
    float scaled[QUIRE_DIM_MAX];                /* q times the channels' scales */
    float k_unit[PAGES];                        /* channel_query.h: what one unit of a page's scales is worth, ... */
    float *q_unit;                              /* ... and of a row's q: (rows) behind this, then ... */
    float *q_fp16;                              /* ... the rows, (rows, DK) */
    uint8_t k8[PAGES][T * QUIRE_DIM_MAX], sign8[PAGES][T * QUIRE_DIM_MAX], v8[PAGES][T * QUIRE_DIM_MAX]; /* unpacked */
} x86_work;

typedef struct block {
    quire_attend_job *job;
    x86_work *work;
    int first;                                   /* page of the chunk */
    int from, n;                                 /* first page present, number present */
    const uint8_t *record[PAGES], *ahead[PAGES]; /* NULL: no such page; the page that comes after it */
    const uint8_t *k[PAGES], *v[PAGES];          /* codes */
    source_kind k_source, v_source;
    bool v_loaded; /* V is not touched when every row drops the block */
} block;

INLINE product product_of(const quire_side_format *side) {
    return side->bits == 8 ? WIDE : side->book ? SIGNED : SMALL;
}

INLINE ivec load_book(const int8_t *book /* (16) or NULL */) { return book ? b_repeat16(book) : b_all(0); }

#endif
