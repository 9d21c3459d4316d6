/* Integer products with AVX2, which has no exact u8 x s8 product: pairs of products saturate at 16
 * bits. So codes below 16 (K: 32), which cannot saturate, are multiplied as bytes, and all others
 * as 16-bit numbers, even and odd bytes apart.
 *
 * Every product adds four neighbouring bytes into one int32: a row of 8 bytes gives two parts,
 * which the join adds.
 *   small   codes 0..15 (K: 0..31)  operand: 8 bytes (plane 0)
 *   signed  codes -128..127         operand: int16, even bytes (plane 0), odd bytes (plane 1)
 *   wide    the same with 15-bit q or 16-bit weights. Weights are stored minus 2^15, which the
 *           column sums of V make up for.
 */
#ifndef QUIRE_KERN_X86_AVX2_PRODUCTS_H
#define QUIRE_KERN_X86_AVX2_PRODUCTS_H

#include "kern/x86/avx2_simd.h"

typedef enum product { SMALL, SIGNED, WIDE } product;

#define SET 4 /* most query rows that share a load of codes; their sums take half the registers */
#define WIDE_SET SET /* the same where a side of the pages is WIDE */

#define QUADS 0 /* whether four columns of codes are loaded at once: quads_tmpl.h */

enum {
    K_BIAS = 0,       /* what is added to signed codes of K */
    MOST_TOGETHER = 1 /* that `together` returns */
};

typedef struct codes {
    ivec even, odd; /* small: all are in `even` */
} codes;
typedef codes operand;
typedef ivec sums; /* small: of int16, which are added to totals before they overflow */
typedef ivec totals;
typedef ivec columns; /* sums of V's codes over tokens */

INLINE sums no_sums(void) { return _mm256_setzero_si256(); }
INLINE totals no_totals(void) { return _mm256_setzero_si256(); }
INLINE columns no_columns(void) { return _mm256_setzero_si256(); }

INLINE codes widened(const product kind, ivec x) {
    if (kind == SMALL)
        return (codes){x, x};
    return (codes){_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
INLINE operand load_operand(const product kind, const uint8_t *plane0, const uint8_t *plane1) {
    const ivec x = b_repeat8(plane0);
    return (operand){x, kind == SMALL ? x : b_repeat8(plane1)};
}

/* How many octets of dims (K) or atoms of 8 tokens (V) one multiplication takes. */
INLINE int together(const product kind) { return (void)kind, 1; }

/* How many slices can be multiplied before their sums must be added to totals. `most`: the largest
 * low code and the largest high code of a byte together, `by`: the largest number they meet. */
INLINE int slices_at_once(const product kind, const int most, const int by) {
    const int n = INT16_MAX / (2 * most * by);
    return kind != SMALL ? 1 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}
INLINE void add_to_total(const product kind, totals *total, sums *x) {
    if (kind != SMALL)
        return;
    *total = _mm256_add_epi32(*total, _mm256_madd_epi16(*x, _mm256_set1_epi16(1)));
    *x = no_sums();
}
INLINE sums all_of(const product kind, totals total, sums x) { return kind == SMALL ? total : x; }

/* ------------------------------------------------------------------ K */

INLINE ivec k_raise(const product kind, ivec x) { return (void)kind, x; }
INLINE codes k_codes(const product kind, ivec x) { return widened(kind, x); }

INLINE sums multiply_wide(sums acc, codes x, operand y) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(x.even, y.even));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(x.odd, y.odd));
}
INLINE sums multiply_small(sums acc, codes u8, codes s8) {
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(u8.even, s8.even));
}
/* `n`: octets in x and q; together(kind), or the two of a last slice where that is more. */
INLINE sums k_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *q) {
    (void)n;
    return kind == SMALL ? multiply_small(acc, x[0], q[0]) : multiply_wide(acc, x[0], q[0]);
}
/* From row pairs 0 2 4 .. and 1 3 5 .. to rows in order. */
INLINE ivec k_join(const product kind, sums even_pairs, sums odd_pairs) {
    return (void)kind, i_add_pairs(even_pairs, odd_pairs);
}

/* Adds products of twice a middle (below 32) and an integer of q, four at a time. */
INLINE ivec k_centre(ivec acc, ivec middle, ivec integers) {
    return i_add(acc,
                 _mm256_madd_epi16(_mm256_maddubs_epi16(middle, integers), _mm256_set1_epi16(1)));
}

/* 16 integers of q in the order of a page's dims: natural for 8-bit codes, else 0 2 1 3 in each
 * four. */
INLINE void k_store(const product kind, const ivec x[2], int8_t *plane0, int8_t *plane1) {
    if (kind == SMALL) {
        _mm_storeu_si128((__m128i *)(void *)plane0, _mm_shuffle_epi8(b_narrow_16(x), dim_order()));
        return;
    }
    const __m256i order = kind == WIDE ? _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)
                                       : _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    UNROLL for (int i = 0; i < 2; i++) {
        const __m256i y = _mm256_permutevar8x32_epi32(x[i], order);
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
        _mm_storel_epi64((__m128i *)(void *)(plane0 + 8 * i), words);
        _mm_storel_epi64((__m128i *)(void *)(plane1 + 8 * i), _mm_unpackhi_epi64(words, words));
    }
}

/* ------------------------------------------------------------------ V */

INLINE codes v_codes(const product kind, ivec x) { return widened(kind, x); }
INLINE sums v_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *p) {
    (void)n;
    return kind == SMALL ? multiply_small(acc, p[0], x[0]) : multiply_wide(acc, x[0], p[0]);
}
INLINE columns v_columns(const product kind, columns acc, const codes *x) {
    if (kind != WIDE)
        return acc;
    const operand one = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    return multiply_wide(acc, x[0], one);
}
INLINE ivec v_join(const product kind, sums even_pairs, sums odd_pairs, columns even_columns,
                   columns odd_columns) {
    const ivec x = i_add_pairs(even_pairs, odd_pairs);
    if (kind != WIDE)
        return x;
    return _mm256_add_epi32(x, _mm256_slli_epi32(i_add_pairs(even_columns, odd_columns), 15));
}

INLINE void v_store(const product kind, const ivec x[4], uint8_t *plane0, uint8_t *plane1) {
    const __m256i low_byte = _mm256_set1_epi16(255);
    ivec low[4], high[4];
    if (kind != WIDE) {
        const ivec p = b_narrow_to_atoms(x);
        b_store(plane0, kind == SMALL ? p : _mm256_and_si256(p, low_byte));
        if (kind == SIGNED)
            b_store(plane1, _mm256_srli_epi16(p, 8));
        return;
    }
    UNROLL for (int i = 0; i < 4; i++) {
        low[i] = _mm256_and_si256(x[i], _mm256_set1_epi32(255));
        high[i] = _mm256_srli_epi32(x[i], 8);
    }
    const ivec l = b_narrow_to_atoms(low), h = b_narrow_to_atoms(high),
               top = _mm256_set1_epi16((short)0x8000);
    const ivec even = _mm256_or_si256(_mm256_and_si256(l, low_byte), _mm256_slli_epi16(h, 8));
    const ivec odd = _mm256_or_si256(_mm256_srli_epi16(l, 8), _mm256_andnot_si256(low_byte, h));
    b_store(plane0, _mm256_xor_si256(even, top));
    b_store(plane1, _mm256_xor_si256(odd, top));
}

#endif
