/* calibration.c: which model a file of calibration is given to.
 * usage: calibration FILE (is written) */
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

/* A model of four layers, the last of which has no order: one with a sliding window. */
static void write_file(const char *path) {
    static uint16_t order[HEADS * DIM];
    quire_layer layers[LAYERS];
    for (int i = 0; i < HEADS * DIM; i++)
        order[i] = (uint16_t)(DIM - 1 - i % DIM);
    for (int i = 0; i < LAYERS; i++) {
        quire_layer_default(&layers[i]);
        layers[i].n_heads = layers[i].n_kv_heads = HEADS;
        layers[i].k_dim = layers[i].v_dim = DIM;
        layers[i].k_order = i < LAYERS - 1 ? order : NULL;
    }
    require(quire_calibration_file_write(path, layers, LAYERS) == QUIRE_OK, quire_last_error());
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
    require(argc == 2, "usage: calibration FILE");
    require(!calibration_fits(0) && !is_given_to(0, HEADS), "something is known before a file is");
    write_file(argv[1]);
    require(calibration_read(argv[1], why, sizeof why), why);
    require(calibration_fits(3), "the model itself is refused");
    require(calibration_fits(2), "the model without its windowed layer is refused");
    require(!calibration_fits(1), "a draft model of two layers is taken for it");
    require(!calibration_fits(4), "a model of five layers is taken for it");
    require(is_given_to(0, HEADS) && is_given_to(2, HEADS), "an order is missing");
    require(!is_given_to(3, HEADS), "an order came from nowhere");
    require(!is_given_to(0, HEADS / 2), "a layer of another shape has an order");
    require(!is_given_to(4, HEADS) && !is_given_to(-1, HEADS), "there is no such layer");
    return 0;
}
