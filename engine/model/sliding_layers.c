/* sliding_layers.c: which layers of a Gemma have a sliding window. */
#include "model/sliding_layers.h"

quire_status quire__load_sliding(const quire_model *model, int32_t every, int32_t *sliding) {
    static const char key[] = ".attention.sliding_window_pattern";
    if (every == 0 || quire__gguf_is_array(&model->file, key))
        return quire__gguf_int_per_layer(&model->file, key, true, 0, 1, model->n_layers, sliding);
    QUIRE_TRY(quire__gguf_int(&model->file, key, false, 0, INT32_MAX, &every));
    for (int32_t i = 0; i < model->n_layers; i++)
        sliding[i] = every == 0 || i % every != every - 1;
    return QUIRE_OK;
}
