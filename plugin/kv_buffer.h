/* kv_buffer.h: the device's memory.
 *
 * ggml takes everything from one buffer type: K/V caches, recurrent states and the scratch memory
 * of a graph. A buffer is a range of addresses that costs nothing until it is written. Which
 * tensors in it are sides of a K/V cache is known from their names, when ggml places them
 * (init_tensor).
 */
#ifndef QUIRE_PLUGIN_KV_BUFFER_H
#define QUIRE_PLUGIN_KV_BUFFER_H

#include <pthread.h>

#include "host_ggml.h"
#include "kv_side.h"

struct kv_buffer {
    struct kv_buffer *next, *previous; /* of all buffers with caches */
    uint64_t serial;                   /* counts buffers in the order of their allocation */
    char *base;
    size_t bytes; /* mapped: whole pages */
    struct kv_side *sides;
    int n_sides, max_sides;
    struct kv_group *groups;
    pthread_mutex_t lock; /* a graph holds it; so does the host while it reads or writes rows */
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
