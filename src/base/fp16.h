/* fp16 and bf16 <-> fp32, round to nearest even, subnormals included: the same bits as the
 * hardware conversions of every ISA, written out so that the reference needs none. */
#ifndef QUIRE_BASE_FP16_H
#define QUIRE_BASE_FP16_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define QUIRE_F16_MAX 65504.0f
#define QUIRE_BF16_MAX 0x1.fep127f

static inline uint32_t quire__float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float quire__bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline bool quire__finite(float x) {
    return (quire__float_bits(x) & 0x7f800000u) != 0x7f800000u;
}

static inline float quire__f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u)
        return quire__bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u)
        return quire__bits_float(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = (float)magnitude * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

static inline uint16_t quire__f32_to_f16(float x) {
    const uint32_t u = quire__float_bits(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude >= 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0));
    if (magnitude >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u); /* 65536 and above */
    if (magnitude <
        0x38800000u) { /* subnormal: adding 0.5 leaves the value in units of 2^-24, rounded */
        const float sum = quire__bits_float(magnitude) + 0.5f;
        return (uint16_t)(sign | (quire__float_bits(sum) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

static inline float quire__bf16_to_f32(uint16_t h) { return quire__bits_float((uint32_t)h << 16); }

static inline uint16_t quire__f32_to_bf16(float x) {
    const uint32_t u = quire__float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#endif
