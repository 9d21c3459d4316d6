/* The pages of a store as a tree in memory, for calls that look at more than one text. */
#ifndef QUIRE_STORE_TABLE_H
#define QUIRE_STORE_TABLE_H

#include "store/store.h"

typedef struct quire_table_node {
    quire_store_key key, parent, root;
    uint32_t depth;
    int64_t used;
    uint64_t bytes;
    size_t first, n; /* its records, as indices into `id` */
    int64_t up;      /* index of the parent, or -1: it does not exist */
    int64_t n_below; /* children */
    bool has_tokens; /* piece 0 exists */
    int64_t top;     /* index of its root in `root`, or -1 */
} quire_table_node;

typedef struct quire_table {
    quire_record_id *id; /* of every record, readable or not, in their order */
    size_t n_ids, id_capacity;
    quire_table_node *node; /* in the order of keys */
    size_t n_nodes, node_capacity;
    quire_known_root *root;
    size_t n_roots;
    bool no_memory;
} quire_table;

/* The caller holds the lock. Must be freed also on failure. */
quire_status quire__table_read(quire_store *store, quire_table *table);
void quire__table_free(quire_table *table);
int64_t quire__table_find(const quire_table *table, const quire_store_key *key); /* -1: not found */
/* Whether a page can be found: the pages before it, and those that its windows see, exist. */
bool quire__table_whole(const quire_table *table, size_t node);

#endif
