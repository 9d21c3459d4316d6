/* Integer products with AVX-512 BW, without VNNI: those of avx2_products.h, which explains the
 * functions, in vectors twice as wide, and small ones of four vectors at a time. */
#ifndef QUIRE_KERN_X86_AVX512_PRODUCTS_H
#define QUIRE_KERN_X86_AVX512_PRODUCTS_H

#include "kern/x86/avx512_simd.h"

typedef enum product { SMALL, SIGNED, WIDE } product;

#define SET 8
#define WIDE_SET SET

#define QUADS 1

enum { K_BIAS = 0, MOST_TOGETHER = 4 };

typedef struct codes {
    ivec even, odd; /* small: all are in `even` */
} codes;
typedef codes operand;
typedef ivec sums;
typedef ivec columns;

INLINE sums no_sums(void) { return _mm512_setzero_si512(); }
INLINE columns no_columns(void) { return _mm512_setzero_si512(); }

INLINE codes widened(const product kind, ivec x) {
    if (kind == SMALL)
        return (codes){x, x};
    return (codes){_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)};
}
INLINE operand load_operand(const product kind, const uint8_t *plane0, const uint8_t *plane1) {
    const ivec x = b_repeat8(plane0);
    return (operand){x, kind == SMALL ? x : b_repeat8(plane1)};
}

/* Signed and wide ones leave too few registers. */
INLINE bool takes_quads(const product kind) { return kind == SMALL; }
INLINE int together(const product kind) { return kind == SMALL ? MOST_TOGETHER : 1; }

INLINE sums multiply_wide(sums acc, codes x, operand y) {
    acc = i_add(acc, _mm512_madd_epi16(x.even, y.even));
    return i_add(acc, _mm512_madd_epi16(x.odd, y.odd));
}
/* Products of n vectors, added as int16, which hold as many as four vectors give: 8 * 31 * 127 (K)
 * and 8 * 15 * 255 (V). Neighbours are added last. */
INLINE sums multiply_small(const int n, sums acc, const codes *u8, const codes *s8) {
    ivec pairs = _mm512_maddubs_epi16(u8[0].even, s8[0].even);
    UNROLL for (int j = 1; j < n; j++) pairs =
        _mm512_add_epi16(pairs, _mm512_maddubs_epi16(u8[j].even, s8[j].even));
    return i_add(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#include "kern/x86/no_totals.h"

/* ------------------------------------------------------------------ K */

INLINE ivec k_raise(const product kind, ivec x) { return (void)kind, x; }
INLINE codes k_codes(const product kind, ivec x) { return widened(kind, x); }

INLINE sums k_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *q) {
    return kind == SMALL ? multiply_small(n, acc, x, q) : multiply_wide(acc, x[0], q[0]);
}
INLINE ivec k_join(const product kind, sums even_pairs, sums odd_pairs) {
    return (void)kind, i_add_pairs(even_pairs, odd_pairs);
}

INLINE ivec k_centre(ivec acc, ivec middle, ivec integers) {
    return i_add(acc,
                 _mm512_madd_epi16(_mm512_maddubs_epi16(middle, integers), _mm512_set1_epi16(1)));
}

INLINE void k_store(const product kind, const ivec x[1], int8_t *plane0, int8_t *plane1) {
    if (kind == SMALL) {
        _mm_storeu_si128((__m128i *)(void *)plane0, _mm_shuffle_epi8(b_narrow_16(x), dim_order()));
        return;
    }
    const ivec order =
        kind == WIDE ? _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)
                     : _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i words = _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, x[0]));
    _mm_storeu_si128((__m128i *)(void *)plane0, _mm256_castsi256_si128(words));
    _mm_storeu_si128((__m128i *)(void *)plane1, _mm256_extracti128_si256(words, 1));
}

/* ------------------------------------------------------------------ V */

INLINE codes v_codes(const product kind, ivec x) { return widened(kind, x); }
INLINE sums v_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *p) {
    return kind == SMALL ? multiply_small(n, acc, p, x) : multiply_wide(acc, x[0], p[0]);
}
INLINE columns v_columns(const product kind, columns acc, const codes *x) {
    if (kind != WIDE)
        return acc;
    const operand one = {_mm512_set1_epi16(1), _mm512_set1_epi16(1)};
    return multiply_wide(acc, x[0], one);
}
INLINE ivec v_join(const product kind, sums even_pairs, sums odd_pairs, columns even_columns,
                   columns odd_columns) {
    const ivec x = i_add_pairs(even_pairs, odd_pairs);
    return kind == WIDE ? i_add(x, i_shl(i_add_pairs(even_columns, odd_columns), 15)) : x;
}

INLINE void v_store(const product kind, const ivec x[4], uint8_t *plane0, uint8_t *plane1) {
    const ivec low_byte = _mm512_set1_epi16(255);
    ivec low[4], high[4];
    if (kind != WIDE) {
        const ivec p = b_narrow_to_atoms(x);
        b_store(plane0, kind == SMALL ? p : b_and(p, low_byte));
        if (kind == SIGNED)
            b_store(plane1, _mm512_srli_epi16(p, 8));
        return;
    }
    EACH low[u] = b_and(x[u], i_all(255));
    EACH high[u] = _mm512_srli_epi32(x[u], 8);
    const ivec l = b_narrow_to_atoms(low), h = b_narrow_to_atoms(high),
               top = _mm512_set1_epi16((short)0x8000);
    const ivec even = b_or(b_and(l, low_byte), _mm512_slli_epi16(h, 8));
    const ivec odd = b_or(_mm512_srli_epi16(l, 8), _mm512_andnot_si512(low_byte, h));
    b_store(plane0, b_xor(even, top));
    b_store(plane1, b_xor(odd, top));
}

#endif
