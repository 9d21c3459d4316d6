/* Rounding that knows the queries: K with a scale per channel (kc, km; fewer than 8 bits).
 *
 * What an error e of a token's K does to its logits is e.q, on average e^T M e with M = E[q q^T]. Rounding every channel for
 * itself minimises that only where M is diagonal. Here channels are rounded one after the other, and each takes over what it
 * can of the errors before it:
 *
 *     M + damping = (I + U) D (I + U)^T,  U strictly upper triangular, D diagonal
 *     code[j] = nearest(x[j] + sum over i < j of (x[i] - value[i]) * U[i][j])
 *
 * which leaves sum D[j] r[j]^2, r being plain rounding errors, instead of sum M[j][j] r[j]^2. Reading is as without it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/real.h"
#include "codec/family.h"

enum { TOGETHER = 16 }; /* tokens: their sums stay in registers */

/* Of the mean of M's diagonal. M is an estimate, and inputs drift; between .01 and .1 it makes no difference. */
static const double DAMPING = 0.03;

static quire_status check_moment(const float *moment, const uint16_t *order, int32_t n) {
    for (int32_t i = 0; i < n * n; i++)
        if (!isfinite(moment[i]))
            return quire__fail(QUIRE_E_VALUE, "moment of channels %d and %d is not finite", (int)(i / n), (int)(i % n));
    for (int32_t d = 0; d < n; d++)
        if (moment[d * n + d] < 0)
            return quire__fail(QUIRE_E_VALUE, "the mean square of channel %d is negative", (int)d);
    if (order && quire__order_fault(order, n) < n)
        return quire__fail(QUIRE_E_INVALID, "order is not a permutation");
    return QUIRE_OK;
}

/* The upper triangle of m becomes U, its diagonal D. */
static void factor(double *m, int n) {
    for (int k = n - 1; k > 0; k--)
        for (int j = 0; j < k; j++) {
            const double weight = m[j * n + k] / m[k * n + k];
            for (int i = 0; i <= j; i++)
                m[i * n + j] -= weight * m[i * n + k];
        }
    for (int k = 1; k < n; k++)
        for (int i = 0; i < k; i++)
            m[i * n + k] /= m[k * n + k];
}

quire_status quire_channel_feedback(const float *moment, const uint16_t *order, int32_t k_dim, float *feedback) {
    if (!moment || !feedback)
        return quire__fail(QUIRE_E_INVALID, "moment or feedback is NULL");
    QUIRE_TRY(quire__check_k_dim(k_dim));
    QUIRE_TRY(check_moment(moment, order, k_dim));
    const int n = k_dim;
    double mean = 0;
    for (int d = 0; d < n; d++)
        mean += (double)moment[d * n + d] / n;
    if (mean == 0) { /* no query seen: plain rounding */
        memset(feedback, 0, quire__n_feedback(n) * sizeof *feedback);
        return QUIRE_OK;
    }
    double *m = malloc((size_t)(n * n) * sizeof *m);
    if (!m)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            const int a = order ? order[i] : i, b = order ? order[j] : j;
            m[i * n + j] = (double)moment[a * n + b] + (i == j ? DAMPING * mean : 0);
        }
    factor(m, n);
    bool definite = true;
    for (int d = 0; d < n; d++)
        definite = definite && m[d * n + d] > 0;
    for (int j = 1; j < n && definite; j++)
        for (int i = 0; i < j; i++)
            *feedback++ = (float)m[i * n + j];
    free(m);
    return definite ? QUIRE_OK : quire__fail(QUIRE_E_VALUE, "moment is no second moment: it is not positive definite");
}

/* Codes (64, D) with the parameters that the record has already. */
static void shape_codes(const quire_side_format *side, const float *rows, int skip, const float *feedback,
                        const uint8_t *record, uint8_t *codes) {
    const int dim = side->dim;
    float error[QUIRE_DIM_MAX][TOGETHER];
    for (int first = 0; first < T; first += TOGETHER) {
        const float *weight = feedback;
        for (int d = 0; d < dim; d++, weight += d - 1) {
            const float scale = quire__side_param(side, record, (size_t)d);
            const float zero = quire__side_param(side, record, side->zeros + (size_t)d);
            const float inverse = scale > 0 ? 1.0f / scale : 0, mid = quire__code_mid(side, d);
            const float highest = (float)quire__highest_code(side, d);
            float carried[TOGETHER] = {0}, x[TOGETHER];
            for (int i = 0; i < d; i++)
                for (int t = 0; t < TOGETHER; t++)
                    carried[t] += weight[i] * error[i][t];
            for (int t = 0; t < TOGETHER; t++)
                x[t] = first + t < skip ? zero : rows[(first + t) * dim + d];
            for (int t = 0; t < TOGETHER; t++) {
                float code = (x[t] + carried[t] - zero) * inverse + mid;
                code = code < 0 ? 0 : code > highest ? highest : code;
                code = (code + QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC;
                error[d][t] = x[t] - (zero + scale * (code - mid));
                codes[(first + t) * dim + d] = (uint8_t)code;
            }
        }
    }
    for (int i = 0; i < skip * dim; i++)
        codes[i] = 0;
}

void quire__side_shape(const quire_side_format *side, const float *rows, int skip, const float *feedback,
                       uint8_t *record) {
    uint8_t codes[T * QUIRE_DIM_MAX];
    shape_codes(side, rows, skip, feedback, record, codes);
    memset(record + side->codes, 0, side->code_bytes);
    quire__side_pack(side, codes, record);
}
