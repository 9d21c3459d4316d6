/* Query rows as integers, bit for bit those of query_tmpl.h, 32 rows at a time. */
#ifndef QUIRE_KERN_X86_AMX_QUERIES_H
#define QUIRE_KERN_X86_AMX_QUERIES_H

#include "base/real.h"
#include "kern/shared/channel_query.h"
#include "kern/x86/amx/amx_half.h"
#include "kern/x86/amx/amx_work.h"

/* ------------------------------------------------------------------ transposed rows */

#ifndef QUIRE_EMULATED
INLINE void transpose_vectors(fvec x[16]) {
    fvec y[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int j = 0; j < 2; j++) {
        const __m512d a = _mm512_castps_pd(y[i + j]), b = _mm512_castps_pd(y[i + 2 + j]);
        x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 2; j++) {
        y[8 * j + i] = _mm512_shuffle_f32x4(x[8 * j + i], x[8 * j + 4 + i], 0x88);
        y[8 * j + 4 + i] = _mm512_shuffle_f32x4(x[8 * j + i], x[8 * j + 4 + i], 0xdd);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0x88);
        x[8 + i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0xdd);
    }
}
#else
static void transpose_vectors(fvec x[16]) {
    float y[16][16], z[16][16];
    for (int i = 0; i < 16; i++)
        f_store(y[i], x[i]);
    for (int i = 0; i < 256; i++)
        z[i % 16][i / 16] = y[i / 16][i % 16];
    for (int i = 0; i < 16; i++)
        x[i] = f_load(z[i]);
}
#endif

/* n rows (at most 16) of `dim` numbers to [dim][16]; rows beyond are zeros. */
static void rows_to_strip(const float *rows, int n, int dim, strip_rows *to) {
    for (int d = 0; d < dim; d += 16) {
        fvec x[16];
        for (int i = 0; i < 16; i++)
            x[i] = i < n ? f_load(rows + (size_t)i * (size_t)dim + d) : f_all(0);
        transpose_vectors(x);
        for (int i = 0; i < 16; i++)
            f_store(to[d + i], x[i]);
    }
}
static void strip_to_rows(strip_rows *from, int n, int dim, float *rows) {
    for (int d = 0; d < dim; d += 16) {
        fvec x[16];
        for (int i = 0; i < 16; i++)
            x[i] = f_load(from[d + i]);
        transpose_vectors(x);
        for (int i = 0; i < n; i++)
            f_store(rows + (size_t)i * (size_t)dim + d, x[i]);
    }
}

/* ------------------------------------------------------------------ integers */

/* Four vectors of 16 rows, of which the low bytes count, as a row of a B tile: [row][4]. */
INLINE ivec interleave_bytes(ivec a, ivec b, ivec c, ivec d) {
    const ivec low = i_all(0x000000ff), second = i_all(0x0000ffff), third = i_all(0x00ffffff);
    ivec x = _mm512_ternarylogic_epi32(low, a, i_shl(b, 8), 0xca);
    x = _mm512_ternarylogic_epi32(second, x, i_shl(c, 16), 0xca);
    return _mm512_ternarylogic_epi32(third, x, i_shl(d, 24), 0xca);
}

INLINE ivec nearest(fvec x, fvec factor) {
    const fvec magic = f_all(QUIRE_ROUND_MAGIC);
    return i_sub(f_bits(f_fma(x, factor, magic)), f_bits(magic));
}

INLINE fvec largest_magnitude(strip_rows *x, int dim) {
    fvec most = f_all(0);
    for (int d = 0; d < dim; d++)
        most = f_max(most, f_abs(f_load(x[d])));
    return most;
}

/* a / b where the magnitude is not almost nothing, else 0, as put_scale_group has it. */
INLINE fvec unless_tiny(fvec magnitude, fvec a, fvec b) {
    return f_where_least(magnitude, 1e-30f, _mm512_div_ps(a, b));
}

