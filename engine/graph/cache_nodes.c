/* cache_nodes.c: where ggml's threads meet the cache. */
#include "graph/graph.h"

#include <stdatomic.h>
#include <string.h>

static quire_rows rows_of(const struct ggml_tensor *x) {
    return (quire_rows){.data = x->data, .type = QUIRE_F32, .row_stride = x->nb[2] / sizeof(float)};
}

/* Every worker calls, also after a failure: the batch counts them. */
static void note(quire__step *step, quire_status status) {
    int none = QUIRE_OK;
    if (status != QUIRE_OK)
        atomic_compare_exchange_strong(&step->failure, &none, (int)status);
}

void quire__append_node(struct ggml_tensor *dst, int ith, int nth, void *user) {
    const quire__node *node = user;
    const quire__observer *observer = &node->step->observer;
    if (ith == 0 && observer->on_append)
        observer->on_append(observer->user, node->layer, dst->src[0], dst->src[1],
                            node->step->n_rows);
    note(node->step, quire_batch_append(node->step->batch, node->layer, rows_of(dst->src[0]),
                                        rows_of(dst->src[1]), ith, nth));
}

void quire__attend_node(struct ggml_tensor *dst, int ith, int nth, void *user) {
    const quire__node *node = user;
    const quire__observer *observer = &node->step->observer;
    if (ith == 0 && observer->on_queries)
        observer->on_queries(observer->user, node->layer, dst->src[0], node->step->n_rows);
    const quire_attend_args args = {
        .q = rows_of(dst->src[0]), .out = dst->data, .out_stride = dst->nb[1] / sizeof(float)};
    note(node->step, quire_batch_attend(node->step->batch, node->layer, &args, ith, nth));
    if (ith == 0) /* padding */
        memset((char *)dst->data + (size_t)node->step->n_rows * dst->nb[1], 0,
               ((size_t)dst->ne[1] - (size_t)node->step->n_rows) * dst->nb[1]);
}
