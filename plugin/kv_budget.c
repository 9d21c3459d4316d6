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

static bool fits(quire_cells_options *options, size_t *bytes) {
    return quire_cells_price(options, bytes) == QUIRE_OK &&
           (settings.kv_bytes == 0 || *bytes <= settings.kv_bytes - taken);
}

static bool choose(quire_cells_options *options, size_t *bytes) {
    for (int i = 0; i < N_LADDER; i++)
        if (quire_policy_parse(ladder[i], &options->policy) == QUIRE_OK && fits(options, bytes))
            return true;
    return false;
}

bool kv_budget_take(quire_cells_options *options, size_t *bytes) {
    pthread_mutex_lock(&lock);
    options->policy = settings.policy;
    *bytes = 0;
    bool good = settings.automatic ? choose(options, bytes) : fits(options, bytes);
    if (good)
        taken += *bytes;
    else
        fprintf(stderr,
                "quire: %s needs %.1f MiB for %d x %d cells, and QUIRE_KV_BYTES leaves %.1f MiB; "
                "raise it, %smake the context shorter\n",
                settings.automatic ? ladder[N_LADDER - 1] : settings.kv, mib(*bytes),
                (int)options->n_streams, (int)options->n_cells, mib(settings.kv_bytes - taken),
                settings.automatic ? "or " : "set QUIRE_KV=auto, or ");
    pthread_mutex_unlock(&lock);
    return good;
}

void kv_budget_return(size_t bytes) {
    pthread_mutex_lock(&lock);
    taken -= bytes;
    pthread_mutex_unlock(&lock);
}
