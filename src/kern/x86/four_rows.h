/* Numbers of four rows side by side: what a row has once per page or block, its maximum, its scale,
 * its sum of weights, is computed for four rows at a time. */
#ifndef QUIRE_KERN_X86_FOUR_ROWS_H
#define QUIRE_KERN_X86_FOUR_ROWS_H

#include "base/real.h"
#include "kern/x86/intrinsics.h"

enum { ABREAST = 4 };

typedef __m128 rvec;

/* How the numbers of a vector become one. */
typedef enum joining { SUM, LARGEST } joining;

INLINE rvec r_all(float x) { return _mm_set1_ps(x); }
INLINE rvec r_load(const float *at) { return _mm_loadu_ps(at); }
INLINE void r_store(float *at, rvec x) { _mm_storeu_ps(at, x); }
INLINE rvec r_add(rvec a, rvec b) { return _mm_add_ps(a, b); }
INLINE rvec r_sub(rvec a, rvec b) { return _mm_sub_ps(a, b); }
INLINE rvec r_mul(rvec a, rvec b) { return _mm_mul_ps(a, b); }
INLINE rvec r_div(rvec a, rvec b) { return _mm_div_ps(a, b); }
/* b where one of them is NaN. */
INLINE rvec r_min(rvec a, rvec b) { return _mm_min_ps(a, b); }
INLINE rvec r_max(rvec a, rvec b) { return _mm_max_ps(a, b); }
INLINE rvec r_ceil(rvec a) { return _mm_ceil_ps(a); }
INLINE rvec r_from_int(__m128i a) { return _mm_cvtepi32_ps(a); }
INLINE rvec r_round_fp16(rvec a) {
    return _mm_cvtph_ps(_mm_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

/* Comparisons: all bits of a row, or none. */
INLINE rvec r_above(rvec a, rvec b) { return _mm_cmpgt_ps(a, b); }
INLINE rvec r_at_least(rvec a, rvec b) { return _mm_cmpge_ps(a, b); }
INLINE rvec r_and(rvec a, rvec b) { return _mm_and_ps(a, b); }
INLINE rvec r_select(rvec which, rvec a, rvec b) { return _mm_blendv_ps(b, a, which); }
/* Bit i: row i of a comparison. */
INLINE int r_bits(rvec which) { return _mm_movemask_ps(which); }

/* quire__exp2, operation by operation: products and sums are rounded apart. */
static const float STATE_EXP2[7] = {1.0f,          6.9314718e-1f, 2.4022651e-1f, 5.5504109e-2f,
                                    9.6181291e-3f, 1.3333558e-3f, 1.5403530e-4f};
INLINE rvec r_exp2(rvec x) {
    const rvec magic = r_all(QUIRE_ROUND_MAGIC);
    x = r_max(x, r_all(-126.0f)); /* of a NaN: the second operand, as there */
    const rvec y = r_add(x, magic), f = r_sub(x, r_sub(y, magic));
    rvec p = r_all(STATE_EXP2[6]);
    UNROLL for (int i = 5; i >= 0; i--) p = r_add(r_mul(p, f), r_all(STATE_EXP2[i]));
    return _mm_castsi128_ps(
        _mm_add_epi32(_mm_castps_si128(p), _mm_slli_epi32(_mm_castps_si128(y), 23)));
}

/* What O and l are multiplied by when the integer that they are relative to grows from `old` to
 * `top`: a power of two, which rounds nothing. What would not matter any more is dropped. */
INLINE rvec r_keep(rvec old, rvec top) {
    return r_and(r_at_least(old, r_sub(top, r_all(QUIRE_DROP_BELOW))), r_exp2(r_sub(old, top)));
}

#endif
