/* Template, NARROW of kern/shared/raw_tmpl.h: products of 16-bit elements as they lie in the page,
 * for f16 (raw_fp16.h) and, where the core has them, bf16 (raw_bf16_tmpl.h).
 *
 * Parameter, from the compiler flags:
 *   __ARM_FEATURE_BF16_VECTOR_ARITHMETIC  bf16 is narrow too
 */
#ifndef QUIRE_KERN_NEON_RAW_NARROW_TMPL_H
#define QUIRE_KERN_NEON_RAW_NARROW_TMPL_H

#include "kern/neon/raw_bf16_tmpl.h"
#include "kern/neon/raw_fp16.h"

INLINE bool is_narrow(const quire_type type) {
    return type == QUIRE_F16 || (HAVE_BF16 && type == QUIRE_BF16);
}

/* Tokens in a tile of K, vectors in a tile of V: enough sums to hide latency, and no more than
 * fit. */
INLINE int narrow_tokens(const quire_type type, const int rows) {
    return type == QUIRE_F16 && rows > 1 ? 4 : 8;
}
INLINE int narrow_vectors(const quire_type type, const int rows) {
    return type == QUIRE_F16 ? (rows <= 2 ? 8 : 4) : rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

/* What a weight of 1 and its sum are worth. */
INLINE float narrow_unit(const quire_type type) { return type == QUIRE_F16 ? FP16_UNIT : 1; }

/* q of a tile of rows. */
typedef union narrow_query {
    fp16_query fp16;
    bf16_query bf16;
} narrow_query;

static void narrow_prepare(quire_type type, int rows, const float *q, int dim, narrow_query *to) {
    if (type == QUIRE_F16)
        fp16_prepare(rows, q, dim, &to->fp16);
    else
        bf16_prepare(rows, q, dim, &to->bf16);
}

/* Dot products of rows of q with `tokens` tokens, rows of results `stride` apart. */
INLINE void narrow_dots(const quire_type type, const int rows, const int tokens,
                        const narrow_query *q, const uint8_t *const *k, int dim, float *to,
                        size_t stride) {
    if (type == QUIRE_F16)
        fp16_dots(rows, tokens, &q->fp16, k, dim, to, stride);
    else
        bf16_dots(rows, tokens, &q->bf16, k, dim, to, stride);
}

/* Turns the scores of a row, padded with -inf to a multiple of 16, into weights 2^(s - m) in the
 * same place; returns their sum. */
static float narrow_weights(quire_type type, float *s, int n_tokens, float m) {
    return type == QUIRE_F16 ? fp16_weights(s, n_tokens, m) : bf16_weights(s, n_tokens, m);
}

/* acc[r][j] += weights of row r times V, channels d + 4 * j on. Rows of weights are as far apart as
 * rows of scores. `ahead`: where to fetch n lines per eight tokens from meanwhile, or NULL. */
INLINE void narrow_values(const quire_type type, const int rows, const int n, const float *weights,
                          const uint8_t *const *v, int n_tokens, int d,
                          fvec acc[TILE_ROWS][VALUE_SUMS], const uint8_t *ahead) {
    if (type == QUIRE_F16)
        fp16_values(rows, n, weights, v, n_tokens, d, acc, ahead);
    else
        bf16_values(rows, n, weights, v, n_tokens, d, acc, ahead);
}

#endif
