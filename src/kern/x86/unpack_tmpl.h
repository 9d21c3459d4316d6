/* Template, part of packed_tmpl.h: codes of any width to int8 in L1, in the order in which the
 * products take them: for prefill (many rows share the work) and for widths without a direct path.
 * K: [16 tokens][8 dims], V: [16 channels][atom], each followed by 128 bytes of row pairs: 0 2 (4
 * 6) and 1 3 (5 7), 4 6 and 5 7, one vector each. */
#ifndef QUIRE_KERN_X86_UNPACK_TMPL_H
#define QUIRE_KERN_X86_UNPACK_TMPL_H

#include "kern/x86/scores_tmpl.h"
#include "kern/x86/value_slots_tmpl.h"

enum { VECTORS = 8 / LANES /* of 8 row pairs */ };

/* The first row pair of vector j; the others follow at distances of two. */
INLINE int first_pair(int j) { return j / 2 * 2 * LANES + j % 2; }

INLINE ivec code_value(ivec code, const int8_t *book, ivec table) {
    return book ? b_lookup(table, code) : code;
}

/* ------------------------------------------------------------------ K */

typedef struct k_target {
    uint8_t *out;
    int dim;
    const int8_t *book;
    ivec table;
    product kind;
} k_target;

INLINE void put_k(const k_target *to, int tile, int octet, int j, ivec code) {
    b_store(to->out + tile * TILE * to->dim + octet * 128 + j * VECTOR,
            k_raise(to->kind, code_value(code, to->book, to->table)));
}

/* One column of one vector of row pairs: the codes of every token tile. `slab`: distance between
 * the parts of a 3-bit code. Mixed: low codes have one bit more, high ones one bit less
 * (codec/layout.h). */
INLINE void unpack_column(const int bits, const bool mixed, const uint8_t *at, size_t stride,
                          size_t tile_stride, size_t slab, int column, int j, const k_target *to) {
    if (bits == 8 || bits == 4) {
        for (int tile = 0; tile < T / TILE; tile++) {
            const ivec x = b_load_rows(at + (size_t)tile * tile_stride, 2 * stride);
            if (bits == 8) {
                put_k(to, tile, column, j, x);
            } else {
                put_k(to, tile, 2 * column, j, b_field(x, 0, mixed ? 31 : 15));
                put_k(to, tile, 2 * column + 1, j, mixed ? b_field(x, 5, 7) : b_field(x, 4, 15));
            }
        }
        return;
    }
    const ivec a = b_load_rows(at, 2 * stride);
    if (bits == 2) {
        UNROLL for (int tile = 0; tile < 4; tile++)
            put_k(to, tile, column, j, b_field(a, 2 * tile, 3));
    } else if (bits == 1) {
        UNROLL for (int bit = 0; bit < 8; bit++)
            put_k(to, bit % 4, 2 * column + bit / 4, j, b_field(a, bit, 1));
    } else {
        const ivec b = b_load_rows(at + slab, 2 * stride),
                   c = b_load_rows(at + 2 * slab, 2 * stride);
        const ivec part[3] = {a, b, c};
        UNROLL for (int tile = 0; tile < 3; tile++) {
            put_k(to, tile, 2 * column, j, b_field(part[tile], 0, mixed ? 15 : 7));
            put_k(to, tile, 2 * column + 1, j,
                  mixed ? b_field(part[tile], 4, 3) : b_field(part[tile], 3, 7));
        }
        const ivec low = b_field(a, 6, 3), high = b_field(b, 6, 3);
        put_k(to, 3, 2 * column, j, b_or(low, b_field(c, 4, mixed ? 12 : 4)));
        put_k(to, 3, 2 * column + 1, j, mixed ? high : b_or(high, b_field(c, 5, 4)));
    }
}

INLINE void unpack_columns(const int bits, int n_mixed, const uint8_t *k, const k_target *to) {
    const int n = to->dim / (bits == 8 || bits == 2 ? 8 : 16), slabs = bits == 3 ? 3 : 1;
    for (int column = 0; column < n; column++) {
        const int quad = column & ~3, width = n - quad < 4 ? n - quad : 4;
        const size_t stride = (size_t)width * 16;
        for (int j = 0; j < VECTORS; j++) {
            const size_t at = (size_t)(quad * 128 * slabs + (column - quad) * 16) +
                              (size_t)first_pair(j) * stride;
            if (column < n_mixed)
                unpack_column(bits, true, k + at, stride, (size_t)(bits * 2 * to->dim), 8 * stride,
                              column, j, to);
            else
                unpack_column(bits, false, k + at, stride, (size_t)(bits * 2 * to->dim), 8 * stride,
                              column, j, to);
        }
    }
}

