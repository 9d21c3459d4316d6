/* Template, part of packed_tmpl.h: integer p.V of a block. Like scores_tmpl.h, with channels in
 * place of tokens and tokens in place of dims. */
#ifndef QUIRE_KERN_X86_VALUES_TMPL_H
#define QUIRE_KERN_X86_VALUES_TMPL_H

#include "kern/x86/scores_tmpl.h"

/* Codes of 16 tokens (atoms c and 4 + c) of W channels: x[atom][even, odd pairs]. */
INLINE void load_values(const product kind, const source_kind from, const uint8_t *v, int tile,
                        int step, int c, ivec book, const uint8_t *flip, ivec x[2][2]) {
    const bool bytes = from == BYTES || from == FLIPPED_BYTES;
    if (from == UNPACKED) {
        const uint8_t *at = v + tile * 1024 + c * 128 + step * 2 * VECTOR;
        UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
            b_load(at + i / 2 * 512 + i % 2 * VECTOR);
        return;
    }
    if (from == THREES) { /* four tiles of channels share bytes: load_block sees to that */
        const uint8_t *at = v + tile / 4 * 4 * 384 + c * 16 + step * 2 * LANES * 64;
        UNROLL for (int pairs = 0; pairs < 2; pairs++) {
            split_threes(false, at + pairs * 64, 512, 128, tile % 4, &x[0][pairs], &x[1][pairs]);
            if (kind == SIGNED)
                UNROLL for (int atom = 0; atom < 2; atom++) x[atom][pairs] =
                    b_lookup(book, x[atom][pairs]);
        }
        return;
    }
    const uint8_t *at = v + tile * (bytes ? 1024 : 512) + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        const ivec y = b_load_rows(at + pairs * 64, 128);
        if (bytes) {
            x[0][pairs] = y;
            x[1][pairs] = b_load_rows(at + 512 + pairs * 64, 128);
        } else {
            x[0][pairs] = b_field(y, 0, 15);
            x[1][pairs] = b_field(y, 4, 15);
        }
        if (from == NIBBLES && kind == SIGNED)
            UNROLL for (int atom = 0; atom < 2; atom++) x[atom][pairs] =
                b_lookup(book, x[atom][pairs]);
    }
    if (from == FLIPPED_NIBBLES || from == FLIPPED_BYTES)
        UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
            b_xor(x[i / 2][i % 2], b_repeat8(flip + 8 * c + i / 2 * 32));
}

/* Channel tiles first .. first+n: sums[r][channel - 16 * first]. `flip`: x86_work.flip of their
 * scale group. */
INLINE void weigh_block(const product kind, const source_kind from, const int rows,
                        const uint8_t *const v[PAGES], int first, int n, ivec book,
                        const uint8_t *const ahead[PAGES], const uint8_t *flip,
                        const uint8_t (*p)[2][BLOCK], int32_t (*total)[QUIRE_DIM_MAX]) {
    for (int at = first * STEPS; at < (first + n) * STEPS; at++) {
        sums acc[2][SET];
        columns even_columns = no_columns(), odd_columns = no_columns();
        UNROLL for (int r = 0; r < rows; r++) acc[0][r] = acc[1][r] = no_sums();
        for (int page = 0; page < PAGES; page++) {
            if (!v[page])
                continue;
            _Pragma("GCC unroll 1") for (int c = 0; c < 4; c++) {
                ivec x[2][2];
                codes even[2], odd[2];
                if (from != UNPACKED)
                    fetch(ahead[page] + (size_t)((at * 4 + c) * slice_bytes(from)),
                          slice_bytes(from));
                load_values(kind, from, v[page], at / STEPS, at % STEPS, c, book, flip + page * T,
                            x);
                UNROLL for (int atom = 0; atom < 2; atom += together(kind)) {
                    UNROLL for (int j = 0; j < together(kind); j++) {
                        even[j] = v_codes(kind, x[atom + j][0]);
                        odd[j] = v_codes(kind, x[atom + j][1]);
                    }
                    even_columns = v_columns(kind, even_columns, even);
                    odd_columns = v_columns(kind, odd_columns, odd);
                    UNROLL for (int r = 0; r < rows; r++) {
                        const int token = page * T + 32 * atom + 8 * c;
                        operand y[2];
                        UNROLL for (int j = 0; j < together(kind); j++) y[j] =
                            load_operand(kind, p[r][0] + token + 32 * j, p[r][1] + token + 32 * j);
                        acc[0][r] = v_multiply(kind, acc[0][r], even, y);
                        acc[1][r] = v_multiply(kind, acc[1][r], odd, y);
                    }
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            i_store(total[r] + (at - first * STEPS) * W,
                    v_join(kind, acc[0][r], acc[1][r], even_columns, odd_columns));
    }
}

#endif
