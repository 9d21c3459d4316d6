/* custom_op.c: parameters of a custom operation. */
#include <string.h>

#include "custom_op.h"

bool custom_op_init(struct custom_op *op, ggml_custom_op_t run) {
    struct ggml_init_params memory = {4 * host.ggml_tensor_overhead(), NULL, true};
    struct ggml_context *context = host.ggml_init(memory);
    if (!context)
        return false;
    /* Two operations that differ in every byte of their userdata: where they differ, it lies. */
    void *userdata[2] = {NULL, (void *)~(uintptr_t)0};
    struct ggml_tensor *node[2];
    for (int i = 0; i < 2; i++)
        node[i] = host.ggml_custom_4d(context, GGML_TYPE_F32, 3, 1, 1, 1, NULL, 0, run,
                                      GGML_N_TASKS_MAX, userdata[i]);
    const char *nulls = (const char *)node[0]->op_params, *ones = (const char *)node[1]->op_params;
    size_t at = 0;
    while (at < sizeof op->params && nulls[at] == ones[at])
        at++;
    bool understood = node[0]->op == GGML_OP_CUSTOM && node[0]->type == GGML_TYPE_F32 &&
                      node[0]->ne[0] == 3 && at + sizeof(void *) <= sizeof op->params &&
                      memcmp(nulls + at, &userdata[0], sizeof(void *)) == 0 &&
                      memcmp(ones + at, &userdata[1], sizeof(void *)) == 0;
    memcpy(op->params, nulls, sizeof op->params);
    op->userdata_at = at;
    host.ggml_free(context);
    return understood;
}

void custom_op_set(const struct custom_op *op, struct ggml_tensor *node, void *userdata) {
    memcpy(node->op_params, op->params, sizeof op->params);
    memcpy((char *)node->op_params + op->userdata_at, &userdata, sizeof userdata);
    node->op = GGML_OP_CUSTOM;
}
