/* Query rows as integers, bit for bit those of query_tmpl.h, 32 rows at a time. */
#ifndef QUIRE_KERN_X86_AMX_QUERIES_H
#define QUIRE_KERN_X86_AMX_QUERIES_H

#include "base/real.h"
#include "kern/shared/channel_query.h"
#include "kern/x86/half.h"
#include "kern/x86/amx/amx_transpose.h"

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
        most = f_max_abs(most, f_load(x[d]));
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
    memset(set->q8, 0, sizeof set->q8); /* channels beyond D meet zeros */
    STRIPS_EACH {
        const int at = first + strip * STRIP;
        rows_to_strip(scored + (size_t)at * dim, strip_size(job, at), k->dim, set->q[strip]);
    }
    if (kind_of(k) == CHANNEL)
        queries_to_halves(set, k->dim);
    if (kind_of(k) != TOKEN)
        return;
    quantize_alone(set, k->dim);
    STRIPS_EACH { /* the means of K are not rotated */
        const int at = first + strip * STRIP;
        rows_to_strip(job->q + (size_t)at * dim, strip_size(job, at), k->dim, set->q[strip]);
    }
}

/* ------------------------------------------------------------------ against a page */

/* CHANNEL: integers of q' s', and what a step of a doubled score is worth. */
static void quantize_channel(const set_queries *set, int dim, int page, int p, amx_work *w) {
    const uint32_t *scale = w->pages.k_scale[page];
    const char *codes = (const char *)k_tiles(&w->pages, parts_of(dim), page); /* needed next */
    ivec most[4], h[STRIPS];
    if (p == 0)
        stay_awake(w);
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
        fetch_lines(codes + d * TILE_ROW_BYTES, 4);
        UNROLL for (int i = 0; i < 4; i++) x[i] =
            h_round_product(h_mul(b_load(set->half[d + i]), i_all((int32_t)scale[d + i])), inverse);
        /* channels 0 2 1 3 */
        const ivec a = _mm512_ternarylogic_epi32(low, x[0], _mm512_slli_epi16(x[2], 8), 0xca),
                   b = _mm512_ternarylogic_epi32(low, x[1], _mm512_slli_epi16(x[3], 8), 0xca);
        b_store(w->q8[0][d / PART][0][d % PART / 4], _mm512_unpacklo_epi16(a, b));
        b_store(w->q8[0][d / PART][1][d % PART / 4], _mm512_unpackhi_epi16(a, b));
    }
}

/* The bytes 0 and 1 of four vectors of 16 rows, each as a row of a B tile: [row][4]. */
INLINE void split_bytes(const ivec x[4], ivec *low, ivec *high) {
    const ivec half = i_all(0xffff), order = b_repeat16((const uint8_t[16]){
                                         0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
    ivec pair[2];
    UNROLL for (int i = 0; i < 2; i++) pair[i] = _mm512_shuffle_epi8(
        _mm512_ternarylogic_epi32(half, x[2 * i], i_shl(x[2 * i + 1], 16), 0xca), order);
    *low = _mm512_ternarylogic_epi32(half, pair[0], i_shl(pair[1], 16), 0xca);
    *high = _mm512_ternarylogic_epi32(half, _mm512_srli_epi32(pair[0], 16), pair[1], 0xca);
}

/* WIDE: 15-bit integers of q times the scales, x = 256 high + low, of which the low byte is
 * unsigned: the two lowest bytes of the rounded number as they are. */
static void quantize_wide(set_queries *set, int dim, int page, int p, amx_work *w) {
    const float *scale = (const float *)(const void *)w->pages.k_scale[page];
    const char *codes = (const char *)k_tiles(&w->pages, parts_of(dim), page); /* needed next */
    const fvec steps = f_all(127 * 128), magic = f_all(QUIRE_ROUND_MAGIC);
    STRIPS_EACH {
        strip_rows *q = set->q[strip];
        fvec most[4];
        UNROLL for (int i = 0; i < 4; i++) most[i] = f_all(0);
        for (int d = 0; d < dim; d += 4)
            UNROLL for (int i = 0; i < 4; i++) most[i] =
                f_max_abs(most[i], f_mul(f_load(q[d + i]), f_all(scale[d + i])));
        const fvec largest = f_max(f_max(most[0], most[1]), f_max(most[2], most[3]));
        const fvec inverse = unless_tiny(largest, steps, largest);
        f_store(w->step[p][strip], unless_tiny(largest, largest, steps));
        for (int d = 0; d < dim; d += 4) {
            ivec x[4], low, high;
            fetch_lines(codes + (strip * dim + d) / STRIPS * TILE_ROW_BYTES, 2);
            UNROLL for (int i = 0; i < 4; i++) x[i] =
                f_bits(f_fma(f_mul(f_load(q[d + i]), f_all(scale[d + i])), inverse, magic));
            split_bytes(x, &low, &high);
            b_store(w->q8[0][d / PART][strip][d % PART / 4], low);
            b_store(w->q8[1][d / PART][strip][d % PART / 4], high);
        }
    }
}

/* q.zero of every page: 16 running sums, then a tree, as f_sum has it. */
static void zero_products(const set_queries *set, int dim, amx_work *w) {
    enum { AT_ONCE = 8 }; /* pages: their sums stay in registers */
    for (int page = 0; page < CHUNK; page += AT_ONCE) {
        strip_rows part[STRIPS][16][AT_ONCE];
        for (int j = 0; j < 16; j++) {
            fvec acc[STRIPS][AT_ONCE];
            if (j % 6 == 0)
                stay_awake(w);
            STRIPS_EACH UNROLL for (int p = 0; p < AT_ONCE; p++) acc[strip][p] = f_all(0);
            for (int d = j; d < dim; d += 16)
                UNROLL for (int p = 0; p < AT_ONCE; p++) {
                    const fvec zero = f_all(w->pages.k_zero[d][page + p]);
                    STRIPS_EACH acc[strip][p] =
                        f_fma(f_load(set->q[strip][d]), zero, acc[strip][p]);
                }
            STRIPS_EACH UNROLL for (int p = 0; p < AT_ONCE; p++)
                f_store(part[strip][j][p], acc[strip][p]);
        }
        STRIPS_EACH for (int p = 0; p < AT_ONCE; p++) {
            fvec x[16];
            UNROLL for (int j = 0; j < 16; j++) x[j] = f_load(part[strip][j][p]);
            UNROLL for (int n = 8; n > 0; n /= 2) UNROLL for (int j = 0; j < n; j++) x[j] =
                f_add(x[j], x[j + n]);
            f_store(w->offset[page + p][strip], x[0]);
        }
    }
}

#endif
