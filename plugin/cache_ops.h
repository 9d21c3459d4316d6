/* cache_ops.h: what nodes on packed layers do while a graph runs. */
#ifndef QUIRE_PLUGIN_CACHE_OPS_H
#define QUIRE_PLUGIN_CACHE_OPS_H

#include "graph_scan.h"

/* False if this ggml's custom operations are not understood. Called once, at load. */
bool cache_ops_init(void);

/* The node becomes ours; cache_ops_restore makes it what it was. */
void cache_ops_replace(struct cache_node *node);
void cache_ops_restore(struct cache_node *node);

#endif
