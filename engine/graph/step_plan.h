/* step_plan.h: graphs, built once for a number of rows and used again.
 *
 * A graph depends on how many rows go in and how many get logits, not on how long the sequences
 * are: the cache is a node with a pool behind it. So a plan is built when a shape comes for the
 * first time, and a few of them are kept. They share one compute buffer, taken for the largest
 * shape when the session is created. */
#ifndef ENGINE_GRAPH_STEP_PLAN_H
#define ENGINE_GRAPH_STEP_PLAN_H

#include "graph/graph.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>

enum { QUIRE__PLANS = 16 };

typedef struct quire__plan {
    int32_t n_rows, n_out; /* n_rows 0: free */
    uint64_t last_used;
    struct ggml_context *ctx; /* the nodes' descriptions */
    struct ggml_cgraph *nodes;
    struct ggml_cplan compute;
    struct ggml_tensor *tokens, *positions, *out_rows,
        *logits; /* the last two NULL if n_out is 0 */
} quire__plan;

typedef struct quire__plans {
    const quire_model *model;
    quire__node *cache_nodes; /* (n_layers) */
    int32_t n_threads, last_append;
    ggml_abort_callback stop;
    void *stop_user;
    quire__plan slots[QUIRE__PLANS];
    uint64_t clock;
    size_t graph_nodes, description_bytes;
    char *descriptions; /* QUIRE__PLANS * description_bytes */
    ggml_gallocr_t buffer;
    struct ggml_threadpool *threads;
    struct ggml_tensor **append_nodes; /* scratch of a build: (n_layers) */
    uint8_t *work;
    size_t work_bytes;
} quire__plans;

/* `plans` is zeroed before, and closed by the caller also after a failure. */
quire_status quire__plans_open(quire__plans *plans, const quire_model *model, quire__step *step,
                               int32_t max_rows, int32_t max_out, int32_t n_threads,
                               ggml_abort_callback stop, void *stop_user);
void quire__plans_close(quire__plans *plans);
quire_status quire__plans_get(quire__plans *plans, int32_t n_rows, int32_t n_out,
                              quire__plan **plan);
/* True unless it was stopped. */
bool quire__plan_run(quire__plans *plans, quire__plan *plan);
size_t quire__plans_bytes(const quire__plans *plans);

#endif
