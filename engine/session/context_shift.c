/* context_shift.c: drops tokens from the middle of a sequence, with the model's own RoPE. */
#include "base/status.h"
#include "model/model_rope.h"

static quire_status check_rope(const quire_model *model, int32_t layer) {
    const quire__rope *r = &model->layers[layer].rope;
    if (quire__rope_is_simple(r))
        return QUIRE_OK;
    return quire__fail(QUIRE_E_UNSUPPORTED,
                       r->ext_factor != 0
                           ? "layer %d: cannot shift a model with YaRN"
                           : "layer %d: positions of this model are more than one number",
                       (int)layer);
}

quire_status quire_session_shift(quire_session *session, quire_seq *seq, int32_t from, int32_t to) {
    if (!session || !seq)
        return quire__fail(QUIRE_E_INVALID, "session or sequence is NULL");
    const quire_model *model = quire_session_model(session);
    for (int32_t i = 0; i < model->n_layers; i++)
        QUIRE_TRY(check_rope(model, i));
    return quire_seq_shift(seq, from, to, model->ropes, model->n_layers);
}
