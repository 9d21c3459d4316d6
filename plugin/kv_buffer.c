/* kv_buffer.c: buffers of the device, and the buffer type. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache_name.h"
#include "device.h"
#include "kv_buffer.h"
#include "kv_group.h"
#include "settings.h"
#include "usage.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

static atomic_int n_buffers;

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
    if (b->n_sides)
        usage_forget_cache(b);
    while (b->groups) {
        struct kv_group *group = b->groups;
        b->groups = group->next;
        kv_group_free(group);
    }
    for (int i = 0; i < b->n_sides; i++)
        kv_side_free(&b->sides[i]);
    pthread_mutex_destroy(&b->lock);
    munmap(b->base, b->bytes);
    free(b->sides);
    free(b);
    if (atomic_fetch_sub(&n_buffers, 1) == 1)
        device_is_unused();
}

static void *get_base(ggml_backend_buffer_t buffer) { return of(buffer)->base; }

static enum ggml_status init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor) {
    struct kv_buffer *b = of(buffer);
    struct cache_name name;
    if (settings.off || tensor->view_src || tensor->op != GGML_OP_NONE ||
        !cache_name_parse(tensor->name, &name))
        return GGML_STATUS_SUCCESS;
    if (b->n_sides == b->max_sides) { /* all of them are placed before anything points at one */
        int n = b->max_sides ? 2 * b->max_sides : 64;
        struct kv_side *sides = realloc(b->sides, (size_t)n * sizeof *sides);
        if (!sides)
            return GGML_STATUS_ALLOC_FAILED;
        b->sides = sides;
        b->max_sides = n;
    }
    if (b->n_sides == 0)
        usage_add_cache(b);
    struct kv_side *side = &b->sides[b->n_sides++];
    memset(side, 0, sizeof *side);
    memcpy(side->name, tensor->name, sizeof side->name);
    side->buffer = b;
    side->type = tensor->type;
    side->data = tensor->data;
    side->row = tensor->ne[0];
    side->row_bytes = tensor->nb[1];
    side->n_cells = tensor->ne[1];
    side->n_streams = tensor->ne[2];
    return GGML_STATUS_SUCCESS;
}

/* The side that a tensor's bytes belong to, and their place in it; locked until unlock_side. */
static struct kv_side *lock_side(const struct ggml_tensor *tensor, size_t *offset) {
    struct kv_side *side = kv_side_of(tensor);
    if (side) {
        pthread_mutex_lock(&side->buffer->lock);
        *offset += (size_t)((char *)tensor->data - side->data);
    }
    return side;
}

static void unlock_side(struct kv_side *side) { pthread_mutex_unlock(&side->buffer->lock); }

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size) {
    (void)buffer;
    struct kv_side *side = lock_side(tensor, &offset);
    if (!side) {
        memcpy((char *)tensor->data + offset, data, size);
        return;
    }
    kv_side_set(side, offset, data, size);
    unlock_side(side);
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size) {
    (void)buffer;
    struct kv_side *side = lock_side(tensor, &offset);
    if (!side) {
        memcpy(data, (const char *)tensor->data + offset, size);
        return;
    }
    kv_side_get(side, offset, data, size);
    unlock_side(side);
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t size) {
    if (!kv_side_of(tensor)) {
        memset((char *)tensor->data + offset, value, size);
        return;
    }
    char bytes[4096];
    memset(bytes, value, sizeof bytes);
    for (size_t done = 0; done < size; done += sizeof bytes)
        set_tensor(buffer, tensor, bytes, offset + done,
                   size - done < sizeof bytes ? size - done : sizeof bytes);
}

/* Whole pages from one place of a side to another: llama.cpp's copy of a sequence to another
 * stream. */
static bool copy_pages(const struct ggml_tensor *from, const struct ggml_tensor *to, size_t size) {
    struct kv_side *side = kv_side_of(to);
    if (!side || side != kv_side_of(from))
        return false;
    pthread_mutex_lock(&side->buffer->lock);
    bool copied = kv_side_copy(side, (size_t)((char *)from->data - side->data),
                               (size_t)((char *)to->data - side->data), size);
    pthread_mutex_unlock(&side->buffer->lock);
    return copied;
}

/* ggml asks for tensors of the same layout only. */
static bool cpy_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *from,
                       struct ggml_tensor *to) {
    ggml_backend_buffer_t source = root_of(from)->buffer;
    size_t size = host.ggml_nbytes(from);
    if (!kv_buffer_is_ours(source)) {
        if (!host.ggml_backend_buffer_is_host(source))
            return false;
        set_tensor(buffer, to, from->data, 0, size);
        return true;
    }
    if (!kv_side_of(from)) {
        set_tensor(buffer, to, from->data, 0, size);
        return true;
    }
    if (copy_pages(from, to, size))
        return true;
    char *bytes = malloc(size);
    if (!bytes)
        return false;
    get_tensor(source, from, bytes, 0, size);
    set_tensor(buffer, to, bytes, 0, size);
    free(bytes);
    return true;
}

static void fill(const struct kv_buffer *b, uint8_t value) {
    /* Fresh pages are zero and cost nothing; writing zeros would make the whole cache resident. */
    if (value == 0 &&
        mmap(b->base, b->bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == b->base)
        return;
    /* Packed sides have closed their addresses; kv_side_cleared closes them again. */
    mprotect(b->base, b->bytes, PROT_READ | PROT_WRITE);
    memset(b->base, value, b->bytes);
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    struct kv_buffer *b = of(buffer);
    pthread_mutex_lock(&b->lock);
    for (int i = 0; value != 0 && i < b->n_sides; i++)
        kv_side_make_plain(&b->sides[i], "it was filled with a value"); /* nobody does that */
    for (struct kv_group *group = b->groups; group; group = group->next)
        quire_cells_clear(group->cells);
    fill(b, value);
    for (int i = 0; i < b->n_sides; i++)
        kv_side_cleared(&b->sides[i]);
    pthread_mutex_unlock(&b->lock);
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
    static _Atomic uint64_t serial;
    atomic_fetch_add(&n_buffers, 1);
    *b = (struct kv_buffer){.base = base, .bytes = bytes, .serial = ++serial};
    pthread_mutex_init(&b->lock, NULL);
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
