/* calibrate.h: what must be known of a model once, before caches of some codecs can be made: the
 * order of each head's channels (km4, km3; quire.h, quire_layer.k_order), and how their rounding
 * errors are passed on (k_feedback).
 *
 * A text of our own runs through the model on a raw cache. A channel's importance is the mean
 * range of its K over a page times the root mean square of q in it; feedback comes from the
 * second moment of the queries that look at a page (query_moment.h). Both are kept with the
 * model and, if it has a directory for that, in a file named by the digest of its weights and by
 * how they are multiplied, which may change the last digits of K and q. */
#ifndef ENGINE_CALIBRATE_CALIBRATE_H
#define ENGINE_CALIBRATE_CALIBRATE_H

#include "model/model.h"

/* Orders of all layers and their k_feedback, (n_layers): NULL for layers that share another's
 * cache. They live as long as the model. A probe has the threads of the session that wants them,
 * and stops when it is told to. */
quire_status quire__model_orders(const quire_model *model, const quire_session_options *like,
                                 const uint16_t *const **orders, const float *const **feedbacks);
void quire__probe_free(quire_model *model);
/* A text's first `most` tokens, or as many as there are, or as the model's context takes. */
quire_status quire__first_tokens(const quire_model *model, const char *text, size_t n_bytes,
                                 int32_t most, int32_t *tokens, int32_t *n);

#endif
