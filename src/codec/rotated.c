/* vt, tq, tqp: rows are rotated (hadamard.c), divided by their RMS, and quantized coordinate by
 * coordinate.
 *
 *   vt8              uniform codes;                           scale[t] = what makes the largest
 *                    coordinate +-127
 *   vt4 vt3 vt2      uniform codes around `mid`;              scale[t] = RMS of the row times
 *                    what fits it best
 *   tq4 tq3 tq2      Lloyd-Max codes;                         scale[t] = what keeps the row's
 *                    norm ("norm correction")
 *   tqp4 tqp3        Lloyd-Max codes of one bit less, then the signs of S (residual); scale[t] =
 *                    RMS of the row, residual[t] = norm of (row - codes), of a row of norm 1
 *
 * value (rotated) = scale * unit * (code - mid), or scale * unit * level[code];
 * tqp: scale * (unit * level[code] + residual * sqrt(pi/2) * S^T sign).
 *
 * K of tq: first the mean of the page's rows is subtracted. Keys have a part that all tokens share,
 * often larger than their differences; rotation would spread it over every code, and the row's
 * scale would have to cover it. Attention adds q.mean to the scores of a page, in fp32. V has no
 * mean: a token with small V and large weight, such as a sink, would get errors as large as those
 * of the other tokens. Parameters: fp16 scale[T]; tqp: then fp16
 * residual[T]; K of tq: then fp16 mean[D], of the rows as they came.
 */
#include "base/fp16.h"
#include "base/real.h"
#include "codec/family.h"
#include "codec/layout.h"
#include "codec/hadamard.h"
#include "codec/tables.h"

#include <string.h>

static float rotate_there(const quire_side_format *side, float *y) /* -> sum of squares */
{
    quire__rotate(y, side->dim);
    return quire__sum_of_products(y, y, side->dim);
}

static float rotate_row(const quire_side_format *side, const float *row,
                        float *y) /* -> sum of squares */
{
    memcpy(y, row, (size_t)side->dim * sizeof *y);
    return rotate_there(side, y);
}

/* Smaller rows become zero: their reciprocal would not be finite. */
static float reciprocal(float x) { return x > 1e-30f ? 1.0f / x : 0; }
static float at_most_f16(float x) { return x < QUIRE_F16_MAX ? x : QUIRE_F16_MAX; }

/* ------------------------------------------------------------------ vt */

static void uniform_codes(const quire_side_format *side, const float *y, float step,
                          uint8_t *codes) {
    const float inverse = reciprocal(step);
    for (int d = 0; d < side->dim; d++) {
        const float x = y[d] * inverse + side->mid;
        codes[d] = quire__nearest_code(side, d, x);
    }
}

static float squared_error(const quire_side_format *side, const float *y, float step,
                           const uint8_t *codes) {
    float error[QUIRE_DIM_MAX];
    for (int d = 0; d < side->dim; d++)
        error[d] = y[d] - step * ((float)codes[d] - side->mid);
    return quire__sum_of_products(error, error, side->dim);
}

static float largest_size(const float *y, int dim) {
    float largest = 0;
    for (int d = 0; d < dim; d++)
        largest = fabsf(y[d]) > largest ? fabsf(y[d]) : largest;
    return largest;
}

