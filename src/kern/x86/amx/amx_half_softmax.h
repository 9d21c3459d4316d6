/* From the scores of a block to weights of one byte, both strips together (half_weights.h). */
#ifndef QUIRE_KERN_X86_AMX_HALF_SOFTMAX_H
#define QUIRE_KERN_X86_AMX_HALF_SOFTMAX_H

#include "kern/x86/amx/amx_scores.h"
#include "kern/x86/amx/amx_softmax.h"

/* Numbers of both strips, where each of `x` is half of a vector of fp16 as fp32. */
INLINE void to_strips(const fvec x[2], fvec strips[STRIPS]) {
    STRIPS_EACH {
        const int at = 4 * strip;
        const ivec order =
            _mm512_setr_epi32(at, at + 1, at + 2, at + 3, at + 8, at + 9, at + 10, at + 11, at + 16,
                              at + 17, at + 18, at + 19, at + 24, at + 25, at + 26, at + 27);
        strips[strip] = _mm512_permutex2var_ps(x[0], order, x[1]);
    }
}
INLINE void widen_halves(ivec h, fvec x[2]) {
    x[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
    x[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
}

/* Eight groups of tokens are summed in fp16 (half_weights.h). Of each, four lanes have two tokens
 * in either page, `i` of 0 and 1. */
INLINE int token_of(int group, int lane, int i) {
    return i * 32 + group / 4 * 16 + lane * 4 + group % 4;
}

/* Adds parts n .. 2n to parts 0 .. n. (One loop over n has gcc 13 warn of parts beyond the array.)
 */
INLINE void add_upper(const int n, fvec part[8][2]) {
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < 2; j++) part[i][j] =
        f_add(part[i][j], part[n + i][j]);
}

/* The scores become w of half_weights.h. sum[strip] becomes the sum of e, top[page] the largest w.
 * `n`: pages present, `first` of them on. */
INLINE void half_exponentials(const bool integers, bool logits, const int n, int block, int first,
                              const strip_update u[STRIPS], amx_work *w, fvec sum[STRIPS],
                              ivec top[PAGES]) {
    half_line line[PAGES][STRIPS];
    STRIPS_EACH UNROLL for (int p = 0; p < n; p++) line[p][strip] =
        h_line(logits ? f_all(1) : f_load(w->step[first + p][strip]),
               f_load(w->largest_score[first + p][strip]), f_load(w->largest[first + p][strip]),
               u[strip].m);
    UNROLL for (int p = 0; p < n; p++) top[p] = b_all(0);
    _Pragma("GCC unroll 1") for (int group = 0; group < 8; group++) {
        ivec four[4];
        if (group % 4 == 2)
            stay_awake(w);
        UNROLL for (int lane = 0; lane < 4; lane++) {
            ivec x[2 * PAGES];
            UNROLL for (int i = 0; i < 2 * n; i++) {
                const int p = i / 2, t = token_of(group, lane, i % 2);
                fvec y[STRIPS];
                STRIPS_EACH {
                    const fvec score = f_load(w->s.f[first + p][strip][t]);
                    y[strip] = f_fma(integers ? f_from_int(f_bits(score)) : score,
                                     line[p][strip].slope, line[p][strip].start);
                }
                x[i] = h_round_scores(y[0], y[1]);
            }
            h_exp2_each(2 * n, x);
            four[lane] = h_add(x[0], x[1]);
            if (n > 1)
                four[lane] = h_add(four[lane], h_add(x[2], x[3]));
            UNROLL for (int i = 0; i < 2 * n; i++) {
                const int p = i / 2, t = token_of(group, lane, i % 2);
                const uint32_t scale = w->pages.v_scale[block * PAGES + first + p][t];
                x[i] = h_mul(x[i], i_all((int32_t)scale));
                top[p] = h_max(top[p], x[i]);
                b_store(w->s.half[first + p][0][t], x[i]);
            }
        }
        b_store(w->sums[group], h_add(h_add(four[0], four[2]), h_add(four[1], four[3])));
    }
    fvec part[8][2];
    UNROLL for (int group = 0; group < 8; group++)
        widen_halves(b_load(w->sums[group]), part[group]);
    add_upper(4, part), add_upper(2, part), add_upper(1, part);
    to_strips(part[0], sum);
}

/* Weights of a page; adds their sums to `total`. */
INLINE void put_half_weights(int block, int p, ivec inverse, amx_work *w, ivec total[STRIPS]) {
    const ivec low = _mm512_set1_epi16(255);
    for (int n = 0; n < T / 4; n++) {
        ivec x[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] =
            h_weight(b_load(w->s.half[p][0][4 * n + i]), inverse);
        const ivec a = _mm512_ternarylogic_epi32(low, x[0], _mm512_slli_epi16(x[1], 8), 0xca),
                   b = _mm512_ternarylogic_epi32(low, x[2], _mm512_slli_epi16(x[3], 8), 0xca);
        const ivec bytes[STRIPS] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
        STRIPS_EACH {
            total[strip] = _mm512_dpbusd_epi32(total[strip], bytes[strip], b_all(1));
            b_store(w->p8[block][0][p][strip][tile_row_of_quad(n)], bytes[strip]);
        }
    }
}

/* `n`: pages present, `first` of them on. */
INLINE void finish_pages(const quire_side_format *v, const bool integers, bool logits, const int n,
                         int block, int first, const strip_update u[STRIPS], amx_work *w) {
    fvec sum[STRIPS], strips[PAGES][STRIPS], step[STRIPS];
    ivec top[PAGES], inverse[PAGES][STRIPS], total[STRIPS] = {b_all(0), b_all(0)};
    half_exponentials(integers, logits, n, block, first, u, w, sum, top);
    UNROLL for (int p = 0; p < n; p++) {
        fvec x[2];
        widen_halves(top[p], x);
        to_strips(x, strips[p]);
    }
    STRIPS_EACH {
        const fvec largest[PAGES] = {strips[0][strip], strips[n - 1][strip]};
        const half_steps steps = h_steps(n, largest, w->pages.v_unit + block * PAGES + first);
        UNROLL for (int p = 0; p < n; p++) inverse[p][strip] = h_from_floats(steps.inverse[p]);
        step[strip] = f_mul(steps.unit, f_all(v->unit / HALF_ONE));
    }
    UNROLL for (int p = 0; p < n; p++)
        put_half_weights(block, first + p, h_pack(inverse[p][0], inverse[p][1]), w, total);
    STRIPS_EACH finish_update(v, &u[strip], f_mul(sum[strip], f_all(1 / HALF_ONE)), step[strip],
                              total[strip], block, strip, w);
}

static void finish_half_block(const quire_side_format *v, score_kind as, int block, amx_work *w) {
    const bool *present = w->pages.present + block * PAGES;
    strip_update u[STRIPS];
    STRIPS_EACH u[strip] = start_update(block, strip, w);
    w->update[block].alive = u[0].alive | u[1].alive;
    if (!w->update[block].alive)
        return;
    for (int p = 0; p < PAGES; p++)
        if (!present[p])
            STRIPS_EACH memset(w->p8[block][0][p][strip], 0, TILE_BYTES);
    const int n = present[0] + present[1], first = present[0] ? 0 : 1;
    const bool integers = as == INTEGERS, logits = as == LOGITS;
    if (n == 2 && integers)
        finish_pages(v, true, false, 2, block, first, u, w);
    else if (n == 2)
        finish_pages(v, false, logits, 2, block, first, u, w);
    else
        finish_pages(v, integers, logits, 1, block, first, u, w);
}

#endif
