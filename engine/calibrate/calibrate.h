/* calibrate.h: what quire_model_calibrate and the sensitivity report share.
 *
 * Calibration runs a built-in text on a raw cache. A channel's importance is the mean range of its
 * K over a page times the root mean square of q in it; feedback comes from the second moment of the
 * queries that look at a page (query_moment.h). The result is cached in a file (model_cache_file.h)
 * whose name says how the weights are multiplied, which may change the last digits of K and q. */
#ifndef ENGINE_CALIBRATE_CALIBRATE_H
#define ENGINE_CALIBRATE_CALIBRATE_H

#include "model/model.h"

/* The first `most` tokens of a text, or fewer where the text or the model's context is shorter. */
quire_status quire__text_tokens(const quire_model *model, const char *text, size_t n_bytes,
                                int32_t most, int32_t *tokens, int32_t *n);

#endif
