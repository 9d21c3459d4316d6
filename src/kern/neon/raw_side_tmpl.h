/* Template, part of packed_tmpl.h: pairs of one raw and one quantized side: scores of raw K, and
 * raw V with fp32 weights, in the layouts of the integer ones. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_RAW_SIDE_TMPL_H
#define QUIRE_KERN_NEON_RAW_SIDE_TMPL_H

#include "kern/neon/page_scores_tmpl.h"
#include "kern/neon/softmax_tmpl.h"

INLINE void score_raw_page(const block *b, const quire_type type, const int rows,
                           const float *const q[SET], int p) {
    const int dim = b->job->format->k.dim, n_pairs = pairs_of(rows);
    const size_t row_bytes = (size_t)dim * (type == QUIRE_F32 ? 4 : 2);
    set_scores *score = &b->work->score[p];
    float32x4_t top[PAIRS];
    UNROLL for (int pair = 0; pair < n_pairs; pair++) top[pair] = vdupq_n_f32(QUIRE_NOTHING_SEEN);
    for (int t = 0; t < T; t += 4) {
        const uint8_t *k[4];
        float s[SET][4];
        for (int i = 0; i < 4; i++)
            k[i] = b->k[p] + (size_t)(t + i) * row_bytes;
        dots(type, rows, q, k, dim, s[0], 4);
        UNROLL for (int pair = 0; pair < n_pairs; pair++) {
            const float32x4_t s0 = vld1q_f32(s[2 * pair]);
            if (is_lone(rows, pair)) {
                vst1q_f32(score->s[pair][t / 4], s0);
                top[pair] = vmaxq_f32(top[pair], s0);
                continue;
            }
            const float32x4_t s1 = vld1q_f32(s[2 * pair + 1]);
            const float64x2_t r0 = vreinterpretq_f64_f32(s0), r1 = vreinterpretq_f64_f32(s1);
            vst1q_f32(score->s[pair][t / 2], vreinterpretq_f32_f64(vzip1q_f64(r0, r1)));
            vst1q_f32(score->s[pair][t / 2 + 1], vreinterpretq_f32_f64(vzip2q_f64(r0, r1)));
            top[pair] = vmaxq_f32(top[pair], vpmaxq_f32(s0, s1));
        }
    }
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const float32x4_t best = max_of_cells(top[pair], is_lone(rows, pair));
        put_scale(score, pair, best, best, vdupq_n_f32(1));
    }
}

INLINE void score_raw_set(const block *b, const int rows, int set) {
    const quire_type type = b->job->format->k.type;
    const float *q[SET];
    for (int r = 0; r < rows; r++)
        q[r] = query_row(b, b->job->q, set * SET + r);
    for (int p = b->from; p < b->from + b->n; p++) {
        if (type == QUIRE_F32)
            score_raw_page(b, QUIRE_F32, rows, q, p);
        else if (type == QUIRE_F16)
            score_raw_page(b, QUIRE_F16, rows, q, p);
        else
            score_raw_page(b, QUIRE_BF16, rows, q, p);
        apply_rules(b, rows, set, p);
    }
}

/* O of a set: o = o * keep + factor * sum over tokens of 2^(logit - m) * V. The weights are in
 * score.s. */
INLINE void weigh_raw(const block *b, const quire_type type, const int rows,
                      const float32x4_t *factor, const float32x4_t *keep, float *o) {
    const int dim = b->job->format->v.dim;
    const size_t row_bytes = (size_t)dim * (type == QUIRE_F32 ? 4 : 2);
    for (int c = 0; c < dim; c += 16) {
        float32x4_t acc[SET][4];
        UNROLL for (int i = 0; i < 4 * SET; i++) acc[i / 4][i % 4] = vdupq_n_f32(0);
        for (int p = b->from; p < b->from + b->n; p++)
            for (int t = 0; t < T; t++) {
                float32x4_t v[4];
                UNROLL for (int j = 0; j < 4; j++) v[j] =
                    load_elements(type, b->v[p] + (size_t)t * row_bytes, c + 4 * j);
                UNROLL for (int r = 0; r < rows; r++) {
                    float(*s)[4] = b->work->score[p].s[r / 2];
                    const float32x4_t weight = vld1q_dup_f32(
                        is_lone(rows, r / 2) ? &s[t / 4][t % 4] : &s[t / 2][2 * (r % 2) + t % 2]);
                    UNROLL for (int j = 0; j < 4; j++) acc[r][j] =
                        vfmaq_f32(acc[r][j], v[j], weight);
                }
            }
        UNROLL for (int pair = 0; pair < pairs_of(rows); pair++)
            UNROLL for (int j = 0; j < 8; j++) {
            const float64x2_t r0 = vreinterpretq_f64_f32(acc[2 * pair][j / 2]),
                              r1 = vreinterpretq_f64_f32(acc[2 * pair + 1][j / 2]);
            const float32x4_t x =
                vreinterpretq_f32_f64(j % 2 ? vzip2q_f64(r0, r1) : vzip1q_f64(r0, r1));
            float *at = o + ((size_t)(c / 2 + j) * PAIRS + (size_t)pair) * 4;
            vst1q_f32(at, vfmaq_f32(vmulq_f32(vld1q_f32(at), keep[pair]), x, factor[pair]));
        }
    }
}

INLINE void value_raw_set(const block *b, const int rows, int set, float *o) {
    const int n_pairs = pairs_of(rows);
    const quire_type type = b->job->format->v.type;
    set_state *st = &b->work->set[set];
    float32x4_t m[PAIRS], factor[PAIRS], keep[PAIRS];
    if (!enter_block(b, n_pairs, st, m, factor, keep))
        return;
    UNROLL for (int pair = 0; pair < n_pairs; pair++) st->l[pair] =
        vfmaq_f32(st->l[pair],
                  exponentials(b->work, NULL, 5, pair, is_lone(rows, pair), b->from, b->n, m[pair],
                               NULL, NULL),
                  factor[pair]);
    if (type == QUIRE_F32)
        weigh_raw(b, QUIRE_F32, rows, factor, keep, o);
    else if (type == QUIRE_F16)
        weigh_raw(b, QUIRE_F16, rows, factor, keep, o);
    else
        weigh_raw(b, QUIRE_BF16, rows, factor, keep, o);
}

#endif
