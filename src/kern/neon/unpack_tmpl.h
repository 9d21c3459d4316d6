/* Template, part of packed_tmpl.h: codes of any width to int8 atoms in L1, for prefill (many rows
 * share the work) and for widths without a direct path. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_UNPACK_TMPL_H
#define QUIRE_KERN_NEON_UNPACK_TMPL_H

#include "codec/layout.h"
#include "kern/neon/slabs.h"
#include "kern/neon/work_tmpl.h"

INLINE int8x16_t code_value(uint8x16_t code, const int8_t *book, int8x16_t table) {
    return book ? vqtbl1q_s8(table, code) : vreinterpretq_s8_u8(code);
}

INLINE int8x16_t load_book(const int8_t *book, int bits) {
    int8_t table[16] = {0};
    if (book)
        memcpy(table, book, bits < 4 ? (size_t)1 << bits : 16);
    return vld1q_s8(table);
}

/* ------------------------------------------------- K: [16 tokens][8 dims][token pair][16 bytes] */

INLINE void put_k(int8_t *out, int dim, int tile, int octet, int r, int8x16_t x) {
    vst1q_s8(out + (size_t)tile * 16 * (size_t)dim + (size_t)octet * 128 + (size_t)r * 16, x);
}

/* Where the codes of a K side go, and their book. */
typedef struct k_target {
    int8_t *out;
    int dim;
    const int8_t *book;
    int8x16_t table;
} k_target;

INLINE void put_codes(const k_target *to, int tile, int column, int r, uint8x16_t low,
                      uint8x16_t high) {
    put_k(to->out, to->dim, tile, 2 * column, r, code_value(low, to->book, to->table));
    put_k(to->out, to->dim, tile, 2 * column + 1, r, code_value(high, to->book, to->table));
}

/* Two octets of four bits, or in mixed blocks (codec/layout.h) of five and three. */
INLINE void unpack_k4(const bool mixed, uint8x16_t x, int tile, int column, int r,
                      const k_target *to) {
    put_codes(to, tile, column, r, vandq_u8(x, vdupq_n_u8(mixed ? 31 : 15)),
              mixed ? vshrq_n_u8(x, 5) : vshrq_n_u8(x, 4));
}

/* Two octets of three bits, or of four and two, of all token tiles. */
INLINE void unpack_k3(const bool mixed, const uint8x16_t slab[3], int column, int r,
                      const k_target *to) {
    UNROLL for (int tile = 0; tile < 4; tile++)
        put_codes(to, tile, column, r, slab_code(3, mixed, slab, tile, 0),
                  slab_code(3, mixed, slab, tile, 1));
}

static __attribute__((noinline)) void unpack_k(int bits, int n_mixed, int dim, const uint8_t *k,
                                               const int8_t *book, int8_t *out) {
    const int8x16_t table = load_book(book, bits);
    const k_target to = {out, dim, book, table};
    const bool by_octet = bits == 8 || bits == 2;
    const int n_columns = dim / (by_octet ? 8 : 16), slabs = bits == 3 ? 3 : 1;
    for (int quad = 0; quad < n_columns; quad += 4) {
        const int width = n_columns - quad < 4 ? n_columns - quad : 4;
        const size_t slab = (size_t)(width * 128), start = (size_t)quad * 128 * (size_t)slabs;
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < width; c++) {
                const size_t at = start + (size_t)(r * width + c) * 16;
                const int column = quad + c;
                if (bits == 8 || bits == 4) {
                    for (int tile = 0; tile < 4; tile++) {
                        const uint8x16_t x = vld1q_u8(
                            k + (size_t)tile * (size_t)(bits == 8 ? 16 : 8) * (size_t)dim + at);
                        if (bits == 8)
                            put_k(out, dim, tile, column, r, vreinterpretq_s8_u8(x));
                        else if (column < n_mixed)
                            unpack_k4(true, x, tile, column, r, &to);
                        else
                            unpack_k4(false, x, tile, column, r, &to);
                    }
                } else if (bits == 2) {
                    const uint8x16_t x = vld1q_u8(k + at);
                    UNROLL for (int tile = 0; tile < 4; tile++)
                        put_k(out, dim, tile, column, r,
                              code_value(slab_code(2, false, &x, tile / 2, tile % 2), book, table));
                } else if (bits == 1) {
                    uint8x16_t x = vld1q_u8(k + at);
                    for (int bit = 0; bit < 8; bit++, x = vshrq_n_u8(x, 1))
                        put_k(out, dim, bit % 4, 2 * column + bit / 4, r,
                              vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(1))));
                } else {
                    const uint8x16_t x[3] = {vld1q_u8(k + at), vld1q_u8(k + at + slab),
                                             vld1q_u8(k + at + 2 * slab)};
                    if (column < n_mixed)
                        unpack_k3(true, x, column, r, &to);
                    else
                        unpack_k3(false, x, column, r, &to);
                }
            }
    }
}

