/* 32 fp16 numbers: the few operations that quantizing a query takes (channel_query.h). In decode a
 * vector holds 32 channels of a row; in prefill one channel of 32 rows, in the order in which
 * h_pack leaves two strips of 16. */
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

INLINE ivec h_mul(ivec a, ivec b) { return (ivec)_mm512_mul_ph((__m512h)a, (__m512h)b); }
INLINE ivec h_max(ivec a, ivec b) { return (ivec)_mm512_max_ph((__m512h)a, (__m512h)b); }
/* a * b + 1536 (0x6600), rounded once: its low byte is the integer nearest to a * b, which is below
 * 128. */
INLINE ivec h_round_product(ivec a, ivec b) {
    return (ivec)_mm512_fmadd_ph((__m512h)a, (__m512h)b, (__m512h)_mm512_set1_epi16(0x6600));
}

#else

typedef union emulated_halves {
    ivec v;
    uint16_t u16[32];
} emulated_halves;
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
INLINE ivec h_round_product(ivec a, ivec b) {
    emulated_halves x = {.v = a}, y = {.v = b};
    for (int i = 0; i < 32; i++) {
        const float integer =
            fmaf(quire__f16_to_f32(x.u16[i]), quire__f16_to_f32(y.u16[i]), QUIRE_ROUND_MAGIC) -
            QUIRE_ROUND_MAGIC;
        x.u16[i] = quire__f32_to_f16(1536 + integer);
    }
    return x.v;
}

#endif
#endif
