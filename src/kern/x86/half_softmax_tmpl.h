/* Template, part of packed_tmpl.h: u8 weights by way of fp16 (half_weights.h), 32 tokens of a row
 * at a time, where the processor computes with fp16.
 *
 * Parameters:
 *   HALVES  header of the fp16 vectors (half.h); without it nothing here is used
 */
#ifndef QUIRE_KERN_X86_HALF_SOFTMAX_TMPL_H
#define QUIRE_KERN_X86_HALF_SOFTMAX_TMPL_H

#include "kern/x86/query_tmpl.h"
#include "kern/x86/softmax_tmpl.h"

/* What becomes of the scores of four rows: sums of 2^(logit - m), and how integer weights are worth
 * what they are. */
typedef struct row_weights {
    rvec sum, step;
    __m128i total; /* of the integers */
} row_weights;

/* How the scores of a set's rows become n of half_weights.h. */
typedef struct half_lines {
    float slope[PAGES][SET], start[PAGES][SET];
} half_lines;

#ifndef HALVES

INLINE bool weighs_in_halves(const quire_side_format *v) { return (void)v, false; }
INLINE bool keeps_integers(const quire_attend_job *job) { return (void)job, false; }
static void load_half_value_scales(const block *b) { (void)b; }
INLINE rvec find_half_lines(const int rows, const block *b, int row, half_lines *lines) {
    return (void)rows, (void)b, (void)row, (void)lines, r_all(0);
}
INLINE row_weights put_half_weights(const block *b, int alive, int row, const half_lines *lines) {
    return (void)b, (void)alive, (void)row, (void)lines, (row_weights){.sum = r_all(0)};
}

#else
#include "kern/x86/half_weights.h"

INLINE bool weighs_in_halves(const quire_side_format *v) {
    return is_token_scaled(v->family) && v->bits < 8; /* whose scales are always fp16 */
}

/* Whether scores stay integers: nothing comes between them and the logits. */
INLINE bool keeps_integers(const quire_attend_job *job) {
    return in_halves(&job->format->k) && weighs_in_halves(&job->format->v) &&
           !changes_logits(&job->see);
}

static void load_half_value_scales(const block *b) {
    x86_work *w = b->work;
    const ivec packed = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    scales_to_halves(b, &b->job->format->v, T, T, w->v_half[0], w->v_unit);
    for (int p = b->from; p < b->from + b->n; p++)
        for (int t = 0; t < T; t += 32) /* h_largest_rows would take -0 for the largest */
            b_store(w->v_half[p] + t,
                    h_abs(_mm512_permutexvar_epi64(packed, b_load(w->v_half[p] + t))));
}

/* Sums of four rows: 8 numbers of each, then these. */
INLINE rvec h_sum_rows(const ivec x[4]) {
    ivec y[2];
    UNROLL for (int i = 0; i < 2; i++) y[i] =
        h_add(_mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0x44),
              _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0xee));
    const ivec eight =
        h_add(_mm512_shuffle_i32x4(y[0], y[1], 0x88), _mm512_shuffle_i32x4(y[0], y[1], 0xdd));
    const ivec low = f_bits(_mm512_cvtph_ps(_mm512_castsi512_si256(eight))),
               high = f_bits(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(eight, 1)));
    fvec z = f_add(f_from_bits(_mm512_shuffle_i32x4(low, high, 0x88)),
                   f_from_bits(_mm512_shuffle_i32x4(low, high, 0xdd)));
    z = f_add(z, _mm512_shuffle_ps(z, z, 0x4e));
    return first_of_lanes(f_add(z, _mm512_shuffle_ps(z, z, 0xb1)));
}

/* Of `rows` rows, `row` of the set on: returns their largest logits. */
INLINE rvec find_half_lines(const int rows, const block *b, int row, half_lines *lines) {
    const bool integers = keeps_integers(b->job);
    fvec largest[PAGES], logit[PAGES], step[PAGES], m = f_all(QUIRE_NOTHING_SEEN);
    for (int p = b->from; p < b->from + b->n; p++) {
        const set_query *q = &b->work->q[p];
        largest[p] = _mm512_castps128_ps512(
            maxima(rows, (const float(*)[BLOCK])(b->work->s[row] + p * T), T));
        step[p] = integers ? _mm512_castps128_ps512(r_load(q->step[0] + row)) : f_all(1);
        logit[p] = integers ? score_logit(largest[p], step[p],
                                          _mm512_castps128_ps512(r_load(q->offset[0] + row)))
                            : largest[p];
        m = f_max(m, logit[p]);
    }
    for (int p = b->from; p < b->from + b->n; p++) {
        const half_line line = h_line(step[p], largest[p], logit[p], m);
        r_store(lines->slope[p] + row, _mm512_castps512_ps128(line.slope));
        r_store(lines->start[p] + row, _mm512_castps512_ps128(line.start));
    }
    return _mm512_castps512_ps128(m);
}