static void unpack_k(int bits, int n_mixed, int dim, const uint8_t *k, const int8_t *book,
                     product kind, uint8_t *out) {
    const k_target to = {out, dim, book, load_book(book), kind};
    if (bits == 8)
        unpack_columns(8, 0, k, &to);
    else if (bits == 4)
        unpack_columns(4, n_mixed, k, &to);
    else if (bits == 3)
        unpack_columns(3, n_mixed, k, &to);
    else if (bits == 2)
        unpack_columns(2, 0, k, &to);
    else
        unpack_columns(1, 0, k, &to);
}

/* ------------------------------------------------------------------ V */

INLINE void put_v(uint8_t *out, int tile, int atom, int j, ivec x) {
    b_store(out + tile * 1024 + atom * 128 + j * VECTOR, x);
}

INLINE void unpack_run(const int bits, const uint8_t *run, int first, int tiles, const int8_t *book,
                       uint8_t *out) {
    const ivec table = load_book(book);
    const int share = bits == 2   ? 2
                      : bits == 3 ? 4
                                  : 1,
              slabs = bits == 3 ? 3 : 1, columns_ = 4 * tiles / share;
    const size_t stride = (size_t)columns_ * 16;
    for (int j = 0; j < VECTORS; j++)
        for (int c = 0; c < columns_; c++) {
            const uint8_t *at = run + (size_t)first_pair(j) * stride + (size_t)c * 16;
            ivec x[3];
            if (bits == 8) {
                put_v(out, first, c, j, b_load_rows(at, 2 * stride));
                put_v(out, first, 4 + c, j, b_load_rows(at + 512, 2 * stride));
                continue;
            }
            UNROLL for (int i = 0; i < slabs; i++) x[i] =
                b_load_rows(at + (size_t)i * 8 * stride, 2 * stride);
            if (bits == 4) {
                put_v(out, first, c, j, code_value(b_field(x[0], 0, 15), book, table));
                put_v(out, first, 4 + c, j, code_value(b_field(x[0], 4, 15), book, table));
                continue;
            }
            UNROLL for (int z = 0; z < share; z++) UNROLL for (int h = 0; h < 2; h++)
                put_v(out, first + z % tiles, 4 * h + c + columns_ * (z / tiles), j,
                      code_value(v_slot(bits, z, h, x), book, table));
        }
}

/* Tiles share bytes; at the end of a row fewer of them do. */
static void unpack_v(int bits, int dim, const uint8_t *v, const int8_t *book, uint8_t *out) {
    const int n_tiles = dim / TILE;
    for (int first = 0, run = bits == 2 ? 2 : bits == 3 ? 4 : 1; first < n_tiles; first += run) {
        while (first + run > n_tiles)
            run /= 2;
        const uint8_t *at = v + first * 128 * bits;
        if (bits == 8)
            unpack_run(8, at, first, run, book, out);
        else if (bits == 4)
            unpack_run(4, at, first, run, book, out);
        else if (bits == 3)
            unpack_run(3, at, first, run, book, out);
        else
            unpack_run(2, at, first, run, book, out);
    }
}

/* Reflects the codes of a page about their middle (kern.h) where put_flips says so: c -> 2 mid - c.
 */
static void reflect_v(const quire_side_format *side,
                      const uint8_t (*flip)[BLOCK] /* (n_groups), this page's first */,
                      uint8_t *v8) {
    const ivec one = b_all(side->bits == 8 && side->mid == 0); /* -c is ~c + 1 */
    for (int g = 0; g < side->n_groups; g++)
        for (int atom = 0; atom < 8; atom++) {
            const ivec mask = b_repeat8(flip[g] + 8 * atom),
                       add = b_sub(b_all(0), b_and(mask, one));
            for (int tile = g * side->group / TILE; tile < (g + 1) * side->group / TILE; tile++)
                for (int j = 0; j < VECTORS; j++) {
                    uint8_t *at = v8 + tile * 1024 + atom * 128 + j * VECTOR;
                    b_store(at, b_sub(b_xor(b_load(at), mask), add));
                }
        }
}

#endif
