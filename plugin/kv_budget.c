/* kv_budget.c: choosing codecs for a number of bytes. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "kv_budget.h"
#include "settings.h"
#include "usage.h"

static const char *const ladder[] = {"none", "k8v8", "k8v4", "k4v4", "k3v3"};
enum { N_LADDER = sizeof ladder / sizeof *ladder };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t taken;

/* All of them with one policy; *sum is set unless there is no price. */
static enum kv_budget ask(quire_cells_options *options, int n, const quire_policy *policy,
                          size_t *bytes, size_t *sum) {
    size_t all = 0;
    for (int i = 0; i < n; i++) {
        options[i].policy = *policy;
        if (quire_cells_price(&options[i], &bytes[i]) != QUIRE_OK)
            return BUDGET_NO_PRICE;
        all = bytes[i] > SIZE_MAX - all ? SIZE_MAX : all + bytes[i];
    }
    *sum = all;
    return settings.kv_bytes == 0 || all <= settings.kv_bytes - taken ? BUDGET_TAKEN
                                                                      : BUDGET_EXCEEDED;
}

/* Presets without a price are passed over, unless no other is left. */
static enum kv_budget choose(quire_cells_options *options, int n, size_t *bytes, size_t *sum) {
    enum kv_budget best = BUDGET_NO_PRICE;
    for (int i = 0; i < N_LADDER && best != BUDGET_TAKEN; i++) {
        quire_policy policy;
        if (quire_policy_parse(ladder[i], &policy) != QUIRE_OK)
            continue;
        enum kv_budget answer = ask(options, n, &policy, bytes, sum);
        if (answer != BUDGET_NO_PRICE)
            best = answer;
    }
    return best;
}

static void complain(const quire_cells_options *options, int n, size_t sum) {
    fprintf(stderr,
            "quire: %s needs %.1f MiB for %d x %d cells%s, and QUIRE_KV_BYTES leaves %.1f MiB; "
            "raise it, %smake the context shorter\n",
            settings.automatic ? ladder[N_LADDER - 1] : settings.kv, mib(sum),
            (int)options->n_streams, (int)options->n_cells, n > 1 ? " and other caches" : "",
            mib(settings.kv_bytes - taken), settings.automatic ? "or " : "set QUIRE_KV=auto, or ");
}

enum kv_budget kv_budget_take(quire_cells_options *options, int n, size_t *bytes) {
    pthread_mutex_lock(&lock);
    size_t sum = 0;
    enum kv_budget answer = settings.automatic ? choose(options, n, bytes, &sum)
                                               : ask(options, n, &settings.policy, bytes, &sum);
    if (answer == BUDGET_TAKEN)
        taken += sum;
    else if (answer == BUDGET_EXCEEDED)
        complain(options, n, sum);
    pthread_mutex_unlock(&lock);
    return answer;
}

void kv_budget_return(size_t bytes) {
    pthread_mutex_lock(&lock);
    taken -= bytes;
    pthread_mutex_unlock(&lock);
}

double kv_budget_share(void) {
    enum { HEADS = 8, DIM = 128, CELLS = 1 << 20 };
    const double f16 = 2.0 * 2 * HEADS * DIM * CELLS;
    quire_layer layer;
    quire_cells_options options;
    size_t bytes;
    quire_layer_default(&layer);
    layer.n_heads = layer.n_kv_heads = HEADS;
    layer.k_dim = layer.v_dim = DIM;
    quire_cells_options_default(&options);
    options.layers = &layer;
    options.n_layers = 1;
    options.n_cells = CELLS;
    options.max_workers = 1;
    options.max_rows = QUIRE_PAGE_TOKENS;
    if (settings.automatic) {
        if (quire_policy_parse(ladder[N_LADDER - 1], &options.policy) != QUIRE_OK)
            return 1;
    } else {
        options.policy = settings.policy;
    }
    return settings.off || quire_cells_price(&options, &bytes) != QUIRE_OK || (double)bytes > f16
               ? 1
               : (double)bytes / f16;
}
