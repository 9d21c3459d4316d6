/* Integer K.q of a page.
 *
 * A vector holds row pairs of one column of atoms: [2 tokens][8 dims] in each 16 bytes. Two of them, the even and the odd
 * pairs of W tokens, join to W scores in order.
 */
#ifndef QUIRE_KERN_X86_SCORES_H
#define QUIRE_KERN_X86_SCORES_H

#include "kern/x86/work.h"

enum { TILE = 16, STEPS = TILE / W /* of a tile */, VECTOR = 16 * LANES /* bytes */ };

INLINE void fetch(const uint8_t *ahead, const int bytes) {
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
}

/* Codes of a slice of 16 dims (two octets), W tokens: x[octet][even, odd pairs]. */
INLINE void load_keys(const product kind, const source_kind from, const uint8_t *k, int dim, int tile, int step,
                      int slice, ivec book, ivec x[2][2]) {
    if (from == UNPACKED) {
        const uint8_t *at = k + tile * TILE * dim + slice * 256 + step * 2 * VECTOR;
        UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] = b_load(at + i / 2 * 128 + i % 2 * VECTOR);
        return;
    }
    const int octets = from == BYTES ? 2 : 1, n = dim / 16 * octets, column = slice * octets, group = column & ~3,
              width = n - group < 4 ? n - group : 4;
    const size_t stride = (size_t)width * 16;
    const uint8_t *at =
        k + tile * 8 * octets * dim + group * 128 + (column - group) * 16 + step * 2 * LANES * width * 16;
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        const ivec y = b_load_rows(at + (size_t)pairs * stride, 2 * stride);
        if (from == BYTES) {
            x[0][pairs] = y;
            x[1][pairs] = b_load_rows(at + 16 + (size_t)pairs * stride, 2 * stride);
        } else {
            x[0][pairs] = b_field(y, 0, 15);
            x[1][pairs] = b_field(y, 4, 15);
        }
        UNROLL for (int octet = 0; octet < 2; octet++) {
            if (from == NIBBLES && kind == SIGNED)
                x[octet][pairs] = b_lookup(book, x[octet][pairs]);
            x[octet][pairs] = k_raise(kind, x[octet][pairs]);
        }
    }
}

/* Slices first .. first+n of all 64 tokens and `rows` rows. `ahead`: where as many bytes lie that come next. */
INLINE void multiply_page(const product kind, const source_kind from, const int rows, const uint8_t *k, int dim,
                          int first, int n, ivec book, const uint8_t *ahead, const set_query *q, int32_t (*dots)[T]) {
    for (int at = 0; at < T / W; at++) {
        sums acc[2][SET];
        UNROLL for (int r = 0; r < rows; r++) acc[0][r] = acc[1][r] = no_sums();
        _Pragma("GCC unroll 1") for (int slice = first; slice < first + n; slice++) {
            ivec x[2][2];
            codes even[2], odd[2];
            if (from != UNPACKED) {
                fetch(ahead, (from == BYTES ? 16 : 8) * W);
                ahead += (from == BYTES ? 16 : 8) * W;
            }
            load_keys(kind, from, k, dim, at / STEPS, at % STEPS, slice, book, x);
            UNROLL for (int octet = 0; octet < 2; octet++) {
                even[octet] = k_codes(kind, x[octet][0]);
                odd[octet] = k_codes(kind, x[octet][1]);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                const uint8_t *plane0 = (const uint8_t *)q->plane[r][0] + 16 * slice;
                const uint8_t *plane1 = (const uint8_t *)q->plane[r][1] + 16 * slice;
                const operand y[2] = {load_operand(kind, plane0, plane1), load_operand(kind, plane0 + 8, plane1 + 8)};
                acc[0][r] = k_multiply(kind, acc[0][r], even, y);
                acc[1][r] = k_multiply(kind, acc[1][r], odd, y);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) i_store(dots[r] + at * W, k_join(kind, acc[0][r], acc[1][r]));
    }
}

#endif
