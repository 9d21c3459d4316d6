/* cache_shape.h: whether a node on a cache is one that pages can serve, and what it says. */
#ifndef QUIRE_PLUGIN_CACHE_SHAPE_H
#define QUIRE_PLUGIN_CACHE_SHAPE_H

#include "kv_buffer.h"
#include "kv_group.h"

/* Node that only gives memory another shape. */
bool is_view(const struct ggml_tensor *node);

/* Each returns NULL if the node can be served, or a reason why not, for the report. */
const char *write_fault(const struct ggml_tensor *node, const struct kv_side *side);
const char *attention_fault(const struct ggml_tensor *node, const struct kv_side *k,
                            const struct kv_side *v);
const char *shift_fault(const struct ggml_tensor *node, const struct kv_side *side);

/* Of an attention node without fault. */
struct kv_shape attention_shape(const struct ggml_tensor *node, struct kv_side *k,
                                struct kv_side *v);
int32_t attention_first_stream(const struct ggml_tensor *node, const struct kv_side *k);
struct attention_params {
    float scale, max_bias, softcap;
} attention_params(const void *op_params);

/* ALiBi's slopes of n_heads heads. */
void alibi_slopes(float *slopes, int64_t n_heads, float max_bias);

#endif
