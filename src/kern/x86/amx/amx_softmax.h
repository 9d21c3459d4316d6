/* From the scores of a block to the weights of V, and how the block changes the rows' states. Here
 * weights are 16 bits wide, for V of 8 bits; amx_half_softmax.h has the others. */
#ifndef QUIRE_KERN_X86_AMX_SOFTMAX_H
#define QUIRE_KERN_X86_AMX_SOFTMAX_H

#include "kern/x86/amx/amx_queries.h"
#include "kern/x86/amx/amx_work.h"

/* n times 2^x, x <= 0, side by side, because each is a long chain: exp2_negative of
 * softmax_tmpl.h. */
INLINE void exp2_negative_each(const int n, fvec *x) {
    enum { DEGREE = 5 };
    fvec f[8], p[8];
    UNROLL for (int u = 0; u < n; u++) f[u] = f_fraction(x[u]);
    UNROLL for (int u = 0; u < n; u++) p[u] = f_all(EXP2_5[DEGREE]);
    UNROLL for (int i = DEGREE - 1; i >= 0; i--) UNROLL for (int u = 0; u < n; u++) p[u] =
        f_fma(p[u], f[u], f_all(EXP2_5[i]));
    UNROLL for (int u = 0; u < n; u++) x[u] = f_times_power(p[u], x[u]);
}

/* r_exp2 (four_rows.h), of 16 rows. */
INLINE fvec exp2_of_states(fvec x) {
    const fvec magic = f_all(QUIRE_ROUND_MAGIC);
    x = f_max(x, f_all(-126.0f)); /* of a NaN: the second operand, as there */
    const fvec y = f_add(x, magic), f = f_sub(x, f_sub(y, magic));
    fvec p = f_all(STATE_EXP2[6]);
    UNROLL for (int i = 5; i >= 0; i--) p = f_add(f_mul(p, f), f_all(STATE_EXP2[i]));
    return f_from_bits(i_add(f_bits(p), i_shl(f_bits(y), 23)));
}

/* r_ceil and r_keep (four_rows.h), of 16 rows. */
INLINE fvec f_ceil(fvec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF); }
INLINE fvec keep_of_states(fvec old, fvec top) {
    const __mmask16 near = _mm512_cmp_ps_mask(old, f_sub(top, f_all(QUIRE_DROP_BELOW)), _CMP_GE_OQ);
    return _mm512_maskz_mov_ps(near, exp2_of_states(f_sub(old, top)));
}

/* The scores of a strip's block become weights, e * scale of V. Tokens 16 u + j of all u and pages
 * are taken together, so that their sum is at hand in the order of `exponentials` and f_sum:
 * returns the sum of e. *top becomes the largest weight. `n`: pages present, `first` of them on. */
INLINE fvec weigh_block(const bool integers, const int n, int block, int first, const int strip,
                        fvec m, amx_work *w, fvec *top) {
    fvec step[PAGES], offset[PAGES], sums[16], most[4];
    UNROLL for (int p = 0; p < n; p++) {
        step[p] = f_load(w->step[first + p][strip]);
        offset[p] = f_load(w->offset[block * PAGES + first + p][strip]);
    }
    UNROLL for (int u = 0; u < 4; u++) most[u] = f_all(0);
    _Pragma("GCC unroll 1") for (int j = 0; j < 16; j++) {
        fvec x[4 * PAGES];
        UNROLL for (int i = 0; i < 4 * n; i++) {
            const int p = i / 4, t = i % 4 * 16 + j;
            x[i] = integers
                       ? f_fma(f_from_int(b_load(w->s.i[first + p][strip][t])), step[p], offset[p])
                       : f_load(w->s.f[first + p][strip][t]);
            x[i] = f_sub(x[i], m);
        }
        UNROLL for (int p = 0; p < n; p++) exp2_negative_each(4, x + 4 * p);
        fvec sum[4];
        UNROLL for (int u = 0; u < 4; u++) sum[u] = n == 1 ? x[u] : f_add(x[u], x[4 + u]);
        f_store(w->sums[j], f_add(f_add(sum[0], sum[1]), f_add(sum[2], sum[3])));
        UNROLL for (int i = 0; i < 4 * n; i++) {
            const int p = i / 4, t = i % 4 * 16 + j;
            x[i] = f_mul(
                x[i], f_from_bits(i_all((int32_t)w->pages.v_scale[block * PAGES + first + p][t])));
            most[i % 4] = f_max(most[i % 4], x[i]);
            f_store(w->s.f[first + p][strip][t], x[i]);
        }
    }
    *top = f_max(f_max(most[0], most[1]), f_max(most[2], most[3]));
    UNROLL for (int j = 0; j < 16; j++) sums[j] = f_load(w->sums[j]);
    UNROLL for (int half = 8; half > 0; half /= 2) UNROLL for (int j = 0; j < half; j++) sums[j] =
        f_add(sums[j], sums[j + half]);
    return sums[0];
}

