/* safetensors.h: reads and writes safetensors files: named arrays with a JSON header. Functions
 * that return false have printed the reason. */
#ifndef CLI_MLX_SAFETENSORS_H
#define CLI_MLX_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_TENSOR_DIMS = 4 };

typedef struct cli_tensor {
    const char *type; /* "U32", "F16", "BF16", "F32", "I32" ... */
    int n_dims;
    int64_t dims[CLI_TENSOR_DIMS];
    const uint8_t *data;
    size_t n_bytes;
} cli_tensor;

typedef struct cli_safetensors {
    uint8_t *bytes; /* the whole file */
    size_t n_bytes;
    json_t *header;
    const uint8_t *data;
    size_t data_bytes;
} cli_safetensors;

bool cli_safetensors_open(cli_safetensors *file, const char *path);
void cli_safetensors_close(cli_safetensors *file);
/* A string of the metadata, or NULL. The name is a printf format. */
const char *cli_safetensors_note(const cli_safetensors *file, const char *format, ...);
bool cli_safetensors_has(const cli_safetensors *file, const char *name);
/* False, with a message: there is no such array, it is outside the file, or its size does not match
 * its shape. */
bool cli_safetensors_get(const cli_safetensors *file, const char *name, cli_tensor *tensor);

/* The header of a file to write. Arrays are in the order of cli_tensor_list_add; the caller writes
 * their data after the header. */
typedef struct cli_tensor_list {
    json_t *header; /* with "__metadata__" */
    uint64_t data_bytes;
} cli_tensor_list;

bool cli_tensor_list_start(cli_tensor_list *list);
void cli_tensor_list_note(cli_tensor_list *list, const char *value, const char *format, ...);
void cli_tensor_list_add(cli_tensor_list *list, const char *type, const int64_t *dims, int n_dims,
                         const char *format, ...);
bool cli_tensor_list_write(cli_tensor_list *list,
                           FILE *file);         /* writes the header, frees the list */
size_t cli_tensor_type_bytes(const char *type); /* 0: unknown */

#endif
