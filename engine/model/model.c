/* model.c: loads a model: file, shapes, tensors, vocabulary. */
#include "model/model.h"

#include "model/ggml_fits.h"
#include "model/ggml_log.h"
#include "model/model_rope.h"
#include "model/tensor_check.h"

#include <ggml-cpu.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 1024, EMBD_MAX = 1 << 20, VOCAB_MAX = 1 << 24 };

static const quire__architecture *const ARCHITECTURES[] = {
    &quire__llama, &quire__qwen2, &quire__qwen3, &quire__gemma3, &quire__gemma4};
enum { N_ARCHITECTURES = sizeof ARCHITECTURES / sizeof *ARCHITECTURES };

const char *quire_architecture_at(size_t index) {
    return index < N_ARCHITECTURES ? ARCHITECTURES[index]->name : NULL;
}

void quire_model_options_default(quire_model_options *options) {
    if (options)
        *options = (quire_model_options){.struct_size = sizeof *options, .repack = true};
}

static quire_status find_architecture(quire_model *model) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        if (strcmp(ARCHITECTURES[i]->name, model->file.architecture) == 0)
            model->architecture = ARCHITECTURES[i];
    if (model->architecture)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_MODEL, "'%s': architecture '%s' is not supported", model->file.path,
                       model->file.architecture);
}

static quire_status load_sizes(quire_model *model) {
    const quire__gguf *file = &model->file;
    QUIRE_TRY(quire__gguf_int(file, ".block_count", true, 1, LAYERS_MAX, &model->n_layers));
    QUIRE_TRY(quire__gguf_int(file, ".embedding_length", true, 1, EMBD_MAX, &model->n_embd));
    QUIRE_TRY(quire__gguf_int(file, ".context_length", true, 1, INT32_MAX / 2, &model->context));
    const struct ggml_tensor *embedding = ggml_get_tensor(file->tensors, "token_embd.weight");
    if (!embedding || embedding->ne[1] < 1 || embedding->ne[1] > VOCAB_MAX)
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': tensor token_embd.weight is missing or has no rows", file->path);
    model->n_vocab = (int32_t)embedding->ne[1];
    model->layers = calloc((size_t)model->n_layers, sizeof *model->layers);
    model->cache = calloc((size_t)model->n_layers, sizeof *model->cache);
    if (!model->layers || !model->cache)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    return QUIRE_OK;
}

static void count_weights(quire_model *model) {
    size_t by_type[GGML_TYPE_COUNT] = {0};
    for (struct ggml_tensor *t = ggml_get_first_tensor(model->file.tensors); t;
         t = ggml_get_next_tensor(model->file.tensors, t)) {
        model->n_parameters += (uint64_t)ggml_nelements(t);
        model->weight_bytes += ggml_nbytes(t);
        by_type[t->type] += t == model->embedding ? 0 : (size_t)ggml_nelements(t);
    }
    int most = 0;
    for (int i = 1; i < GGML_TYPE_COUNT; i++)
        most = by_type[i] > by_type[most] ? i : most;
    model->weight_type = ggml_type_name((enum ggml_type)most);
}

static quire_status load_name(quire_model *model) {
    const char *name;
    QUIRE_TRY(quire__gguf_string(&model->file, "general.name", &name));
    if (!name)
        name = "";
    model->name = malloc(strlen(name) + 1);
    if (!model->name)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    strcpy(model->name, name);
    return QUIRE_OK;
}

static quire_status keep_options(quire_model *model, const quire_model_options *options) {
    model->weights_as = options->f32_weights ? "f32" : options->repack ? "repacked" : "file";
    if (!options->cache_dir)
        return QUIRE_OK;
    model->cache_dir = malloc(strlen(options->cache_dir) + 1);
    if (!model->cache_dir)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    strcpy(model->cache_dir, options->cache_dir);
    return QUIRE_OK;
}

static quire_status load(quire_model *model, const char *path, const quire_model_options *options) {
    QUIRE_TRY(keep_options(model, options));
    QUIRE_TRY(quire__gguf_open(&model->file, path));
    QUIRE_TRY(find_architecture(model));
    QUIRE_TRY(load_sizes(model));
    QUIRE_TRY(load_name(model));
    model->embedding_scale = 1;
    QUIRE_TRY(quire__tensors_refuse(&model->file));
    QUIRE_TRY(model->architecture->load(model));
    QUIRE_TRY(quire__tensors_all_used(&model->file));
    QUIRE_TRY(quire__vocab_load(model, path));
    QUIRE_TRY(quire__gguf_bind(&model->file, options->f32_weights));
    QUIRE_TRY(quire__load_ropes(model));
    count_weights(model);
    if (!options->repack || options->f32_weights)
        return QUIRE_OK;
    QUIRE_TRY(quire__repack(model));
    return quire__gguf_forget(&model->file);
}

quire_status quire_model_load(quire_model **result, const char *path,
                              const quire_model_options *options) {
    if (!result || !path)
        return quire__fail(QUIRE_E_INVALID, "model or path is NULL");
    *result = NULL;
    quire_model_options defaults;
    quire_model_options_default(&defaults);
    if (!options)
        options = &defaults;
    if (options->struct_size != sizeof *options)
        return quire__fail(QUIRE_E_INVALID, "options were not set by quire_model_options_default");
    QUIRE_TRY(quire__ggml_fits());
    quire__ggml_log_install();
    ggml_cpu_init();
    quire_model *model = calloc(1, sizeof *model);
    if (!model)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    if (pthread_mutex_init(&model->identity_lock, NULL) != 0) {
        free(model);
        return quire__fail(QUIRE_E_NOMEM, "cannot create a mutex");
    }
    const quire_status status = load(model, path, options);
    if (status != QUIRE_OK) {
        quire_model_free(model);
        return status;
    }
    *result = model;
    return QUIRE_OK;
}

quire_status quire__model_load_expanding(const quire_model *model, quire_model **twin) {
    quire_model_options options;
    quire_model_options_default(&options);
    options.repack = false;
    options.cache_dir = model->cache_dir;
    QUIRE_TRY(quire_model_load(twin, model->file.path, &options));
    (*twin)->expand = true;
    (*twin)->weights_as = "f32";
    return QUIRE_OK;
}

void quire_model_free(quire_model *model) {
    if (!model)
        return;
    quire__vocab_free(model);
    quire__repack_free(&model->repacked);
    quire__gguf_close(&model->file);
    free(model->layers);
    free(model->cache);
    free(model->ropes);
    free(model->name);
    free(model->identity);
    free(model->cache_dir);
    pthread_mutex_destroy(&model->identity_lock);
    free(model);
}

void quire_model_get_info(const quire_model *model, quire_model_info *info) {
    *info = (quire_model_info){.architecture = model->architecture->name,
                               .name = model->name,
                               .weight_type = model->weight_type,
                               .n_layers = model->n_layers,
                               .n_embd = model->n_embd,
                               .n_vocab = model->n_vocab,
                               .context = model->context,
                               .n_parameters = model->n_parameters,
                               .weight_bytes = model->weight_bytes,
                               .layers = model->cache};
}
