/* Raw f16 rows without widening (raw_narrow_tmpl.h): FMLAL multiplies fp16 numbers and adds to fp32
 * sums, at the rate of an fp32 fma.
 *
 *   q'      fp16(q * 2^(12 - a)), a: exponent of the row's largest |q| (channel_query.h)
 *   K.q     sums of K * q' in fp32, times 2^(a - 12)
 *   p'      fp16(2^15 * 2^(s - m)): normal numbers down to 2^-29 of the block's largest
 *   l, O    sums of p' and of p' * V in fp32. l sums the rounded weights, so that they still add up
 *           to one
 *
 * So q and the weights are rounded as K and V were when they were stored: to 11 bits.
 */
#ifndef QUIRE_KERN_NEON_RAW_FP16_H
#define QUIRE_KERN_NEON_RAW_FP16_H

#include "kern/neon/fp16x8_tmpl.h"
#include "kern/neon/neon_simd.h"
#include "kern/shared/job.h"
#include "kern/shared/raw_tile.h"

enum { FP16_LIFT = 15 }; /* the largest weight is 2^15 */
#define FP16_UNIT 0x1p-15f

/* Up to four rows of q: [8 dims][row][8], only as many rows as there are; and what one unit is
 * worth. */
typedef struct fp16_query {
    float16_t q[TILE_ROWS * QUIRE_DIM_MAX];
    float unit[TILE_ROWS];
} fp16_query;

INLINE float16x8_t load_fp16x8(const uint8_t *row, int i) {
    return vreinterpretq_f16_u8(vld1q_u8(row + 2 * i));
}

static void fp16_prepare(int rows, const float *q, int dim, fp16_query *to) {
    for (int r = 0; r < rows; r++, q += dim) {
        const int exponent = exponent_of_query(q, dim);
        const float factor = quire__query_factor(exponent);
        to->unit[r] = quire__query_unit(exponent);
        for (int d = 0; d < dim; d += 8)
            vst1q_f16(to->q + d * rows + 8 * r, to_fp16x8(q + d, factor));
    }
}

/* As dots() of elements_tmpl.h, `tokens` at a time. */
INLINE void fp16_dots(const int rows, const int tokens, const fp16_query *query,
                      const uint8_t *const *k, int dim, float *to, size_t stride) {
    const float16_t *q = query->q;
    float32x4_t acc[TILE_ROWS][8];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int t = 0; t < tokens; t++) acc[r][t] =
        vdupq_n_f32(0);
    int d = 0;
    _Pragma("GCC unroll 1") do {
        float16x8_t y[8];
        UNROLL for (int t = 0; t < tokens; t++) y[t] = load_fp16x8(k[t], d);
        UNROLL for (int r = 0; r < rows; r++) {
            const float16x8_t x = vld1q_f16(q + 8 * r);
            UNROLL for (int t = 0; t < tokens; t++) acc[r][t] = vfmlalq_low_f16(acc[r][t], x, y[t]);
            UNROLL for (int t = 0; t < tokens; t++) acc[r][t] =
                vfmlalq_high_f16(acc[r][t], x, y[t]);
        }
        q += 8 * rows;
        d += 8;
    }
    while (d < dim)
        ;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int t = 0; t < tokens; t += 4) {
        UNROLL for (int j = 0; j < 4; j++) acc[r][t + j] =
            vmulq_n_f32(acc[r][t + j], query->unit[r]);
        f_store_sums(to + (size_t)r * stride + t, acc[r] + t);
    }
}

/* Loads bytes, because numbers of another type are written over them. */
INLINE float32x4_t load_score(const float *s) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)s));
}

/* Turns the scores of a row, padded with -inf to a multiple of 16, into weights in the same place;
 * returns their sum, in units. A hidden token's 2^-126 rounds to zero. */
static float fp16_weights(float *s, int n_tokens, float m) {
    /* Half the size: never ahead of what is still to be read. */
    float16_t *to = (float16_t *)(void *)s;
    const float16x8_t one = vdupq_n_f16(1);
    float32x4_t sum[4];
    EACH sum[u] = vdupq_n_f32(0);
    for (int t = 0; t < n_tokens; t += 16) {
        float32x4_t x[4];
        float16x8_t p[2];
        EACH x[u] = vsubq_f32(load_score(s + t + 4 * u), vdupq_n_f32(m));
        exp2_neg4(x, 4, FP16_LIFT);
        UNROLL for (int u = 0; u < 2; u++) p[u] =
            vcvt_high_f16_f32(vcvt_f16_f32(x[2 * u]), x[2 * u + 1]);
        UNROLL for (int u = 0; u < 2; u++) {
            sum[2 * u] = vfmlalq_low_f16(sum[2 * u], p[u], one);
            sum[2 * u + 1] = vfmlalq_high_f16(sum[2 * u + 1], p[u], one);
            vst1q_f16(to + t + 8 * u, p[u]);
        }
    }
    return vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}

