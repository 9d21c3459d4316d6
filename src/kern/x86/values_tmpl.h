/* Template, part of packed_tmpl.h: integer p.V of a block. Like scores_tmpl.h, with channels in
 * place of tokens and tokens in place of dims. */
#ifndef QUIRE_KERN_X86_VALUES_TMPL_H
#define QUIRE_KERN_X86_VALUES_TMPL_H

#include "kern/x86/scores_tmpl.h"

/* Codes of 16 tokens (atoms c and 4 + c) of W channels: x[atom][even, odd pairs]. The following
 * functions find them, in an unpacked page or one of three, eight or four bits. */
INLINE void load_unpacked(const uint8_t *v, int tile, int step, int c, ivec x[2][2]) {
    const uint8_t *at = v + tile * 1024 + c * 128 + step * 2 * VECTOR;
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] = b_load(at + i / 2 * 512 + i % 2 * VECTOR);
}

INLINE void load_threes(const product kind, const uint8_t *v, int tile, int step, int c, ivec book,
                        ivec x[2][2]) {
    /* four tiles of channels share bytes: load_block sees to that */
    const uint8_t *at = v + tile / 4 * 4 * 384 + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        split_threes(false, at + pairs * 64, 512, 128, tile % 4, &x[0][pairs], &x[1][pairs]);
        if (kind == SIGNED)
            UNROLL for (int atom = 0; atom < 2; atom++) x[atom][pairs] =
                b_lookup(book, x[atom][pairs]);
    }
}

INLINE void load_bytes(const uint8_t *v, int tile, int step, int c, ivec x[2][2]) {
    const uint8_t *at = v + tile * 1024 + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
        b_load_rows(at + i / 2 * 512 + i % 2 * 64, 128);
}

/* Of the bytes of even and odd pairs. */
INLINE void split_nibbles(const product kind, ivec even, ivec odd, ivec book, ivec x[2][2]) {
    const ivec y[2] = {even, odd};
    UNROLL for (int i = 0; i < 4; i++) {
        x[i / 2][i % 2] = b_field(y[i % 2], i / 2 * 4, 15);
        if (kind == SIGNED)
            x[i / 2][i % 2] = b_lookup(book, x[i / 2][i % 2]);
    }
}

INLINE void flip_codes(const uint8_t *flip, int c, ivec x[2][2]) {
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
        b_xor(x[i / 2][i % 2], b_repeat8(flip + 8 * c + i / 2 * 32));
}

/* Sums of W channels over tokens. */
typedef struct channel_sums {
    sums acc[2][SET]; /* even, odd pairs */
    columns even, odd;
} channel_sums;

/* Adds 16 tokens: 8 from token `first` on, and the same 32 tokens later. */
INLINE void multiply_values(const product kind, const int rows, const ivec x[2][2],
                            const uint8_t (*p)[2][BLOCK], int first, channel_sums *s) {
    UNROLL for (int atom = 0; atom < 2; atom += together(kind)) {
        codes even[2], odd[2];
        UNROLL for (int j = 0; j < together(kind); j++) {
            even[j] = v_codes(kind, x[atom + j][0]);
            odd[j] = v_codes(kind, x[atom + j][1]);
        }
        s->even = v_columns(kind, s->even, even);
        s->odd = v_columns(kind, s->odd, odd);
        UNROLL for (int r = 0; r < rows; r++) {
            const int token = first + 32 * atom;
            operand y[2];
            UNROLL for (int j = 0; j < together(kind); j++) y[j] =
                load_operand(kind, p[r][0] + token + 32 * j, p[r][1] + token + 32 * j);
            s->acc[0][r] = v_multiply(kind, s->acc[0][r], even, y);
            s->acc[1][r] = v_multiply(kind, s->acc[1][r], odd, y);
        }
    }
}

/* Adds a page whose tokens start at token `first` of the block. */
INLINE void weigh_page(const product kind, const source_kind from, const int rows, const uint8_t *v,
                       int at, ivec book, const uint8_t *ahead, const uint8_t *flip,
                       const uint8_t (*p)[2][BLOCK], int first, channel_sums *s) {
    const int tile = at / STEPS, step = at % STEPS, bytes = slice_bytes(from);
    const bool nibbles = from == NIBBLES || from == FLIPPED_NIBBLES;
    const uint8_t *start = v + tile * 512 + step * 2 * LANES * 64; /* of nibbles */
    ivec y[2][4];
    ahead += (size_t)(at * 4 * bytes);
    if (nibbles && QUADS) { /* as has_quads of K */
        UNROLL for (int pairs = 0; pairs < 2; pairs++)
            b_load_columns(start + pairs * 64, 128, y[pairs]);
        UNROLL for (int c = 0; c < 4; c++) {
            ivec x[2][2];
            fetch(ahead + c * bytes, bytes);
            split_nibbles(kind, y[0][c], y[1][c], book, x);
            if (from == FLIPPED_NIBBLES)
                flip_codes(flip, c, x);
            multiply_values(kind, rows, (const ivec(*)[2])x, p, first + 8 * c, s);
        }
        return;
    }
    _Pragma("GCC unroll 1") for (int c = 0; c < 4; c++) {
        ivec x[2][2];
        if (from != UNPACKED)
            fetch(ahead + c * bytes, bytes);
        if (from == UNPACKED)
            load_unpacked(v, tile, step, c, x);
        else if (from == THREES)
            load_threes(kind, v, tile, step, c, book, x);
        else if (nibbles)
            split_nibbles(kind, b_load_rows(start + c * 16, 128),
                          b_load_rows(start + c * 16 + 64, 128), book, x);
        else
            load_bytes(v, tile, step, c, x);
        if (from == FLIPPED_NIBBLES || from == FLIPPED_BYTES)
            flip_codes(flip, c, x);
        multiply_values(kind, rows, (const ivec(*)[2])x, p, first + 8 * c, s);
    }
}

/* Channel tiles first .. first+n: sums[r][channel - 16 * first]. `flip`: x86_work.flip of their
 * scale group. */
INLINE void weigh_block(const product kind, const source_kind from, const int rows,
                        const uint8_t *const v[PAGES], int first, int n, ivec book,
                        const uint8_t *const ahead[PAGES], const uint8_t *flip,
                        const uint8_t (*p)[2][BLOCK], int32_t (*total)[QUIRE_DIM_MAX]) {
    for (int at = first * STEPS; at < (first + n) * STEPS; at++) {
        channel_sums s = {.even = no_columns(), .odd = no_columns()};
        start_sums(rows, s.acc);
        _Pragma("GCC unroll 1") for (int page = 0; page < PAGES; page++) if (v[page]) weigh_page(
            kind, from, rows, v[page], at, book, ahead[page], flip + page * T, p, page * T, &s);
        UNROLL for (int r = 0; r < rows; r++)
            i_store(total[r] + (at - first * STEPS) * W,
                    v_join(kind, s.acc[0][r], s.acc[1][r], s.even, s.odd));
    }
}

#endif
