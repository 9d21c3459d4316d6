/* AVX2 and AVX-512 intrinsics from SIMDe, and the few that its version 0.7.4 lacks. For tests
 * only. */
#ifndef QUIRE_KERN_X86_EMULATED_H
#define QUIRE_KERN_X86_EMULATED_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include "base/half.h"

typedef union emulated_vector {
    __m512 f;
    __m512i i;
    float f32[16];
    int32_t s32[16];
} emulated_vector;

static inline __m512 emulated_cvtepi32_ps(__m512i a) {
    emulated_vector x = {.i = a};
    for (int i = 0; i < 16; i++)
        x.f32[i] = (float)x.s32[i];
    return x.f;
}

static inline __m128i emulated_cvtepi32_epi8(__m512i a) {
    const emulated_vector x = {.i = a};
    uint8_t y[16];
    for (int i = 0; i < 16; i++)
        y[i] = (uint8_t)x.s32[i];
    return _mm_loadu_si128((const __m128i *)(const void *)y);
}

static inline __m512i emulated_srai_epi32(__m512i a, unsigned n) {
    emulated_vector x = {.i = a};
    for (int i = 0; i < 16; i++)
        x.s32[i] >>= n;
    return x.i;
}

static inline __m512 emulated_cvtph_ps(__m256i a) {
    uint16_t h[16];
    emulated_vector x;
    memcpy(h, &a, sizeof h);
    for (int i = 0; i < 16; i++)
        x.f32[i] = quire__f16_to_f32(h[i]);
    return x.f;
}

static inline __m256i emulated_cvtps_ph(__m512 a) {
    const emulated_vector x = {.f = a};
    uint16_t h[16];
    for (int i = 0; i < 16; i++)
        h[i] = quire__f32_to_f16(x.f32[i]);
    return _mm256_loadu_si256((const __m256i *)(const void *)h);
}

static inline __m512i emulated_cvtepu16_epi32(__m256i a) {
    uint16_t h[16];
    emulated_vector x;
    memcpy(h, &a, sizeof h);
    for (int i = 0; i < 16; i++)
        x.s32[i] = h[i];
    return x.i;
}

#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32

#endif
