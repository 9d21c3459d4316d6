/* model_parts.c: keys and tensors that architectures share. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_MAX = 4096, FF_MAX = 1 << 24 };

/* ------------------------------------------------------------------ keys */

static quire_status per_layer(quire_model *model, const char *key, bool required, int32_t max,
                              int32_t *values) {
    return quire__gguf_int_per_layer(&model->file, key, required, 1, max, model->n_layers, values);
}

static quire_status load_counts(quire_model *model) {
    int32_t *values = malloc((size_t)model->n_layers * sizeof *values);
    if (!values)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    quire_status status = per_layer(model, ".attention.head_count", true, HEADS_MAX, values);
    for (int32_t i = 0; status == QUIRE_OK && i < model->n_layers; i++)
        model->layers[i].n_heads = values[i];
    /* Without the key of its own, there are as many KV heads as query heads: values[] still
     * holds those. */
    if (status == QUIRE_OK)
        status = per_layer(model, ".attention.head_count_kv", false, HEADS_MAX, values);
    for (int32_t i = 0; status == QUIRE_OK && i < model->n_layers; i++)
        model->layers[i].n_kv_heads = values[i];
    if (status == QUIRE_OK)
        status = per_layer(model, ".feed_forward_length", true, FF_MAX, values);
    for (int32_t i = 0; status == QUIRE_OK && i < model->n_layers; i++)
        model->layers[i].n_ff = values[i];
    free(values);
    return status;
}

static quire_status load_head_sizes(quire_model *model) {
    int32_t k_dim = model->n_embd / model->layers[0].n_heads, v_dim = k_dim;
    QUIRE_TRY(
        quire__gguf_int(&model->file, ".attention.key_length", false, 1, QUIRE_DIM_MAX, &k_dim));
    QUIRE_TRY(
        quire__gguf_int(&model->file, ".attention.value_length", false, 1, QUIRE_DIM_MAX, &v_dim));
    if (k_dim < 1 || k_dim > QUIRE_DIM_MAX || v_dim < 1 ||
        v_dim > QUIRE_DIM_MAX) /* also where no key says so */
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': heads of %d channels for K and %d for V, not 1 to %d",
                           model->file.path, k_dim, v_dim, QUIRE_DIM_MAX);
    for (int32_t i = 0; i < model->n_layers; i++) {
        quire__layer *layer = &model->layers[i];
        layer->k_dim = k_dim;
        layer->v_dim = v_dim;
        if (layer->n_heads % layer->n_kv_heads != 0)
            return quire__fail(QUIRE_E_MODEL, "'%s': layer %d has %d heads over %d KV heads",
                               model->file.path, i, layer->n_heads, layer->n_kv_heads);
    }
    return QUIRE_OK;
}

/* YaRN scales attention by its own magnitude factor, which ggml applies a second time inside the
 * operator: take that out again here. */
static quire_status load_yarn(quire_model *model, quire__rope *rope) {
    float log_multiplier = 0;
    QUIRE_TRY(quire__gguf_float(&model->file, ".rope.scaling.yarn_log_multiplier", false,
                                &log_multiplier));
    QUIRE_TRY(
        quire__gguf_float(&model->file, ".rope.scaling.yarn_ext_factor", false, &rope->ext_factor));
    QUIRE_TRY(
        quire__gguf_float(&model->file, ".rope.scaling.yarn_beta_fast", false, &rope->beta_fast));
    QUIRE_TRY(
        quire__gguf_float(&model->file, ".rope.scaling.yarn_beta_slow", false, &rope->beta_slow));
    if (rope->ext_factor < 0)
        rope->ext_factor = 1;
    if (rope->ext_factor == 0)
        return QUIRE_OK;
    const float factor = 1 / rope->scale, magnitude = factor <= 1 ? 1 : 0.1f * logf(factor) + 1;
    float attn = magnitude;
    if (log_multiplier != 0)
        attn = magnitude / (factor <= 1 ? 1 : 0.1f * log_multiplier * logf(factor) + 1);
    rope->attn_factor = attn / (1 + 0.1f * logf(factor));
    return QUIRE_OK;
}

