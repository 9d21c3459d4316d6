/* sensitivity.c: statistics of a model's K and V, and the loss of packing them.
 *
 * A text runs through the model on a raw cache, which is observed (kv_stats.h) and whose
 * predictions are the reference; then once with every layer packed, for each rung of a ladder of
 * codecs, and once for each layer with that layer alone packed. Losses are mean KL divergences of
 * the next token. */
#include "calibrate/calibrate.h"
#include "calibrate/kv_stats.h"
#include "calibrate/sensitivity_text.h"
#include "model/model_cache_file.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SENSITIVITY_VERSION =
        3, /* changes with the text, the ladder, any figure, and what codecs lose */
    FIRST_SCORED = 2 * QUIRE_PAGE_TOKENS, /* from here on most of what a query sees is packed */
    LAYER_TOKENS = 6 * QUIRE_PAGE_TOKENS, /* of a pass for one layer: there are many, and only their
                                             ratios count */
    TOKENS = 8 * QUIRE_PAGE_TOKENS,
    STEP = 2 * QUIRE_PAGE_TOKENS
};
static const char KIND[QUIRE__KIND_BYTES] = "quire report 01\n";

static const quire_pair LADDER[] = {
    {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}, {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8},
    {QUIRE_CODEC_KC8, QUIRE_CODEC_VT4}, {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4},
    {QUIRE_CODEC_KM4, QUIRE_CODEC_VT3}, {QUIRE_CODEC_KM3, QUIRE_CODEC_VT3},
    {QUIRE_CODEC_KM3, QUIRE_CODEC_VT2},
};
enum { N_LADDER = sizeof LADDER / sizeof *LADDER };
static const quire_pair ALONE = {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4},
                        RAW = {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};

typedef struct measurement {
    const quire_model *model; /* with f32 arithmetic */
    const quire_sensitivity_options *options;
    quire_sensitivity *report;
    quire_layer_sensitivity *layers; /* the report's */
    int32_t tokens[TOKENS];
    quire_calibration *calibration; /* NULL: no codec of this report needs one */
    quire_pair *pairs;              /* (n_layers) of the pass at hand */
    float *base;                    /* (n_scored, n_vocab) logits on the raw cache */
    int32_t n_done, n_all;          /* tokens of all passes */
} measurement;

void quire_sensitivity_options_default(quire_sensitivity_options *options) {
    if (options)
        *options = (quire_sensitivity_options){.struct_size = sizeof *options, .n_threads = 1};
}

/* ------------------------------------------------------------------ passes */

static bool has_cache(const measurement *x, int32_t layer) {
    return x->model->cache[layer].share == -1;
}

/* A layer that shares has the codecs of its source. */
static void set_pairs(measurement *x, quire_pair pair) {
    for (int32_t i = 0; i < x->model->n_layers; i++)
        x->pairs[i] =
            has_cache(x, i) ? pair : (quire_pair){QUIRE_CODEC_DEFAULT, QUIRE_CODEC_DEFAULT};
}

/* Logits of a step's rows, which are those from `row` on: kept, or compared with those that are. */
static quire_status take_logits(const measurement *x, const quire_session *session, int32_t row,
                                int32_t n, bool keep, double *sum) {
    const size_t n_vocab = (size_t)x->model->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        float *base = x->base + (size_t)(row + i) * n_vocab;
        const float *logits = quire_session_logits(session, i);
        if (keep)
            memcpy(base, logits, n_vocab * sizeof *base);
        else
            *sum += quire_logits_compare(base, logits, x->model->n_vocab, 0).kld;
    }
    return isfinite(*sum) ? QUIRE_OK
                          : quire__fail(QUIRE_E_VALUE, "the model predicts what is not a number");
}

