/* 32 fp16 numbers: the few operations that queries (channel_query.h) and weights (half_weights.h)
 * take. In decode a vector holds 32 channels or tokens of a row; in prefill one of them for 32
 * rows. Tokens and rows are in the order in which h_pack leaves two vectors of 16. */
#ifndef QUIRE_KERN_X86_HALF_H
#define QUIRE_KERN_X86_HALF_H

#include "base/real.h"
#include "kern/x86/avx512_simd.h"

/* Two strips of 16 numbers below 2^16 into 32 lanes, and back. */
INLINE ivec h_pack(ivec strip0, ivec strip1) { return _mm512_packus_epi32(strip0, strip1); }
INLINE ivec h_strip(ivec x, const int strip) {
    const ivec none = _mm512_setzero_si512();
    return strip ? _mm512_unpackhi_epi16(x, none) : _mm512_unpacklo_epi16(x, none);
}

/* 16 numbers as fp16 bits in 32-bit lanes, and back. */
INLINE ivec h_from_floats(fvec x) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
INLINE fvec h_to_floats(ivec bits) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)); }

INLINE ivec h_abs(ivec x) { return b_and(x, _mm512_set1_epi16(0x7fff)); }

#ifndef QUIRE_EMULATED

INLINE ivec h_add(ivec a, ivec b) { return (ivec)_mm512_add_ph((__m512h)a, (__m512h)b); }
INLINE ivec h_mul(ivec a, ivec b) { return (ivec)_mm512_mul_ph((__m512h)a, (__m512h)b); }
INLINE ivec h_fma(ivec a, ivec b, ivec c) {
    return (ivec)_mm512_fmadd_ph((__m512h)a, (__m512h)b, (__m512h)c);
}
INLINE ivec h_max(ivec a, ivec b) { return (ivec)_mm512_max_ph((__m512h)a, (__m512h)b); }

#else

typedef union emulated_halves {
    ivec v;
    uint16_t u16[32];
} emulated_halves;
INLINE ivec h_add(ivec a, ivec b) {
    emulated_halves x = {.v = a}, y = {.v = b};
    for (int i = 0; i < 32; i++) /* with over twice the bits, rounding twice is rounding once */
        x.u16[i] = quire__f32_to_f16(quire__f16_to_f32(x.u16[i]) + quire__f16_to_f32(y.u16[i]));
    return x.v;
}
INLINE ivec h_mul(ivec a, ivec b) {
    emulated_halves x = {.v = a}, y = {.v = b};
    for (int i = 0; i < 32; i++) /* the product of two fp16 numbers is exact in fp32 */
        x.u16[i] = quire__f32_to_f16(quire__f16_to_f32(x.u16[i]) * quire__f16_to_f32(y.u16[i]));
    return x.v;
}
INLINE ivec h_max(ivec a, ivec b) {
    emulated_halves x = {.v = a}, y = {.v = b};
    for (int i = 0; i < 32; i++)
        if (quire__f16_to_f32(y.u16[i]) > quire__f16_to_f32(x.u16[i]))
            x.u16[i] = y.u16[i];
    return x.v;
}
/* a + b as an odd number of fp32 where it is none: rounding that to fp16 is rounding once. */
INLINE float emulated_odd_sum(double a, double b) {
    const double sum = a + b, part = sum - a, lost = (a - (sum - part)) + (b - part);
    float x = (float)sum;
    const double rest = (sum - (double)x) + lost;
    if (!(rest < 0 || rest > 0))
        return x;
    if ((rest < 0) == (x > 0)) /* the magnitude was rounded up */
        x = quire__bits_float(quire__float_bits(x) - 1);
    return quire__bits_float(quire__float_bits(x) | 1);
}
INLINE ivec h_fma(ivec a, ivec b, ivec c) {
    emulated_halves x = {.v = a}, y = {.v = b}, z = {.v = c};
    for (int i = 0; i < 32; i++) {
        const double exact = (double)quire__f16_to_f32(x.u16[i]) * quire__f16_to_f32(y.u16[i]);
        x.u16[i] = quire__f32_to_f16(emulated_odd_sum(exact, quire__f16_to_f32(z.u16[i])));
    }
    return x.v;
}

#endif

/* a * b + 1536 (0x6600), rounded once: its low byte is the integer nearest to a * b, which is below
 * 128. */
INLINE ivec h_round_product(ivec a, ivec b) { return h_fma(a, b, _mm512_set1_epi16(0x6600)); }

#endif
