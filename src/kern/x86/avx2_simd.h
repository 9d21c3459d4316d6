/* The vectors of the x86 kernels with AVX2: 8 numbers, or two rows of 16 bytes. The functions are
 * explained here; avx512_simd.h has the same ones for vectors twice as wide. */
#ifndef QUIRE_KERN_X86_AVX2_SIMD_H
#define QUIRE_KERN_X86_AVX2_SIMD_H

#include "kern/shared/exp2.h"
#include "kern/x86/four_rows.h"

typedef __m256 fvec;
typedef __m256i ivec;

enum { W = 8, LANES = W / 4, TILE_SUMS = 8 }; /* TILE_SUMS: half of 16 registers */

/* ------------------------------------------------------------------ fp32 */

INLINE fvec f_all(float x) { return _mm256_set1_ps(x); }
INLINE fvec f_load(const float *at) { return _mm256_loadu_ps(at); }
INLINE void f_store(float *at, fvec x) { _mm256_storeu_ps(at, x); }
INLINE fvec f_add(fvec a, fvec b) { return _mm256_add_ps(a, b); }
INLINE fvec f_sub(fvec a, fvec b) { return _mm256_sub_ps(a, b); }
INLINE fvec f_mul(fvec a, fvec b) { return _mm256_mul_ps(a, b); }
INLINE fvec f_fma(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); } /* a * b + c */
INLINE fvec f_max(fvec a, fvec b) { return _mm256_max_ps(a, b); }
/* y where x >= least, else 0. */
INLINE fvec f_where_least(fvec x, float least, fvec y) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, f_all(least), _CMP_GE_OQ));
}
INLINE fvec f_abs(fvec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
/* a, which is not negative, or |b|. */
INLINE fvec f_max_abs(fvec a, fvec b) { return f_max(a, f_abs(b)); }
INLINE fvec f_from_int(ivec a) { return _mm256_cvtepi32_ps(a); }
INLINE ivec f_bits(fvec a) { return _mm256_castps_si256(a); }
INLINE fvec f_from_bits(ivec a) { return _mm256_castsi256_ps(a); }
/* y where x is above the limit, else 0. */
INLINE fvec f_where_above(fvec x, float limit, fvec y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ), y);
}
INLINE fvec f_load_f16(const uint8_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* n fp16 numbers to fp32; n is a multiple of 16. */
INLINE void f_widen_f16(const uint8_t *from, int n, float *to) {
    for (int i = 0; i < n; i += W)
        f_store(to + i, f_load_f16(from + 2 * i));
}
INLINE void f_store_f16(uint16_t *at, fvec a) {
    _mm_storeu_si128((__m128i *)(void *)at, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* To fp16 and back. */
INLINE fvec f_round_fp16(fvec a) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE fvec f_load_bf16(const uint8_t *at) {
    return f_from_bits(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)), 16));
}
INLINE float f_sum(fvec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
INLINE float f_largest(fvec a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
INLINE fvec f_join(const joining by, fvec a, fvec b) {
    return by == SUM ? f_add(a, b) : f_max(a, b);
}
INLINE rvec f_join_rows(const joining by, const fvec x[4]) {
    fvec y[2];
    UNROLL for (int i = 0; i < 2; i++) y[i] =
        f_join(by, _mm256_permute2f128_ps(x[i], x[i + 2], 0x20),
               _mm256_permute2f128_ps(x[i], x[i + 2], 0x31));
    const fvec z = f_join(by, _mm256_unpacklo_ps(y[0], y[1]), _mm256_unpackhi_ps(y[0], y[1]));
    const fvec all = f_join(by, z, _mm256_permute_ps(z, 0x4e));
    return _mm_movelh_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
/* f_sum and f_largest of four vectors, with the same bits. */
INLINE rvec f_sum_rows(const fvec x[4]) { return f_join_rows(SUM, x); }
INLINE rvec f_largest_rows(const fvec x[4]) { return f_join_rows(LARGEST, x); }
INLINE void f_store_sums(float *at, const fvec x[4]) { _mm_storeu_ps(at, f_sum_rows(x)); }

/* ------------------------------------------------------------------ 2^x

 * 2^x is a polynomial of f_fraction(x), times 2 to the power of the rest. Without scalef, the rest
 * is the nearest integer, which the addition of a large number leaves in the lowest bits. */

#define ONE(x) x
static const float EXP2_3[4] = {EXP2_DEGREE_3(ONE)}, EXP2_5[6] = {EXP2_DEGREE_5(ONE)};
#undef ONE

INLINE fvec f_fraction(fvec x) {
    const fvec magic = f_all(QUIRE_ROUND_MAGIC);
    return f_sub(x, f_sub(f_add(x, magic), magic));
}
/* p times 2^(x - f_fraction(x)); 0 where that is below 2^-126. */
INLINE fvec f_times_power(fvec p, fvec x) {
    const ivec power = _mm256_slli_epi32(f_bits(f_add(x, f_all(QUIRE_ROUND_MAGIC))), 23);
    return f_where_least(x, -126.0f, f_from_bits(_mm256_add_epi32(f_bits(p), power)));
}

/* ------------------------------------------------------------------ int32 */

INLINE ivec i_all(int32_t x) { return _mm256_set1_epi32(x); }
INLINE ivec i_load(const int32_t *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
INLINE void i_store(int32_t *at, ivec x) { _mm256_storeu_si256((__m256i *)(void *)at, x); }
INLINE ivec i_add(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
INLINE ivec i_sub(ivec a, ivec b) { return _mm256_sub_epi32(a, b); }
INLINE ivec i_shl(ivec a, const int n) { return _mm256_slli_epi32(a, n); }
/* Arithmetic: copies of the sign come in. */
INLINE ivec i_shr(ivec a, const int n) { return _mm256_srai_epi32(a, n); }
/* [a0+a1, a2+a3, b0+b1, b2+b3] in every 16 bytes. */
INLINE ivec i_add_pairs(ivec a, ivec b) { return _mm256_hadd_epi32(a, b); }
/* All bits of the sign. */
INLINE ivec i_sign(ivec a) { return i_shr(a, 31); }
INLINE int32_t i_sum(ivec a) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
/* i_sum of four vectors. */
INLINE __m128i i_sum_rows(const ivec x[4]) {
    const ivec y = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

/* ------------------------------------------------------------------ bytes */

INLINE ivec b_all(int x) { return _mm256_set1_epi8((char)x); }
INLINE ivec b_load(const void *at) { return _mm256_loadu_si256(at); }
INLINE void b_store(void *at, ivec x) { _mm256_storeu_si256(at, x); }
INLINE ivec b_xor(ivec a, ivec b) { return _mm256_xor_si256(a, b); }
INLINE ivec b_or(ivec a, ivec b) { return _mm256_or_si256(a, b); }
INLINE ivec b_and(ivec a, ivec b) { return _mm256_and_si256(a, b); }
INLINE ivec b_sub(ivec a, ivec b) { return _mm256_sub_epi8(a, b); }
/* LANES times 16 bytes, `stride` apart. */
INLINE ivec b_load_rows(const uint8_t *at, size_t stride) {
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a),
                                   _mm_loadu_si128((const __m128i *)(const void *)(at + stride)),
                                   1);
}
/* 8 bytes, or 16, repeated over the vector. */
INLINE ivec b_repeat8(const void *at) {
    int64_t x;
    memcpy(&x, at, sizeof x);
    return _mm256_set1_epi64x(x);
}
INLINE ivec b_repeat16(const void *at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(at)); }
/* The bits of every byte under `mask`, after a right shift; the mask removes what comes from the
 * next byte. */
INLINE ivec b_field(ivec x, const int shift, int mask) {
    return b_and(_mm256_srli_epi16(x, shift), b_all(mask));
}
/* 16 numbers as int8, in order. */
INLINE __m128i b_narrow_16(const ivec x[16 / W]) {
    const ivec words = _mm256_packs_epi32(x[0], x[1]), bytes = _mm256_packs_epi16(words, words);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
/* int8 numbers of four vectors, in order. */
INLINE ivec b_narrow(const ivec x[4]) {
    const ivec bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
/* uint8 numbers of four vectors in the order of V's atoms: of each 32 tokens 0-3 16-19, 4-7 20-23,
 * .. */
INLINE ivec b_narrow_to_atoms(const ivec x[4]) {
    const ivec bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}
/* Looks the bytes of x, all below 16, up in a table made by b_repeat16. */
INLINE ivec b_lookup(ivec table, ivec x) { return _mm256_shuffle_epi8(table, x); }

#endif
