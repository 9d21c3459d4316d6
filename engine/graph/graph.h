/* graph.h: the blocks that architectures are made of, as nodes of a ggml graph.
 *
 * Shapes are ggml's, the fastest dimension first: a hidden state is (E, B) for B rows. Rows
 * beyond the step's own (an exact step is padded, see row_padding.h) run through the weights and
 * never reach the cache. */
#ifndef ENGINE_GRAPH_GRAPH_H
#define ENGINE_GRAPH_GRAPH_H

#include "model/model.h"

struct quire__node;

typedef struct quire__graph {
    const quire_model *model;
    struct ggml_context *ctx;
    struct ggml_cgraph *nodes;
    struct quire__node *cache_nodes; /* (n_layers) arguments of the append and attend nodes */
    int32_t n_rows, n_out;           /* B, and rows that get logits; both padded */
    int32_t last_append;             /* the last layer with a cache of its own */
    struct ggml_tensor *tokens, *positions; /* inputs: (B) i32 */
    struct ggml_tensor *out_rows;           /* input: (n_out) i32, or NULL */
    struct ggml_tensor **append_nodes;      /* (n_layers) a shared layer has that of its source */
} quire__graph;

struct ggml_tensor *quire__embed(quire__graph *g); /* -> (E, B), scaled */
struct ggml_tensor *quire__norm(quire__graph *g, struct ggml_tensor *x,
                                struct ggml_tensor *weight); /* weight NULL: 1 */
struct ggml_tensor *quire__linear(quire__graph *g, struct ggml_tensor *x,
                                  struct ggml_tensor *weight,
                                  struct ggml_tensor *bias); /* bias NULL: none */

/* Projections as heads, with their biases, norms and RoPE where the layer has them. x (E, B) ->
 * (D, H or G, B) */
struct ggml_tensor *quire__query(quire__graph *g, int32_t layer, struct ggml_tensor *x);
struct ggml_tensor *quire__key(quire__graph *g, int32_t layer, struct ggml_tensor *x);
struct ggml_tensor *quire__value(quire__graph *g, int32_t layer, struct ggml_tensor *x);
struct ggml_tensor *quire__apply_rope(quire__graph *g, int32_t layer,
                                      struct ggml_tensor *x); /* RoPE */

/* Appends k and v (NULL in a layer that shares another's cache) and attends: -> (E, B). NULL if
 * nothing after the append is needed: no row gets logits, and no later layer appends. */
struct ggml_tensor *quire__attend(quire__graph *g, int32_t layer, struct ggml_tensor *q,
                                  struct ggml_tensor *k, struct ggml_tensor *v);
/* After the attention of the last layer, only the rows that get logits go on. */
struct ggml_tensor *quire__rows_out(quire__graph *g, int32_t layer, struct ggml_tensor *x);

typedef enum quire__activation { QUIRE__SILU, QUIRE__GELU } quire__activation;
struct ggml_tensor *quire__ffn(quire__graph *g, int32_t layer, struct ggml_tensor *x,
                               quire__activation activation);

/* A decoder of plain pre-norm layers: x += attention(norm(x)); x += ffn(norm(x)). */
struct ggml_tensor *quire__build_prenorm(quire__graph *g);

/* Hidden state -> logits (vocab, n_out). */
struct ggml_tensor *quire__logits(quire__graph *g, struct ggml_tensor *x);

/* ---- the two nodes of the cache (cache_nodes.c) */

struct quire__step;
typedef struct quire__node {
    struct quire__step *step;
    int32_t layer;
} quire__node;

/* Sees the rows of a step before the cache does, without padding. Called by the first of ggml's
 * threads alone, layer by layer: what it sums up does not depend on the number of threads. */
typedef struct quire__observer {
    /* Rows that are appended: k (DK, G, n_rows), v (DV, G, n_rows). NULL: not called. */
    void (*on_append)(void *user, int32_t layer, const struct ggml_tensor *k,
                      const struct ggml_tensor *v, int32_t n_rows);
    /* Queries: q (DK, H, n_rows). NULL: not called. */
    void (*on_queries)(void *user, int32_t layer, const struct ggml_tensor *q, int32_t n_rows);
    void *user;
} quire__observer;

/* The step in flight: what the nodes of a running graph work on. */
typedef struct quire__step {
    quire_batch *batch;
    int32_t n_rows;      /* of the batch, without padding */
    _Atomic int failure; /* quire_status of the first worker that failed */
    quire__observer observer;
} quire__step;

/* Row `row` of a head of x, which is (D, heads, rows) as the nodes get it. */
static inline const float *quire__head_row(const struct ggml_tensor *x, int32_t head, int32_t row) {
    return (const float *)(const void *)((const char *)x->data + (size_t)head * x->nb[1] +
                                         (size_t)row * x->nb[2]);
}

void quire__append_node(struct ggml_tensor *dst, int ith, int nth, void *user);
void quire__attend_node(struct ggml_tensor *dst, int ith, int nth, void *user);

#endif
