/* Template, part of packed_tmpl.h: from scores to u8 weights, eight at a time in fp16, for V of
 * fewer than 8 bits with one scale per token. Parameters: packed_tmpl.h.
 *
 * u8 rounds weights to 1/510 of the largest; fp16 holds them to 1/4096, and their sum is taken in
 * fp32. A row must not depend on a page that it does not see, so the scales of V are brought into
 * fp16's range page by page, by powers of two, and the two pages of a block meet in fp32.
 */
#ifndef QUIRE_KERN_NEON_SOFTMAX16_TMPL_H
#define QUIRE_KERN_NEON_SOFTMAX16_TMPL_H

#include "kern/neon/softmax_tmpl.h"

#if HAVE_SOFTMAX16

#define EIGHT(x)                                                                                   \
    { x, x, x, x, x, x, x, x }

INLINE float16x8_t fresh16(const void *constant /* (8) of 16 bits */) {
    return vreinterpretq_f16_f32(fresh((const float *)constant));
}

/* Distances y = m - logit in fixed point: adding 1.5 * 2^13 leaves y * 1024 in the low 16 bits. */
#define FIX10 12288.0f
static const float FIX10_LAST = FIX10 + 31.96875f; /* anything farther has no weight */

/* 1024 * 2^-y for y = n + f: a cubic in f - 1/2 (relative error 7e-5, less than its rounding), then
 * n is subtracted from the exponent, saturating at 0. */
static const float16_t EXP16[4][8] = {EIGHT(724.02537f), EIGHT(-501.97262f), EIGHT(175.66734f),
                                      EIGHT(-39.962721f)};
static const uint16_t FRACTION16[8] = EIGHT(1023);
#define EXP16_ONE 1024.0f

INLINE void exp16_4(const uint16x8_t y[4], float16x8_t e[4]) {
    const float16x8_t top = vld1q_f16(EXP16[3]), middle = vdupq_n_f16(1.5f);
    float16x8_t t[4], x[4];
    uint16x8_t n[4];
    EACH t[u] = vreinterpretq_f16_u16(vbslq_u16(vreinterpretq_u16_f16(fresh16(FRACTION16)), y[u],
                                                vdupq_n_u16(0x3C00))); /* 1 + f */
    EACH t[u] = vsubq_f16(t[u], middle);
    EACH x[u] = vfmaq_f16(fresh16(EXP16[2]), t[u], top);
    EACH n[u] = vbicq_u16(y[u], vdupq_n_u16(1023));
    EACH x[u] = vfmaq_f16(fresh16(EXP16[1]), x[u], t[u]);
    EACH x[u] = vfmaq_f16(fresh16(EXP16[0]), x[u], t[u]);
    EACH e[u] = vreinterpretq_f16_u16(vqsubq_u16(vreinterpretq_u16_f16(x[u]), n[u]));
}

/* sum + the lower or upper four. */
INLINE float32x4_t add_half16(float32x4_t sum, float16x8_t x, const bool upper) {
#if defined(__ARM_FEATURE_FP16_FML)
    const float16x8_t one = vdupq_n_f16(1);
    return upper ? vfmlalq_high_f16(sum, x, one) : vfmlalq_low_f16(sum, x, one);
#else
    return vaddq_f32(sum, upper ? vcvt_high_f32_f16(x) : vcvt_f32_f16(vget_low_f16(x)));
#endif
}

/* Adds up the four vectors in the order that they have beside another row: token t with t + 4, then
 * these with the ones 8 further on. */
INLINE void add_sums16(const float16x8_t e[4], const bool lone, float32x4_t sum[2]) {
    if (!lone) {
        const float16x8_t four = vaddq_f16(vaddq_f16(e[0], e[1]), vaddq_f16(e[2], e[3]));
        sum[0] = add_half16(sum[0], four, false);
        sum[1] = add_half16(sum[1], four, true);
        return;
    }
    UNROLL for (int u = 0; u < 4; u += 2) {
        const uint64x2_t a = vreinterpretq_u64_f16(e[u]), b = vreinterpretq_u64_f16(e[u + 1]);
        const float16x8_t two = vaddq_f16(vreinterpretq_f16_u64(vzip1q_u64(a, b)),
                                          vreinterpretq_f16_u64(vzip2q_u64(a, b)));
        const float16x8_t four = vaddq_f16(two, vextq_f16(two, two, 4));
        sum[0] = add_half16(sum[0], four, false);
    }
}

/* Scales of eight weights, or of a lone row's eight tokens. */
INLINE float16x8_t scales16(const neon_work *w, int p, int i, const bool lone) {
    if (!lone)
        return vld1q_f16(w->scale16[p][i]);
    return vreinterpretq_f16_u32(
        vuzp1q_u32(vreinterpretq_u32_f16(vld1q_f16(w->scale16[p][2 * i])),
                   vreinterpretq_u32_f16(vld1q_f16(w->scale16[p][2 * i + 1]))));
}

/* One page's weights 1024 * 2^(logit - m) * scale to w16; returns the sum without the scale, as
 * parts per row, and the largest. Distances are rounded to 1/1024 from `base` on, which is m - peak
 * rounded the same way. */
