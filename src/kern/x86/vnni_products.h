/* Integer products by VPDPBUSD: u8 x s8, exact. Part of avx2_vnni_products.h and
 * avx512_vnni_products.h, which define SET, WIDE_SET, QUADS, multiply_bytes and no_sum.
 *
 * Signed codes of K get 128 added to become the unsigned side; 128 times the sum of q is subtracted
 * at the end (query_tmpl.h). Weights of V are unsigned anyway.
 *
 * avx2_products.h explains the functions. Operands: 8 bytes (plane 0); wide: the high byte of each
 * number (plane 0; of q, x / 128 rounded) and the low byte (plane 1). */
#ifndef QUIRE_KERN_X86_VNNI_PRODUCTS_H
#define QUIRE_KERN_X86_VNNI_PRODUCTS_H

typedef enum product { SMALL, SIGNED, WIDE } product;

enum { K_BIAS = 128, MOST_TOGETHER = 1 };

typedef ivec codes;
typedef struct operand {
    ivec plane[2];
} operand;
typedef struct sums {
    ivec plane[2];
} sums;
typedef int columns; /* not needed */

INLINE sums no_sums(void) { return (sums){{no_sum(), no_sum()}}; }
INLINE columns no_columns(void) { return 0; }

INLINE operand load_operand(const product kind, const uint8_t *plane0, const uint8_t *plane1) {
    const ivec x = b_repeat8(plane0);
    return (operand){{x, kind == WIDE ? b_repeat8(plane1) : x}};
}

#if QUADS
INLINE bool takes_quads(const product kind) { return (void)kind, true; }
#endif
INLINE int together(const product kind) { return (void)kind, 1; }

#include "kern/x86/no_totals.h"

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
    const ivec x = i_add_pairs(even_pairs.plane[0], odd_pairs.plane[0]);
    if (kind != WIDE)
        return x;
    return i_add(i_shl(x, 7), i_add_pairs(even_pairs.plane[1], odd_pairs.plane[1]));
}

INLINE ivec k_centre(ivec acc, ivec middle, ivec integers) {
    return multiply_bytes(acc, middle, integers);
}

INLINE void k_store(const product kind, const ivec x[16 / W], int8_t *plane0, int8_t *plane1) {
    ivec high[16 / W], low[16 / W];
    if (kind != WIDE) {
        _mm_storeu_si128((__m128i *)(void *)plane0, _mm_shuffle_epi8(b_narrow_16(x), dim_order()));
        return;
    }
    UNROLL for (int i = 0; i < 16 / W; i++) {
        high[i] = i_shr(i_add(x[i], i_all(64)), 7);
        low[i] = i_sub(x[i], i_shl(high[i], 7));
    }
    _mm_storeu_si128((__m128i *)(void *)plane0, b_narrow_16(high));
    _mm_storeu_si128((__m128i *)(void *)plane1, b_narrow_16(low));
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
    const ivec x = i_add_pairs(even_pairs.plane[0], odd_pairs.plane[0]);
    if (kind != WIDE)
        return x;
    return i_add(i_shl(x, 8), i_add_pairs(even_pairs.plane[1], odd_pairs.plane[1]));
}

INLINE void v_store(const product kind, const ivec x[4], uint8_t *plane0, uint8_t *plane1) {
    if (kind != WIDE) {
        b_store(plane0, b_narrow_to_atoms(x));
        return;
    }
    ivec low[4], high[4];
    EACH low[u] = b_and(x[u], i_all(255));
    EACH high[u] = i_shr(x[u], 8);
    b_store(plane0, b_narrow_to_atoms(high));
    b_store(plane1, b_narrow_to_atoms(low));
}

#endif
