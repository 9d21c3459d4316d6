/* graph_scan.c: finding the nodes on caches, and deciding which layers are packed. */
#include <stdlib.h>
#include <string.h>

#include "cache_shape.h"
#include "graph_scan.h"

/* One more element of a list of the scan, or NULL. */
static void *grow(struct graph_scan *scan, void *list, int *n, int *max, size_t bytes) {
    void **items = list;
    if (*n == *max) {
        int more = *max ? 2 * *max : 32;
        void *bigger = realloc(*items, (size_t)more * bytes);
        if (!bigger) {
            scan->no_memory = true;
            return NULL;
        }
        *items = bigger;
        *max = more;
    }
    char *item = (char *)*items + (size_t)(*n)++ * bytes;
    memset(item, 0, bytes);
    return item;
}

#define ADD(scan, list)                                                                            \
    grow(scan, &(scan)->list, &(scan)->n_##list, &(scan)->max_##list, sizeof *(scan)->list)

/* Nodes that llama.cpp has switched off are passed over, as ggml-cpu does. */
static bool is_computed(const struct ggml_tensor *node) {
    return !is_view(node) && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

/* The tensor of an operation with this number: -1 is its result. */
static const struct ggml_tensor *tensor_of(const struct ggml_tensor *node, int i) {
    return i < 0 ? node : node->src[i];
}

/* ---------------------------------------------------------------- buffers */

static void add_buffer(struct graph_scan *scan, struct kv_buffer *buffer) {
    int at = 0;
    while (at < scan->n_buffers && scan->buffers[at] < buffer)
        at++;
    if (at < scan->n_buffers && scan->buffers[at] == buffer)
        return;
    if (!ADD(scan, buffers))
        return;
    memmove(scan->buffers + at + 1, scan->buffers + at,
            (size_t)(scan->n_buffers - 1 - at) * sizeof *scan->buffers);
    scan->buffers[at] = buffer;
}

/* Adds a node if a cache is among its tensors, and the buffers of all such caches. */
static void add_use(struct graph_scan *scan, struct ggml_tensor *node) {
    bool found = false;
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        const struct kv_side *side = kv_side_of(tensor_of(node, i));
        if (!side)
            continue;
        found = true;
        add_buffer(scan, side->buffer);
    }
    struct cache_use *use = found ? ADD(scan, uses) : NULL;
    if (use)
        *use = (struct cache_use){
            .node = node,
            .side = kv_side_of(node->op == GGML_OP_FLASH_ATTN_EXT ? node->src[1] : node)};
}

static struct cache_use *find_use(const struct graph_scan *scan, int n,
                                  const struct ggml_tensor *node) {
    for (int i = 0; i < n; i++)
        if (scan->uses[i].node == node)
            return &scan->uses[i];
    return NULL;
}

static int by_address(const void *a, const void *b) {
    const struct cache_use *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

/* ggml gives a part of a graph the set of all tensors of the whole graph, in which it counts their
 * uses. The set has no order. Addresses have one: a program makes tensors in the order of use. */
static void add_other_parts(struct graph_scan *scan, const struct ggml_cgraph *graph) {
    const struct ggml_hash_set *all = &graph->visited_hash_set;
    int here = scan->n_uses;
    for (size_t i = 0; i < all->size; i++)
        if (ggml_bitset_get(all->used, i) && is_computed(all->keys[i]) &&
            !find_use(scan, here, all->keys[i]))
            add_use(scan, all->keys[i]);
    scan->is_part = scan->n_uses > here;
    if (scan->is_part)
        qsort(scan->uses, (size_t)scan->n_uses, sizeof *scan->uses, by_address);
}

void graph_scan_uses(struct graph_scan *scan, const struct ggml_cgraph *graph) {
    scan->n_buffers = scan->n_uses = 0;
    scan->uid = 0;
    scan->no_memory = scan->is_part = false;
    for (int i = 0; i < graph->n_nodes; i++)
        if (is_computed(graph->nodes[i]))
            add_use(scan, graph->nodes[i]);
    if (scan->n_uses > 0)
        add_other_parts(scan, graph);
}

/* ---------------------------------------------------------------- which layers are packed */

/* Everything of a node on a cache that pages do not do makes its layers plain. */
static void refuse_foreign(const struct ggml_tensor *node, const char *why) {
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        struct kv_side *side = kv_side_of(tensor_of(node, i));
        if (side)
            kv_side_make_plain(side, why);
    }
}

static const char OTHER_HEADS[] = "its attention has other heads than its pages";

/* Rows of a cache can be divided into heads in several ways; packed ones have been. */
static bool fits_pages(const struct ggml_tensor *node, struct kv_side *k, struct kv_side *v) {
    const struct kv_shape shape = attention_shape(node, k, v);
    return k->state != SIDE_PACKED ||
           (shape.n_kv_heads == k->n_kv_heads && shape.k_dim == k->k_dim &&
            shape.v_dim == k->v_dim && shape.n_heads <= k->n_heads);
}

static void judge(const struct ggml_tensor *node) {
    struct kv_side *side = kv_side_of(node);
    if (node->op == GGML_OP_SET_ROWS && side) {
        const char *fault = kv_side_of(node->src[0]) ? "SET_ROWS" : write_fault(node, side);
        if (fault)
            refuse_foreign(node, fault);
    } else if (node->op == GGML_OP_FLASH_ATTN_EXT) {
        struct kv_side *k = kv_side_of(node->src[1]), *v = kv_side_of(node->src[2]);
        const char *fault = attention_fault(node, k, v);
        if ((k || v) && !fault && (k->state == SIDE_PLAIN || v->state == SIDE_PLAIN))
            fault = k->state == SIDE_PLAIN ? k->why : v->why;
        if ((k || v) && !fault && k->partner && k->partner != v)
            fault = "its K is attended with another V";
        if ((k || v) && !fault && !fits_pages(node, k, v))
            fault = OTHER_HEADS;
        if ((k || v) && fault)
            refuse_foreign(node, fault);
    } else if (!side || shift_fault(node, side)) {
        refuse_foreign(node, host.ggml_op_name(node->op));
    }
}

/* iSWA models have two caches: one for layers with a sliding window. It has fewer cells, or as many
 * and is allocated second. */
static const struct kv_buffer *windowed_cache(const struct kv_shape *shapes, int n) {
    const struct kv_buffer *first = n ? shapes[0].k->buffer : NULL, *second = NULL;
    for (int i = 1; i < n; i++) {
        const struct kv_buffer *buffer = shapes[i].k->buffer;
        if (buffer == first || buffer == second)
            continue;
        if (second)
            return NULL;
        second = buffer;
    }
    if (!second)
        return NULL;
    int64_t cells[2] = {first->sides[0].n_cells, second->sides[0].n_cells};
    if (cells[0] != cells[1])
        return cells[0] < cells[1] ? first : second;
    return first->serial > second->serial ? first : second;
}

/* Packs the layers that are new, of all buffers at once: they share a budget. */
static void pack_new_layers(struct graph_scan *scan, int n_threads) {
    struct kv_shape *shapes = calloc((size_t)scan->n_uses + 1, sizeof *shapes);
    int n = 0;
    scan->no_memory |= !shapes;
    for (int i = 0; shapes && i < scan->n_uses; i++) {
        const struct ggml_tensor *node = scan->uses[i].node;
        if (node->op != GGML_OP_FLASH_ATTN_EXT)
            continue;
        struct kv_side *k = kv_side_of(node->src[1]), *v = kv_side_of(node->src[2]);
        if (!k || !v || k->state != SIDE_NEW || v->state != SIDE_NEW)
            continue;
        const struct kv_shape shape = attention_shape(node, k, v);
        int at = 0;
        while (at < n && shapes[at].k != k)
            at++;
        if (at == n)
            shapes[n++] = shape;
        else if (shapes[at].v != v)
            refuse_foreign(node, "its K is attended with another V");
        else if (shapes[at].n_kv_heads != shape.n_kv_heads || shapes[at].v_dim != shape.v_dim)
            refuse_foreign(node, OTHER_HEADS);
        else if (shapes[at].n_heads < shape.n_heads)
            shapes[at].n_heads = shape.n_heads; /* layers that share a cache */
    }
    const struct kv_buffer *windowed = windowed_cache(shapes, n);
    for (int i = 0; i < n; i++)
        shapes[i].windowed = shapes[i].k->buffer == windowed;
    if (n > 0 && !kv_group_pack(shapes, n, n_threads))
        scan->over_budget = true;
    free(shapes);
}

/* ---------------------------------------------------------------- nodes on packed layers */

static bool is_packed(const struct cache_use *use, enum ggml_op op) {
    return use->node->op == op && use->side && use->side->state == SIDE_PACKED;
}

/* The write of K's rows that come from the tokens of an attention node, before it; or NULL. */
static const struct ggml_tensor *
find_write(const struct graph_scan *scan, const struct ggml_tensor *node, const struct kv_side *k) {
    int64_t n_rows = node->src[0]->ne[1] * node->src[0]->ne[3];
    for (int i = 0; i < scan->n_uses && scan->uses[i].node != node; i++)
        if (is_packed(&scan->uses[i], GGML_OP_SET_ROWS) && scan->uses[i].side == k &&
            scan->uses[i].node->src[1]->ne[0] == n_rows)
            return scan->uses[i].node;
    return NULL;
}

static bool is_here(const struct graph_scan *scan, const struct ggml_tensor *node) {
    for (int i = 0; i < scan->n_nodes; i++)
        if (scan->nodes[i].node == node)
            return true;
    return false;
}

static int add_sight(struct graph_scan *scan, const struct ggml_tensor *node, struct kv_side *k) {
    const struct ggml_tensor *write = find_write(scan, node, k);
    bool earlier = write && scan->is_part && !is_here(scan, write);
    struct cache_sight sight = {.group = k->group,
                                .mask = node->src[3],
                                .cell = write && !earlier ? write->src[1] : NULL,
                                .earlier = earlier ? k : NULL,
                                .first_stream = attention_first_stream(node, k),
                                .n_streams = (int32_t)node->src[0]->ne[3],
                                .rows_per_stream = (int32_t)node->src[0]->ne[1],
                                .n_cells = (int32_t)node->src[1]->ne[1]};
    for (int i = 0; i < scan->n_sights; i++) {
        const struct cache_sight *s = &scan->sights[i];
        if (s->group != sight.group)
            continue;
        if (s->mask == sight.mask && s->cell == sight.cell && s->earlier == sight.earlier &&
            s->first_stream == sight.first_stream && s->n_streams == sight.n_streams &&
            s->rows_per_stream == sight.rows_per_stream && s->n_cells == sight.n_cells)
            return i;
        sight.number++;
    }
    struct cache_sight *added = ADD(scan, sights);
    if (added)
        *added = sight;
    return scan->n_sights - 1;
}

static void add_node(struct graph_scan *scan, struct ggml_tensor *node, struct kv_side *side) {
    struct cache_node *n = ADD(scan, nodes);
    if (!n)
        return;
    n->node = node;
    n->op = node->op;
    n->side = side;
    n->region = find_use(scan, scan->n_uses, node)->region;
    if (node->op != GGML_OP_FLASH_ATTN_EXT)
        return;
    const struct ggml_tensor *q = node->src[0];
    n->sight = add_sight(scan, node, side);
    float max_bias = attention_params(node->op_params).max_bias;
    if (max_bias > 0) {
        n->slopes = malloc((size_t)q->ne[2] * sizeof *n->slopes);
        scan->no_memory |= !n->slopes;
        if (n->slopes)
            alibi_slopes(n->slopes, q->ne[2], max_bias);
    }
}

static bool same_layer(const struct kv_side *a, const struct kv_side *b) {
    return a->group == b->group && a->index == b->index;
}

/* Rows that a write completes pages with wait in a region for their attention, which may come after
 * that of other layers: some models' last layers attend over an earlier layer's cache. */
static bool is_free(const struct graph_scan *scan, int at, int32_t region) {
    const struct kv_side *side = scan->uses[at].side;
    for (int i = 0; i < at; i++) {
        const struct cache_use *use = &scan->uses[i];
        if (!is_packed(use, GGML_OP_SET_ROWS) || use->side->group != side->group ||
            use->region != region || same_layer(use->side, side))
            continue;
        for (int j = at + 1; j < scan->n_uses; j++)
            if (is_packed(&scan->uses[j], GGML_OP_FLASH_ATTN_EXT) &&
                same_layer(scan->uses[j].side, use->side))
                return false;
    }
    return true;
}

static int32_t choose_region(const struct graph_scan *scan, int at) {
    for (int i = 0; i < at; i++)
        if (is_packed(&scan->uses[i], GGML_OP_SET_ROWS) &&
            same_layer(scan->uses[i].side, scan->uses[at].side))
            return scan->uses[i].region;
    for (int32_t region = 0; region < QUIRE_CELLS_REGIONS; region++)
        if (is_free(scan, at, region))
            return region;
    return -1;
}

static void collect(struct graph_scan *scan, const struct ggml_cgraph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor *node = graph->nodes[i];
        if (!is_computed(node))
            continue;
        struct kv_side *side =
            node->op == GGML_OP_FLASH_ATTN_EXT ? kv_side_of(node->src[1]) : kv_side_of(node);
        if (!side)
            continue;
        if (side->state == SIDE_PACKED && node->op == GGML_OP_ROPE) {
            struct cache_shift *shift = ADD(scan, shifts);
            if (shift)
                *shift = (struct cache_shift){i, side};
        } else if (side->state == SIDE_PACKED) {
            add_node(scan, node, side);
        } else if (side->state == SIDE_NEW && node->op == GGML_OP_SET_ROWS) {
            struct early_write *early = ADD(scan, early);
            if (early)
                *early = (struct early_write){side, node->src[1]};
        }
    }
}

