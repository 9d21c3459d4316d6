/* Records in an LMDB environment: one file, one writer at a time, readers never wait, whole transactions or none.
 *
 *   meta      "format", "limit", "clock", "bytes", "roots", "counts"
 *   records   key, piece -> record
 *   nodes     key -> last use, bytes of its records, depth
 *   uses      last use, depth from deep to shallow, key -> nothing: the order in which nodes go
 *
 * Whoever uses a page uses all before it, so a node's last use is never later than its parent's, and the first in `uses`
 * never has children that stay. A new node takes its parent's last use instead of now, which keeps that true without
 * touching the parents.
 *
 * The map is as large as the limit, so the file cannot grow beyond it. (A file that was larger when the limit was lowered
 * stays so, as LMDB gives no room back, and may grow by a sixteenth while records are dropped.) Records are dropped a
 * little earlier, because LMDB reuses the room of dropped ones only two transactions later, and needs some for its own
 * trees. */
#ifndef QUIRE_STORE_LMDB_STORE_H
#define QUIRE_STORE_LMDB_STORE_H

#include <lmdb.h>

#include "store/store.h"

enum { QUIRE_LMDB_ID = 34, QUIRE_LMDB_USE = 44, QUIRE_LMDB_LEAST = 1 << 20 /* bytes of a limit */ };

typedef struct quire_lmdb {
    quire_keeper keeper; /* first: what callers hold */
    MDB_env *env;
    MDB_dbi meta, records, nodes, uses;
    uint64_t limit;
    uint64_t step; /* most bytes to drop in a transaction, if the file exceeds the limit: LMDB copies what it touches */
    int64_t touch_micros;
    quire_keeper_counts pending; /* to be written with the next transaction */
} quire_lmdb;

typedef struct quire_lmdb_node {
    uint64_t used; /* microseconds since 1970, a little later if several come at once */
    uint64_t bytes;
    uint32_t depth;
} quire_lmdb_node;

/* ---- lmdb_tree.c; an int is LMDB's status */
bool quire__disk_is_full(const char *directory, uint64_t n_bytes);
quire_status quire__lmdb_failed(const quire_lmdb *l, const char *what, int rc);
static inline MDB_val quire__lmdb_value(const void *bytes, size_t n_bytes) {
    return (MDB_val){.mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes}; /* LMDB does not write to it */
}
MDB_val quire__lmdb_id(const quire_record_id *id, uint8_t bytes[QUIRE_LMDB_ID]);
bool quire__lmdb_read_id(const MDB_val *from, quire_record_id *id);
/* A number of `meta`; 0 if it is not there. */
int quire__lmdb_get(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t *number);
int quire__lmdb_put(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t number);
int quire__lmdb_used(quire_lmdb *l, uint64_t *bytes); /* of the file, free pages between others included */
/* What this process goes by from now on, and the size of its map. Between transactions alone. */
int quire__lmdb_set_limit(quire_lmdb *l, uint64_t limit);
int quire__lmdb_begin(quire_lmdb *l, bool writes, MDB_txn **txn);
/* With what was counted since the last one, and `more` of this one. rc: what happened so far; unless 0, all is undone. */
int quire__lmdb_commit(quire_lmdb *l, MDB_txn *txn, const quire_keeper_counts *more, int rc);
void quire__counts_add(quire_keeper_counts *c, const quire_keeper_counts *more);
int quire__lmdb_counts(quire_lmdb *l, MDB_txn *txn, quire_keeper_counts *c);
/* Later than any moment before, whatever the machine's clock does. */
int quire__lmdb_moment(quire_lmdb *l, MDB_txn *txn, uint64_t *moment);
int quire__node_get(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, quire_lmdb_node *n);
/* before NULL: it is new. after NULL: it goes. */
int quire__node_change(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, const quire_lmdb_node *before,
                       const quire_lmdb_node *after);
int quire__node_drop(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, const quire_lmdb_node *n);
/* What a record takes of the file: a large one whole pages of its own, and its lines in the trees. */
uint64_t quire__lmdb_room(quire_lmdb *l, size_t n_bytes);
int quire__lmdb_add_room(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);
int quire__lmdb_add_roots(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);

/* ---- lmdb_write.c */
quire_status quire__lmdb_keep(quire_keeper *keeper, const quire_keeper_item *items, size_t n, quire_store_added *added);
quire_status quire__lmdb_forget(quire_keeper *keeper, const quire_record_id *ids, size_t n);
quire_status quire__lmdb_touch(quire_keeper *keeper, const quire_store_key *keys, size_t n);
void quire__lmdb_count(quire_keeper *keeper, const quire_keeper_counts *more);

/* ---- lmdb_read.c */
quire_status quire__lmdb_has(quire_keeper *keeper, const quire_record_id *ids, size_t n, bool *present);
quire_status quire__lmdb_read(quire_keeper *keeper, const quire_record_id *id, quire_keeper_view view, void *user,
                              bool *found);
quire_status quire__lmdb_walk(quire_keeper *keeper, quire_keeper_view view, void *user);
quire_status quire__lmdb_describe(quire_keeper *keeper, quire_keeper_room *r, quire_keeper_counts *counts);

#endif
