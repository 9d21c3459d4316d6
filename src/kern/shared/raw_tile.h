/* Tiles of raw_tmpl.h, which the products of 16-bit elements (neon/raw_narrow_tmpl.h) share. */
#ifndef QUIRE_KERN_SHARED_RAW_TILE_H
#define QUIRE_KERN_SHARED_RAW_TILE_H

enum {
    TILE_ROWS = 4, /* query rows of a tile, at most */
    VALUE_SUMS = 8 /* vectors of sums per row, at most */
};

#endif
