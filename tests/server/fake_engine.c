/* fake_engine.c: see fake_parts.h. */
#include "fake_parts.h"

#include <stdlib.h>

enum { LAYERS = 3 };

struct quire_session {
    quire_pool *pool;
    quire_layer layers[LAYERS];
};

quire_session *fake_session_create(void) {
    quire_session *session = calloc(1, sizeof *session);
    if (!session)
        return NULL;
    for (int i = 0; i < LAYERS; i++) {
        quire_layer_default(&session->layers[i]);
        session->layers[i].n_heads = 4;
        session->layers[i].n_kv_heads = 2;
        session->layers[i].k_dim = session->layers[i].v_dim = 64;
    }
    session->layers[2].share = 0;
    quire_pool_options options;
    quire_pool_options_default(&options);
    options.layers = session->layers;
    options.n_layers = LAYERS;
    options.budget_bytes = (size_t)8 << 20;
    options.max_workers = 1; /* what a worker needs depends on the processor */
    if (quire_policy_parse("k8v4", &options.policy) == QUIRE_OK &&
        quire_pool_create(&session->pool, &options) == QUIRE_OK)
        return session;
    free(session);
    return NULL;
}

void fake_session_free(quire_session *session) {
    if (session)
        quire_pool_free(session->pool);
    free(session);
}

quire_pool *quire_session_pool(const quire_session *session) { return session->pool; }
const quire_layer *quire_session_layers(const quire_session *session) { return session->layers; }
const quire_model *quire_session_model(const quire_session *session) {
    (void)session;
    return NULL;
}

void quire_model_get_info(const quire_model *model, quire_model_info *info) {
    (void)model;
    *info = (quire_model_info){.architecture = "fake",
                               .name = "fake",
                               .weight_type = "f32",
                               .n_layers = LAYERS,
                               .context = 4096,
                               .n_parameters = 123,
                               .weight_bytes = 456};
}
