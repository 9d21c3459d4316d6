/* Template: vectors as gcc and clang offer them, and the few operations that the language lacks.
 * Each operation is exact or rounded once, as IEEE 754 requires, so a lane holds what the
 * reference's scalar holds, whatever the width.
 *
 * Parameters, both optional and defined only by tests, which run every width on any machine:
 *   VEC_LANES  floats per vector: 4, 8 or 16; default: as wide as the file's compiler flags allow
 *   VEC_PLAIN  no intrinsics; default where there is neither AVX2 nor NEON
 */
#ifndef QUIRE_KERN_ROWS_VEC_TMPL_H
#define QUIRE_KERN_ROWS_VEC_TMPL_H

#include <stdint.h>
#include <string.h>

#include "base/element.h"
#include "base/real.h"
#include "kern/shared/inline.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(VEC_LANES) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define VEC_LANES 16
#elif !defined(VEC_LANES) && defined(__AVX2__) && defined(__FMA__)
#define VEC_LANES 8
#elif !defined(VEC_LANES)
#define VEC_LANES 4
#endif
#if !defined(VEC_PLAIN) && !defined(__AVX2__) && !defined(__aarch64__)
#define VEC_PLAIN
#endif

/* PER_LANE(f): the list f(0), f(1), .. EACH_SWAP_UP: statement(h) for h = 1, 2, 4 .. below the
 * number of lanes; EACH_SWAP_DOWN: in reverse order. */
#if VEC_LANES == 16
#define PER_LANE(f)                                                                                \
    f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), \
        f(15)
#define EACH_SWAP_UP(statement) statement(1) statement(2) statement(4) statement(8)
#define EACH_SWAP_DOWN(statement) statement(8) statement(4) statement(2) statement(1)
#elif VEC_LANES == 8
#define PER_LANE(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#define EACH_SWAP_UP(statement) statement(1) statement(2) statement(4)
#define EACH_SWAP_DOWN(statement) statement(4) statement(2) statement(1)
#else
#define PER_LANE(f) f(0), f(1), f(2), f(3)
#define EACH_SWAP_UP(statement) statement(1) statement(2)
#define EACH_SWAP_DOWN(statement) statement(2) statement(1)
#endif
enum { LANES = VEC_LANES };
enum { PER_16 = 16 / LANES }; /* vectors that hold 16 floats: every head size is a multiple */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define SHUFFLE(a, b, index, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, index, ...) __builtin_shuffle(a, b, (index){__VA_ARGS__})
#endif

INLINE vf load_f(const float *at) {
    vf x;
    memcpy(&x, at, sizeof x);
    return x;
}
INLINE void store_f(float *at, vf x) { memcpy(at, &x, sizeof x); }
INLINE vi load_i(const uint32_t *at) {
    vi x;
    memcpy(&x, at, sizeof x);
    return x;
}
INLINE u8x16 load_16(const uint8_t *at) {
    u8x16 x;
    memcpy(&x, at, sizeof x);
    return x;
}
INLINE void store_16(uint8_t *at, u8x16 x) { memcpy(at, &x, sizeof x); }

