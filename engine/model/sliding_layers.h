/* sliding_layers.h: which layers of a Gemma have a sliding window. */
#ifndef ENGINE_MODEL_SLIDING_LAYERS_H
#define ENGINE_MODEL_SLIDING_LAYERS_H

#include "model/model.h"

/* 1 for sliding layers: the key attention.sliding_window_pattern, an array or "every n-th layer
 * is global", or `every` if the key is missing (0: then it must be there, as an array). */
quire_status quire__load_sliding(const quire_model *model, int32_t every, int32_t *sliding);

#endif
