/* The vectors of the x86 kernels with AVX-512: 16 numbers, or four rows of 16 bytes. avx2_simd.h
 * explains the functions. */
#ifndef QUIRE_KERN_X86_AVX512_SIMD_H
#define QUIRE_KERN_X86_AVX512_SIMD_H

#include "kern/shared/exp2.h"
#include "kern/x86/four_rows.h"

typedef __m512 fvec;
typedef __m512i ivec;

enum { W = 16, LANES = W / 4, TILE_SUMS = 16 };

/* ------------------------------------------------------------------ fp32 */

INLINE fvec f_all(float x) { return _mm512_set1_ps(x); }
INLINE fvec f_load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void f_store(float *at, fvec x) { _mm512_storeu_ps(at, x); }
INLINE fvec f_add(fvec a, fvec b) { return _mm512_add_ps(a, b); }
INLINE fvec f_sub(fvec a, fvec b) { return _mm512_sub_ps(a, b); }
INLINE fvec f_mul(fvec a, fvec b) { return _mm512_mul_ps(a, b); }
INLINE fvec f_fma(fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE fvec f_max(fvec a, fvec b) { return _mm512_max_ps(a, b); }
/* y where x >= least, else 0. */
INLINE fvec f_where_least(fvec x, float least, fvec y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, f_all(least), _CMP_GE_OQ), y);
}
INLINE fvec f_max_abs(fvec a, fvec b) { return _mm512_range_ps(a, b, 0x0b); }
INLINE fvec f_abs(fvec a) { return _mm512_abs_ps(a); }
INLINE fvec f_from_int(ivec a) { return _mm512_cvtepi32_ps(a); }
INLINE ivec f_bits(fvec a) { return _mm512_castps_si512(a); }
INLINE fvec f_from_bits(ivec a) { return _mm512_castsi512_ps(a); }
INLINE fvec f_where_above(fvec x, float limit, fvec y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), y);
}
INLINE fvec f_load_f16(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
INLINE void f_widen_f16(const uint8_t *from, int n, float *to) {
    for (int i = 0; i < n; i += W)
        f_store(to + i, f_load_f16(from + 2 * i));
}
INLINE void f_store_f16(uint16_t *at, fvec a) {
    _mm256_storeu_si256((__m256i *)(void *)at, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE fvec f_round_fp16(fvec a) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE fvec f_load_bf16(const uint8_t *at) {
    return f_from_bits(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at)), 16));
}
INLINE __m256 f_upper(fvec a) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}
INLINE float f_sum(fvec a) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), f_upper(a));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
INLINE float f_largest(fvec a) {
    const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a), f_upper(a));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
INLINE rvec first_of_lanes(fvec a) {
    const __m512i index = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(index, a));
}
INLINE fvec f_join(const joining by, fvec a, fvec b) {
    return by == SUM ? f_add(a, b) : f_max(a, b);
}
INLINE rvec f_join_rows(const joining by, const fvec x[4]) {
    fvec y[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const ivec a = f_bits(x[2 * i]), b = f_bits(x[2 * i + 1]);
        y[i] = f_join(by, f_from_bits(_mm512_shuffle_i32x4(a, b, 0x44)),
                      f_from_bits(_mm512_shuffle_i32x4(a, b, 0xee)));
    }
    const ivec a = f_bits(y[0]), b = f_bits(y[1]);
    fvec z = f_join(by, f_from_bits(_mm512_shuffle_i32x4(a, b, 0x88)),
                    f_from_bits(_mm512_shuffle_i32x4(a, b, 0xdd)));
    z = f_join(by, z, _mm512_shuffle_ps(z, z, 0x4e));
    return first_of_lanes(f_join(by, z, _mm512_shuffle_ps(z, z, 0xb1)));
}
INLINE rvec f_sum_rows(const fvec x[4]) { return f_join_rows(SUM, x); }
INLINE rvec f_largest_rows(const fvec x[4]) { return f_join_rows(LARGEST, x); }
INLINE void f_store_sums(float *at, const fvec x[4]) { _mm_storeu_ps(at, f_sum_rows(x)); }

/* ------------------------------------------------------------------ 2^x

 * The rest is the integer below x. */

#define ONE(x) x
static const float EXP2_3[4] = {EXP2_FLOOR_DEGREE_3(ONE)}, EXP2_5[6] = {EXP2_FLOOR_DEGREE_5(ONE)};
#undef ONE

INLINE fvec f_fraction(fvec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
INLINE fvec f_times_power(fvec p, fvec x) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, f_all(-126.0f), _CMP_GE_OQ), p, x);
}

/* ------------------------------------------------------------------ int32 */

