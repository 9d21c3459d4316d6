/* Template, part of packed_tmpl.h: integer K.q of a page.
 *
 * A vector holds row pairs of one column of atoms: [2 tokens][8 dims] in each 16 bytes. Two
 * vectors, the even and the odd pairs of W tokens, join to W scores in order. */
#ifndef QUIRE_KERN_X86_SCORES_TMPL_H
#define QUIRE_KERN_X86_SCORES_TMPL_H

#include "kern/x86/codes_tmpl.h"
#if QUADS
#include "kern/x86/quads_tmpl.h"
#endif

/* Slices of 16 dims (two octets) of W tokens each, at equal distances. */
typedef struct slices {
    const uint8_t *at; /* of the page's first tokens */
    size_t stride;     /* from one row pair to the next */
    size_t step;       /* from W tokens to the next of the tile */
    int first, n;      /* of the page's slices */
} slices;

/* Columns of a page come in quads, the last of which may be narrower; mixed codes divide one. */
enum { MOST_SLICES = QUIRE_DIM_MAX / 32 + 2 };

/* Finds slices first .. end; returns how many lists of them there are. */
INLINE int find_slices(const source_kind from, const uint8_t *k, int dim, int first, int end,
                       slices *list) {
    if (from == UNPACKED) {
        list[0] = (slices){k + first * 256, 0, 2 * VECTOR, first, end - first};
        return first < end;
    }
    const int octets = from == BYTES ? 2 : 1, n_columns = dim / 16 * octets;
    int n = 0;
    for (int slice = first; slice < end; n++) {
        const int column = slice * octets, quad = column & ~3,
                  width = n_columns - quad < 4 ? n_columns - quad : 4,
                  left = (quad + width) / octets - slice;
        list[n] = (slices){k + quad * (is_threes(from) ? 3 : 1) * 128 + (column - quad) * 16,
                           (size_t)width * 16, (size_t)(2 * LANES * width * 16), slice,
                           left < end - slice ? left : end - slice};
        slice += list[n].n;
    }
    return n;
}

/* From one tile of tokens to the next. Of three bits, four tiles share bytes. */
INLINE size_t tile_bytes(const source_kind from, int dim) {
    return (size_t)((is_threes(from) ? 0 : from == UNPACKED ? TILE : from == BYTES ? 16 : 8) * dim);
}

/* Codes of the slice at `at`: x[octet][even, odd pairs]. `tile`: of three bits. */
INLINE void load_keys(const product kind, const source_kind from, const uint8_t *at, size_t stride,
                      int tile, ivec book, ivec x[2][2]) {
    if (from == UNPACKED) {
        UNROLL for (int j = 0; j < 4; j++) x[j / 2][j % 2] =
            b_load(at + j / 2 * 128 + j % 2 * VECTOR);
        return;
    }
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        const uint8_t *rows = at + (size_t)pairs * stride;
        if (is_threes(from)) {
            split_threes(kind, from, rows, 8 * stride, 2 * stride, tile, book, &x[0][pairs],
                         &x[1][pairs]);
        } else if (from == BYTES) {
            x[0][pairs] = b_load_rows(rows, 2 * stride);
            x[1][pairs] = b_load_rows(rows + 16, 2 * stride);
        } else {
            split_codes(kind, from, 0, b_load_rows(rows, 2 * stride), book, &x[0][pairs],
                        &x[1][pairs]);
        }
        UNROLL for (int octet = 0; octet < 2; octet++) x[octet][pairs] =
            k_raise(kind, x[octet][pairs]);
    }
}

/* acc[even, odd pairs][row] += 16 dims of W tokens times q. `plane`: of row 0, from these dims on.
 */
