/* The scalar reference: plain C, sums in a fixed order, no reliance on any ISA. It is the
 * definition. */
#ifndef QUIRE_KERN_REF_REF_H
#define QUIRE_KERN_REF_REF_H

#include "kern/kern.h"

/* One page of K and one block of V, expanded. */
typedef struct quire_ref_keys {
    const quire_side_format *side;
    const uint8_t *record;
    int8_t codes[QUIRE_PAGE_TOKENS * QUIRE_DIM_MAX], signs[QUIRE_PAGE_TOKENS * QUIRE_DIM_MAX];
    /* per scale group and token: value = scale * (code - mid) + zero */
    float scale[QUIRE_MAX_SCALE_GROUPS * QUIRE_PAGE_TOKENS],
        zero[QUIRE_MAX_SCALE_GROUPS * QUIRE_PAGE_TOKENS];
} quire_ref_keys;

typedef struct quire_ref_values {
    const quire_side_format *side;
    const uint8_t *record[QUIRE_BLOCK_PAGES]; /* NULL: absent */
    int8_t codes[QUIRE_BLOCK_TOKENS * QUIRE_DIM_MAX];
    float scale[QUIRE_MAX_SCALE_GROUPS * QUIRE_BLOCK_TOKENS],
        zero[QUIRE_MAX_SCALE_GROUPS * QUIRE_BLOCK_TOKENS]; /* (n_groups, 128) */
} quire_ref_values;

typedef struct quire_ref_workspace {
    quire_ref_keys k;
    quire_ref_values v;
} quire_ref_workspace;

/* A query row as integers against one page. q (DK) is already rotated where K is; the channel
 * scales of `record` are folded in. The definition that every kernel must reproduce exactly. */
void quire__ref_quantize_query(const quire_side_format *k, const uint8_t *record, const float *q,
                               quire_int_query *out);
/* Integer dot products of a query with expanded codes (64, DK): (n_groups, 64). */
void quire__ref_dot_page(const quire_side_format *k, const quire_int_query *q, const int8_t *codes,
                         int32_t *dots);
void quire__ref_attend_packed(quire_attend_job *job, const quire_state *state);
void quire__ref_attend_raw(quire_attend_job *job, const quire_state *state);

/* From a scaled dot product to a base-2 logit: soft-cap, ALiBi, mask. -INFINITY: hidden. */
float quire__ref_logit(const quire_visibility *see, int r, int h, int32_t t, float score);
void quire__ref_empty_state(const quire_attend_job *job, const quire_state *state);

#endif
