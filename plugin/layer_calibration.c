/* layer_calibration.c: channel orders and error feedback from a file. */
#include <stdio.h>

#include "layer_calibration.h"

static quire_layer *layers; /* kept until the process ends */
static int32_t n_layers;

bool calibration_read(const char *path, char *why, size_t why_bytes) {
    if (quire_calibration_file_read(path, &layers, &n_layers) == QUIRE_OK)
        return true;
    snprintf(why, why_bytes, "QUIRE_CALIBRATION: %s", quire_last_error());
    return false;
}

bool calibration_fits(int last_layer) {
    int32_t last_known = n_layers - 1;
    while (last_known >= 0 && !layers[last_known].k_order)
        last_known--;
    return last_layer < n_layers && last_known <= last_layer;
}

void calibration_apply(quire_layer *layer, int number) {
    if (number < 0 || number >= n_layers)
        return;
    const quire_layer *known = &layers[number];
    if (known->n_kv_heads != layer->n_kv_heads || known->k_dim != layer->k_dim)
        return;
    layer->k_order = known->k_order;
    layer->k_feedback = known->k_feedback;
    layer->k_rope = known->k_rope;
}
