/* layer_calibration.c: channel orders and error feedback from a file. */
#include <stdatomic.h>
#include <stdio.h>

#include "layer_calibration.h"

static quire_layer *layers; /* kept until the process ends */
static int32_t n_layers;
static const char *file; /* NULL: none was read */

bool calibration_read(const char *path, char *why, size_t why_bytes) {
    file = path;
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

/* NULL: the file has no order for it. */
static const quire_layer *known_layer(int number) {
    return number >= 0 && number < n_layers && layers[number].k_order ? &layers[number] : NULL;
}

bool calibration_has_shape(int number, int n_kv_heads, int k_dim) {
    const quire_layer *known = known_layer(number);
    return !known || (known->n_kv_heads == n_kv_heads && known->k_dim == k_dim);
}

void calibration_refuse(int last_layer) {
    static atomic_flag told = ATOMIC_FLAG_INIT; /* a program may make many caches of a model */
    if (file && !atomic_flag_test_and_set(&told))
        fprintf(stderr,
                "quire: QUIRE_CALIBRATION: %s is of another model than this one with %d layers of "
                "K/V; going on without it\n",
                file, last_layer + 1);
}

void calibration_apply(quire_layer *layer, int number) {
    const quire_layer *known = known_layer(number);
    if (!known || !calibration_has_shape(number, layer->n_kv_heads, layer->k_dim))
        return;
    layer->k_order = known->k_order;
    layer->k_feedback = known->k_feedback;
    layer->k_rope = known->k_rope;
}