static quire_status load_rope(quire_model *model, int type) {
    quire__rope rope = {.type = type,
                        .n_dims = model->layers[0].k_dim,
                        .context_orig = model->context,
                        .base = 10000,
                        .scale = 1,
                        .attn_factor = 1,
                        .beta_fast = 32,
                        .beta_slow = 1};
    const quire__gguf *file = &model->file;
    const char *kind;
    float factor = 0, attn = 1;
    QUIRE_TRY(
        quire__gguf_int(file, ".rope.dimension_count", false, 2, QUIRE_DIM_MAX, &rope.n_dims));
    QUIRE_TRY(quire__gguf_float(file, ".rope.freq_base", false, &rope.base));
    QUIRE_TRY(quire__gguf_string(file, ".rope.scaling.type", &kind));
    QUIRE_TRY(quire__gguf_float(file, ".rope.scale_linear", false, &factor));
    QUIRE_TRY(quire__gguf_float(file, ".rope.scaling.factor", false, &factor));
    QUIRE_TRY(quire__gguf_float(file, ".rope.scaling.attn_factor", false, &attn));
    QUIRE_TRY(quire__gguf_int(file, ".rope.scaling.original_context_length", false, 1, INT32_MAX,
                              &rope.context_orig));
    if (rope.n_dims % 2 != 0 || rope.n_dims > model->layers[0].k_dim || !(rope.base > 0) ||
        factor < 0)
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': RoPE of %d dimensions, base %g, factor %g cannot be", file->path,
                           rope.n_dims, (double)rope.base, (double)factor);
    const bool none = kind && strcmp(kind, "none") == 0;
    if (factor != 0 && !none)
        rope.scale = 1 / factor;
    if (kind && strcmp(kind, "yarn") == 0) {
        rope.ext_factor = -1; /* not said: on */
        QUIRE_TRY(load_yarn(model, &rope));
    } else if (kind && !none && strcmp(kind, "linear") != 0) {
        return quire__fail(QUIRE_E_MODEL, "'%s': RoPE scaling '%.32s' is not supported", file->path,
                           kind);
    }
    rope.attn_factor *= attn;
    for (int32_t i = 0; i < model->n_layers; i++)
        model->layers[i].rope = rope;
    return QUIRE_OK;
}

quire_status quire__load_shapes(quire_model *model, int rope_type) {
    int32_t n_experts = 0;
    QUIRE_TRY(quire__gguf_int(&model->file, ".expert_count", false, 0, INT32_MAX, &n_experts));
    if (n_experts > 0)
        return quire__fail(QUIRE_E_MODEL, "'%s': %s with %d experts is not supported",
                           model->file.path, model->file.architecture, n_experts);
    QUIRE_TRY(quire__gguf_float(&model->file, ".attention.layer_norm_rms_epsilon", true,
                                &model->norm_eps));
    if (!(model->norm_eps >= 0))
        return quire__fail(QUIRE_E_MODEL, "'%s': attention.layer_norm_rms_epsilon is negative",
                           model->file.path);
    QUIRE_TRY(load_counts(model));
    QUIRE_TRY(load_head_sizes(model));
    return load_rope(model, rope_type);
}

void quire__describe_cache(quire_model *model) {
    for (int32_t i = 0; i < model->n_layers; i++) {
        const quire__layer *layer = &model->layers[i];
        quire_layer_default(&model->cache[i]);
        model->cache[i].n_heads = layer->n_heads;
        model->cache[i].n_kv_heads = layer->n_kv_heads;
        model->cache[i].k_dim = layer->k_dim;
        model->cache[i].v_dim = layer->v_dim;
    }
}

/* ------------------------------------------------------------------ tensors */

