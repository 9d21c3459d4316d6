#include "model/calibration.h"

#include "codec/codec.h"

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

void quire_calibration_free(quire_calibration *c) {
    if (!c)
        return;
    free(c->layers);
    free(c->order);
    free(c->feedback);
    free(c);
}
