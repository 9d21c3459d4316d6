/* p.V of a chunk by tiles, and O. */
#ifndef QUIRE_KERN_X86_AMX_VALUES_H
#define QUIRE_KERN_X86_AMX_VALUES_H

#include "kern/x86/amx/amx_scores.h"
#include "kern/x86/amx/amx_work.h"

INLINE void load_weights(uint8_t (*p)[STRIPS][TILE_ROWS][TILE_ROW_BYTES]) {
    TILE_LOAD(0, p[0][0]);
    TILE_LOAD(1, p[1][0]);
    TILE_LOAD(2, p[0][1]);
    TILE_LOAD(3, p[1][1]);
}

/* Integer sums of n tiles of channels, `first` on. */
INLINE void multiply_values(const bool wide, int block, int dim, int first, int n, amx_work *w) {
    tile8 *v[PAGES] = {v_tiles(&w->pages, dim, block * PAGES) + first,
                       v_tiles(&w->pages, dim, block * PAGES + 1) + first};
    for (int plane = 0; plane <= wide; plane++) {
        load_weights(w->p8[block][plane]);
        for (int i = 0; i < n; i++) {
            TILE_LOAD(4, v[0][i]);
            TILE_LOAD(5, v[1][i]);
            TILE_ZERO(6);
            TILE_ZERO(7);
            MULTIPLY(TILE_SU, true);
            TILE_STORE(6, w->acc[plane][i][0]);
            TILE_STORE(7, w->acc[plane][i][1]);
        }
    }
}

/* They enter O, in the order of packed_tmpl.h. `empty`: O is, and what it holds is of another set.
 * `next`: tiles that are multiplied next, to be fetched meanwhile. */
INLINE void add_values(const bool wide, const bool empty, const block_update *update, int first,
                       int n, tile8 *const next[PAGES], amx_work *w) {
    for (int i = 0; i < n; i++)
        STRIPS_EACH {
            const fvec keep = f_load(update->keep[strip]), unit = f_load(update->unit[strip]),
                       constant = f_load(update->constant[strip]);
            const __mmask16 alive = update->alive[strip];
            strip_rows *o = w->o[strip] + (first + i) * TILE_ROWS;
            UNROLL for (int d = 0; d < TILE_ROWS; d++) {
                ivec x = b_load(w->acc[wide][i][strip][d]);
                if (wide)
                    x = i_add(x, i_shl(b_load(w->acc[0][i][strip][d]), 8));
                fetch_lines(next[strip][i][d], 1);
                if (empty)
                    f_store(o[d], _mm512_maskz_mov_ps(alive, f_fma(f_from_int(x), unit, constant)));
                else
                    _mm512_mask_storeu_ps(
                        o[d], alive,
                        f_fma(f_from_int(x), unit, f_fma(f_load(o[d]), keep, constant)));
            }
        }
}

/* V_GROUP tiles of channels at a time: all blocks for these before the next, so that their part of
 * O and their sums stay in L1. Tiles are multiplied first and their sums added then, not in turns:
 * beside tile instructions vectors are half as fast. */
INLINE void weigh_values(const bool wide, int dim, const int *blocks, int n_blocks, amx_work *w) {
    const int n_tiles = dim / TILE_ROWS;
    for (int first = 0; first < n_tiles; first += V_GROUP) {
        const int n = n_tiles - first < V_GROUP ? n_tiles - first : V_GROUP;
        for (int i = 0; i < n_blocks; i++) {
            const bool last = i + 1 == n_blocks;
            const int next = blocks[last ? 0 : i + 1] * PAGES, at = !last ? first
                                                                    : first + n < n_tiles
                                                                        ? first + n
                                                                        : 0;
            tile8 *const ahead[PAGES] = {v_tiles(&w->pages, dim, next) + at,
                                         v_tiles(&w->pages, dim, next + 1) + at};
            multiply_values(wide, blocks[i], dim, first, n, w);
            if (i == 0)
                add_values(wide, true, &w->update[blocks[i]], first, n, ahead, w);
            else
                add_values(wide, false, &w->update[blocks[i]], first, n, ahead, w);
        }
    }
}

#endif
