/* How q is multiplied by the channel scales of a K page of fewer than 8 bits. Both go through fp16,
 * whose rounding every ISA has, so that the integers are the same everywhere and a core with fp16
 * arithmetic handles eight channels at a time:
 *
 *   q' = fp16(q * 2^(12 - a))   a: exponent of the row's largest |q|; largest q' in 2^12 .. 2^13
 *   s' = fp16(s * 2^-b)         b: exponent of the page's largest |scale|, at most 14, so that
 *                               2^-b is an fp16 number
 *   y  = fp16(q' * s'),   m = max |y|,   r = fp16(127 / m)
 *   integer = round(y * r), ties to even, rounded once
 *
 * One integer step is worth 2^(a - 12) * 2^b / r. The 11 bits of fp16 cost nothing against the int8
 * step that follows: they lose 2^-12 of a channel's own size, and the step is 1/254 of the largest.
 */
#ifndef QUIRE_KERN_SHARED_CHANNEL_QUERY_H
#define QUIRE_KERN_SHARED_CHANNEL_QUERY_H

#include <math.h>

#include "base/fp16.h"

#define QUIRE_CHANNEL_STEPS 127.0f

static inline float quire__power_of_two(int exponent /* -126 .. 127 */) {
    return quire__bits_float((uint32_t)(127 + exponent) << 23);
}

/* a above. Rows below 2^-100 become zero in the end: the factor must stay finite. */
static inline int quire__query_exponent(float largest) {
    const int exponent = (int)(quire__float_bits(largest) >> 23 & 255) - 127;
    return exponent < -100 ? -100 : exponent;
}

static inline float quire__query_factor(int exponent) { return quire__power_of_two(12 - exponent); }
static inline float quire__query_unit(int exponent) { return quire__power_of_two(exponent - 12); }

/* b above, from the fp16 bits of the largest |scale|; -15 for subnormal numbers and zero. */
static inline int quire__scale_exponent(uint16_t largest) {
    const int exponent = (largest >> 10 & 31) - 15;
    return exponent > 14 ? 14 : exponent;
}

static inline float quire__round_fp16(float x) { return quire__f16_to_f32(quire__f32_to_f16(x)); }

/* r above. */
static inline float quire__channel_inverse(float magnitude) {
    return quire__round_fp16(fminf(QUIRE_CHANNEL_STEPS / magnitude, QUIRE_F16_MAX));
}

#endif