/* Where tokens 4 n .. 4 n + 3 of a page are in a tile of V. */
INLINE int tile_row_of_quad(int n) { return n % 4 * 4 + n / 4; }

/* Weights as integers of two bytes; returns their sum. */
INLINE ivec put_weights_of_page(int block, int p, const int strip, fvec inverse, amx_work *w,
                                ivec total) {
    const fvec magic = f_all(QUIRE_ROUND_MAGIC);
    ivec sum[2] = {b_all(0), b_all(0)};
    for (int n = 0; n < T / 4; n++) {
        ivec x[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] =
            f_bits(f_fma(f_load(w->s.f[p][strip][4 * n + i]), inverse, magic));
        UNROLL for (int byte = 0; byte < 2; byte++) {
            const ivec bytes = interleave_bytes(x[0], x[1], x[2], x[3]);
            sum[byte] = _mm512_dpbusd_epi32(sum[byte], bytes, b_all(1));
            b_store(w->p8[block][1 - byte][p][strip][tile_row_of_quad(n)], bytes);
            UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_srli_epi32(x[i], 8);
        }
    }
    return i_add(total, i_add(sum[0], i_shl(sum[1], 8)));
}

/* What a block does to the states of a strip's rows. */
typedef struct strip_update {
    fvec m, new_m, keep, factor;
    __mmask16 alive;
} strip_update;

INLINE strip_update start_update(int block, const int strip, const amx_work *w) {
    const bool *present = w->pages.present + block * PAGES;
    strip_update u = {.m = f_all(QUIRE_NOTHING_SEEN)};
    for (int p = 0; p < PAGES; p++)
        if (present[p])
            u.m = f_max(u.m, f_load(w->largest[p][strip]));
    const fvec largest = f_load(w->m[strip]), old = f_ceil(largest), top = f_max(f_ceil(u.m), old);
    u.new_m = f_max(u.m, largest);
    u.keep = keep_of_states(old, top);
    u.factor = exp2_of_states(f_sub(u.m, top));
    u.alive = _mm512_cmp_ps_mask(u.m, f_all(QUIRE_NOTHING_SEEN), _CMP_GT_OQ) &
              _mm512_cmp_ps_mask(u.m, f_sub(largest, f_all(QUIRE_DROP_BELOW)), _CMP_GE_OQ);
    return u;
}

/* `sum` of 2^(logit - m); `step`: what a step of the integer weights is worth; their `total`. */
INLINE void finish_update(const quire_side_format *v, const strip_update *u, fvec sum, fvec step,
                          ivec total, int block, const int strip, amx_work *w) {
    block_update *update = &w->update[block];
    const fvec unit = f_mul(step, u->factor), none = f_all(0),
               constant = f_sub(none, f_mul(f_mul(f_all(v->mid), f_from_int(total)), unit));
    f_store(update->keep[strip], _mm512_mask_mov_ps(f_all(1), u->alive, u->keep));
    f_store(update->unit[strip], _mm512_maskz_mov_ps(u->alive, unit));
    _mm512_mask_storeu_ps(w->constant[strip], u->alive,
                          f_add(f_mul(f_load(w->constant[strip]), u->keep), constant));
    _mm512_mask_storeu_ps(w->l[strip], u->alive,
                          f_add(f_mul(f_load(w->l[strip]), u->keep), f_mul(sum, u->factor)));
    _mm512_mask_storeu_ps(w->m[strip], u->alive, u->new_m);
}

INLINE void finish_strip(const quire_side_format *v, const bool integers, int block,
                         const int strip, amx_work *w) {
    const bool *present = w->pages.present + block * PAGES;
    const int first = present[0] ? 0 : 1;
    const strip_update u = start_update(block, strip, w);
    fvec top;
    if (!u.alive) {
        f_store(w->update[block].keep[strip], f_all(1));
        f_store(w->update[block].unit[strip], f_all(0));
        return;
    }
    w->update[block].alive = true;
    const fvec sum = present[0] && present[1]
                         ? weigh_block(integers, 2, block, 0, strip, u.m, w, &top)
                         : weigh_block(integers, 1, block, first, strip, u.m, w, &top);
    const fvec steps = f_all(65535),
               inverse = f_where_above(top, 1e-30f, _mm512_div_ps(steps, top));
    ivec total = b_all(0);
    for (int p = 0; p < PAGES; p++)
        if (present[p])
            total = put_weights_of_page(block, p, strip, inverse, w, total);
        else
            for (int plane = 0; plane < 2; plane++)
                memset(w->p8[block][plane][p][strip], 0, TILE_BYTES);
    finish_update(v, &u, sum, _mm512_div_ps(top, steps), total, block, strip, w);
}

static void finish_wide_block(const quire_side_format *v, bool integers, int block, amx_work *w) {
    w->update[block].alive = false;
    if (integers)
        STRIPS_EACH finish_strip(v, true, block, strip, w);
    else
        STRIPS_EACH finish_strip(v, false, block, strip, w);
}

#endif
