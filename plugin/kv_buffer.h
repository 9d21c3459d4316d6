/* kv_buffer.h: the device's memory.
 *
 * ggml takes everything from one buffer type: K/V caches, recurrent states and the scratch memory
 * of a graph. A buffer is a range of addresses that costs nothing until it is written. Which
 * tensors in it are sides of a K/V cache is known from their names, when ggml places them
 * (init_tensor).
 */
#ifndef QUIRE_PLUGIN_KV_BUFFER_H
#define QUIRE_PLUGIN_KV_BUFFER_H

#include "host_ggml.h"

/* K or V of one layer: f16 (or another of ggml's types) rows, n_cells for each of n_streams. */
struct kv_side {
    char name[GGML_MAX_NAME];
    char side; /* 'k' or 'v' */
    int layer;
    enum ggml_type type;
    char *data; /* addresses in the buffer's range: what ggml believes to be the rows */
    size_t bytes;
    int64_t row; /* elements of a cell: all KV heads */
    int64_t n_cells, n_streams;
};

struct kv_buffer {
    char *base;
    size_t bytes; /* mapped: whole pages */
    struct kv_side *sides;
    int n_sides, max_sides;
};

ggml_backend_buffer_type_t kv_buffer_type(void);

static inline bool kv_buffer_is_ours(ggml_backend_buffer_t buffer) {
    return buffer && buffer->buft == kv_buffer_type();
}

/* The tensor that a view, or a view of a view, looks into. */
static inline const struct ggml_tensor *root_of(const struct ggml_tensor *tensor) {
    while (tensor->view_src)
        tensor = tensor->view_src;
    return tensor;
}

/* The side of a cache that `tensor` is, or looks into; NULL if it is anything else. */
struct kv_side *kv_side_of(const struct ggml_tensor *tensor);

#endif
