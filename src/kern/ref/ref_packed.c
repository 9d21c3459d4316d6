/* Attention over one chunk of packed pages, in the integer arithmetic of kern.h. */
#include <string.h>

#include "base/element.h"
#include "base/real.h"
#include "codec/tables.h"
#include "kern/ref/ref.h"
#include "kern/shared/job.h"

/* ------------------------------------------------------------------ K: scores of one page */

/* What the values shared by all tokens of a page add to its scores; q is not rotated. */
static float zeros_dot(const quire_ref_keys *page, const float *q) {
    const int dim = page->side->dim;
    float zero[QUIRE_DIM_MAX];
    if (!page->side->zeros)
        return 0;
    for (int d = 0; d < dim; d++)
        zero[d] = quire__side_param(page->side, page->record, page->side->zeros + (size_t)d);
    return quire__sum_of_products(q, zero, dim);
}

/* Scale and zero of every scale group and token, such that value = scale * (code - mid) + zero. */
static void load_scale_groups(const quire_side_format *side, const uint8_t *record, float *scale,
                              float *zero) {
    for (int g = 0; g < side->n_groups; g++)
        for (int t = 0; t < T; t++) {
            const size_t i = (size_t)(g * T + t);
            const float s = quire__side_param(side, record, i);
            scale[i] = s * side->unit;
            zero[i] = s * side->mid_steps;
            if (side->family == QUIRE_FAMILY_AFFINE)
                zero[i] += quire__side_param(side, record, (size_t)((side->n_groups + g) * T + t));
        }
}

static void load_k(quire_ref_keys *page, const quire_side_format *side, const uint8_t *record) {
    page->side = side;
    page->record = record;
    if (side->family == QUIRE_FAMILY_RAW)
        return;
    quire__side_expand(side, record, page->codes);
    if (side->family == QUIRE_FAMILY_PROD)
        quire__side_signs(side, record, page->signs);
    if (side->family != QUIRE_FAMILY_CHANNEL)
        load_scale_groups(side, record, page->scale, page->zero);
}

/* Integer dot product minus that of q with the middles: doubled, so that it stays an integer. */
static float centred(const quire_side_format *side, int32_t dot, int32_t centre) {
    if (side->mid == 0)
        return (float)dot; /* doubled, 8-bit codes of a long row would overflow */
    return (float)(2 * dot - centre) * 0.5f;
}

static void score_raw(const quire_ref_keys *page, const float *q, float *scores /* (64) */) {
    const int dim = page->side->dim;
    float row[QUIRE_DIM_MAX];
    for (int t = 0; t < T; t++) {
        quire__row_from_raw(page->side->type,
                            page->record + page->side->codes +
                                (size_t)(t * dim) * quire__type_bytes(page->side->type),
                            (size_t)dim, row);
        scores[t] = quire__sum_of_products(q, row, dim);
    }
}

static void score_prod_signs(const quire_ref_keys *page, const float *q_projected, float *scores) {
    const quire_side_format *side = page->side;
    quire_int_query q;
    int32_t dots[T];
    quire__ref_quantize_query(side, page->record, q_projected, &q);
    quire__ref_dot_page(side, &q, page->signs, dots);
    for (int t = 0; t < T; t++) {
        const float residual =
            quire__side_param(side, page->record, (size_t)(T + t)) * QUIRE_SQRT_HALF_PI;
        const float scale = quire__side_param(side, page->record, (size_t)t);
        scores[t] += scale * residual * q.scale[0] * (float)(2 * dots[t] - q.sum[0]);
    }
}