/* acc[0] and acc[1] += x times lane `lane` of p. The lane is known after inlining, but not every
 * compiler accepts it as the constant that these instructions require. They name p by four bits:
 * clang 14 may put it into v16 to v31 all the same, and encodes v0 to v15. Hence the constraint
 * "x". */
#ifdef __clang__
#define FMLAL_LANE(half, sum, x, p, i)                                                             \
    __asm__("fmlal" half " %0.4s, %1.4h, %2.h[" #i "]" : "+w"(sum) : "w"(x), "x"(p))
#define ADD_LANE(sum, x, p, i)                                                                     \
    FMLAL_LANE("", sum[0], x, p, i);                                                               \
    FMLAL_LANE("2", sum[1], x, p, i)
#else
#define ADD_LANE(sum, x, p, i)                                                                     \
    sum[0] = vfmlalq_laneq_low_f16(sum[0], x, p, i);                                               \
    sum[1] = vfmlalq_laneq_high_f16(sum[1], x, p, i)
#endif
INLINE void fp16_add(const int lane, fvec acc[2], float16x8_t x, float16x8_t p) {
#define CASE(i)                                                                                    \
    case i:                                                                                        \
        ADD_LANE(acc, x, p, i);                                                                    \
        break;
    switch (lane) { CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) }
#undef CASE
}

/* One token, whose weights are in lane `lane` of p. */
INLINE void fp16_token(const int lane, const int rows, const int n, const bool line_ends,
                       const float16x8_t p[TILE_ROWS], const uint8_t *v, int d,
                       fvec acc[TILE_ROWS][VALUE_SUMS]) {
    /* a line serves several passes: fetch the next line now, not all of V at once. */
    if (rows > 2 && line_ends)
        __builtin_prefetch(v + 2 * (d + 4 * n), 0, 3);
    UNROLL for (int j = 0; j < n; j += 2) {
        const float16x8_t x = load_fp16x8(v, d + 4 * j);
        UNROLL for (int r = 0; r < rows; r++) fp16_add(lane, &acc[r][j], x, p[r]);
    }
}

/* acc[r][j] += weights of row r times V, channels d + 4 * j on; n is even. Rows of weights are as
 * far apart as rows of scores. */
INLINE void fp16_values_at(const int rows, const int n, const bool line_ends, const float *weights,
                           const uint8_t *const *v, int n_tokens, int d,
                           fvec acc[TILE_ROWS][VALUE_SUMS], const uint8_t *ahead) {
    int t = 0;
    _Pragma("GCC unroll 1") do {
        float16x8_t p[TILE_ROWS];
        UNROLL for (int r = 0; r < rows; r++) p[r] =
            vld1q_f16((const float16_t *)(const void *)(weights + r * BLOCK) + t);
        if (ahead) {
            UNROLL for (int j = 0; j < n; j++) __builtin_prefetch(ahead + 64 * j, 0, 2);
            ahead += 64 * n;
        }
        fp16_token(0, rows, n, line_ends, p, v[t], d, acc);
        fp16_token(1, rows, n, line_ends, p, v[t + 1], d, acc);
        fp16_token(2, rows, n, line_ends, p, v[t + 2], d, acc);
        fp16_token(3, rows, n, line_ends, p, v[t + 3], d, acc);
        fp16_token(4, rows, n, line_ends, p, v[t + 4], d, acc);
        fp16_token(5, rows, n, line_ends, p, v[t + 5], d, acc);
        fp16_token(6, rows, n, line_ends, p, v[t + 6], d, acc);
        fp16_token(7, rows, n, line_ends, p, v[t + 7], d, acc);
        t += 8;
    }
    while (t < n_tokens)
        ;
}

INLINE void fp16_values(const int rows, const int n, const float *weights, const uint8_t *const *v,
                        int n_tokens, int d, fvec acc[TILE_ROWS][VALUE_SUMS],
                        const uint8_t *ahead) {
    if (2 * (d + 4 * n) % 64 == 0) /* the next pass starts a cache line */
        fp16_values_at(rows, n, true, weights, v, n_tokens, d, acc, ahead);
    else
        fp16_values_at(rows, n, false, weights, v, n_tokens, d, acc, ahead);
}

#endif
