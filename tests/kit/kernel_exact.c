#include "kernel_exact.h"

#include <math.h>
#include <string.h>

#include "codec/family.h"
#include "codec/tables.h"

enum { TOKENS = QUIRE_PAGE_TOKENS, SMALL_QUERY = 120, SMALL_CODE = 1 };

static double power(int e) { return ldexp(1, e); }

/* ------------------------------------------------------------------ codes */

static int random_pattern(const quire_side_format *side, int d, int limit, rng *r) {
    if (side->bits < 8)
        return rng_below(r, 1 << quire__code_bits(side, d));
    return (uint8_t)(int8_t)(rng_below(r, 2 * limit + 1) - limit);
}

static void random_codes(const quire_side_format *side, int limit, rng *r, uint8_t *codes) {
    const int dim = side->dim;
    const int bottom = side->bits == 8 ? (uint8_t)(int8_t)-limit : 0;
    for (int i = 0; i < TOKENS * dim; i++)
        codes[i] = (uint8_t)random_pattern(side, i % dim, limit, r);
    for (int d = 0; d < dim; d++) { /* extremes, among the others */
        codes[7 * dim + d] = (uint8_t)bottom;
        codes[42 * dim + d] =
            (uint8_t)(side->bits == 8 ? limit : (1 << quire__code_bits(side, d)) - 1);
    }
}

/* The integer that a pattern stands for, less the middle: a multiple of a half. */
static double centred(const quire_side_format *side, int d, uint8_t pattern) {
    return (side->book        ? side->book[pattern]
            : side->bits == 8 ? (int8_t)pattern
                              : pattern) -
           (double)quire__code_mid(side, d);
}

/* ----------------------------------------------------------------- q: what the integers must be */

typedef struct int_query {
    double x[QUIRE_DIM_MAX]; /* in steps of its group, with quarters to be rounded; the largest of a
                                group is whole */
} int_query;

static void random_query(const quire_side_format *k, bool small, rng *r, int_query *q) {
    /* Sums stay below 2^24 of their smallest steps; groups add up in steps of very different
     * sizes. */
    const bool many = k->dim > 256 || (k->bits == 8 && k->n_groups > 1);
    const int steps = k->bits == 8 ? 127 * 128 : 127, range = small  ? SMALL_QUERY
                                                              : many ? steps / 4
                                                                     : steps;
    for (int d = 0; d < k->dim; d++)
        q->x[d] = rng_below(r, 2 * range - 1) - (range - 1) + 0.25 * (rng_below(r, 4) - 2);
    for (int g = 0; g < k->n_groups; g++)
        q->x[g * k->group + rng_below(r, k->group)] = rng_below(r, 2) ? steps : -steps;
}

/* Exponents of two: of a channel's scale, of a page's, of a group's step of q, of a token's
 * scale. */
static int channel_power(int d) { return d % 5 - 2; }
static int page_power(int page) { return page % 2; }
static int group_power(int g) { return g % 3; }
static int token_power(int g, int t) { return (g + t) % 4 - 2; }

static double token_scale(const quire_side_format *k, int g, int t) {
    const bool negative = case_signed_scales(k) && (g + t) % 3 == 0;
    return (negative ? -1 : 1) * power(token_power(g, t));
}

static void put_query(const quire_side_format *k, const int_query *q, float *to) {
    for (int d = 0; d < k->dim; d++)
        to[d] =
            (float)(q->x[d] * power(k->family == QUIRE_FAMILY_CHANNEL ? -channel_power(d)
                                                                      : group_power(d / k->group)));
}

