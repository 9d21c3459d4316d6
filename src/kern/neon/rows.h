/* Raw rows: elements widened as they are loaded, dot products. */
#ifndef QUIRE_KERN_NEON_ROWS_H
#define QUIRE_KERN_NEON_ROWS_H

#include "kern/neon/simd.h"
#include "quire.h"

/* Four elements as fp32, wherever they come from. */
INLINE float32x4_t load4(const quire_type type, const uint8_t *at, int i) {
    if (type == QUIRE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(at + 4 * i));
    const uint16x4_t h = vreinterpret_u16_u8(vld1_u8(at + 2 * i));
    return type == QUIRE_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

/* Dot products of 1, 2 or 4 query rows with four tokens: s[r][t]. */
INLINE void dots(const quire_type type, const int rows, const float *const q[4], const uint8_t *const k[4], int dim,
                 float32x4_t s[4]) {
    float32x4_t acc[4][4];
    UNROLL for (int i = 0; i < 4 * rows; i++) acc[i / 4][i % 4] = vdupq_n_f32(0);
    for (int d = 0; d < dim; d += 4) {
        float32x4_t y[4];
        UNROLL for (int t = 0; t < 4; t++) y[t] = load4(type, k[t], d);
        UNROLL for (int r = 0; r < rows; r++) {
            const float32x4_t x = vld1q_f32(q[r] + d);
            UNROLL for (int t = 0; t < 4; t++) acc[r][t] = vfmaq_f32(acc[r][t], x, y[t]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) s[r] =
        vpaddq_f32(vpaddq_f32(acc[r][0], acc[r][1]), vpaddq_f32(acc[r][2], acc[r][3]));
}

#endif
