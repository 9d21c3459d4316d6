/* AVX2 and AVX-512 intrinsics from SIMDe, and the few that its version 0.7.4 lacks. For tests
 * only. */
#ifndef QUIRE_KERN_X86_EMULATED_H
#define QUIRE_KERN_X86_EMULATED_H

#include <math.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include "base/fp16.h"

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

/* To the nearest integer; what int32 cannot hold is INT32_MIN. */
static inline __m512i emulated_cvtps_epi32(__m512 a) {
    emulated_vector x = {.f = a};
    for (int i = 0; i < 16; i++) {
        const float y = rintf(x.f32[i]);
        x.s32[i] = y >= -0x1p31f && y < 0x1p31f ? (int32_t)y : INT32_MIN;
    }
    return x.i;
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

/* SIMDe rounds twice where an x86-64 build has no FMA. */
#if defined(__x86_64__) && !defined(__FMA__)
static inline __m512 emulated_fmadd_512(__m512 a, __m512 b, __m512 c) {
    const emulated_vector x = {.f = a}, y = {.f = b};
    emulated_vector z = {.f = c};
    for (int i = 0; i < 16; i++)
        z.f32[i] = fmaf(x.f32[i], y.f32[i], z.f32[i]);
    return z.f;
}

static inline __m256 emulated_fmadd_256(__m256 a, __m256 b, __m256 c) {
    float x[8], y[8], z[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(z, &c, sizeof z);
    for (int i = 0; i < 8; i++)
        z[i] = fmaf(x[i], y[i], z[i]);
    return _mm256_loadu_ps(z);
}

#undef _mm256_fmadd_ps
#undef _mm512_fmadd_ps
#define _mm256_fmadd_ps emulated_fmadd_256
#define _mm512_fmadd_ps emulated_fmadd_512
#endif

typedef uint8_t __mmask8;
typedef uint16_t __mmask16;

static inline __m256i emulated_cvtepi32_epi16(__m512i a) {
    const emulated_vector x = {.i = a};
    uint16_t y[16];
    for (int i = 0; i < 16; i++)
        y[i] = (uint16_t)x.s32[i];
    return _mm256_loadu_si256((const __m256i *)(const void *)y);
}

/* Like the processor, it does not touch what the mask leaves out. */
static inline __m512i emulated_maskz_loadu_epi64(unsigned mask, const void *at) {
    uint64_t x[8] = {0};
    __m512i y;
    for (int i = 0; i < 8; i++)
        if (mask >> i & 1)
            memcpy(&x[i], (const uint8_t *)at + 8 * i, 8);
    memcpy(&y, x, sizeof y);
    return y;
}

static inline void emulated_mask_storeu_ps(void *at, unsigned mask, __m512 a) {
    const emulated_vector x = {.f = a};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((uint8_t *)at + 4 * i, &x.f32[i], 4);
}

/* What a number has above the integer below it, rounded down, too; of an infinity, 0. */
static inline __m512 emulated_reduce_ps(__m512 a) {
    emulated_vector x = {.f = a};
    for (int i = 0; i < 16; i++) {
        const double whole = floor((double)x.f32[i]), fraction = (double)x.f32[i] - whole;
        const float nearest = (float)fraction;
        x.f32[i] = isinf(x.f32[i])              ? 0
                   : (double)nearest > fraction ? nextafterf(nearest, 0)
                                                : nearest;
    }
    return x.f;
}

static inline __m512 emulated_maskz_scalef_ps(unsigned mask, __m512 a, __m512 b) {
    emulated_vector x = {.f = a};
    const emulated_vector y = {.f = b};
    for (int i = 0; i < 16; i++)
        x.f32[i] = mask >> i & 1 ? ldexpf(x.f32[i], (int)floorf(y.f32[i])) : 0;
    return x.f;
}

/* SIMDe 0.7.4 gives this name to the masked one. */
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16

/* AVX-VNNI has an encoding of its own for this product. */
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32

#undef _mm512_maskz_scalef_ps
#define _mm512_reduce_ps(a, toward_minus_infinity) emulated_reduce_ps(a)
#define _mm512_maskz_scalef_ps emulated_maskz_scalef_ps
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_maskz_loadu_epi64 emulated_maskz_loadu_epi64
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32

#endif
