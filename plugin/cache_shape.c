/* cache_shape.c: what llama.cpp's graphs look like around a cache.
 *
 *   SET_ROWS        rows (row, n) of f32 to the cells that an input of I64 numbers names, counted
 *                   over all streams
 *   FLASH_ATTN_EXT  q (DK, rows, H, streams), K and V (D, cells, G, streams) as views of the cache,
 *                   an f16 mask (cells, rows, 1, streams), which is an input too
 *   ROPE            in place on all of K, by a number for each cell: the context shift
 */
#include <math.h>
#include <string.h>

#include "cache_shape.h"

bool is_view(const struct ggml_tensor *node) {
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    default:
        return false;
    }
}

/* Something that the host fills in before the graph runs, or a view of it. The way to it is by the
 * views' sources: view_src passes over operations in place. */
static bool is_input(const struct ggml_tensor *tensor) {
    while (is_view(tensor) && (tensor->src[0] || tensor->view_src))
        tensor = tensor->src[0] ? tensor->src[0] : tensor->view_src;
    return tensor->op == GGML_OP_NONE && tensor->data && tensor->buffer &&
           host.ggml_backend_buffer_is_host(tensor->buffer);
}

static size_t element_bytes(const struct kv_side *side) {
    return side->row_bytes / (size_t)side->row;
}

const char *write_fault(const struct ggml_tensor *node, const struct kv_side *side) {
    const struct ggml_tensor *rows = node->src[0], *cell = node->src[1];
    quire_type type;
    if (!kv_side_type(side, &type))
        return "its type is one of ggml's quantized ones";
    if (node->ne[0] == 1) /* each element is a row */
        return "V is stored transposed (no flash attention)";
    if (node->data != side->data || node->ne[0] != side->row || node->nb[1] != side->row_bytes ||
        rows->type != GGML_TYPE_F32 || rows->nb[0] != sizeof(float) || rows->ne[2] != 1 ||
        rows->ne[3] != 1 || rows->nb[1] % sizeof(float) != 0)
        return "its rows are written in an unknown layout";
    if (cell->type != GGML_TYPE_I64 || cell->ne[0] != rows->ne[1] ||
        cell->nb[0] != sizeof(int64_t) || !is_input(cell))
        return "the cells of its rows are computed in the graph";
    return NULL;
}

/* A view of whole rows of some streams, with the cells of a head side by side. */
static bool is_cache_view(const struct ggml_tensor *t, const struct kv_side *side) {
    size_t offset = (size_t)((const char *)t->data - side->data), element = element_bytes(side);
    size_t stream = side->row_bytes * (size_t)side->n_cells;
    return t->type == side->type && t->ne[0] * t->ne[2] == side->row && t->nb[0] == element &&
           t->nb[1] == side->row_bytes && t->nb[2] == element * (size_t)t->ne[0] &&
           (t->ne[3] == 1 || t->nb[3] == stream) && offset % stream == 0 &&
           offset / stream + (size_t)t->ne[3] <= (size_t)side->n_streams &&
           t->ne[1] <= side->n_cells;
}

const char *attention_fault(const struct ggml_tensor *node, const struct kv_side *k,
                            const struct kv_side *v) {
    const struct ggml_tensor *q = node->src[0], *kt = node->src[1], *vt = node->src[2];
    const struct ggml_tensor *mask = node->src[3];
    quire_type type;
    if (!k || !v)
        return "its attention mixes a cache with other memory";
    if (k == v)
        return "V is a part of K (multi-head latent attention)";
    if (!kv_side_type(k, &type) || !kv_side_type(v, &type))
        return "its type is one of ggml's quantized ones";
    if (k->type != v->type)
        return "its K and V have different types";
    if (!is_cache_view(kt, k) || !is_cache_view(vt, v) || kt->ne[1] != vt->ne[1] ||
        kt->ne[2] != vt->ne[2] || kt->ne[3] != vt->ne[3])
        return "its attention reads the cache in an unknown layout";
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->ne[0] != kt->ne[0] ||
        q->ne[2] % kt->ne[2] != 0 || q->ne[3] != kt->ne[3] || q->nb[1] % sizeof(float) != 0 ||
        q->nb[2] % sizeof(float) != 0 || (q->ne[3] > 1 && q->nb[3] != q->nb[1] * (size_t)q->ne[1]))
        return "its queries are in an unknown layout";
    if (mask && (mask->type != GGML_TYPE_F16 || mask->nb[0] != 2 || mask->ne[0] < kt->ne[1] ||
                 mask->ne[1] < q->ne[1] || mask->ne[2] != 1 ||
                 (mask->ne[3] != 1 && mask->ne[3] != q->ne[3])))
        return "its mask is in an unknown layout";
    if (mask && !is_input(mask))
        return "its mask is computed in the graph (sparse attention)";
    if (node->type != GGML_TYPE_F32 || node->nb[0] != sizeof(float) ||
        node->nb[1] != sizeof(float) * (size_t)node->ne[0] ||
        node->nb[2] != node->nb[1] * (size_t)node->ne[1] ||
        (node->ne[3] > 1 && node->nb[3] != node->nb[2] * (size_t)node->ne[2]))
        return "its output is in an unknown layout";
    return NULL;
}

const char *shift_fault(const struct ggml_tensor *node, const struct kv_side *side) {
    const struct ggml_tensor *turns = node->src[1];
    if (node->op != GGML_OP_ROPE || kv_side_of(node->src[0]) != side || kv_side_of(node) != side ||
        node->data != node->src[0]->data || turns->type != GGML_TYPE_I32 ||
        turns->ne[0] != kv_side_cells(side) || !is_input(turns))
        return host.ggml_op_name(node->op);
    return NULL;
}

struct kv_shape attention_shape(const struct ggml_tensor *node, struct kv_side *k,
                                struct kv_side *v) {
    const struct ggml_tensor *q = node->src[0], *kt = node->src[1], *vt = node->src[2];
    return (struct kv_shape){.k = k,
                             .v = v,
                             .n_heads = (int32_t)q->ne[2],
                             .n_kv_heads = (int32_t)kt->ne[2],
                             .k_dim = (int32_t)kt->ne[0],
                             .v_dim = (int32_t)vt->ne[0]};
}

int32_t attention_first_stream(const struct ggml_tensor *node, const struct kv_side *k) {
    size_t offset = (size_t)((const char *)node->src[1]->data - k->data);
    return (int32_t)(offset / (k->row_bytes * (size_t)k->n_cells));
}

struct attention_params attention_params(const void *op_params) {
    float values[3];
    memcpy(values, op_params, sizeof values);
    return (struct attention_params){values[0], values[1], values[2]};
}

void alibi_slopes(float *slopes, int64_t n_heads, float max_bias) {
    int64_t power = 1; /* the largest power of two that is not above n_heads */
    while (2 * power <= n_heads)
        power *= 2;
    float base = powf(2.0f, -max_bias / (float)power);
    float half = powf(2.0f, -(max_bias / 2.0f) / (float)power);
    for (int64_t h = 0; h < n_heads; h++)
        slopes[h] =
            h < power ? powf(base, (float)(h + 1)) : powf(half, (float)(2 * (h - power) + 1));
}
