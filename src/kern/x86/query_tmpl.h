/* Template, part of packed_tmpl.h: a set of query rows as integers, bit for bit those of
 * quire__ref_quantize_query. */
#ifndef QUIRE_KERN_X86_QUERY_TMPL_H
#define QUIRE_KERN_X86_QUERY_TMPL_H

#include "kern/shared/channel_query.h"
#include "kern/x86/work_tmpl.h"

/* quire__channel_inverse of four rows. */
INLINE rvec channel_inverses(rvec magnitude) {
    return r_round_fp16(r_min(r_div(r_all(QUIRE_CHANNEL_STEPS), magnitude), r_all(QUIRE_F16_MAX)));
}

/* Of four rows from `row` of a set on: the centres, given in parts, and the steps. `first`: of the
 * job's rows. */
INLINE void store_steps(const ivec centre[ABREAST], rvec inverses, const x86_work *w, int p,
                        int first, int row, set_query *out) {
    _mm_storeu_si128((__m128i *)(void *)(out->centre[0] + row), i_sum_rows(centre));
    /* half a step, because the scores are doubled */
    const rvec unit = r_mul(r_load(w->q_unit + first), r_all(w->k_unit[p]));
    r_store(out->step[0] + row, r_mul(r_div(unit, inverses), r_all(0.5f)));
}

#include "kern/x86/half_query_tmpl.h"

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
    out->centre[g][row] = (int32_t)((uint32_t)per_step * (uint32_t)i_sum(total));
    out->step[g][row] = step * (twice_mid ? 0.5f : 1.0f);
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
        magnitude = f_max_abs(magnitude, x);
        sum = f_add(sum, x);
    }
    put_scale_group(kind, q, first, n, f_largest(magnitude), mid, row, g, out);
    out->offset[g][row] = f_sum(sum);
}

/* Twice the middle of every channel's codes, which a row's integers are multiplied by to centre its
 * scores: mixed blocks have wider codes in their first octet than in their second. Zero behind the
 * last channel. */
static void put_middles(const quire_side_format *k, uint8_t middle[QUIRE_DIM_MAX]) {
    memset(middle, 0, QUIRE_DIM_MAX);
    for (int d = 0; d < k->dim; d++)
        middle[d] = (uint8_t)(2 * quire__code_mid(k, d));
}

/* The integers of a row, nearest to y * inverse; returns their sum, weighted by the middles, in
 * parts. */
INLINE ivec put_channel_integers(const uint16_t *y, int dim, float inverse, const uint8_t *middle,
                                 int8_t *plane) {
    const fvec by = f_all(inverse), magic = f_all(QUIRE_ROUND_MAGIC);
    const __m128i dims = dim_order();
    const ivec order = b_repeat16(&dims);
    ivec centre = i_all(0);
    for (int d = 0; d < dim; d += VECTOR) { /* behind the last channel is room, and a middle of 0 */
        ivec x[4];
        EACH x[u] = i_sub(f_bits(f_fma(f_load_f16((const uint8_t *)(y + d + u * W)), by, magic)),
                          f_bits(magic));
        const ivec integers = b_lookup(b_narrow(x), order);
        b_store(plane + d, integers);
        centre = k_centre(centre, b_load(middle + d), integers);
    }
    return centre;
}

/* y of channel_query.h for n rows, first .. of the job, against page p; returns the largest of each
 * row. `dots`: q.zero. Rounding keeps the order of magnitudes, so that the largest is rounded
 * alone. */
INLINE rvec put_products(const int n, const quire_side_format *k, const float *q, x86_work *w,
                         int p, int first, rvec *dots) {
    const float *scale = w->k_scale[p], *zero = w->k_zero[p],
                *q_fp16 = w->q_fp16 + (size_t)first * (size_t)k->dim;
    uint16_t *y = w->scaled.y[p][0]; /* by a pointer: gcc knows that it meets no floats */
    const int dim = k->dim;
    fvec largest[ABREAST], dot[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) largest[r] = dot[r] = f_all(0);
    for (int d = 0; d < dim; d += W) {
        const fvec s = f_load(scale + d), z = f_load(zero + d);
        UNROLL for (int r = 0; r < n; r++) {
            const fvec x = f_mul(f_load(q_fp16 + r * dim + d), s);
            f_store_f16(y + r * QUIRE_DIM_MAX + d, x);
            largest[r] = f_max_abs(largest[r], x);
            dot[r] = f_fma(f_load(q + r * dim + d), z, dot[r]);
        }
    }
    *dots = f_sum_rows(dot);
    return r_round_fp16(f_largest_rows(largest));
}

INLINE void quantize_products(const int n, const quire_side_format *k, rvec magnitudes,
                              const x86_work *w, int p, int first, int row, set_query *out) {
    const rvec inverses = channel_inverses(magnitudes);
    float inverse[ABREAST];
    ivec centre[ABREAST];
    r_store(inverse, inverses);
    UNROLL for (int r = 0; r < ABREAST; r++) centre[r] =
        r < n ? put_channel_integers(w->scaled.y[p][r], k->dim, inverse[r], w->middle,
                                     out->plane[row + r][0])
              : i_all(0);
    store_steps(centre, inverses, w, p, first, row, out);
}

/* Rows first .. first+n of the job, `row` .. of their set, with the channel scales of pages from ..
 * from+n_pages folded in; the offset is q.zero. */
