/* Template, part of packed_tmpl.h: pairs of one raw and one quantized side: scores of raw K, and
 * raw V with fp32 weights, beside the integer ones. */
#ifndef QUIRE_KERN_X86_RAW_SIDE_TMPL_H
#define QUIRE_KERN_X86_RAW_SIDE_TMPL_H

#include "kern/x86/work_tmpl.h"

enum { AT_ONCE = TILE_SUMS / 4 }; /* rows that share a load of K or V */

INLINE void score_raw_page(const quire_type type, const uint8_t *k, int dim, const float *q,
                           int rows, float (*s)[BLOCK], int p) {
    const size_t row_bytes = (size_t)dim * quire__type_bytes(type);
    for (int t = 0; t < T; t += 4) {
        const uint8_t *at[4];
        for (int i = 0; i < 4; i++)
            at[i] = k + (size_t)(t + i) * row_bytes;
        for (int r = 0; r < rows; r += AT_ONCE) {
            const float *row[4];
            float dot[4][4];
            for (int i = 0; i < AT_ONCE; i++) /* a missing row repeats the one before */
                row[i] = q + (size_t)(r + i < rows ? r + i : r) * (size_t)dim;
            dots(type, AT_ONCE, row, at, dim, dot[0], 4);
            for (int i = 0; i < AT_ONCE && r + i < rows; i++)
                memcpy(s[r + i] + p * T + t, dot[i], sizeof dot[i]);
        }
    }
}

static void score_raw(const quire_side_format *k, const uint8_t *page, const float *q, int rows,
                      float (*s)[BLOCK], int p) {
    if (k->type == QUIRE_F32)
        score_raw_page(QUIRE_F32, page, k->dim, q, rows, s, p);
    else if (k->type == QUIRE_F16)
        score_raw_page(QUIRE_F16, page, k->dim, q, rows, s, p);
    else
        score_raw_page(QUIRE_BF16, page, k->dim, q, rows, s, p);
}

/* o = o * keep + factor * sum of e[t] * V[t] over the block's pages; channels d .. d+4W, or the
 * rest. */
INLINE void weigh_raw_vectors(const quire_type type, const int n, const block *b, const float *e,
                              float keep, float factor, float *o, int d) {
    const int dim = b->job->format->v.dim;
    const size_t row_bytes = (size_t)dim * quire__type_bytes(type);
    fvec acc[4];
    UNROLL for (int j = 0; j < n; j++) acc[j] = f_all(0);
    for (int p = b->from; p < b->from + b->n; p++)
        for (int t = 0; t < T; t++) {
            const uint8_t *at = b->v[p] + (size_t)t * row_bytes;
            UNROLL for (int j = 0; j < n; j++) acc[j] =
                f_fma(load_elements(type, at, d + j * W), f_all(e[p * T + t]), acc[j]);
        }
    UNROLL for (int j = 0; j < n; j++) f_store(
        o + d + j * W, f_fma(acc[j], f_all(factor), f_mul(f_load(o + d + j * W), f_all(keep))));
}

INLINE void weigh_raw_row(const quire_type type, const block *b, const float *e, float keep,
                          float factor, float *o) {
    int d = 0;
    for (; d + 4 * W <= b->job->format->v.dim; d += 4 * W)
        weigh_raw_vectors(type, 4, b, e, keep, factor, o, d);
    for (; d < b->job->format->v.dim; d += W)
        weigh_raw_vectors(type, 1, b, e, keep, factor, o, d);
}

static void weigh_raw(const block *b, const float *e /* (128) */, float keep, float factor,
                      float *o) {
    const quire_type type = b->job->format->v.type;
    if (type == QUIRE_F32)
        weigh_raw_row(QUIRE_F32, b, e, keep, factor, o);
    else if (type == QUIRE_F16)
        weigh_raw_row(QUIRE_F16, b, e, keep, factor, o);
    else
        weigh_raw_row(QUIRE_BF16, b, e, keep, factor, o);
}

#endif
