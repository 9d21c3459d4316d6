/* p.V of a chunk by tiles, and O. */
#ifndef QUIRE_KERN_X86_AMX_VALUES_H
#define QUIRE_KERN_X86_AMX_VALUES_H

#include "kern/x86/amx/amx_scores.h"
#include "kern/x86/amx/amx_work.h"

/* The sums of 16 channels enter O, in the order of packed_tmpl.h. `first`: O is empty yet, and what
 * it holds is of another set. */
INLINE void add_values(const bool wide, const bool first, int32_t (*acc)[STRIPS][TILE_ROWS][STRIP],
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
            if (first)
                f_store(o[d], _mm512_maskz_mov_ps(alive, f_fma(f_from_int(x), unit, constant)));
            else
                _mm512_mask_storeu_ps(
                    o[d], alive, f_fma(f_from_int(x), unit, f_fma(f_load(o[d]), keep, constant)));
        }
    }
}

INLINE void load_weights(uint8_t (*p)[STRIPS][TILE_ROWS][TILE_ROW_BYTES]) {
    TILE_LOAD(0, p[0][0]);
    TILE_LOAD(1, p[1][0]);
    TILE_LOAD(2, p[0][1]);
    TILE_LOAD(3, p[1][1]);
}

/* Products go by two tiles of channels at a time, which share the weights of a block, and all
 * blocks for these before the next two: the channels of O that are at work stay in L1. */
typedef struct value_step {
    int tile, i; /* of the blocks */
} value_step;
INLINE value_step step_after(value_step step, int n_tiles, int n_blocks) {
    const int first = step.tile & ~1;
    if (step.tile == first && first + 1 < n_tiles)
        return (value_step){first + 1, step.i};
    return step.i + 1 < n_blocks ? (value_step){first, step.i + 1} : (value_step){first + 2, 0};
}

INLINE void multiply_values(const bool wide, bool new_weights, int block, int tile, int dim,
                            int32_t (*acc)[STRIPS][TILE_ROWS][STRIP], amx_work *w) {
    TILE_LOAD(4, v_tiles(&w->pages, dim, block * PAGES)[tile]);
    TILE_LOAD(5, v_tiles(&w->pages, dim, block * PAGES + 1)[tile]);
    for (int plane = 0; plane <= wide; plane++) {
        if (wide || new_weights)
            load_weights(w->p8[block][plane]);
        TILE_ZERO(6);
        TILE_ZERO(7);
        MULTIPLY(TILE_SU, true);
        TILE_STORE(6, acc[plane][0]);
        TILE_STORE(7, acc[plane][1]);
    }
}

INLINE void fetch_values(int block, int tile, int dim, amx_work *w) {
    for (int p = 0; p < PAGES; p++)
        fetch_lines(v_tiles(&w->pages, dim, block * PAGES + p)[tile], TILE_ROWS);
}

/* Sums enter O while the next ones are made. */
INLINE void weigh_values(const bool wide, int dim, const int *blocks, int n_blocks, amx_work *w) {
    const int n_tiles = dim / TILE_ROWS;
    value_step before, now = {0, 0}, next = step_after(now, n_tiles, n_blocks),
                       ahead = step_after(next, n_tiles, n_blocks);
    multiply_values(wide, true, blocks[0], 0, dim, w->acc[0], w);
    for (int n = 1; now.tile < n_tiles; n++) {
        before = now;
        now = next;
        next = ahead;
        if (ahead.tile < n_tiles) {
            fetch_values(blocks[ahead.i], ahead.tile, dim, w);
            ahead = step_after(ahead, n_tiles, n_blocks);
        }
        if (now.tile < n_tiles)
            multiply_values(wide, now.tile % 2 == 0, blocks[now.i], now.tile, dim, w->acc[n % 4],
                            w);
        if (before.i == 0)
            add_values(wide, true, w->acc[(n - 1) % 4], &w->update[blocks[0]], before.tile, w);
        else
            add_values(wide, false, w->acc[(n - 1) % 4], &w->update[blocks[before.i]], before.tile,
                       w);
    }
}

#endif
