/* Template, part of packed_tmpl.h: integer products of two rows of q or of weights, eight numbers
 * each, with two tokens of K or two channels of V.
 *
 * Parameters, from the compiler flags:
 *   __ARM_FEATURE_MATMUL_INT8  SMMLA, USMMLA
 *   __ARM_FEATURE_DOTPROD      without the above: SDOT, UDOT, row by row (ROW_BY_ROW)
 *
 * With i8mm one instruction gives all four sums, [r0 t0, r0 t1, r1 t0, r1 t1]. A dot product adds
 * only four neighbours, so there each row has an operand of its own, its eight numbers twice, and
 * sums [t0, t0, t1, t1] over the first and the last four numbers, which total_of adds. Integers are
 * exact: every level has the same bits.
 *
 * Sums may start at MAGIC. Their bits, read as fp32, are then QUIRE_ROUND_MAGIC plus the sum, and a
 * subtraction replaces the conversion, of which the core does one per cycle. For sums below 2^22.
 *
 * Dot products of unsigned with signed bytes came with i8mm. Weights are unsigned, so without it
 * V's codes have to be unsigned too: signed ones get 128 added, and sums of such codes start at
 * -128 times the sum of the weights (start_of_weights).
 */
#ifndef QUIRE_KERN_NEON_PRODUCTS_TMPL_H
#define QUIRE_KERN_NEON_PRODUCTS_TMPL_H

#include "kern/neon/cells.h"

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define ROW_BY_ROW 1
#else
#define ROW_BY_ROW 0
#endif

enum { OPERAND_BYTES = ROW_BY_ROW ? 32 : 16 };

#if ROW_BY_ROW

typedef struct operand {
    uint8x16_t row[2]; /* of a lone row only the first */
} operand;
typedef struct sums {
    int32x4_t row[2];
} sums;

/* `rows` is two rows of eight bytes. */
INLINE void put_operand(uint8_t *to, uint8x16_t rows) {
    const uint64x2_t x = vreinterpretq_u64_u8(rows);
    vst1q_u8(to, vreinterpretq_u8_u64(vdupq_laneq_u64(x, 0)));
    vst1q_u8(to + 16, vreinterpretq_u8_u64(vdupq_laneq_u64(x, 1)));
}
INLINE operand load_operand(const uint8_t *from, const bool lone) {
    operand a;
    a.row[0] = vld1q_u8(from);
    a.row[1] = lone ? a.row[0] : vld1q_u8(from + 16);
    return a;
}

INLINE sums mma_s8(sums s, operand a, int8x16_t b, const bool lone) {
    s.row[0] = vdotq_s32(s.row[0], vreinterpretq_s8_u8(a.row[0]), b);
    if (!lone)
        s.row[1] = vdotq_s32(s.row[1], vreinterpretq_s8_u8(a.row[1]), b);
    return s;
}
INLINE sums mma_u8(sums s, operand a, int8x16_t b, const bool lone) {
    const uint8x16_t codes = vreinterpretq_u8_s8(b);
    s.row[0] = vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(s.row[0]), a.row[0], codes));
    if (!lone)
        s.row[1] =
            vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(s.row[1]), a.row[1], codes));
    return s;
}

static const float MAGIC_ONCE[4] = {QUIRE_ROUND_MAGIC, 0, QUIRE_ROUND_MAGIC, 0};

INLINE sums start_of_sums(const bool magic) {
    sums s;
    for (int i = 0; i < 2; i++)
        s.row[i] = magic ? as_s32(fresh(MAGIC_ONCE)) : fresh_zero();
    return s;
}
INLINE int32x4_t total_of(sums s, const bool lone) {
    return vpaddq_s32(s.row[0], s.row[lone ? 0 : 1]);
}

/* Converts V's signed codes to the form that the products of weights take. */
INLINE int8x16_t as_value(int8x16_t x) { return veorq_s8(x, vdupq_n_s8(-128)); }

/* Start value for sums of weights times codes that as_value has changed: `weights` are n operands,
 * `stride` bytes apart. */
INLINE sums start_of_weights(const bool magic, const uint8_t *weights, size_t stride, int n) {
    uint32x4_t sum[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
    sums s;
    for (int i = 0; i < n; i++)
        for (int row = 0; row < 2; row++)
            sum[row] = vdotq_u32(sum[row], vld1q_u8(weights + (size_t)i * stride + 16 * row),
                                 vdupq_n_u8(1));
    for (int row = 0; row < 2; row++) {
        const uint32x4_t bias = vshlq_n_u32(vpaddq_u32(sum[row], sum[row]), 7);
        /* [x, 0, x, 0] */
        const int32x4_t once = vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_u32(bias), 32));
        s.row[row] = vsubq_s32(magic ? as_s32(vld1q_f32(MAGIC_ONCE)) : vdupq_n_s32(0), once);
    }
    return s;
}

#else

typedef uint8x16_t operand;
typedef int32x4_t sums;

INLINE void put_operand(uint8_t *to, uint8x16_t rows) { vst1q_u8(to, rows); }
INLINE operand load_operand(const uint8_t *from, const bool lone) {
    (void)lone;
    return vld1q_u8(from);
}

INLINE sums mma_s8(sums s, operand a8, int8x16_t b, const bool lone) {
    const int8x16_t a = vreinterpretq_s8_u8(a8);
    (void)lone;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vmmlaq_s32(s, a, b);
#else
    const int8x8_t a0 = vget_low_s8(a), a1 = vget_high_s8(a), b0 = vget_low_s8(b),
                   b1 = vget_high_s8(b);
    const int32x4_t x = vpaddq_s32(vpaddlq_s16(vmull_s8(a0, b0)), vpaddlq_s16(vmull_s8(a0, b1)));
    const int32x4_t y = vpaddq_s32(vpaddlq_s16(vmull_s8(a1, b0)), vpaddlq_s16(vmull_s8(a1, b1)));
    return vaddq_s32(s, vpaddq_s32(x, y));
#endif
}

/* The same with unsigned a. */
INLINE sums mma_u8(sums s, operand a, int8x16_t b, const bool lone) {
    (void)lone;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusmmlaq_s32(s, a, b);
#else
    const int16x8_t a0 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(a)));
    const int16x8_t a1 = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(a)));
    const int16x8_t b0 = vmovl_s8(vget_low_s8(b)), b1 = vmovl_s8(vget_high_s8(b));
    int32x4_t part[4] = {vmull_s16(vget_low_s16(a0), vget_low_s16(b0)),
                         vmull_s16(vget_low_s16(a0), vget_low_s16(b1)),
                         vmull_s16(vget_low_s16(a1), vget_low_s16(b0)),
                         vmull_s16(vget_low_s16(a1), vget_low_s16(b1))};
    part[0] = vmlal_high_s16(part[0], a0, b0);
    part[1] = vmlal_high_s16(part[1], a0, b1);
    part[2] = vmlal_high_s16(part[2], a1, b0);
    part[3] = vmlal_high_s16(part[3], a1, b1);
    return vaddq_s32(s, vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3])));
#endif
}

INLINE sums start_of_sums(const bool magic) { return magic ? as_s32(fresh(MAGIC)) : fresh_zero(); }
INLINE int32x4_t total_of(sums s, const bool lone) {
    (void)lone;
    return s;
}

INLINE int8x16_t as_value(int8x16_t x) { return x; }
INLINE sums start_of_weights(const bool magic, const uint8_t *weights, size_t stride, int n) {
    (void)weights, (void)stride, (void)n;
    return start_of_sums(magic);
}

#endif

#endif
