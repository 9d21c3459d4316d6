/* custom_op.h: turning a node of a graph into a call of ours. */
#ifndef QUIRE_PLUGIN_CUSTOM_OP_H
#define QUIRE_PLUGIN_CUSTOM_OP_H

#include "host_ggml.h"

/* How ggml writes a custom operation's parameters. The layout is internal to ggml, so ggml itself
 * writes a template. */
struct custom_op {
    char params[sizeof(((struct ggml_tensor *)0)->op_params)];
    size_t userdata_at;
};

/* False if ggml's template is not understood. */
bool custom_op_init(struct custom_op *op, ggml_custom_op_t run);

/* `node` will run `op` with this userdata; its sources, shape and memory stay as they are. */
void custom_op_set(const struct custom_op *op, struct ggml_tensor *node, void *userdata);

#endif