/* q' of channel_query.h, and what a unit of it is worth. */
static void queries_to_halves(set_queries *set, int dim) {
    fvec factor[STRIPS];
    STRIPS_EACH {
        const ivec bits = f_bits(largest_magnitude(set->q[strip], dim));
        const ivec exponent = _mm512_max_epi32(i_sub(_mm512_srli_epi32(bits, 23), i_all(127)),
                                               i_all(-100)); /* quire__query_exponent */
        factor[strip] = f_from_bits(i_shl(i_sub(i_all(127 + 12), exponent), 23));
        f_store(set->unit[strip], f_from_bits(i_shl(i_add(exponent, i_all(127 - 12)), 23)));
    }
    for (int d = 0; d < dim; d++) {
        ivec h[STRIPS];
        STRIPS_EACH h[strip] = h_from_floats(f_mul(f_load(set->q[strip][d]), factor[strip]));
        b_store(set->half[d], h_pack(h[0], h[1]));
    }
}

/* TOKEN: the integers of q alone, channels 0 2 1 3 in each four. */
static void quantize_alone(set_queries *set, int dim) {
    STRIPS_EACH {
        const fvec magnitude = largest_magnitude(set->q[strip], dim), steps = f_all(127);
        const fvec inverse = unless_tiny(magnitude, steps, magnitude);
        f_store(set->unit[strip], unless_tiny(magnitude, magnitude, steps));
        for (int d = 0; d < dim; d += 4) {
            ivec x[4];
            UNROLL for (int i = 0; i < 4; i++) x[i] =
                nearest(f_load(set->q[strip][d + i]), inverse);
            b_store(set->q8[d / PART][strip][d % PART / 4],
                    interleave_bytes(x[0], x[2], x[1], x[3]));
        }
    }
}

static void load_queries(const quire_attend_job *job, int first, set_queries *set) {
    const quire_side_format *k = &job->format->k;
    const size_t dim = (size_t)k->dim;
    const float *scored = k->rotated ? job->q_rotated : job->q;
    const int n = job->n_rows * job->n_group - first;
    memset(set->q8, 0, sizeof set->q8); /* channels beyond D meet zeros */
    STRIPS_EACH {
        const int at = first + strip * STRIP, left = n - strip * STRIP;
        rows_to_strip(scored + (size_t)at * dim,
                      left < 0       ? 0
                      : left < STRIP ? left
                                     : STRIP,
                      k->dim, set->q[strip]);
    }
    if (kind_of(k) == CHANNEL)
        queries_to_halves(set, k->dim);
    if (kind_of(k) != TOKEN)
        return;
    quantize_alone(set, k->dim);
    STRIPS_EACH { /* the means of K are not rotated */
        const int at = first + strip * STRIP, left = n - strip * STRIP;
        rows_to_strip(job->q + (size_t)at * dim,
                      left < 0       ? 0
                      : left < STRIP ? left
                                     : STRIP,
                      k->dim, set->q[strip]);
    }
}

/* ------------------------------------------------------------------ against a page */

