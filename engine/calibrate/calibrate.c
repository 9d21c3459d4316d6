/* calibrate.c: runs the built-in text on a raw cache and turns what channel_stats.h saw into a
 * quire_calibration. */
#include "calibrate/calibrate.h"

#include "calibrate/calibration_text.h"
#include "calibrate/channel_stats.h"
#include "codec/codec.h"
#include "model/calibration.h"
#include "model/model_cache_file.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALIBRATION_VERSION = 3,  /* changes with the text, with what is computed from it, and with the
                                 order of pairs (codec/rope_pairs.c) */
    CALIBRATION_TOKENS = 512, /* half would do for the orders; moments of 512 leave a twentieth
                                 less: docs/FIDELITY.md */
    STEP = QUIRE_PAGE_TOKENS
};
static const char KIND[QUIRE__KIND_BYTES] = "quire order 003\n";

void quire_calibration_options_default(quire_calibration_options *options) {
    if (options)
        *options = (quire_calibration_options){.struct_size = sizeof *options, .n_threads = 1};
}

/* ------------------------------------------------------------------ from statistics to a layer */

static quire_status rank(const quire__channel_stats *stats, int32_t layer, uint16_t *order) {
    const quire_layer *l = &stats->model->cache[layer];
    float importance[QUIRE_DIM_MAX];
    for (int32_t h = 0; h < l->n_kv_heads; h++, order += l->k_dim) {
        const quire__head_stats *head = &stats->heads[layer][h];
        for (int32_t d = 0; d < l->k_dim; d++) /* a text shorter than a page has the range so far */
            importance[d] = (float)((stats->n_pages > 0 ? head->range[d]
                                                        : (double)(head->high[d] - head->low[d])) *
                                    sqrt(head->q_square[d]));
        QUIRE_TRY(quire_channel_order(importance, l->k_dim, order));
    }
    return QUIRE_OK;
}

/* Without a known rotation the directions of queries are unknown: no feedback. */
static quire_status weigh(const quire__channel_stats *stats, int32_t layer, float *feedback) {
    const quire_layer *l = &stats->model->cache[layer];
    const size_t dim = (size_t)l->k_dim;
    const int32_t context = stats->model->context,
                  reach = l->window > 0 && l->window < context ? l->window : context;
    if (stats->rope_pairs[layer].n == 0)
        return QUIRE_OK; /* zeros */
    float *moment = malloc(dim * dim * sizeof *moment);
    quire_status status = moment ? QUIRE_OK : quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (int32_t h = 0; h < l->n_kv_heads && status == QUIRE_OK; h++) {
        quire__query_moment_mean(stats->heads[layer][h].moment, &stats->rope_pairs[layer], reach,
                                 moment);
        status = quire_channel_feedback(moment, &stats->model->ropes[layer], l->k_dim,
                                        feedback + (size_t)h * quire__n_feedback(l->k_dim));
    }
    free(moment);
    return status;
}

/* ------------------------------------------------------------------ text */

static quire_status run_text(const quire_calibration_options *options, quire_session *session,
                             const int32_t *tokens, int32_t n, quire__channel_stats *stats) {
    quire_seq *seq;
    QUIRE_TRY(quire_seq_create(quire_session_pool(session), &seq));
    quire_status status = QUIRE_OK;
    for (int32_t done = 0; done < n && status == QUIRE_OK;) {
        const int32_t rows = n - done < STEP ? n - done : STEP;
        const quire_step_item item = {
            .seq = seq, .tokens = tokens + done, .n_tokens = rows, .n_logits = 1};
        status = quire_session_decode(session, &item, 1, true);
        quire__channel_stats_advance(stats, rows);
        done += rows;
        if (options->on_progress)
            options->on_progress(options->user, done, n);
    }
    quire_seq_free(seq);
    return status;
}

quire_status quire__text_tokens(const quire_model *model, const char *text, size_t n_bytes,
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

static quire_status observe_text(const quire_model *model, const quire_calibration_options *options,
                                 quire__channel_stats *stats) {
    int32_t tokens[CALIBRATION_TOKENS], n = 0;
    QUIRE_TRY(quire__text_tokens(model, CALIBRATION_TEXT, sizeof CALIBRATION_TEXT - 1,
                                 CALIBRATION_TOKENS, tokens, &n));
    quire_session_options raw;
    quire_session_options_default(&raw);
    raw.raw = QUIRE_F32;
    raw.context = n;
    raw.max_rows = STEP;
    raw.max_logits = 1;
    raw.n_threads = options->n_threads;
    raw.stop = options->stop;
    raw.stop_user = options->user;
    quire_session *session;
    QUIRE_TRY(quire_session_create(&session, model, &raw));
    quire__session_observe(session, quire__channel_stats_observer(stats));
    const quire_status status = run_text(options, session, tokens, n, stats);
    quire_session_free(session);
    return status;
}

static quire_status measure(const quire_model *model, const quire_calibration_options *options,
                            quire_calibration *calibration) {
    quire__channel_stats stats;
    QUIRE_TRY(quire__channel_stats_open(&stats, model, QUIRE__SINKS));
    quire_status status = observe_text(model, options, &stats);
    for (int32_t i = 0; i < model->n_layers && status == QUIRE_OK; i++) {
        const quire__layer_calibration *layer = &calibration->layers[i];
        if (!layer->order)
            continue;
        status = rank(&stats, i, layer->order);
        if (status == QUIRE_OK)
            status = weigh(&stats, i, layer->feedback);
    }
    quire__channel_stats_close(&stats);
    return status;
}

/* ------------------------------------------------------------------ calibration */

static quire_status find(const quire_model *model, const quire_calibration_options *options,
                         quire_calibration *c) {
    char name[32];
    snprintf(name, sizeof name, "%s-%d.order", model->weights_as, CALIBRATION_VERSION);
    const quire__cache_part parts[] = {{c->order, c->order_bytes},
                                       {c->feedback, c->feedback_bytes}};
    enum { N_PARTS = sizeof parts / sizeof *parts };
    if (quire__model_cache_read(model, name, KIND, parts, N_PARTS))
        return QUIRE_OK;
    memset(c->order, 0, c->order_bytes); /* a damaged file may have been read into them */
    memset(c->feedback, 0, c->feedback_bytes);
    QUIRE_TRY(measure(model, options, c));
    quire__model_cache_write(model, name, KIND, parts, N_PARTS);
    return QUIRE_OK;
}

quire_status quire_model_calibrate(const quire_model *model,
                                   const quire_calibration_options *options,
                                   quire_calibration **result) {
    if (!model || !options || !result)
        return quire__fail(QUIRE_E_INVALID, "model, options or calibration is NULL");
    *result = NULL;
    if (options->struct_size != sizeof *options)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set by quire_calibration_options_default");
    quire_calibration *calibration;
    QUIRE_TRY(quire__calibration_create(model, &calibration));
    const quire_status status = find(model, options, calibration);
    if (status != QUIRE_OK) {
        quire_calibration_free(calibration);
        return status;
    }
    *result = calibration;
    return QUIRE_OK;
}