/* w of half_weights.h for one row, `n` pages from b->from on; returns the sum of e in parts.
 * top[page]: the largest w, in parts. `in_four`: which of four rows it is. */
INLINE ivec half_exponentials(const int n, const block *b, int row, const half_lines *lines,
                              int in_four, ivec (*top)[ABREAST]) {
    const float *s = b->work->s[row] + b->from * T;
    const uint16_t *scale = b->work->v_half[b->from];
    uint16_t *weight = b->work->w_half[in_four];
    ivec x[2 * PAGES];
    UNROLL for (int i = 0; i < 2 * n; i++) {
        const fvec slope = f_all(lines->slope[b->from + i / 2][row]),
                   start = f_all(lines->start[b->from + i / 2][row]);
        x[i] = h_round_scores(f_fma(f_load(s + 32 * i), slope, start),
                              f_fma(f_load(s + 32 * i + 16), slope, start));
    }
    h_exp2_each(2 * n, x);
    ivec sum = h_add(x[0], x[1]);
    if (n > 1)
        sum = h_add(sum, h_add(x[2], x[3]));
    UNROLL for (int i = 0; i < 2 * n; i++) {
        x[i] = h_mul(x[i], b_load(scale + 32 * i));
        b_store(weight + 32 * i, x[i]);
    }
    UNROLL for (int p = 0; p < n; p++) top[p][in_four] = h_max(x[2 * p], x[2 * p + 1]);
    return sum;
}

/* Operands of one row; returns the sum of the integers, in parts. */
INLINE ivec put_half_operands(const int n, const uint16_t *weight, const uint16_t *inverse,
                              uint8_t *plane) {
    const ivec low = _mm512_set1_epi16(255);
    ivec total = i_all(0);
    UNROLL for (int p = 0; p < n; p++) {
        const ivec by = _mm512_set1_epi16((short)inverse[p]);
        ivec x[2];
        UNROLL for (int i = 0; i < 2; i++) x[i] =
            b_and(h_weight(b_load(weight + 64 * p + 32 * i), by), low);
        const ivec bytes = b_pack_to_atoms(x[0], x[1]);
        b_store(plane + 64 * p, bytes);
        total = _mm512_dpbusd_epi32(total, bytes, b_all(1));
    }
    return total;
}

INLINE row_weights put_half_weights_of(const int n, const block *b, int alive, int row,
                                       const half_lines *lines) {
    x86_work *w = b->work;
    const int t0 = b->from * T;
    ivec sum[ABREAST], total[ABREAST], top[PAGES][ABREAST];
    fvec largest[PAGES];
    UNROLL for (int i = 0; i < ABREAST; i++) {
        sum[i] = total[i] = i_all(0);
        UNROLL for (int p = 0; p < n; p++) top[p][i] = sum[i];
        if (alive >> i & 1)
            sum[i] = half_exponentials(n, b, row + i, lines, i, top);
    }
    UNROLL for (int p = 0; p < n; p++) {
        const __m128i most = h_largest_rows(top[p]);
        largest[p] = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_packus_epi32(most, most)));
    }
    const half_steps steps = h_steps(n, largest, w->v_unit + b->from);
    uint16_t inverse[PAGES][W], by[ABREAST][PAGES];
    UNROLL for (int p = 0; p < n; p++) f_store_f16(inverse[p], steps.inverse[p]);
    UNROLL for (int i = 0; i < ABREAST; i++) {
        UNROLL for (int p = 0; p < n; p++) by[i][p] = inverse[p][i];
        if (alive >> i & 1)
            total[i] = put_half_operands(n, w->w_half[i], by[i], w->p[row + i][0] + t0);
    }
    return (row_weights){
        r_mul(h_sum_rows(sum), r_all(1 / HALF_ONE)),
        r_mul(_mm512_castps512_ps128(steps.unit), r_all(b->job->format->v.unit / HALF_ONE)),
        i_sum_rows(total)};
}

/* Operands of four rows of a set, `row` on, of which bits of `alive` tell which ones matter. */
INLINE row_weights put_half_weights(const block *b, int alive, int row, const half_lines *lines) {
    return b->n == 2 ? put_half_weights_of(2, b, alive, row, lines)
                     : put_half_weights_of(1, b, alive, row, lines);
}

#endif
#endif
