/* Template, part of packed_tmpl.h, for levels with QUADS: four neighbouring columns of a page at
 * once. A vector then holds a row pair of all four, and it takes fewer instructions to exchange
 * rows and columns than to load 16 bytes at a time. */
#ifndef QUIRE_KERN_X86_QUADS_TMPL_H
#define QUIRE_KERN_X86_QUADS_TMPL_H

#include "kern/x86/codes_tmpl.h"

_Static_assert(STEPS == 1, "a tile is one vector");

enum { QUAD_ROW = 64, QUAD = 8 * QUAD_ROW /* bytes of a tile: 8 row pairs of four columns */ };

/* The fourth of the tiles that share three slabs, in bytes of their own: the low code at bit 0, the
 * high code at the top (split_codes). */
INLINE ivec join_fourth(const bool mixed, ivec a, ivec b, ivec c) {
#if MOVES_BITS
    const ivec low = b_move_bits(a, bit_move(6, 0) | bit_move(7, 1)),
               high = mixed ? b_move_bits(b, bit_move(6, 6) | bit_move(7, 7))
                            : b_move_bits(b, bit_move(6, 5) | bit_move(7, 6)),
               top = b_move_bits(c, bit_move(6, 2) | bit_move(7, mixed ? 3 : 7));
    return b_or3(low, high, top);
#else
    const ivec low = b_select(3, b_shr(a, 6), b_shr(c, 4));
    return mixed ? b_select(15, low, b) : b_select(7, low, b_select(0x60, b_shr(b, 1), c));
#endif
}

/* The bytes of tile 3 of a row pair. The first n_split columns are mixed. */
INLINE ivec load_fourth(const int n_split, const uint8_t *at) {
    const ivec a = b_load(at), b = b_load(at + QUAD), c = b_load(at + 2 * QUAD);
    if (n_split == 0 || n_split == 4)
        return join_fourth(n_split > 0, a, b, c);
    return b_blend_half(join_fourth(true, a, b, c), join_fourth(false, a, b, c));
}

/* Bytes of the quad's tile at `at`, y[even, odd pairs][column]; of three bits and tile 3, `at` is
 * where the slabs start, of which the first n_split (0, 2 or 4) columns are mixed. */
INLINE void load_quad(const bool fourth, const int n_split, const uint8_t *at, ivec y[2][4]) {
    UNROLL for (int pairs = 0; pairs < 2; pairs++) {
        ivec row[4];
        UNROLL for (int i = 0; i < 4; i++) {
            const uint8_t *pair = at + (2 * i + pairs) * QUAD_ROW;
            row[i] = fourth ? load_fourth(n_split, pair) : b_load(pair);
        }
        b_to_columns(row, y[pairs]);
    }
}

#endif
