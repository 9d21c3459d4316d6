/* Template, part of packed_tmpl.h: integer K.q of a page.
 *
 * A vector holds row pairs of one column of atoms: [2 tokens][8 dims] in each 16 bytes. Two
 * vectors, the even and the odd pairs of W tokens, join to W scores in order. */
#ifndef QUIRE_KERN_X86_SCORES_TMPL_H
#define QUIRE_KERN_X86_SCORES_TMPL_H

#include "kern/x86/work_tmpl.h"

enum { TILE = 16, STEPS = TILE / W /* of a tile */ };

INLINE void fetch(const uint8_t *ahead, const int bytes) {
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
}

/* Slices of 16 dims (two octets) of W tokens each, at equal distances. */
typedef struct slices {
    const uint8_t *at;
    size_t stride; /* from one row pair to the next */
    int n;
    int tile; /* of three bits: which of the four token tiles that share bytes */
} slices;

/* The slices from `first` on, at most up to `end`: the columns of a page come in quads, the last of
 * which may be narrower. */
INLINE slices find_slices(const source_kind from, const uint8_t *k, int dim, int tile, int step,
                          int first, int end) {
    if (from == UNPACKED)
        return (slices){k + tile * TILE * dim + step * 2 * VECTOR + first * 256, 0, end - first, 0};
    const bool threes = from == THREES || from == SPLIT_4_2;
    const int octets = from == BYTES ? 2 : 1, n = dim / 16 * octets, column = first * octets,
              quad = column & ~3, width = n - quad < 4 ? n - quad : 4,
              left = (quad + width) / octets - first;
    const uint8_t *start = threes ? k + quad * 3 * 128 : k + tile * 8 * octets * dim + quad * 128;
    return (slices){start + (column - quad) * 16 + step * 2 * LANES * width * 16,
                    (size_t)width * 16, left < end - first ? left : end - first, tile};
}

/* Three bits: the first three tiles that share bytes have a slab each, codes at bits 0 and 3; the
 * fourth has bits 6 and 7 of the slabs, low codes 0 and 2, high codes 1 and 2. Mixed: bits 0 and 4;
 * the third slab has two bits of a low code. */
INLINE void split_threes(const bool mixed, const uint8_t *at, size_t slab, size_t rows, int tile,
                         ivec *low, ivec *high) {
    if (tile < 3) {
        const ivec y = b_load_rows(at + (size_t)tile * slab, rows);
        *low = b_field(y, 0, mixed ? 15 : 7);
        *high = mixed ? b_field(y, 4, 3) : b_field(y, 3, 7);
        return;
    }
    const ivec c = b_load_rows(at + 2 * slab, rows);
    *low = b_or(b_field(b_load_rows(at, rows), 6, 3), b_field(c, 4, mixed ? 12 : 4));
    *high = b_field(b_load_rows(at + slab, rows), 6, 3);
    if (!mixed)
        *high = b_or(*high, b_field(c, 5, 4));
}

/* Codes of slice i: x[octet][even, odd pairs]. */
INLINE void load_keys(const product kind, const source_kind from, const slices *s, int i, ivec book,
                      ivec x[2][2]) {
    if (from == UNPACKED) {
        const uint8_t *at = s->at + i * 256;
        UNROLL for (int j = 0; j < 4; j++) x[j / 2][j % 2] =
            b_load(at + j / 2 * 128 + j % 2 * VECTOR);
        return;
    }
    const uint8_t *at = s->at + i * (from == BYTES ? 32 : 16);
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        const bool threes = from == THREES || from == SPLIT_4_2;
        const ivec y = threes ? book : b_load_rows(at + (size_t)pairs * s->stride, 2 * s->stride);
        if (threes) {
            split_threes(from == SPLIT_4_2, at + (size_t)pairs * s->stride, 8 * s->stride,
                         2 * s->stride, s->tile, &x[0][pairs], &x[1][pairs]);
        } else if (from == BYTES) {
            x[0][pairs] = y;
            x[1][pairs] = b_load_rows(at + 16 + (size_t)pairs * s->stride, 2 * s->stride);
        } else if (from == SPLIT_5_3) {
            x[0][pairs] = b_field(y, 0, 31);
            x[1][pairs] = b_field(y, 5, 7);
        } else {
            x[0][pairs] = b_field(y, 0, 15);
            x[1][pairs] = b_field(y, 4, 15);
        }
        UNROLL for (int octet = 0; octet < 2; octet++) {
            if ((from == NIBBLES || from == THREES) && kind == SIGNED)
                x[octet][pairs] = b_lookup(book, x[octet][pairs]);
            x[octet][pairs] = k_raise(kind, x[octet][pairs]);
        }
    }
}