INLINE void quantize_rows(const int n, const quire_side_format *k, const float *q, x86_work *w,
                          int from, int n_pages, int first, int row) {
    rvec magnitudes[PAGES];
    for (int p = from; p < from + n_pages; p++) {
        rvec dots;
        magnitudes[p] = in_halves(k) ? half_products(n, k, q, w, p, first, &dots)
                                     : put_products(n, k, q, w, p, first, &dots);
        r_store(w->q[p].offset[0] + row, dots);
        fetch_step(&w->ahead);
    }
    for (int p = from; p < from + n_pages; p++)
        if (in_halves(k))
            quantize_half_products(n, k, magnitudes[p], w, p, first, row, &w->q[p]);
        else
            quantize_products(n, k, magnitudes[p], w, p, first, row, &w->q[p]);
}

/* The same for K of 8 bits, page p. */
INLINE void quantize_wide_rows(const int n, const quire_side_format *k, const float *q, x86_work *w,
                               int p, int row, set_query *out) {
    const float *scale = w->k_scale[p], *zero = w->k_zero[p];
    const int dim = k->dim;
    float magnitude[ABREAST];
    fvec largest[ABREAST], dot[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) largest[r] = dot[r] = f_all(0);
    for (int d = 0; d < dim; d += W) {
        const fvec s = f_load(scale + d), z = f_load(zero + d);
        UNROLL for (int r = 0; r < n; r++) {
            const fvec x = f_load(q + r * dim + d), y = f_mul(x, s);
            f_store(w->scaled.wide[r] + d, y);
            largest[r] = f_max_abs(largest[r], y);
            dot[r] = f_fma(x, z, dot[r]);
        }
    }
    fetch_step(&w->ahead);
    r_store(out->offset[0] + row, f_sum_rows(dot));
    r_store(magnitude, f_largest_rows(largest));
    UNROLL for (int r = 0; r < n; r++)
        put_scale_group(WIDE, w->scaled.wide[r], 0, dim, magnitude[r], k->mid, row + r, 0, out);
}

INLINE float dot_of(const float *a, const float *b, int dim) {
    fvec sum = f_all(0);
    for (int d = 0; d < dim; d += W)
        sum = f_fma(f_load(a + d), f_load(b + d), sum);
    return f_sum(sum);
}

/* Turns the scales of the block's pages into s' of channel_query.h, and notes what one unit of it
 * is worth. */
static void scales_to_fp16(const block *b) {
    const int dim = b->job->format->k.dim;
    x86_work *w = b->work;
    fvec most[ABREAST];
    uint16_t largest[2 * ABREAST];
    UNROLL for (int p = 0; p < ABREAST; p++) most[p] = f_all(0);
    UNROLL for (int p = 0; p < PAGES; p++) for (int d = 0; d < dim && b->record[p]; d += W)
        most[p] = f_max_abs(most[p], f_load(w->k_scale[p] + d));
    _mm_storeu_si128((__m128i *)(void *)largest,
                     _mm_cvtps_ph(f_largest_rows(most), _MM_FROUND_TO_NEAREST_INT));
    for (int p = b->from; p < b->from + b->n; p++) {
        const int exponent = quire__scale_exponent(largest[p]);
        const fvec by = f_all(quire__power_of_two(-exponent));
        float *scale = w->k_scale[p];
        for (int d = 0; d < dim; d += W) {
            const fvec s = f_mul(f_load(scale + d), by);
            f_store(scale + d, exponent > 0 ? f_round_fp16(s) : s); /* what grows loses no bits */
        }
        w->k_unit[p] = quire__power_of_two(exponent);
    }
}

/* q' of one row; returns what one unit of it is worth. */
static float query_to_fp16(const float *q, int dim, float *to) {
    fvec most = f_all(0);
    for (int d = 0; d < dim; d += W)
        most = f_max_abs(most, f_load(q + d));
    const int exponent = quire__query_exponent(f_largest(most));
    for (int d = 0; d < dim; d += W)
        f_store(to + d, f_round_fp16(f_mul(f_load(q + d), f_all(quire__query_factor(exponent)))));
    return quire__query_unit(exponent);
}

/* Row `row` of the job, to meet channel scales. */
static void put_query(const quire_side_format *k, const float *q, int row, x86_work *w) {
    w->q_unit[row] = in_halves(k)
                         ? query_to_halves(q, k->dim, (void *)(w->q_fp16 + row * QUIRE_DIM_MAX))
                         : query_to_fp16(q, k->dim, w->q_fp16 + row * k->dim);
}

/* One row where K has no channel scales: the same for every page. */
static void quantize_row(const quire_side_format *k, const float *q, int row, set_query *out) {
    for (int g = 0; g < k->n_groups; g++)
        quantize_scale_group(product_of(k), q, g * k->group, k->group, k->mid, row, g, out);
}

/* The rows of a set that starts at row `first` of the job, against pages from .. from+n_pages. */
static void quantize_set(const quire_side_format *k, const float *q, x86_work *w, int from,
                         int n_pages, int first, int rows) {
    for (int r = 0; r < rows; r += ABREAST) {
        const float *of_rows = q + r * k->dim;
        const int n = rows - r < ABREAST ? rows - r : ABREAST;
        UNROLL for (int i = 1; i <= ABREAST; i++) {
            if (n != i)
                continue;
            if (k->bits < 8)
                quantize_rows(i, k, of_rows, w, from, n_pages, first + r, r);
            for (int p = from; p < from + n_pages && k->bits == 8; p++)
                quantize_wide_rows(i, k, of_rows, w, p, r, &w->q[p]);
        }
    }
}

#endif
