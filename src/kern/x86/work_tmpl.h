/* Template, part of packed_tmpl.h: what a worker holds while it attends one chunk, and the current
 * block of two pages.
 *
 * Query rows (positions x heads of one KV head) are taken in sets of SET (PRODUCTS): codes are
 * loaded and unpacked once for a set. Everything is held row by row, tokens and channels in natural
 * order, so that a row cannot depend on the rows that share its set. */
#ifndef QUIRE_KERN_X86_WORK_TMPL_H
#define QUIRE_KERN_X86_WORK_TMPL_H

#if !defined(SIMD) || !defined(PRODUCTS)
#error "the kernels of packed pages need SIMD and PRODUCTS: packed_tmpl.h"
#endif

#include "base/element.h"
#include "base/real.h"
#include "kern/shared/elements_tmpl.h"
#include "kern/shared/job.h"
#include "kern/shared/page_params_tmpl.h"
#include "kern/x86/ahead.h"
#include PRODUCTS

enum { VECTOR = 16 * LANES /* bytes */ };

/* Where codes come from: the page itself, 2 (V), 3, 4 or 8 bits wide, or int8 unpacked beforehand
 * (unpack_tmpl.h). MIXED and MIXED_3, of K, are SPLIT_5_3 and SPLIT_4_2 in the first half of the
 * columns (rounded down), whose low codes have a bit more and whose high codes a bit less, then
 * NIBBLES and THREES. FLIPPED, of V: the codes of some tokens are reflected (put_flips). */
typedef enum source_kind {
    NIBBLES,
    BYTES,
    UNPACKED,
    TWOS,
    THREES,
    MIXED,
    MIXED_3,
    SPLIT_5_3,
    SPLIT_4_2,
    FLIPPED_NIBBLES,
    FLIPPED_BYTES
} source_kind;

/* Bytes of the page that 16 dims of W tokens (K), or 16 tokens of W channels (V), take. */
INLINE int slice_bytes(const source_kind from) {
    const bool bytes = from == BYTES || from == FLIPPED_BYTES,
               threes = from == THREES || from == SPLIT_4_2;
    return (bytes ? 16 : threes ? 6 : from == TWOS ? 4 : 8) * W;
}

typedef struct set_query {
    /* Value of one integer step; half of it where scores are doubled. */
    float step[QUIRE_MAX_SCALE_GROUPS][SET];
    /* Channel scales: q.zero; K of tq: q.mean of the current page; else the sum of q. */
    float offset[QUIRE_MAX_SCALE_GROUPS][SET];
    /* Sum of the integers times the middle code, doubled like the scores. */
    int32_t centre[QUIRE_MAX_SCALE_GROUPS][SET];
    int8_t plane[SET][2][QUIRE_DIM_MAX]; /* operands, 8 bytes per octet of dims */
} set_query;

/* Vectors are loaded from whole cache lines: every array fills some. */
typedef struct x86_work {
    _Alignas(64) set_query q[PAGES];             /* with the channel scales of each page */
    int32_t dots[SET][T];                        /* integer scores of one page and scale group */
    float s[SET][BLOCK];                         /* base-2 logits, then weights */
    uint8_t p[SET][2][BLOCK];                    /* operands, 8 bytes per atom of V */
    uint8_t flip[QUIRE_MAX_SCALE_GROUPS][BLOCK]; /* put_flips, in the order of the operands */
    int32_t sums[SET][QUIRE_DIM_MAX];            /* integer p.V of one scale group */
    /* Per channel, or per scale group and token. */
    float k_scale[PAGES][QUIRE_MAX_SCALE_GROUPS * T], k_zero[PAGES][QUIRE_MAX_SCALE_GROUPS * T];
    /* Per scale group and token. */
    float v_scale[QUIRE_MAX_SCALE_GROUPS * BLOCK], v_zero[QUIRE_MAX_SCALE_GROUPS * BLOCK];
    float residual[PAGES][T]; /* prod */
    /* q times the channel scales: y of channel_query.h, or of one page of 8-bit K */
    union {
        uint16_t y[PAGES][ABREAST][QUIRE_DIM_MAX];
        float wide[ABREAST][QUIRE_DIM_MAX];
    } scaled;
    uint8_t middle[QUIRE_DIM_MAX]; /* put_middles */
    uint16_t k_half[PAGES][QUIRE_DIM_MAX];
    /* Of half_softmax_tmpl.h, where h_pack would leave the tokens: scales of V, and weights. */
    uint16_t v_half[PAGES][T], w_half[ABREAST][BLOCK];
    /* Unpacked codes. */
    uint8_t k8[PAGES][T * QUIRE_DIM_MAX], sign8[PAGES][T * QUIRE_DIM_MAX],
        v8[PAGES][T * QUIRE_DIM_MAX];
    /* q and scales in fp16 (channel_query.h). What one unit of a page's scales is worth, and one of
     * a row's q; then those rows. Those of q lie behind this struct: (rows), (rows, DK), or as fp16
     * bits at distances of QUIRE_DIM_MAX floats. */
    float k_unit[PAGES], v_unit[PAGES], *q_unit, *q_fp16;
    pages_ahead ahead;
} x86_work;

/* Families of K without channel scales have integers that hold for every page. They lie behind the
 * work instead, one set_query for each set, the last rows of which are left out where sets are
 * smaller. (What prod projects is made for each block, in q[1].) */
INLINE size_t set_bytes(int most_rows) {
    return offsetof(set_query, plane) + (size_t)most_rows * sizeof((set_query *)0)->plane[0];
}
INLINE set_query *set_at(x86_work *w, int most_rows, int set) {
    return (set_query *)(void *)((uint8_t *)(w + 1) + (size_t)set * set_bytes(most_rows));
}

typedef struct block {
    quire_attend_job *job;
    x86_work *work;
    int first;                          /* page of the chunk */
    int from, n;                        /* first page present, number of pages present */
    const uint8_t *record[PAGES];       /* NULL: no such page */
    const uint8_t *k[PAGES], *v[PAGES]; /* codes */
    source_kind k_source, v_source;
    bool v_loaded; /* V is not read if every row drops the block */
} block;

INLINE product product_of(const quire_side_format *side) {
    return side->bits == 8 ? WIDE : side->book ? SIGNED : SMALL;
}

INLINE ivec load_book(const int8_t *book /* (16) or NULL */) {
    return book ? b_repeat16(book) : b_all(0);
}

#endif
