/* Where every code of a page lies (docs/FORMAT.md, sections 3 and 4). Codes are bit patterns, one byte each, (64, D). */
#ifndef QUIRE_CODEC_LAYOUT_H
#define QUIRE_CODEC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* K: bits 1, 2, 3, 4, 8. V: bits 2, 3, 4, 8. `section` is 64*dim*bits/8 bytes, zero before packing. */
void quire__k_pack(int bits, int dim, const uint8_t *codes, uint8_t *section);
void quire__k_unpack(int bits, int dim, const uint8_t *section, uint8_t *codes);
void quire__v_pack(int bits, int dim, const uint8_t *codes, uint8_t *section);
void quire__v_unpack(int bits, int dim, const uint8_t *section, uint8_t *codes);

#endif
