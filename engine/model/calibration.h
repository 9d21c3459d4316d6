/* calibration.h: the result of a calibration (quire_model_calibrate), as the session reads it: for
 * each layer the order of its channels of K and the feedback of their rounding errors
 * (quire_layer.k_order and k_feedback). calibrate/calibrate.c fills it. */
#ifndef ENGINE_MODEL_CALIBRATION_H
#define ENGINE_MODEL_CALIBRATION_H

#include "model/model.h"

/* A layer that shares another's cache has 0 heads, and no order or feedback. */
typedef struct quire__layer_calibration {
    int32_t n_kv_heads, k_dim;
    uint16_t *order; /* (n_kv_heads, k_dim) */
    float *feedback; /* (n_kv_heads, quire__n_feedback(k_dim)) */
} quire__layer_calibration;

struct quire_calibration {
    int32_t n_layers;
    quire__layer_calibration *layers; /* (n_layers) */
    /* Those of all layers, one after the other: what the layers point into. */
    uint16_t *order;
    float *feedback;
    size_t order_bytes, feedback_bytes;
};

/* One of the shape of the model, with zeros in it. E_NOMEM. */
quire_status quire__calibration_create(const quire_model *model, quire_calibration **calibration);
/* Whether its layers have the shapes of the model's. */
bool quire__calibration_fits(const quire_calibration *calibration, const quire_model *model);

#endif
