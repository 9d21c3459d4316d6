/* Template, part of packed_tmpl.h: integer p.V of a block. Like scores_tmpl.h, with channels in
 * place of tokens and tokens in place of dims. */
#ifndef QUIRE_KERN_X86_VALUES_TMPL_H
#define QUIRE_KERN_X86_VALUES_TMPL_H

#include "kern/x86/scores_tmpl.h"

/* The first byte of tile `tile`; of three bits, of the four tiles that share bytes. */
INLINE const uint8_t *value_tile(const source_kind from, const uint8_t *v, int tile) {
    return v + (from == TWOS ? tile / 2 * 512 : from == THREES ? tile / 4 * 1536 : tile * 512);
}

/* Codes of 16 tokens (atoms c and 4 + c) of W channels: x[atom][even, odd pairs]. The following
 * functions find them, in an unpacked page or one of two, three, four or eight bits. */
INLINE void load_unpacked(const uint8_t *v, int tile, int step, int c, ivec x[2][2]) {
    const uint8_t *at = v + tile * 1024 + c * 128 + step * 2 * VECTOR;
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] = b_load(at + i / 2 * 512 + i % 2 * VECTOR);
    UNROLL for (int atom = 0; atom < 2; atom++)
        fetch_lines(at + 1024 + atom * 512, 2 * VECTOR / 64);
}

INLINE void load_threes(const product kind, const uint8_t *v, int tile, int step, int c, ivec book,
                        ivec x[2][2]) {
    /* four tiles of channels share bytes: load_block sees to that */
    const uint8_t *at = value_tile(THREES, v, tile) + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int pairs = 0; pairs < 2; pairs++) split_threes(
        kind, THREES, at + pairs * 64, 512, 128, tile % 4, book, &x[0][pairs], &x[1][pairs]);
}

INLINE void load_bytes(const uint8_t *v, int tile, int step, int c, ivec x[2][2]) {
    const uint8_t *at = v + tile * 1024 + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
        b_load_rows(at + i / 2 * 512 + i % 2 * 64, 128);
}

/* Two and four bits; `part` of tiles that share bytes. */
INLINE void load_pairs(const product kind, const source_kind from, const int part, const uint8_t *v,
                       int step, int c, ivec book, ivec x[2][2]) {
    const uint8_t *at = v + c * 16 + step * 2 * LANES * 64;
    UNROLL for (int pairs = 0; pairs < 2; pairs++) split_codes(
        kind, from, part, b_load_rows(at + pairs * 64, 128), book, &x[0][pairs], &x[1][pairs]);
}

INLINE void flip_codes(const uint8_t *flip, int c, ivec x[2][2]) {
    UNROLL for (int i = 0; i < 4; i++) x[i / 2][i % 2] =
        b_xor(x[i / 2][i % 2], b_repeat8(flip + 8 * c + i / 2 * 32));
}

/* Sums of W channels over tokens. */
typedef struct channel_sums {
    sums acc[2][SET]; /* even, odd pairs */
    totals total[2][SET];
    columns even, odd;
} channel_sums;

/* Where the tokens of an atom that is loaded lie: a slice has 8 of them, and those 32 tokens later.
 */
INLINE int token_of(int atom) { return atom / 2 * 8 + atom % 2 * 32; }

/* Adds n atoms, from atom `first` of those that are loaded on; their tokens start at token `t0`. */
INLINE void multiply_atoms(const product kind, const int rows, const int n, const ivec (*x)[2],
                           const uint8_t (*p)[2][BLOCK], int t0, int first, channel_sums *s) {
    codes even[LOADED], odd[LOADED];
    UNROLL for (int j = 0; j < n; j++) {
        even[j] = v_codes(kind, x[first + j][0]);
        odd[j] = v_codes(kind, x[first + j][1]);
    }
    s->even = v_columns(kind, s->even, even);
    s->odd = v_columns(kind, s->odd, odd);
    UNROLL for (int r = 0; r < rows; r++) {
        operand y[LOADED];
        UNROLL for (int j = 0; j < n; j++) {
            const int token = t0 + token_of(first + j);
            y[j] = load_operand(kind, p[r][0] + token, p[r][1] + token);
        }
        s->acc[0][r] = v_multiply(kind, n, s->acc[0][r], even, y);
        s->acc[1][r] = v_multiply(kind, n, s->acc[1][r], odd, y);
    }
}

/* The atoms that are loaded, as many at a time as are multiplied together. */
INLINE void multiply_values(const product kind, const int rows, const ivec x[LOADED][2],
                            const uint8_t (*p)[2][BLOCK], int t0, channel_sums *s) {
    UNROLL for (int atom = 0; atom < LOADED; atom += together(kind)) if (atom < loaded(kind))
        multiply_atoms(kind, rows, together(kind), x, p, t0, atom, s);
}

#if QUADS
/* Columns of V are tokens, and always whole quads. */
INLINE bool has_value_quads(const product kind, const source_kind from) {
    return takes_quads(kind) &&
           (from == NIBBLES || from == FLIPPED_NIBBLES || from == THREES || from == TWOS);
}

