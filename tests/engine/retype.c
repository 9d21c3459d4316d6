/* retype.c: writes a GGUF file again with its matrices in another type, by ggml's own
 * conversions.
 * usage: retype IN OUT TYPE      TYPE as ggml names it: f32, q4_K, iq2_xxs ..; "list" prints
 *                                those that can be written */
#include <ggml-cpu.h>
#include <ggml.h>
#include <gguf.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "retype: %s\n", what);
    exit(1);
}

static bool writable(enum ggml_type type) {
    const struct ggml_type_traits *traits = ggml_get_type_traits(type);
    return traits->type_name && traits->blck_size > 0 && traits->to_float &&
           ggml_get_type_traits_cpu(type)->vec_dot && type != GGML_TYPE_Q8_1 &&
           type != GGML_TYPE_Q8_K; /* of activations alone */
}

static enum ggml_type type_by_name(const char *name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *other = ggml_get_type_traits((enum ggml_type)i)->type_name;
        if (other && strcmp(other, name) == 0)
            return (enum ggml_type)i;
    }
    require(false, "no such type");
    return GGML_TYPE_COUNT;
}

/* Into new memory. */
static void *convert(const struct ggml_tensor *from, enum ggml_type type, size_t *n_bytes) {
    const int64_t n = ggml_nelements(from), row = from->ne[0];
    float *values = malloc((size_t)n * sizeof *values),
          *importance = malloc((size_t)row * sizeof *importance);
    require(values && importance, "out of memory");
    if (from->type == GGML_TYPE_F32)
        memcpy(values, from->data, (size_t)n * sizeof *values);
    else
        ggml_get_type_traits(from->type)->to_float(from->data, values, n);
    for (int64_t i = 0; i < row; i++)
        importance[i] = 1;
    *n_bytes = ggml_row_size(type, row) * (size_t)(n / row);
    void *data = malloc(*n_bytes);
    require(data != NULL, "out of memory");
    if (type == GGML_TYPE_F32)
        memcpy(data, values, *n_bytes);
    else
        ggml_quantize_chunk(type, values, data, 0, n / row, row, importance);
    free(values);
    free(importance);
    return data;
}

int main(int argc, char **argv) {
    ggml_cpu_init();
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < GGML_TYPE_COUNT; i++)
            if (ggml_get_type_traits((enum ggml_type)i)->type_name && writable((enum ggml_type)i))
                printf("%s %d\n", ggml_type_name((enum ggml_type)i),
                       (int)ggml_blck_size((enum ggml_type)i));
        return 0;
    }
    require(argc == 4, "usage: retype IN OUT TYPE");
    const enum ggml_type type = type_by_name(argv[3]);
    struct ggml_context *tensors = NULL;
    struct gguf_context *in =
        gguf_init_from_file(argv[1], (struct gguf_init_params){.ctx = &tensors});
    require(in != NULL, "cannot read the file");
    struct gguf_context *out = gguf_init_empty();
    gguf_set_kv(out, in);
    for (struct ggml_tensor *t = ggml_get_first_tensor(tensors); t;
         t = ggml_get_next_tensor(tensors, t)) {
        if (gguf_find_tensor(in, t->name) < 0)
            continue; /* the bytes of all of them */
        if (t->ne[1] > 1 && t->type != type && t->ne[0] % ggml_blck_size(type) == 0) {
            size_t n_bytes;
            t->data = convert(t, type, &n_bytes);
            t->type = type;
            t->nb[0] = ggml_type_size(type);
            t->nb[1] = ggml_row_size(type, t->ne[0]);
            t->nb[2] = t->nb[3] = n_bytes;
        }
        gguf_add_tensor(out, t);
    }
    require(gguf_write_to_file(out, argv[2], false), "cannot write the file");
    gguf_free(out);
    gguf_free(in);
    ggml_free(tensors);
    return 0;
}
