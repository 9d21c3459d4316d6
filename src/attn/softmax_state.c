/* Merging of softmax states. */
#include "attn/softmax_state.h"

#include <math.h>
#include <string.h>

#include "base/real.h"

/* What the state with the smaller m is multiplied by. */
static float smaller_factor(float m, float other) { return quire__exp2(-fabsf(m - other)); }

static void merge(const quire_row_kernels *kernels, quire_partial a, float m, float l,
                  const float *o, int dim, float factor) {
    if (l == 0)
        return;
    if (*a.l == 0) {
        *a.m = m;
        *a.l = l;
        memcpy(a.o, o, (size_t)dim * sizeof *o);
        return;
    }
    const float keep = m > *a.m ? factor : 1, add = m > *a.m ? 1 : factor;
    *a.m = m > *a.m ? m : *a.m;
    *a.l = *a.l * keep + l * add;
    kernels->blend(a.o, keep, o, add, dim);
}

void quire__state_merge(const quire_row_kernels *kernels, quire_partial a, float m, float l,
                        const float *o, int dim) {
    merge(kernels, a, m, l, o, dim, smaller_factor(*a.m, m));
}

void quire__state_save(quire_partial part, float *to, int dim) {
    to[0] = *part.m;
    to[1] = *part.l;
    memcpy(to + 2, part.o, (size_t)dim * sizeof *part.o);
}

void quire__state_merge_saved(const quire_row_kernels *kernels, quire_partial a, const float *from,
                              int dim) {
    quire__state_merge(kernels, a, from[0], from[1], from + 2, dim);
}

void quire__state_add_sink(quire_partial a, float logit_log2, int dim) {
    if (*a.l == 0) { /* nothing else was seen: all weight is the sink's, and the output is zero */
        *a.m = logit_log2;
        *a.l = 1;
        memset(a.o, 0, (size_t)dim * sizeof *a.o);
        return;
    }
    const float top = logit_log2 > *a.m ? logit_log2 : *a.m, keep = quire__exp2(*a.m - top);
    *a.m = top;
    *a.l = *a.l * keep + quire__exp2(logit_log2 - top);
    for (int d = 0; d < dim; d++)
        a.o[d] *= keep;
}

float quire__state_finish(quire_partial a, float *out, int dim) {
    if (*a.l == 0) {
        memset(out, 0, (size_t)dim * sizeof *out);
        return -INFINITY;
    }
    const float inverse = 1.0f / *a.l;
    for (int d = 0; d < dim; d++)
        out[d] = a.o[d] * inverse;
    return (*a.m + log2f(*a.l)) * QUIRE_LN2;
}

void quire__states_empty(const quire_state *state, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        state->m[i] = QUIRE_NOTHING_SEEN;
        state->l[i] = 0;
    }
}

void quire__states_merge(const quire_row_kernels *kernels, const quire_state *total,
                         const quire_state *part, int32_t n, int dim) {
    enum { AT_ONCE = 64 }; /* whose powers are taken by vectors */
    float factor[AT_ONCE];
    for (int32_t first = 0; first < n; first += AT_ONCE) {
        const int32_t end = n - first < AT_ONCE ? n : first + AT_ONCE;
        for (int32_t i = first; i < end; i++)
            factor[i - first] = smaller_factor(total->m[i], part->m[i]);
        for (int32_t i = first; i < end; i++) {
            const quire_partial p = quire__state_at(part, i, dim);
            merge(kernels, quire__state_at(total, i, dim), *p.m, *p.l, p.o, dim, factor[i - first]);
        }
    }
}

void quire__states_unrotate(const quire_row_kernels *kernels, const quire_state *state, int32_t n,
                            int dim) {
    for (int32_t i = 0; i < n; i++)
        if (state->l[i] != 0)
            kernels->unrotate(state->o + (size_t)i * (size_t)dim, dim);
}
