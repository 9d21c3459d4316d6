/* The LMDB backend: records in one file, with one writer at a time, readers that never wait, and
 * atomic transactions.
 *
 *   meta      "format", "limit", "clock", "bytes", "roots", "counts"
 *   records   key, piece -> record
 *   nodes     key -> last use, bytes of its records, depth
 *   uses      last use, depth from deep to shallow, key -> nothing: the order of eviction
 *
 * Using a page uses all pages before it, so a node's last use is never later than its parent's, and
 * the first entry of `uses` never has children that stay. Each use gets a new timestamp, later than
 * all before it, which all nodes of the text share (lmdb_use.c): of two texts, the one used less
 * recently is evicted first, from its end.
 *
 * Putting pages records the use of their text in the transaction that writes them. Finding pages
 * writes nothing: the use waits in memory until this process writes anyway, until the last use on
 * disk is touch_seconds old, or until too many uses wait. So this process evicts in the right
 * order, and other processes learn of a use a little later.
 *
 * The map is as large as the limit, so the file cannot grow beyond it. (A file that was larger when
 * the limit was lowered stays larger, because LMDB never shrinks a file, and may grow by a
 * sixteenth while records are dropped.) Records are dropped a little before the limit, because LMDB
 * reuses the space of dropped records only two transactions later and needs some for its own trees.
 *
 * LMDB does not reuse a page that was dropped after the oldest reader began to read. Readers of
 * this backend hold a snapshot for one record, or for a few milliseconds of a walk. Readers of
 * other programs may hold one for ever; then no space becomes free. */
#ifndef QUIRE_STORE_LMDB_STORE_H
#define QUIRE_STORE_LMDB_STORE_H

#include <lmdb.h>

#include "store/store.h"

enum {
    QUIRE_LMDB_ID = 34,
    QUIRE_LMDB_NODE = 24,
    QUIRE_LMDB_USE = 44,
    QUIRE_LMDB_LEAST = 1 << 20, /* smallest limit, in bytes */
    QUIRE_LMDB_WAITING = 64     /* texts whose use may wait in memory */
};

/* Statuses beside LMDB's, which are errno (small) or negative. */
enum {
    /* All records were used later than those that need the space. */
    QUIRE_LMDB_NOTHING_OLDER = 1 << 20,
    QUIRE_LMDB_HELD,    /* a reader holds the space: quire_lmdb.holder */
    QUIRE_LMDB_REPORTED /* the status is quire_lmdb.reported; its message has been stored */
};

/* A text that was used: its nodes from the root on. */
typedef struct quire_lmdb_text {
    quire_store_key *key; /* (n) */
    size_t n;
} quire_lmdb_text;

/* The use that was recorded last. */
typedef struct quire_lmdb_moment {
    quire_store_key key; /* of the text's last page */
    size_t n;            /* number of its nodes; 0: no use was recorded */
    uint64_t moment;
} quire_lmdb_moment;

typedef struct quire_lmdb {
    quire_backend backend; /* first: what callers hold */
    MDB_env *env;
    MDB_dbi meta, records, nodes, uses;
    size_t page_bytes;
    int unmapped; /* error that lost the map, so that LMDB must not be called; 0: mapped */
    bool narrow;  /* the map is large enough to read, but smaller than the limit */
    uint64_t limit;
    /* Most bytes to drop in one transaction while the file exceeds the limit: LMDB copies the pages
     * that it touches. */
    uint64_t step;
    int64_t touch_micros;
    quire_backend_counts counted;             /* to be written with the next transaction */
    quire_lmdb_text used[QUIRE_LMDB_WAITING]; /* likewise, in the order of their uses */
    size_t n_used;
    /* In this transaction, and in the last one that was committed. */
    quire_lmdb_moment moment, moment_on_disk;
    size_t held; /* the snapshot that a reader held when no space was free; 0: none */
    int holder;  /* that reader's process */
    quire_status reported;
} quire_lmdb;

typedef struct quire_lmdb_node {
    uint64_t used; /* microseconds since 1970, increased if needed to be unique */
    uint64_t bytes;
    uint32_t depth;
} quire_lmdb_node;

