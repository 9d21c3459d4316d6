/* gguf_file.c: opens and maps a GGUF file, and gives its tensors their bytes. */
#include "model/gguf_file.h"

#include "base/size.h"
#include "model/ggml_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A new mapping at the same place has no page in memory yet. */
static quire_status map_at(quire__gguf *file, int fd, void *place) {
    void *map =
        mmap(place, file->map_bytes, PROT_READ, MAP_SHARED | (place ? MAP_FIXED : 0), fd, 0);
    if (map == MAP_FAILED)
        return quire__fail(QUIRE_E_IO, "cannot map '%s': %s", file->path, strerror(errno));
    file->map = map;
    return QUIRE_OK;
}

static quire_status map_file(quire__gguf *file) {
    /* O_NONBLOCK: opening a FIFO would wait for a writer. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return quire__fail(QUIRE_E_IO, "cannot open '%s': %s", file->path, strerror(errno));
    struct stat info;
    quire_status status = QUIRE_OK;
    if (fstat(fd, &info) != 0) {
        status = quire__fail(QUIRE_E_IO, "cannot read '%s': %s", file->path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = quire__fail(QUIRE_E_IO, "'%s' is not a regular file", file->path);
    } else if (info.st_size < 24) {
        status = quire__fail(QUIRE_E_MODEL, "'%s' is not a GGUF file: it has %lld bytes",
                             file->path, (long long)info.st_size);
    } else {
        file->map_bytes = (size_t)info.st_size;
        status = map_at(file, fd, NULL);
    }
    if (status == QUIRE_OK)
        file->fd = fd;
    else
        close(fd);
    return status;
}

static quire_status read_meta(quire__gguf *file) {
    if (memcmp(file->map, GGUF_MAGIC, 4) != 0)
        return quire__fail(QUIRE_E_MODEL, "'%s' is not a GGUF file", file->path);
    struct gguf_init_params params = {.no_alloc = true, .ctx = &file->tensors};
    quire__ggml_log_clear();
    file->meta = gguf_init_from_buffer(file->map, file->map_bytes, params);
    if (!file->meta)
        return quire__fail(QUIRE_E_MODEL, "'%s' is cut off or broken: %s", file->path,
                           quire__ggml_log_last());
    return QUIRE_OK;
}

/* Every tensor must lie in the file, whether it is used or not. */
static quire_status check_extents(const quire__gguf *file) {
    const size_t start = gguf_get_data_offset(file->meta);
    const int64_t n = gguf_get_n_tensors(file->meta);
    for (int64_t i = 0; i < n; i++) {
        size_t first, last;
        if (!quire__add(start, gguf_get_tensor_offset(file->meta, i), &first) ||
            !quire__add(first, gguf_get_tensor_size(file->meta, i), &last) ||
            last > file->map_bytes) {
            return quire__fail(QUIRE_E_MODEL,
                               "'%s' is cut off: tensor %s ends beyond its %zu bytes", file->path,
                               gguf_get_tensor_name(file->meta, i), file->map_bytes);
        }
    }
    return QUIRE_OK;
}

/* Of a large model in several files: as such, its first part lacks tensors and the others nearly
 * all keys. */
static quire_status refuse_part(const quire__gguf *file) {
    int32_t n_parts = 1;
    QUIRE_TRY(quire__gguf_int(file, "split.count", false, 0, UINT16_MAX, &n_parts));
    if (n_parts <= 1)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_MODEL,
                       "'%s' is one of %d parts of a model: join them with llama.cpp's "
                       "'llama-gguf-split --merge FIRST-PART WHOLE.gguf'",
                       file->path, (int)n_parts);
}

static quire_status find_architecture(quire__gguf *file) {
    const char *name;
    QUIRE_TRY(quire__gguf_string(file, "general.architecture", &name));
    if (!name || strlen(name) >= sizeof file->architecture)
        return quire__fail(QUIRE_E_MODEL, "'%s' does not name its architecture", file->path);
    strcpy(file->architecture, name);
    return QUIRE_OK;
}