INLINE float32x4_t exponentials16(neon_work *w, int pair, const bool lone, int p, const float *base,
                                  float16x8_t *largest) {
    const set_scores *score = &w->score[p];
    const float32x4_t top = score->top[pair], step = score->step[pair],
                      last = vdupq_n_f32(FIX10_LAST);
    float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    float16x8_t most[2] = {vdupq_n_f16(0), vdupq_n_f16(0)};
    for (int i = 0; i < cells_of(lone) / 2; i += 4) {
        float32x4_t a[4], b[4];
        uint16x8_t y[4];
        float16x8_t e[4];
        EACH {
            a[u] = vsubq_f32(vld1q_f32(score->s[pair][2 * (i + u)]), top);
            b[u] = vsubq_f32(vld1q_f32(score->s[pair][2 * (i + u) + 1]), top);
        }
        EACH {
            a[u] = vfmsq_f32(fresh(base), a[u], step);
            b[u] = vfmsq_f32(fresh(base), b[u], step);
        }
        EACH { /* not min: a hidden token under a scale of zero is NaN here */
            a[u] = vminnmq_f32(a[u], last);
            b[u] = vminnmq_f32(b[u], last);
        }
        EACH y[u] = vuzp1q_u16(vreinterpretq_u16_f32(a[u]), vreinterpretq_u16_f32(b[u]));
        exp16_4(y, e);
        add_sums16(e, lone, sum);
        EACH e[u] = vmulq_f16(e[u], scales16(w, p, i + u, lone));
        EACH most[u & 1] = vmaxq_f16(most[u & 1], e[u]);
        EACH vst1q_f16(w->w16[p][pair][i + u], e[u]);
    }
    *largest = vmaxq_f16(most[0], most[1]);
    return lone ? parts_of_cells(sum[0], true) : vaddq_f32(sum[0], sum[1]);
}

static const float16_t MAGIC_U8[8] = EIGHT(1024.0f); /* leaves the integer in the low byte */

