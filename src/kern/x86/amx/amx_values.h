/* p.V of a chunk by tiles, and O. */
#ifndef QUIRE_KERN_X86_AMX_VALUES_H
#define QUIRE_KERN_X86_AMX_VALUES_H

#include "kern/x86/amx/amx_scores.h"
#include "kern/x86/amx/amx_softmax.h"
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

/* Units relative to the integer above m when the chunk ends. These factors are powers of two, so
 * that O gets the bits that packed_tmpl.h gives it, which multiplies O by `keep` block by block. */
static void end_units(const int *blocks, int n_blocks, amx_work *w) {
    STRIPS_EACH {
        fvec later = f_all(1);
        for (int i = n_blocks - 1; i >= 0; i--) {
            block_update *update = &w->update[blocks[i]];
            f_store(update->unit[strip], f_mul(f_load(update->unit[strip]), later));
            later = f_mul(later, f_load(update->keep[strip]));
        }
    }
}

/* How the O of a strip's chunk enters that of the chunks before, as quire__state_merge has it:
 * total * keep + (o + constant) * factor * add. */
typedef struct chunk_merge {
    fvec constant, factor, keep, add;
    __mmask16 seen, had; /* rows that the chunk, and those before, have something for */
} chunk_merge;

/* m and l are merged at once; l becomes relative to m first. `follows`: there are chunks before. */
static chunk_merge start_merge(bool follows, const int strip, amx_work *w, set_state *total) {
    const fvec m = f_load(w->m[strip]), factor = exp2_of_states(f_sub(f_ceil(m), m)),
               l = f_mul(f_load(w->l[strip]), factor), none = f_all(0), one = f_all(1);
    chunk_merge by = {.constant = f_load(w->constant[strip]), .factor = factor};
    by.seen = _mm512_cmp_ps_mask(l, none, _CMP_NEQ_UQ);
    if (!follows) {
        f_store(total->m[strip], m);
        f_store(total->l[strip], l);
        return by;
    }
    const fvec old_m = f_load(total->m[strip]), old_l = f_load(total->l[strip]),
               smaller = exp2_of_states(f_sub(none, f_abs(f_sub(old_m, m))));
    const __mmask16 above = _mm512_cmp_ps_mask(m, old_m, _CMP_GT_OQ);
    by.had = _mm512_cmp_ps_mask(old_l, none, _CMP_NEQ_UQ);
    by.keep = _mm512_mask_mov_ps(one, above, smaller);
    by.add = _mm512_mask_mov_ps(smaller, above, one);
    const fvec sum = f_add(f_mul(old_l, by.keep), f_mul(l, by.add));
    _mm512_mask_storeu_ps(total->m[strip], by.seen, _mm512_mask_mov_ps(m, by.had, f_max(m, old_m)));
    _mm512_mask_storeu_ps(total->l[strip], by.seen, _mm512_mask_mov_ps(l, by.had, sum));
    return by;
}

/* n channels, which are in L1. */
static void merge_channels(bool follows, const chunk_merge *by, int n, strip_rows *o,
                           strip_rows *total) {
    for (int d = 0; d < n; d++) {
        const fvec x = f_mul(f_add(f_load(o[d]), by->constant), by->factor);
        if (!follows) {
            f_store(total[d], _mm512_maskz_mov_ps(by->seen, x));
            continue;
        }
        const fvec sum = f_add(f_mul(f_load(total[d]), by->keep), f_mul(x, by->add));
        _mm512_mask_storeu_ps(total[d], by->seen, _mm512_mask_mov_ps(x, by->had, sum));
    }
}

/* Sums of block enter O. `empty`: O is, and what it holds is of another set. `next`: tiles that are
 * multiplied next, to be fetched meanwhile. */
INLINE void add_values(const bool wide, const bool empty, const block_update *update, int n,
                       tile8 *const next[PAGES], amx_work *w) {
    for (int i = 0; i < n; i++)
        STRIPS_EACH {
            const fvec unit = f_load(update->unit[strip]);
            strip_rows *o = w->o[strip] + i * TILE_ROWS;
            UNROLL for (int d = 0; d < TILE_ROWS; d++) {
                ivec x = b_load(w->acc[wide][i][strip][d]);
                if (wide)
                    x = i_add(x, i_shl(b_load(w->acc[0][i][strip][d]), 8));
                fetch_lines(next[strip][i][d], 1);
                f_store(o[d], empty ? f_mul(f_from_int(x), unit)
                                    : f_fma(f_from_int(x), unit, f_load(o[d])));
            }
        }
}

/* p.V of the chunk, added to the total. V_GROUP tiles of channels at a time: all blocks for these
 * before the next, so that their part of O and their sums stay in L1. Tiles are multiplied first
 * and their sums added then, not in turns: beside tile instructions vectors are half as fast. */
INLINE void weigh_values(const bool wide, const quire_side_format *v, const int *blocks,
                         int n_blocks, bool follows, amx_work *w, set_state *total) {
    const int dim = v->dim, n_tiles = dim / TILE_ROWS;
    const chunk_merge by[STRIPS] = {start_merge(follows, 0, w, total),
                                    start_merge(follows, 1, w, total)};
    end_units(blocks, n_blocks, w);
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
                add_values(wide, true, &w->update[blocks[i]], n, ahead, w);
            else
                add_values(wide, false, &w->update[blocks[i]], n, ahead, w);
        }
        STRIPS_EACH merge_channels(follows, &by[strip], n * TILE_ROWS, w->o[strip],
                                   total->o[strip] + first * TILE_ROWS);
    }
}

#endif
