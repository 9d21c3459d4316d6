/* Integer products with AVX-512 BW, without VNNI: those of avx2_products.h, which explains the
 * functions and why nothing saturates, in vectors twice as wide. */
#ifndef QUIRE_KERN_X86_AVX512_PRODUCTS_H
#define QUIRE_KERN_X86_AVX512_PRODUCTS_H

#include "kern/x86/avx512_simd.h"

typedef enum product { SMALL, SIGNED, WIDE } product;

#define SET 8

enum { K_BIAS = 0 };

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

INLINE int together(const product kind) { return kind == SMALL ? 2 : 1; }

INLINE sums multiply_wide(sums acc, codes x, operand y) {
    acc = i_add(acc, _mm512_madd_epi16(x.even, y.even));
    return i_add(acc, _mm512_madd_epi16(x.odd, y.odd));
}
/* Adds neighbouring int16. */
INLINE sums add_pairs(sums acc, ivec a, ivec b) {
    return i_add(acc, _mm512_madd_epi16(_mm512_add_epi16(a, b), _mm512_set1_epi16(1)));
}
/* Adds the two parts of each row: [a0+a1, a2+a3, b0+b1, b2+b3] in every 16 bytes. */
INLINE ivec add_parts(ivec a, ivec b) {
    const fvec x = f_from_bits(a), y = f_from_bits(b);
    return i_add(f_bits(_mm512_shuffle_ps(x, y, 0x88)), f_bits(_mm512_shuffle_ps(x, y, 0xdd)));
}

/* ------------------------------------------------------------------ K */

INLINE ivec k_raise(const product kind, ivec x) { return (void)kind, x; }
INLINE codes k_codes(const product kind, ivec x) { return widened(kind, x); }

INLINE sums k_multiply(const product kind, sums acc, const codes *x, const operand *q) {
    if (kind != SMALL)
        return multiply_wide(acc, x[0], q[0]);
    return add_pairs(acc, _mm512_maddubs_epi16(x[0].even, q[0].even),
                     _mm512_maddubs_epi16(x[1].even, q[1].even));
}
INLINE ivec k_join(const product kind, sums even_pairs, sums odd_pairs) {
    return (void)kind, add_parts(even_pairs, odd_pairs);
}

INLINE ivec k_centre(ivec acc, ivec middle, ivec integers) {
    return i_add(acc,
                 _mm512_madd_epi16(_mm512_maddubs_epi16(middle, integers), _mm512_set1_epi16(1)));
}

INLINE void k_store(const product kind, const ivec x[1], int8_t *plane0, int8_t *plane1) {
    if (kind == SMALL) {
        const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        _mm_storeu_si128((__m128i *)(void *)plane0,
                         _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x[0]), order));
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
INLINE sums v_multiply(const product kind, sums acc, const codes *x, const operand *p) {
    if (kind != SMALL)
        return multiply_wide(acc, x[0], p[0]);
    return add_pairs(acc, _mm512_maddubs_epi16(p[0].even, x[0].even),
                     _mm512_maddubs_epi16(p[1].even, x[1].even));
}
INLINE columns v_columns(const product kind, columns acc, const codes *x) {
    if (kind != WIDE)
        return acc;
    const operand one = {_mm512_set1_epi16(1), _mm512_set1_epi16(1)};
    return multiply_wide(acc, x[0], one);
}
INLINE ivec v_join(const product kind, sums even_pairs, sums odd_pairs, columns even_columns,
                   columns odd_columns) {
    const ivec x = add_parts(even_pairs, odd_pairs);
    return kind == WIDE ? i_add(x, i_shl(add_parts(even_columns, odd_columns), 15)) : x;
}

/* The low bytes of 32 weights in the order of V's atoms: tokens 0-3 16-19, 4-7 20-23, .. */
INLINE __m256i atom_order(ivec first, ivec second) {
    const __m128i a = _mm512_cvtepi32_epi8(first), b = _mm512_cvtepi32_epi8(second);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(a, b)),
                                   _mm_unpackhi_epi32(a, b), 1);
}
INLINE void store_words(uint8_t *to, __m256i x) { _mm256_storeu_si256((__m256i *)(void *)to, x); }
INLINE void v_store(const product kind, const ivec x[2], uint8_t *plane0, uint8_t *plane1) {
    const __m256i low_byte = _mm256_set1_epi16(255), low = atom_order(x[0], x[1]);
    if (kind != WIDE) {
        store_words(plane0, kind == SMALL ? low : _mm256_and_si256(low, low_byte));
        if (kind == SIGNED)
            store_words(plane1, _mm256_srli_epi16(low, 8));
        return;
    }
    const __m256i high = atom_order(_mm512_srli_epi32(x[0], 8), _mm512_srli_epi32(x[1], 8)),
                  top = _mm256_set1_epi16((short)0x8000);
    const __m256i even =
                      _mm256_or_si256(_mm256_and_si256(low, low_byte), _mm256_slli_epi16(high, 8)),
                  odd = _mm256_or_si256(_mm256_srli_epi16(low, 8),
                                        _mm256_andnot_si256(low_byte, high));
    store_words(plane0, _mm256_xor_si256(even, top));
    store_words(plane1, _mm256_xor_si256(odd, top));
}

#endif