static void score_page(const quire_attend_job *job, const quire_ref_keys *page, int i,
                       float *scores /* (64) */) {
    const quire_side_format *side = page->side;
    const int dim = side->dim;
    const float *q = (side->rotated ? job->q_rotated : job->q) + i * dim;
    if (side->family == QUIRE_FAMILY_RAW) {
        score_raw(page, q, scores);
        return;
    }
    quire_int_query integers;
    int32_t dots[QUIRE_MAX_SCALE_GROUPS * T];
    quire__ref_quantize_query(side, page->record, q, &integers);
    quire__ref_dot_page(side, &integers, page->codes, dots);
    const float offset = zeros_dot(page, job->q + i * dim);
    if (side->family == QUIRE_FAMILY_CHANNEL) {
        for (int t = 0; t < T; t++)
            scores[t] = integers.scale[0] * centred(side, dots[t], integers.centre[0]) + offset;
        return;
    }
    for (int t = 0; t < T; t++)
        scores[t] = offset;
    for (int g = 0; g < side->n_groups; g++) {
        float q_sum = 0;
        for (int d = 0; d < side->group; d++)
            q_sum += q[g * side->group + d];
        for (int t = 0; t < T; t++) {
            const float scale = page->scale[g * T + t] * integers.scale[g];
            scores[t] += scale * centred(side, dots[g * T + t], integers.centre[g]) +
                         page->zero[g * T + t] * q_sum;
        }
    }
    if (side->family == QUIRE_FAMILY_PROD)
        score_prod_signs(page, job->q_projected + i * dim, scores);
}

/* --------------------------------------------------------------- V: weighted sum over one block */

static void load_v(quire_ref_values *block, const quire_side_format *side,
                   const uint8_t *const *record) {
    block->side = side;
    for (int p = 0; p < QUIRE_BLOCK_PAGES; p++) {
        block->record[p] = record[p];
        if (!record[p] || side->family == QUIRE_FAMILY_RAW)
            continue;
        float scale[QUIRE_MAX_SCALE_GROUPS * T], zero[QUIRE_MAX_SCALE_GROUPS * T];
        quire__side_expand(side, record[p], block->codes + p * T * side->dim);
        load_scale_groups(side, record[p], scale, zero);
        for (int g = 0; g < side->n_groups; g++) {
            memcpy(block->scale + g * BLOCK + p * T, scale + g * T, T * sizeof *scale);
            memcpy(block->zero + g * BLOCK + p * T, zero + g * T, T * sizeof *zero);
        }
    }
}

static void add_raw_values(const quire_ref_values *block, const float *e, float factor, float *o) {
    const quire_side_format *side = block->side;
    const size_t row_bytes = (size_t)side->dim * quire__type_bytes(side->type);
    float row[QUIRE_DIM_MAX], sum[QUIRE_DIM_MAX] = {0};
    for (int t = 0; t < BLOCK; t++) {
        if (e[t] == 0)
            continue;
        quire__row_from_raw(side->type,
                            block->record[t / T] + side->codes + (size_t)(t % T) * row_bytes,
                            (size_t)side->dim, row);
        for (int d = 0; d < side->dim; d++)
            sum[d] += e[t] * row[d];
    }
    for (int d = 0; d < side->dim; d++)
        o[d] += factor * sum[d];
}

/* o += factor * sum of e[t] * V[t] over the block. Where a scale is negative the code is reflected
 * about its middle (c -> 2 mid - c), so that weights are never negative and fit unsigned bytes. */
