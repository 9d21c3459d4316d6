/* Template, part of packed_tmpl.h: from logits to the integer weights of one block: block maximum,
 * 2^(s - max), times the scale of V, as u8 or two u8 planes. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_SOFTMAX_TMPL_H
#define QUIRE_KERN_NEON_SOFTMAX_TMPL_H

#include "kern/neon/load_block_tmpl.h"

/* Enters a block's maximum m into the state: what is there gets the factor `keep`, the block's own
 * part the factor `factor`. l is already rescaled. Returns false if no row gains anything. */
INLINE bool enter_block(const block *b, const int n_pairs, set_state *st, float32x4_t *m,
                        float32x4_t *factor, float32x4_t *keep) {
    bool any = false;
    for (int pair = 0; pair < n_pairs; pair++) {
        m[pair] = b->work->score[b->from].peak[pair];
        for (int p = b->from + 1; p < b->from + b->n; p++)
            m[pair] = vmaxq_f32(m[pair], b->work->score[p].peak[pair]);
        const float32x4_t old = st->m[pair], top = vmaxq_f32(m[pair], old);
        /* dropped: nothing visible, or too small to matter */
        const uint32x4_t alive =
            vandq_u32(vcgtq_f32(m[pair], vdupq_n_f32(QUIRE_NOTHING_SEEN)),
                      vcgeq_f32(m[pair], vsubq_f32(old, vdupq_n_f32(QUIRE_DROP_BELOW))));
        factor[pair] = vreinterpretq_f32_u32(
            vandq_u32(vreinterpretq_u32_f32(exp2_exact(vsubq_f32(m[pair], top))), alive));
        keep[pair] = exp2_exact(vsubq_f32(old, top));
        any = any || vmaxvq_u32(alive) != 0;
        st->m[pair] = top;
        st->l[pair] = vmulq_f32(st->l[pair], keep[pair]);
    }
    return any;
}

/* Turns s into 2^(logit - m), or, given the scales of V, into the weight 2^(logit - m) * scale, and
 * finds the largest weight on the way. Four chains in lock step, because a single one is bound by
 * latency. Returns the sum of 2^(logit - m), two parts per row. */
INLINE float32x4_t exponentials(neon_work *w, const float *scale /* (128) or NULL */,
                                const int degree, int pair, const bool lone, int first, int n,
                                float32x4_t m, float32x4_t *largest,
                                const uint8_t *ahead /* partly fetched meanwhile; or NULL */) {
    const int lines = lone ? 12 : 6;
    /* Of sums: one lane adds tokens t, t + 8, t + 16 .. of a page. */
    const int chains = lone ? 2 : 4;
    float32x4_t sum[4], top[4];
    EACH sum[u] = top[u] = vdupq_n_f32(0);
    for (int p = first; p < first + n; p++) {
        set_scores *score = &w->score[p];
        const float32x4_t best = score->top[pair], step = score->step[pair];
        float gap[4];
        vst1q_f32(gap, vsubq_f32(score->peak[pair], m));
        for (int i = 0; i < cells_of(lone); i += 4) {
            float32x4_t e[4];
            if (ahead) {
                UNROLL for (int j = 0; j < lines; j++) __builtin_prefetch(ahead + 64 * j, 0, 2);
                ahead += 64 * lines;
            }
            EACH e[u] = vsubq_f32(vld1q_f32(score->s[pair][i + u]), best);
            EACH e[u] = vfmaq_f32(fresh(gap), e[u], step);
            exp2_neg4(e, degree, 0);
            EACH sum[u % chains] = vaddq_f32(sum[u % chains], e[u]);
            if (scale) {
                EACH e[u] = vmulq_f32(e[u], tokens_of(scale + p * T, i + u, lone));
                EACH top[u] = vmaxq_f32(top[u], e[u]);
            }
            EACH vst1q_f32(score->s[pair][i + u], e[u]);
        }
    }
    if (scale)
        *largest =
            max_of_cells(vmaxq_f32(vmaxq_f32(top[0], top[1]), vmaxq_f32(top[2], top[3])), lone);
    if (lone)
        return vaddq_f32(parts_of_cells(sum[0], true), parts_of_cells(sum[1], true));
    return vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3]));
}

