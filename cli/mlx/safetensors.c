/* safetensors.c: reads files with every size checked; writes headers. */
#include "mlx/safetensors.h"

#include "output/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, LENGTH_BYTES = 8, ALIGNMENT = 8 };
static const size_t HEADER_MAX = (size_t)100 << 20; /* the limit of the reference implementation */

static bool refuse(const char *what) {
    cli_error("not a safetensors file: %s", what);
    return false;
}

size_t cli_tensor_type_bytes(const char *type) {
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"U8", 1},   {"I8", 1},  {"BOOL", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
                 {"BF16", 2}, {"U32", 4}, {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, type) == 0)
            return types[i].bytes;
    return 0;
}

/* ------------------------------------------------------------------ reading */

static bool read_file(const char *path, cli_safetensors *file) {
    errno = 0;
    FILE *in = fopen(path, "rb");
    long n = -1;
    if (in && fseek(in, 0, SEEK_END) == 0)
        n = ftell(in);
    if (n >= 0 && fseek(in, 0, SEEK_SET) == 0)
        file->bytes = malloc((size_t)n + 1);
    bool good = file->bytes && fread(file->bytes, 1, (size_t)n, in) == (size_t)n;
    const int error = errno;
    if (in)
        fclose(in);
    file->n_bytes = good ? (size_t)n : 0;
    if (!good)
        cli_error("cannot read '%s': %s", path, error ? strerror(error) : "it is too short");
    return good;
}

bool cli_safetensors_open(cli_safetensors *file, const char *path) {
    *file = (cli_safetensors){0};
    if (!read_file(path, file))
        return false;
    uint64_t length = 0;
    if (file->n_bytes < LENGTH_BYTES)
        return refuse("it is too short");
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | file->bytes[i];
    if (length > HEADER_MAX || length > file->n_bytes - LENGTH_BYTES)
        return refuse("its header does not fit");
    file->header = json_loadb((const char *)file->bytes + LENGTH_BYTES, (size_t)length,
                              JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(file->header))
        return refuse("its header is not JSON");
    file->data = file->bytes + LENGTH_BYTES + length;
    file->data_bytes = file->n_bytes - LENGTH_BYTES - (size_t)length;
    return true;
}

void cli_safetensors_close(cli_safetensors *file) {
    json_decref(file->header);
    free(file->bytes);
    *file = (cli_safetensors){0};
}

const char *cli_safetensors_note(const cli_safetensors *file, const char *format, ...) {
    char name[NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), name));
}

bool cli_safetensors_has(const cli_safetensors *file, const char *name) {
    return json_object_get(file->header, name) != NULL;
}

bool cli_safetensors_get(const cli_safetensors *file, const char *name, cli_tensor *tensor) {
    const json_t *entry = json_object_get(file->header, name);
    const json_t *shape = json_object_get(entry, "shape"),
                 *offsets = json_object_get(entry, "data_offsets");
    *tensor = (cli_tensor){.type = json_string_value(json_object_get(entry, "dtype"))};
    const size_t size = tensor->type ? cli_tensor_type_bytes(tensor->type) : 0;
    const json_int_t start = json_integer_value(json_array_get(offsets, 0)),
                     end = json_integer_value(json_array_get(offsets, 1));
    bool good = size > 0 && json_is_array(shape) && json_array_size(shape) <= CLI_TENSOR_DIMS &&
                json_array_size(offsets) == 2 && start >= 0 && end >= start &&
                (uint64_t)end <= file->data_bytes;
    size_t n = size;
    for (size_t i = 0; good && i < json_array_size(shape); i++) {
        const json_int_t dim = json_integer_value(json_array_get(shape, i));
        good = dim >= 0 && (dim == 0 || n <= SIZE_MAX / (size_t)dim);
        n *= good ? (size_t)dim : 1;
        tensor->dims[tensor->n_dims++] = dim;
    }
    if (!good || n != (size_t)(end - start)) {
        cli_error("array '%s' is missing, or its type, shape and bytes do not agree", name);
        return false;
    }
    tensor->data = file->data + start;
    tensor->n_bytes = n;
    return true;
}

/* ------------------------------------------------------------------ writing */

bool cli_tensor_list_start(cli_tensor_list *list) {
    *list = (cli_tensor_list){.header = json_pack("{s:{}}", "__metadata__")};
    return list->header != NULL;
}

/* Drops a header that could not be built; cli_tensor_list_write reports it. */
static void give_up(cli_tensor_list *list) {
    json_decref(list->header);
    list->header = NULL;
}

void cli_tensor_list_note(cli_tensor_list *list, const char *value, const char *format, ...) {
    char name[NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (list->header && json_object_set_new(json_object_get(list->header, "__metadata__"), name,
                                            json_string(value)) != 0)
        give_up(list);
}

void cli_tensor_list_add(cli_tensor_list *list, const char *type, const int64_t *dims, int n_dims,
                         const char *format, ...) {
    char name[NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    uint64_t bytes = cli_tensor_type_bytes(type);
    json_t *shape = json_array();
    for (int i = 0; i < n_dims; i++) {
        bytes *= (uint64_t)dims[i];
        cli_json_append(&shape, json_integer(dims[i]));
    }
    const uint64_t end = list->data_bytes + bytes;
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type, "shape", shape, "data_offsets",
                              (json_int_t)list->data_bytes, (json_int_t)end);
    if (list->header && json_object_set_new(list->header, name, entry) != 0)
        give_up(list);
    list->data_bytes = end;
}

bool cli_tensor_list_write(cli_tensor_list *list, FILE *file) {
    char *text = list->header ? json_dumps(list->header, JSON_COMPACT) : NULL;
    give_up(list);
    if (!text) {
        cli_error("out of memory");
        return false;
    }
    const size_t n = strlen(text), padded = (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    bool good =
        fwrite(length, 1, sizeof length, file) == sizeof length && fwrite(text, 1, n, file) == n;
    for (size_t i = n; good && i < padded; i++)
        good = fputc(' ', file) == ' ';
    free(text);
    return good;
}