static void put_k_params(const quire_side_format *k, int page, bool signs_alone, uint8_t *record) {
    if (k->family == QUIRE_FAMILY_CHANNEL) {
        for (int d = 0; d < k->dim; d++)
            quire__put_param(k, record, (size_t)d,
                             (float)power(channel_power(d) + page_power(page)));
        return;
    }
    for (int g = 0; g < k->n_groups; g++)
        for (int t = 0; t < TOKENS; t++) {
            const double s = token_scale(k, g, t);
            quire__put_param(k, record, (size_t)(g * TOKENS + t), (float)s);
            if (k->family ==
                QUIRE_FAMILY_AFFINE) /* cancels the middle: what remains is scale * (code - mid) */
                quire__put_param(k, record, (size_t)((k->n_groups + g) * TOKENS + t),
                                 (float)(-s * (double)k->mid_steps));
            if (k->family == QUIRE_FAMILY_PROD)
                quire__put_param(k, record, (size_t)(TOKENS + t), signs_alone);
        }
}

/* K of tq: small integers, whose products add up exactly; q itself is free, for the codes meet
 * q_rotated. */
static void put_mean(const quire_side_format *k, rng *r, uint8_t *record) {
    for (int d = 0; d < k->dim; d++)
        quire__put_param(k, record, k->zeros + (size_t)d, (float)(rng_below(r, 7) - 3));
}

static double mean_logit(const quire_side_format *k, const float *q, const uint8_t *record) {
    double dot = 0;
    for (int d = 0; d < k->dim; d++)
        dot += (double)q[d] * (double)quire__side_param(k, record, k->zeros + (size_t)d);
    return dot;
}

static double expected_logit(const quire_side_format *k, const int_query *q, int page, int t,
                             const uint8_t *codes) {
    double total = 0;
    for (int g = 0; g < k->n_groups; g++) {
        double dot = 0, sum = 0;
        for (int d = g * k->group; d < (g + 1) * k->group; d++) {
            dot += nearbyint(q->x[d]) * centred(k, d, codes[t * k->dim + d]);
            sum += q->x[d];
        }
        if (k->family == QUIRE_FAMILY_CHANNEL)
            return power(page_power(page)) * dot;
        const double zero = k->family == QUIRE_FAMILY_BLOCK ? (double)k->mid_steps * sum : 0;
        total += token_scale(k, g, t) * power(group_power(g)) * (dot + zero);
    }
    return total * (double)k->unit;
}

static double expected_sign_logit(const quire_side_format *k, const int_query *q, int t,
                                  const uint8_t *signs) {
    double dot = 0;
    for (int d = 0; d < k->dim; d++)
        dot += nearbyint(q->x[d]) * (2 * signs[t * k->dim + d] - 1);
    return token_scale(k, 0, t) * (double)QUIRE_SQRT_HALF_PI * power(group_power(0)) * dot;
}

/* ------------------------------------------------------------------ V */

static void put_values(exact_case *e, int page, rng *r) {
    const quire_side_format *v = &e->c.format.v;
    uint8_t *codes = malloc((size_t)(TOKENS * v->dim)), *record = e->c.record[page].data;
    random_codes(v, v->family == QUIRE_FAMILY_AFFINE ? 128 : 127, r, codes);
    for (int i = 0; v->bits == 8 && i < TOKENS * v->dim; i++)
        if (codes[i] == 0x80 && v->family != QUIRE_FAMILY_AFFINE)
            codes[i] = 0x81; /* no code of theirs */
    case_put_codes(&e->c, page, true, codes, NULL);
    for (int g = 0; g < v->n_groups; g++)
        for (int t = 0; t < TOKENS; t++) {
            float s = t % 11 == 5 ? 0
                                  : (0.1f + (float)rng_uniform(r)) *
                                        (case_signed_scales(v) && rng_below(r, 2) ? -1 : 1),
                  zero = 0;
            quire__put_param(v, record, (size_t)(g * TOKENS + t), s);
            s = quire__side_param(v, record, (size_t)(g * TOKENS + t));
            if (v->family == QUIRE_FAMILY_AFFINE) {
                const size_t at = (size_t)((v->n_groups + g) * TOKENS + t);
                quire__put_param(v, record, at, rng_normal(r));
                zero = quire__side_param(v, record, at);
            }
            for (int d = g * v->group; d < (g + 1) * v->group; d++) {
                const size_t at = (size_t)((page * TOKENS + t) * v->dim + d);
                const double step = (double)s * (double)v->unit,
                             c = centred(v, d, codes[t * v->dim + d]);
                e->v[at] = step * (c + (double)v->mid_steps) + (double)zero;
                e->v_error[at] =
                    0x1p-20 *
                    (fabs(step) * (fabs(c) + fabs((double)v->mid) + fabs((double)v->mid_steps)) +
                     fabs((double)zero));
            }
        }
    free(codes);
}

