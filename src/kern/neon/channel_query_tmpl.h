/* Template, part of packed_tmpl.h: a set of query rows as int8 operands against pages with channel
 * scales and fewer than 8 bits, as kern/shared/channel_query.h defines. Parameters:
 * packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_CHANNEL_QUERY_TMPL_H
#define QUIRE_KERN_NEON_CHANNEL_QUERY_TMPL_H

#include "kern/neon/fp16x8_tmpl.h"
#include "kern/neon/query_tmpl.h"

/* Eight channels in the order of the codes: 0 2 1 3 in each four. */
INLINE float16x8_t in_code_order(float16x8_t x) {
    static const uint8_t order[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    return vreinterpretq_f16_u8(vqtbl1q_u8(vreinterpretq_u8_f16(x), vld1q_u8(order)));
}

INLINE float16x8_t without_sign(float16x8_t x) {
    return vreinterpretq_f16_u16(vandq_u16(vreinterpretq_u16_f16(x), vdupq_n_u16(0x7fff)));
}

/* q' of one row and |q'|; returns what one unit of them is worth. */
static float query_to_fp16(const float *q, int dim, float16_t *to, float16_t *magnitude) {
    const int exponent = exponent_of_query(q, dim);
    const float factor = quire__query_factor(exponent);
    for (int d = 0; d < dim; d += 8) {
        const float16x8_t x = in_code_order(to_fp16x8(q + d, factor));
        vst1q_f16(to + d, x);
        vst1q_f16(magnitude + d, without_sign(x));
    }
    return quire__query_unit(exponent);
}

/* Exponent of the largest of n fp16 numbers, signs ignored; n is a multiple of 16. */
INLINE int largest_exponent(const uint8_t *x, int n) {
    uint16x8_t most[2] = {vdupq_n_u16(0), vdupq_n_u16(0)};
    for (int i = 0; i < n; i += 16)
        UNROLL for (int j = 0; j < 2; j++) most[j] =
            vmaxq_u16(most[j], vandq_u16(vreinterpretq_u16_u8(vld1q_u8(x + 2 * i + 16 * j)),
                                         vdupq_n_u16(0x7fff)));
    return quire__scale_exponent(vmaxvq_u16(vmaxq_u16(most[0], most[1])));
}

/* s' of one page; returns what one unit of it is worth. */
static float scales_to_fp16(const uint8_t *scales /* (dim) fp16 */, int dim, float16_t *to) {
    const int exponent = largest_exponent(scales, dim);
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    const float16x8_t factor = h_power_of_two(-exponent);
    for (int d = 0; d < dim; d += 8)
        vst1q_f16(to + d,
                  in_code_order(vmulq_f16(vreinterpretq_f16_u8(vld1q_u8(scales + 2 * d)), factor)));
#else
    const float factor = quire__power_of_two(-exponent);
    for (int d = 0; d < dim; d += 8) {
        const float16x8_t s = vreinterpretq_f16_u8(vld1q_u8(scales + 2 * d));
        vst1q_f16(to + d, in_code_order(vcombine_f16(
                              vcvt_f16_f32(vmulq_n_f32(vcvt_f32_f16(vget_low_f16(s)), factor)),
                              vcvt_f16_f32(vmulq_n_f32(vcvt_high_f32_f16(s), factor)))));
    }
#endif
    return quire__power_of_two(exponent);
}

/* Rows of a set: in fp32 for q.zero, and in fp16. */
typedef struct channel_rows {
    const float *row[SET];
    /* |fp16|: saves taking the magnitude of each product. */
    const float16_t *fp16[SET], *magnitude[SET];
    const float *unit; /* (SET) value of one unit of fp16 */
} channel_rows;

typedef struct channel_page {
    const float16_t *scale; /* in fp16 */
    const float *zero;
    float unit; /* value of one unit of scale */
} channel_page;

/* sum += weight * the bytes, which are two rows; weight is the same in all lanes. */
INLINE int32x4_t sum_weighted(int32x4_t sum, int8x16_t x, int8x16_t weight) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, x, weight);
#else
    const int16x8_t pairs = vpaddlq_s8(x); /* of one row; at most 254 * 31 */
    return vpadalq_s16(sum, vmulq_s16(pairs, vmovl_s8(vget_low_s8(weight))));
#endif
}

/* A whole set against a block's pages; the offset is q.zero. All rows and both pages side by side,
 * so that q is loaded once and no chain waits for another. */
