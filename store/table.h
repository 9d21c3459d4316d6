/* All pages of a store at a moment, as a tree in memory: for what looks at more than one text. */
#ifndef QUIRE_STORE_TABLE_H
#define QUIRE_STORE_TABLE_H

#include "store/store.h"

typedef struct quire_table_node {
    quire_store_key key, parent, root;
    uint32_t depth;
    int64_t used;
    uint64_t bytes;
    size_t first, n; /* its records among all */
    int64_t up;      /* the parent's place, or -1: it is not there */
    int64_t n_below; /* children */
    bool has_tokens; /* piece 0 is there */
    int64_t top;     /* the root's place among `roots`, or -1 */
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

/* The caller holds the lock. To be freed also on failure. */
quire_status quire__table_read(quire_store *store, quire_table *table);
void quire__table_free(quire_table *table);
int64_t quire__table_find(const quire_table *table, const quire_store_key *key); /* -1: not there */
/* Whether a page can be found: what comes before it, and what its windows see. */
bool quire__table_whole(const quire_table *table, size_t node);

#endif
