/* Template, part of packed_tmpl.h: a set of query rows as int8 operands, bit for bit those of
 * quire__ref_quantize_query. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_QUERY_TMPL_H
#define QUIRE_KERN_NEON_QUERY_TMPL_H

#include "kern/neon/work_tmpl.h"

/* Below 8 bits, the codes of four dims are stored in the order 0 2 1 3; q must match. */
static const uint8_t DIM_ORDER[2][16] = {
    {0, 4, 2, 6, 8, 12, 10, 14, 16, 20, 18, 22, 24, 28, 26, 30},
    {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}};

/* The low bytes of 2 x 8 integers, in the order of the codes. */
INLINE int8x16_t narrow2(int32x4_t a0, int32x4_t a1, int32x4_t b0, int32x4_t b1, uint8x16_t order) {
    const int8x16x2_t x = {
        {vreinterpretq_s8_s16(vuzp1q_s16(vreinterpretq_s16_s32(a0), vreinterpretq_s16_s32(a1))),
         vreinterpretq_s8_s16(vuzp1q_s16(vreinterpretq_s16_s32(b0), vreinterpretq_s16_s32(b1)))}};
    return vqtbl2q_s8(x, order);
}

typedef struct pair_scale {
    float32x4_t inverse, step; /* [r0, r0, r1, r1] */
} pair_scale;

INLINE pair_scale scale_of(float32x4_t r0, float32x4_t r1, float steps) { /* magnitudes per lane */
    const float32x4_t both = max_of_rows(vpmaxq_f32(r0, r1)), n = vdupq_n_f32(steps);
    const uint32x4_t usable = vcgeq_f32(both, vdupq_n_f32(1e-30f));
    return (pair_scale){
        vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(vdivq_f32(n, both)), usable)),
        vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(vdivq_f32(both, n)), usable))};
}

INLINE int32x4_t sum_bytes(int32x4_t sum, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, x, vdupq_n_s8(1));
#else
    return vpadalq_s16(sum, vpaddlq_s8(x));
#endif
}

/* Operands of channels first .. first+n of a pair, whose scaled rows are a and b; of a lone row a
 * and zeros. */
INLINE void put_integers(const float *a, const float *b, const bool lone, int first, int n,
                         pair_scale scale, const int rows, const int planes, const bool natural,
                         float mid, int pair, int g, set_query *out) {
    const int n_pairs = pairs_of(rows);
    const float32x4_t i0 = vdupq_laneq_f32(scale.inverse, 0),
                      i1 = vdupq_laneq_f32(scale.inverse, 2);
    const uint8x16_t order = vld1q_u8(DIM_ORDER[natural]);
    int32x4_t sum = vdupq_n_s32(0), sum_low = sum;
    for (int d = first; d < first + n; d += 8) {
        int32x4_t x[4]; /* the integer is in the low bits */
        UNROLL for (int j = 0; j < 2; j++) {
            x[j] = as_s32(vfmaq_f32(fresh(MAGIC), vld1q_f32(a + d + 4 * j), i0));
            if (!lone)
                x[2 + j] = as_s32(vfmaq_f32(fresh(MAGIC), vld1q_f32(b + d + 4 * j), i1));
        }
        if (lone)
            x[2] = x[3] = vdupq_n_s32(0);
        if (planes == 1) {
            const int8x16_t c = narrow2(x[0], x[1], x[2], x[3], order);
            put_operand(out->q8[d / 8][pair], vreinterpretq_u8_s8(c));
            sum = sum_bytes(sum, c);
        } else {
            const int in_use = lone ? 2 : 4;
            int32x4_t hi[4] = {x[0], x[1], x[2], x[3]}, lo[4] = {x[0], x[1], x[2], x[3]};
            UNROLL for (int u = 0; u < in_use; u++) x[u] =
                vsubq_s32(x[u], as_s32(vld1q_f32(MAGIC)));
            UNROLL for (int u = 0; u < in_use; u++) hi[u] =
                vshrq_n_s32(vaddq_s32(x[u], vdupq_n_s32(64)), 7);
            UNROLL for (int u = 0; u < in_use; u++) lo[u] = vsubq_s32(x[u], vshlq_n_s32(hi[u], 7));
            if (is_folded(rows, planes)) {
                const int8x16_t c = narrow2(hi[0], hi[1], lo[0], lo[1], order);
                put_operand(out->q8[d / 8][pair], vreinterpretq_u8_s8(c));
                if (mid != 0)
                    sum = sum_bytes(sum, c);
                continue;
            }
            const int8x16_t h = narrow2(hi[0], hi[1], hi[2], hi[3], order),
                            l = narrow2(lo[0], lo[1], lo[2], lo[3], order);
            put_operand(out->q8[d / 8][pair], vreinterpretq_u8_s8(h));
            put_operand(out->q8[d / 8][n_pairs + pair], vreinterpretq_u8_s8(l));
            if (mid != 0) {
                sum = sum_bytes(sum, h);
                sum_low = sum_bytes(sum_low, l);
            }
        }
    }
    if (is_folded(rows, planes)) /* [high, high, low, low] */
        sum_low = vextq_s32(sum, sum, 2);
    const float32x4_t total =
        vcvtq_f32_s32(planes == 2 ? vaddq_s32(vshlq_n_s32(sum, 7), sum_low) : sum);
    out->scale[g][pair] = scale.step;
    out->centre[g][pair] = vmulq_n_f32(sum_of_rows(total), mid);
}

