/* Template, part of packed_tmpl.h and raw_narrow_tmpl.h: eight fp16 numbers and the few operations
 * on them that channel_query.h needs.
 *
 * Parameter, from the compiler flags:
 *   __ARM_FEATURE_FP16_VECTOR_ARITHMETIC  fp16 arithmetic; without it fp32, rounded to fp16 after
 *                                         each product, which gives the same bits
 */
#ifndef QUIRE_KERN_NEON_FP16X8_TMPL_H
#define QUIRE_KERN_NEON_FP16X8_TMPL_H

#include "kern/neon/cells.h"
#include "kern/shared/channel_query.h"

/* a of channel_query.h, for a row of q. */
INLINE int exponent_of_query(const float *q, int dim) {
    float32x4_t most[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int d = 0; d < dim; d += 8)
        UNROLL for (int j = 0; j < 2; j++) most[j] =
            vmaxq_f32(most[j], vabsq_f32(vld1q_f32(q + d + 4 * j)));
    return quire__query_exponent(vmaxvq_f32(vmaxq_f32(most[0], most[1])));
}

/* Eight numbers times a factor, as fp16. */
INLINE float16x8_t to_fp16x8(const float *x, float factor) {
    return vcvt_high_f16_f32(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x), factor)),
                             vmulq_n_f32(vld1q_f32(x + 4), factor));
}

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
typedef float16x8_t fp16x8;

INLINE fp16x8 h_load(const float16_t *x) { return vld1q_f16(x); }
INLINE fp16x8 h_zero(void) { return vdupq_n_f16(0); }
INLINE fp16x8 h_power_of_two(int exponent /* -14 .. 15 */) {
    return vreinterpretq_f16_u16(vdupq_n_u16((uint16_t)((15 + exponent) << 10)));
}
INLINE fp16x8 h_mul(fp16x8 a, fp16x8 b) { return vmulq_f16(a, b); }
INLINE fp16x8 h_abs(fp16x8 x) { return vabsq_f16(x); }
INLINE fp16x8 h_max(fp16x8 a, fp16x8 b) { return vmaxq_f16(a, b); }
INLINE float32x4_t h_largest4(fp16x8 a, fp16x8 b, fp16x8 c, fp16x8 d) {
    const fp16x8 x = vpmaxq_f16(vpmaxq_f16(a, b), vpmaxq_f16(c, d));
    return vcvt_f32_f16(vget_low_f16(vpmaxq_f16(x, x)));
}

/* Adding 1.5 * 2^10 leaves the integer nearest to a product below 2^9 in the low bits. */
#define ROUND_FP16 0x6600
static const uint16_t MAGIC16[8] = {ROUND_FP16, ROUND_FP16, ROUND_FP16, ROUND_FP16,
                                    ROUND_FP16, ROUND_FP16, ROUND_FP16, ROUND_FP16};

/* The integers nearest to x * r[lane], in the low bytes. */
INLINE int8x16_t h_round_product(fp16x8 x, float16x4_t r, const int lane) {
    float16x8_t sum; /* loaded, not copied: see fresh() */
    __asm__ volatile("ldr %q0, %1" : "=w"(sum) : "m"(MAGIC16));
    switch (lane) { /* compilers need a literal; `lane` is known after inlining */
    case 0:
        sum = vfmaq_lane_f16(sum, x, r, 0);
        break;
    case 1:
        sum = vfmaq_lane_f16(sum, x, r, 1);
        break;
    case 2:
        sum = vfmaq_lane_f16(sum, x, r, 2);
        break;
    default:
        sum = vfmaq_lane_f16(sum, x, r, 3);
        break;
    }
    return vreinterpretq_s8_f16(sum);
}
#else
typedef struct fp16x8 {
    float32x4_t lo, hi;
} fp16x8;

INLINE float32x4_t round_fp16(float32x4_t x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }
INLINE fp16x8 h_load(const float16_t *x) {
    const float16x8_t v = vld1q_f16(x);
    return (fp16x8){vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
}
INLINE fp16x8 h_zero(void) { return (fp16x8){vdupq_n_f32(0), vdupq_n_f32(0)}; }
INLINE fp16x8 h_mul(fp16x8 a, fp16x8 b) {
    return (fp16x8){round_fp16(vmulq_f32(a.lo, b.lo)), round_fp16(vmulq_f32(a.hi, b.hi))};
}
INLINE fp16x8 h_abs(fp16x8 x) { return (fp16x8){vabsq_f32(x.lo), vabsq_f32(x.hi)}; }
INLINE fp16x8 h_max(fp16x8 a, fp16x8 b) {
    return (fp16x8){vmaxq_f32(a.lo, b.lo), vmaxq_f32(a.hi, b.hi)};
}
INLINE float32x4_t h_largest4(fp16x8 a, fp16x8 b, fp16x8 c, fp16x8 d) {
    return vpmaxq_f32(vpmaxq_f32(vmaxq_f32(a.lo, a.hi), vmaxq_f32(b.lo, b.hi)),
                      vpmaxq_f32(vmaxq_f32(c.lo, c.hi), vmaxq_f32(d.lo, d.hi)));
}
INLINE int8x16_t h_round_product(fp16x8 x, float16x4_t r, const int lane) {
    const float32x4_t inverse = vcvt_f32_f16(r), magic = vld1q_f32(MAGIC);
    const float32x4_t by = lane == 0   ? vdupq_laneq_f32(inverse, 0)
                           : lane == 1 ? vdupq_laneq_f32(inverse, 1)
                           : lane == 2 ? vdupq_laneq_f32(inverse, 2)
                                       : vdupq_laneq_f32(inverse, 3);
    return vreinterpretq_s8_s16(vuzp1q_s16(vreinterpretq_s16_f32(vfmaq_f32(magic, x.lo, by)),
                                           vreinterpretq_s16_f32(vfmaq_f32(magic, x.hi, by))));
}
#endif

#endif
