/* Merges softmax states in one fixed order: (((chunk 0 + chunk 1) + ...) un-rotated) + raw rows +
 * learned sink. */
#ifndef QUIRE_ATTN_SOFTMAX_STATE_H
#define QUIRE_ATTN_SOFTMAX_STATE_H

/* One row and head: the output so far is o / l, relative to 2^m. */
typedef struct quire_partial {
    float *m, *l, *o; /* o is (DV) */
} quire_partial;

/* Adds {m, l, o} to a. An empty part leaves a unchanged, bit for bit. */
void quire__state_merge(quire_partial a, float m, float l, const float *o, int dim);
/* A learned sink adds to the denominator only. */
void quire__state_add_sink(quire_partial a, float logit_log2, int dim);
/* out = o / l, or zeros where nothing was seen; returns ln of the denominator (-inf). */
float quire__state_finish(quire_partial a, float *out, int dim);

#endif
