/* rope.h: how a layer's RoPE turns pairs of channels, where it can be said in one angle per pair. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include <ggml.h>
#include <math.h>

#include "model.h"

/* Positions are one number, and no part of the rotation depends on how long the text is. */
static inline bool quire__rope_is_simple(const quire__rope *r) {
    return (r->type == GGML_ROPE_TYPE_NORMAL || r->type == GGML_ROPE_TYPE_NEOX) && r->ext_factor == 0;
}

/* Radians of pair j for a step of one position, before r->scale. */
static inline double quire__rope_frequency(const quire__rope *r, int32_t j) {
    const double factor = r->factors ? (double)((const float *)r->factors->data)[j] : 1;
    return pow((double)r->base, -2.0 * j / r->n_dims) / factor;
}

#endif
