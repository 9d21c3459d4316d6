/* arch_qwen3.c: Qwen 3 (dense). As llama, with norms on the heads of q and k. */
#include "graph/graph.h"

static quire_status load(quire_model *model) {
    QUIRE_TRY(quire__load_shapes(model, GGML_ROPE_TYPE_NEOX));
    quire__describe_cache(model);
    QUIRE_TRY(quire__load_ends(model));
    for (int32_t i = 0; i < model->n_layers; i++) {
        QUIRE_TRY(quire__load_attention(model, i));
        QUIRE_TRY(quire__load_qk_norm(model, i));
        QUIRE_TRY(quire__load_ffn(model, i));
    }
    return QUIRE_OK;
}

const quire__architecture quire__qwen3 = {
    .name = "qwen3", .load = load, .build = quire__build_prenorm};
