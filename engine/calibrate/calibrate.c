#include "calibrate/calibrate.h"

#include "codec/codec.h"
#include "model/model_cache_file.h"
#include "calibrate/calibration_text.h"
#include "calibrate/channel_stats.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROBE_VERSION = 3,  /* changes with the text, with what is made of it, and with the order of
                           pairs (codec/rope_pairs.c) */
    PROBE_TOKENS = 512, /* half would do for the orders; moments of 512 leave a twentieth less:
                           docs/FIDELITY.md */
    PROBE_STEP = QUIRE_PAGE_TOKENS
};
static const char KIND[QUIRE__KIND_BYTES] = "quire order 003\n";

/* ------------------------------------------------------------------ where orders lie */

static size_t n_channels(const quire_layer *l) {
    return l->share == -1 ? (size_t)l->n_kv_heads * (size_t)l->k_dim : 0;
}

static size_t n_weights(const quire_layer *l) {
    return l->share == -1 ? (size_t)l->n_kv_heads * quire__n_feedback(l->k_dim) : 0;
}

static size_t in_all_layers(const quire_model *model, size_t (*count)(const quire_layer *)) {
    size_t n = 0;
    for (int32_t i = 0; i < model->n_layers; i++)
        n += count(&model->cache[i]);
    return n;
}

/* Pointers to each layer's part. */
static void divide(quire_model *model) {
    const uint16_t *order = model->order;
    const float *feedback = model->feedback;
    for (int32_t i = 0; i < model->n_layers; i++) {
        const bool own = n_channels(&model->cache[i]) > 0;
        model->orders[i] = own ? order : NULL;
        model->feedbacks[i] = own ? feedback : NULL;
        order += n_channels(&model->cache[i]);
        feedback += n_weights(&model->cache[i]);
    }
}

static quire_status allocate(quire_model *model) {
    if (!model->order)
        model->order = malloc(in_all_layers(model, n_channels) * sizeof *model->order);
    if (!model->orders)
        model->orders = malloc((size_t)model->n_layers * sizeof *model->orders);
    if (!model->feedback)
        model->feedback = malloc(in_all_layers(model, n_weights) * sizeof *model->feedback);
    if (!model->feedbacks)
        model->feedbacks = malloc((size_t)model->n_layers * sizeof *model->feedbacks);
    return model->order && model->orders && model->feedback && model->feedbacks
               ? QUIRE_OK
               : quire__fail(QUIRE_E_NOMEM, "out of memory");
}

void quire__probe_free(quire_model *model) {
    free(model->order);
    free((void *)model->orders);
    free(model->feedback);
    free((void *)model->feedbacks);
    free(model->cache_dir);
}

/* ------------------------------------------------------------------ the probe */

static quire_status rank(const quire__watch *watch, int32_t layer, uint16_t *order) {
    const quire_layer *l = &watch->model->cache[layer];
    float importance[QUIRE_DIM_MAX];
    for (int32_t h = 0; h < l->n_kv_heads; h++, order += l->k_dim) {
        const quire__head_figures *head = &watch->heads[layer][h];
        for (int32_t d = 0; d < l->k_dim; d++) /* a text shorter than a page has the range so far */
            importance[d] = (float)((watch->n_pages > 0 ? head->range[d]
                                                        : (double)(head->high[d] - head->low[d])) *
                                    sqrt(head->q_square[d]));
        QUIRE_TRY(quire_channel_order(importance, l->k_dim, order));
    }
    return QUIRE_OK;
}

/* A rotation that is not known leaves the directions of queries unknown: plain rounding. */
static quire_status weigh(const quire__watch *watch, int32_t layer, float *feedback) {
    const quire_layer *l = &watch->model->cache[layer];
    const size_t dim = (size_t)l->k_dim;
    const int32_t context = watch->model->context,
                  reach = l->window > 0 && l->window < context ? l->window : context;
    if (watch->turns[layer].n == 0) {
        memset(feedback, 0, n_weights(l) * sizeof *feedback);
        return QUIRE_OK;
    }
    float *moment = malloc(dim * dim * sizeof *moment);
    quire_status status = moment ? QUIRE_OK : quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (int32_t h = 0; h < l->n_kv_heads && status == QUIRE_OK; h++) {
        quire__moment_mean(watch->heads[layer][h].moment, &watch->turns[layer], reach, moment);
        status = quire_channel_feedback(moment, &watch->model->ropes[layer], l->k_dim,
                                        feedback + (size_t)h * quire__n_feedback(l->k_dim));
    }
    free(moment);
    return status;
}