/* ------------------------------------------------------------------ */

bool exact_open(exact_case *e, const case_shape *shape, exact_data data, rng *r) {
    *e = (exact_case){.n_tokens = shape->n_pages * TOKENS};
    if (!case_open(&e->c, shape, true))
        return false;
    kernel_case *c = &e->c;
    const quire_side_format *k = &c->format.k;
    const bool signs_alone = data == EXACT_SIGNS,
               small_query = k->bits == 8 && data == EXACT_LARGE_CODES;
    const int n = case_heads(c), dim = k->dim, limit = data == EXACT_LARGE_CODES ? 127 : SMALL_CODE;
    const size_t tokens = (size_t)e->n_tokens;
    e->logit = malloc((size_t)n * tokens * sizeof *e->logit);
    e->quantum = malloc(tokens * sizeof *e->quantum);
    e->v = malloc(tokens * (size_t)shape->v_dim * sizeof *e->v);
    e->v_error = malloc(tokens * (size_t)shape->v_dim * sizeof *e->v_error);
    int_query *q = malloc((size_t)n * sizeof *q);
    memset(c->q.data, 0, c->q.bytes);
    if (c->q_rotated.data)
        memset(c->q_rotated.data, 0, c->q_rotated.bytes);
    if (c->q_projected.data)
        memset(c->q_projected.data, 0, c->q_projected.bytes);
    float *rows = signs_alone ? c->q_projected.data : k->rotated ? c->q_rotated.data : c->q.data;
    for (int i = 0; i < n; i++) {
        random_query(k, small_query, r, &q[i]);
        put_query(k, &q[i], rows + i * dim);
    }
    const bool centred_k = k->family == QUIRE_FAMILY_BOOK;
    for (int i = 0; i < n * dim && centred_k; i++)
        ((float *)c->q.data)[i] = (float)(rng_below(r, 7) - 3);
    uint8_t *codes = malloc((size_t)(TOKENS * dim)), *signs = malloc((size_t)(TOKENS * dim));
    for (int p = 0; p < c->n_pages; p++) {
        random_codes(k, limit, r, codes);
        if (small_query) /* the large channels of q against small codes: only a sum below 2^24 is
                            exact */
            for (int d = 0; d < dim; d++)
                for (int i = 0; i < n; i++)
                    if (fabs(q[i].x[d]) > SMALL_QUERY)
                        for (int t = 0; t < TOKENS; t++)
                            codes[t * dim + d] =
                                (uint8_t)(int8_t)(t % (2 * SMALL_CODE + 1) - SMALL_CODE);
        for (int i = 0; i < TOKENS * dim; i++)
            signs[i] = (uint8_t)rng_below(r, 2);
        case_put_codes(c, p, false, codes, k->sign_bytes ? signs : NULL);
        put_k_params(k, p, signs_alone, c->record[p].data);
        if (centred_k)
            put_mean(k, r, c->record[p].data);
        put_values(e, p, r);
        for (int t = 0; t < TOKENS; t++) {
            const size_t at = (size_t)(p * TOKENS + t);
            const double unit = token_scale(k, 0, t) * (double)k->unit;
            e->quantum[at] = signs_alone    ? token_scale(k, 0, t)
                             : k->unit == 1 ? 0
                             : k->mid == 0  ? unit
                                            : 0.5 * unit;
            for (int i = 0; i < n; i++)
                e->logit[(size_t)i * tokens + at] =
                    (signs_alone ? expected_sign_logit(k, &q[i], t, signs)
                                 : expected_logit(k, &q[i], p, t, codes)) +
                    (centred_k
                         ? mean_logit(k, (const float *)c->q.data + i * dim, c->record[p].data)
                         : 0);
        }
    }
    free(codes), free(signs), free(q);
    return true;
}