INLINE void weigh_quad(const product kind, const source_kind from, const int part, const int rows,
                       const uint8_t *v, ivec book, const uint8_t *ahead, const uint8_t *flip,
                       const uint8_t (*p)[2][BLOCK], int first, channel_sums *s) {
    const source_kind plain = from == FLIPPED_NIBBLES ? NIBBLES : from;
    const int n = loaded(kind) / 2;
    ivec y[2][4];
    load_quad(from == THREES && part, 0, v, y);
    UNROLL for (int at = 0; at < 4; at += n) {
        ivec x[LOADED][2];
        UNROLL for (int i = 0; i < n; i++) {
            const int c = at + i;
            UNROLL for (int line = c; line < lines_beside(4 * slice_bytes(from)); line += 4)
                fetch_line(ahead + line * LINE);
            UNROLL for (int pairs = 0; pairs < 2; pairs++) split_codes(
                kind, plain, part, y[pairs][c], book, &x[2 * i][pairs], &x[2 * i + 1][pairs]);
            if (from == FLIPPED_NIBBLES)
                flip_codes(flip, c, x + 2 * i);
        }
        multiply_values(kind, rows, (const ivec(*)[2])x, p, first + 8 * at, s);
    }
}
#endif

/* Codes of 16 tokens from wherever they are. */
INLINE void load_values(const product kind, const source_kind from, const uint8_t *v, int tile,
                        int step, int c, ivec book, const uint8_t *flip, ivec x[2][2]) {
    if (from == UNPACKED)
        load_unpacked(v, tile, step, c, x);
    else if (from == BYTES || from == FLIPPED_BYTES)
        load_bytes(v, tile, step, c, x);
    else if (from == THREES)
        load_threes(kind, v, tile, step, c, book, x);
    else if (from == TWOS && tile % 2 == 1)
        load_pairs(kind, TWOS, 1, value_tile(from, v, tile), step, c, book, x);
    else
        load_pairs(kind, from == TWOS ? TWOS : NIBBLES, 0, value_tile(from, v, tile), step, c, book,
                   x);
    if (from == FLIPPED_NIBBLES || from == FLIPPED_BYTES)
        flip_codes(flip, c, x);
}

/* Slices of 16 tokens that are loaded at a time. */
INLINE int value_slices(const product kind, const source_kind from) {
#if QUADS
    if (has_value_quads(kind, from))
        return 4;
#endif
    return (void)from, loaded(kind) / 2;
}

/* Bytes that weigh_block fetches in all. */
INLINE ptrdiff_t bytes_beside_values(const product kind, const source_kind from, int dim) {
    const int n = value_slices(kind, from);
    return from == UNPACKED ? 0
                            : (ptrdiff_t)(PAGES * (dim / TILE * STEPS) * (4 / n) *
                                          lines_beside(n * slice_bytes(from)) * LINE);
}

/* most_in_byte, of V. Unpacked codes have up to four bits. */
INLINE int most_in_value_byte(const source_kind from) {
    return from == TWOS ? 3 + 3 : from == THREES ? 7 + 7 : 15 + 15;
}

/* Adds a page whose tokens start at token `first` of the block; returns `ahead` advanced. */
INLINE const uint8_t *weigh_page(const product kind, const source_kind from, const int rows,
                                 const uint8_t *v, int at, ivec book, const uint8_t *ahead,
                                 const uint8_t *flip, const uint8_t (*p)[2][BLOCK], int first,
                                 channel_sums *s) {
    /* A division of ints, which have a sign, takes more instructions. */
    const int tile = at >> (STEPS - 1), step = at & (STEPS - 1), bytes = slice_bytes(from),
              n = value_slices(kind, from);
#if QUADS
    if (has_value_quads(kind, from)) {
        const uint8_t *start = value_tile(from, v, tile);
        if ((from == TWOS && tile % 2 == 1) || (from == THREES && tile % 4 == 3))
            weigh_quad(kind, from, 1, rows, start, book, ahead, flip, p, first, s);
        else
            weigh_quad(kind, from, 0, rows, start + (from == THREES ? tile % 4 * QUAD : 0), book,
                       ahead, flip, p, first, s);
        return ahead + lines_beside(4 * bytes) * LINE;
    }
#endif
    const int run = n * slices_in_run(kind, from, most_in_value_byte(from), 255);
    _Pragma("GCC unroll 1") for (int c = 0; c < 4; c += run) {
        UNROLL for (int i = 0; i < run; i += n) {
            ivec x[LOADED][2];
            if (from != UNPACKED)
                ahead = fetch_beside(ahead, n * bytes);
            UNROLL for (int j = 0; j < n; j++)
                load_values(kind, from, v, tile, step, c + i + j, book, flip, x + 2 * j);
            multiply_values(kind, rows, (const ivec(*)[2])x, p, first + 8 * (c + i), s);
        }
        add_to_totals(kind, rows, s->acc, s->total);
    }
    return ahead;
}

/* Channel tiles first .. first+n: sums[r][channel - 16 * first]. `flip`: x86_work.flip of their
 * scale group. Lines from `ahead` on are fetched meanwhile; returns where the next ones are. */
INLINE const uint8_t *weigh_block(const product kind, const source_kind from, const int rows,
                                  const uint8_t *const v[PAGES], int first, int n, ivec book,
                                  const uint8_t *ahead, const uint8_t *flip,
                                  const uint8_t (*p)[2][BLOCK], int32_t (*total)[QUIRE_DIM_MAX]) {
    for (int at = first * STEPS; at < (first + n) * STEPS; at++) {
        channel_sums s; /* not cleared as a whole, for which clang calls memset every time */
        s.even = s.odd = no_columns();
        start_sums(rows, s.acc);
        start_totals(rows, s.total);
        _Pragma("GCC unroll 1") for (int page = 0; page < PAGES; page++) if (v[page]) ahead =
            weigh_page(kind, from, rows, v[page], at, book, ahead, flip + page * T, p, page * T,
                       &s);
        UNROLL for (int r = 0; r < rows; r++)
            i_store(total[r] + (at - first * STEPS) * W,
                    v_join(kind, all_of(kind, s.total[0][r], s.acc[0][r]),
                           all_of(kind, s.total[1][r], s.acc[1][r]), s.even, s.odd));
    }
    return ahead;
}

#endif