/* One scale group of a pair; the offset is the sum of q. */
INLINE void quantize_pair(const float *q0, const float *q1, int first, int n, const int rows,
                          const int planes, const bool natural, float mid, int pair, int g,
                          set_query *out) {
    float32x4_t magnitude[2] = {vdupq_n_f32(0), vdupq_n_f32(0)},
                sum[2] = {magnitude[0], magnitude[0]};
    for (int d = first; d < first + n; d += 4) {
        const float32x4_t a = vld1q_f32(q0 + d), b = vld1q_f32(q1 + d);
        magnitude[0] = vmaxq_f32(magnitude[0], vabsq_f32(a));
        magnitude[1] = vmaxq_f32(magnitude[1], vabsq_f32(b));
        sum[0] = vaddq_f32(sum[0], a);
        sum[1] = vaddq_f32(sum[1], b);
    }
    const pair_scale scale = scale_of(magnitude[0], magnitude[1], planes == 2 ? 127 * 128 : 127);
    put_integers(q0, q1, is_folded(rows, planes), first, n, scale, rows, planes, natural, mid, pair,
                 g, out);
    out->offset[g][pair] = sum_of_rows(vpaddq_f32(sum[0], sum[1]));
}

/* A whole set with the channel scales of a block's pages folded in; the offset is q.zero. All rows
 * and both pages side by side, so that q is loaded once and no chain waits for another. */
INLINE void quantize_channels(const float *const q[SET], const float *const scale[PAGES],
                              const float *const zero[PAGES], const int pages, int dim,
                              const int rows, const int planes, const bool natural, float mid,
                              float (*scaled)[SET][QUIRE_DIM_MAX], set_query *out /* (pages) */) {
    const int n_pairs = pairs_of(rows);
    float32x4_t magnitude[PAGES][SET], dot[PAGES][SET];
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int r = 0; r < SET; r++) magnitude[p][r] =
        dot[p][r] = vdupq_n_f32(0);
    for (int d = 0; d < dim; d += 4) {
        float32x4_t k[PAGES], z[PAGES];
        UNROLL for (int p = 0; p < pages; p++) {
            k[p] = vld1q_f32(scale[p] + d);
            z[p] = vld1q_f32(zero[p] + d);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const float32x4_t x = vld1q_f32(q[r] + d);
            UNROLL for (int p = 0; p < pages; p++) {
                const float32x4_t y = vmulq_f32(x, k[p]);
                vst1q_f32(scaled[p][r] + d, y);
                magnitude[p][r] = vmaxq_f32(magnitude[p][r], vabsq_f32(y));
                dot[p][r] = vfmaq_f32(dot[p][r], x, z[p]);
            }
        }
    }
    pair_scale s[PAGES][PAIRS]; /* computed before they are used: divisions are slow, but overlap */
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs;
                                                       pair++) s[p][pair] =
        scale_of(magnitude[p][2 * pair], magnitude[p][2 * pair + 1], planes == 2 ? 127 * 128 : 127);
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs; pair++) out[p]
        .offset[0][pair] = sum_of_rows(vpaddq_f32(dot[p][2 * pair], dot[p][2 * pair + 1]));
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs; pair++)
        put_integers(scaled[p][2 * pair], scaled[p][2 * pair + 1], is_lone(rows, pair), 0, dim,
                     s[p][pair], rows, planes, natural, mid, pair, 0, &out[p]);
}

#endif