void exact_see_one(exact_case *e, int first) {
    const int n = case_heads(&e->c), before = e->c.job.first_page * TOKENS;
    const size_t stride = e->c.mask.data ? e->c.job.see.mask_head_stride : 0;
    float *mask = e->c.mask.data ? e->c.mask.data : case_add_mask(&e->c);
    const size_t tokens = stride ? stride : e->c.job.see.mask_head_stride;
    if (!e->only)
        e->only = malloc((size_t)n * sizeof *e->only);
    for (int i = 0; i < n; i++) {
        for (size_t t = 0; t < tokens; t++)
            mask[(size_t)i * tokens + t] = -INFINITY;
        e->only[i] = (first + i) % e->n_tokens;
        mask[(size_t)i * tokens + (size_t)(before + e->only[i])] = 0;
    }
}

static void check_logit(const exact_case *e, const kernel_level *level, int i, double m) {
    double wanted = -INFINITY, quantum = 0;
    int token = 0;
    for (int t = 0; t < e->n_tokens; t++) {
        const double x = e->logit[(size_t)i * (size_t)e->n_tokens + (size_t)t];
        if (e->c.job.record[t / TOKENS] && (!e->only || e->only[i] == t) && x > wanted) {
            wanted = x;
            token = t;
            quantum = e->quantum[t];
        }
    }
    if (isinf(wanted)) {
        assert_true(m == (double)QUIRE_NOTHING_SEEN);
        return;
    }
    /* A fifth of a step: fp32 rounding of a product of three stays below while the integer is
     * below 2^19. */
    if (quantum == 0 ? m != wanted
                     : !(fabs(m - wanted) < 0.2 * quantum) || fabs(wanted) > 0x1p19 * quantum)
        fail_msg("%s, %s: row %d, token %d: logit %.9g instead of %.9g, steps of %g", level->name,
                 e->c.text, i, token, m, wanted, quantum);
}

void exact_check(exact_case *e, const kernel_level *level) {
    case_result r = case_attend(&e->c, level);
    const int dim = e->c.format.v.dim;
    for (int i = 0; i < case_heads(&e->c); i++) {
        check_logit(e, level, i, (double)r.m[i]);
        if (!e->only)
            continue;
        const bool seen = e->c.job.record[e->only[i] / TOKENS] != NULL;
        if (!(fabs((double)r.l[i] - (seen ? 1 : 0)) <=
              (seen ? 1e-4 : 0))) /* 2^0, as exactly as 2^x is computed */
            fail_msg("%s, %s: row %d: l is %.9g", level->name, e->c.text, i, (double)r.l[i]);
        for (int d = 0; d < dim; d++) {
            const size_t at = (size_t)(e->only[i] * dim + d);
            const double o = (double)r.o[i * dim + d];
            if (seen ? !(fabs(o / (double)r.l[i] - e->v[at]) <= e->v_error[at]) : o != 0)
                fail_msg("%s, %s: row %d, token %d, channel %d: %.9g instead of %.9g", level->name,
                         e->c.text, i, e->only[i], d, o / (double)r.l[i], e->v[at]);
        }
    }
    result_free(&r);
}

void exact_close(exact_case *e) {
    free(e->logit), free(e->quantum), free(e->v), free(e->v_error), free(e->only);
    case_close(&e->c);
}
