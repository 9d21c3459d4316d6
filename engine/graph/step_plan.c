/* step_plan.c: builds graphs and keeps them. */
#include "graph/step_plan.h"

#include <stdlib.h>

enum { NODES_PER_LAYER = 64, NODES_OUTSIDE = 128, WORK_ALIGNMENT = 64 };

static struct ggml_tensor *input(struct ggml_context *ctx, int32_t n) {
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    ggml_set_input(x);
    return x;
}

static void describe(quire__plans *plans, quire__plan *plan) {
    ggml_reset(plan->ctx);
    plan->nodes = ggml_new_graph_custom(plan->ctx, plans->graph_nodes, false);
    plan->tokens = input(plan->ctx, plan->n_rows);
    plan->positions = input(plan->ctx, plan->n_rows);
    plan->out_rows = plan->n_out ? input(plan->ctx, plan->n_out) : NULL;
    quire__graph graph = {.model = plans->model,
                          .ctx = plan->ctx,
                          .nodes = plan->nodes,
                          .cache_nodes = plans->cache_nodes,
                          .n_rows = plan->n_rows,
                          .n_out = plan->n_out,
                          .last_append = plans->last_append,
                          .tokens = plan->tokens,
                          .positions = plan->positions,
                          .out_rows = plan->out_rows,
                          .append_nodes = plans->append_nodes};
    struct ggml_tensor *hidden = plans->model->architecture->build(&graph);
    plan->logits = NULL;
    if (!hidden)
        return;
    plan->logits = quire__logits(&graph, hidden);
    ggml_set_output(plan->logits);
    ggml_build_forward_expand(plan->nodes, plan->logits);
}

static quire_status take_work(quire__plans *plans, size_t bytes) {
    if (bytes <= plans->work_bytes)
        return QUIRE_OK;
    bytes = GGML_PAD(bytes, (size_t)WORK_ALIGNMENT);
    uint8_t *work = aligned_alloc(WORK_ALIGNMENT, bytes);
    if (!work)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of work space", bytes);
    free(plans->work);
    plans->work = work;
    plans->work_bytes = bytes;
    return QUIRE_OK;
}

static void forget(quire__plans *plans) {
    for (int i = 0; i < QUIRE__PLANS; i++)
        plans->slots[i].n_rows = 0;
}

static quire_status build(quire__plans *plans, quire__plan *plan, int32_t n_rows, int32_t n_out) {
    plan->n_rows = n_rows;
    plan->n_out = n_out;
    describe(plans, plan);
    const size_t before = ggml_gallocr_get_buffer_size(plans->buffer, 0);
    const bool placed = ggml_gallocr_alloc_graph(plans->buffer, plan->nodes);
    if (!placed || ggml_gallocr_get_buffer_size(plans->buffer, 0) != before)
        forget(plans); /* the buffer moved, which no other plan knows: not expected, as it holds the
                          largest shape */
    plan->n_rows = 0;
    if (!placed)
        return quire__fail(QUIRE_E_NOMEM, "no memory to compute %d rows", (int)n_rows);
    plan->compute = ggml_graph_plan(plan->nodes, plans->n_threads, plans->threads);
    plan->compute.abort_callback = plans->stop;
    plan->compute.abort_callback_data = plans->stop_user;
    QUIRE_TRY(take_work(plans, plan->compute.work_size));
    plan->n_rows = n_rows;
    return QUIRE_OK;
}

quire_status quire__plans_get(quire__plans *plans, int32_t n_rows, int32_t n_out,
                              quire__plan **result) {
    quire__plan *oldest = &plans->slots[0];
    for (int i = 0; i < QUIRE__PLANS; i++) {
        quire__plan *plan = &plans->slots[i];
        if (plan->n_rows == n_rows && plan->n_out == n_out) {
            plan->last_used = ++plans->clock;
            *result = plan;
            return QUIRE_OK;
        }
        if (plan->last_used < oldest->last_used)
            oldest = plan;
    }
    QUIRE_TRY(build(plans, oldest, n_rows, n_out));
    oldest->last_used = ++plans->clock;
    *result = oldest;
    return QUIRE_OK;
}

bool quire__plan_run(quire__plans *plans, quire__plan *plan) {
    plan->compute.work_data = plans->work;
    return ggml_graph_compute(plan->nodes, &plan->compute) == GGML_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------ life */

static quire_status take_memory(quire__plans *plans) {
    const size_t n_layers = (size_t)plans->model->n_layers;
    plans->graph_nodes = n_layers * NODES_PER_LAYER + NODES_OUTSIDE;
    plans->description_bytes = GGML_PAD(ggml_graph_overhead_custom(plans->graph_nodes, false) +
                                            plans->graph_nodes * ggml_tensor_overhead(),
                                        (size_t)WORK_ALIGNMENT);
    plans->descriptions = aligned_alloc(WORK_ALIGNMENT, QUIRE__PLANS * plans->description_bytes);
    plans->append_nodes = calloc(n_layers, sizeof(struct ggml_tensor *));
    plans->cache_nodes = calloc(n_layers, sizeof *plans->cache_nodes);
    plans->buffer = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    if (!plans->descriptions || !plans->append_nodes || !plans->cache_nodes || !plans->buffer)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (int i = 0; i < QUIRE__PLANS; i++) {
        plans->slots[i].ctx = ggml_init((struct ggml_init_params){
            .mem_size = plans->description_bytes,
            .mem_buffer = plans->descriptions + (size_t)i * plans->description_bytes,
            .no_alloc = true});
        if (!plans->slots[i].ctx)
            return quire__fail(QUIRE_E_NOMEM, "out of memory");
    }
    return QUIRE_OK;
}

quire_status quire__plans_open(quire__plans *plans, const quire_model *model, quire__step *step,
                               int32_t max_rows, int32_t max_out, int32_t n_threads,
                               ggml_abort_callback stop, void *stop_user) {
    plans->model = model;
    plans->n_threads = n_threads;
    plans->stop = stop;
    plans->stop_user = stop_user;
    QUIRE_TRY(take_memory(plans));
    for (int32_t i = 0; i < model->n_layers; i++) {
        plans->cache_nodes[i] = (quire__node){.step = step, .layer = i};
        if (model->cache[i].share < 0)
            plans->last_append = i;
    }
    struct ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    plans->threads = ggml_threadpool_new(&params);
    if (!plans->threads)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %d threads", (int)n_threads);
    quire__plan *largest;
    return quire__plans_get(plans, max_rows, max_out, &largest);
}

void quire__plans_close(quire__plans *plans) {
    if (plans->threads)
        ggml_threadpool_free(plans->threads);
    for (int i = 0; i < QUIRE__PLANS; i++)
        ggml_free(plans->slots[i].ctx);
    ggml_gallocr_free(plans->buffer);
    free(plans->descriptions);
    free(plans->append_nodes);
    free(plans->cache_nodes);
    free(plans->work);
}

size_t quire__plans_bytes(const quire__plans *plans) {
    return ggml_gallocr_get_buffer_size(plans->buffer, 0) + plans->work_bytes +
           QUIRE__PLANS * plans->description_bytes;
}
