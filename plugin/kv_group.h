/* kv_group.h: the pages of a cache. A group is the layers of one buffer that the same graph showed
 * first: usually all of them. */
#ifndef QUIRE_PLUGIN_KV_GROUP_H
#define QUIRE_PLUGIN_KV_GROUP_H

#include "kv_side.h"

struct kv_group {
    struct kv_group *next; /* of the same buffer */
    quire_cells *cells;
    int32_t max_rows, max_workers;
    bool windowed;
    size_t bytes;         /* of the budget (kv_budget.h) */
    quire_sight **sights; /* as many as any graph needed at once */
    int32_t n_sights;
};

/* A layer as its attention shows it. */
struct kv_shape {
    struct kv_side *k, *v;
    int32_t n_heads, n_kv_heads, k_dim, v_dim;
    bool windowed; /* a sliding window's cache */
};

/* Packs these layers: their buffers get new groups, and every side is PACKED or PLAIN afterwards.
 * False: the budget, or memory, does not hold them all; those without pages stay new, and stderr
 * says why. */
bool kv_group_pack(const struct kv_shape *shapes, int n_shapes, int n_threads);
void kv_group_free(struct kv_group *group);

/* The group's sight number `i`, made if it does not exist; NULL: no memory. */
quire_sight *kv_group_sight(struct kv_group *group, int i);

/* Changes whenever a side of the process became packed or plain. */
uint64_t kv_group_epoch(void);
void kv_group_changed(void);

#endif
