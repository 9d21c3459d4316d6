/* model_rope.h: how layers' RoPE turns pairs of channels, where it can be said in one angle per
 * pair. */
#ifndef ENGINE_MODEL_MODEL_ROPE_H
#define ENGINE_MODEL_MODEL_ROPE_H

#include <ggml.h>

#include "model/model.h"

/* Positions are one number, and no part of the rotation depends on how long the text is. */
static inline bool quire__rope_is_simple(const quire__rope *r) {
    return (r->type == GGML_ROPE_TYPE_NORMAL || r->type == GGML_ROPE_TYPE_NEOX) &&
           r->ext_factor == 0;
}

/* model->ropes, frequencies in the same block. E_NOMEM. */
quire_status quire__load_ropes(quire_model *model);

#endif
