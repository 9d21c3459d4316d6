/* Arithmetic whose result must be the same on every machine. The build forbids contraction
 * (-ffp-contract=off), so an fma happens exactly where one is written. */
#ifndef QUIRE_BASE_REAL_H
#define QUIRE_BASE_REAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fp16.h"

/* Adding it leaves the integer nearest to x (ties to even) in the low mantissa bits, for |x| <
 * 2^22. */
#define QUIRE_ROUND_MAGIC 12582912.0f

static inline int32_t quire__round(float x) {
    return (int32_t)((x + QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC);
}

/* The integer nearest to the exact product: one fma, as the vector kernels do it. */
static inline int32_t quire__round_product(float x, float y) {
    return (int32_t)(fmaf(x, y, QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC);
}

/* x = x * keep + y * add; either product is rounded. */
static inline void quire__blend(float *x, float keep, const float *y, float add, int n) {
    for (int i = 0; i < n; i++)
        x[i] = x[i] * keep + y[i] * add;
}

/* Sixteen running sums, then a tree: the order every vector width can follow. n is a multiple of
 * 16. */
static inline float quire__sum_of_products(const float *a, const float *b, int n) {
    float lane[16] = {0};
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] += a[i + j] * b[i + j];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

#define QUIRE_LOG2E 1.44269504088896340736f
#define QUIRE_LN2 0.69314718055994530942f

/* 2^x for x <= 0, relative error 4e-7; results below 2^-126 become 2^-126 (callers handle hidden
 * tokens separately). */
static inline float quire__exp2(float x) {
    if (!(x > -126.0f))
        x = -126.0f;
    const float whole = (x + QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC, f = x - whole;
    float p = 1.5403530e-4f; /* Taylor series of 2^f, |f| <= 1/2 */
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return quire__bits_float(quire__float_bits(p) + ((uint32_t)(int32_t)whole << 23));
}

#endif
