/* Records in an LMDB environment: one file, one writer at a time, readers never wait, whole
 * transactions or none.
 *
 *   meta      "format", "limit", "clock", "bytes", "roots", "counts"
 *   records   key, piece -> record
 *   nodes     key -> last use, bytes of its records, depth
 *   uses      last use, depth from deep to shallow, key -> nothing: the order in which nodes go
 *
 * Whoever uses a page uses all before it, so a node's last use is never later than its parent's,
 * and the first in `uses` never has children that stay. Each use is a moment of its own, later than
 * all before it, that all nodes of the text get (lmdb_use.c): of two texts, the one used less
 * recently goes first, from its end.
 *
 * Putting pages notes the use of their text in the transaction that writes them. Finding pages
 * writes nothing: the use is kept in memory until this process writes anyway, until the last use on
 * disk is touch_seconds old, or until too many wait. So room is made in the right order as far as
 * this process knows, and others learn of a use a little later.
 *
 * The map is as large as the limit, so the file cannot grow beyond it. (A file that was larger when
 * the limit was lowered stays so, as LMDB gives no room back, and may grow by a sixteenth while
 * records are dropped.) Records are dropped a little earlier, because LMDB reuses the room of
 * dropped ones only two transactions later, and needs some for its own trees.
 *
 * LMDB reuses no page that was dropped after the oldest reader began to read. Readers here hold a
 * state for one record, or a few milliseconds of a walk; readers of other programs may hold it for
 * ever, and then there is no room to be had. */
#ifndef QUIRE_STORE_LMDB_STORE_H
#define QUIRE_STORE_LMDB_STORE_H

#include <lmdb.h>

#include "store/store.h"

enum {
    QUIRE_LMDB_ID = 34,
    QUIRE_LMDB_NODE = 24,
    QUIRE_LMDB_USE = 44,
    QUIRE_LMDB_LEAST = 1 << 20, /* bytes of a limit */
    QUIRE_LMDB_WAITING = 64     /* texts whose use is kept in memory */
};

/* Statuses beside LMDB's, which are errno (small) or negative. */
enum {
    QUIRE_LMDB_NOTHING_OLDER =
        1 << 20,        /* all that is there was used later than what needs the room */
    QUIRE_LMDB_HELD,    /* a reader holds the room: quire_lmdb.holder */
    QUIRE_LMDB_REPORTED /* quire_lmdb.reported; its sentence has been remembered */
};

/* A text that was used: its nodes from the root on. */
typedef struct quire_lmdb_text {
    quire_store_key *key; /* (n) */
    size_t n;
} quire_lmdb_text;

/* The use that was noted last. */
typedef struct quire_lmdb_moment {
    quire_store_key key; /* of the text's last page */
    size_t n;            /* its nodes; 0: none was noted */
    uint64_t moment;
} quire_lmdb_moment;

typedef struct quire_lmdb {
    quire_backend backend; /* first: what callers hold */
    MDB_env *env;
    MDB_dbi meta, records, nodes, uses;
    size_t page_bytes;
    int unmapped; /* why there is no map any more, so that LMDB must not be called; 0: there is */
    bool narrow;  /* the map is enough to read, but is not the one that the limit asks for */
    uint64_t limit;
    uint64_t step; /* most bytes to drop in a transaction, if the file exceeds the limit: LMDB
                      copies what it touches */
    int64_t touch_micros;
    quire_backend_counts counted;             /* to be written with the next transaction */
    quire_lmdb_text used[QUIRE_LMDB_WAITING]; /* likewise, in the order of their uses */
    size_t n_used;
    quire_lmdb_moment moment,
        moment_on_disk; /* in this transaction, and by the last one that was committed */
    size_t held; /* the state that a reader held when room could not be had; 0: it was to be had */
    int holder;  /* that reader's process */
    quire_status reported;
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
    return (MDB_val){.mv_size = n_bytes,
                     .mv_data = (void *)(uintptr_t)bytes}; /* LMDB does not write to it */
}
MDB_val quire__lmdb_id(const quire_record_id *id, uint8_t bytes[QUIRE_LMDB_ID]);
bool quire__lmdb_read_id(const MDB_val *from, quire_record_id *id);
/* A number of `meta`; 0 if it is not there. */
int quire__lmdb_get(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t *number);
int quire__lmdb_put(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t number);
static inline bool quire__lmdb_is_limit(uint64_t n) {
    return n >= QUIRE_LMDB_LEAST && n <= SIZE_MAX / 2;
}
int quire__lmdb_used(quire_lmdb *l,
                     uint64_t *bytes); /* of the file, free pages between others included */
/* What this process goes by from now on, and the size of its map. Between transactions alone. */
int quire__lmdb_set_limit(quire_lmdb *l, uint64_t limit);
/* One that writes begins with the uses that wait in memory. */
int quire__lmdb_begin(quire_lmdb *l, bool writes, MDB_txn **txn);
/* With what was counted since the last one, and `more` of this one. rc: what happened so far;
 * unless 0, all is undone. */
int quire__lmdb_commit(quire_lmdb *l, MDB_txn *txn, const quire_backend_counts *more, int rc);
void quire__counts_add(quire_backend_counts *c, const quire_backend_counts *more);
int quire__lmdb_counts(quire_lmdb *l, MDB_txn *txn, quire_backend_counts *c);
int quire__node_get(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, quire_lmdb_node *n);
/* before NULL: it is new. after NULL: it goes. */
int quire__node_change(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                       const quire_lmdb_node *before, const quire_lmdb_node *after);
int quire__node_drop(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                     const quire_lmdb_node *n);
void quire__use_write(const quire_store_key *key, const quire_lmdb_node *n,
                      uint8_t bytes[QUIRE_LMDB_USE]);
/* Whether a reader holds a state older than `state`; then also its process and its state. */
bool quire__lmdb_is_held(const quire_lmdb *l, size_t state, int *process, size_t *held);
/* What a record takes of the file: a large one whole pages of its own, and its lines in the
 * trees. */
uint64_t quire__lmdb_room(quire_lmdb *l, size_t n_bytes);
int quire__lmdb_add_room(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);
int quire__lmdb_add_roots(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less);

/* ---- lmdb_use.c */
/* Those of the nodes that are there are in use: all get one moment, which nothing else has had. */
int quire__lmdb_use(quire_lmdb *l, MDB_txn *txn, const quire_store_key *keys, size_t n,
                    uint64_t *moment);
int quire__lmdb_use_waiting(quire_lmdb *l, MDB_txn *txn);
void quire__lmdb_forget_waiting(quire_lmdb *l);
quire_status quire__lmdb_touch(quire_backend *backend, const quire_store_key *keys, size_t n);
/* Drops what was used least recently until `spare` bytes are free, and lets LMDB have them. The
 * text of `keys` stays. */
int quire__lmdb_make_room(quire_lmdb *l, uint64_t spare, const quire_store_key *keys,
                          size_t n_keys);
uint64_t quire__lmdb_most_bytes(const quire_lmdb *l); /* of records, before some are dropped */

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
