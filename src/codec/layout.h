/* Where every code of a page lies (docs/FORMAT.md, sections 3 and 4). Codes are bit patterns,
 * one byte each, (64, D). */
#ifndef QUIRE_CODEC_LAYOUT_H
#define QUIRE_CODEC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* K: bits 1, 2, 3, 4, 8. V: bits 2, 3, 4, 8. `section` is 64*dim*bits/8 bytes, zero before
 * packing. K of 3 and 4 bits: in the first n_mixed blocks of 16 dims, 8 have codes of a bit more
 * and 8 of a bit less. */
void quire__k_pack(int bits, int n_mixed, int dim, const uint8_t *codes, uint8_t *section);
void quire__k_unpack(int bits, int n_mixed, int dim, const uint8_t *section, uint8_t *codes);
void quire__v_pack(int bits, int dim, const uint8_t *codes, uint8_t *section);
void quire__v_unpack(int bits, int dim, const uint8_t *section, uint8_t *codes);

/* ---- what fast packers share with the definition */

/* Byte offset of a K atom: `columns` in all, taken four at a time; each group holds `slabs`
 * blocks of [8 r][its columns]. */
static inline size_t quire__k_atom(int columns, int slabs, int column, int slab, int r) {
    const int group = column / 4, left = columns - 4 * group, width = left < 4 ? left : 4;
    return ((size_t)group * 32 * (size_t)slabs + (size_t)(slab * 8 * width) + (size_t)(r * width) +
            (size_t)(column % 4)) *
           16;
}

/* V: so many channel tiles share bytes. */
static inline int quire__v_share(int bits) { return bits == 2 ? 2 : bits == 3 ? 4 : 1; }

#endif
