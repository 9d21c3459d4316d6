/* Rounding with feedback (src/codec/feedback.c says what and why), 16 tokens at a time: channels follow each other, tokens
 * are lanes. */
#ifndef QUIRE_KERN_VEC_SHAPE_H
#define QUIRE_KERN_VEC_SHAPE_H

#include "codec/family.h"
#include "kern/vec/vec.h"

/* Channels of 16 tokens. */
typedef float columns[QUIRE_DIM_MAX][16];

/* Tokens that are skipped stand at their channels' zeros. */
static void turn_rows(const float *rows, int dim, int first, int skip, const float *zero, columns x) {
    for (int t = 0; t < 16; t++) {
        const float *from = first + t < skip ? zero : rows + (first + t) * dim;
        for (int d = 0; d < dim; d++)
            x[d][t] = from[d];
    }
}

/* A channel's codes and how they are rounded. */
typedef struct channel {
    float scale, inverse, zero, mid, highest;
} channel;

/* x of channel c becomes its error; its 16 codes go to every dim-th byte. */
INLINE void round_channel(const channel *c, const vf carried[PER_16], float *x, int dim, uint8_t *codes) {
    vi code[PER_16];
    uint8_t of_token[16];
    UNROLL for (int j = 0; j < PER_16; j++) {
        const vf value = load_f(x + j * LANES);
        const vf place = (value + carried[j] - c->zero) * c->inverse + c->mid;
        const vf moved = min_f(max_f(place, splat(0)), splat(c->highest)) + QUIRE_ROUND_MAGIC;
        store_f(x + j * LANES, value - (c->zero + c->scale * (moved - QUIRE_ROUND_MAGIC - c->mid)));
        code[j] = (vi)moved; /* the integer, in the low mantissa bits */
    }
    store_16(of_token, low_bytes(code));
    for (int t = 0; t < 16; t++)
        codes[t * dim] = of_token[t];
}

/* 16 tokens, two channels at a time: errors are loaded once for both. Sums have the reference's order. */
static void shape_16(const channel *channels, int dim, const float *feedback, columns x, uint8_t *codes) {
    for (int d = 0; d < dim; d += 2) {
        const float *weight = feedback + d * (d - 1) / 2, *next = weight + d;
        vf carried[PER_16], later[PER_16];
        UNROLL for (int j = 0; j < PER_16; j++) carried[j] = later[j] = splat(0);
        for (int i = 0; i < d; i++)
            UNROLL for (int j = 0; j < PER_16; j++) {
                const vf error = load_f(x[i] + j * LANES);
                carried[j] += weight[i] * error;
                later[j] += next[i] * error;
            }
        round_channel(&channels[d], carried, x[d], dim, codes + d);
        UNROLL for (int j = 0; j < PER_16; j++) later[j] += next[d] * load_f(x[d] + j * LANES);
        round_channel(&channels[d + 1], later, x[d + 1], dim, codes + d + 1);
    }
}

static void shape_codes(const quire_side_format *side, const float *rows, int skip, const float *feedback,
                        const uint8_t *record, uint8_t *codes) {
    const int dim = side->dim;
    float param[2 * QUIRE_DIM_MAX];
    channel channels[QUIRE_DIM_MAX];
    columns x; /* becomes errors, channel by channel */
    quire__load_row(side->type, record + side->params, 2 * (size_t)dim, param);
    for (int d = 0; d < dim; d++)
        channels[d] = (channel){.scale = param[d],
                                .inverse = param[d] > 0 ? 1.0f / param[d] : 0,
                                .zero = param[dim + d],
                                .mid = quire__code_mid(side, d),
                                .highest = (float)quire__highest_code(side, d)};
    for (int first = 0; first < T; first += 16) {
        turn_rows(rows, dim, first, skip, param + dim, x);
        shape_16(channels, dim, feedback, x, codes + first * dim);
    }
    memset(codes, 0, (size_t)(skip * dim));
}

#endif