INLINE void multiply_keys(const product kind, const int rows, const ivec x[2][2],
                          const int8_t *plane, sums acc[2][SET]) {
    enum { PLANE = sizeof((set_query *)0)->plane[0][0], ROW = 2 * PLANE };
    UNROLL for (int octet = 0; octet < 2; octet += together(kind)) {
        codes even[2], odd[2];
        UNROLL for (int j = 0; j < together(kind); j++) {
            even[j] = k_codes(kind, x[octet + j][0]);
            odd[j] = k_codes(kind, x[octet + j][1]);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const uint8_t *at = (const uint8_t *)plane + r * ROW + 8 * octet;
            operand y[2];
            UNROLL for (int j = 0; j < together(kind); j++) y[j] =
                load_operand(kind, at + 8 * j, at + PLANE + 8 * j);
            acc[0][r] = k_multiply(kind, acc[0][r], even, y);
            acc[1][r] = k_multiply(kind, acc[1][r], odd, y);
        }
    }
}

INLINE void start_sums(const int rows, sums acc[2][SET]) {
    UNROLL for (int r = 0; r < rows; r++) acc[0][r] = acc[1][r] = no_sums();
}
INLINE void store_dots(const product kind, const int rows, const sums acc[2][SET], int at,
                       int32_t (*dots)[T]) {
    UNROLL for (int r = 0; r < rows; r++)
        i_store(dots[r] + at * W, k_join(kind, acc[0][r], acc[1][r]));
}

#if QUADS
/* A quad of columns, 64 dims, of a tile of tokens (load_quad). Its first n_split columns are of
 * kind `split`, the others of kind `plain`. */
INLINE void multiply_quad(const product kind, const source_kind split, const source_kind plain,
                          const int n_split, const bool fourth, const int rows, const uint8_t *k,
                          ivec book, const uint8_t *ahead, const int8_t *plane, sums acc[2][SET]) {
    ivec y[2][4];
    load_quad(fourth, n_split, k, y);
    UNROLL for (int c = 0; c < 4; c++) {
        ivec x[2][2];
        if (128 * c < 4 * slice_bytes(plain))
            fetch(ahead + 128 * c, 128);
        UNROLL for (int pairs = 0; pairs < 2; pairs++) {
            split_codes(kind, c < n_split ? split : plain, fourth, y[pairs][c], book, &x[0][pairs],
                        &x[1][pairs]);
            UNROLL for (int octet = 0; octet < 2; octet++) x[octet][pairs] =
                k_raise(kind, x[octet][pairs]);
        }
        multiply_keys(kind, rows, (const ivec(*)[2])x, plane + 16 * c, acc);
    }
}

/* Quads first .. first+n of a tile, of three or four bits; `k`: where the first quad has it. */
INLINE const uint8_t *multiply_quads(const product kind, const source_kind from, const bool fourth,
                                     const int rows, const uint8_t *k, int dim, int first, int n,
                                     ivec book, const uint8_t *ahead, const set_query *q,
                                     sums acc[2][SET]) {
    const bool mixed = from == MIXED || from == MIXED_3, threes = from == THREES || from == MIXED_3;
    const source_kind split = threes ? SPLIT_4_2 : SPLIT_5_3, plain = threes ? THREES : NIBBLES;
    const int n_split = mixed ? dim / 32 : 0; /* columns of the page */
    _Pragma("GCC unroll 1") for (int i = first; i < first + n; i++) {
        const int8_t *plane = q->plane[0][0] + 64 * i;
        if (mixed && n_split >= 4 * i + 4)
            multiply_quad(kind, split, plain, 4, fourth, rows, k, book, ahead, plane, acc);
        else if (mixed && n_split > 4 * i)
            multiply_quad(kind, split, plain, 2, fourth, rows, k, book, ahead, plane, acc);
        else
            multiply_quad(kind, split, plain, 0, fourth, rows, k, book, ahead, plane, acc);
        k += (threes ? 3 : 1) * QUAD;
        ahead += 4 * slice_bytes(plain);
    }
    return ahead;
}

INLINE bool has_quads(const source_kind from, int dim, int first, int n) {
    return from != UNPACKED && from != BYTES && dim % 64 == 0 && first % 4 == 0 && n % 4 == 0;
}

