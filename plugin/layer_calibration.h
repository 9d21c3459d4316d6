/* layer_calibration.h: a model's calibration (QUIRE_CALIBRATION), as `quire probe --calibration`
 * writes it. */
#ifndef QUIRE_PLUGIN_LAYER_CALIBRATION_H
#define QUIRE_PLUGIN_LAYER_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>

#include <quire.h>

/* Reads the file, once. `path` is kept for messages. False: `why` is a sentence. */
bool calibration_read(const char *path, char *why, size_t why_bytes);
/* Whether it can be of a model with a K/V cache up to this layer, the last one. A draft model may
 * have layers of the same shape, but fewer. */
bool calibration_fits(int last_layer);
/* Whether a layer of this number can have the shape: the file has the same, or no order for it. */
bool calibration_has_shape(int number, int n_kv_heads, int k_dim);
/* Says that the file is of another model than one with this last layer, if there is a file: on
 * stderr, once in a process. */
void calibration_refuse(int last_layer);
/* Gives a layer its channel order and error feedback if the file has a layer of this number and
 * shape. */
void calibration_apply(quire_layer *layer, int number);

#endif