/* acc[even, odd pairs][row] += the slices from `first` on times q. */
INLINE void multiply_slices(const product kind, const source_kind from, const int rows,
                            const slices *s, ivec book, const uint8_t *ahead, const set_query *q,
                            int first, sums acc[2][SET]) {
    const int bytes = slice_bytes(from);
    _Pragma("GCC unroll 1") for (int i = 0; i < s->n; i++) {
        ivec x[2][2];
        codes even[2], odd[2];
        if (from != UNPACKED)
            fetch(ahead + i * bytes, bytes);
        load_keys(kind, from, s, i, book, x);
        UNROLL for (int octet = 0; octet < 2; octet += together(kind)) {
            UNROLL for (int j = 0; j < together(kind); j++) {
                even[j] = k_codes(kind, x[octet + j][0]);
                odd[j] = k_codes(kind, x[octet + j][1]);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                const int at = 16 * (first + i) + 8 * octet;
                operand y[2];
                UNROLL for (int j = 0; j < together(kind); j++) y[j] =
                    load_operand(kind, (const uint8_t *)q->plane[r][0] + at + 8 * j,
                                 (const uint8_t *)q->plane[r][1] + at + 8 * j);
                acc[0][r] = k_multiply(kind, acc[0][r], even, y);
                acc[1][r] = k_multiply(kind, acc[1][r], odd, y);
            }
        }
    }
}

/* Slices first .. end of tokens W * at on; returns `ahead` advanced by as many bytes. */
INLINE const uint8_t *multiply_tokens(const product kind, const source_kind from, const int rows,
                                      const uint8_t *k, int dim, int at, int first, int end,
                                      ivec book, const uint8_t *ahead, const set_query *q,
                                      sums acc[2][SET]) {
    for (int slice = first; slice < end;) {
        const slices s = find_slices(from, k, dim, at / STEPS, at % STEPS, slice, end);
        multiply_slices(kind, from, rows, &s, book, ahead, q, slice, acc);
        slice += s.n;
        if (from != UNPACKED)
            ahead += s.n * slice_bytes(from);
    }
    return ahead;
}

/* Slices first .. first+n of all 64 tokens and `rows` rows. `ahead`: as many bytes that are used
 * next, to fetch meanwhile. */
INLINE void multiply_page(const product kind, const source_kind from, const int rows,
                          const uint8_t *k, int dim, int first, int n, ivec book,
                          const uint8_t *ahead, const set_query *q, int32_t (*dots)[T]) {
    for (int at = 0; at < T / W; at++) {
        sums acc[2][SET];
        UNROLL for (int r = 0; r < rows; r++) acc[0][r] = acc[1][r] = no_sums();
        if (from == MIXED || from == MIXED_3) {
            ahead = multiply_tokens(kind, from == MIXED ? SPLIT_5_3 : SPLIT_4_2, rows, k, dim, at,
                                    0, dim / 32, book, ahead, q, acc);
            ahead = multiply_tokens(kind, from == MIXED ? NIBBLES : THREES, rows, k, dim, at,
                                    dim / 32, dim / 16, book, ahead, q, acc);
        } else {
            ahead = multiply_tokens(kind, from, rows, k, dim, at, first, first + n, book, ahead, q,
                                    acc);
        }
        UNROLL for (int r = 0; r < rows; r++)
            i_store(dots[r] + at * W, k_join(kind, acc[0][r], acc[1][r]));
    }
}

#endif
