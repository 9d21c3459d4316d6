/* model.h: a loaded model. What an architecture file fills, and what the graph reads. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "model/gguf_file.h"
#include "model/weight_repack.h"
#include "quire_engine.h"

#include <pthread.h>

struct llama_model;
struct quire__graph;

/* RoPE as ggml_rope_ext takes it. */
typedef struct quire__rope {
    int type; /* GGML_ROPE_TYPE_* */
    int32_t n_dims, context_orig;
    float base, scale, ext_factor, attn_factor, beta_fast, beta_slow;
    struct ggml_tensor *factors; /* (n_dims / 2), or NULL */
} quire__rope;

/* Tensors that an architecture does not have are NULL. Letters: E n_embd, H query heads, G KV
 * heads, D head size, F n_ff */
typedef struct quire__layer {
    int32_t n_heads, n_kv_heads, k_dim, v_dim, n_ff;
    quire__rope rope;
    struct ggml_tensor *attn_norm;                /* (E) */
    struct ggml_tensor *q, *k, *v, *out;          /* (E, H*D), (E, G*D), (E, G*D), (H*D, E) */
    struct ggml_tensor *q_bias, *k_bias, *v_bias; /* (H*D), (G*D), (G*D) */
    struct ggml_tensor *out_bias;                 /* (E) */
    struct ggml_tensor *q_norm, *k_norm;          /* (D) */
    struct ggml_tensor *attn_post_norm;           /* (E) */
    struct ggml_tensor *ffn_norm, *ffn_post_norm; /* (E) */
    struct ggml_tensor *gate, *up, *down;         /* (E, F), (E, F), (F, E) */
    struct ggml_tensor *gate_bias, *up_bias, *down_bias;
    struct ggml_tensor *input_gate, *input_proj,
        *input_norm;                  /* gemma4's input per layer: (E, P), (P, E), (E) */
    struct ggml_tensor *output_scale; /* (1) */
} quire__layer;

typedef struct quire__architecture {
    const char *name; /* general.architecture */
    /* Fills what differs from the common keys, finds the tensors, describes the cache in
     * model->cache[]. */
    quire_status (*load)(quire_model *model);
    /* -> the last hidden state of the rows that get logits (E, n_out), or NULL if none do. */
    struct ggml_tensor *(*build)(struct quire__graph *graph);
} quire__architecture;

extern const quire__architecture quire__llama, quire__qwen2, quire__qwen3, quire__gemma3,
    quire__gemma4;

enum { QUIRE__SINKS = 4 }; /* first tokens that presets keep raw */

struct quire_model {
    quire__gguf file;
    quire__repacked repacked;
    const quire__architecture *architecture;
    struct llama_model *vocab; /* libllama's, without weights */
    const char *chat_template; /* NULL: none that is known */
    char *name;
    int32_t n_layers, n_embd, n_vocab, context;
    float norm_eps;
    float embedding_scale; /* 1: none */
    float final_softcap;   /* 0: none */
    uint64_t n_parameters;
    size_t weight_bytes;
    const char *weight_type;
    quire__layer *layers; /* (n_layers) */
    quire_layer *cache;   /* (n_layers) the same layers as the pool sees them */
    quire_rope *ropes; /* (n_layers) how their K is rotated; means nothing where that is not simple
                          (model_rope.h) */
    struct ggml_tensor *embedding, *output_norm, *output,
        *output_bias;  /* (E, vocab), (E), (E, vocab), (vocab) */
    int32_t input_dim; /* P: gemma4's input per layer; 0: none */
    struct ggml_tensor *input_embedding, *input_proj,
        *input_proj_norm; /* (P*layers, vocab), (E, P*layers), (P) */
    pthread_mutex_t identity_lock;
    char *identity;         /* NULL: nobody has asked yet */
    const char *weights_as; /* "repacked", "file", "f32" */
    bool expand;     /* weights become f32 in the graph, one at a time: as f32 weights without their
                        memory */
    char *cache_dir; /* of model_cache_file.h; NULL: none */
};

/* ---- pieces for architecture files (model_parts.c) */

/* Head counts, head sizes, feed-forward sizes and RoPE of all layers, by the keys that
 * architectures share. */
quire_status quire__load_shapes(quire_model *model, int rope_type);
/* token_embd, output_norm, output (or the embedding again). */
quire_status quire__load_ends(quire_model *model);
/* attn_norm, q, k, v, out with optional biases; ffn_norm, gate, up, down with optional biases. */
quire_status quire__load_attention(quire_model *model, int32_t layer);
quire_status quire__load_ffn(quire_model *model, int32_t layer);
/* attn_q_norm, attn_k_norm. */
quire_status quire__load_qk_norm(quire_model *model, int32_t layer);
/* rope_freqs, where a model has it: a factor for each pair of channels. */
quire_status quire__load_rope_factors(quire_model *model, int32_t layer, quire__need need);
/* post_attention_norm, post_ffw_norm. */
quire_status quire__load_post_norms(quire_model *model, int32_t layer);
/* model->cache[] from the shapes: no window, usual scale. */
void quire__describe_cache(quire_model *model);

/* ---- model.c */

/* The same file again, with `expand`. */
quire_status quire__model_load_expanding(const quire_model *model, quire_model **twin);

/* ---- vocabulary (tokenize.c) */
quire_status quire__vocab_load(quire_model *model, const char *path);
void quire__vocab_free(quire_model *model);
/* Whether a text has values beyond U+10FFFF, on which libllama throws. */
bool quire__text_beyond_unicode(const char *text, size_t n_bytes);

/* ---- conversations (chat_template.c) */

/* Sets model->chat_template, if the model brings a template that libllama knows. */
void quire__chat_find_template(quire_model *model);

#endif
