/* Template: codes of V of two and three bits, where several tiles of channels share bytes.
 *
 * Parameters:
 *   SIMD  header of the vectors: avx2_simd.h, avx512_simd.h
 */
#ifndef QUIRE_KERN_X86_VALUE_SLOTS_TMPL_H
#define QUIRE_KERN_X86_VALUE_SLOTS_TMPL_H

#ifndef SIMD
#error "value_slots_tmpl.h needs SIMD"
#endif

#include SIMD

/* The code of slot z, half h of the page, from the slabs of one atom position. */
INLINE ivec v_slot(const int bits, const int z, const int h, const ivec *slab) {
    if (bits == 2)
        return b_field(slab[0], 4 * z + 2 * h, 3);
    if (z < 3)
        return b_field(slab[z], 3 * h, 7);
    return b_or(b_field(slab[h], 6, 3), b_field(slab[2], 4 + h, 4));
}

#endif
