/* p.V of a chunk by tiles, and O. */
#ifndef QUIRE_KERN_X86_AMX_VALUES_H
#define QUIRE_KERN_X86_AMX_VALUES_H

#include "kern/x86/amx/amx_scores.h"
#include "kern/x86/amx/amx_work.h"

/* The sums of 16 channels enter O, in the order of packed_tmpl.h. */
INLINE void add_values(const bool wide, int32_t (*acc)[STRIPS][TILE_ROWS][STRIP],
                       const block_update *update, int tile, amx_work *w) {
    STRIPS_EACH {
        const fvec keep = f_load(update->keep[strip]), unit = f_load(update->unit[strip]),
                   constant = f_load(update->constant[strip]);
        const __mmask16 alive = update->alive[strip];
        strip_rows *o = w->o[strip] + tile * TILE_ROWS;
        UNROLL for (int d = 0; d < TILE_ROWS; d++) {
            ivec x = b_load(acc[wide][strip][d]);
            if (wide)
                x = i_add(x, i_shl(b_load(acc[0][strip][d]), 8));
            _mm512_mask_storeu_ps(o[d], alive,
                                  f_fma(f_from_int(x), unit, f_fma(f_load(o[d]), keep, constant)));
        }
    }
}

INLINE void load_weights(uint8_t (*p)[STRIPS][TILE_ROWS][TILE_ROW_BYTES]) {
    TILE_LOAD(0, p[0][0]);
    TILE_LOAD(1, p[1][0]);
    TILE_LOAD(2, p[0][1]);
    TILE_LOAD(3, p[1][1]);
}

/* Channels outside, blocks inside: the channels of O that are at work stay in L1. Sums enter O
 * while the next ones are made. */
INLINE void weigh_values(const bool wide, int dim, const int *blocks, int n_blocks, amx_work *w) {
    const int n = dim / TILE_ROWS * n_blocks;
    for (int i = 0; i <= n; i++) {
        const int tile = i / n_blocks, block = blocks[i % n_blocks];
        if (i < n) {
            int32_t(*acc)[STRIPS][TILE_ROWS][STRIP] = w->acc[i % 2];
            for (int plane = 0; plane <= wide; plane++) {
                load_weights(w->p8[block][plane]);
                if (plane == 0) {
                    TILE_LOAD(4, v_tiles(&w->pages, dim, block * PAGES)[tile]);
                    TILE_LOAD(5, v_tiles(&w->pages, dim, block * PAGES + 1)[tile]);
                }
                TILE_ZERO(6);
                TILE_ZERO(7);
                MULTIPLY(TILE_SU, true);
                TILE_STORE(6, acc[plane][0]);
                TILE_STORE(7, acc[plane][1]);
            }
        }
        if (i > 0)
            add_values(wide, w->acc[(i - 1) % 2], &w->update[blocks[(i - 1) % n_blocks]],
                       (i - 1) / n_blocks, w);
    }
}

#endif
