/* From logits to u8 weights by way of fp16, 32 at a time, for V of fewer than 8 bits with one scale
 * per token. Decode (half_softmax_tmpl.h) and prefill (amx/amx_half_softmax.h) share this
 * arithmetic, and so have the same bits:
 *
 *   y = round(1024 * (m - logit))   in 16 bits; m: the row's largest logit of the block
 *   e = 2^11 * 2^(-y / 1024)        fp16; 0 for y >= 26 * 1024, so that hidden tokens have none
 *   w = fp16(e * s')                s' = scale of V * 2^-b, b as in channel_query.h, page by page
 *   weight = round(w * r)           r = fp16(255 / largest w of the block)
 *
 * u8 rounds a weight to 1/510 of the largest; y rounds e by 1/2900, the cubic by 1/1500 at worst.
 *
 * A sum of e adds 16 tokens of the block in fp16, those with the same t / 16 % 2 and t % 4, then
 * the eight sums in fp32. h_pack leaves such tokens in one column of every vector's four lanes.
 *
 * A row must not depend on a page that it does not see: 2^b is of a page, and the two pages of a
 * block meet in fp32. */
#ifndef QUIRE_KERN_X86_HALF_WEIGHTS_H
#define QUIRE_KERN_X86_HALF_WEIGHTS_H

#include "kern/x86/half.h"

#define HALF_OCTAVE 1024.0f /* y of a factor of 2 */
#define HALF_ONE 2048.0f    /* e of the largest logit */
/* A largest w below this counts as this, so that r stays within fp16: such a block loses part of
 * u8's range. That takes a V scale 2^18 times smaller than another of its page, or of the block. */
#define HALF_LEAST (255.0f / 32768)
#define HALF_LEAST_UNIT 0x1p-15f /* the smallest 2^b */

/* y, from 1024 * (m - logit). What int32 cannot hold becomes INT32_MIN, here 2^15: also far. */
INLINE ivec h_distances(fvec a, fvec b) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
}

/* e of n vectors, side by side, because each is a long chain. 26 * 1024 - y has the exponent of e
 * in its upper bits and a fraction f in its lower ones; 1.f becomes 2^f by a cubic that stays
 * within [1, 2) for every f and is 1 for 0 (relative error 6.7e-4, 2.5e-4 in the mean square). */
INLINE void h_exp2_each(const int n, ivec *x) {
    const ivec fraction = _mm512_set1_epi16(0x3ff), one = _mm512_set1_epi16(0x3c00);
    const ivec c0 = _mm512_set1_epi16(0x3732), c1 = _mm512_set1_epi16(0x37b8),
               c2 = _mm512_set1_epi16((short)0xa195), c3 = _mm512_set1_epi16(0x2d08);
    ivec g[8], p[8];
    UNROLL for (int u = 0; u < n; u++) x[u] = _mm512_subs_epu16(_mm512_set1_epi16(26 << 10), x[u]);
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
