/* Vectors of the NEON kernels. A vector of scores, a cell, holds two query rows and two tokens, [r0
 * t0, r0 t1, r1 t0, r1 t1]: the result of one 2x8 by 8x2 integer product. Per-row scalars are kept
 * as [r0, r0, r1, r1], so that nothing is ever transposed.
 *
 * A lone row, the last of an odd number, has its cells to itself: [t0, t1, t2, t3], the lower
 * halves of two products. It must get the same bits as beside another row, so its sums are taken
 * over the lanes that it would have there. */
#ifndef QUIRE_KERN_NEON_CELLS_H
#define QUIRE_KERN_NEON_CELLS_H

#include <arm_neon.h>

#include "base/fp16.h"
#include "base/real.h"
#include "kern/shared/exp2.h"
#include "kern/shared/inline.h"

/* Two tokens' scalars for both rows: [t0, t1, t0, t1]. */
INLINE float32x4_t tokens2(const float *x) {
    return vreinterpretq_f32_f64(vld1q_dup_f64((const double *)(const void *)x));
}
INLINE float32x4_t swap_halves(float32x4_t x) { return vextq_f32(x, x, 2); }
INLINE float32x4_t max_of_rows(float32x4_t x) { return vmaxq_f32(x, vrev64q_f32(x)); }
INLINE float32x4_t sum_of_rows(float32x4_t x) { return vaddq_f32(x, vrev64q_f32(x)); }
/* The same over cells: moves a lone row's parts to where they are beside another row, in both
 * halves. */
INLINE float32x4_t parts_of_cells(float32x4_t sum, const bool lone) {
    return lone ? vaddq_f32(sum, swap_halves(sum)) : sum;
}
INLINE float32x4_t max_of_cells(float32x4_t x, const bool lone) {
    return max_of_rows(lone ? vmaxq_f32(x, swap_halves(x)) : x);
}
/* A scalar per row, spread for cells. */
INLINE float32x4_t for_cells(float32x4_t rows, const bool lone) {
    return lone ? vdupq_laneq_f32(rows, 0) : rows;
}
/* The scalars of a cell's tokens: [t0, t1, t0, t1], or those of a lone row's four tokens. */
INLINE float32x4_t tokens_of(const float *x, int cell, const bool lone) {
    return lone ? vld1q_f32(x + 4 * cell) : tokens2(x + 2 * cell);
}
INLINE int32x4_t as_s32(float32x4_t x) { return vreinterpretq_s32_f32(x); }
INLINE float32x4_t as_f32(int32x4_t x) { return vreinterpretq_f32_s32(x); }

/* A constant that the next instruction overwrites (the addend of an fma): loaded again instead of
 * copied, because a copy takes a vector slot and a register read, and a load takes neither. */
INLINE float32x4_t fresh(const float *constant /* (4) */) {
    float32x4_t v;
    __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*(const float(*)[4])constant));
    return v;
}

#define FOUR(x)                                                                                    \
    { x, x, x, x }
static const float MAGIC[4] = FOUR(QUIRE_ROUND_MAGIC);

/* A zero that is not a copy of another register. */
INLINE int32x4_t fresh_zero(void) {
    int32x4_t zero;
    __asm__ volatile("movi %0.4s, #0" : "=w"(zero));
    return zero;
}

static const float EXP2_3[4][4] = {EXP2_DEGREE_3(FOUR)}, EXP2_4[5][4] = {EXP2_DEGREE_4(FOUR)},
                   EXP2_5[6][4] = {EXP2_DEGREE_5(FOUR)};

/* 2^(x + lift), x <= 0: four vectors in lock step, because the chain is long and the issue queues
 * are short. */
INLINE void exp2_neg4(float32x4_t *x, const int degree, const int lift) {
    const float(*c)[4] = degree == 3 ? EXP2_3 : degree == 4 ? EXP2_4 : EXP2_5;
    const float32x4_t magic = vdupq_n_f32(QUIRE_ROUND_MAGIC + (float)lift),
                      lowest = vdupq_n_f32(-126.0f), top = vld1q_f32(c[degree]);
    float32x4_t y[4], f[4], p[4];
    /* Also replaces NaN: a hidden token under a scale of zero. */
    EACH x[u] = vmaxnmq_f32(x[u], lowest);
    EACH y[u] = vaddq_f32(x[u], magic);
    EACH f[u] = vsubq_f32(x[u], vsubq_f32(y[u], magic));
    EACH p[u] = vfmaq_f32(fresh(c[degree - 1]), top, f[u]);
    UNROLL for (int i = degree - 2; i >= 0; i--) EACH p[u] = vfmaq_f32(fresh(c[i]), p[u], f[u]);
    EACH x[u] = as_f32(vaddq_s32(as_s32(p[u]), vshlq_n_s32(as_s32(y[u]), 23)));
}

#endif