INLINE void quantize_by_channels(const channel_rows *q, const int rows, const channel_page *page,
                                 const int pages, const quire_side_format *k,
                                 set_query *out /* (pages) */) {
    enum { MOST = PAGES * SET };
    const int dim = k->dim;
    const int n_pairs = pairs_of(rows), n = 2 * n_pairs, count = pages * n;
    fp16x8 most[MOST];
    float32x4_t dot[MOST];
    UNROLL for (int i = 0; i < MOST; i++) most[i] = h_zero();
    UNROLL for (int i = 0; i < MOST; i++) dot[i] = vdupq_n_f32(0);
    for (int d = 0; d < dim; d += 8) {
        fp16x8 s[PAGES];
        float32x4_t z[PAGES][2];
        UNROLL for (int p = 0; p < pages; p++) {
            s[p] = h_abs(h_load(page[p].scale + d));
            UNROLL for (int j = 0; j < 2; j++) z[p][j] = vld1q_f32(page[p].zero + d + 4 * j);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const fp16x8 size = h_load(q->magnitude[r] + d);
            UNROLL for (int p = 0; p < pages; p++) most[p * n + r] =
                h_max(most[p * n + r], h_mul(size, s[p]));
            UNROLL for (int j = 0; j < 2; j++) {
                const float32x4_t x = vld1q_f32(q->row[r] + d + 4 * j);
                UNROLL for (int p = 0; p < pages; p++) dot[p * n + r] =
                    vfmaq_f32(dot[p * n + r], x, z[p][j]);
            }
        }
    }
    /* Computed before they are used: divisions are slow, but overlap. */
    float16x4_t inverse[MOST / 4];
    float32x4_t step[MOST / 4];
    UNROLL for (int i = 0; i < count; i += 4) {
        const float32x4_t m = h_largest4(most[i], most[i + 1], most[i + 2], most[i + 3]);
        inverse[i / 4] = vcvt_f16_f32(
            vminq_f32(vdivq_f32(vdupq_n_f32(QUIRE_CHANNEL_STEPS), m), vdupq_n_f32(QUIRE_F16_MAX)));
        const float32x2_t low = vld1_f32(q->unit), high = vld1_f32(q->unit + (n == 4 ? 2 : 0));
        const float32x4_t unit =
            vcombine_f32(vmul_n_f32(low, page[i / n].unit),
                         vmul_n_f32(high, page[n == 2 && pages == 2 ? 1 : i / n].unit));
        step[i / 4] = vdivq_f32(unit, vcvt_f32_f16(inverse[i / 4]));
    }
    int32x4_t sum[PAGES][PAIRS];
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const int i = p * n + 2 * pair;
        sum[p][pair] = vdupq_n_s32(0);
        out[p].offset[0][pair] = sum_of_rows(vpaddq_f32(dot[i], dot[i + 1]));
        out[p].scale[0][pair] = i % 4 == 0 ? vzip1q_f32(step[i / 4], step[i / 4])
                                           : vzip2q_f32(step[i / 4], step[i / 4]);
    }
    for (int d = 0; d < dim; d += 8) {
        const int8x16_t twice_mid = vdupq_n_s8((int8_t)((1 << quire__code_bits(k, d)) - 1));
        fp16x8 s[PAGES];
        UNROLL for (int p = 0; p < pages; p++) s[p] = h_load(page[p].scale + d);
        UNROLL for (int pair = 0; pair < n_pairs; pair++) {
            const bool lone = is_lone(rows, pair);
            const fp16x8 a = h_load(q->fp16[2 * pair] + d),
                         b = lone ? h_zero() : h_load(q->fp16[2 * pair + 1] + d);
            UNROLL for (int p = 0; p < pages; p++) {
                const int i = p * n + 2 * pair;
                const int8x16_t zero = vdupq_n_s8(0),
                                c = vuzp1q_s8(
                                    h_round_product(h_mul(a, s[p]), inverse[i / 4], i % 4),
                                    lone ? zero
                                         : h_round_product(h_mul(b, s[p]), inverse[i / 4],
                                                           i % 4 + 1));
                put_operand(out[p].q8[d / 8][pair], vreinterpretq_u8_s8(c));
                sum[p][pair] = sum_weighted(sum[p][pair], c, twice_mid);
            }
        }
    }
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs; pair++) out[p]
        .centre[0][pair] =
        vmulq_n_f32(sum_of_rows(vcvtq_f32_s32(sum[p][pair])), 0.5f); /* below 2^24: exact */
}

#endif
