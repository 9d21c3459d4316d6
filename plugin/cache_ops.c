/* cache_ops.c: writing rows and attending, as custom operations of ggml. Its threads call them as
 * worker `ith` of `nth`. */
#include <math.h>
#include <string.h>

#include "cache_ops.h"
#include "cache_shape.h"
#include "custom_op.h"
#include "usage.h"

static struct custom_op custom_write, custom_attend;

/* Threads beyond those that the pages have buffers for stay idle. */
static bool is_worker(const struct kv_group *group, int ith, int *nth) {
    if (*nth > group->max_workers)
        *nth = group->max_workers;
    return ith < *nth;
}

/* Rows that are not numbers are refused alone: attention gives NaN where they are seen. */
static void write_rows(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct cache_node *n = userdata;
    struct kv_side *side = n->side;
    const struct ggml_tensor *source = dst->src[0];
    if (!is_worker(side->group, ith, &nth))
        return;
    quire_rows rows = {
        .data = source->data, .type = QUIRE_F32, .row_stride = source->nb[1] / sizeof(float)};
    if (quire_cells_write(side->group->cells, side->index, side->which, rows, ith, nth) !=
            QUIRE_OK &&
        !atomic_exchange(&side->refused, true))
        usage_count(&usage.refused, 1);
}

/* Attention that cannot be had must not look as if it could. */
static void fill_with_nan(struct ggml_tensor *dst) {
    float *out = dst->data;
    int64_t n = dst->ne[0] * dst->ne[1] * dst->ne[2] * dst->ne[3];
    for (int64_t i = 0; i < n; i++)
        out[i] = NAN;
}

static void attend(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct cache_node *n = userdata;
    struct kv_side *k = n->side;
    const struct ggml_tensor *q = dst->src[0];
    if (!is_worker(k->group, ith, &nth))
        return;
    struct attention_params params = attention_params(n->params);
    quire_cells_attend_args args = {
        .sight = n->seen,
        .n_heads = (int32_t)q->ne[2],
        .q = q->data,
        .q_type = QUIRE_F32,
        .q_row_stride = q->nb[1] / sizeof(float),
        .q_head_stride = q->nb[2] / sizeof(float),
        .out = dst->data,
        .out_row_stride = (size_t)(dst->ne[0] * dst->ne[1]),
        .scale = params.scale,
        .softcap = params.softcap,
        .mask_slopes = n->slopes,
        .sink_logits = dst->src[4] ? dst->src[4]->data : NULL,
    };
    if (quire_cells_attend(k->group->cells, k->index, &args, ith, nth) != QUIRE_OK && ith == 0) {
        usage_count(&usage.refused, 1);
        fill_with_nan(dst);
    }
}

bool cache_ops_init(void) {
    return custom_op_init(&custom_write, write_rows) && custom_op_init(&custom_attend, attend);
}

void cache_ops_replace(struct cache_node *n) {
    bool is_write = n->op == GGML_OP_SET_ROWS;
    memcpy(n->params, n->node->op_params, sizeof n->params);
    custom_op_set(is_write ? &custom_write : &custom_attend, n->node, n);
}

void cache_ops_restore(struct cache_node *n) {
    memcpy(n->node->op_params, n->params, sizeof n->params);
    n->node->op = n->op;
}
