/* gguf_file.h: a GGUF file, mapped, with every key and tensor checked before use.
 *
 * ggml aborts on a key of another type or a tensor outside its buffer, so nothing of the file
 * reaches it unchecked. Errors name the key or the tensor. */
#ifndef ENGINE_MODEL_GGUF_FILE_H
#define ENGINE_MODEL_GGUF_FILE_H

#include "base/status.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>

typedef struct quire__gguf {
    char *path;
    struct gguf_context *meta;
    struct ggml_context *tensors; /* their shapes and types; data after quire__gguf_bind */
    char architecture[64];
    int fd;
    void *map; /* NULL: not mapped, and fd is closed */
    size_t map_bytes;
    ggml_backend_buffer_t buffer; /* of the mapping, or of the weights expanded to f32 */
    uint8_t *expanded;            /* NULL: weights are in the mapping */
} quire__gguf;

quire_status quire__gguf_open(quire__gguf *file, const char *path);
void quire__gguf_close(quire__gguf *file);

/* ---- keys. A name that starts with '.' belongs to the architecture: ".block_count" is
 * "llama.block_count". Optional ones (`required` false) leave *value as it is when the key is
 * missing. */
quire_status quire__gguf_int(const quire__gguf *file, const char *key, bool required, int32_t min,
                             int32_t max, int32_t *value);
quire_status quire__gguf_float(const quire__gguf *file, const char *key, bool required,
                               float *value);
/* NULL if missing. */
quire_status quire__gguf_string(const quire__gguf *file, const char *key, const char **value);
/* One number for all layers, or an array with one for each. Booleans count as 0 and 1. */
quire_status quire__gguf_int_per_layer(const quire__gguf *file, const char *key, bool required,
                                       int32_t min, int32_t max, int32_t n_layers, int32_t *values);
bool quire__gguf_is_array(const quire__gguf *file, const char *key);

/* ---- tensors */

/* In ggml_tensor.flags while a model loads, on every tensor that was asked for; ggml itself uses
 * that bit in training. */
enum { QUIRE__TENSOR_USED = GGML_TENSOR_FLAG_PARAM };

typedef enum quire__need { QUIRE__OPTIONAL, QUIRE__REQUIRED } quire__need;

/* A matrix of `n_rows` rows of `n_columns`, of any type that ggml can multiply. *tensor is NULL
 * if it is missing and optional. The name is a printf format for the layer. */
quire_status quire__gguf_matrix(const quire__gguf *file, quire__need need,
                                struct ggml_tensor **tensor, const char *format, int32_t layer,
                                int64_t n_columns, int64_t n_rows);
/* A vector in f32: norms, biases, factors. */
quire_status quire__gguf_vector(const quire__gguf *file, quire__need need,
                                struct ggml_tensor **tensor, const char *format, int32_t layer,
                                int64_t n);
/* Gives every tensor its bytes: in the mapping, or expanded to f32. */
quire_status quire__gguf_bind(quire__gguf *file, bool f32_weights);
/* Drops the pages read so far from memory: those still needed are read again. */
quire_status quire__gguf_forget(quire__gguf *file);

#endif
