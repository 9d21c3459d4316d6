/* Integer products with AVX-512 VNNI: u8 x s8, exact. Signed codes of K get 128 added to become the
 * unsigned side; 128 times the sum of q is subtracted at the end (query_tmpl.h). Weights of V are
 * unsigned anyway.
 *
 * avx2_products.h explains the functions. Operands: 8 bytes (plane 0); wide: the high byte of each
 * number (plane 0; of q, x / 128 rounded) and the low byte (plane 1). */
#ifndef QUIRE_KERN_X86_AVX512_VNNI_PRODUCTS_H
#define QUIRE_KERN_X86_AVX512_VNNI_PRODUCTS_H

#include "kern/x86/avx512_simd.h"

typedef enum product { SMALL, SIGNED, WIDE } product;

#define SET 8
#define WIDE_SET 4 /* wide sums take two registers */
#define QUADS 1

enum { K_BIAS = 128, MOST_TOGETHER = 1 };

typedef ivec codes;
typedef struct operand {
    ivec plane[2];
} operand;
typedef struct sums {
    ivec plane[2];
} sums;
typedef int columns; /* not needed */

#if defined(__GNUC__) && !defined(__clang__) && !defined(QUIRE_EMULATED)
#define GCC_ASSEMBLY 1
#else
#define GCC_ASSEMBLY 0
#endif

/* u8 times s8, added to acc. gcc 12 keeps sums that a loop carries in two places, and moves them
 * from one to the other in every turn, unless it sees one operand that is read and written. */
INLINE ivec multiply_bytes(ivec acc, ivec u8, ivec s8) {
#if GCC_ASSEMBLY
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u8), "v"(s8));
    return acc;
#else
    return _mm512_dpbusd_epi32(acc, u8, s8);
#endif
}

/* gcc copies one zero for every sum, which occupies a port; clearing a register does not. */
INLINE ivec no_sum(void) {
#if GCC_ASSEMBLY
    ivec x;
    __asm__("vpxord %0, %0, %0" : "=v"(x));
    return x;
#else
    return _mm512_setzero_si512();
#endif
}
INLINE sums no_sums(void) { return (sums){{no_sum(), no_sum()}}; }
INLINE columns no_columns(void) { return 0; }

INLINE operand load_operand(const product kind, const uint8_t *plane0, const uint8_t *plane1) {
    const ivec x = b_repeat8(plane0);
    return (operand){{x, kind == WIDE ? b_repeat8(plane1) : x}};
}

/* Adds the two parts of each row: [a0+a1, a2+a3, b0+b1, b2+b3] in every 16 bytes. */
INLINE ivec add_parts(ivec a, ivec b) {
    const fvec x = f_from_bits(a), y = f_from_bits(b);
    return i_add(f_bits(_mm512_shuffle_ps(x, y, 0x88)), f_bits(_mm512_shuffle_ps(x, y, 0xdd)));
}

INLINE bool takes_quads(const product kind) { return (void)kind, true; }
INLINE int together(const product kind) { return (void)kind, 1; }

/* ------------------------------------------------------------------ K */

INLINE ivec k_raise(const product kind, ivec x) {
    return kind == SMALL ? x : b_xor(x, b_all(0x80));
}
INLINE codes k_codes(const product kind, ivec x) { return (void)kind, x; }

INLINE sums k_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *q) {
    (void)n;
    acc.plane[0] = multiply_bytes(acc.plane[0], x[0], q[0].plane[0]);
    if (kind == WIDE)
        acc.plane[1] = multiply_bytes(acc.plane[1], x[0], q[0].plane[1]);
    return acc;
}
INLINE ivec k_join(const product kind, sums even_pairs, sums odd_pairs) {
    const ivec x = add_parts(even_pairs.plane[0], odd_pairs.plane[0]);
    if (kind != WIDE)
        return x;
    return i_add(i_shl(x, 7), add_parts(even_pairs.plane[1], odd_pairs.plane[1]));
}

INLINE ivec k_centre(ivec acc, ivec middle, ivec integers) {
    return _mm512_dpbusd_epi32(acc, middle, integers);
}

INLINE void k_store(const product kind, const ivec x[1], int8_t *plane0, int8_t *plane1) {
    if (kind != WIDE) {
        _mm_storeu_si128((__m128i *)(void *)plane0,
                         _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x[0]), dim_order()));
        return;
    }
    const ivec high = _mm512_srai_epi32(i_add(x[0], i_all(64)), 7),
               low = i_sub(x[0], i_shl(high, 7));
    _mm_storeu_si128((__m128i *)(void *)plane0, _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)(void *)plane1, _mm512_cvtepi32_epi8(low));
}

/* ------------------------------------------------------------------ V */

INLINE codes v_codes(const product kind, ivec x) { return (void)kind, x; }
INLINE sums v_multiply(const product kind, const int n, sums acc, const codes *x,
                       const operand *p) {
    (void)n;
    acc.plane[0] = multiply_bytes(acc.plane[0], p[0].plane[0], x[0]);
    if (kind == WIDE)
        acc.plane[1] = multiply_bytes(acc.plane[1], p[0].plane[1], x[0]);
    return acc;
}
INLINE columns v_columns(const product kind, columns acc, const codes *x) {
    return (void)kind, (void)x, acc;
}
INLINE ivec v_join(const product kind, sums even_pairs, sums odd_pairs, columns even_columns,
                   columns odd_columns) {
    (void)even_columns, (void)odd_columns;
    const ivec x = add_parts(even_pairs.plane[0], odd_pairs.plane[0]);
    if (kind != WIDE)
        return x;
    return i_add(i_shl(x, 8), add_parts(even_pairs.plane[1], odd_pairs.plane[1]));
}

INLINE void v_store(const product kind, const ivec x[4], uint8_t *plane0, uint8_t *plane1) {
    if (kind != WIDE) {
        b_store(plane0, b_narrow_to_atoms(x));
        return;
    }
    ivec low[4], high[4];
    EACH low[u] = b_and(x[u], i_all(255));
    EACH high[u] = _mm512_srli_epi32(x[u], 8);
    b_store(plane0, b_narrow_to_atoms(high));
    b_store(plane1, b_narrow_to_atoms(low));
}

#endif
