/* Template, part of raw_narrow_tmpl.h: raw bf16 rows without widening: BFMMLA multiplies 2 x 4 by 4
 * x 2 bf16 numbers and adds to fp32 sums.
 *
 * Parameter, from the compiler flags:
 *   __ARM_FEATURE_BF16_VECTOR_ARITHMETIC  without it HAVE_BF16 is 0 and nothing is defined
 *
 * q and the weights are two bf16 numbers each, x = high + low, which leaves out 2^-18 of x. They
 * lie side by side, [high 4, low 4]: one product with two tokens (or channels) gives [t0 high, t0
 * low, t1 high, t1 low], whose parts are added at the end.
 */
#ifndef QUIRE_KERN_NEON_RAW_BF16_TMPL_H
#define QUIRE_KERN_NEON_RAW_BF16_TMPL_H

#include "kern/neon/raw_fp16.h"
#include "kern/shared/elements_tmpl.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAVE_BF16 1

/* Up to four rows of q: [4 dims][row][high 4, low 4]. */
typedef struct bf16_query {
    bfloat16_t q[TILE_ROWS * QUIRE_DIM_MAX * 2];
} bf16_query;

INLINE bfloat16x8_t split_bf16(float32x4_t x) {
    const bfloat16x8_t high = vcvtq_low_bf16_f32(x);
    return vcvtq_high_bf16_f32(high, vsubq_f32(x, vcvtq_low_f32_bf16(high)));
}

INLINE bfloat16x8_t load_bf16x8(const uint8_t *row, int i) {
    return vreinterpretq_bf16_u8(vld1q_u8(row + 2 * i));
}

static void bf16_prepare(int rows, const float *q, int dim, bf16_query *to) {
    for (int r = 0; r < rows; r++, q += dim)
        for (int d = 0; d < dim; d += 4)
            vst1q_bf16(to->q + (d * rows + 4 * r) * 2, split_bf16(vld1q_f32(q + d)));
}

/* As fp16_dots(). */
INLINE void bf16_dots(const int rows, const int tokens, const bf16_query *query,
                      const uint8_t *const *k, int dim, float *to, size_t stride) {
    const bfloat16_t *q = query->q;
    float32x4_t acc[TILE_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int t = 0; t < tokens / 2; t++) acc[r][t] =
        vdupq_n_f32(0);
    int d = 0;
    _Pragma("GCC unroll 1") do {
        bfloat16x8_t x[2][TILE_ROWS];
        UNROLL for (int i = 0; i < 2 * rows; i++) x[i / rows][i % rows] = vld1q_bf16(q + 8 * i);
        UNROLL for (int t = 0; t < tokens / 2; t++) {
            const uint64x2_t a = vreinterpretq_u64_bf16(load_bf16x8(k[2 * t], d)),
                             b = vreinterpretq_u64_bf16(load_bf16x8(k[2 * t + 1], d));
            const bfloat16x8_t first = vreinterpretq_bf16_u64(vzip1q_u64(a, b)),
                               second = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
            UNROLL for (int r = 0; r < rows; r++) acc[r][t] =
                vbfmmlaq_f32(acc[r][t], first, x[0][r]);
            UNROLL for (int r = 0; r < rows; r++) acc[r][t] =
                vbfmmlaq_f32(acc[r][t], second, x[1][r]);
        }
        q += 16 * rows;
        d += 8;
    }
    while (d < dim)
        ;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int t = 0; t < tokens; t += 4)
        vst1q_f32(to + (size_t)r * stride + t, vpaddq_f32(acc[r][t / 2], acc[r][t / 2 + 1]));
}

/* As fp16_weights(): four weights take the room of four scores. */
static float bf16_weights(float *s, int n_tokens, float m) {
    float32x4_t sum[4];
    EACH sum[u] = vdupq_n_f32(0);
    for (int t = 0; t < n_tokens; t += 16) {
        float32x4_t x[4], e[4];
        EACH x[u] = load_score(s + t + 4 * u);
        EACH e[u] = vsubq_f32(x[u], vdupq_n_f32(m));
        exp2_neg4(e, 5, 0);
        EACH e[u] = f_where_above(x[u], QUIRE_NOTHING_SEEN, e[u]);
        EACH sum[u] = vaddq_f32(sum[u], e[u]);
        EACH vst1q_bf16((bfloat16_t *)(void *)(s + t + 4 * u), split_bf16(e[u]));
    }
    return vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}

/* As fp16_values(). Four tokens of eight channels are transposed into pairs of channels. */
INLINE void bf16_values(const int rows, const int n, const float *weights, const uint8_t *const *v,
                        int n_tokens, int d, fvec acc[TILE_ROWS][VALUE_SUMS],
                        const uint8_t *ahead) {
    float32x4_t pair[TILE_ROWS][2 * VALUE_SUMS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 2 * n; j++) pair[r][j] =
        vdupq_n_f32(0);
    int t = 0;
    _Pragma("GCC unroll 1") do {
        bfloat16x8_t p[TILE_ROWS];
        UNROLL for (int r = 0; r < rows; r++) p[r] =
            vld1q_bf16((const bfloat16_t *)(const void *)(weights + r * BLOCK + t));
        if (ahead) {
            UNROLL for (int j = 0; j < n; j += 2) __builtin_prefetch(ahead + 32 * j, 0, 2);
            ahead += 32 * n;
        }
        if (rows > 2) /* see fp16_token */
            UNROLL for (int u = 0; u < 4; u++) __builtin_prefetch(v[t + u] + 2 * (d + 4 * n), 0, 3);
        UNROLL for (int j = 0; j < n; j += 2) {
            uint16x8_t x[4];
            UNROLL for (int u = 0; u < 4; u++) x[u] =
                vreinterpretq_u16_bf16(load_bf16x8(v[t + u], d + 4 * j));
            const uint32x4_t a = vreinterpretq_u32_u16(vzip1q_u16(x[0], x[1])),
                             b = vreinterpretq_u32_u16(vzip1q_u16(x[2], x[3])),
                             c = vreinterpretq_u32_u16(vzip2q_u16(x[0], x[1])),
                             e = vreinterpretq_u32_u16(vzip2q_u16(x[2], x[3]));
            const uint32x4_t y[4] = {vzip1q_u32(a, b), vzip2q_u32(a, b), vzip1q_u32(c, e),
                                     vzip2q_u32(c, e)};
            UNROLL for (int i = 0; i < 4; i++) UNROLL for (int r = 0; r < rows; r++)
                pair[r][2 * j + i] =
                    vbfmmlaq_f32(pair[r][2 * j + i], vreinterpretq_bf16_u32(y[i]), p[r]);
        }
        t += 4;
    }
    while (t < n_tokens)
        ;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < n; j++) acc[r][j] =
        vpaddq_f32(pair[r][2 * j], pair[r][2 * j + 1]);
}

#else
#define HAVE_BF16 0
typedef float bf16_query;
#define bf16_prepare(...) (void)0
#define bf16_dots(...) (void)0
#define bf16_weights(...) 0
#define bf16_values(...) (void)0
#endif
#endif
