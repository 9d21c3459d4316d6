/* arch_llama.c: Llama 2 and 3, SmolLM2 and others of their shape. */
#include "graph/graph.h"

static quire_status load(quire_model *model) {
    QUIRE_TRY(quire__load_shapes(model, GGML_ROPE_TYPE_NORMAL));
    quire__describe_cache(model);
    float scale = 0;
    QUIRE_TRY(quire__gguf_float(&model->file, ".attention.scale", false, &scale));
    QUIRE_TRY(quire__load_ends(model));
    for (int32_t i = 0; i < model->n_layers; i++) {
        QUIRE_TRY(quire__load_attention(model, i));
        QUIRE_TRY(quire__load_rope_factors(model, i, QUIRE__OPTIONAL)); /* Llama 3.1 and later */
        QUIRE_TRY(quire__load_ffn(model, i));
        model->cache[i].scale = scale;
    }
    return QUIRE_OK;
}

const quire__architecture quire__llama = {
    .name = "llama", .load = load, .build = quire__build_prenorm};