quire_status quire__gguf_open(quire__gguf *file, const char *path) {
    *file = (quire__gguf){.path = malloc(strlen(path) + 1), .fd = -1};
    if (!file->path)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    strcpy(file->path, path);
    QUIRE_TRY(map_file(file));
    QUIRE_TRY(read_meta(file));
    QUIRE_TRY(check_extents(file));
    QUIRE_TRY(refuse_part(file));
    return find_architecture(file);
}

void quire__gguf_close(quire__gguf *file) {
    ggml_backend_buffer_free(file->buffer);
    ggml_free(file->tensors);
    gguf_free(file->meta);
    if (file->map) {
        munmap(file->map, file->map_bytes);
        close(file->fd);
    }
    free(file->expanded);
    free(file->path);
    *file = (quire__gguf){0};
}

/* ------------------------------------------------------------------ bytes of the tensors */

static quire_status bind_mapping(quire__gguf *file) {
    file->buffer = ggml_backend_cpu_buffer_from_ptr(file->map, file->map_bytes);
    if (!file->buffer)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    uint8_t *data = (uint8_t *)file->map + gguf_get_data_offset(file->meta);
    const int64_t n = gguf_get_n_tensors(file->meta);
    for (int64_t i = 0; i < n; i++) {
        struct ggml_tensor *tensor =
            ggml_get_tensor(file->tensors, gguf_get_tensor_name(file->meta, i));
        if (ggml_backend_tensor_alloc(file->buffer, tensor,
                                      data + gguf_get_tensor_offset(file->meta, i)) !=
            GGML_STATUS_SUCCESS)
            return quire__fail(QUIRE_E_MODEL, "tensor %s cannot be mapped", tensor->name);
    }
    return QUIRE_OK;
}

enum { ALIGNMENT = 64 };

static size_t expanded_bytes(const struct ggml_tensor *tensor) {
    return GGML_PAD((size_t)ggml_nelements(tensor) * sizeof(float), (size_t)ALIGNMENT);
}

/* Tensors of types that cannot be expanded stay where they are: the checks of the model refuse
 * them if they are used. */
static bool expands(const struct ggml_tensor *tensor) {
    return tensor->type != GGML_TYPE_F32 && ggml_get_type_traits(tensor->type)->to_float != NULL;
}

static void expand(struct ggml_tensor *tensor, const void *data, float *out) {
    ggml_get_type_traits(tensor->type)->to_float(data, out, ggml_nelements(tensor));
    tensor->type = GGML_TYPE_F32;
    tensor->nb[0] = sizeof(float);
    for (int i = 1; i < GGML_MAX_DIMS; i++)
        tensor->nb[i] = tensor->nb[i - 1] * (size_t)tensor->ne[i - 1];
}

static quire_status bind_expanded(quire__gguf *file) {
    size_t total = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(file->tensors); t;
         t = ggml_get_next_tensor(file->tensors, t))
        if (expands(t) && !quire__add(total, expanded_bytes(t), &total))
            return quire__fail(QUIRE_E_TOO_BIG, "'%s' is too big to expand", file->path);
    file->expanded = aligned_alloc(ALIGNMENT, total + ALIGNMENT);
    if (!file->expanded)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of expanded weights", total);
    const uint8_t *data = (const uint8_t *)file->map + gguf_get_data_offset(file->meta);
    uint8_t *at = file->expanded;
    const int64_t n = gguf_get_n_tensors(file->meta);
    for (int64_t i = 0; i < n; i++) {
        struct ggml_tensor *tensor =
            ggml_get_tensor(file->tensors, gguf_get_tensor_name(file->meta, i));
        const uint8_t *bytes = data + gguf_get_tensor_offset(file->meta, i);
        if (expands(tensor)) {
            float *out = (float *)at;
            at += expanded_bytes(tensor);
            expand(tensor, bytes, out);
            tensor->data = out;
        } else {
            tensor->data =
                (void *)(uintptr_t)bytes; /* never written: weights are leaves of every graph */
        }
    }
    return QUIRE_OK;
}

quire_status quire__gguf_bind(quire__gguf *file, bool f32_weights) {
    return f32_weights ? bind_expanded(file) : bind_mapping(file);
}

quire_status quire__gguf_forget(quire__gguf *file) { return map_at(file, file->fd, file->map); }
