/* blocks.c: embedding, norms, projections, attention and feed-forward as ggml nodes. */
#include "graph/graph.h"

#include <ggml-cpu.h>

struct ggml_tensor *quire__embed(quire__graph *g) {
    struct ggml_tensor *x = ggml_get_rows(g->ctx, g->model->embedding, g->tokens);
    return g->model->embedding_scale == 1 ? x : ggml_scale(g->ctx, x, g->model->embedding_scale);
}

struct ggml_tensor *quire__norm(quire__graph *g, struct ggml_tensor *x,
                                struct ggml_tensor *weight) {
    x = ggml_rms_norm(g->ctx, x, g->model->norm_eps);
    return weight ? ggml_mul(g->ctx, x, weight) : x;
}

struct ggml_tensor *quire__linear(quire__graph *g, struct ggml_tensor *x,
                                  struct ggml_tensor *weight, struct ggml_tensor *bias) {
    if (g->model->expand && weight->type != GGML_TYPE_F32)
        weight = ggml_cast(g->ctx, weight, GGML_TYPE_F32);
    x = ggml_mul_mat(g->ctx, weight, x);
    return bias ? ggml_add(g->ctx, x, bias) : x;
}

/* ------------------------------------------------------------------ attention */

static struct ggml_tensor *heads(quire__graph *g, struct ggml_tensor *x, int32_t dim,
                                 int32_t n_heads) {
    return ggml_reshape_3d(g->ctx, x, dim, n_heads, g->n_rows);
}

struct ggml_tensor *quire__apply_rope(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    const quire__rope *r = &g->model->layers[layer].rope;
    return ggml_rope_ext(g->ctx, x, g->positions, r->factors, r->n_dims, r->type, r->context_orig,
                         r->base, r->scale, r->ext_factor, r->attn_factor, r->beta_fast,
                         r->beta_slow);
}

struct ggml_tensor *quire__query(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    const quire__layer *l = &g->model->layers[layer];
    x = heads(g, quire__linear(g, x, l->q, l->q_bias), l->k_dim, l->n_heads);
    return quire__apply_rope(g, layer, l->q_norm ? quire__norm(g, x, l->q_norm) : x);
}

struct ggml_tensor *quire__key(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    const quire__layer *l = &g->model->layers[layer];
    x = heads(g, quire__linear(g, x, l->k, l->k_bias), l->k_dim, l->n_kv_heads);
    return quire__apply_rope(g, layer, l->k_norm ? quire__norm(g, x, l->k_norm) : x);
}

struct ggml_tensor *quire__value(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    const quire__layer *l = &g->model->layers[layer];
    return heads(g, quire__linear(g, x, l->v, l->v_bias), l->v_dim, l->n_kv_heads);
}

static struct ggml_tensor *append(quire__graph *g, int32_t layer, struct ggml_tensor *k,
                                  struct ggml_tensor *v) {
    struct ggml_tensor *args[] = {k, v};
    struct ggml_tensor *node =
        ggml_custom_4d(g->ctx, GGML_TYPE_I8, 1, 1, 1, 1, args, 2, quire__append_node,
                       GGML_N_TASKS_MAX, &g->cache_nodes[layer]);
    ggml_build_forward_expand(g->nodes, node);
    return node;
}

struct ggml_tensor *quire__attend(quire__graph *g, int32_t layer, struct ggml_tensor *q,
                                  struct ggml_tensor *k, struct ggml_tensor *v) {
    const quire__layer *l = &g->model->layers[layer];
    const int32_t share = g->model->cache[layer].share;
    g->append_nodes[layer] = share < 0 ? append(g, layer, k, v) : g->append_nodes[share];
    if (g->n_out == 0 && layer == g->last_append)
        return NULL;
    /* The append node is an argument so that it runs first. */
    struct ggml_tensor *args[] = {q, g->append_nodes[layer]};
    struct ggml_tensor *x =
        ggml_custom_4d(g->ctx, GGML_TYPE_F32, (int64_t)l->n_heads * l->v_dim, g->n_rows, 1, 1, args,
                       2, quire__attend_node, GGML_N_TASKS_MAX, &g->cache_nodes[layer]);
    return quire__linear(g, x, l->out, l->out_bias);
}

struct ggml_tensor *quire__rows_out(quire__graph *g, int32_t layer, struct ggml_tensor *x) {
    return layer == g->model->n_layers - 1 ? ggml_get_rows(g->ctx, x, g->out_rows) : x;
}

/* ------------------------------------------------------------------ feed-forward, output */

struct ggml_tensor *quire__ffn(quire__graph *g, int32_t layer, struct ggml_tensor *x,
                               quire__activation activation) {
    const quire__layer *l = &g->model->layers[layer];
    struct ggml_tensor *gate = quire__linear(g, x, l->gate, l->gate_bias),
                       *up = quire__linear(g, x, l->up, l->up_bias);
    x = activation == QUIRE__SILU ? ggml_swiglu_split(g->ctx, gate, up)
                                  : ggml_geglu_split(g->ctx, gate, up);
    return quire__linear(g, x, l->down, l->down_bias);
}

struct ggml_tensor *quire__build_prenorm(quire__graph *g) {
    struct ggml_tensor *x = quire__embed(g);
    for (int32_t i = 0; i < g->model->n_layers; i++) {
        const quire__layer *l = &g->model->layers[i];
        struct ggml_tensor *h = quire__norm(g, x, l->attn_norm);
        h = quire__attend(g, i, quire__query(g, i, h), quire__key(g, i, h), quire__value(g, i, h));
        if (!h)
            return NULL;
        x = ggml_add(g->ctx, quire__rows_out(g, i, h), quire__rows_out(g, i, x));
        h = quire__ffn(g, i, quire__norm(g, x, l->ffn_norm), QUIRE__SILU);
        x = ggml_add(g->ctx, h, x);
    }
    return x;
}

struct ggml_tensor *quire__logits(quire__graph *g, struct ggml_tensor *x) {
    const quire_model *m = g->model;
    x = quire__linear(g, quire__norm(g, x, m->output_norm), m->output, m->output_bias);
    if (m->final_softcap == 0)
        return x;
    x = ggml_scale(g->ctx, x, 1 / m->final_softcap);
    return ggml_scale(g->ctx, ggml_tanh(g->ctx, x), m->final_softcap);
}
