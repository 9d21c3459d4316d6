/* Template, part of rows_tmpl.h: codes, one byte each (64, D), into the sections of a page by whole
 * 16-byte atoms (codec/layout.c, docs/FORMAT.md). The fields of an atom are shifted together before
 * bytes are moved, so every width shares two movements: interleaving two tokens (K), and
 * transposing 8 tokens x 16 channels (V). */
#ifndef QUIRE_KERN_ROWS_PACK_TMPL_H
#define QUIRE_KERN_ROWS_PACK_TMPL_H

#include "codec/family.h"
#include "codec/layout.h"
#include "kern/rows/vec_tmpl.h"

/* Shifts bytes left; no bit may leave its byte. (x86 has no byte shift.) */
#define LEFT(x, n) ((u8x16)((u16x8)(x) << (n)))

/* ---- K: an atom is tokens t, t+1 x 8 dims */

typedef struct octets {
    u8x16 low, high; /* dims 0..7 and 8..15 of a block, token t then t+1 */
} octets;

INLINE octets token_pair(const uint8_t *codes, int dim, int t, int block) {
    const u8x16 a = load_16(codes + t * dim + 16 * block),
                b = load_16(codes + (t + 1) * dim + 16 * block);
    return (octets){
        SHUFFLE(a, b, u8x16, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        SHUFFLE(a, b, u8x16, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)};
}

/* Below 8 bits dims are stored 0 2 1 3. */
INLINE u8x16 middle_swapped(u8x16 x) {
    return SHUFFLE(x, x, u8x16, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
}

static void pack_k8(int dim, const uint8_t *codes, uint8_t *section) {
    for (int t = 0; t < T; t += 2)
        for (int b = 0; b < dim / 16; b++) {
            const octets x = token_pair(codes, dim, t, b);
            uint8_t *tile = section + t / 16 * 16 * dim;
            store_16(tile + quire__k_atom(dim / 8, 1, 2 * b, 0, t % 16 / 2), x.low);
            store_16(tile + quire__k_atom(dim / 8, 1, 2 * b + 1, 0, t % 16 / 2), x.high);
        }
}

/* In mixed blocks (codec/layout.h) low codes are a bit wider, and the high ones start a bit
 * higher. */
static void pack_k4(int n_mixed, int dim, const uint8_t *codes, uint8_t *section) {
    for (int t = 0; t < T; t += 2)
        for (int b = 0; b < dim / 16; b++) {
            const octets x = token_pair(codes, dim, t, b);
            uint8_t *tile = section + t / 16 * 8 * dim;
            const u8x16 high = b < n_mixed ? LEFT(x.high, 5) : LEFT(x.high, 4);
            store_16(tile + quire__k_atom(dim / 16, 1, b, 0, t % 16 / 2),
                     middle_swapped(x.low | high));
        }
}

/* The other widths put codes of the four tiles of 16 tokens into one byte. */
INLINE void pack_k_tiles(const int bits, int n_mixed, int dim, const uint8_t *codes,
                         uint8_t *section) {
    for (int r = 0; r < 8; r++)
        for (int b = 0; b < dim / 16; b++) {
            octets x[4];
            UNROLL for (int tile = 0; tile < 4; tile++) x[tile] =
                token_pair(codes, dim, 16 * tile + 2 * r, b);
            if (bits == 3) {
                u8x16 slab[3];
                UNROLL for (int i = 0; i < 3; i++) slab[i] =
                    x[i].low | (b < n_mixed ? LEFT(x[i].high, 4) : LEFT(x[i].high, 3));
                slab[0] |= LEFT(x[3].low & 3, 6);
                slab[1] |= LEFT(x[3].high & 3, 6);
                /* a wider low code, or two top bits. */
                slab[2] |= LEFT(x[3].low & 12, 4) | LEFT(x[3].high & 4, 5);
                UNROLL for (int i = 0; i < 3; i++) store_16(
                    section + quire__k_atom(dim / 16, 3, b, i, r), middle_swapped(slab[i]));
            } else if (bits == 2) {
                const u8x16 low =
                    x[0].low | LEFT(x[1].low, 2) | LEFT(x[2].low, 4) | LEFT(x[3].low, 6);
                const u8x16 high =
                    x[0].high | LEFT(x[1].high, 2) | LEFT(x[2].high, 4) | LEFT(x[3].high, 6);
                store_16(section + quire__k_atom(dim / 8, 1, 2 * b, 0, r), middle_swapped(low));
                store_16(section + quire__k_atom(dim / 8, 1, 2 * b + 1, 0, r),
                         middle_swapped(high));
            } else {
                const u8x16 low =
                    x[0].low | LEFT(x[1].low, 1) | LEFT(x[2].low, 2) | LEFT(x[3].low, 3);
                const u8x16 high =
                    x[0].high | LEFT(x[1].high, 1) | LEFT(x[2].high, 2) | LEFT(x[3].high, 3);
                store_16(section + quire__k_atom(dim / 16, 1, b, 0, r),
                         middle_swapped(low | LEFT(high, 4)));
            }
        }
}

static void pack_k(int bits, int n_mixed, int dim, const uint8_t *codes, uint8_t *section) {
    switch (bits) {
    case 8:
        pack_k8(dim, codes, section);
        break;
    case 4:
        pack_k4(n_mixed, dim, codes, section);
        break;
    case 3:
        pack_k_tiles(3, n_mixed, dim, codes, section);
        break;
    case 2:
        pack_k_tiles(2, 0, dim, codes, section);
        break;
    default:
        pack_k_tiles(1, 0, dim, codes, section);
    }
}

/* ---- V: an atom is channels ch, ch+1 x 8 tokens */

#define ZIP_LOW(a, b) SHUFFLE(a, b, u8x16, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                             \
    SHUFFLE(a, b, u8x16, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Zips element i with element i + 4; after three times, 8 tokens x 16 channels are 8 atoms in
 * order. */
INLINE void zip_all(const u8x16 from[8], u8x16 to[8]) {
    UNROLL for (int i = 0; i < 4; i++) {
        to[2 * i] = ZIP_LOW(from[i], from[i + 4]);
        to[2 * i + 1] = ZIP_HIGH(from[i], from[i + 4]);
    }
}

/* tokens[j]: 16 channels of the token that byte j holds. Atoms r = 0..7 go `stride` apart. */
INLINE void store_atoms(u8x16 tokens[8], uint8_t *to, int stride) {
    u8x16 other[8];
    zip_all(tokens, other);
    zip_all(other, tokens);
    zip_all(tokens, other);
    UNROLL for (int r = 0; r < 8; r++) store_16(to + r * stride, other[r]);
}

/* Tiles first .. first+m-1 share bytes: slot z of an atom holds tile z % m, column c + cols * (z /
 * m). */
INLINE void pack_v_run(const int bits, int dim, const uint8_t *codes, int first, int m,
                       uint8_t *run) {
    const int share = quire__v_share(bits), cols = 4 * m / share, slab = 128 * cols;
    for (int c = 0; c < cols; c++) {
        u8x16 out[3][8];
        UNROLL for (int j = 0; j < 8; j++) {
            u8x16 x[4][2]; /* [slot][half of the page] */
            UNROLL for (int z = 0; z < share; z++) UNROLL for (int half = 0; half < 2; half++) {
                const int t = 32 * half + j / 4 * 16 + 4 * (c + cols * (z / m)) + j % 4;
                x[z][half] = load_16(codes + t * dim + 16 * (first + z % m));
            }
            if (bits == 8) {
                out[0][j] = x[0][0];
                out[1][j] = x[0][1];
            } else if (bits == 4) {
                out[0][j] = x[0][0] | LEFT(x[0][1], 4);
            } else if (bits == 2) {
                out[0][j] = x[0][0] | LEFT(x[0][1], 2) | LEFT(x[1][0], 4) | LEFT(x[1][1], 6);
            } else {
                UNROLL for (int z = 0; z < 3; z++) out[z][j] = x[z][0] | LEFT(x[z][1], 3);
                out[0][j] |= LEFT(x[3][0] & 3, 6);
                out[1][j] |= LEFT(x[3][1] & 3, 6);
                out[2][j] |= LEFT(x[3][0] & 4, 4) | LEFT(x[3][1] & 4, 5);
            }
        }
        const int n_slabs = bits == 8 ? 2 : bits == 3 ? 3 : 1;
        UNROLL for (int i = 0; i < n_slabs; i++)
            store_atoms(out[i], run + i * slab + 16 * c, 16 * cols);
    }
}

INLINE void pack_v_width(const int bits, int dim, const uint8_t *codes, uint8_t *section) {
    const int n_tiles = dim / 16;
    for (int first = 0, m = quire__v_share(bits); first < n_tiles; first += m) {
        while (first + m > n_tiles)
            m /= 2;
        pack_v_run(bits, dim, codes, first, m, section + first * 16 * T * bits / 8);
    }
}

static void pack_v(int bits, int dim, const uint8_t *codes, uint8_t *section) {
    switch (bits) {
    case 8:
        pack_v_width(8, dim, codes, section);
        break;
    case 4:
        pack_v_width(4, dim, codes, section);
        break;
    case 3:
        pack_v_width(3, dim, codes, section);
        break;
    default:
        pack_v_width(2, dim, codes, section);
    }
}

#endif
