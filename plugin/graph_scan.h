/* graph_scan.h: what a graph does with caches.
 *
 * llama.cpp computes the same graph for many tokens, so a scan is kept until another graph comes or
 * a layer has become packed or plain.
 *
 * A program may have a graph computed in parts: a callback looks at some of the nodes, or layers
 * belong to several devices. What has to be known of all layers (which pages they share, whether
 * they have a window, who reads what is written) is looked up in the whole graph, so that it does
 * not matter how it is divided.
 */
#ifndef QUIRE_PLUGIN_GRAPH_SCAN_H
#define QUIRE_PLUGIN_GRAPH_SCAN_H

#include "kv_buffer.h"
#include "kv_group.h"

/* A node of the whole graph that reads or writes caches. */
struct cache_use {
    struct ggml_tensor *node;
    struct kv_side *side; /* that the node is a write to, or K of attention; or NULL */
    int32_t region;       /* of a write to a packed side */
};

/* A node on packed layers, which becomes a call of ours while the graph runs. */
struct cache_node {
    struct ggml_tensor *node;
    enum ggml_op op;                                           /* SET_ROWS or FLASH_ATTN_EXT */
    char params[sizeof(((struct ggml_tensor *)0)->op_params)]; /* while the node is ours */
    struct kv_side *side;                                      /* that is written; K of attention */
    int32_t region;                                            /* of a write */
    int sight;                                                 /* of attention: in the scan */
    const quire_sight *seen;                                   /* the same, set for the run */
    float *slopes;                                             /* (H) ALiBi, or NULL */
};

/* What the rows of attention nodes see; layers that see the same share one. */
struct cache_sight {
    struct kv_group *group;
    int number;                            /* in its group */
    const struct ggml_tensor *mask, *cell; /* either may be NULL */
    const struct kv_side *earlier; /* with the cells that an earlier part has written, or NULL */
    int32_t first_stream, n_streams, rows_per_stream, n_cells;
};

/* A rotation of K in place (llama.cpp's context shift), by cell: node `at` of the graph. */
struct cache_shift {
    int at;
    struct kv_side *side;
};

/* A write to a layer that no graph has attended to yet: its cells have to be remembered. */
struct early_write {
    struct kv_side *side;
    const struct ggml_tensor *cell;
};

struct graph_scan {
    uint64_t uid, epoch;
    struct kv_buffer **buffers; /* whose caches the graph touches, by address */
    int n_buffers, max_buffers;
    struct cache_use *uses; /* in the order of computing */
    int n_uses, max_uses;
    bool is_part; /* some of them are in other parts of the graph */
    struct cache_node *nodes;
    int n_nodes, max_nodes;
    struct cache_sight *sights;
    int n_sights, max_sights;
    struct cache_shift *shifts;
    int n_shifts, max_shifts;
    struct early_write *early;
    int n_early, max_early;
    bool no_memory;   /* the scan is incomplete */
    bool over_budget; /* a layer's pages do not fit QUIRE_KV_BYTES: the graph cannot run */
};

/* Finds the uses and their buffers. The caller locks those and then lets graph_scan_nodes look at
 * the nodes: there layers become packed or plain. */
void graph_scan_uses(struct graph_scan *scan, const struct ggml_cgraph *graph);
void graph_scan_nodes(struct graph_scan *scan, const struct ggml_cgraph *graph, int n_threads);
void graph_scan_free(struct graph_scan *scan);

#endif
