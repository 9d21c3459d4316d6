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

/* From one slice to the next. */
INLINE int slice_step(const source_kind from) {
    return from == UNPACKED ? 256 : from == BYTES ? 32 : 16;
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

/* acc[even, odd pairs][row] += n octets of W tokens times q. `plane`: of row 0, from their dims on.
 */
INLINE void multiply_octets(const product kind, const int rows, const int n, const ivec (*x)[2],
                            const int8_t *plane, sums acc[2][SET]) {
    enum { PLANE = sizeof((set_query *)0)->plane[0][0], ROW = 2 * PLANE };
    codes even[LOADED], odd[LOADED];
    UNROLL for (int j = 0; j < n; j++) {
        even[j] = k_codes(kind, x[j][0]);
        odd[j] = k_codes(kind, x[j][1]);
    }
    UNROLL for (int r = 0; r < rows; r++) {
        const uint8_t *at = (const uint8_t *)plane + r * ROW;
        operand y[LOADED];
        UNROLL for (int j = 0; j < n; j++) y[j] =
            load_operand(kind, at + 8 * j, at + PLANE + 8 * j);
        acc[0][r] = k_multiply(kind, n, acc[0][r], even, y);
        acc[1][r] = k_multiply(kind, n, acc[1][r], odd, y);
    }
}

/* The same for n octets that are loaded, as many at a time as are multiplied together. */
INLINE void multiply_keys(const product kind, const int rows, const int n, const ivec x[LOADED][2],
                          const int8_t *plane, sums acc[2][SET]) {
    const int step = together(kind) < n ? together(kind) : n;
    UNROLL for (int octet = 0; octet < LOADED; octet += step) if (octet < n)
        multiply_octets(kind, rows, step, x + octet, plane + 8 * octet, acc);
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
    const int n = loaded(kind) / 2;
    ivec y[2][4];
    load_quad(fourth, n_split, k, y);
    UNROLL for (int first = 0; first < 4; first += n) {
        ivec x[LOADED][2];
        UNROLL for (int i = 0; i < n; i++) {
            const int c = first + i;
            UNROLL for (int line = c; line < lines_beside(4 * slice_bytes(plain)); line += 4)
                fetch_line(ahead + line * LINE);
            UNROLL for (int pairs = 0; pairs < 2; pairs++) {
                split_codes(kind, c < n_split ? split : plain, fourth, y[pairs][c], book,
                            &x[2 * i][pairs], &x[2 * i + 1][pairs]);
                UNROLL for (int octet = 2 * i; octet < 2 * i + 2; octet++) x[octet][pairs] =
                    k_raise(kind, x[octet][pairs]);
            }
        }
        multiply_keys(kind, rows, 2 * n, (const ivec(*)[2])x, plane + 16 * first, acc);
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
        ahead += lines_beside(4 * slice_bytes(plain)) * LINE;
    }
    return ahead;
}

INLINE bool has_quads(const product kind, const source_kind from, int dim, int first, int n) {
    return takes_quads(kind) && from != UNPACKED && from != BYTES && dim % 64 == 0 &&
           first % 4 == 0 && n % 4 == 0;
}

/* multiply_page, where columns come in whole quads. */
INLINE const uint8_t *multiply_page_by_quads(const product kind, const source_kind from,
                                             const int rows, const uint8_t *k, int dim, int first,
                                             int n, ivec book, const uint8_t *ahead,
                                             const set_query *q, int32_t (*dots)[T]) {
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
    return ahead;
}
#endif

/* n octets, of one slice or two, times q, for the tokens at `k` on. Returns `ahead` advanced. */
INLINE const uint8_t *multiply_some(const product kind, const source_kind from, const int rows,
                                    const int n, const uint8_t *k, size_t stride, int tile,
                                    ivec book, const uint8_t *ahead, const int8_t *plane,
                                    sums acc[2][SET]) {
    ivec x[LOADED][2];
    UNROLL for (int slice = 0; slice < n / 2; slice++) {
        const uint8_t *at = k + slice * slice_step(from);
        if (from != UNPACKED)
            ahead = fetch_beside(ahead, slice_bytes(from));
        else
            UNROLL for (int octet = 0; octet < 2; octet++)
                fetch_lines(at + 512 + octet * 128, 2 * VECTOR / 64);
        load_keys(kind, from, at, stride, tile, book, x + 2 * slice);
    }
    multiply_keys(kind, rows, n, (const ivec(*)[2])x, plane, acc);
    return ahead;
}

INLINE void start_totals(const int rows, totals total[2][SET]) {
    UNROLL for (int r = 0; r < rows; r++) total[0][r] = total[1][r] = no_totals();
}
INLINE void add_to_totals(const product kind, const int rows, sums acc[2][SET],
                          totals total[2][SET]) {
    UNROLL for (int r = 0; r < rows; r++) {
        add_to_total(kind, &total[0][r], &acc[0][r]);
        add_to_total(kind, &total[1][r], &acc[1][r]);
    }
}

/* The largest low code and the largest high code of a byte together. Unpacked codes may be mixed
 * ones. */
INLINE int most_in_byte(const source_kind from) {
    return from == SPLIT_5_3 || from == UNPACKED ? 31 + 7
           : from == SPLIT_4_2                   ? 15 + 3
           : from == THREES                      ? 7 + 7
                                                 : 15 + 15;
}

/* n slices, the sums of which are then added to totals. Returns `ahead` advanced. */
INLINE const uint8_t *multiply_run(const product kind, const source_kind from, const int rows,
                                   const int n, const uint8_t *k, size_t stride, int tile,
                                   ivec book, const uint8_t *ahead, const int8_t *plane,
                                   sums acc[2][SET], totals total[2][SET]) {
    const int step = loaded(kind) / 2 < n ? loaded(kind) / 2 : n;
    UNROLL for (int i = 0; i < n; i += step) ahead =
        multiply_some(kind, from, rows, 2 * step, k + i * slice_step(from), stride, tile, book,
                      ahead, plane + 16 * i, acc);
    add_to_totals(kind, rows, acc, total);
    return ahead;
}

/* The slices of a list. */
INLINE const uint8_t *multiply_slices(const product kind, const source_kind from, const int rows,
                                      const slices *s, const uint8_t *k, int tile, ivec book,
                                      const uint8_t *ahead, const set_query *q, sums acc[2][SET],
                                      totals total[2][SET]) {
    const int n = loaded(kind) / 2, most = n * slices_in_run(kind, from, most_in_byte(from), 127);
    const int8_t *plane = q->plane[0][0] + 16 * s->first;
    int left = s->n;
    UNROLL for (int run = 4; run >= 1; run /= 2) {
        if (run > most)
            continue;
        _Pragma("GCC unroll 1") for (; left >= run; left -= run) {
            ahead = multiply_run(kind, from, rows, run, k, s->stride, tile, book, ahead, plane, acc,
                                 total);
            k += run * slice_step(from);
            plane += 16 * run;
        }
    }
    return ahead;
}

/* The slices of `n` lists for tokens W * at on. */
INLINE const uint8_t *multiply_tokens(const product kind, const source_kind from, const int rows,
                                      const slices *list, int n, int dim, int at, ivec book,
                                      const uint8_t *ahead, const set_query *q, sums acc[2][SET],
                                      totals total[2][SET]) {
    const int tile = at / STEPS, step = at % STEPS;
    for (int i = 0; i < n; i++) {
        const slices *s = &list[i];
        const uint8_t *k = s->at + (size_t)tile * tile_bytes(from, dim) + (size_t)step * s->step;
        ahead = multiply_slices(kind, from, rows, s, k, tile, book, ahead, q, acc, total);
    }
    return ahead;
}

/* Bytes that multiply_page fetches for a whole page. */
INLINE ptrdiff_t bytes_beside_keys(const product kind, const source_kind from, int dim) {
    const source_kind plain = from == MIXED ? NIBBLES : from == MIXED_3 ? THREES : from;
    int n = 1; /* slices at a time */
#if QUADS
    if (has_quads(kind, from, dim, 0, dim / 16))
        n = 4;
#endif
    return (void)kind,
           from == UNPACKED
               ? 0
               : (ptrdiff_t)(T / W * (dim / 16) / n * lines_beside(n * slice_bytes(plain)) * LINE);
}

/* Slices first .. first+n of all 64 tokens and `rows` rows. Lines from `ahead` on are fetched
 * meanwhile; returns where the next ones are. */
INLINE const uint8_t *multiply_page(const product kind, const source_kind from, const int rows,
                                    const uint8_t *k, int dim, int first, int n, ivec book,
                                    const uint8_t *ahead, const set_query *q, int32_t (*dots)[T]) {
    const bool mixed = from == MIXED || from == MIXED_3;
#if QUADS
    if (has_quads(kind, from, dim, first, n))
        return multiply_page_by_quads(kind, from, rows, k, dim, first, n, book, ahead, q, dots);
#endif
    const source_kind split = from == MIXED ? SPLIT_5_3 : SPLIT_4_2;
    const source_kind plain = from == MIXED ? NIBBLES : from == MIXED_3 ? THREES : from;
    const int middle = mixed ? dim / 32 : first, end = mixed ? dim / 16 : first + n;
    slices list[MOST_SLICES];
    const int n_split = mixed ? find_slices(split, k, dim, 0, middle, list) : 0,
              n_plain = find_slices(plain, k, dim, middle, end, list + n_split);
    for (int at = 0; at < T / W; at++) {
        sums acc[2][SET];
        totals total[2][SET];
        start_sums(rows, acc);
        start_totals(rows, total);
        if (mixed)
            ahead = multiply_tokens(kind, split, rows, list, n_split, dim, at, book, ahead, q, acc,
                                    total);
        ahead = multiply_tokens(kind, plain, rows, list + n_split, n_plain, dim, at, book, ahead, q,
                                acc, total);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int pairs = 0; pairs < 2; pairs++)
            acc[pairs][r] = all_of(kind, total[pairs][r], acc[pairs][r]);
        store_dots(kind, rows, (const sums(*)[SET])acc, at, dots);
    }
    return ahead;
}

#endif