static quire_status run_text(measurement *x, quire_session *session, quire_seq *seq,
                             int32_t n_tokens, quire__kv_stats *stats, double *kld) {
    double sum = 0;
    for (int32_t at = 0, n; at < n_tokens; at += n) {
        n = n_tokens - at < STEP ? n_tokens - at : STEP;
        const bool scored = at >= FIRST_SCORED;
        /* One row of logits that nobody reads makes the step run to its end, so that the
         * observer sees all queries. */
        const int32_t n_logits = scored ? n : stats ? 1 : 0;
        const quire_step_item item = {
            .seq = seq, .tokens = x->tokens + at, .n_tokens = n, .n_logits = n_logits};
        QUIRE_TRY(quire_session_decode(session, &item, 1, true));
        if (scored)
            QUIRE_TRY(take_logits(x, session, at - FIRST_SCORED, n, stats != NULL, &sum));
        if (stats)
            quire__kv_stats_advance(stats, n);
        x->n_done += n;
        if (x->options->on_progress)
            x->options->on_progress(x->options->user, x->n_done, x->n_all);
    }
    *kld = sum / (n_tokens - FIRST_SCORED);
    return QUIRE_OK;
}

/* The text's first tokens on a cache of x->pairs. */
static quire_status run_pass(measurement *x, int32_t n_tokens, quire__kv_stats *stats,
                             double *kld) {
    quire_session_options options;
    quire_session_options_default(&options);
    options.policy.sinks = QUIRE__SINKS;
    options.layers = x->pairs;
    options.calibration = x->calibration;
    options.raw = QUIRE_F32;
    options.context = n_tokens;
    options.max_rows = STEP;
    options.max_logits = STEP;
    options.n_threads = x->options->n_threads;
    options.exact_trim = false;
    options.stop = x->options->stop;
    options.stop_user = x->options->user;
    quire_session *session;
    quire_seq *seq;
    QUIRE_TRY(quire_session_create(&session, x->model, &options));
    if (stats)
        quire__session_observe(session, quire__kv_stats_observer(stats));
    quire_status status = quire_seq_create(quire_session_pool(session), &seq);
    if (status == QUIRE_OK)
        status = run_text(x, session, seq, n_tokens, stats, kld);
    quire_session_free(session);
    return status;
}

static quire_status observe_layers(measurement *x) {
    quire__kv_stats stats;
    double unused;
    QUIRE_TRY(quire__kv_stats_open(&stats, x->model, x->report->n_tokens));
    set_pairs(x, RAW);
    const quire_status status = run_pass(x, x->report->n_tokens, &stats, &unused);
    for (int32_t i = 0; i < x->report->n_layers && status == QUIRE_OK; i++)
        quire__kv_stats_sum(&stats, i, &x->layers[i]);
    quire__kv_stats_close(&stats);
    return status;
}

static quire_status calibrate(measurement *x) {
    const quire_sensitivity *report = x->report;
    bool needed = quire_codec_is_ordered(report->alone.k);
    for (int32_t i = 0; i < report->n_rungs; i++)
        needed = needed || quire_codec_is_ordered(report->rungs[i].pair.k);
    if (!needed)
        return QUIRE_OK;
    quire_calibration_options options;
    quire_calibration_options_default(&options);
    options.n_threads = x->options->n_threads;
    options.stop = x->options->stop;
    options.user = x->options->user;
    return quire_model_calibrate(x->model, &options, &x->calibration);
}

static quire_status measure_rungs(measurement *x) {
    for (int32_t i = 1; i < x->report->n_rungs; i++) {
        set_pairs(x, x->report->rungs[i].pair);
        QUIRE_TRY(run_pass(x, x->report->n_tokens, NULL, &x->report->rungs[i].kld));
    }
    return QUIRE_OK;
}

static quire_status measure_layers(measurement *x) {
    quire_sensitivity *report = x->report;
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < report->n_layers; i++) {
        if (!has_cache(x, i))
            continue;
        set_pairs(x, RAW);
        x->pairs[i] = report->alone;
        QUIRE_TRY(run_pass(x, LAYER_TOKENS, NULL, &x->layers[i].kld));
        sum += x->layers[i].kld;
        n++;
    }
    for (int32_t i = 0; i < report->n_layers; i++)
        if (has_cache(x, i))
            x->layers[i].share = sum > 0 ? x->layers[i].kld / sum : 1.0 / n;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ measurement */