static void add_values(const quire_ref_values *block, const float *e /* (128), 0: hidden */,
                       float factor, float *o /* (DV) */) {
    const quire_side_format *side = block->side;
    if (side->family == QUIRE_FAMILY_RAW) {
        add_raw_values(block, e, factor, o);
        return;
    }
    const float steps = side->bits == 8 ? 65535 : 255; /* 8-bit V: two u8 planes */
    const int32_t twice_mid = (int32_t)(2 * side->mid);
    for (int g = 0; g < side->n_groups; g++) {
        const float *scale = block->scale + g * BLOCK, *zero = block->zero + g * BLOCK;
        float largest = 0, constant = 0;
        float w[BLOCK];
        for (int t = 0; t < BLOCK; t++) {
            w[t] = e[t] == 0 ? 0 : e[t] * fabsf(scale[t]);
            if (e[t] != 0)
                constant += e[t] * zero[t];
            if (w[t] > largest)
                largest = w[t];
        }
        int32_t sum = 0, acc[QUIRE_DIM_MAX] = {0};
        const float inverse = largest > 1e-30f ? steps / largest : 0;
        for (int t = 0; t < BLOCK; t++) {
            const int32_t p = quire__round_product(w[t], inverse);
            if (p == 0)
                continue;
            const int8_t *c = block->codes + t * side->dim + g * side->group;
            sum += p;
            if (scale[t] < 0)
                for (int d = 0; d < side->group; d++)
                    acc[d] += p * (twice_mid - c[d]);
            else
                for (int d = 0; d < side->group; d++)
                    acc[d] += p * c[d];
        }
        const float unit = largest / steps;
        float *out = o + g * side->group;
        for (int d = 0; d < side->group; d++)
            out[d] += factor * (unit * ((float)acc[d] - side->mid * (float)sum) + constant);
    }
}

/* ------------------------------------------------------------------ the block loop */

static void attend_block(quire_attend_job *job, const quire_state *state,
                         int first /* page of the chunk */, quire_ref_workspace *ws) {
    const quire_format *f = job->format;
    const int n = job->n_rows * job->n_group, dv = f->v.dim;
    float *scores = job->scratch;
    for (int i = 0; i < n * BLOCK; i++)
        scores[i] = -INFINITY;
    for (int p = 0; p < QUIRE_BLOCK_PAGES; p++) {
        const uint8_t *record = job->record[first + p];
        if (!record)
            continue;
        load_k(&ws->k, &f->k, record);
        job->bytes_read += f->v.codes;
        const int32_t t0 = first_token(job, first + p);
        for (int i = 0; i < n; i++) {
            float page[T];
            score_page(job, &ws->k, i, page);
            for (int t = t0 < job->skip ? job->skip - t0 : 0; t < T; t++)
                scores[i * BLOCK + p * T + t] = quire__ref_logit(&job->see, i / job->n_group,
                                                                 i % job->n_group, t0 + t, page[t]);
        }
    }
    bool loaded = false; /* V is not read if every row drops the block */
    for (int i = 0; i < n; i++) {
        float top = QUIRE_NOTHING_SEEN, *s = scores + i * BLOCK;
        for (int t = 0; t < BLOCK; t++)
            if (s[t] > top)
                top = s[t];
        if (top == QUIRE_NOTHING_SEEN || top < state->m[i] - QUIRE_DROP_BELOW)
            continue;
        if (!loaded) {
            load_v(&ws->v, &f->v, job->record + first);
            for (int p = 0; p < QUIRE_BLOCK_PAGES; p++)
                if (job->record[first + p])
                    job->bytes_read += f->bytes - f->v.codes;
            loaded = true;
        }
        float sum = 0;
        for (int t = 0; t < BLOCK; t++) {
            s[t] = s[t] > QUIRE_NOTHING_SEEN ? quire__exp2(s[t] - top) : 0;
            sum += s[t];
        }
        float factor = 1;
        if (top > state->m[i]) {
            const float old = quire__exp2(state->m[i] - top);
            for (int d = 0; d < dv; d++)
                state->o[i * dv + d] *= old;
            state->l[i] *= old;
            state->m[i] = top;
        } else {
            factor = quire__exp2(top - state->m[i]);
        }
        state->l[i] += factor * sum;
        add_values(&ws->v, s, factor, state->o + i * dv);
    }
}

void quire__ref_attend_packed(quire_attend_job *job, const quire_state *state) {
    quire_ref_workspace *ws = job->workspace;
    quire__ref_empty_state(job, state);
    for (int first = 0; first < QUIRE_CHUNK_PAGES; first += QUIRE_BLOCK_PAGES)
        if (job->record[first] || job->record[first + 1])
            attend_block(job, state, first, ws);
}
