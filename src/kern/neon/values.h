/* Integer p.V of one block and set into O. O of a set lies as [channel pair][pair][r0 c0, r0 c1, r1 c0, r1 c1]. */
#ifndef QUIRE_KERN_NEON_VALUES_H
#define QUIRE_KERN_NEON_VALUES_H

#include "kern/neon/scores.h"
#include "kern/neon/work.h"

/* acc[i][r] += channel pair i times operand r over one page's 64 tokens; channels 16*tile + 2*row on. */
INLINE void weigh_page(const source_kind kind, const int operands, const int pairs, const uint8_t *v, int tile, int row,
                       const uint8_t (*p8)[OPERANDS][16], int8x16_t book, const uint8_t *ahead,
                       int32x4_t acc[8][OPERANDS]) {
    if (kind == UNPACKED || kind == FROM_8) {
        const size_t stride = kind == FROM_8 ? 64 : 16;
        _Pragma("GCC unroll 1") for (int atom = 0; atom < 8; atom++) {
            const size_t at = kind == FROM_8 ? (size_t)tile * 1024 + (size_t)(atom / 4) * 512 + (size_t)(atom % 4) * 16
                                             : (size_t)tile * 1024 + (size_t)atom * 128;
            const uint8_t *from = v + at + (size_t)row * stride;
            uint8x16_t p[OPERANDS];
            if (kind == FROM_8)
                UNROLL for (int i = 0; i < pairs; i += 4) __builtin_prefetch(
                    ahead + (size_t)tile * 1024 + (size_t)(row * 128 + atom * 16 * pairs + 16 * i), 0, 2);
            UNROLL for (int r = 0; r < operands; r++) p[r] = vld1q_u8(p8[atom][r]);
            UNROLL for (int i = 0; i < pairs; i++) {
                const int8x16_t x = vld1q_s8((const int8_t *)from + (size_t)i * stride);
                UNROLL for (int r = 0; r < operands; r++) acc[i][r] = mma_u8(acc[i][r], p[r], x);
            }
        }
        return;
    }
    _Pragma("GCC unroll 1") for (int c = 0; c < 4; c++) {
        const uint8_t *from = v + (size_t)tile * 512 + (size_t)row * 64 + (size_t)c * 16;
        uint8x16_t p[2][OPERANDS];
        UNROLL for (int i = 0; i < pairs; i += 4) {
            __builtin_prefetch(ahead + (size_t)tile * 512 + (size_t)(row * 64 + c * 16 * pairs + 16 * i), 0, 2);
            __builtin_prefetch(v + (size_t)tile * 512 + (size_t)(row * 64 + c * 16 * pairs + 16 * i) + 512, 0, 3);
        }
        UNROLL for (int r = 0; r < operands; r++) {
            p[0][r] = vld1q_u8(p8[c][r]);     /* half 0: low nibbles */
            p[1][r] = vld1q_u8(p8[4 + c][r]); /* half 1: high nibbles */
        }
        UNROLL for (int i = 0; i < pairs; i += 2) {
            uint8x16_t x[2];
            int8x16_t lo[2], hi[2];
            UNROLL for (int u = 0; u < 2; u++) x[u] = vld1q_u8(from + (size_t)(i + u) * 64);
            split_nibbles(kind, x, book, lo, hi);
            UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++) acc[i + u][r] =
                mma_u8(acc[i + u][r], p[0][r], lo[u]);
            UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++) acc[i + u][r] =
                mma_u8(acc[i + u][r], p[1][r], hi[u]);
        }
    }
}

/* O of channel tiles first .. first+n: o = o * keep + acc * unit + constant. */
INLINE void weigh_block(const source_kind kind, const int n_pairs, const int planes, const uint8_t *const v[PAGES],
                        const uint8_t *const ahead[PAGES], const neon_work *w, int first, int n, int8x16_t book,
                        const float32x4_t *unit, const float32x4_t *keep, const float32x4_t *constant, float *o) {
    const int operands = n_pairs * planes, pairs = operands <= 2 ? 8 : 4;
    for (int tile = first; tile < first + n; tile++)
        for (int row = 0; row < 8; row += pairs) {
            int32x4_t acc[8][OPERANDS];
            UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int r = 0; r < operands; r++) acc[i][r] = vdupq_n_s32(0);
            for (int p = 0; p < PAGES; p++)
                if (v[p])
                    weigh_page(kind, operands, pairs, v[p], tile, row, &w->p8[8 * p], book, ahead[p], acc);
            UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int pair = 0; pair < n_pairs; pair++) {
                float *at = o + ((size_t)(tile * 8 + row + i) * PAIRS + (size_t)pair) * 4;
                float32x4_t x = vcvtq_f32_s32(
                    planes == 1 ? acc[i][pair] : vaddq_s32(vshlq_n_s32(acc[i][pair], 8), acc[i][n_pairs + pair]));
                float32x4_t old = vmulq_f32(vld1q_f32(at), keep[pair]);
                if (constant)
                    old = vaddq_f32(old, constant[pair]);
                vst1q_f32(at, vfmaq_f32(old, x, unit[pair]));
            }
        }
}

#endif
