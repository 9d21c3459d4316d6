/* Raw rows (a row's own page, raw sinks) in fp32, and the scoring rule that packed pages share. */
#include "base/element.h"
#include "base/real.h"
#include "kern/ref/ref.h"

/* tanh through exp2, for the soft-cap: absolute error below 2e-7. */
static float tanh_exp2(float x) {
    const float a = fabsf(x), e = quire__exp2(-2 * QUIRE_LOG2E * a), y = (1 - e) / (1 + e);
    return x < 0 ? -y : y;
}

float quire__ref_logit(const quire_visibility *see, int r, int h, int32_t t, float score) {
    if (!quire__sees(see, r, t))
        return -INFINITY;
    if (see->softcap_log2 > 0)
        score = see->softcap_log2 * tanh_exp2(score);
    if (see->alibi)
        score += see->alibi[h] * (float)(t - (see->first_position + r));
    if (see->mask)
        score += QUIRE_LOG2E * see->mask[(size_t)r * see->mask_row_stride +
                                         (size_t)h * see->mask_head_stride + (size_t)t];
    return score;
}

void quire__ref_empty_state(const quire_attend_job *job, const quire_state *state) {
    const int n = job->n_rows * job->n_group, dim = job->format->v.dim;
    for (int i = 0; i < n; i++) {
        state->m[i] = QUIRE_NOTHING_SEEN;
        state->l[i] = 0;
        for (int d = 0; d < dim; d++)
            state->o[i * dim + d] = 0;
    }
}

void quire__ref_attend_raw(quire_attend_job *job, const quire_state *state) {
    const int n = job->n_rows * job->n_group, dk = job->format->k.dim, dv = job->format->v.dim;
    const size_t size = quire__type_bytes(job->raw);
    float row[QUIRE_DIM_MAX];
    quire__ref_empty_state(job, state);
    for (int run = 0, at = 0; run < job->n_runs; at += job->run[run++].count)
        for (int j = 0; j < job->run[run].count; j++) {
            quire__row_from_raw(job->raw, job->run[run].k + (size_t)(j * dk) * size, (size_t)dk,
                                row);
            for (int i = 0; i < n; i++) {
                const float dot = quire__sum_of_products(job->q + i * dk, row, dk);
                const float s = quire__ref_logit(&job->see, i / job->n_group, i % job->n_group,
                                                 job->run[run].first + j, dot);
                job->scratch[i * QUIRE_BLOCK_TOKENS + at + j] = s;
                if (s > state->m[i])
                    state->m[i] = s;
            }
        }
    for (int run = 0, at = 0; run < job->n_runs; at += job->run[run++].count)
        for (int j = 0; j < job->run[run].count; j++) {
            quire__row_from_raw(job->raw, job->run[run].v + (size_t)(j * dv) * size, (size_t)dv,
                                row);
            for (int i = 0; i < n; i++) {
                const float s = job->scratch[i * QUIRE_BLOCK_TOKENS + at + j];
                if (!(s > QUIRE_NOTHING_SEEN))
                    continue;
                const float e = quire__exp2(s - state->m[i]);
                state->l[i] += e;
                for (int d = 0; d < dv; d++)
                    state->o[i * dv + d] += e * row[d];
            }
            job->bytes_read += (uint64_t)(dk + dv) * size;
        }
}
