/* Codes of two and three bits. A byte holds codes of several tiles (16 tokens of K, 16 channels of
 * V), and 3-bit codes lie in three slabs (codec/layout.h), so that one pass over the bytes adds to
 * the sums of all tiles. */
#ifndef QUIRE_KERN_NEON_SLABS_H
#define QUIRE_KERN_NEON_SLABS_H

#include "kern/neon/cells.h"

INLINE int slabs_of(const int bits) { return bits == 3 ? 3 : 1; }

/* Half h of tile z: four tiles of three bits, or two of two. `mixed`: the halves are four bits and
 * two. */
INLINE uint8x16_t slab_code(const int bits, const bool mixed, const uint8x16_t *slab, const int z,
                            const int h) {
    if (bits == 2) {
        const uint8x16_t x = slab[0] >> (uint8_t)(4 * z + 2 * h);
        return z == 1 && h == 1 ? x : vandq_u8(x, vdupq_n_u8(3));
    }
    const int low = mixed ? 4 : 3, width = h == 0 ? low : 6 - low;
    if (z < 3)
        return vandq_u8(slab[z] >> (uint8_t)(h * low), vdupq_n_u8((uint8_t)((1 << width) - 1)));
    /* what the others leave: two bits of each, and the rest in the third slab */
    if (h == 1)
        return mixed ? vshrq_n_u8(slab[1], 6) : vsriq_n_u8(vshrq_n_u8(slab[2], 5), slab[1], 6);
    const uint8x16_t x = vsriq_n_u8(vshrq_n_u8(slab[2], 4), slab[0], 6);
    return mixed ? x : vandq_u8(x, vdupq_n_u8(7));
}

#endif