INLINE ivec i_all(int32_t x) { return _mm512_set1_epi32(x); }
INLINE ivec i_load(const int32_t *at) { return _mm512_loadu_si512(at); }
INLINE void i_store(int32_t *at, ivec x) { _mm512_storeu_si512(at, x); }
INLINE ivec i_add(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
INLINE ivec i_sub(ivec a, ivec b) { return _mm512_sub_epi32(a, b); }
INLINE ivec i_shl(ivec a, const int n) { return _mm512_slli_epi32(a, n); }
INLINE ivec i_shr(ivec a, const int n) { return _mm512_srai_epi32(a, (unsigned)n); }
/* [a0+a1, a2+a3, b0+b1, b2+b3] in every 16 bytes. */
INLINE ivec i_add_pairs(ivec a, ivec b) {
    const fvec x = f_from_bits(a), y = f_from_bits(b);
    return i_add(f_bits(_mm512_shuffle_ps(x, y, 0x88)), f_bits(_mm512_shuffle_ps(x, y, 0xdd)));
}
INLINE ivec i_sign(ivec a) { return i_shr(a, 31); }
INLINE int32_t i_sum(ivec a) {
    const __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE __m128i i_sum_rows(const ivec x[4]) {
    __m256i y[4];
    UNROLL for (int i = 0; i < 4; i++) y[i] =
        _mm256_add_epi32(_mm512_castsi512_si256(x[i]), _mm512_extracti64x4_epi64(x[i], 1));
    const __m256i z =
        _mm256_hadd_epi32(_mm256_hadd_epi32(y[0], y[1]), _mm256_hadd_epi32(y[2], y[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(z), _mm256_extracti128_si256(z, 1));
}

/* ------------------------------------------------------------------ bytes */

INLINE ivec b_all(int x) { return _mm512_set1_epi8((char)x); }
INLINE ivec b_load(const void *at) { return _mm512_loadu_si512(at); }
INLINE void b_store(void *at, ivec x) { _mm512_storeu_si512(at, x); }
INLINE ivec b_xor(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
INLINE ivec b_or(ivec a, ivec b) { return _mm512_or_si512(a, b); }
INLINE ivec b_or3(ivec a, ivec b, ivec c) { return _mm512_ternarylogic_epi32(a, b, c, 0xfe); }
INLINE ivec b_and(ivec a, ivec b) { return _mm512_and_si512(a, b); }
INLINE ivec b_sub(ivec a, ivec b) { return _mm512_sub_epi8(a, b); }
/* The bits of a under the mask, those of b elsewhere. */
INLINE ivec b_select(int mask, ivec a, ivec b) {
    return _mm512_ternarylogic_epi32(b_all(mask), a, b, 0xca);
}
/* By bytes, but bits come down from the byte above. */
INLINE ivec b_shr(ivec a, const int n) { return _mm512_srli_epi16(a, (unsigned)n); }
INLINE ivec b_load_rows(const uint8_t *at, size_t stride) {
    __m128i x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] =
        _mm_loadu_si128((const __m128i *)(const void *)(at + (size_t)i * stride));
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(x[0]), x[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(x[2]), x[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
/* The first half of a, the second of b. */
INLINE ivec b_blend_half(ivec a, ivec b) { return _mm512_mask_mov_epi64(b, 0x0f, a); }
/* Four rows of four 16 bytes exchange rows and columns. */
INLINE void b_to_columns(const ivec row[4], ivec x[4]) {
    const ivec a = _mm512_shuffle_i32x4(row[0], row[1], 0x44),
               b = _mm512_shuffle_i32x4(row[2], row[3], 0x44),
               c = _mm512_shuffle_i32x4(row[0], row[1], 0xee),
               d = _mm512_shuffle_i32x4(row[2], row[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}
INLINE ivec b_repeat8(const void *at) {
    int64_t x;
    memcpy(&x, at, sizeof x);
    return _mm512_set1_epi64(x);
}
INLINE ivec b_repeat16(const void *at) { return _mm512_broadcast_i32x4(_mm_loadu_si128(at)); }
#if defined(__GFNI__) && !defined(QUIRE_EMULATED)
#define MOVES_BITS 1
/* Where a bit of every byte goes; moves are joined by |, and bits that none names are lost. */
INLINE uint64_t bit_move(int from, int to) { return (uint64_t)1 << (8 * (7 - to) + from); }
INLINE ivec b_move_bits(ivec x, uint64_t moves) {
    return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((int64_t)moves), 0);
}
#else
#define MOVES_BITS 0
#endif
INLINE ivec b_field(ivec x, const int shift, int mask) {
#if MOVES_BITS
    uint64_t moves = 0;
    UNROLL for (int bit = 0; bit < 8; bit++) moves |=
        mask >> bit & 1 ? bit_move(bit + shift, bit) : 0;
    if (shift > 0)
        return b_move_bits(x, moves);
#endif
    return b_and(shift == 0 ? x : b_shr(x, shift), b_all(mask));
}
INLINE __m128i b_narrow_16(const ivec x[16 / W]) { return _mm512_cvtepi32_epi8(x[0]); }
INLINE ivec b_narrow(const ivec x[4]) {
    const ivec bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}
/* Of two vectors of 16-bit numbers, each of which packs two of 32-bit ones. */
INLINE ivec b_pack_to_atoms(ivec a, ivec b) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15),
        _mm512_packus_epi16(a, b));
}
INLINE ivec b_narrow_to_atoms(const ivec x[4]) {
    return b_pack_to_atoms(_mm512_packus_epi32(x[0], x[1]), _mm512_packus_epi32(x[2], x[3]));
}
INLINE ivec b_lookup(ivec table, ivec x) { return _mm512_shuffle_epi8(table, x); }

#endif
