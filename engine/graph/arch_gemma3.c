/* arch_gemma3.c: Gemma 3. Five sliding layers to a global one, norms before and after each half
 * of a layer. */
#include "graph/graph.h"
#include "model/sliding_layers.h"

#include <math.h>
#include <stdlib.h>

static quire_status load_windows(quire_model *model) {
    int32_t window = 0;
    QUIRE_TRY(
        quire__gguf_int(&model->file, ".attention.sliding_window", false, 0, INT32_MAX, &window));
    if (window == 0)
        return QUIRE_OK;
    float base = 10000;
    QUIRE_TRY(quire__gguf_float(&model->file, ".rope.freq_base_swa", false, &base));
    int32_t *sliding = calloc((size_t)model->n_layers, sizeof *sliding);
    if (!sliding)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    const quire_status status = quire__load_sliding(model, 6, sliding);
    for (int32_t i = 0; status == QUIRE_OK && i < model->n_layers; i++) {
        if (!sliding[i])
            continue;
        model->cache[i].window = window;
        model->layers[i].rope.base = base;
        model->layers[i].rope.scale = 1; /* RoPE scaling is for the long reach of global layers */
    }
    free(sliding);
    return status;
}

static quire_status load(quire_model *model) {
    QUIRE_TRY(quire__load_shapes(model, GGML_ROPE_TYPE_NEOX));
    quire__describe_cache(model);
    QUIRE_TRY(load_windows(model));
    QUIRE_TRY(
        quire__gguf_float(&model->file, ".final_logit_softcapping", false, &model->final_softcap));
    model->embedding_scale = sqrtf((float)model->n_embd);
    QUIRE_TRY(quire__load_ends(model));
    for (int32_t i = 0; i < model->n_layers; i++) {
        QUIRE_TRY(quire__load_attention(model, i));
        QUIRE_TRY(quire__load_qk_norm(model, i));
        QUIRE_TRY(quire__load_ffn(model, i));
        QUIRE_TRY(quire__load_post_norms(model, i));
        if (model->n_layers ==
            62) /* the 27B model alone scales by its width instead of its head size */
            model->cache[i].scale = 1 / sqrtf((float)(model->n_embd / model->layers[0].n_heads));
    }
    return QUIRE_OK;
}

static struct ggml_tensor *build(quire__graph *g) {
    struct ggml_tensor *x = quire__embed(g);
    for (int32_t i = 0; i < g->model->n_layers; i++) {
        const quire__layer *l = &g->model->layers[i];
        struct ggml_tensor *h = quire__norm(g, x, l->attn_norm);
        h = quire__attend(g, i, quire__query(g, i, h), quire__key(g, i, h), quire__value(g, i, h));
        if (!h)
            return NULL;
        h = quire__norm(g, quire__rows_out(g, i, h), l->attn_post_norm);
        x = ggml_add(g->ctx, h, quire__rows_out(g, i, x));
        h = quire__ffn(g, i, quire__norm(g, x, l->ffn_norm), QUIRE__GELU);
        x = ggml_add(g->ctx, quire__norm(g, h, l->ffn_post_norm), x);
    }
    return x;
}

const quire__architecture quire__gemma3 = {.name = "gemma3", .load = load, .build = build};
