/* weight_repack.c: asks ggml which weights it would rather have otherwise, and copies those. */
#include "model/weight_repack.h"

#include "model/model.h"

#include <string.h>

enum { PROBE_ROWS = 512, PROBE_TENSORS = 8 };

typedef ggml_backend_buffer_type_t *(*extra_types_fn)(ggml_backend_dev_t device);

static ggml_backend_buffer_type_t *extra_types(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type_t none[] = {NULL};
    extra_types_fn get = NULL;
    void *address = device ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                               "ggml_backend_dev_get_extra_bufts")
                           : NULL;
    memcpy(&get, &address, sizeof get); /* C has no cast from an object pointer to a function's */
    ggml_backend_buffer_type_t *types = get ? get(device) : NULL;
    return types ? types : none;
}

/* Whether a product with this weight could run if it lay in a buffer of `type`. */
static bool serves(ggml_backend_dev_t device, ggml_backend_buffer_type_t type,
                   const struct ggml_tensor *weight) {
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){
        .mem_size = PROBE_TENSORS * ggml_tensor_overhead(), .no_alloc = true});
    ggml_backend_buffer_t empty = ctx ? ggml_backend_buft_alloc_buffer(type, 0) : NULL;
    bool yes = false;
    if (empty) {
        struct ggml_tensor *w = ggml_new_tensor_2d(ctx, weight->type, weight->ne[0], weight->ne[1]);
        struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, weight->ne[0], PROBE_ROWS);
        struct ggml_tensor *product = ggml_mul_mat(ctx, w, x);
        w->buffer = empty;
        yes = ggml_backend_dev_supports_op(device, product);
        w->buffer = NULL;
    }
    ggml_backend_buffer_free(empty);
    ggml_free(ctx);
    return yes;
}

/* Tables are looked up by row, which only the file's own arrangement can. */
static bool is_table(const quire_model *model, const struct ggml_tensor *tensor) {
    return tensor == model->embedding || tensor == model->input_embedding;
}

static bool wanted(const quire_model *model, ggml_backend_dev_t device,
                   ggml_backend_buffer_type_t type, const struct ggml_tensor *tensor) {
    return tensor->ne[1] > 1 && tensor->ne[2] == 1 && !is_table(model, tensor) &&
           serves(device, type, tensor);
}

static size_t place_bytes(ggml_backend_buffer_type_t type, const struct ggml_tensor *tensor) {
    return GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor),
                    ggml_backend_buft_get_alignment(type));
}

/* Moves a tensor to *at and rearranges its bytes. */
static quire_status move(quire__repacked *repacked, struct ggml_tensor *tensor, const void *bytes,
                         char **at) {
    const size_t n_bytes = ggml_nbytes(tensor);
    tensor->buffer = NULL;
    tensor->data = NULL;
    if (ggml_backend_tensor_alloc(repacked->buffer, tensor, *at) != GGML_STATUS_SUCCESS)
        return quire__fail(QUIRE_E_NOMEM, "weight %s cannot be rearranged", tensor->name);
    ggml_backend_tensor_set(tensor, bytes, 0, n_bytes);
    *at += place_bytes(ggml_backend_buffer_get_type(repacked->buffer), tensor);
    return QUIRE_OK;
}

/* A model whose output matrix is its embedding gets a second description of it. */
static quire_status untie_output(quire_model *model, ggml_backend_dev_t device,
                                 ggml_backend_buffer_type_t type) {
    if (model->output != model->embedding || !serves(device, type, model->embedding))
        return QUIRE_OK;
    model->repacked.own = ggml_init(
        (struct ggml_init_params){.mem_size = 2 * ggml_tensor_overhead(), .no_alloc = true});
    if (!model->repacked.own)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    model->output = ggml_dup_tensor(model->repacked.own, model->embedding);
    ggml_set_name(model->output, "output.weight");
    return QUIRE_OK;
}

static quire_status repack_as(quire_model *model, ggml_backend_dev_t device,
                              ggml_backend_buffer_type_t type) {
    struct ggml_context *tensors = model->file.tensors;
    quire__repacked *repacked = &model->repacked;
    size_t total = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(tensors); t;
         t = ggml_get_next_tensor(tensors, t))
        total += wanted(model, device, type, t) ? place_bytes(type, t) : 0;
    QUIRE_TRY(untie_output(model, device, type));
    total += repacked->own ? place_bytes(type, model->output) : 0;
    if (total == 0)
        return QUIRE_OK;
    repacked->buffer = ggml_backend_buft_alloc_buffer(type, total);
    if (!repacked->buffer)
        return quire__fail(QUIRE_E_NOMEM,
                           "no memory for %zu bytes of rearranged weights. Without `repack` "
                           "(--weights file) they are read from the file as they are",
                           total);
    char *at = ggml_backend_buffer_get_base(repacked->buffer);
    for (struct ggml_tensor *t = ggml_get_first_tensor(tensors); t;
         t = ggml_get_next_tensor(tensors, t))
        if (wanted(model, device, type, t))
            QUIRE_TRY(move(repacked, t, t->data, &at));
    return repacked->own ? move(repacked, model->output, model->embedding->data, &at) : QUIRE_OK;
}

quire_status quire__repack(quire_model *model) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    for (ggml_backend_buffer_type_t *type = extra_types(device); *type && !model->repacked.buffer;
         type++)
        QUIRE_TRY(repack_as(model, device, *type));
    return QUIRE_OK;
}

void quire__repack_free(quire__repacked *repacked) {
    ggml_backend_buffer_free(repacked->buffer);
    ggml_free(repacked->own);
}