/* multiply_page, where columns come in whole quads. */
INLINE void multiply_page_by_quads(const product kind, const source_kind from, const int rows,
                                   const uint8_t *k, int dim, int first, int n, ivec book,
                                   const uint8_t *ahead, const set_query *q, int32_t (*dots)[T]) {
    const bool threes = from == THREES || from == MIXED_3;
    k += first * (threes ? 3 : 1) * 128;
    for (int tile = 0; tile < T / TILE; tile++) {
        sums acc[2][SET];
        start_sums(rows, acc);
        if (threes && tile == 3)
            ahead = multiply_quads(kind, from, true, rows, k, dim, first / 4, n / 4, book, ahead, q,
                                   acc);
        else
            ahead = multiply_quads(kind, from, false, rows, k + tile * (threes ? QUAD : 8 * dim),
                                   dim, first / 4, n / 4, book, ahead, q, acc);
        store_dots(kind, rows, (const sums(*)[SET])acc, tile, dots);
    }
}
#endif

/* The slices of a list times q, for the tokens at `k` on. */
INLINE void multiply_slices(const product kind, const source_kind from, const int rows,
                            const slices *s, const uint8_t *k, int tile, ivec book,
                            const uint8_t *ahead, const set_query *q, sums acc[2][SET]) {
    const int bytes = slice_bytes(from);
    const int8_t *plane = q->plane[0][0] + 16 * s->first;
    _Pragma("GCC unroll 1") for (int i = 0; i < s->n; i++) {
        ivec x[2][2];
        if (from != UNPACKED)
            fetch(ahead + i * bytes, bytes);
        else
            fetch_lines(k + 512, 4);
        load_keys(kind, from, k, s->stride, tile, book, x);
        multiply_keys(kind, rows, (const ivec(*)[2])x, plane, acc);
        k += from == UNPACKED ? 256 : from == BYTES ? 32 : 16;
        plane += 16;
    }
}

/* The slices of `n` lists for tokens W * at on; returns `ahead` advanced by as many bytes. */
INLINE const uint8_t *multiply_tokens(const product kind, const source_kind from, const int rows,
                                      const slices *list, int n, int dim, int at, ivec book,
                                      const uint8_t *ahead, const set_query *q, sums acc[2][SET]) {
    const int tile = at / STEPS, step = at % STEPS;
    for (int i = 0; i < n; i++) {
        const slices *s = &list[i];
        const uint8_t *k = s->at + (size_t)tile * tile_bytes(from, dim) + (size_t)step * s->step;
        multiply_slices(kind, from, rows, s, k, tile, book, ahead, q, acc);
        if (from != UNPACKED)
            ahead += s->n * slice_bytes(from);
    }
    return ahead;
}

/* Slices first .. first+n of all 64 tokens and `rows` rows. `ahead`: as many bytes that are used
 * next, to fetch meanwhile. */
INLINE void multiply_page(const product kind, const source_kind from, const int rows,
                          const uint8_t *k, int dim, int first, int n, ivec book,
                          const uint8_t *ahead, const set_query *q, int32_t (*dots)[T]) {
    const bool mixed = from == MIXED || from == MIXED_3;
#if QUADS
    if (has_quads(from, dim, first, n)) {
        multiply_page_by_quads(kind, from, rows, k, dim, first, n, book, ahead, q, dots);
        return;
    }
#endif
    const source_kind split = from == MIXED ? SPLIT_5_3 : SPLIT_4_2;
    const source_kind plain = from == MIXED ? NIBBLES : from == MIXED_3 ? THREES : from;
    const int middle = mixed ? dim / 32 : first, end = mixed ? dim / 16 : first + n;
    slices list[MOST_SLICES];
    const int n_split = mixed ? find_slices(split, k, dim, 0, middle, list) : 0,
              n_plain = find_slices(plain, k, dim, middle, end, list + n_split);
    for (int at = 0; at < T / W; at++) {
        sums acc[2][SET];
        start_sums(rows, acc);
        if (mixed)
            ahead = multiply_tokens(kind, split, rows, list, n_split, dim, at, book, ahead, q, acc);
        ahead = multiply_tokens(kind, plain, rows, list + n_split, n_plain, dim, at, book, ahead, q,
                                acc);
        store_dots(kind, rows, (const sums(*)[SET])acc, at, dots);
    }
}

#endif