quire_status quire__load_ends(quire_model *model) {
    const quire__gguf *file = &model->file;
    const int64_t e = model->n_embd, n = model->n_vocab;
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &model->embedding, "token_embd.weight", 0, e, n));
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__REQUIRED, &model->output_norm, "output_norm.weight", 0, e));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__OPTIONAL, &model->output, "output.weight", 0, e, n));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &model->output_bias, "output.bias", 0, n));
    if (!model->output)
        model->output = model->embedding;
    return QUIRE_OK;
}

quire_status quire__load_attention(quire_model *model, int32_t i) {
    const quire__gguf *file = &model->file;
    quire__layer *l = &model->layers[i];
    const int64_t e = model->n_embd, q = (int64_t)l->n_heads * l->k_dim,
                  k = (int64_t)l->n_kv_heads * l->k_dim, v = (int64_t)l->n_kv_heads * l->v_dim,
                  o = (int64_t)l->n_heads * l->v_dim;
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__REQUIRED, &l->attn_norm, "blk.%d.attn_norm.weight", i, e));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->q, "blk.%d.attn_q.weight", i, e, q));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->k, "blk.%d.attn_k.weight", i, e, k));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->v, "blk.%d.attn_v.weight", i, e, v));
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &l->out, "blk.%d.attn_output.weight", i, o, e));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &l->q_bias, "blk.%d.attn_q.bias", i, q));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &l->k_bias, "blk.%d.attn_k.bias", i, k));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &l->v_bias, "blk.%d.attn_v.bias", i, v));
    return quire__gguf_vector(file, QUIRE__OPTIONAL, &l->out_bias, "blk.%d.attn_output.bias", i, e);
}

quire_status quire__load_ffn(quire_model *model, int32_t i) {
    const quire__gguf *file = &model->file;
    quire__layer *l = &model->layers[i];
    const int64_t e = model->n_embd, f = l->n_ff;
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__REQUIRED, &l->ffn_norm, "blk.%d.ffn_norm.weight", i, e));
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &l->gate, "blk.%d.ffn_gate.weight", i, e, f));
    QUIRE_TRY(quire__gguf_matrix(file, QUIRE__REQUIRED, &l->up, "blk.%d.ffn_up.weight", i, e, f));
    QUIRE_TRY(
        quire__gguf_matrix(file, QUIRE__REQUIRED, &l->down, "blk.%d.ffn_down.weight", i, f, e));
    QUIRE_TRY(
        quire__gguf_vector(file, QUIRE__OPTIONAL, &l->gate_bias, "blk.%d.ffn_gate.bias", i, f));
    QUIRE_TRY(quire__gguf_vector(file, QUIRE__OPTIONAL, &l->up_bias, "blk.%d.ffn_up.bias", i, f));
    return quire__gguf_vector(file, QUIRE__OPTIONAL, &l->down_bias, "blk.%d.ffn_down.bias", i, e);
}

quire_status quire__load_qk_norm(quire_model *model, int32_t i) {
    quire__layer *l = &model->layers[i];
    QUIRE_TRY(quire__gguf_vector(&model->file, QUIRE__REQUIRED, &l->q_norm,
                                 "blk.%d.attn_q_norm.weight", i, l->k_dim));
    return quire__gguf_vector(&model->file, QUIRE__REQUIRED, &l->k_norm,
                              "blk.%d.attn_k_norm.weight", i, l->k_dim);
}

quire_status quire__load_rope_factors(quire_model *model, int32_t i, quire__need need) {
    quire__rope *rope = &model->layers[i].rope;
    return quire__gguf_vector(&model->file, need, &rope->factors, "rope_freqs.weight", i,
                              rope->n_dims / 2);
}

quire_status quire__load_post_norms(quire_model *model, int32_t i) {
    quire__layer *l = &model->layers[i];
    const int64_t e = model->n_embd;
    QUIRE_TRY(quire__gguf_vector(&model->file, QUIRE__REQUIRED, &l->attn_post_norm,
                                 "blk.%d.post_attention_norm.weight", i, e));
    return quire__gguf_vector(&model->file, QUIRE__REQUIRED, &l->ffn_post_norm,
                              "blk.%d.post_ffw_norm.weight", i, e);
}
