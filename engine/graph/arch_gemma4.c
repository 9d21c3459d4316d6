/* arch_gemma4.c: Gemma 4 (dense). Sliding and global layers with head shapes of their own,
 * layers that attend over an earlier layer's cache, and an input for every layer beside the
 * residual stream. */
#include "graph/graph.h"
#include "model/sliding_layers.h"

#include <math.h>
#include <stdlib.h>

enum { INPUT_DIM_MAX = 1 << 16 };

/* The last layers store nothing: a sliding one reads the last sliding layer that stores, a
 * global one the last global. */
static quire_status share_layers(quire_model *model, const int32_t *sliding) {
    int32_t n_shared = 0;
    QUIRE_TRY(quire__gguf_int(&model->file, ".attention.shared_kv_layers", false, 0,
                              model->n_layers, &n_shared));
    const int32_t n_stored = model->n_layers - n_shared;
    if (n_shared > 0 && (n_stored < 2 || sliding[n_stored - 1] || !sliding[n_stored - 2]))
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': %d layers share K and V, but layers %d and %d are not a sliding "
                           "and a global one",
                           model->file.path, n_shared, n_stored - 2, n_stored - 1);
    for (int32_t i = n_stored; i < model->n_layers; i++)
        model->cache[i].share = n_stored - (sliding[i] ? 2 : 1);
    return QUIRE_OK;
}

static quire_status shape_sliding_layers(quire_model *model, const int32_t *sliding) {
    const quire__gguf *file = &model->file;
    quire__layer *first = &model->layers[0];
    int32_t window = 0, k_dim = first->k_dim, v_dim = first->v_dim, n_dims = first->rope.n_dims;
    float base = 10000;
    QUIRE_TRY(quire__gguf_int(file, ".attention.sliding_window", true, 1, INT32_MAX, &window));
    QUIRE_TRY(quire__gguf_int(file, ".attention.key_length_swa", true, 1, QUIRE_DIM_MAX, &k_dim));
    QUIRE_TRY(quire__gguf_int(file, ".attention.value_length_swa", true, 1, QUIRE_DIM_MAX, &v_dim));
    QUIRE_TRY(quire__gguf_int(file, ".rope.dimension_count_swa", false, 2, QUIRE_DIM_MAX, &n_dims));
    QUIRE_TRY(quire__gguf_float(file, ".rope.freq_base_swa", false, &base));
    if (n_dims % 2 != 0 || n_dims > k_dim || !(base > 0))
        return quire__fail(QUIRE_E_MODEL, "'%s': sliding RoPE of %d dimensions, base %g cannot be",
                           file->path, n_dims, (double)base);
    for (int32_t i = 0; i < model->n_layers; i++) {
        if (!sliding[i])
            continue;
        quire__layer *l = &model->layers[i];
        l->k_dim = k_dim;
        l->v_dim = v_dim;
        l->rope.n_dims = n_dims;
        l->rope.base = base;
        l->rope.scale = 1;
    }
    quire__describe_cache(model);
    for (int32_t i = 0; i < model->n_layers; i++) {
        model->cache[i].window = sliding[i] ? window : 0;
        model->cache[i].scale = 1; /* q is normalised: its norm's weight has the scale in it */
    }
    return share_layers(model, sliding);
}

static quire_status load_input(quire_model *model) {
    const quire__gguf *file = &model->file;
    QUIRE_TRY(quire__gguf_int(file, ".embedding_length_per_layer_input", true, 0, INPUT_DIM_MAX,
                              &model->input_dim));
    if (model->input_dim == 0)
        return QUIRE_OK;
    const int64_t p = model->input_dim, all = p * model->n_layers, e = model->n_embd;
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &model->input_embedding,
                                 "per_layer_token_embd.weight", 0, all, model->n_vocab));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &model->input_proj,
                                 "per_layer_model_proj.weight", 0, e, all));
    return quire__gguf_vector(file, QUIRE__REQUIRED, &model->input_proj_norm,
                              "per_layer_proj_norm.weight", 0, p);
}

/* The value projection may be missing (v is then k before its norm), and in layers that share, k
 * and v are. */
static quire_status load_layer(quire_model *model, int32_t i) {
    const quire__gguf *file = &model->file;
    quire__layer *l = &model->layers[i];
    const bool stores = model->cache[i].share < 0;
    const quire__need kv = stores ? QUIRE__REQUIRED : QUIRE__OPTIONAL;
    const int64_t e = model->n_embd, d = l->k_dim, q = d * l->n_heads, k = d * l->n_kv_heads,
                  p = model->input_dim;
    if (l->k_dim != l->v_dim)
        return quire__fail(QUIRE_E_MODEL, "'%s': layer %d has K heads of %d and V heads of %d",
                           file->path, i, l->k_dim, l->v_dim);
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__REQUIRED, &l->attn_norm, "blk.%d.attn_norm.weight", i, e));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->q, "blk.%d.attn_q.weight", i, e, q));
    QUIRE_TRY(quire__gguf_matrix(file, kv, &l->k, "blk.%d.attn_k.weight", i, e, k));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__OPTIONAL, &l->v, "blk.%d.attn_v.weight", i, e, k));
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &l->out, "blk.%d.attn_output.weight", i, q, e));
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__REQUIRED, &l->q_norm, "blk.%d.attn_q_norm.weight", i, d));
    QUIRE_TRY(quire__gguf_vector(file, kv, &l->k_norm, "blk.%d.attn_k_norm.weight", i, d));
    if (model->cache[i].window == 0)
        QUIRE_TRY(quire__load_rope_factors(model, i, QUIRE__REQUIRED));
    QUIRE_TRY(quire__load_ffn(model, i));
    QUIRE_TRY(quire__load_post_norms(model, i));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &l->output_scale,
                                 "blk.%d.layer_output_scale.weight", i, 1));
    if (p == 0)
        return QUIRE_OK;
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->input_gate, "blk.%d.inp_gate.weight", i,
                                 e, p));
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &l->input_proj, "blk.%d.proj.weight", i, p, e));
    return quire__gguf_vector(file, QUIRE__REQUIRED, &l->input_norm, "blk.%d.post_norm.weight", i,
                              e);
}

