/* weight_repack.h: weights in the arrangement that ggml multiplies fastest on this processor.
 *
 * ggml has such arrangements for some types and processors, as buffer types of their own: a
 * weight that is copied into such a buffer is rearranged on the way. The others stay in the
 * mapped file. */
#ifndef ENGINE_MODEL_WEIGHT_REPACK_H
#define ENGINE_MODEL_WEIGHT_REPACK_H

#include <ggml-backend.h>

#include "base/status.h"

struct quire_model;

typedef struct quire__repacked {
    ggml_backend_buffer_t buffer; /* NULL: nothing was rearranged */
    struct ggml_context *own;     /* an output matrix beside the embedding that it is tied to */
} quire__repacked;

/* After the tensors have their bytes. Changes where they lie, and model->output. */
quire_status quire__repack(struct quire_model *model);
void quire__repack_free(quire__repacked *repacked);

#endif
