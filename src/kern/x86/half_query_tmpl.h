/* Template, part of packed_tmpl.h: q and the channel scales of K as fp16 numbers, 32 at a time,
 * where the processor computes with them; bit for bit the integers of query_tmpl.h.
 *
 * Parameters:
 *   HALVES  header of the fp16 vectors (half.h); without it nothing here is used
 */
#ifndef QUIRE_KERN_X86_HALF_QUERY_TMPL_H
#define QUIRE_KERN_X86_HALF_QUERY_TMPL_H

#include "kern/x86/work_tmpl.h"

#ifndef HALVES

INLINE bool in_halves(const quire_side_format *k) { return (void)k, false; }
static void load_half_scales(const block *b) { (void)b; }
static float query_to_halves(const float *q, int dim, uint16_t *to) {
    return (void)q, (void)dim, (void)to, 0.0f;
}
INLINE rvec half_products(const int n, const quire_side_format *k, const float *q, x86_work *w,
                          int p, int first, rvec *dots) {
    return (void)n, (void)k, (void)q, (void)w, (void)p, (void)first, *dots = r_all(0);
}
INLINE void quantize_half_products(const int n, const quire_side_format *k, rvec magnitudes,
                                   const x86_work *w, int p, int first, int row, set_query *out) {
    (void)n, (void)k, (void)magnitudes, (void)w, (void)p, (void)first, (void)row, (void)out;
}

#else
#include HALVES

INLINE bool in_halves(const quire_side_format *k) {
    return k->family == QUIRE_FAMILY_CHANNEL && k->bits < 8; /* whose scales are always fp16 */
}

/* Channels d .. d+32 of `dim`, zeros behind the last one. */
INLINE ivec h_load(const uint8_t *at, int d, int dim) {
    return d + 32 <= dim ? b_load(at + 2 * d) : _mm512_maskz_loadu_epi64(0x0f, at + 2 * d);
}

/* The largest of each of four vectors of numbers >= 0, as fp16 bits. */
INLINE __m128i h_largest_rows(const ivec x[4]) {
    ivec y[4], z[2];
    EACH y[u] = _mm512_max_epi32(b_and(x[u], i_all(0xffff)), _mm512_srli_epi32(x[u], 16));
    UNROLL for (int i = 0; i < 2; i++) z[i] =
        _mm512_max_epi32(_mm512_shuffle_i32x4(y[2 * i], y[2 * i + 1], 0x44),
                         _mm512_shuffle_i32x4(y[2 * i], y[2 * i + 1], 0xee));
    ivec most = _mm512_max_epi32(_mm512_shuffle_i32x4(z[0], z[1], 0x88),
                                 _mm512_shuffle_i32x4(z[0], z[1], 0xdd));
    UNROLL for (int i = 0; i < 2; i++) {
        const fvec f = f_from_bits(most);
        const fvec other = i ? _mm512_shuffle_ps(f, f, 0xb1) : _mm512_shuffle_ps(f, f, 0x4e);
        most = _mm512_max_epi32(most, f_bits(other));
    }
    return _mm_castps_si128(first_of_lanes(f_from_bits(most)));
}

/* s' of the block's pages, `n` of channels (K) or tokens (V), and what one unit of it is worth. */
static void scales_to_halves(const block *b, const quire_side_format *side, int n, size_t stride,
                             uint16_t *to /* (PAGES, stride) */, float unit[PAGES]) {
    ivec most[4];
    int32_t largest[4];
    EACH most[u] = i_all(0);
    UNROLL for (int p = 0; p < PAGES; p++) {
        if (!b->record[p])
            continue;
        for (int d = 0; d < n; d += 32)
            most[p] = h_max(most[p], h_abs(h_load(b->record[p] + side->params, d, n)));
    }
    _mm_storeu_si128((__m128i *)(void *)largest, h_largest_rows(most));
    for (int p = b->from; p < b->from + b->n; p++) {
        const int exponent = quire__scale_exponent((uint16_t)largest[p]);
        const ivec by = _mm512_set1_epi16((short)((15 - exponent) << 10)); /* 2^-exponent */
        for (int d = 0; d < n; d += 32)
            b_store(to + (size_t)p * stride + d,
                    h_mul(h_load(b->record[p] + side->params, d, n), by));
        unit[p] = quire__power_of_two(exponent);
    }
}
static void load_half_scales(const block *b) {
    const quire_side_format *k = &b->job->format->k;
    scales_to_halves(b, k, k->dim, QUIRE_DIM_MAX, b->work->k_half[0], b->work->k_unit);
}

