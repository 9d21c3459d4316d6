/* NEON's vectors under the names that the templates of kern/shared/ use; x86/avx2_simd.h explains
 * them. */
#ifndef QUIRE_KERN_NEON_NEON_SIMD_H
#define QUIRE_KERN_NEON_NEON_SIMD_H

#include "kern/neon/cells.h"

typedef float32x4_t fvec;
typedef int32x4_t ivec;

enum { W = 4, TILE_SUMS = 16 };

INLINE fvec f_all(float x) { return vdupq_n_f32(x); }
INLINE fvec f_load(const float *at) { return vld1q_f32(at); }
INLINE void f_store(float *at, fvec x) { vst1q_f32(at, x); }
INLINE fvec f_add(fvec a, fvec b) { return vaddq_f32(a, b); }
INLINE fvec f_sub(fvec a, fvec b) { return vsubq_f32(a, b); }
INLINE fvec f_mul(fvec a, fvec b) { return vmulq_f32(a, b); }
INLINE fvec f_fma(fvec a, fvec b, fvec c) { return vfmaq_f32(c, a, b); }
INLINE fvec f_max(fvec a, fvec b) { return vmaxq_f32(a, b); }
INLINE ivec f_bits(fvec a) { return vreinterpretq_s32_f32(a); }
INLINE fvec f_from_bits(ivec a) { return vreinterpretq_f32_s32(a); }
INLINE fvec f_where_above(fvec x, float limit, fvec y) {
    return vreinterpretq_f32_u32(
        vandq_u32(vcgtq_f32(x, vdupq_n_f32(limit)), vreinterpretq_u32_f32(y)));
}
INLINE fvec f_load_f16(const uint8_t *at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }
INLINE void f_widen_f16(const uint8_t *from, int n, float *to) { /* eight at a time */
    for (int i = 0; i < n; i += 8) {
        const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(from + 2 * i));
        vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(h)));
        vst1q_f32(to + i + 4, vcvt_high_f32_f16(h));
    }
}
INLINE fvec f_load_bf16(const uint8_t *at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
}
INLINE float f_sum(fvec a) { return vaddvq_f32(a); }
INLINE float f_largest(fvec a) { return vmaxvq_f32(a); }
INLINE void f_store_sums(float *at, const fvec x[4]) {
    vst1q_f32(at, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
}
INLINE ivec i_add(ivec a, ivec b) { return vaddq_s32(a, b); }
#define i_shl(a, n) vshlq_n_s32(a, n)

#endif
