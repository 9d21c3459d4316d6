/* backend.c: a graph goes to ggml-cpu; before, the nodes on the cache become ours. */
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend.h"
#include "device.h"
#include "graph_run.h"

struct backend {
    ggml_backend_t cpu;
    /* llama.cpp gives the threads that a user made to its own CPU backend alone. Without a pool of
     * its own, ggml-cpu would start threads for every graph. */
    struct ggml_threadpool *pool;
    int pool_threads, n_threads;
    bool was_told; /* a number of threads */
    struct graph_scan scan;
};

static struct backend *of(ggml_backend_t backend) { return backend->context; }

static const char *get_name(ggml_backend_t backend) {
    (void)backend;
    return DEVICE_NAME;
}

static void free_backend(ggml_backend_t backend) {
    struct backend *b = of(backend);
    host.ggml_backend_free(b->cpu);
    if (b->pool)
        host.pool_free(b->pool);
    graph_scan_free(&b->scan);
    free(b);
    free(backend);
}

static void set_n_threads(struct backend *b, int n_threads) {
    if (n_threads > b->pool_threads) {
        struct ggml_threadpool_params params = host.ggml_threadpool_params_default(n_threads);
        struct ggml_threadpool *pool = host.pool_new(&params);
        if (pool) {
            host.set_threadpool(b->cpu, pool);
            if (b->pool)
                host.pool_free(b->pool);
            b->pool = pool;
            b->pool_threads = n_threads;
        }
    }
    b->n_threads = n_threads;
    host.set_n_threads(b->cpu, n_threads);
}

/* The number that the program asked for last. Some programs tell their CPU backend alone: llama.cpp
 * does for what encodes images. */
static atomic_int asked_for;

static int usual_n_threads(void) {
    const int asked = atomic_load(&asked_for);
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return asked > 0 ? asked : processors > 0 ? (int)processors : 1;
}

void backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    of(backend)->was_told = true;
    atomic_store(&asked_for, n_threads);
    set_n_threads(of(backend), n_threads);
}

static enum ggml_status graph_compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    struct backend *b = of(backend);
    if (!b->was_told && b->n_threads != usual_n_threads())
        set_n_threads(b, usual_n_threads());
    return graph_run(&b->scan, graph, b->cpu, b->n_threads);
}

void backend_set_abort(ggml_backend_t backend, ggml_abort_callback callback, void *data) {
    host.set_abort(of(backend)->cpu, callback, data);
}

ggml_backend_t backend_create(ggml_backend_dev_t device, const char *params) {
    static ggml_guid guid = "quire-kv-cells-1"; /* 16 bytes of any kind */
    (void)params;
    struct backend *b = calloc(1, sizeof *b);
    ggml_backend_t backend = calloc(1, sizeof *backend);
    if (b && backend)
        b->cpu = host.ggml_backend_dev_init(host.cpu, NULL);
    if (!b || !backend || !b->cpu) {
        free(b);
        free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){
        .guid = &guid,
        .iface = {.get_name = get_name, .free = free_backend, .graph_compute = graph_compute},
        .device = device,
        .context = b,
    };
    return backend;
}