/* ---- lmdb_tree.c; an int is LMDB's status */
bool quire__disk_is_full(const char *directory, uint64_t n_bytes);
quire_status quire__lmdb_failed(const quire_lmdb *l, const char *what, int rc);
static inline MDB_val quire__lmdb_value(const void *bytes, size_t n_bytes) {
    /* LMDB does not write to it. */
    return (MDB_val){.mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes};
}
MDB_val quire__lmdb_id(const quire_record_id *id, uint8_t bytes[QUIRE_LMDB_ID]);
bool quire__lmdb_read_id(const MDB_val *from, quire_record_id *id);
/* A number in `meta`; 0 if it does not exist. */
int quire__lmdb_get(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t *number);
int quire__lmdb_put(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t number);
static inline bool quire__lmdb_is_limit(uint64_t n) {
    return n >= QUIRE_LMDB_LEAST && n <= SIZE_MAX / 2;
}
/* Bytes of the file up to the last page in use, including free pages before it. */
int quire__lmdb_used(quire_lmdb *l, uint64_t *bytes);
/* Sets the limit of this process and the size of its map. Only between transactions. */
int quire__lmdb_set_limit(quire_lmdb *l, uint64_t limit);
/* A transaction that writes begins by writing the uses that wait in memory. */
int quire__lmdb_begin(quire_lmdb *l, bool writes, MDB_txn **txn);
/* Also writes the counts since the last commit, and `more` of this transaction. rc: the status so
 * far; unless it is 0, the transaction is undone. */
int quire__lmdb_commit(quire_lmdb *l, MDB_txn *txn, const quire_backend_counts *more, int rc);
int quire__lmdb_counts(quire_lmdb *l, MDB_txn *txn, quire_backend_counts *c);
int quire__node_get(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, quire_lmdb_node *n);
/* before NULL: the node is new. after NULL: it is removed. */
int quire__node_change(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                       const quire_lmdb_node *before, const quire_lmdb_node *after);
int quire__node_drop(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                     const quire_lmdb_node *n);
void quire__use_write(const quire_store_key *key, const quire_lmdb_node *n,
                      uint8_t bytes[QUIRE_LMDB_USE]);
/* Whether a reader holds a snapshot older than `state`; then also its process and its snapshot. */
bool quire__lmdb_is_held(const quire_lmdb *l, size_t state, int *process, size_t *held);
/* Bytes that a record takes in the file: whole pages for a large one, plus its tree entries. */
uint64_t quire__lmdb_room(quire_lmdb *l, size_t n_bytes);
int quire__lmdb_add_room(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);
int quire__lmdb_add_roots(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);

/* ---- lmdb_use.c */
/* Records a use of those nodes that exist: all get the same new timestamp. */
int quire__lmdb_use(quire_lmdb *l, MDB_txn *txn, const quire_store_key *keys, size_t n,
                    uint64_t *moment);
int quire__lmdb_use_waiting(quire_lmdb *l, MDB_txn *txn);
void quire__lmdb_forget_waiting(quire_lmdb *l);
quire_status quire__lmdb_touch(quire_backend *backend, const quire_store_key *keys, size_t n);
/* Evicts the least recently used nodes until LMDB can use `spare` more bytes. The text of `keys`
 * stays. */
int quire__lmdb_make_room(quire_lmdb *l, uint64_t spare, const quire_store_key *keys,
                          size_t n_keys);
/* Most bytes of records before some are evicted. */
uint64_t quire__lmdb_most_bytes(const quire_lmdb *l);

/* ---- lmdb_write.c */
quire_status quire__lmdb_write(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                               const quire_backend_item *items, size_t n, quire_store_added *added);
quire_status quire__lmdb_remove(quire_backend *backend, const quire_record_id *ids, size_t n);
void quire__lmdb_count(quire_backend *backend, const quire_backend_counts *more);

/* ---- lmdb_read.c */
quire_status quire__lmdb_has(quire_backend *backend, const quire_record_id *ids, size_t n,
                             bool *present);
quire_status quire__lmdb_read(quire_backend *backend, const quire_record_id *id,
                              quire_backend_view view, void *user, bool *found);
quire_status quire__lmdb_walk(quire_backend *backend, const quire_record_id *after,
                              quire_backend_view view, void *user);
quire_status quire__lmdb_check(quire_backend *backend, const quire_record_id *id);
quire_status quire__lmdb_describe(quire_backend *backend, quire_backend_room *r,
                                  quire_backend_counts *counts);

#endif
