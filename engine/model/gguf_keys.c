/* gguf_keys.c: keys and tensors of a GGUF file, checked for type, range and shape. */
#include "model/gguf_file.h"

#include <ggml-cpu.h>
#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 128 };

static int64_t find(const quire__gguf *file, const char *key, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%s%s", key[0] == '.' ? file->architecture : "", key);
    return gguf_find_key(file->meta, name);
}

/* A scalar, or element i of an array, of any integer type. False for other types. */
static bool integer_at(const void *data, enum gguf_type type, size_t i, int64_t *value) {
    switch (type) {
    case GGUF_TYPE_UINT8:
        *value = ((const uint8_t *)data)[i];
        return true;
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        *value = ((const int8_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT16:
        *value = ((const uint16_t *)data)[i];
        return true;
    case GGUF_TYPE_INT16:
        *value = ((const int16_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT32:
        *value = ((const uint32_t *)data)[i];
        return true;
    case GGUF_TYPE_INT32:
        *value = ((const int32_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT64: /* beyond 63 bits becomes negative and is refused by every range */
    case GGUF_TYPE_INT64:
        *value = ((const int64_t *)data)[i];
        return true;
    default:
        return false;
    }
}

static quire_status missing(const quire__gguf *file, const char *name) {
    return quire__fail(QUIRE_E_MODEL, "'%s': key %s is missing", file->path, name);
}

static quire_status in_range(const quire__gguf *file, const char *name, int64_t value, int32_t min,
                             int32_t max) {
    if (value >= min && value <= max)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_MODEL, "'%s': key %s is %lld, not %d to %d", file->path, name,
                       (long long)value, min, max);
}

static quire_status scalar(const quire__gguf *file, const char *name, int64_t id, int32_t min,
                           int32_t max, int32_t *value) {
    int64_t wide;
    const enum gguf_type type = gguf_get_kv_type(file->meta, id);
    if (type == GGUF_TYPE_STRING || type == GGUF_TYPE_ARRAY ||
        !integer_at(gguf_get_val_data(file->meta, id), type, 0, &wide))
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is not an integer", file->path, name);
    QUIRE_TRY(in_range(file, name, wide, min, max));
    *value = (int32_t)wide;
    return QUIRE_OK;
}

quire_status quire__gguf_int(const quire__gguf *file, const char *key, bool required, int32_t min,
                             int32_t max, int32_t *value) {
    char name[NAME_BYTES];
    const int64_t id = find(file, key, name);
    if (id < 0)
        return required ? missing(file, name) : QUIRE_OK;
    return scalar(file, name, id, min, max, value);
}

quire_status quire__gguf_int_per_layer(const quire__gguf *file, const char *key, bool required,
                                       int32_t min, int32_t max, int32_t n_layers,
                                       int32_t *values) {
    char name[NAME_BYTES];
    const int64_t id = find(file, key, name);
    if (id < 0)
        return required ? missing(file, name) : QUIRE_OK;
    if (gguf_get_kv_type(file->meta, id) != GGUF_TYPE_ARRAY) {
        QUIRE_TRY(scalar(file, name, id, min, max, &values[0]));
        for (int32_t i = 1; i < n_layers; i++)
            values[i] = values[0];
        return QUIRE_OK;
    }
    const enum gguf_type type = gguf_get_arr_type(file->meta, id);
    const size_t n = gguf_get_arr_n(file->meta, id);
    if (n < (size_t)n_layers)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s has %zu values for %d layers", file->path,
                           name, n, n_layers);
    for (int32_t i = 0; i < n_layers; i++) {
        int64_t wide;
        if (type == GGUF_TYPE_STRING || type == GGUF_TYPE_ARRAY ||
            !integer_at(gguf_get_arr_data(file->meta, id), type, (size_t)i, &wide))
            return quire__fail(QUIRE_E_MODEL, "'%s': key %s does not hold integers", file->path,
                               name);
        QUIRE_TRY(in_range(file, name, wide, min, max));
        values[i] = (int32_t)wide;
    }
    return QUIRE_OK;
}

quire_status quire__gguf_float(const quire__gguf *file, const char *key, bool required,
                               float *value) {
    char name[NAME_BYTES];
    const int64_t id = find(file, key, name);
    if (id < 0)
        return required ? missing(file, name) : QUIRE_OK;
    if (gguf_get_kv_type(file->meta, id) != GGUF_TYPE_FLOAT32)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is not an f32", file->path, name);
    const float found = gguf_get_val_f32(file->meta, id);
    if (!isfinite(found))
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is not finite", file->path, name);
    *value = found;
    return QUIRE_OK;
}

quire_status quire__gguf_string(const quire__gguf *file, const char *key, const char **value) {
    char name[NAME_BYTES];
    const int64_t id = find(file, key, name);
    *value = NULL;
    if (id < 0)
        return QUIRE_OK;
    if (gguf_get_kv_type(file->meta, id) != GGUF_TYPE_STRING)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is not a string", file->path, name);
    *value = gguf_get_val_str(file->meta, id);
    return QUIRE_OK;
}

bool quire__gguf_is_array(const quire__gguf *file, const char *key) {
    char name[NAME_BYTES];
    const int64_t id = find(file, key, name);
    return id >= 0 && gguf_get_kv_type(file->meta, id) == GGUF_TYPE_ARRAY;
}

/* ------------------------------------------------------------------ tensors */

static quire_status find_tensor(const quire__gguf *file, quire__need need,
                                struct ggml_tensor **tensor, const char *format, int32_t layer,
                                int64_t ne0, int64_t ne1) {
    char name[NAME_BYTES];
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
    snprintf(name, sizeof name, format, layer);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
    *tensor = NULL;
    struct ggml_tensor *found = ggml_get_tensor(file->tensors, name);
    if (!found) {
        if (need == QUIRE__OPTIONAL)
            return QUIRE_OK;
        return quire__fail(QUIRE_E_MODEL, "'%s': tensor %s is missing", file->path, name);
    }
    if (found->ne[0] != ne0 || found->ne[1] != ne1 || found->ne[2] != 1 || found->ne[3] != 1)
        return quire__fail(QUIRE_E_MODEL, "'%s': tensor %s is %lldx%lldx%lldx%lld, not %lldx%lld",
                           file->path, name, (long long)found->ne[0], (long long)found->ne[1],
                           (long long)found->ne[2], (long long)found->ne[3], (long long)ne0,
                           (long long)ne1);
    found->flags |= QUIRE__TENSOR_USED;
    *tensor = found;
    return QUIRE_OK;
}

quire_status quire__gguf_matrix(const quire__gguf *file, quire__need need,
                                struct ggml_tensor **tensor, const char *format, int32_t layer,
                                int64_t n_columns, int64_t n_rows) {
    QUIRE_TRY(find_tensor(file, need, tensor, format, layer, n_columns, n_rows));
    if (*tensor && !ggml_get_type_traits_cpu((*tensor)->type)->vec_dot)
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': tensor %s is of type %s, which cannot be multiplied", file->path,
                           (*tensor)->name, ggml_type_name((*tensor)->type));
    return QUIRE_OK;
}

quire_status quire__gguf_vector(const quire__gguf *file, quire__need need,
                                struct ggml_tensor **tensor, const char *format, int32_t layer,
                                int64_t n) {
    QUIRE_TRY(find_tensor(file, need, tensor, format, layer, n, 1));
    if (*tensor && (*tensor)->type != GGML_TYPE_F32)
        return quire__fail(QUIRE_E_MODEL, "'%s': tensor %s is of type %s, not f32", file->path,
                           (*tensor)->name, ggml_type_name((*tensor)->type));
    return QUIRE_OK;
}
