#include "model/model_rope.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>

quire_status quire__load_ropes(quire_model *model) {
    const size_t n = (size_t)model->n_layers;
    quire_rope *ropes = model->ropes =
        calloc(n, sizeof *ropes + (QUIRE_DIM_MAX / 2) * sizeof(float));
    if (!ropes)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    float *frequency = (float *)(void *)(ropes + n);
    for (size_t i = 0; i < n; i++, frequency += QUIRE_DIM_MAX / 2) {
        const quire__rope *r = &model->layers[i].rope;
        const float *factors = r->factors ? r->factors->data : NULL;
        for (int32_t j = 0; j < r->n_dims / 2; j++)
            frequency[j] = (float)(pow((double)r->base, -2.0 * j / r->n_dims) /
                                   (factors ? (double)factors[j] : 1));
        ropes[i] = (quire_rope){.n_rot = r->n_dims,
                                .interleaved = r->type == GGML_ROPE_TYPE_NORMAL,
                                .scale = r->scale,
                                .frequency = frequency};
    }
    return QUIRE_OK;
}
