/* Elements and rows of the three raw types, converted to and from fp32. */
#ifndef QUIRE_BASE_ELEMENT_H
#define QUIRE_BASE_ELEMENT_H

#include <string.h>

#include "base/fp16.h"
#include "quire.h"

#if defined(__ARM_NEON) && !defined(QUIRE_PORTABLE)
#include <arm_neon.h>
#elif defined(__F16C__) && !defined(QUIRE_PORTABLE)
#include <immintrin.h>
#endif

static inline size_t quire__type_bytes(quire_type type) { return type == QUIRE_F32 ? 4 : 2; }

static inline bool quire__type_valid(quire_type type) {
    return type == QUIRE_F32 || type == QUIRE_F16 || type == QUIRE_BF16;
}

static inline float quire__get_element(quire_type type, const void *at, size_t i) {
    if (type == QUIRE_F32) {
        float x;
        memcpy(&x, (const char *)at + 4 * i, sizeof x);
        return x;
    }
    uint16_t h;
    memcpy(&h, (const char *)at + 2 * i, sizeof h);
    return type == QUIRE_F16 ? quire__f16_to_f32(h) : quire__bf16_to_f32(h);
}

static inline void quire__put_element(quire_type type, void *at, size_t i, float x) {
    if (type == QUIRE_F32) {
        memcpy((char *)at + 4 * i, &x, sizeof x);
        return;
    }
    const uint16_t h = type == QUIRE_F16 ? quire__f32_to_f16(x) : quire__f32_to_bf16(x);
    memcpy((char *)at + 2 * i, &h, sizeof h);
}

/* ---- rows. fp16 is converted eight elements at a time where the compiler flags allow the
 * instruction. */

#if defined(__ARM_NEON) && !defined(QUIRE_PORTABLE)
#define QUIRE_HAS_F16X8
static inline void quire__f16x8_load(const void *at, float *to) {
    uint16_t h[8];
    memcpy(h, at, sizeof h);
    const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(h));
    vst1q_f32(to, vcvt_f32_f16(vget_low_f16(x)));
    vst1q_f32(to + 4, vcvt_high_f32_f16(x));
}
static inline void quire__f16x8_store(void *at, const float *from) {
    uint16_t h[8];
    const float16x8_t x = vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(from)), vld1q_f32(from + 4));
    vst1q_u16(h, vreinterpretq_u16_f16(x));
    memcpy(at, h, sizeof h);
}
#elif defined(__F16C__) && !defined(QUIRE_PORTABLE)
#define QUIRE_HAS_F16X8
static inline void quire__f16x8_load(const void *at, float *to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)));
}
static inline void quire__f16x8_store(void *at, const float *from) {
    _mm_storeu_si128((__m128i *)at,
                     _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}
#endif

static inline void quire__row_from_raw(quire_type type, const void *at, size_t n,
                                       float *row /* (n) */) {
    if (type == QUIRE_F32) {
        memcpy(row, at, n * sizeof *row);
        return;
    }
    size_t i = 0;
#ifdef QUIRE_HAS_F16X8
    if (type == QUIRE_F16)
        for (; i + 8 <= n; i += 8)
            quire__f16x8_load((const char *)at + 2 * i, row + i);
#endif
    for (; i < n; i++)
        row[i] = quire__get_element(type, at, i);
}

static inline void quire__row_to_raw(quire_type type, void *at, size_t n,
                                     const float *row /* (n) */) {
    if (type == QUIRE_F32) {
        memcpy(at, row, n * sizeof *row);
        return;
    }
    size_t i = 0;
#ifdef QUIRE_HAS_F16X8
    if (type == QUIRE_F16)
        for (; i + 8 <= n; i += 8)
            quire__f16x8_store((char *)at + 2 * i, row + i);
#endif
    for (; i < n; i++)
        quire__put_element(type, at, i, row[i]);
}

/* The index of the first element that is NaN or larger than this in magnitude; n: none. */
static inline size_t quire__first_beyond(const float *row, size_t n, float largest) {
    int beyond = 0;
    for (size_t i = 0; i < n; i++)
        beyond |= !(row[i] <= largest) | !(row[i] >= -largest);
    if (!beyond)
        return n;
    size_t i = 0;
    while (row[i] <= largest && row[i] >= -largest)
        i++;
    return i;
}

/* Tests exponent bits, without an early exit, so that compilers vectorize the loops. */
static inline bool quire__all_finite(quire_type type, const void *at, size_t n) {
    int bad = 0;
    if (type == QUIRE_F32) {
        for (size_t i = 0; i < n; i++) {
            uint32_t x;
            memcpy(&x, (const char *)at + 4 * i, sizeof x);
            bad |= (x & 0x7f800000u) == 0x7f800000u;
        }
        return !bad;
    }
    const uint16_t exponent = type == QUIRE_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, (const char *)at + 2 * i, sizeof x);
        bad |= (x & exponent) == exponent;
    }
    return !bad;
}

#endif