INLINE vf splat(float x) { return x - (vf){0}; } /* x - 0 is x, also for -0 */
INLINE vf and_f(vf x, vi mask) { return (vf)((vi)x & mask); }
INLINE vf xor_f(vf x, vi mask) { return (vf)((vi)x ^ mask); }
INLINE vf select_f(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf abs_f(vf x) { return and_f(x, (vi){0} + 0x7fffffff); }

/* min_f, max_f: never of NaN; of zeros with different signs either one, which no caller can tell
 * apart. rint_f: to the nearest integer, ties to even. low_bytes: of 16 integers. lookup: table[i],
 * i < 16. */
#if defined(VEC_PLAIN)
INLINE vf min_f(vf a, vf b) { return select_f(a < b, a, b); }
INLINE vf max_f(vf a, vf b) { return select_f(a > b, a, b); }
INLINE vf fma_f(vf a, vf b, vf c) {
    for (int i = 0; i < LANES; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
INLINE vf rint_f(vf x) {
    for (int i = 0; i < LANES; i++)
        x[i] = rintf(x[i]);
    return x;
}
INLINE u8x16 low_bytes(const vi x[PER_16]) {
    u8x16 bytes = {0};
    for (int i = 0; i < 16; i++)
        bytes[i] = (uint8_t)x[i / LANES][i % LANES];
    return bytes;
}
INLINE u8x16 lookup(u8x16 table, u8x16 i) {
    for (int j = 0; j < 16; j++)
        i[j] = table[i[j]];
    return i;
}
#elif VEC_LANES == 16
INLINE vf min_f(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vf max_f(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf fma_f(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vf rint_f(vf x) {
    return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE u8x16 low_bytes(const vi x[PER_16]) { return (u8x16)_mm512_cvtepi32_epi8((__m512i)x[0]); }
INLINE u8x16 lookup(u8x16 table, u8x16 i) {
    return (u8x16)_mm_shuffle_epi8((__m128i)table, (__m128i)i);
}
#elif VEC_LANES == 8
INLINE vf min_f(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf max_f(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf fma_f(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf rint_f(vf x) {
    return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE u8x16 low_bytes(const vi x[PER_16]) {
    const __m256i halves = _mm256_packus_epi32((__m256i)(x[0] & 255), (__m256i)(x[1] & 255));
    const __m256i ordered = _mm256_permute4x64_epi64(halves, 0xd8);
    return (u8x16)_mm_packus_epi16(_mm256_castsi256_si128(ordered),
                                   _mm256_extracti128_si256(ordered, 1));
}
INLINE u8x16 lookup(u8x16 table, u8x16 i) {
    return (u8x16)_mm_shuffle_epi8((__m128i)table, (__m128i)i);
}
#else
INLINE vf min_f(vf a, vf b) { return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE vf max_f(vf a, vf b) { return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE vf fma_f(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE vf rint_f(vf x) { return (vf)vrndnq_f32((float32x4_t)x); }
INLINE u8x16 low_bytes(const vi x[PER_16]) {
    const uint16x8_t low = vuzp1q_u16((uint16x8_t)x[0], (uint16x8_t)x[1]);
    const uint16x8_t high = vuzp1q_u16((uint16x8_t)x[2], (uint16x8_t)x[3]);
    return (u8x16)vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
}
INLINE u8x16 lookup(u8x16 table, u8x16 i) {
    return (u8x16)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)i);
}
#endif

/* Moves lane i ^ h to lane i. */
#define SWAP_1(i) ((i) ^ 1)
#define SWAP_2(i) ((i) ^ 2)
#define SWAP_4(i) ((i) ^ 4)
#define SWAP_8(i) ((i) ^ 8)
#define SWAPPED(x, h) SHUFFLE(x, x, vi, PER_LANE(SWAP_##h))

INLINE float smallest_of(vf x) {
#define STEP(h) x = min_f(x, SWAPPED(x, h));
    EACH_SWAP_UP(STEP)
#undef STEP
    return x[0];
}

INLINE float largest_of(vf x) {
#define STEP(h) x = max_f(x, SWAPPED(x, h));
    EACH_SWAP_UP(STEP)
#undef STEP
    return x[0];
}

/* The tree of quire__sum_of_products over its sixteen running sums. */
INLINE float sum_of_16(vf sum[PER_16]) {
    UNROLL for (int width = PER_16 / 2; width > 0; width /= 2) {
        UNROLL for (int j = 0; j < width; j++) sum[j] += sum[j + width];
    }
#define STEP(h) sum[0] += SWAPPED(sum[0], h);
    EACH_SWAP_DOWN(STEP)
#undef STEP
    return sum[0][0];
}

/* quire__sum_of_products of x with itself. */
INLINE float sum_of_squares(const float *x, int n) {
    vf sum[PER_16] = {{0}};
    for (int i = 0; i < n; i += 16)
        UNROLL for (int j = 0; j < PER_16; j++) {
            const vf v = load_f(x + i + j * LANES);
            sum[j] += v * v;
        }
    return sum_of_16(sum);
}

/* The integers nearest to x[] (ties to even) after clamping, as bytes. */
INLINE u8x16 rounded_codes_up_to(vf x[PER_16], vf lowest, const vf highest[PER_16]) {
    vi bits[PER_16];
    UNROLL for (int j = 0; j < PER_16; j++) {
        bits[j] = (vi)(min_f(max_f(x[j], lowest), highest[j]) + QUIRE_ROUND_MAGIC);
    }
    return low_bytes(bits); /* the low mantissa bits are the integer, also if it is negative */
}
INLINE u8x16 rounded_codes(vf x[PER_16], vf lowest, vf highest) {
    vf all[PER_16];
    UNROLL for (int j = 0; j < PER_16; j++) all[j] = highest;
    return rounded_codes_up_to(x, lowest, all);
}

#endif