/* CHANNEL: integers of q' s', and what a step of a doubled score is worth. */
static void quantize_channel(const set_queries *set, int dim, int page, int p, amx_work *w) {
    const uint32_t *scale = w->pages.k_scale[page];
    ivec most[4], h[STRIPS];
    UNROLL for (int i = 0; i < 4; i++) most[i] = b_all(0);
    for (int d = 0; d < dim; d += 4)
        UNROLL for (int i = 0; i < 4; i++) most[i] =
            h_max(most[i], h_abs(h_mul(b_load(set->half[d + i]), i_all((int32_t)scale[d + i]))));
    const ivec m = h_max(h_max(most[0], most[1]), h_max(most[2], most[3]));
    STRIPS_EACH { /* quire__channel_inverse */
        const fvec magnitude = h_to_floats(h_strip(m, strip));
        h[strip] = h_from_floats(_mm512_min_ps(_mm512_div_ps(f_all(QUIRE_CHANNEL_STEPS), magnitude),
                                               f_all(QUIRE_F16_MAX)));
        const fvec unit = f_mul(f_load(set->unit[strip]), f_all(w->pages.k_unit[page]));
        f_store(w->step[p][strip], f_mul(_mm512_div_ps(unit, h_to_floats(h[strip])), f_all(0.5f)));
    }
    const ivec inverse = h_pack(h[0], h[1]), low = _mm512_set1_epi16(255);
    for (int d = 0; d < dim; d += 4) {
        ivec x[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] =
            h_round_product(h_mul(b_load(set->half[d + i]), i_all((int32_t)scale[d + i])), inverse);
        /* channels 0 2 1 3 */
        const ivec a = _mm512_ternarylogic_epi32(low, x[0], _mm512_slli_epi16(x[2], 8), 0xca),
                   b = _mm512_ternarylogic_epi32(low, x[1], _mm512_slli_epi16(x[3], 8), 0xca);
        b_store(w->q8[0][d / PART][0][d % PART / 4], _mm512_unpacklo_epi16(a, b));
        b_store(w->q8[0][d / PART][1][d % PART / 4], _mm512_unpackhi_epi16(a, b));
    }
}

/* WIDE: 15-bit integers of q times the scales, x = 128 plane 0 + plane 1. */
static void quantize_wide(set_queries *set, int dim, int page, int p, amx_work *w) {
    const float *scale = (const float *)(const void *)w->pages.k_scale[page];
    STRIPS_EACH {
        strip_rows *q = set->q[strip];
        const fvec steps = f_all(127 * 128);
        fvec most = f_all(0);
        for (int d = 0; d < dim; d++)
            most = f_max(most, f_abs(f_mul(f_load(q[d]), f_all(scale[d]))));
        const fvec inverse = unless_tiny(most, steps, most);
        f_store(w->step[p][strip], unless_tiny(most, most, steps));
        for (int d = 0; d < dim; d += 4) {
            ivec high[4], low[4];
            UNROLL for (int i = 0; i < 4; i++) {
                const ivec x = nearest(f_mul(f_load(q[d + i]), f_all(scale[d + i])), inverse);
                high[i] = _mm512_srai_epi32(i_add(x, i_all(64)), 7);
                low[i] = i_sub(x, i_shl(high[i], 7));
            }
            b_store(w->q8[0][d / PART][strip][d % PART / 4],
                    interleave_bytes(high[0], high[1], high[2], high[3]));
            b_store(w->q8[1][d / PART][strip][d % PART / 4],
                    interleave_bytes(low[0], low[1], low[2], low[3]));
        }
    }
}

/* q.zero of every page: 16 running sums, then a tree, as f_sum has it. */
static void zero_products(const set_queries *set, int dim, amx_work *w) {
    static const int HALF = CHUNK / 2; /* pages at a time: sums stay in registers */
    STRIPS_EACH for (int page = 0; page < CHUNK; page += HALF) {
        strip_rows part[16][8];
        for (int j = 0; j < 16; j++) {
            fvec acc[8];
            UNROLL for (int p = 0; p < 8; p++) acc[p] = f_all(0);
            for (int d = j; d < dim; d += 16) {
                const fvec x = f_load(set->q[strip][d]);
                UNROLL for (int p = 0; p < 8; p++) acc[p] =
                    f_fma(x, f_all(w->pages.k_zero[d][page + p]), acc[p]);
            }
            UNROLL for (int p = 0; p < 8; p++) f_store(part[j][p], acc[p]);
        }
        for (int p = 0; p < 8; p++) {
            fvec x[16];
            UNROLL for (int j = 0; j < 16; j++) x[j] = f_load(part[j][p]);
            UNROLL for (int n = 8; n > 0; n /= 2) UNROLL for (int j = 0; j < n; j++) x[j] =
                f_add(x[j], x[j + n]);
            f_store(w->offset[page + p][strip], x[0]);
        }
    }
}

#endif
