/* From logits to u8 weights by way of fp16, 32 at a time, for V of fewer than 8 bits with one scale
 * per token. Decode (half_softmax_tmpl.h) and prefill (amx/amx_half_softmax.h) share this
 * arithmetic, and so have the same bits:
 *
 *   n = round(x * slope + start)    in 16 bits: 1024 * (26 + logit - m), at least 0; x: score
 *   e = 2^11 * 2^(n / 1024 - 26)    fp16; hidden tokens have a score of -inf, so n = 0 and e = 0
 *   w = fp16(e * s')                s' = scale of V * 2^-b, b as in channel_query.h, page by page
 *   weight = round(w * r)           r = fp16(255 / largest w of the block)
 *
 * u8 rounds a weight to 1/510 of the largest; n rounds e by 1/2900, the cubic by 1/1500 at worst.
 *
 * A score is a logit, or, where nothing but a step and an offset comes between integer products and
 * logits, the integer: then they and the distance from m take one multiplication together.
 *
 * A sum of e adds 16 tokens of the block in fp16, those with the same t / 16 % 2 and t % 4, then
 * the eight sums in fp32. h_pack leaves such tokens in one column of every vector's four lanes.
 *
 * A row must not depend on a page that it does not see: 2^b is of a page, and the two pages of a
 * block meet in fp32. */
#ifndef QUIRE_KERN_X86_HALF_WEIGHTS_H
#define QUIRE_KERN_X86_HALF_WEIGHTS_H

#include "kern/x86/half.h"

#define HALF_OCTAVE 1024.0f /* n of a factor of 2 */
#define HALF_ONE 2048.0f    /* e of the largest logit, whose n this is: */
#define HALF_MOST (26 * HALF_OCTAVE)
/* A largest w below this counts as this, so that r stays within fp16: such a block loses part of
 * u8's range. That takes a V scale 2^18 times smaller than another of its page, or of the block. */
#define HALF_LEAST (255.0f / 32768)
#define HALF_LEAST_UNIT 0x1p-15f /* the smallest 2^b */

/* The logit that a page's largest integer score stands for. */
INLINE fvec score_logit(fvec largest, fvec step, fvec offset) {
    const fvec logit = f_fma(largest, step, offset);
    return _mm512_mask_mov_ps(f_all(QUIRE_NOTHING_SEEN),
                              _mm512_cmp_ps_mask(largest, f_all(QUIRE_NOTHING_SEEN), _CMP_GT_OQ),
                              logit);
}

/* How the scores of a page become n. */
typedef struct half_line {
    fvec slope, start;
} half_line;

/* `step`: what a score of 1 is worth; the page's largest score, its logit, and m. The line meets
 * the page's largest score, far from 0, so `start` can be large, and is rounded. The slope is
 * limited so that this moves n by half an octave at most and fp16 can hold what follows. Where
 * the limit matters, a step of the score is worth more than an octave, and rounding has moved
 * logits by many. */
INLINE half_line h_line(fvec step, fvec largest, fvec logit, fvec m) {
    /* 2^33 divided by the power of two in the largest score */
    const ivec power = b_and(f_bits(f_max_abs(largest, f_all(2))), i_all(0x7f800000));
    const fvec limit = f_from_bits(i_sub(i_all((int32_t)((254u + 33u) << 23)), power));
    const fvec slope = _mm512_min_ps(f_mul(step, f_all(HALF_OCTAVE)), limit);
    const fvec most = f_fma(f_sub(logit, m), f_all(HALF_OCTAVE), f_all(HALF_MOST));
    return (half_line){slope, f_fma(f_sub(f_all(0), slope), largest, most)};
}

/* n of two vectors. What int32 cannot hold, and what is no number, becomes INT32_MIN, so 0. */
INLINE ivec h_round_scores(fvec a, fvec b) {
    return _mm512_packus_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
}

/* e of n vectors, side by side, because each is a long chain. n has the exponent of e in its upper
 * bits and a fraction f in its lower ones; 1.f becomes 2^f by a cubic that stays within [1, 2) for
 * every f and is 1 for 0 (relative error 6.7e-4, 2.5e-4 in the mean square). */
INLINE void h_exp2_each(const int n, ivec *x) {
    const ivec fraction = _mm512_set1_epi16(0x3ff), one = _mm512_set1_epi16(0x3c00);
    const ivec c0 = _mm512_set1_epi16(0x3732), c1 = _mm512_set1_epi16(0x37b8),
               c2 = _mm512_set1_epi16((short)0xa195), c3 = _mm512_set1_epi16(0x2d08);
    ivec g[8], p[8];
    UNROLL for (int u = 0; u < n; u++) g[u] = _mm512_ternarylogic_epi32(fraction, x[u], one, 0xca);
    UNROLL for (int u = 0; u < n; u++) p[u] = h_fma(c3, g[u], c2);
    UNROLL for (int u = 0; u < n; u++) p[u] = h_fma(p[u], g[u], c1);
    UNROLL for (int u = 0; u < n; u++) p[u] = h_fma(p[u], g[u], c0);
    UNROLL for (int u = 0; u < n; u++) x[u] = _mm512_ternarylogic_epi32(fraction, p[u], x[u], 0xca);
}

/* w * r + 1024, of which the low byte is the weight. */
INLINE ivec h_weight(ivec w, ivec r) { return h_fma(w, r, _mm512_set1_epi16(0x6400)); }

/* fp16(255 / largest w) of pages, and what a step of weights is worth apart from 2^-11 of e and the
 * codec's unit. `top`: the largest w of each page; page_unit: 2^b. */
typedef struct half_steps {
    fvec inverse[2], unit;
} half_steps;

INLINE half_steps h_steps(const int n, const fvec *top, const float *page_unit) {
    fvec unit[2], most = f_all(HALF_LEAST_UNIT), largest = f_all(HALF_LEAST);
    half_steps steps;
    UNROLL for (int p = 0; p < n; p++) {
        unit[p] =
            f_where_above(top[p], 0, f_all(page_unit[p])); /* what has no weight is not seen */
        most = f_max(most, unit[p]);
    }
    const fvec share = f_from_bits(i_sub(i_all(254 << 23), f_bits(most))); /* 1 / most */
    UNROLL for (int p = 0; p < n; p++) {
        unit[p] = f_mul(unit[p], share);
        largest = f_max(largest, f_mul(top[p], unit[p]));
    }
    const fvec inverse = _mm512_div_ps(f_all(255), largest);
    UNROLL for (int p = 0; p < n; p++) steps.inverse[p] = f_mul(inverse, unit[p]);
    steps.unit = f_mul(f_mul(largest, f_all(1 / 255.0f)), most);
    return steps;
}

#endif