/* ----------------------------------------------- V: [16 channels][atom][channel pair][16 bytes] */

INLINE void put_v(int8_t *out, int tile, int atom, int r, int8x16_t x) {
    vst1q_s8(out + (size_t)tile * 1024 + (size_t)atom * 128 + (size_t)r * 16, as_value(x));
}

INLINE void unpack_v_bits(const int bits, int dim, const uint8_t *v, const int8_t *book,
                          int8_t *out) {
    const int8x16_t table = load_book(book, bits);
    const int n_tiles = dim / 16, share = quire__v_share(bits);
    for (int first = 0, run = share; first < n_tiles; first += run) {
        while (first + run > n_tiles)
            run /= 2;
        const int columns = 4 * run / share;
        const uint8_t *base = v + (size_t)first * 128 * (size_t)bits;
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < columns; c++) {
                const uint8_t *at = base + (size_t)(r * columns + c) * 16;
                if (bits == 8) {
                    put_v(out, first, c, r, vld1q_s8((const int8_t *)at));
                    put_v(out, first, 4 + c, r, vld1q_s8((const int8_t *)at + 512));
                } else if (bits == 4) {
                    const uint8x16_t x = vld1q_u8(at);
                    put_v(out, first, c, r, code_value(vandq_u8(x, vdupq_n_u8(15)), book, table));
                    put_v(out, first, 4 + c, r, code_value(vshrq_n_u8(x, 4), book, table));
                } else {
                    uint8x16_t slab[3];
                    UNROLL for (int i = 0; i < slabs_of(bits); i++) slab[i] =
                        vld1q_u8(at + (size_t)(i * columns) * 128);
                    UNROLL for (int z = 0; z < share; z++) UNROLL for (int h = 0; h < 2; h++)
                        put_v(out, first + z % run, 4 * h + c + columns * (z / run), r,
                              code_value(slab_code(bits, false, slab, z, h), book, table));
                }
            }
    }
}

static __attribute__((noinline)) void unpack_v(int bits, int dim, const uint8_t *v,
                                               const int8_t *book, int8_t *out) {
    switch (bits) {
    case 2:
        unpack_v_bits(2, dim, v, book, out);
        break;
    case 3:
        unpack_v_bits(3, dim, v, book, out);
        break;
    case 4:
        unpack_v_bits(4, dim, v, book, out);
        break;
    default:
        unpack_v_bits(8, dim, v, book, out);
        break;
    }
}

/* Where the scale of a scale group is negative, its codes are reflected about their middle
 * (kern.h): all their bits change. These are the masks for the eight atoms of 64 tokens: atom 4h+c
 * holds tokens 32h+4c+{0..3} and 32h+16+4c+{0..3} of two channels. */
static void find_negative(const float *scale /* (64) */, uint8_t (*negative)[16] /* (8) */) {
    for (int h = 0; h < 2; h++) {
        uint32x4_t tokens[2];
        for (int y = 0; y < 2; y++) {
            uint16x4_t x[4];
            EACH x[u] = vmovn_u32(vcltzq_f32(vld1q_f32(scale + 32 * h + 16 * y + 4 * u)));
            tokens[y] = vreinterpretq_u32_u8(vcombine_u8(vmovn_u16(vcombine_u16(x[0], x[1])),
                                                         vmovn_u16(vcombine_u16(x[2], x[3]))));
        }
        const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(tokens[0], tokens[1])),
                         b = vreinterpretq_u64_u32(vzip2q_u32(tokens[0], tokens[1]));
        vst1q_u8(negative[4 * h], vreinterpretq_u8_u64(vdupq_laneq_u64(a, 0)));
        vst1q_u8(negative[4 * h + 1], vreinterpretq_u8_u64(vdupq_laneq_u64(a, 1)));
        vst1q_u8(negative[4 * h + 2], vreinterpretq_u8_u64(vdupq_laneq_u64(b, 0)));
        vst1q_u8(negative[4 * h + 3], vreinterpretq_u8_u64(vdupq_laneq_u64(b, 1)));
    }
}

static void reflect_v(const quire_side_format *side,
                      const uint8_t (*negative)[8][16] /* (n_groups) */, int8_t *v8) {
    const uint8x16_t all = vdupq_n_u8(side->bits == 8 ? 255 : (uint8_t)((1 << side->bits) - 1));
    for (int g = 0; g < side->n_groups; g++)
        for (int atom = 0; atom < 8; atom++) {
            const uint8x16_t mask = vandq_u8(vld1q_u8(negative[g][atom]), all);
            for (int tile = g * side->group / 16; tile < (g + 1) * side->group / 16; tile++)
                for (int r = 0; r < 8; r++) {
                    int8_t *at = v8 + (size_t)tile * 1024 + (size_t)atom * 128 + (size_t)r * 16;
                    vst1q_s8(
                        at, vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s8(vld1q_s8(at)), mask)));
                }
        }
}

#endif
