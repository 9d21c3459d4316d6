/* Merges softmax states in one fixed order: (((chunk 0 + chunk 1) + ...) un-rotated) + raw rows +
 * learned sink. */
#ifndef QUIRE_ATTN_SOFTMAX_STATE_H
#define QUIRE_ATTN_SOFTMAX_STATE_H

#include "kern/kern.h"

/* One row and head: the output so far is o / l, relative to 2^m. */
typedef struct quire_partial {
    float *m, *l, *o; /* o is (DV) */
} quire_partial;

/* Adds {m, l, o} to a. An empty part leaves a unchanged, bit for bit. */
void quire__state_merge(const quire_row_kernels *kernels, quire_partial a, float m, float l,
                        const float *o, int dim);
/* A part in memory, for a merge by another worker: {m, l, o (DV)}. */
void quire__state_save(quire_partial part, float *to, int dim);
void quire__state_merge_saved(const quire_row_kernels *kernels, quire_partial a, const float *from,
                              int dim);
/* A learned sink adds to the denominator only. */
void quire__state_add_sink(quire_partial a, float logit_log2, int dim);
/* out = o / l, or zeros where nothing was seen; returns ln of the denominator (-inf). */
float quire__state_finish(quire_partial a, float *out, int dim);

/* ---- the same for n rows times heads */

static inline quire_partial quire__state_at(const quire_state *state, int32_t i, int dim) {
    return (quire_partial){state->m + i, state->l + i, state->o + (size_t)i * (size_t)dim};
}

void quire__states_empty(const quire_state *state, int32_t n);
void quire__states_merge(const quire_row_kernels *kernels, const quire_state *total,
                         const quire_state *part, int32_t n, int dim);
/* Packed values may be in the rotated space; raw rows are not. */
void quire__states_unrotate(const quire_row_kernels *kernels, const quire_state *state, int32_t n,
                            int dim);

#endif
