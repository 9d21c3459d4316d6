/* Query-aware rounding of K with a scale per channel (kc, km; fewer than 8 bits).
 *
 * An error e of a token's K changes its logit by e.q; the mean square of that is e^T M e with
 * M = E[q q^T]. Rounding every channel on its own minimises it only if M is diagonal. Here channels
 * are rounded one after the other, and each compensates what it can of the errors before it:
 *
 *     M + damping = (I + U) D (I + U)^T,  U strictly upper triangular, D diagonal
 *     code[j] = nearest(x[j] + sum over i < j of (x[i] - value[i]) * U[i][j])
 *
 * This leaves sum D[j] r[j]^2, where r are plain rounding errors, instead of sum M[j][j] r[j]^2.
 * Pages are read as without it.
 *
 * M depends on the position of the page, because RoPE turns pairs of channels of K and q by their
 * positions. But queries come from the same distances to a page, wherever it lies, so M of page p
 * is M of page 0 with every pair turned by 64 p positions. Channels are therefore rounded pair
 * after pair, with U and D in blocks of 2 x 2: turning M then turns each block of U and D and
 * leaves them triangular. So one U serves all pages: errors are turned back to page 0 and weighted
 * there, and the correction of a pair is turned to the page again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/real.h"
#include "codec/family.h"

enum { TOGETHER = 16 }; /* tokens: their sums stay in registers */

/* Relative to the mean of M's diagonal. Needed because M is an estimate, and inputs drift; with 0.1
 * the median gain on K alone drops by 3 to 5 %. */
static const double DAMPING = 0.03;

static quire_status check_moment(const float *moment, int32_t n) {
    for (int32_t i = 0; i < n * n; i++)
        if (!isfinite(moment[i]))
            return quire__fail(QUIRE_E_VALUE, "moment of channels %d and %d is not finite",
                               (int)(i / n), (int)(i % n));
    for (int32_t d = 0; d < n; d++)
        if (moment[d * n + d] < 0)
            return quire__fail(QUIRE_E_VALUE, "the mean square of channel %d is negative", (int)d);
    return QUIRE_OK;
}

/* The channel that is rounded as number i. */
static int channel_at(const quire_rope_pairs *pairs, int i) {
    return i % 2 ? pairs->second[i / 2] : pairs->first[i / 2];
}

/* Factors m in place: its upper triangle becomes U, its diagonal D. */
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

static void write_pair(const double *m, int n, int j, float *to) {
    const int first = 2 * j, second = first + 1;
    const double share = m[first * n + second], d0 = m[first * n + first],
                 d1 = m[second * n + second];
    for (int i = 0; i < first; i++) {
        to[i] = (float)m[i * n + first];
        /* The rest reaches the second channel through the first. */
        to[first + i] = (float)(m[i * n + second] - share * m[i * n + first]);
    }
    /* The block of D is (d00, d01; d01, d1). */
    const double d00 = d0 + share * share * d1, d01 = share * d1;
    to[2 * first] = (float)((d00 - d1) / (d00 + d1));
    to[2 * first + 1] = (float)(2 * d01 / (d00 + d1));
}

quire_status quire_channel_feedback(const float *moment, const quire_rope *rope, int32_t k_dim,
                                    float *feedback) {
    if (!moment || !feedback)
        return quire__fail(QUIRE_E_INVALID, "moment or feedback is NULL");
    QUIRE_TRY(quire__check_k_dim(k_dim));
    quire_rope_pairs pairs;
    QUIRE_TRY(quire__rope_pairs_init(&pairs, rope, k_dim));
    QUIRE_TRY(check_moment(moment, k_dim));
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
        for (int j = 0; j < n; j++)
            m[i * n + j] = (double)moment[channel_at(&pairs, i) * n + channel_at(&pairs, j)] +
                           (i == j ? DAMPING * mean : 0);
    factor(m, n);
    bool definite = true;
    for (int d = 0; d < n; d++)
        definite = definite && m[d * n + d] > 0;
    for (int j = 0; j < n / 2 && definite; j++)
        write_pair(m, n, j, feedback + quire__feedback_at(j));
    free(m);
    return definite ? QUIRE_OK
                    : quire__fail(QUIRE_E_VALUE,
                                  "moment is not a second moment: it is not positive definite");
}

