/* Template, part of rows_tmpl.h: rounding with error feedback (codec/error_feedback.c defines
 * it), 16 tokens at a time: channels follow each other, tokens are lanes. */
#ifndef QUIRE_KERN_ROWS_ERROR_FEEDBACK_TMPL_H
#define QUIRE_KERN_ROWS_ERROR_FEEDBACK_TMPL_H

#include "codec/family.h"
#include "kern/rows/vec_tmpl.h"

/* Channels of 16 tokens. */
typedef float columns[QUIRE_DIM_MAX][16];

/* Skipped tokens take their channels' zeros. */
static void transpose(const float *rows, int dim, int first, int skip, const float *zero,
                      columns x) {
    for (int t = 0; t < 16; t++) {
        const float *from = first + t < skip ? zero : rows + (first + t) * dim;
        for (int d = 0; d < dim; d++)
            x[d][t] = from[d];
    }
}

/* How a channel's codes are rounded. */
typedef struct channel {
    float scale, inverse, zero, mid, highest;
} channel;

/* x becomes the rounding error; its 16 codes go to every dim-th byte. */
INLINE void round_channel(const channel *c, const vf carried[PER_16], vf x[PER_16], int dim,
                          uint8_t *codes) {
    vi code[PER_16];
    uint8_t of_token[16];
    UNROLL for (int j = 0; j < PER_16; j++) {
        const vf place = (x[j] + carried[j] - c->zero) * c->inverse + c->mid;
        const vf moved = min_f(max_f(place, splat(0)), splat(c->highest)) + QUIRE_ROUND_MAGIC;
        x[j] = x[j] - (c->zero + c->scale * (moved - QUIRE_ROUND_MAGIC - c->mid));
        code[j] = (vi)moved; /* the integer, in the low mantissa bits */
    }
    store_16(of_token, low_bytes(code));
    for (int t = 0; t < 16; t++)
        codes[t * dim] = of_token[t];
}

/* 16 tokens, two channels at a time, so that errors are loaded once for both. Sums are taken in the
 * reference's order. */
static void feedback_16(const channel *channels, int dim, const quire_page_feedback *s, columns x,
                        columns error, uint8_t *codes) {
    for (int d = 0; d < dim; d += 2) {
        const float *weight = s->feedback + quire__feedback_at(d / 2), *next = weight + d;
        const float c = s->cosine[d / 2], i = s->sine[d / 2], within = s->within[d / 2];
        const int first = s->place[d], second = s->place[d + 1];
        vf carried[PER_16], later[PER_16], e0[PER_16], e1[PER_16];
        UNROLL for (int j = 0; j < PER_16; j++) carried[j] = later[j] = splat(0);
        for (int k = 0; k < d; k++)
            UNROLL for (int j = 0; j < PER_16; j++) {
                const vf before = load_f(error[k] + j * LANES);
                carried[j] += weight[k] * before;
                later[j] += next[k] * before;
            }
        UNROLL for (int j = 0; j < PER_16; j++) {
            const vf still = carried[j];
            carried[j] = c * still - i * later[j];
            later[j] = i * still + c * later[j];
            e0[j] = load_f(x[first] + j * LANES);
            e1[j] = load_f(x[second] + j * LANES);
        }
        round_channel(&channels[first], carried, e0, dim, codes + first);
        UNROLL for (int j = 0; j < PER_16; j++) later[j] += within * (e0[j] + carried[j]);
        round_channel(&channels[second], later, e1, dim, codes + second);
        UNROLL for (int j = 0; j < PER_16; j++) {
            store_f(error[d] + j * LANES, c * e0[j] + i * e1[j]);
            store_f(error[d + 1] + j * LANES, c * e1[j] - i * e0[j]);
        }
    }
}

static void feedback_codes(const quire_side_format *side, const float *rows, int skip,
                           const quire_page_feedback *feedback, const uint8_t *record,
                           uint8_t *codes) {
    const int dim = side->dim;
    float param[2 * QUIRE_DIM_MAX];
    channel channels[QUIRE_DIM_MAX];
    columns x, error;
    quire__row_from_raw(side->type, record + side->params, 2 * (size_t)dim, param);
    for (int d = 0; d < dim; d++)
        channels[d] = (channel){.scale = param[d],
                                .inverse = param[d] > 0 ? 1.0f / param[d] : 0,
                                .zero = param[dim + d],
                                .mid = quire__code_mid(side, d),
                                .highest = (float)quire__highest_code(side, d)};
    for (int first = 0; first < T; first += 16) {
        transpose(rows, dim, first, skip, param + dim, x);
        feedback_16(channels, dim, feedback, x, error, codes + first * dim);
    }
    memset(codes, 0, (size_t)(skip * dim));
}

#endif
