/* device.c: what QUIRE0 is, and which nodes of a graph it claims.
 *
 * llama.cpp places a layer's cache on the layer's device, so the device has to pass for a GPU: an
 * integrated one, which steps back where a real GPU exists. It refuses all weights, which then stay
 * where they are without it (mapped or repacked, in CPU memory). It claims every operation that the
 * CPU claims, so that a graph stays in one piece.
 */
#include <stdatomic.h>
#include <string.h>

#include "backend.h"
#include "cache_name.h"
#include "device.h"
#include "kv_budget.h"
#include "kv_buffer.h"

static const char *get_name(ggml_backend_dev_t device) {
    (void)device;
    return DEVICE_NAME;
}

static const char *get_description(ggml_backend_dev_t device) {
    (void)device;
    return "K/V cache in packed pages, on the CPU";
}

/* The machine's, in the measure that llama.cpp uses: what --fit (on by default) puts against it is
 * the cache in f16. With the true number it would take layers from this device, or shorten the
 * context, where pages fit. */
static void get_memory(ggml_backend_dev_t device, size_t *available, size_t *total) {
    (void)device;
    host.ggml_backend_dev_memory(host.cpu, available, total);
    const double share = kv_budget_share();
    *available = (size_t)((double)*available / share);
    *total = (size_t)((double)*total / share);
}

static enum ggml_backend_dev_type get_type(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_IGPU;
}

static void get_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    memset(props, 0, sizeof *props);
    props->name = get_name(device);
    props->description = get_description(device);
    props->type = get_type(device);
    get_memory(device, &props->memory_free, &props->memory_total);
    props->caps.mmap_support = true; /* false: llama.cpp would no longer map the weights */
}

static ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t device) {
    (void)device;
    return kv_buffer_type();
}

static bool supports_buft(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    (void)device;
    return type == kv_buffer_type() || host.ggml_backend_dev_supports_buft(host.cpu, type);
}

/* ---------------------------------------------------------------- supports_op */

/* Set by the first operation on a tensor of ours. Before that, no layer was given to this device
 * (-ngl 0, --device none), and claiming operations would only cut the CPU's graph into pieces. */
static atomic_bool has_layers, has_cache;

void device_is_unused(void) {
    atomic_store_explicit(&has_layers, false, memory_order_relaxed);
    atomic_store_explicit(&has_cache, false, memory_order_relaxed);
}

/* What the tensors of an operation say. */
struct origin {
    bool ours;   /* one of them is in a buffer of ours */
    bool weight; /* llama.cpp asks whether a weight could be in a buffer of ours */
    bool others; /* one is in a buffer that is neither ours nor the CPU's */
};

/* llama.cpp asks about weights with a buffer of size 0. Caches and states have such a buffer too
 * when it only measures (--fit), and refusing those would abort it. Weights have a dot in their
 * name, adapters have no name. */
static bool is_weight(const struct ggml_tensor *root) {
    return root->buffer->size == 0 && (!root->name[0] || strchr(root->name, '.'));
}

static struct origin origin_of(const struct ggml_tensor *op) {
    struct origin origin = {false, false, false};
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor *tensor = i < 0 ? op : op->src[i];
        const struct ggml_tensor *root = tensor ? root_of(tensor) : NULL;
        if (!root || !root->buffer)
            continue;
        if (!kv_buffer_is_ours(root->buffer)) {
            origin.others |= !host.ggml_backend_dev_supports_buft(host.cpu, root->buffer->buft);
            continue;
        }
        struct cache_name name;
        origin.ours = true;
        origin.weight |= is_weight(root);
        if (cache_name_parse(root->name, &name))
            atomic_store_explicit(&has_cache, true, memory_order_relaxed);
    }
    if (origin.ours || origin.others)
        atomic_store_explicit(&has_layers, true, memory_order_relaxed);
    return origin;
}

/* The CPU's answer as if our buffers were its own: its repacked weights refuse other memory. */
static bool cpu_would(const struct ggml_tensor *op) {
    struct ggml_tensor copy = *op, sources[GGML_MAX_SRC];
    for (int i = 0; i < GGML_MAX_SRC; i++)
        if (copy.src[i] && kv_buffer_is_ours(copy.src[i]->buffer)) {
            sources[i] = *copy.src[i];
            sources[i].buffer = NULL;
            copy.src[i] = &sources[i];
        }
    return host.ggml_backend_dev_supports_op(host.cpu, &copy);
}

/* The longest write is known from the graphs that llama.cpp lays out before it computes any. */
static void note_rows(const struct ggml_tensor *op) {
    struct kv_side *side = op->op == GGML_OP_SET_ROWS ? kv_side_of(op) : NULL;
    if (!side)
        return;
    int32_t rows = (int32_t)op->src[0]->ne[1], most = atomic_load(&side->max_rows);
    while (rows > most && !atomic_compare_exchange_weak(&side->max_rows, &most, rows))
        ;
}

static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    (void)device;
    note_rows(op);
    struct origin origin = origin_of(op);
    if (origin.weight)
        return false;
    if (origin.ours)
        return cpu_would(op);
    if (!atomic_load_explicit(&has_layers, memory_order_relaxed))
        return false;
    /* Some layers are the CPU's (-ngl N): llama.cpp turns flash attention off for the whole model
     * if it runs elsewhere than the layer. `others` is the device of --split-mode tensor, which
     * shows tensors in a buffer of its own and asks for us. */
    if (!origin.others && op->op == GGML_OP_FLASH_ATTN_EXT &&
        atomic_load_explicit(&has_cache, memory_order_relaxed) && root_of(op->src[1])->buffer)
        return false;
    return host.ggml_backend_dev_supports_op(host.cpu, op);
}

/* ---------------------------------------------------------------- the device */

struct ggml_backend_device quire_device = {
    .iface = {.get_name = get_name,
              .get_description = get_description,
              .get_memory = get_memory,
              .get_type = get_type,
              .get_props = get_props,
              .init_backend = backend_create,
              .get_buffer_type = get_buffer_type,
              .supports_op = supports_op,
              .supports_buft = supports_buft},
};
