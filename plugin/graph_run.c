/* graph_run.c: plan, replace, compute, restore.
 *
 * Everything that a step decides about pages is decided here, by one thread, before ggml-cpu runs:
 * the cells of the new rows and the mask are inputs of the graph.
 */
#include "cache_ops.h"
#include "graph_run.h"
#include "settings.h"
#include "usage.h"

static void lock(const struct graph_scan *scan) {
    for (int i = 0; i < scan->n_buffers; i++)
        pthread_mutex_lock(&scan->buffers[i]->lock);
}

static void unlock(const struct graph_scan *scan) {
    for (int i = scan->n_buffers; i-- > 0;)
        pthread_mutex_unlock(&scan->buffers[i]->lock);
}

/* ---------------------------------------------------------------- before */

/* The cells that a sight's rows were written to, or NULL. */
static const int64_t *own_cells(const struct cache_sight *s) {
    if (s->earlier)
        return s->earlier->n_kept == s->n_streams * s->rows_per_stream ? s->earlier->kept : NULL;
    return s->cell ? s->cell->data : NULL;
}

/* NULL, or why not. */
static const char *set_sight(const struct cache_sight *s) {
    const struct ggml_tensor *mask = s->mask;
    quire_sight *sight = kv_group_sight(s->group, s->number);
    if (!sight)
        return "out of memory";
    quire_sight_args args = {
        .first_stream = s->first_stream,
        .n_streams = s->n_streams,
        .rows_per_stream = s->rows_per_stream,
        .n_cells = s->n_cells,
        .mask = mask ? mask->data : NULL,
        .mask_type = QUIRE_F16,
        .row_stride = mask ? mask->nb[1] / 2 : 0,
        .stream_stride = mask && mask->ne[3] > 1 ? mask->nb[3] / 2 : 0,
        .own = own_cells(s),
    };
    return quire_sight_set(sight, &args) == QUIRE_OK ? NULL : quire_last_error();
}

/* The same. `keep`: its attention may be in another part of the graph. */
static const char *plan_write(const struct cache_node *n, bool keep) {
    const struct ggml_tensor *cell = n->node->src[1];
    int32_t n_rows = (int32_t)cell->ne[0];
    atomic_store(&n->side->refused, false);
    if (keep && n->side->which == QUIRE_SIDE_K && !kv_side_keep(n->side, cell->data, n_rows))
        return "out of memory";
    return quire_cells_plan(n->side->group->cells, n->side->index, n->side->which, cell->data,
                            n_rows, n->region) == QUIRE_OK
               ? NULL
               : quire_last_error();
}

/* False: a layer could not be served and has become plain; the graph has to be scanned again. */
static bool prepare(const struct graph_scan *scan) {
    for (int i = 0; i < scan->n_sights; i++) {
        const char *why = set_sight(&scan->sights[i]);
        if (!why)
            continue;
        for (int j = 0; j < scan->n_nodes; j++)
            if (scan->nodes[j].op == GGML_OP_FLASH_ATTN_EXT && scan->nodes[j].sight == i)
                kv_side_make_plain(scan->nodes[j].side, why);
        return false;
    }
    for (int i = 0; i < scan->n_nodes; i++) {
        const struct cache_node *n = &scan->nodes[i];
        const char *why = n->op == GGML_OP_SET_ROWS ? plan_write(n, scan->is_part) : NULL;
        if (!why)
            continue;
        kv_side_make_plain(n->side, why);
        return false;
    }
    for (int i = 0; i < scan->n_nodes; i++)
        if (scan->nodes[i].op == GGML_OP_FLASH_ATTN_EXT) {
            const struct cache_sight *s = &scan->sights[scan->nodes[i].sight];
            scan->nodes[i].seen = kv_group_sight(s->group, s->number);
        }
    for (int i = 0; i < scan->n_early; i++) {
        const int64_t *cell = scan->early[i].cell->data;
        for (int64_t j = 0; j < scan->early[i].cell->ne[0]; j++)
            kv_side_mark(scan->early[i].side, cell[j], cell[j] + 1);
    }
    return true;
}

/* ---------------------------------------------------------------- computing */

static enum ggml_status compute(ggml_backend_t cpu, struct ggml_cgraph *graph, int from, int to) {
    if (from == 0 && to == graph->n_nodes)
        return host.ggml_backend_graph_compute(cpu, graph);
    struct ggml_cgraph part = *graph;
    part.nodes += from;
    part.n_nodes = to - from;
    part.uid = 0;
    return part.n_nodes > 0 ? host.ggml_backend_graph_compute(cpu, &part) : GGML_STATUS_SUCCESS;
}

/* K of one layer is turned in the addresses, and the cells that were turned go back into pages. */
static enum ggml_status shift(const struct cache_shift *s, ggml_backend_t cpu,
                              struct ggml_cgraph *graph) {
    struct kv_side *side = s->side;
    const int32_t *turn = graph->nodes[s->at]->src[1]->data;
    if (!kv_side_lend(side))
        return GGML_STATUS_FAILED;
    enum ggml_status status = compute(cpu, graph, s->at, s->at + 1);
    for (int64_t first = 0, end; side->lent && first < kv_side_cells(side); first = end) {
        for (end = first + 1; end < kv_side_cells(side) && !turn[end] == !turn[first];)
            end++;
        if (turn[first] && status == GGML_STATUS_SUCCESS &&
            !kv_side_write_range(side, first, end - first,
                                 side->data + (size_t)first * side->row_bytes))
            kv_side_make_plain(side, quire_last_error()); /* as the addresses have it */
    }
    kv_side_return(side);
    return status;
}

static enum ggml_status compute_all(const struct graph_scan *scan, struct ggml_cgraph *graph,
                                    ggml_backend_t cpu) {
    int from = 0;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < scan->n_shifts && status == GGML_STATUS_SUCCESS; i++) {
        status = compute(cpu, graph, from, scan->shifts[i].at);
        if (status == GGML_STATUS_SUCCESS)
            status = shift(&scan->shifts[i], cpu, graph);
        from = scan->shifts[i].at + 1;
    }
    return status == GGML_STATUS_SUCCESS ? compute(cpu, graph, from, graph->n_nodes) : status;
}

enum ggml_status graph_run(struct graph_scan *scan, struct ggml_cgraph *graph, ggml_backend_t cpu,
                           int n_threads) {
    usage_count(&usage.graphs, 1);
    if (settings.off)
        return host.ggml_backend_graph_compute(cpu, graph);
    bool same = graph->uid != 0 && graph->uid == scan->uid;
    if (!same)
        graph_scan_uses(scan, graph);
    if (scan->no_memory) /* a buffer that is not known is not locked either */
        return GGML_STATUS_ALLOC_FAILED;
    if (scan->n_buffers == 0) {
        scan->uid = graph->uid;
        return host.ggml_backend_graph_compute(cpu, graph);
    }
    lock(scan);
    if (!same || scan->epoch != kv_group_epoch())
        graph_scan_nodes(scan, graph, n_threads);
    while (!scan->no_memory && !scan->over_budget && !prepare(scan))
        graph_scan_nodes(scan, graph, n_threads);
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (scan->over_budget || scan->no_memory)
        scan->uid = 0; /* asked again, and said again, with every graph */
    if (!scan->no_memory && !scan->over_budget) {
        for (int i = 0; i < scan->n_nodes; i++)
            cache_ops_replace(&scan->nodes[i]);
        status = compute_all(scan, graph, cpu);
        for (int i = 0; i < scan->n_nodes; i++)
            cache_ops_restore(&scan->nodes[i]);
    }
    unlock(scan);
    return status;
}