static quire_status load(quire_model *model) {
    QUIRE_TRY(quire__load_shapes(model, GGML_ROPE_TYPE_NEOX));
    int32_t *sliding = calloc((size_t)model->n_layers, sizeof *sliding);
    if (!sliding)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    quire_status status = quire__load_sliding(model, 0, sliding);
    if (status == QUIRE_OK)
        status = shape_sliding_layers(model, sliding);
    free(sliding);
    QUIRE_TRY(status);
    QUIRE_TRY(
        quire__gguf_float(&model->file, ".final_logit_softcapping", false, &model->final_softcap));
    model->embedding_scale = sqrtf((float)model->n_embd);
    QUIRE_TRY(quire__load_ends(model));
    QUIRE_TRY(load_input(model));
    for (int32_t i = 0; i < model->n_layers; i++)
        QUIRE_TRY(load_layer(model, i));
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ graph */

/* An input for every layer and row, from the token and from its embedding x: -> (P, B, layers). */
static struct ggml_tensor *layer_inputs(quire__graph *g, struct ggml_tensor *x) {
    const quire_model *m = g->model;
    const int64_t p = m->input_dim, n = m->n_layers;
    struct ggml_tensor *looked_up = ggml_get_rows(g->ctx, m->input_embedding, g->tokens);
    looked_up = ggml_reshape_3d(g->ctx, looked_up, p, n, g->n_rows);
    looked_up = ggml_scale(g->ctx, looked_up, sqrtf((float)p));
    struct ggml_tensor *projected =
        ggml_scale(g->ctx, quire__linear(g, x, m->input_proj, NULL), 1 / sqrtf((float)m->n_embd));
    projected =
        quire__norm(g, ggml_reshape_3d(g->ctx, projected, p, n, g->n_rows), m->input_proj_norm);
    struct ggml_tensor *both =
        ggml_scale(g->ctx, ggml_add(g->ctx, projected, looked_up), 1 / sqrtf(2));
    return ggml_cont(g->ctx, ggml_permute(g->ctx, both, 0, 2, 1, 3));
}

static struct ggml_tensor *add_input(quire__graph *g, int32_t layer, struct ggml_tensor *x,
                                     struct ggml_tensor *inputs) {
    const quire__layer *l = &g->model->layers[layer];
    struct ggml_tensor *input = ggml_view_2d(g->ctx, inputs, inputs->ne[0], inputs->ne[1],
                                             inputs->nb[1], (size_t)layer * inputs->nb[2]);
    struct ggml_tensor *h = ggml_gelu(g->ctx, quire__linear(g, x, l->input_gate, NULL));
    h = quire__linear(g, ggml_mul(g->ctx, h, quire__rows_out(g, layer, input)), l->input_proj,
                      NULL);
    return ggml_add(g->ctx, x, quire__norm(g, h, l->input_norm));
}

static struct ggml_tensor *attention(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    const quire__layer *l = &g->model->layers[layer];
    struct ggml_tensor *q = quire__query(g, layer, x);
    if (g->model->cache[layer].share >= 0)
        return quire__attend(g, layer, q, NULL, NULL);
    struct ggml_tensor *k = ggml_reshape_3d(g->ctx, quire__linear(g, x, l->k, NULL), l->k_dim,
                                            l->n_kv_heads, g->n_rows);
    struct ggml_tensor *v = l->v ? quire__value(g, layer, x) : k;
    k = quire__apply_rope(g, layer, quire__norm(g, k, l->k_norm));
    return quire__attend(g, layer, q, k, quire__norm(g, v, NULL));
}

static struct ggml_tensor *build(quire__graph *g) {
    struct ggml_tensor *x = quire__embed(g);
    struct ggml_tensor *inputs = g->model->input_dim ? layer_inputs(g, x) : NULL;
    for (int32_t i = 0; i < g->model->n_layers; i++) {
        const quire__layer *l = &g->model->layers[i];
        struct ggml_tensor *h = attention(g, i, quire__norm(g, x, l->attn_norm));
        if (!h)
            return NULL;
        h = quire__norm(g, quire__rows_out(g, i, h), l->attn_post_norm);
        x = ggml_add(g->ctx, h, quire__rows_out(g, i, x));
        h = quire__ffn(g, i, quire__norm(g, x, l->ffn_norm), QUIRE__GELU);
        x = ggml_add(g->ctx, quire__norm(g, h, l->ffn_post_norm), x);
        if (inputs)
            x = add_input(g, i, x, inputs);
        if (l->output_scale)
            x = ggml_mul(g->ctx, x, l->output_scale);
    }
    return x;
}

const quire__architecture quire__gemma4 = {.name = "gemma4", .load = load, .build = build};
