/* kv_buffer.c: buffers of the device, and the buffer type. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache_name.h"
#include "device.h"
#include "kv_buffer.h"
#include "usage.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

static struct kv_buffer *of(ggml_backend_buffer_t buffer) { return buffer->context; }

struct kv_side *kv_side_of(const struct ggml_tensor *tensor) {
    const struct ggml_tensor *root = tensor ? root_of(tensor) : NULL;
    if (!root || !kv_buffer_is_ours(root->buffer) || !root->buffer->context)
        return NULL; /* a buffer of size 0 has no context */
    struct kv_buffer *b = of(root->buffer);
    for (int i = 0; i < b->n_sides; i++)
        if (b->sides[i].data == (char *)root->data)
            return &b->sides[i];
    return NULL;
}

/* ---------------------------------------------------------------- a buffer */

static void free_buffer(ggml_backend_buffer_t buffer) {
    struct kv_buffer *b = of(buffer);
    munmap(b->base, b->bytes);
    free(b->sides);
    free(b);
}

static void *get_base(ggml_backend_buffer_t buffer) { return of(buffer)->base; }

static enum ggml_status init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor) {
    struct kv_buffer *b = of(buffer);
    struct cache_name name;
    if (tensor->view_src || tensor->op != GGML_OP_NONE || !cache_name_parse(tensor->name, &name))
        return GGML_STATUS_SUCCESS;
    if (b->n_sides == b->max_sides) {
        int n = b->max_sides ? 2 * b->max_sides : 64;
        struct kv_side *sides = realloc(b->sides, (size_t)n * sizeof *sides);
        if (!sides)
            return GGML_STATUS_ALLOC_FAILED;
        b->sides = sides;
        b->max_sides = n;
    }
    struct kv_side *side = &b->sides[b->n_sides++];
    *side = (struct kv_side){.side = name.side,
                             .layer = name.layer,
                             .type = tensor->type,
                             .data = tensor->data,
                             .bytes = host.ggml_nbytes(tensor),
                             .row = tensor->ne[0],
                             .n_cells = tensor->ne[1],
                             .n_streams = tensor->ne[2]};
    memcpy(side->name, tensor->name, sizeof side->name);
    return GGML_STATUS_SUCCESS;
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t size) {
    (void)buffer;
    memset((char *)tensor->data + offset, value, size);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size) {
    if (of(buffer)->n_sides)
        usage_count(&usage.sets, 1);
    memcpy((char *)tensor->data + offset, data, size);
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size) {
    if (of(buffer)->n_sides)
        usage_count(&usage.gets, 1);
    memcpy(data, (const char *)tensor->data + offset, size);
}

/* ggml asks for tensors of the same layout only. */
static bool cpy_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *from,
                       struct ggml_tensor *to) {
    ggml_backend_buffer_t source = root_of(from)->buffer;
    if (!kv_buffer_is_ours(source) && !host.ggml_backend_buffer_is_host(source))
        return false;
    if (of(buffer)->n_sides)
        usage_count(&usage.copies, 1);
    memcpy(to->data, from->data, host.ggml_nbytes(from));
    return true;
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    struct kv_buffer *b = of(buffer);
    /* Fresh pages are zero and cost nothing; writing zeros would make the whole cache resident. */
    if (value == 0 &&
        mmap(b->base, b->bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
        return;
    memset(b->base, value, b->bytes);
}

static const struct ggml_backend_buffer_i buffer_interface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = init_tensor,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .cpy_tensor = cpy_tensor,
    .clear = clear,
};

/* ---------------------------------------------------------------- the buffer type */

static const char *type_name(ggml_backend_buffer_type_t type) {
    (void)type;
    return DEVICE_NAME;
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size + page - 1) / page * page;
    struct kv_buffer *b = calloc(1, sizeof *b);
    void *base = bytes >= size && b ? mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                    : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(b);
        return NULL;
    }
    *b = (struct kv_buffer){.base = base, .bytes = bytes};
    return host.ggml_backend_buffer_init(type, buffer_interface, b, size);
}

static size_t alignment(ggml_backend_buffer_type_t type) {
    (void)type;
    return 64; /* a cache line, and ggml-cpu's own */
}

/* Not host memory: otherwise ggml would read rows through their addresses, and other backends too.
 */
static bool is_host(ggml_backend_buffer_type_t type) {
    (void)type;
    return false;
}

ggml_backend_buffer_type_t kv_buffer_type(void) {
    static struct ggml_backend_buffer_type type = {
        .iface = {.get_name = type_name,
                  .alloc_buffer = alloc_buffer,
                  .get_alignment = alignment,
                  .is_host = is_host},
        .device = &quire_device,
    };
    return &type;
}