/* Of equal errors the first wins. */
static float fitting_scale(const quire_side_format *side, const float *y, float rms) {
    uint8_t codes[QUIRE_DIM_MAX];
    float best = 0, least = INFINITY;
    for (int i = 0; i < QUIRE_UNIFORM_FITS; i++) {
        const float scale =
            quire__f16_to_f32(quire__f32_to_f16(at_most_f16(rms * quire__uniform_fits[i])));
        const float step = scale * side->unit;
        uniform_codes(side, y, step, codes);
        const float error = squared_error(side, y, step, codes);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

static void encode_uniform(const quire_side_format *side, const float *rows, int skip,
                           uint8_t *codes, uint8_t *record) {
    const int dim = side->dim;
    float y[QUIRE_DIM_MAX];
    for (int t = skip; t < T; t++) {
        const float squares = rotate_row(side, rows + t * dim, y);
        const float scale = side->bits == 8 ? at_most_f16(largest_size(y, dim) / (127 * side->unit))
                                            : fitting_scale(side, y, sqrtf(squares / (float)dim));
        quire__put_param(side, record, (size_t)t, scale);
        uniform_codes(side, y, quire__side_param(side, record, (size_t)t) * side->unit,
                      codes + t * dim);
    }
}

static void decode_uniform(const quire_side_format *side, const uint8_t *codes,
                           const uint8_t *record, float *rows) {
    const int dim = side->dim;
    for (int t = 0; t < T; t++) {
        const float scale = quire__side_param(side, record, (size_t)t) * side->unit;
        for (int d = 0; d < dim; d++) {
            const float code = quire__signed_code(side, codes[t * dim + d]);
            rows[t * dim + d] = scale * (code - side->mid);
        }
        quire__unrotate(rows + t * dim, dim);
    }
}

/* ------------------------------------------------------------------ tq */

/* Codes of y * inverse; returns the sum of the squared integer levels. */
static int book_codes(const quire_side_format *side, const float *y, float inverse,
                      uint8_t *codes) {
    const quire_book *book = quire__book(side->bits);
    const int n_edges = (1 << side->bits) - 1;
    int squares = 0;
    for (int d = 0; d < side->dim; d++) {
        const float x = y[d] * inverse;
        int code = 0;
        for (int i = 0; i < n_edges; i++)
            code += book->edge[i] < x;
        codes[d] = (uint8_t)code;
        squares += book->level[code] * book->level[code];
    }
    return squares;
}

/* Means of the channels, rounded as in the record. Values within fp16 have a mean within fp16. */
static void put_mean(const quire_side_format *side, const float *rows, int skip, uint8_t *record,
                     float *mean) {
    for (int d = 0; d < side->dim; d++) {
        float sum = 0;
        for (int t = skip; t < T; t++)
            sum += rows[t * side->dim + d];
        quire__put_param(side, record, side->zeros + (size_t)d, sum / (float)(T - skip));
        mean[d] = quire__side_param(side, record, side->zeros + (size_t)d);
    }
}

static void encode_book(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                        uint8_t *record) {
    const int dim = side->dim;
    float y[QUIRE_DIM_MAX], mean[QUIRE_DIM_MAX] = {0};
    if (side->zeros)
        put_mean(side, rows, skip, record, mean);
    for (int t = skip; t < T; t++) {
        for (int d = 0; d < dim; d++)
            y[d] = rows[t * dim + d] - mean[d];
        const float squares = rotate_there(side, y);
        const float inverse = reciprocal(sqrtf(squares / (float)dim));
        const int levels = book_codes(side, y, inverse, codes + t * dim);
        quire__put_param(side, record, (size_t)t,
                         at_most_f16(sqrtf(squares / (float)levels) / side->unit));
    }
}

static void decode_book(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                        float *rows) {
    const int dim = side->dim;
    float mean[QUIRE_DIM_MAX];
    for (int d = 0; d < dim && side->zeros; d++)
        mean[d] = quire__side_param(side, record, side->zeros + (size_t)d);
    for (int t = 0; t < T; t++) {
        const float scale = quire__side_param(side, record, (size_t)t) * side->unit;
        for (int d = 0; d < dim; d++)
            rows[t * dim + d] = scale * (float)side->book[codes[t * dim + d]];
        quire__unrotate(rows + t * dim, dim);
        for (int d = 0; d < dim && side->zeros; d++)
            rows[t * dim + d] += mean[d];
    }
}

/* ------------------------------------------------------------------ tqp */

static void encode_prod(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                        uint8_t *record) {
    const int dim = side->dim;
    uint8_t signs[T * QUIRE_DIM_MAX];
    float y[QUIRE_DIM_MAX];
    memset(signs, 0, sizeof signs);
    for (int t = skip; t < T; t++) {
        const float rms = sqrtf(rotate_row(side, rows + t * dim, y) / (float)dim),
                    inverse = reciprocal(rms);
        book_codes(side, y, inverse, codes + t * dim);
        for (int d = 0; d < dim; d++)
            y[d] = y[d] * inverse - side->unit * (float)side->book[codes[t * dim + d]];
        quire__put_param(side, record, (size_t)t, at_most_f16(rms));
        quire__put_param(side, record, (size_t)(T + t),
                         sqrtf(quire__sum_of_products(y, y, dim) / (float)dim));
        quire__project(y, dim);
        for (int d = 0; d < dim; d++)
            signs[t * dim + d] = y[d] >= 0;
    }
    quire__k_pack(1, 0, dim, signs, record + side->signs);
}

static void decode_prod(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                        float *rows) {
    const int dim = side->dim;
    int8_t signs[T * QUIRE_DIM_MAX];
    quire__side_signs(side, record, signs);
    for (int t = 0; t < T; t++) {
        const float scale = quire__side_param(side, record, (size_t)t);
        const float residual =
            quire__side_param(side, record, (size_t)(T + t)) * QUIRE_SQRT_HALF_PI;
        float *row = rows + t * dim;
        for (int d = 0; d < dim; d++)
            row[d] = signs[t * dim + d] ? residual : -residual;
        quire__unproject(row, dim);
        for (int d = 0; d < dim; d++)
            row[d] = scale * (side->unit * (float)side->book[codes[t * dim + d]] + row[d]);
        quire__unrotate(row, dim);
    }
}

const quire_family_ops quire__uniform_ops = {
    "uniform", "rotated, uniform codes, one scale per token", encode_uniform, decode_uniform};
const quire_family_ops quire__book_ops = {
    "book", "TurboQuant mse: rotated, Lloyd-Max codebook; K less the page's mean", encode_book,
    decode_book};
const quire_family_ops quire__prod_ops = {
    "prod", "TurboQuant prod: codebook and a sign of the residual", encode_prod, decode_prod};
