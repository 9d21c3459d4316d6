/* Template, part of packed_tmpl.h: the codes in the bytes of a page. A byte of K has two dims (the
 * low code and the high one, 8 dims apart) of one token, a byte of V two tokens, 32 apart, of one
 * channel; of 8 bits only one. */
#ifndef QUIRE_KERN_X86_CODES_TMPL_H
#define QUIRE_KERN_X86_CODES_TMPL_H

#include "kern/x86/work_tmpl.h"

enum { TILE = 16, STEPS = TILE / W /* of a tile */ };

/* Octets of dims or atoms of tokens that are loaded before they are multiplied: at least the two of
 * a slice. Arrays of codes and operands have as many elements even if one is enough, because gcc 12
 * copies the vector of an array of one around. */
enum { LOADED = MOST_TOGETHER > 2 ? MOST_TOGETHER : 2 };
INLINE int loaded(const product kind) { return together(kind) > 2 ? together(kind) : 2; }

INLINE bool is_threes(const source_kind from) { return from == THREES || from == SPLIT_4_2; }

/* Slices that are multiplied before their sums are added to totals (slices_at_once). What three-bit
 * codes are put together from takes the registers of a third and a fourth. */
INLINE int slices_in_run(const product kind, const source_kind from, const int most, const int by) {
    const int n = slices_at_once(kind, most, by);
    return is_threes(from) && n > 2 ? 2 : n;
}

/* Both codes of bytes. `part`: tiles of V of two bits share bytes by twos, this is the first or the
 * second; of three bits, 1 is the fourth tile, as load_quad has it. */
INLINE void split_codes(const product kind, const source_kind from, const int part, ivec y,
                        ivec book, ivec *low, ivec *high) {
    const bool split = from == SPLIT_5_3 || from == SPLIT_4_2;
    const int bits = from == TWOS      ? 2
                     : is_threes(from) ? 3
                                       : 4,
              low_bits = bits + split, high_bits = bits - split,
              first = from == TWOS ? 4 * part : 0,
              second = is_threes(from) && part ? 8 - high_bits : first + low_bits;
    *low = b_field(y, first, (1 << low_bits) - 1);
    *high = b_field(y, second, (1 << high_bits) - 1);
    if (kind == SIGNED) {
        *low = b_lookup(book, *low);
        *high = b_lookup(book, *high);
    }
}

/* Three bits: the first three tiles that share bytes have a slab each, codes at bits 0 and 3; the
 * fourth has bits 6 and 7 of the slabs, low codes 0 and 2, high codes 1 and 2. Mixed: bits 0 and 4;
 * the third slab has two bits of a low code. */
INLINE void split_threes(const product kind, const source_kind from, const uint8_t *at, size_t slab,
                         size_t rows, int tile, ivec book, ivec *low, ivec *high) {
    const bool mixed = from == SPLIT_4_2;
    if (tile < 3) {
        split_codes(kind, from, 0, b_load_rows(at + (size_t)tile * slab, rows), book, low, high);
        return;
    }
    const ivec c = b_load_rows(at + 2 * slab, rows);
    *low = b_or(b_field(b_load_rows(at, rows), 6, 3), b_field(c, 4, mixed ? 12 : 4));
    *high = b_field(b_load_rows(at + slab, rows), 6, 3);
    if (!mixed)
        *high = b_or(*high, b_field(c, 5, 4));
    if (kind == SIGNED) {
        *low = b_lookup(book, *low);
        *high = b_lookup(book, *high);
    }
}

#endif