static quire_status run_text(const quire_model *model, quire_session *session,
                             const int32_t *tokens, int32_t n, quire__watch *watch) {
    quire_seq *seq;
    QUIRE_TRY(quire_seq_create(quire_session_pool(session), &seq));
    quire_status status = QUIRE_OK;
    for (int32_t done = 0; done < n && status == QUIRE_OK;) {
        const int32_t rows = n - done < PROBE_STEP ? n - done : PROBE_STEP;
        const quire_step_item item = {
            .seq = seq, .tokens = tokens + done, .n_tokens = rows, .n_logits = 1};
        status = quire_session_decode(session, &item, 1, true);
        quire__watch_advance(watch, rows);
        done += rows;
        if (model->on_probe)
            model->on_probe(model->on_probe_user, done, n);
    }
    quire_seq_free(seq);
    return status;
}

quire_status quire__first_tokens(const quire_model *model, const char *text, size_t n_bytes,
                                 int32_t most, int32_t *tokens, int32_t *n) {
    const size_t capacity = 3 * n_bytes + 16; /* a space may become three bytes, a byte a token */
    int32_t *all = malloc(capacity * sizeof *all);
    if (!all)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    const quire_status status =
        quire_model_tokenize(model, text, n_bytes, QUIRE_TOKENIZE_START, all, (int32_t)capacity, n);
    if (status == QUIRE_OK) {
        *n = *n < most ? *n : most;
        *n = *n < model->context ? *n : model->context;
        memcpy(tokens, all, (size_t)*n * sizeof *tokens);
    }
    free(all);
    return status;
}

static quire_status probe(quire_model *model, const quire_session_options *like) {
    int32_t tokens[PROBE_TOKENS], n = 0;
    QUIRE_TRY(
        quire__first_tokens(model, PROBE_TEXT, sizeof PROBE_TEXT - 1, PROBE_TOKENS, tokens, &n));
    quire_session_options options;
    quire_session_options_default(&options);
    options.raw = QUIRE_F32;
    options.context = n;
    options.max_rows = PROBE_STEP;
    options.max_logits = 1;
    options.n_threads = like->n_threads;
    options.stop = like->stop;
    options.stop_user = like->stop_user;
    quire_session *session;
    quire__watch watch;
    QUIRE_TRY(quire__watch_open(&watch, model, QUIRE__SINKS));
    quire_status status = quire_session_create(&session, model, &options);
    if (status == QUIRE_OK) {
        quire__session_observe(session, quire__watch_observer(&watch));
        status = run_text(model, session, tokens, n, &watch);
        quire_session_free(session);
    }
    for (int32_t i = 0; i < model->n_layers && status == QUIRE_OK; i++)
        if (model->orders[i]) {
            status = rank(&watch, i, (uint16_t *)model->orders[i]);
            if (status == QUIRE_OK)
                status = weigh(&watch, i, (float *)model->feedbacks[i]);
        }
    quire__watch_close(&watch);
    return status;
}

/* ------------------------------------------------------------------ orders of a model */

static quire_status find_orders(quire_model *model, const quire_session_options *like) {
    QUIRE_TRY(allocate(model));
    divide(model);
    char name[32];
    snprintf(name, sizeof name, "%s-%d.order", model->weights_as, PROBE_VERSION);
    const quire__part parts[] = {
        {model->order, in_all_layers(model, n_channels) * sizeof *model->order},
        {model->feedback, in_all_layers(model, n_weights) * sizeof *model->feedback}};
    enum { N_PARTS = sizeof parts / sizeof *parts };
    if (quire__kept_read(model, name, KIND, parts, N_PARTS))
        return QUIRE_OK;
    QUIRE_TRY(probe(model, like));
    quire__kept_write(model, name, KIND, parts, N_PARTS);
    return QUIRE_OK;
}

quire_status quire__model_orders(const quire_model *constant, const quire_session_options *like,
                                 const uint16_t *const **orders, const float *const **feedbacks) {
    quire_model *model = (quire_model *)constant; /* only what is remembered changes */
    pthread_mutex_lock(&model->probe_lock);
    const quire_status status = model->probed ? QUIRE_OK : find_orders(model, like);
    model->probed = status == QUIRE_OK;
    pthread_mutex_unlock(&model->probe_lock);
    *orders = model->orders;
    *feedbacks = model->feedbacks;
    return status;
}
