/* kv_budget.c: choosing codecs for a number of bytes. */
#include <pthread.h>
#include <stdio.h>

#include "kv_budget.h"
#include "settings.h"

static const char *const ladder[] = {"none", "k8v8", "k8v4", "k4v4", "k3v3"};
enum { N_LADDER = sizeof ladder / sizeof *ladder };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t taken;

static double mib(size_t bytes) { return (double)bytes / 1048576; }

static enum kv_budget ask(quire_cells_options *options, size_t *bytes) {
    size_t price;
    if (quire_cells_price(options, &price) != QUIRE_OK)
        return BUDGET_NO_PRICE;
    *bytes = price;
    return settings.kv_bytes == 0 || price <= settings.kv_bytes - taken ? BUDGET_TAKEN
                                                                        : BUDGET_EXCEEDED;
}

/* Presets without a price are passed over, unless no other is left. */
static enum kv_budget choose(quire_cells_options *options, size_t *bytes) {
    enum kv_budget best = BUDGET_NO_PRICE;
    for (int i = 0; i < N_LADDER && best != BUDGET_TAKEN; i++) {
        if (quire_policy_parse(ladder[i], &options->policy) != QUIRE_OK)
            continue;
        enum kv_budget answer = ask(options, bytes);
        if (answer != BUDGET_NO_PRICE)
            best = answer;
    }
    return best;
}

static void complain(const quire_cells_options *options, size_t bytes) {
    fprintf(stderr,
            "quire: %s needs %.1f MiB for %d x %d cells, and QUIRE_KV_BYTES leaves %.1f MiB; "
            "raise it, %smake the context shorter\n",
            settings.automatic ? ladder[N_LADDER - 1] : settings.kv, mib(bytes),
            (int)options->n_streams, (int)options->n_cells, mib(settings.kv_bytes - taken),
            settings.automatic ? "or " : "set QUIRE_KV=auto, or ");
}

enum kv_budget kv_budget_take(quire_cells_options *options, size_t *bytes) {
    pthread_mutex_lock(&lock);
    options->policy = settings.policy;
    *bytes = 0;
    enum kv_budget answer = settings.automatic ? choose(options, bytes) : ask(options, bytes);
    if (answer == BUDGET_TAKEN)
        taken += *bytes;
    else if (answer == BUDGET_EXCEEDED)
        complain(options, *bytes);
    pthread_mutex_unlock(&lock);
    return answer;
}

void kv_budget_return(size_t bytes) {
    pthread_mutex_lock(&lock);
    taken -= bytes;
    pthread_mutex_unlock(&lock);
}
