/* shift.c: tokens out of the middle of a sequence, with the model's own rotation. */
#include <stdlib.h>

#include "base/status.h"
#include "rope.h"

static quire_status rope_of(const quire_model *model, int32_t layer, float *frequency, quire_rope *rope) {
    const quire__rope *r = &model->layers[layer].rope;
    if (r->type != GGML_ROPE_TYPE_NORMAL && r->type != GGML_ROPE_TYPE_NEOX)
        return quire__fail(QUIRE_E_UNSUPPORTED, "layer %d: positions of this model are more than one number",
                           (int)layer);
    if (r->ext_factor != 0)
        return quire__fail(QUIRE_E_UNSUPPORTED, "layer %d: cannot shift a model with YaRN", (int)layer);
    for (int32_t j = 0; j < r->n_dims / 2; j++)
        frequency[j] = (float)quire__rope_frequency(r, j);
    *rope = (quire_rope){
        .n_rot = r->n_dims, .interleaved = r->type == GGML_ROPE_TYPE_NORMAL, .scale = r->scale, .frequency = frequency};
    return QUIRE_OK;
}

quire_status quire_session_shift(quire_session *session, quire_seq *seq, int32_t from, int32_t to) {
    if (!session || !seq)
        return quire__fail(QUIRE_E_INVALID, "session or sequence is NULL");
    const quire_model *model = quire_session_model(session);
    const size_t n = (size_t)model->n_layers;
    quire_rope *ropes = calloc(n, sizeof *ropes);
    float *frequencies = calloc(n, (QUIRE_DIM_MAX / 2) * sizeof *frequencies);
    quire_status status = ropes && frequencies ? QUIRE_OK : quire__fail(QUIRE_E_NOMEM, "no memory to shift");
    for (int32_t i = 0; i < model->n_layers && status == QUIRE_OK; i++)
        status = rope_of(model, i, frequencies + (size_t)i * (QUIRE_DIM_MAX / 2), &ropes[i]);
    if (status == QUIRE_OK)
        status = quire_seq_shift(seq, from, to, ropes, model->n_layers);
    free(ropes);
    free(frequencies);
    return status;
}