quire_status quire__check_feedback(const float *feedback, int32_t dim) {
    for (size_t i = 0; i < quire__n_feedback(dim); i++)
        if (!isfinite(feedback[i]))
            return quire__fail(QUIRE_E_INVALID, "k_feedback[%zu] is not finite", i);
    for (int j = 0; j < dim / 2; j++) {
        const float *ellipse = feedback + quire__feedback_at(j) + 4 * j;
        if (!(ellipse[0] * ellipse[0] + ellipse[1] * ellipse[1] < 1))
            return quire__fail(
                QUIRE_E_INVALID,
                "k_feedback[%zu] and the next element are not the direction of an ellipse",
                quire__feedback_at(j) + 4 * (size_t)j);
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ a page */

void quire__page_feedback_init(quire_page_feedback *s, const quire_rope_pairs *pairs,
                               const float *feedback, const uint16_t *order, int32_t page) {
    uint16_t place_of[QUIRE_DIM_MAX];
    for (int p = 0; p < 2 * pairs->n; p++)
        place_of[order ? order[p] : p] = (uint16_t)p;
    s->feedback = feedback;
    for (int j = 0; j < pairs->n; j++) {
        const float *ellipse = feedback + quire__feedback_at(j) + 4 * j;
        const double angle = pairs->angle[j] * T * page, a = (double)ellipse[0],
                     b = (double)ellipse[1];
        const double c = cos(angle), i = sin(angle), cc = c * c - i * i,
                     ii = 2 * c * i; /* it turns twice as fast */
        s->place[2 * j] = place_of[pairs->first[j]];
        s->place[2 * j + 1] = place_of[pairs->second[j]];
        s->cosine[j] = (float)c;
        s->sine[j] = (float)i;
        s->within[j] = (float)((a * ii + b * cc) / (1 - (a * cc - b * ii))); /* D01 / D11 */
    }
}

/* Rounds a channel of 16 tokens; `error` gets the rounding errors of x. */
static void round_channel(const quire_side_format *side, const uint8_t *record, int place,
                          const float *x, const float *carried, float *error, uint8_t *codes) {
    const float scale = quire__side_param(side, record, (size_t)place);
    const float zero = quire__side_param(side, record, side->zeros + (size_t)place);
    const float inverse = scale > 0 ? 1.0f / scale : 0, mid = quire__code_mid(side, place);
    const float highest = (float)quire__highest_code(side, place);
    for (int t = 0; t < TOGETHER; t++) {
        float code = (x[t] + carried[t] - zero) * inverse + mid;
        code = code < 0 ? 0 : code > highest ? highest : code;
        code = (code + QUIRE_ROUND_MAGIC) - QUIRE_ROUND_MAGIC;
        error[t] = x[t] - (zero + scale * (code - mid));
        codes[t * side->dim + place] = (uint8_t)code;
    }
}

/* Skipped tokens take the zeros of their channels. */
static void load_channel(const quire_side_format *side, const uint8_t *record, const float *rows,
                         int first, int skip, int place, float *x) {
    const float zero = quire__side_param(side, record, side->zeros + (size_t)place);
    for (int t = 0; t < TOGETHER; t++)
        x[t] = first + t < skip ? zero : rows[(first + t) * side->dim + place];
}

/* Codes (64, D) for the parameters that the record already has. */
static void feedback_codes(const quire_side_format *side, const float *rows, int skip,
                           const quire_page_feedback *s, const uint8_t *record, uint8_t *codes) {
    const int n = side->dim;
    float error[QUIRE_DIM_MAX][TOGETHER]; /* in the frame of page 0 */
    for (int first = 0; first < T; first += TOGETHER) {
        uint8_t *at = codes + first * n;
        for (int d = 0; d < n; d += 2) {
            const float *weight = s->feedback + quire__feedback_at(d / 2), *next = weight + d;
            const float c = s->cosine[d / 2], i = s->sine[d / 2], within = s->within[d / 2];
            float x[TOGETHER], e0[TOGETHER], e1[TOGETHER], carried[TOGETHER], later[TOGETHER];
            float still0[TOGETHER] = {0}, still1[TOGETHER] = {0};
            for (int k = 0; k < d; k++)
                for (int t = 0; t < TOGETHER; t++) {
                    still0[t] += weight[k] * error[k][t];
                    still1[t] += next[k] * error[k][t];
                }
            for (int t = 0; t < TOGETHER; t++) {
                carried[t] = c * still0[t] - i * still1[t];
                later[t] = i * still0[t] + c * still1[t];
            }
            load_channel(side, record, rows, first, skip, s->place[d], x);
            round_channel(side, record, s->place[d], x, carried, e0, at);
            for (int t = 0; t < TOGETHER; t++)
                later[t] += within * (e0[t] + carried[t]);
            load_channel(side, record, rows, first, skip, s->place[d + 1], x);
            round_channel(side, record, s->place[d + 1], x, later, e1, at);
            for (int t = 0; t < TOGETHER; t++) {
                error[d][t] = c * e0[t] + i * e1[t];
                error[d + 1][t] = c * e1[t] - i * e0[t];
            }
        }
    }
    for (int i = 0; i < skip * n; i++)
        codes[i] = 0;
}

void quire__side_round_with_feedback(const quire_side_format *side, const float *rows, int skip,
                                     const quire_page_feedback *page_feedback, uint8_t *record) {
    uint8_t codes[T * QUIRE_DIM_MAX];
    feedback_codes(side, rows, skip, page_feedback, record, codes);
    memset(record + side->codes, 0, side->code_bytes);
    quire__side_pack(side, codes, record);
}
