/* Template, part of rows_tmpl.h: the codec families of src/codec (channel.c, rotated.c, affine.c,
 * block.c), 16 elements at a time: rows to codes, one byte each, and parameters. Those files define
 * what is computed. Where a family has one parameter per token or scale group, those of a whole
 * page are computed side by side, so that divisions and roots do not wait for each other. */
#ifndef QUIRE_KERN_ROWS_ENCODE_TMPL_H
#define QUIRE_KERN_ROWS_ENCODE_TMPL_H

#include "codec/family.h"
#include "codec/tables.h"
#include "kern/rows/hadamard_tmpl.h"
#include "kern/rows/pack_tmpl.h"
#include "kern/rows/vec_tmpl.h"

enum { ROWS = 8 }; /* rotated together */

/* n parameters from number `first` on, rounded as they are stored; param then holds the rounded
 * values. */
INLINE void put_params(const quire_side_format *side, uint8_t *record, size_t first, size_t n,
                       float *param) {
    uint8_t *at = record + side->params + first * quire__type_bytes(side->type);
    quire__row_to_raw(side->type, at, n, param);
    quire__row_from_raw(side->type, at, n, param);
}

/* ------------------------------------------------------------------ channel */

/* Elements j * LANES .. of sixteen, of which eight have the first value and eight the second. */
INLINE vf octet_values(float first, float second, const int j) {
#define LANE(i) (i)
    const vi lane = {PER_LANE(LANE)};
#undef LANE
    return select_f(lane + j * LANES < 8, splat(first), splat(second));
}

/* The highest and the middle code of channels d .. d+15: mixed blocks have eight channels of one
 * width and eight of another. */
INLINE void code_range(const quire_side_format *side, int d, vf top[PER_16], vf mid[PER_16]) {
    const float tops[2] = {(float)quire__highest_code(side, d),
                           (float)quire__highest_code(side, d + 8)};
    const float mids[2] = {quire__code_mid(side, d), quire__code_mid(side, d + 8)};
    UNROLL for (int j = 0; j < PER_16; j++) {
        top[j] = octet_values(tops[0], tops[1], j);
        mid[j] = octet_values(mids[0], mids[1], j);
    }
}

static void encode_channel(const quire_side_format *side, const float *rows, int skip,
                           uint8_t *codes, uint8_t *record) {
    const int dim = side->dim;
    const vf lowest = splat((float)quire__lowest_code(side));
    float param[2 * QUIRE_DIM_MAX];
    for (int d = 0; d < dim; d += 16) {
        vf min[PER_16], max[PER_16], top[PER_16], mid[PER_16];
        code_range(side, d, top, mid);
        UNROLL for (int j = 0; j < PER_16; j++) min[j] = max[j] =
            load_f(rows + skip * dim + d + j * LANES);
        for (int t = skip + 1; t < T; t++)
            UNROLL for (int j = 0; j < PER_16; j++) {
                const vf x = load_f(rows + t * dim + d + j * LANES);
                min[j] = min_f(min[j], x);
                max[j] = max_f(max[j], x);
            }
        UNROLL for (int j = 0; j < PER_16; j++) {
            store_f(param + d + j * LANES, (max[j] - min[j]) / (top[j] - lowest));
            store_f(param + dim + d + j * LANES, (max[j] + min[j]) * 0.5f + 0.0f);
        }
    }
    put_params(side, record, 0, 2 * (size_t)dim, param);
    for (int d = 0; d < dim; d += 16) {
        vf inverse[PER_16], zero[PER_16], top[PER_16], mid[PER_16];
        code_range(side, d, top, mid);
        UNROLL for (int j = 0; j < PER_16; j++) {
            const vf scale = load_f(param + d + j * LANES);
            inverse[j] = and_f(1.0f / scale, scale > 0.0f);
            zero[j] = load_f(param + dim + d + j * LANES);
        }
        for (int t = skip; t < T; t++) {
            vf x[PER_16];
            UNROLL for (int j = 0; j < PER_16; j++) x[j] =
                (load_f(rows + t * dim + d + j * LANES) - zero[j]) * inverse[j] + mid[j];
            store_16(codes + t * dim + d, rounded_codes_up_to(x, lowest, top));
        }
    }
}