static bool serves(const quire_model *model, quire_pair pair) {
    for (int32_t i = 0; i < model->n_layers; i++) {
        const quire_layer *l = &model->cache[i];
        const quire_page_shape shape = {
            .pair = pair, .k_dim = l->k_dim, .v_dim = l->v_dim, .raw = QUIRE_F16};
        size_t unused;
        if (quire_page_bytes(&shape, &unused) != QUIRE_OK)
            return false;
    }
    return true;
}

static quire_status start(measurement *x) {
    quire_sensitivity *report = x->report;
    const quire_model *model = x->model;
    QUIRE_TRY(quire__text_tokens(model, SENSITIVITY_TEXT, sizeof SENSITIVITY_TEXT - 1, TOKENS,
                                 x->tokens, &report->n_tokens));
    if (report->n_tokens < LAYER_TOKENS)
        return quire__fail(
            QUIRE_E_UNSUPPORTED,
            "a context of %d tokens is too short to measure sensitivity: %d are needed",
            (int)report->n_tokens, LAYER_TOKENS);
    report->n_scored = report->n_tokens - FIRST_SCORED;
    report->alone = ALONE;
    for (int32_t i = 0; i < N_LADDER; i++)
        if (serves(model, LADDER[i]))
            report->rungs[report->n_rungs++].pair = LADDER[i];
    if (!serves(model, ALONE))
        report->alone = report->rungs[report->n_rungs - 1].pair;
    x->n_all = report->n_rungs * report->n_tokens;
    for (int32_t i = 0; i < model->n_layers; i++)
        x->n_all += has_cache(x, i) ? LAYER_TOKENS : 0;
    x->pairs = malloc((size_t)model->n_layers * sizeof *x->pairs);
    x->base = malloc((size_t)report->n_scored * (size_t)model->n_vocab * sizeof *x->base);
    return x->pairs && x->base ? QUIRE_OK : quire__fail(QUIRE_E_NOMEM, "out of memory");
}

static quire_status measure(measurement *x) {
    QUIRE_TRY(start(x));
    QUIRE_TRY(observe_layers(x));
    QUIRE_TRY(calibrate(x));
    QUIRE_TRY(measure_rungs(x));
    return measure_layers(x);
}

/* The same bytes for the same model: what is kept has no pointer in it. */
typedef struct whole_report {
    quire_sensitivity report;
    quire_layer_sensitivity layers[];
} whole_report;

static quire_status measure_expanded(const quire_model *model,
                                     const quire_sensitivity_options *options,
                                     whole_report *whole) {
    quire_model *twin = NULL;
    if (!model->file.expanded)
        QUIRE_TRY(quire__model_load_expanding(model, &twin));
    measurement x = {.model = twin ? twin : model,
                     .options = options,
                     .report = &whole->report,
                     .layers = whole->layers};
    const quire_status status = measure(&x);
    free(x.pairs);
    free(x.base);
    quire_calibration_free(x.calibration);
    quire_model_free(twin);
    return status;
}

quire_status quire_model_sensitivity(const quire_model *model,
                                     const quire_sensitivity_options *options,
                                     quire_sensitivity **result) {
    if (!model || !options || !result)
        return quire__fail(QUIRE_E_INVALID, "model, options or report is NULL");
    *result = NULL;
    if (options->struct_size != sizeof *options)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set by quire_sensitivity_options_default");
    const size_t bytes =
        sizeof(whole_report) + (size_t)model->n_layers * sizeof(quire_layer_sensitivity);
    whole_report *whole = calloc(1, bytes);
    if (!whole)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    char name[32];
    snprintf(name, sizeof name, "%d.report", SENSITIVITY_VERSION);
    const quire__cache_part part = {whole, bytes};
    if (options->again || !quire__model_cache_read(model, name, KIND, &part, 1)) {
        memset(whole, 0, bytes);
        whole->report.n_layers = model->n_layers;
        const quire_status status = measure_expanded(model, options, whole);
        if (status != QUIRE_OK) {
            free(whole);
            return status;
        }
        quire__model_cache_write(model, name, KIND, &part, 1);
    }
    whole->report.layers = whole->layers;
    *result = &whole->report;
    return QUIRE_OK;
}
