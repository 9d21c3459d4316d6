/* calibration.c: which model a file of calibration is given to.
 * usage: calibration FILE [LAYERS HEADS DIM] (is written, and with sizes nothing else happens) */
#include "layer_calibration.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 4, HEADS = 2, DIM = 64 };

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* The last of the layers has no order: one with a sliding window. */
static void write_file(const char *path, int n_layers, int n_heads, int dim) {
    uint16_t *order = calloc((size_t)(n_heads * dim), sizeof *order);
    quire_layer *layers = calloc((size_t)n_layers, sizeof *layers);
    require(order && layers, "no memory");
    for (int i = 0; i < n_heads * dim; i++)
        order[i] = (uint16_t)(dim - 1 - i % dim);
    for (int i = 0; i < n_layers; i++) {
        quire_layer_default(&layers[i]);
        layers[i].n_heads = layers[i].n_kv_heads = n_heads;
        layers[i].k_dim = layers[i].v_dim = dim;
        layers[i].k_order = i < n_layers - 1 ? order : NULL;
    }
    require(quire_calibration_file_write(path, layers, n_layers) == QUIRE_OK, quire_last_error());
    free(order);
    free(layers);
}

static bool is_given_to(int number, int n_heads) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = layer.n_kv_heads = n_heads;
    layer.k_dim = layer.v_dim = DIM;
    calibration_apply(&layer, number);
    return layer.k_order != NULL;
}

int main(int argc, char **argv) {
    char why[256];
    require(argc == 2 || argc == 5, "usage: calibration FILE [LAYERS HEADS DIM]");
    if (argc == 5) {
        write_file(argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    require(!calibration_fits(0) && !is_given_to(0, HEADS), "something is known before a file is");
    write_file(argv[1], LAYERS, HEADS, DIM);
    require(calibration_read(argv[1], why, sizeof why), why);
    require(calibration_fits(3), "the model itself is refused");
    require(calibration_fits(2), "the model without its windowed layer is refused");
    require(!calibration_fits(1), "a draft model of two layers is taken for it");
    require(!calibration_fits(4), "a model of five layers is taken for it");
    require(calibration_has_shape(0, HEADS, DIM), "its own shape is refused");
    require(!calibration_has_shape(2, HEADS, DIM / 2), "heads of another size are taken");
    require(calibration_has_shape(3, HEADS / 2, DIM), "a layer without an order has a shape");
    require(is_given_to(0, HEADS) && is_given_to(2, HEADS), "an order is missing");
    require(!is_given_to(3, HEADS), "an order came from nowhere");
    require(!is_given_to(0, HEADS / 2), "a layer of another shape has an order");
    require(!is_given_to(4, HEADS) && !is_given_to(-1, HEADS), "there is no such layer");
    return 0;
}