INLINE float32x4_t largest_weight(const neon_work *w, const float *scale /* (128) */, int pair,
                                  const bool lone, int first, int n) {
    float32x4_t largest[4];
    EACH largest[u] = vdupq_n_f32(0);
    for (int p = first; p < first + n; p++)
        for (int i = 0; i < cells_of(lone); i += 4)
            EACH largest[u] =
                vmaxq_f32(largest[u], vmulq_f32(vld1q_f32(w->score[p].s[pair][i + u]),
                                                tokens_of(scale + p * T, i + u, lone)));
    return max_of_cells(
        vmaxq_f32(vmaxq_f32(largest[0], largest[1]), vmaxq_f32(largest[2], largest[3])), lone);
}

/* The 8 tokens of a V atom: column c of half h holds tokens 32h+4c+{0..3} and 32h+16+4c+{0..3}.
 * Returns the first of them, as a token pair. */
INLINE int first_pair_of(int atom) { return atom / 4 * 16 + atom % 4 * 2; }

/* From bytes [r0 t01][r1 t01][r0 t23][r1 t23].. to row 0's eight tokens, then row 1's. */
static const uint8_t ROW_ORDER[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};

/* The weights of an atom's tokens as 16-bit integers: four tokens in each of x[0] and x[1], ordered
 * as in their cells, or for a lone row all eight in x[0]. */
INLINE void weights_of_atom(const neon_work *w, const float *scale, int pair, const bool lone,
                            int p, int atom, float32x4_t inverse, uint16x8_t x[2]) {
    const int cells = lone ? 2 : 4;
    int32x4_t v[4];
    UNROLL for (int j = 0; j < cells; j++) {
        const int cell =
            lone ? first_pair_of(atom) / 2 + 4 * j : first_pair_of(atom) + 8 * (j / 2) + j % 2;
        float32x4_t weight = vld1q_f32(w->score[p].s[pair][cell]);
        if (scale)
            weight = vmulq_f32(weight, tokens_of(scale + p * T, cell, lone));
        v[j] = as_s32(vfmaq_f32(fresh(MAGIC), weight, inverse));
    }
    UNROLL for (int j = 0; j < cells; j += 2) x[j / 2] =
        vuzp1q_u16(vreinterpretq_u16_s32(v[j]), vreinterpretq_u16_s32(v[j + 1]));
}

/* High bytes of eight 16-bit numbers, then low ones. */
static const uint8_t PLANES_APART[16] = {1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14};

/* Operands of one page; adds the integers to *total. */
INLINE void weights_of_page(neon_work *w, const float *scale /* NULL: s holds weights */,
                            const int rows, const int planes, int pair, const bool lone, int p,
                            float32x4_t inverse, uint32x4_t *total) {
    const int n_pairs = pairs_of(rows);
    const uint8x16_t order = vld1q_u8(ROW_ORDER), planes_apart = vld1q_u8(PLANES_APART);
    UNROLL for (int atom = 0; atom < 8; atom++) {
        uint16x8_t x[2];
        uint8x16_t low, high;
        weights_of_atom(w, scale, pair, lone, p, atom, inverse, x);
        if (is_folded(rows, planes)) {
            put_operand(w->p8[p * 8 + atom][0],
                        vqtbl1q_u8(vreinterpretq_u8_u16(x[0]), planes_apart));
            *total = vpadalq_u16(*total, x[0]);
            continue;
        }
        if (lone) { /* the other row's weights are zero */
            low = vuzp1q_u8(vreinterpretq_u8_u16(x[0]), vdupq_n_u8(0));
            high = vuzp2q_u8(vreinterpretq_u8_u16(x[0]), vdupq_n_u8(0));
        } else {
            low = vqtbl1q_u8(vuzp1q_u8(vreinterpretq_u8_u16(x[0]), vreinterpretq_u8_u16(x[1])),
                             order);
            high = vqtbl1q_u8(vuzp2q_u8(vreinterpretq_u8_u16(x[0]), vreinterpretq_u8_u16(x[1])),
                              order);
        }
        *total = vpadalq_u16(*total, vpaddlq_u8(low));
        if (planes == 1) {
            put_operand(w->p8[p * 8 + atom][pair], low);
        } else {
            put_operand(w->p8[p * 8 + atom][pair], high);
            put_operand(w->p8[p * 8 + atom][n_pairs + pair], low);
            *total = vaddq_u32(*total, vshlq_n_u32(vpaddlq_u16(vpaddlq_u8(high)), 8));
        }
    }
}

#endif
