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

/* The i-th product: two tiles of channels at a time, which share the weights of a block, and all
 * blocks for these before the next two: the channels of O that are at work stay in L1. */
typedef struct value_step {
    int tile, block;
    bool new_weights;
} value_step;
INLINE value_step value_step_at(int i, int n_tiles, const int *blocks, int n_blocks) {
    const int pair = i / (2 * n_blocks), width = n_tiles - 2 * pair < 2 ? 1 : 2;
    const int at = i - pair * 2 * n_blocks;
    return (value_step){2 * pair + at % width, blocks[at / width], at % width == 0};
}

/* Sums enter O while the next ones are made. */
INLINE void weigh_values(const bool wide, int dim, const int *blocks, int n_blocks, amx_work *w) {
    const int n_tiles = dim / TILE_ROWS, n = n_tiles * n_blocks;
    value_step before = {0};
    for (int i = 0; i <= n; i++) {
        value_step now = before;
        if (i < n) {
            int32_t(*acc)[STRIPS][TILE_ROWS][STRIP] = w->acc[i % 4];
            now = value_step_at(i, n_tiles, blocks, n_blocks);
            TILE_LOAD(4, v_tiles(&w->pages, dim, now.block * PAGES)[now.tile]);
            TILE_LOAD(5, v_tiles(&w->pages, dim, now.block * PAGES + 1)[now.tile]);
            if (i + 2 < n) {
                const value_step ahead = value_step_at(i + 2, n_tiles, blocks, n_blocks);
                for (int p = 0; p < PAGES; p++)
                    fetch_lines(v_tiles(&w->pages, dim, ahead.block * PAGES + p)[ahead.tile],
                                TILE_ROWS);
            }
            for (int plane = 0; plane <= wide; plane++) {
                if (wide || now.new_weights)
                    load_weights(w->p8[now.block][plane]);
                TILE_ZERO(6);
                TILE_ZERO(7);
                MULTIPLY(TILE_SU, true);
                TILE_STORE(6, acc[plane][0]);
                TILE_STORE(7, acc[plane][1]);
            }
        }
        if (i > 0)
            add_values(wide, w->acc[(i - 1) % 4], &w->update[before.block], before.tile, w);
        before = now;
    }
}

#endif
