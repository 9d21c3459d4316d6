/* Template, part of packed_tmpl.h: a set of query rows as integers, bit for bit those of
 * quire__ref_quantize_query. */
#ifndef QUIRE_KERN_X86_QUERY_TMPL_H
#define QUIRE_KERN_X86_QUERY_TMPL_H

#include "kern/shared/channel_query.h"
#include "kern/x86/work_tmpl.h"

/* Channels first .. first+n of x, all with one scale: the integers nearest to x * inverse, each
 * worth `step`. */
INLINE void put_integers(const product kind, const float *x, int first, int n, float inverse,
                         float step, float mid, int row, int g, set_query *out) {
    const fvec by = f_all(inverse), magic = f_all(QUIRE_ROUND_MAGIC);
    ivec total = i_all(0);
    for (int d = first; d < first + n; d += 16) {
        ivec y[16 / W];
        UNROLL for (int j = 0; j < 16 / W; j++) {
            y[j] = i_sub(f_bits(f_fma(f_load(x + d + j * W), by, magic)), f_bits(magic));
            total = i_add(total, y[j]);
        }
        k_store(kind, y, out->plane[row][0] + d, out->plane[row][1] + d);
    }
    /* Scores are doubled where the middle is a half, so that they stay integers. Modulo 2^32, like
     * the products. */
    const int32_t twice_mid = (int32_t)(2 * mid), bias = kind == SMALL ? 0 : K_BIAS;
    const int32_t per_step = twice_mid ? twice_mid + 2 * bias : bias;
    out->centre[row][g] = (int32_t)((uint32_t)per_step * (uint32_t)i_sum(total));
    out->step[row][g] = step * (twice_mid ? 0.5f : 1.0f);
}

/* What mixed blocks add to a row's centre: the middles of their codes differ from the others' by
 * 2^(bits-1), or -2^(bits-2). */
static int32_t mixed_centre(const quire_side_format *k, const int8_t *integers) {
    int32_t sum = 0;
    for (int b = 0; b < k->n_mixed; b++)
        for (int i = 0; i < 8; i++)
            sum += 2 * integers[16 * b + i] - integers[16 * b + 8 + i];
    return sum * (1 << (k->bits - 1)); /* centres are doubled */
}

/* The same with the scale that the largest, `magnitude`, requires: one scale group of the
 * reference. */
INLINE void put_scale_group(const product kind, const float *x, int first, int n, float magnitude,
                            float mid, int row, int g, set_query *out) {
    const float steps = kind == WIDE ? 127 * 128 : 127;
    /* As in the reference: 127 / magnitude must stay finite. */
    const bool zero = magnitude < 1e-30f;
    put_integers(kind, x, first, n, zero ? 0 : steps / magnitude, zero ? 0 : magnitude / steps, mid,
                 row, g, out);
}

/* One scale group of a row; the offset is the sum of q. */
INLINE void quantize_scale_group(const product kind, const float *q, int first, int n, float mid,
                                 int row, int g, set_query *out) {
    fvec magnitude = f_all(0), sum = magnitude;
    for (int d = first; d < first + n; d += W) {
        const fvec x = f_load(q + d);
        magnitude = f_max(magnitude, f_abs(x));
        sum = f_add(sum, x);
    }
    put_scale_group(kind, q, first, n, f_largest(magnitude), mid, row, g, out);
    out->offset[row][g] = f_sum(sum);
}

/* A row with a page's channel scales folded in; the offset is q.zero. `fp16`: q and scales are
 * rounded to fp16 as channel_query.h defines. */
INLINE void quantize_channels(const product kind, const bool fp16, const float *q,
                              const float *q_fp16, float unit, const float *scale,
                              const float *zero, int dim, float mid, int row, float *scaled,
                              set_query *out) {
    fvec largest = f_all(0), dot = largest;
    for (int d = 0; d < dim; d += W) {
        const fvec x = f_load(q + d),
                   exact = f_mul(fp16 ? f_load(q_fp16 + d) : x, f_load(scale + d));
        const fvec y = fp16 ? f_round_fp16(exact) : exact;
        f_store(scaled + d, y);
        largest = f_max(largest, f_abs(y));
        dot = f_fma(x, f_load(zero + d), dot);
    }
    const float magnitude = f_largest(largest);
    if (fp16) {
        const float inverse = quire__channel_inverse(magnitude);
        put_integers(kind, scaled, 0, dim, inverse, unit / inverse, mid, row, 0, out);
    } else {
        put_scale_group(kind, scaled, 0, dim, magnitude, mid, row, 0, out);
    }
    out->offset[row][0] = f_sum(dot);
}

INLINE float dot_of(const float *a, const float *b, int dim) {
    fvec sum = f_all(0);
    for (int d = 0; d < dim; d += W)
        sum = f_fma(f_load(a + d), f_load(b + d), sum);
    return f_sum(sum);
}

/* Turns a page's scales into s' of channel_query.h; returns what one unit of it is worth. */
static float scales_to_fp16(float *scale, int dim) {
    fvec most = f_all(0);
    for (int d = 0; d < dim; d += W)
        most = f_max(most, f_abs(f_load(scale + d)));
    const int exponent = quire__scale_exponent(quire__f32_to_f16(f_largest(most)));
    for (int d = 0; d < dim; d += W)
        f_store(scale + d,
                f_round_fp16(f_mul(f_load(scale + d), f_all(quire__power_of_two(-exponent)))));
    return quire__power_of_two(exponent);
}

/* q' of one row; returns what one unit of it is worth. */
static float query_to_fp16(const float *q, int dim, float *to) {
    fvec most = f_all(0);
    for (int d = 0; d < dim; d += W)
        most = f_max(most, f_abs(f_load(q + d)));
    const int exponent = quire__query_exponent(f_largest(most));
    for (int d = 0; d < dim; d += W)
        f_store(to + d, f_round_fp16(f_mul(f_load(q + d), f_all(quire__query_factor(exponent)))));
    return quire__query_unit(exponent);
}

/* i: index of the row among all rows; `row`: in its set. */
static void quantize_row(const quire_side_format *k, const product kind, const float *q,
                         x86_work *w, int p, int i, int row, set_query *out) {
    if (k->family == QUIRE_FAMILY_CHANNEL && kind == SMALL) {
        quantize_channels(SMALL, true, q, w->q_fp16 + (size_t)i * (size_t)k->dim,
                          w->q_unit[i] * w->k_unit[p], w->k_scale[p], w->k_zero[p], k->dim, k->mid,
                          row, w->scaled, out);
        out->centre[row][0] += mixed_centre(k, out->plane[row][0]);
        return;
    }
    if (k->family == QUIRE_FAMILY_CHANNEL) {
        quantize_channels(WIDE, false, q, NULL, 0, w->k_scale[p], w->k_zero[p], k->dim, k->mid, row,
                          w->scaled, out);
        return;
    }
    for (int g = 0; g < k->n_groups; g++)
        quantize_scale_group(kind, q, g * k->group, k->group, k->mid, row, g, out);
}

#endif