/* q' of one row, zeros up to a multiple of 64 channels; returns what one unit of it is worth. */
static float query_to_halves(const float *q, int dim, uint16_t *to) {
    fvec most = f_all(0);
    for (int d = 0; d < dim; d += W)
        most = f_max_abs(most, f_load(q + d));
    const int exponent = quire__query_exponent(f_largest(most));
    const fvec by = f_all(quire__query_factor(exponent));
    for (int d = 0; d < (dim + 63) / 64 * 64; d += W) {
        const fvec x = d < dim ? f_mul(f_load(q + d), by) : f_all(0);
        _mm256_storeu_si256((__m256i *)(void *)(to + d),
                            _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    return quire__query_unit(exponent);
}

INLINE const uint16_t *half_row(const x86_work *w, int row) {
    return (const uint16_t *)(const void *)(w->q_fp16 + (size_t)row * QUIRE_DIM_MAX);
}

/* The integers of a row; returns their sum, weighted by the middles, in parts. */
INLINE ivec put_half_integers(const uint16_t *q, const uint16_t *scale, int dim, ivec inverse,
                              const uint8_t *middle, int8_t *plane) {
    const __m128i dims = dim_order();
    const ivec order = b_repeat16(&dims), low_byte = _mm512_set1_epi16(255),
               in_order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    ivec centre = i_all(0);
    for (int d = 0; d < dim; d += 64) {
        ivec x[2];
        UNROLL for (int i = 0; i < 2; i++) {
            const ivec y = h_mul(b_load(q + d + 32 * i), b_load(scale + d + 32 * i));
            x[i] = b_and(h_round_product(y, inverse), low_byte);
        }
        const ivec bytes = _mm512_permutexvar_epi32(in_order, _mm512_packus_epi16(x[0], x[1])),
                   integers = b_lookup(bytes, order);
        b_store(plane + d, integers);
        centre = k_centre(centre, b_load(middle + d), integers);
    }
    return centre;
}

/* put_products of query_tmpl.h; y is not kept. */
INLINE rvec half_products(const int n, const quire_side_format *k, const float *q, x86_work *w,
                          int p, int first, rvec *dots) {
    const uint16_t *scale = w->k_half[p];
    const float *zero = w->k_zero[p];
    const int dim = k->dim;
    ivec largest[ABREAST];
    fvec dot[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) {
        largest[r] = i_all(0);
        dot[r] = f_all(0);
    }
    for (int d = 0; d < dim; d += 32) {
        const ivec s = b_load(scale + d);
        UNROLL for (int r = 0; r < n; r++) largest[r] =
            h_max(largest[r], h_abs(h_mul(b_load(half_row(w, first + r) + d), s)));
    }
    for (int d = 0; d < dim; d += W) {
        const fvec z = f_load(zero + d);
        UNROLL for (int r = 0; r < n; r++) dot[r] = f_fma(f_load(q + r * dim + d), z, dot[r]);
    }
    *dots = f_sum_rows(dot);
    const __m128i most = h_largest_rows(largest);
    return _mm_cvtph_ps(_mm_packus_epi32(most, most));
}

/* quantize_products of query_tmpl.h. */
INLINE void quantize_half_products(const int n, const quire_side_format *k, rvec magnitudes,
                                   const x86_work *w, int p, int first, int row, set_query *out) {
    const rvec inverses = channel_inverses(magnitudes);
    uint16_t inverse[2 * ABREAST];
    ivec centre[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) centre[r] = i_all(0);
    _mm_storeu_si128((__m128i *)(void *)inverse, _mm_cvtps_ph(inverses, _MM_FROUND_TO_NEAREST_INT));
    UNROLL for (int r = 0; r < n; r++) centre[r] =
        put_half_integers(half_row(w, first + r), w->k_half[p], k->dim,
                          _mm512_set1_epi16((short)inverse[r]), w->middle, out->plane[row + r][0]);
    store_steps(centre, inverses, w, p, first, row, out);
}

#endif
#endif
