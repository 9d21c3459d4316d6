#include "model/calibration.h"

#include "codec/codec.h"
#include "model/model_rope.h"

#include <stdlib.h>

static int32_t own_heads(const quire_layer *layer) {
    return layer->share == -1 ? layer->n_kv_heads : 0;
}

static size_t order_size(const quire_layer *layer) {
    return (size_t)own_heads(layer) * (size_t)layer->k_dim;
}

static size_t feedback_size(const quire_layer *layer) {
    return (size_t)own_heads(layer) * quire__n_feedback(layer->k_dim);
}

static bool allocate(quire_calibration *c, const quire_model *model) {
    size_t n_order = 0, n_feedback = 0;
    for (int32_t i = 0; i < model->n_layers; i++) {
        n_order += order_size(&model->cache[i]);
        n_feedback += feedback_size(&model->cache[i]);
    }
    c->layers = calloc((size_t)model->n_layers, sizeof *c->layers);
    c->order = calloc(n_order, sizeof *c->order);
    c->feedback = calloc(n_feedback, sizeof *c->feedback);
    c->order_bytes = n_order * sizeof *c->order;
    c->feedback_bytes = n_feedback * sizeof *c->feedback;
    return c->layers && c->order && c->feedback;
}

quire_status quire__calibration_create(const quire_model *model, quire_calibration **result) {
    quire_calibration *c = calloc(1, sizeof *c);
    if (!c || !allocate(c, model)) {
        quire_calibration_free(c);
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    }
    c->n_layers = model->n_layers;
    uint16_t *order = c->order;
    float *feedback = c->feedback;
    for (int32_t i = 0; i < model->n_layers; i++) {
        const quire_layer *layer = &model->cache[i];
        if (own_heads(layer) == 0)
            continue;
        c->layers[i] = (quire__layer_calibration){.n_kv_heads = layer->n_kv_heads,
                                                  .k_dim = layer->k_dim,
                                                  .order = order,
                                                  .feedback = feedback};
        order += order_size(layer);
        feedback += feedback_size(layer);
    }
    *result = c;
    return QUIRE_OK;
}

bool quire__calibration_fits(const quire_calibration *c, const quire_model *model) {
    if (c->n_layers != model->n_layers)
        return false;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const quire_layer *layer = &model->cache[i];
        if (c->layers[i].n_kv_heads != own_heads(layer) ||
            (own_heads(layer) > 0 && c->layers[i].k_dim != layer->k_dim))
            return false;
    }
    return true;
}

quire_status quire_calibration_write(const quire_calibration *c, const quire_model *model,
                                     const char *path) {
    if (!c || !model || !path)
        return quire__fail(QUIRE_E_INVALID, "calibration, model or path is NULL");
    if (!quire__calibration_fits(c, model))
        return quire__fail(QUIRE_E_INVALID, "the calibration is of a model with other layers");
    quire_layer *layers = malloc((size_t)model->n_layers * sizeof *layers);
    if (!layers)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (int32_t i = 0; i < model->n_layers; i++) {
        const quire_layer *shape = &model->cache[i];
        quire_layer_default(&layers[i]);
        layers[i].n_kv_heads = own_heads(shape);
        layers[i].k_dim = shape->k_dim;
        layers[i].k_order = c->layers[i].order;
        layers[i].k_feedback = c->layers[i].feedback;
        layers[i].k_rope = quire__rope_is_simple(&model->layers[i].rope) ? &model->ropes[i] : NULL;
    }
    const quire_status status = quire_calibration_file_write(path, layers, model->n_layers);
    free(layers);
    return status;
}

void quire_calibration_free(quire_calibration *c) {
    if (!c)
        return;
    free(c->layers);
    free(c->order);
    free(c->feedback);
    free(c);
}