/* ------------------------------------------------------------------ uniform, book, prod */

static float reciprocal(float x) { return x > 1e-30f ? 1.0f / x : 0; }
static float at_most_f16(float x) { return x < QUIRE_F16_MAX ? x : QUIRE_F16_MAX; }

/* Rotates n rows, minus `mean` if there is one, into y, and takes their sums of squares. */
INLINE void rotate_rows(const rotation *r, const float *rows, const float *mean, int dim, int n,
                        float *y, float *squares) {
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < dim && mean; d += LANES)
            store_f(y + i * dim + d, load_f(rows + i * dim + d) - load_f(mean + d));
        rotate_there(r, (mean ? y : rows) + i * dim, y + i * dim, dim);
        squares[i] = sum_of_squares(y + i * dim, dim);
    }
}

static float largest_size(const float *y, int dim) {
    vf largest = {0};
    for (int d = 0; d < dim; d += LANES)
        largest = max_f(largest, abs_f(load_f(y + d)));
    return largest_of(largest);
}

/* Summed in the order of sum_of_squares. */
INLINE float squared_error(const quire_side_format *side, const float *y, float step) {
    const vf highest = splat((float)quire__highest_code(side, 0));
    const float inverse = reciprocal(step);
    vf sum[PER_16] = {{0}};
    for (int d = 0; d < side->dim; d += 16)
        UNROLL for (int j = 0; j < PER_16; j++) {
            const vf row = load_f(y + d + j * LANES);
            const vf x = min_f(max_f(row * inverse + side->mid, splat(0)), highest);
            const vf code = (x + QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC,
                     error = row - step * (code - side->mid);
            sum[j] += error * error;
        }
    return sum_of_16(sum);
}

/* Scales of n rows, rounded as they are stored: the fit with the least error, the first of
 * equals. */
static void fitting_scales(const quire_side_format *side, const float *y, int n,
                           const float *squares, float *scale) {
    float rms[ROWS], least[ROWS], fit[ROWS];
    uint16_t half[ROWS];
    for (int i = 0; i < n; i++) {
        rms[i] = sqrtf(squares[i] / (float)side->dim);
        least[i] = INFINITY;
    }
    for (int k = 0; k < QUIRE_UNIFORM_FITS; k++) {
        for (int i = 0; i < n; i++)
            fit[i] = at_most_f16(rms[i] * quire__uniform_fits[k]);
        quire__row_to_raw(QUIRE_F16, half, (size_t)n, fit);
        quire__row_from_raw(QUIRE_F16, half, (size_t)n, fit);
        for (int i = 0; i < n; i++) {
            const float error = squared_error(side, y + i * side->dim, fit[i] * side->unit);
            if (error < least[i]) {
                least[i] = error;
                scale[i] = fit[i];
            }
        }
    }
}

static void encode_uniform(const quire_side_format *side, const float *rows, int skip,
                           uint8_t *codes, uint8_t *record) {
    const int dim = side->dim;
    const vf lowest = splat((float)quire__lowest_code(side)),
             highest = splat((float)quire__highest_code(side, 0));
    float y[ROWS * QUIRE_DIM_MAX], squares[ROWS], scale[ROWS];
    rotation r;
    rotation_init(&r, dim, QUIRE_STREAM_ROTATION);
    for (int t = skip, n; t < T; t += n) {
        n = T - t < ROWS ? T - t : ROWS;
        rotate_rows(&r, rows + t * dim, NULL, dim, n, y, squares);
        if (side->bits == 8)
            for (int i = 0; i < n; i++)
                scale[i] = at_most_f16(largest_size(y + i * dim, dim) / (127 * side->unit));
        else
            fitting_scales(side, y, n, squares, scale);
        put_params(side, record, (size_t)t, (size_t)n, scale);
        for (int i = 0; i < n; i++) {
            const float inverse = reciprocal(scale[i] * side->unit);
            for (int d = 0; d < dim; d += 16) {
                vf x[PER_16];
                UNROLL for (int j = 0; j < PER_16; j++) x[j] =
                    load_f(y + i * dim + d + j * LANES) * inverse + side->mid;
                store_16(codes + (t + i) * dim + d, rounded_codes(x, lowest, highest));
            }
        }
    }
}

/* The codebook is symmetric: a code is the number of positive edges below |x|, counted up or down
 * from the middle. Below zero an edge also counts if |x| equals it: compared as integers, |x| is
 * taken one unit larger there. */
INLINE u8x16 book_codes_16(const float *y, float inverse, const int half, const vi edge[7]) {
    vi code[PER_16];
    UNROLL for (int j = 0; j < PER_16; j++) {
        const vf x = load_f(y + j * LANES) * inverse;
        const vi not_above = x <= 0.0f, magnitude = (vi)abs_f(x) - not_above;
        vi count = {0};
        UNROLL for (int i = 0; i < half - 1; i++) count -= edge[i] < magnitude;
        code[j] = (count ^ not_above) + half;
    }
    return low_bytes(code);
}

/* Codes of y * inverse; returns the sum of the squared integer levels. */
INLINE int book_codes_of(const int bits, int dim, const float *y, float inverse, uint8_t *codes) {
    const quire_book *book = quire__book(bits);
    const int half = 1 << (bits - 1); /* codes on each side of zero */
    vi edge[7];
    UNROLL for (int i = 0; i < half - 1; i++) {
        edge[i] = (vi){0} + (int32_t)quire__float_bits(book->edge[half + i]);
    }
    uint8_t magnitude[16];
    for (int i = 0; i < 16; i++)
        magnitude[i] = (uint8_t)(book->level[i] < 0 ? -book->level[i] : book->level[i]);
    const u8x16 table = load_16(magnitude), zero = {0};
    u32x4 sum = {0};
    for (int d = 0; d < dim; d += 16) {
        const u8x16 code = book_codes_16(y + d, inverse, half, edge), level = lookup(table, code);
        const u16x8 low = (u16x8)ZIP_LOW(level, zero), high = (u16x8)ZIP_HIGH(level, zero);
        const u32x4 squares = (u32x4)(low * low + high * high); /* at most 2 * 104 * 104: 16 bits */
        sum += (squares & 0xffff) + (squares >> 16);
        store_16(codes + d, code);
    }
    return (int)(sum[0] + sum[1] + sum[2] + sum[3]);
}

static int book_codes(const quire_side_format *side, const float *y, float inverse,
                      uint8_t *codes) {
    switch (side->bits) {
    case 4:
        return book_codes_of(4, side->dim, y, inverse, codes);
    case 3:
        return book_codes_of(3, side->dim, y, inverse, codes);
    default:
        return book_codes_of(2, side->dim, y, inverse, codes);
    }
}

/* Means of the channels, rounded as they are stored. */
static void put_mean(const quire_side_format *side, const float *rows, int skip, uint8_t *record,
                     float *mean) {
    const int dim = side->dim;
    for (int d = 0; d < dim; d += 16) {
        vf sum[PER_16] = {{0}};
        for (int t = skip; t < T; t++)
            UNROLL for (int j = 0; j < PER_16; j++) sum[j] +=
                load_f(rows + t * dim + d + j * LANES);
        UNROLL for (int j = 0; j < PER_16; j++)
            store_f(mean + d + j * LANES, sum[j] / (float)(T - skip));
    }
    put_params(side, record, side->zeros, (size_t)dim, mean);
}

static void encode_book(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                        uint8_t *record) {
    const int dim = side->dim;
    float y[ROWS * QUIRE_DIM_MAX], mean[QUIRE_DIM_MAX], squares[ROWS], inverse[ROWS], scale[ROWS];
    int levels[ROWS];
    rotation r;
    rotation_init(&r, dim, QUIRE_STREAM_ROTATION);
    if (side->zeros)
        put_mean(side, rows, skip, record, mean);
    for (int t = skip, n; t < T; t += n) {
        n = T - t < ROWS ? T - t : ROWS;
        rotate_rows(&r, rows + t * dim, side->zeros ? mean : NULL, dim, n, y, squares);
        for (int i = 0; i < n; i++)
            inverse[i] = reciprocal(sqrtf(squares[i] / (float)dim));
        for (int i = 0; i < n; i++)
            levels[i] = book_codes(side, y + i * dim, inverse[i], codes + (t + i) * dim);
        for (int i = 0; i < n; i++)
            scale[i] = at_most_f16(sqrtf(squares[i] / (float)levels[i]) / side->unit);
        put_params(side, record, (size_t)t, (size_t)n, scale);
    }
}

static void encode_prod(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                        uint8_t *record) {
    const int dim = side->dim;
    uint8_t signs[T * QUIRE_DIM_MAX];
    float y[ROWS * QUIRE_DIM_MAX], level[QUIRE_DIM_MAX], squares[ROWS], rms[ROWS], residual[ROWS];
    rotation r, s;
    rotation_init(&r, dim, QUIRE_STREAM_ROTATION);
    rotation_init(&s, dim, QUIRE_STREAM_PROJECTION);
    memset(signs, 0, (size_t)(skip * dim));
    for (int t = skip, n; t < T; t += n) {
        n = T - t < ROWS ? T - t : ROWS;
        rotate_rows(&r, rows + t * dim, NULL, dim, n, y, squares);
        for (int i = 0; i < n; i++) {
            float *row = y + i * dim;
            uint8_t *code = codes + (t + i) * dim, *sign = signs + (t + i) * dim;
            rms[i] = sqrtf(squares[i] / (float)dim);
            const float inverse = reciprocal(rms[i]);
            book_codes(side, row, inverse, code);
            for (int d = 0; d < dim; d++)
                level[d] = (float)side->book[code[d]];
            for (int d = 0; d < dim; d++)
                row[d] = row[d] * inverse - side->unit * level[d];
            rms[i] = at_most_f16(rms[i]);
            residual[i] = sqrtf(sum_of_squares(row, dim) / (float)dim);
            rotate_there(&s, row, row, dim);
            for (int d = 0; d < dim; d++)
                sign[d] = row[d] >= 0;
        }
        put_params(side, record, (size_t)t, (size_t)n, rms);
        put_params(side, record, (size_t)(T + t), (size_t)n, residual);
    }
    pack_k(1, 0, dim, signs, record + side->signs);
}

/* ------------------------------------------------------------------ affine, block */

enum { MAX_SCALES = QUIRE_DIM_MAX / 32 * T }; /* [group][token] */

static void scale_group_ranges(const quire_side_format *side, const float *rows, int skip,
                               float *min, float *max) {
    const int dim = side->dim, group = side->group;
    memset(min, 0, (size_t)(side->n_groups * T) * sizeof *min);
    memset(max, 0, (size_t)(side->n_groups * T) * sizeof *max);
    for (int g = 0; g < side->n_groups; g++)
        for (int t = skip; t < T; t++) {
            const float *x = rows + t * dim + g * group;
            vf low = load_f(x), high = low;
            for (int i = 0; i < group; i += LANES) {
                low = min_f(low, load_f(x + i));
                high = max_f(high, load_f(x + i));
            }
            min[g * T + t] = smallest_of(low);
            max[g * T + t] = largest_of(high);
        }
}

/* Skipped tokens have zero parameters. */
static void put_scale_group_params(const quire_side_format *side, uint8_t *record, int first_group,
                                   int skip, float *param) {
    for (int g = 0; g < side->n_groups; g++) {
        memset(param + g * T, 0, (size_t)skip * sizeof *param);
        put_params(side, record, (size_t)((first_group + g) * T), T, param + g * T);
    }
}

static void encode_affine(const quire_side_format *side, const float *rows, int skip,
                          uint8_t *codes, uint8_t *record) {
    const int dim = side->dim, group = side->group;
    const float top = (float)((1 << side->bits) - 1);
    const u8x16 stored_as = (u8x16){0} + (uint8_t)(side->bits == 8 ? 128 : 0);
    float scales[MAX_SCALES], biases[MAX_SCALES];
    scale_group_ranges(side, rows, skip, scales, biases); /* smallest and largest, for now */
    for (int i = 0; i < side->n_groups * T; i += LANES) {
        const vf min = load_f(scales + i), max = load_f(biases + i);
        const vi from_min = abs_f(min) > abs_f(max);
        const vf size = max_f((max - min) / top, splat(1e-7f)),
                 scale = xor_f(size, ~from_min & INT32_MIN);
        const vf edge = select_f(from_min, min, max), steps = rint_f(edge / scale);
        const vi nonzero = steps != 0.0f;
        store_f(scales + i, select_f(nonzero, edge / steps, scale));
        store_f(biases + i, and_f(edge, nonzero));
    }
    for (int t = skip; t < T; t++)
        for (int g = 0; g < side->n_groups; g++) {
            const vf scale = splat(scales[g * T + t]), bias = splat(biases[g * T + t]);
            for (int d = g * group; d < (g + 1) * group; d += 16) {
                vf x[PER_16];
                UNROLL for (int j = 0; j < PER_16; j++) x[j] =
                    (load_f(rows + t * dim + d + j * LANES) - bias) / scale;
                store_16(codes + t * dim + d, rounded_codes(x, splat(0), splat(top)) ^ stored_as);
            }
        }
    put_scale_group_params(side, record, 0, skip, scales);
    put_scale_group_params(side, record, side->n_groups, skip, biases);
}

/* Of two largest magnitudes with opposite signs ggml takes the first. */
static float first_largest(const float *x, int n) {
    float largest = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(largest))
            largest = x[i];
    return largest;
}