/* Operands of one page: w16 * inverse as u8; returns sums of the integers. */
INLINE uint32x4_t weights16(neon_work *w, int pair, int p, float16x8_t inverse) {
    const uint8x16_t order = vld1q_u8(ROW_ORDER);
    uint32x4_t total[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
    UNROLL for (int atom = 0; atom < 8; atom += 4) {
        float16x8_t a[4], b[4];
        uint8x16_t x[4];
        EACH {
            const int i = first_pair_of(atom + u) / 2;
            a[u] = vfmaq_f16(fresh16(MAGIC_U8), vld1q_f16(w->w16[p][pair][i]), inverse);
            b[u] = vfmaq_f16(fresh16(MAGIC_U8), vld1q_f16(w->w16[p][pair][i + 4]), inverse);
        }
        EACH x[u] =
            vqtbl1q_u8(vuzp1q_u8(vreinterpretq_u8_f16(a[u]), vreinterpretq_u8_f16(b[u])), order);
        EACH put_operand(w->p8[p * 8 + atom + u][pair], x[u]);
        EACH total[u & 1] = vdotq_u32(total[u & 1], x[u], vdupq_n_u8(1));
    }
    return vaddq_u32(total[0], total[1]);
}

/* For a lone row: eight tokens and the eight that are 16 further on form two atoms; the other row's
 * weights are zero. */
INLINE uint32x4_t weights16_lone(neon_work *w, int pair, int p, float16x8_t inverse) {
    const uint32x4_t zero = vdupq_n_u32(0);
    uint32x4_t total = zero;
    UNROLL for (int atom = 0; atom < 8; atom += 2) {
        const int i = first_pair_of(atom) / 4;
        const float16x8_t a = vfmaq_f16(fresh16(MAGIC_U8), vld1q_f16(w->w16[p][pair][i]), inverse),
                          b = vfmaq_f16(fresh16(MAGIC_U8), vld1q_f16(w->w16[p][pair][i + 2]),
                                        inverse);
        const uint8x16_t x = vuzp1q_u8(vreinterpretq_u8_f16(a), vreinterpretq_u8_f16(b));
        put_operand(w->p8[p * 8 + atom][pair],
                    vreinterpretq_u8_u32(vuzp1q_u32(vreinterpretq_u32_u8(x), zero)));
        put_operand(w->p8[p * 8 + atom + 1][pair],
                    vreinterpretq_u8_u32(vuzp2q_u32(vreinterpretq_u32_u8(x), zero)));
        total = vdotq_u32(total, x, vdupq_n_u8(1));
    }
    return total;
}

/* Separate functions, so that all registers are free for their four chains. */
#define APART static __attribute__((noinline))
APART float32x4_t exponentials_of_pair(neon_work *w, int pair, int p, const float *base,
                                       float16x8_t *largest) {
    return exponentials16(w, pair, false, p, base, largest);
}
APART float32x4_t exponentials_of_lone(neon_work *w, int pair, int p, const float *base,
                                       float16x8_t *largest) {
    return exponentials16(w, pair, true, p, base, largest);
}
APART float32x4_t weights_of_pair(neon_work *w, int pair, int p, float16x8_t inverse) {
    return sum_of_rows(vcvtq_f32_u32(weights16(w, pair, p, inverse)));
}
APART float32x4_t weights_of_lone(neon_work *w, int pair, int p, float16x8_t inverse) {
    return vdupq_n_f32((float)vaddvq_u32(weights16_lone(w, pair, p, inverse)));
}

/* 2^x of integers x >= -126. */
INLINE float32x4_t power_of_two(int32x4_t x) {
    return as_f32(vshlq_n_s32(vaddq_s32(x, vdupq_n_s32(127)), 23));
}

/* Weights of a set over a block: p8, the sums of 2^(logit - m) (two parts per row), the value of
 * one step of p8 times a V code, and the sums of the integers. Each step is done for all pairs
 * before the next, so that the reductions and divisions of one pair hide behind the other's. */
INLINE void block_weights16(neon_work *w, float v_unit, const int rows, int first, int n,
                            const float32x4_t *m, float32x4_t *sum, float32x4_t *unit,
                            float32x4_t *integers) {
    const int n_pairs = pairs_of(rows);
    const float32x4_t nothing = vdupq_n_f32(QUIRE_NOTHING_SEEN);
    float16x8_t most[PAIRS][PAGES];
    float32x4_t rest[PAIRS][PAGES]; /* what rounding m - peak lost, as a factor near 1 */
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        sum[pair] = vdupq_n_f32(0);
        for (int p = first; p < first + n; p++) {
            const float32x4_t gap = vsubq_f32(m[pair], w->score[p].peak[pair]);
            const float32x4_t fixed =
                vminq_f32(vaddq_f32(gap, vdupq_n_f32(FIX10)), vdupq_n_f32(FIX10_LAST));
            const float32x4_t lost = vsubq_f32(gap, vsubq_f32(fixed, vdupq_n_f32(FIX10)));
            float base[4];
            vst1q_f32(base, fixed);
            rest[pair][p] = vfmsq_f32(vdupq_n_f32(1), vminq_f32(lost, vdupq_n_f32(0x1p-11f)),
                                      vdupq_n_f32(QUIRE_LN2));
            sum[pair] = vfmaq_f32(sum[pair],
                                  is_lone(rows, pair)
                                      ? exponentials_of_lone(w, pair, p, base, &most[pair][p])
                                      : exponentials_of_pair(w, pair, p, base, &most[pair][p]),
                                  rest[pair][p]);
        }
    }
    float16x4_t scaled[PAIRS][PAGES];
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        float32x4_t largest = vdupq_n_f32(0), ratio[PAGES];
        int32x4_t exponent[PAGES], highest = vdupq_n_s32(-15);
        for (int p = first; p < first + n; p++) {
            const uint32x4_t seen = vcgtq_f32(w->score[p].peak[pair], nothing);
            exponent[p] = vbslq_s32(seen, vdupq_n_s32(w->exponent16[p]), vdupq_n_s32(-15));
            highest = vmaxq_s32(highest, exponent[p]);
        }
        for (int p = first; p < first + n; p++) {
            const float16x8_t x = most[pair][p];
            ratio[p] = vmulq_f32(power_of_two(vsubq_s32(exponent[p], highest)), rest[pair][p]);
            largest = vmaxq_f32(
                largest,
                vmulq_f32(vcvt_f32_f16(vmax_f16(vget_low_f16(x), vget_high_f16(x))), ratio[p]));
        }
        /* Keeps 255 / largest within fp16. A block whose largest weight is smaller loses part of
         * u8's range. */
        largest =
            vmaxq_f32(max_of_cells(largest, is_lone(rows, pair)), vdupq_n_f32(255.0f / 32768));
        const float32x4_t inverse = vdivq_f32(vdupq_n_f32(255), largest);
        for (int p = first; p < first + n; p++)
            scaled[pair][p] = vcvt_f16_f32(vmulq_f32(inverse, ratio[p]));
        /* The largest weight is exactly 255 steps, however its inverse was rounded. */
        unit[pair] =
            vmulq_f32(vmulq_n_f32(largest, v_unit / (255 * EXP16_ONE)), power_of_two(highest));
        sum[pair] = vmulq_n_f32(sum[pair], 1 / EXP16_ONE);
    }
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        integers[pair] = vdupq_n_f32(0);
        for (int p = first; p < first + n; p++) {
            const float16x8_t inverse = vcombine_f16(scaled[pair][p], scaled[pair][p]);
            integers[pair] = vaddq_f32(integers[pair], is_lone(rows, pair)
                                                           ? weights_of_lone(w, pair, p, inverse)
                                                           : weights_of_pair(w, pair, p, inverse));
        }
    }
}

#else

INLINE void block_weights16(neon_work *w, float v_unit, const int rows, int first, int n,
                            const float32x4_t *m, float32x4_t *sum, float32x4_t *unit,
                            float32x4_t *integers) {
    (void)w, (void)v_unit, (void)rows, (void)first, (void)n, (void)m, (void)sum, (void)unit,
        (void)integers;
}
#endif
#endif
