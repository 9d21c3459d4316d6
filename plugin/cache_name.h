/* cache_name.h: llama.cpp's names of cache tensors. */
#ifndef QUIRE_PLUGIN_CACHE_NAME_H
#define QUIRE_PLUGIN_CACHE_NAME_H

#include <stdbool.h>

struct cache_name {
    char side; /* 'k' or 'v' */
    int layer;
};

/* "cache_k_l7", "cache_v_l7", or with a tag before the side: "cache_idx_k_l7". Names are not unique
 * in a process: every context has its own, and some models have several caches. */
bool cache_name_parse(const char *name, struct cache_name *out);

#endif