/* Rounds ties away from zero, for |x| far below 2^24: truncation and remainder are exact. */
INLINE vi round_away(vf x) {
    const vi whole = __builtin_convertvector(x, vi);
    const vf rest = x - __builtin_convertvector(whole, vf);
    return whole - (rest >= 0.5f) + (rest <= -0.5f); /* true is -1 */
}

INLINE u8x16 block_codes_16(const int bits, const float *x, vf inverse) {
    vi code[PER_16];
    UNROLL for (int j = 0; j < PER_16; j++) {
        const vf v = load_f(x + j * LANES);
        if (bits == 8)
            code[j] = round_away(v * inverse);
        else
            code[j] = __builtin_convertvector(min_f(fma_f(v, inverse, splat(8.5f)), splat(15)), vi);
    }
    return low_bytes(code);
}

INLINE void encode_block_of(const int bits, const quire_side_format *side, const float *rows,
                            int skip, uint8_t *codes, uint8_t *record) {
    const int dim = side->dim, n = side->n_groups * T;
    float scales[MAX_SCALES], inverses[MAX_SCALES];
    scale_group_ranges(side, rows, skip, scales, inverses);
    for (int i = 0; i < n; i++) {
        const float above = inverses[i], below = -scales[i];
        if (bits == 8)
            scales[i] = fabsf(above > below ? above : below);
        else if (above > below)
            scales[i] = above;
        else if (above == below)
            scales[i] = i % T < skip
                            ? 0
                            : first_largest(rows + i % T * dim + i / T * side->group, side->group);
    }
    for (int i = 0; i < n; i += LANES) {
        const vf scale = load_f(scales + i) / (bits == 8 ? 127.0f : -8.0f);
        store_f(scales + i, scale);
        store_f(inverses + i, and_f(1.0f / scale, abs_f(scale) > 1e-37f));
    }
    for (int t = skip; t < T; t++)
        for (int d = 0; d < dim; d += 16)
            store_16(codes + t * dim + d, block_codes_16(bits, rows + t * dim + d,
                                                         splat(inverses[d / side->group * T + t])));
    put_scale_group_params(side, record, 0, skip, scales);
}

static void encode_block(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                         uint8_t *record) {
    if (side->bits == 8)
        encode_block_of(8, side, rows, skip, codes, record);
    else
        encode_block_of(4, side, rows, skip, codes, record);
}

#endif
