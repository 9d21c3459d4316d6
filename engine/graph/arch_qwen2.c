/* arch_qwen2.c: Qwen 2 and 2.5. As llama, with biases on q, k and v. */
#include "graph/graph.h"

static quire_status load(quire_model *model) {
    QUIRE_TRY(quire__load_shapes(model, GGML_ROPE_TYPE_NEOX));
    quire__describe_cache(model);
    QUIRE_TRY(quire__load_ends(model));
    for (int32_t i = 0; i < model->n_layers; i++) {
        QUIRE_TRY(quire__load_attention(model, i));
        QUIRE_TRY(quire__load_ffn(model, i));
    }
    return QUIRE_OK;
}

const quire__architecture quire__qwen2 = {
    .name = "qwen2", .load = load, .build = quire__build_prenorm};
