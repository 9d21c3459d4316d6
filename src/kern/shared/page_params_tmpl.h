/* Template: a page's parameters as fp32.
 *
 * Parameters:
 *   SIMD             header of the vectors: fvec of W floats and the operations on it
 *   PARAMS_LOCALITY  if fetch_params is needed: where it fetches to, as the third argument of
 *                    __builtin_prefetch, 3 for L1, 2 for L2
 */
#ifndef QUIRE_KERN_SHARED_PAGE_PARAMS_TMPL_H
#define QUIRE_KERN_SHARED_PAGE_PARAMS_TMPL_H

#ifndef SIMD
#error "page_params_tmpl.h needs SIMD"
#endif

#include <string.h>

#include "base/element.h"
#include "kern/shared/job.h"
#include SIMD

/* n parameters from number `first` on; n is a multiple of 16. */
static void load_params(const quire_side_format *side, const uint8_t *record, size_t first, int n,
                        float *to) {
    const uint8_t *at = record + side->params + first * quire__type_bytes(side->type);
    if (side->type == QUIRE_F16)
        f_widen_f16(at, n, to);
    else
        quire__row_from_raw(side->type, at, (size_t)n, to);
}

/* value = scale * (code - mid) + zero, per scale group and token; `stride` between groups. */
static inline void load_scale_groups(const quire_side_format *side, const uint8_t *record,
                                     int stride, float *scale, float *zero) {
    const fvec mid = f_all(side->mid_steps);
    for (int g = 0; g < side->n_groups; g++) {
        float *s = scale + g * stride, *z = zero + g * stride;
        load_params(side, record, (size_t)(g * T), T, s);
        if (side->family == QUIRE_FAMILY_AFFINE)
            load_params(side, record, (size_t)((side->n_groups + g) * T), T, z);
        else
            memset(z, 0, T * sizeof *z);
        for (int t = 0; t < T; t += W)
            f_store(z + t, f_add(f_mul(f_load(s + t), mid), f_load(z + t)));
    }
}

/* Scales of 64 tokens. */
static void load_token_scales(const quire_side_format *side, const uint8_t *record, float *scale) {
    load_params(side, record, 0, T, scale);
    for (int t = 0; t < T; t += W)
        f_store(scale + t, f_mul(f_load(scale + t), f_all(side->unit)));
}

#ifdef PARAMS_LOCALITY
/* Parameters are the first thing that the next block needs, and too few for the hardware's
 * prefetcher to notice. */
static inline void fetch_params(const quire_format *f, const uint8_t *record) {
    const quire_side_format *sides[2] = {&f->k, &f->v};
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < sides[i]->param_bytes; at += 64)
            __builtin_prefetch(record + sides[i]->params + at, 0, PARAMS_LOCALITY);
}
#endif

#endif