/* All writes of a graph are planned before it runs, and a side has one plan at a time. */
static bool is_written_before(const struct graph_scan *scan, int at) {
    for (int i = 0; i < at; i++)
        if (is_packed(&scan->uses[i], GGML_OP_SET_ROWS) &&
            scan->uses[i].side == scan->uses[at].side)
            return true;
    return false;
}

/* False: a layer had to become plain, and all of them are to be assigned again. */
static bool assign_regions(struct graph_scan *scan) {
    for (int i = 0; i < scan->n_uses; i++) {
        struct cache_use *use = &scan->uses[i];
        if (!is_packed(use, GGML_OP_SET_ROWS))
            continue;
        if (is_written_before(scan, i)) {
            kv_side_make_plain(use->side, "it is written twice in a graph");
            return false;
        }
        if (use->node->src[1]->ne[0] > use->side->group->max_rows) {
            kv_side_make_plain(use->side, "a batch is larger than any that was planned");
            return false;
        }
        use->region = choose_region(scan, i);
        if (use->region < 0) {
            kv_side_make_plain(use->side, "too many layers wait for their attention");
            return false;
        }
    }
    return true;
}

static void forget_nodes(struct graph_scan *scan) {
    for (int i = 0; i < scan->n_nodes; i++)
        free(scan->nodes[i].slopes);
    scan->n_nodes = scan->n_sights = scan->n_shifts = scan->n_early = 0;
}

void graph_scan_nodes(struct graph_scan *scan, const struct ggml_cgraph *graph, int n_threads) {
    scan->over_budget = false;
    for (int i = 0; i < scan->n_uses; i++)
        judge(scan->uses[i].node);
    pack_new_layers(scan, n_threads);
    while (!assign_regions(scan))
        ;
    forget_nodes(scan);
    collect(scan, graph);
    scan->uid = graph->uid;
    scan->epoch = kv_group_epoch();
}

void graph_scan_free(struct graph_scan *scan) {
    forget_nodes(scan);
    free(scan->buffers);
    free(scan->uses);
    free(scan->nodes);
    free(scan->sights);
    free(scan->shifts);
    free(scan->early);
}
