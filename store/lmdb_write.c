/* Writes records to an LMDB store, and removes them. */
#include <string.h>
#include <time.h>

#include "store/lmdb_pages.h"

enum { TRIES = 8, WAITS = 50, WAIT_MILLIS = 5 };

/* `moment`: the timestamp of the use of its text. */
static int add_item(quire_lmdb *l, MDB_txn *txn, const quire_backend_item *item, uint64_t moment,
                    quire_store_added *added) {
    uint8_t bytes[QUIRE_LMDB_ID];
    MDB_val name = quire__lmdb_id(&item->id, bytes),
            data = quire__lmdb_value(item->bytes, item->n_bytes);
    int rc = mdb_put(txn, l->records, &name, &data, MDB_NOOVERWRITE);
    if (rc != 0)
        return rc == MDB_KEYEXIST ? 0 : rc;
    quire_lmdb_node before, after = {.depth = item->depth};
    rc = quire__node_get(l, txn, &item->id.key, &before);
    const bool is_new = rc == MDB_NOTFOUND;
    if (is_new) {
        after.used = moment;
        rc = 0;
    } else {
        after = before;
    }
    const uint64_t room = quire__lmdb_room(l, item->n_bytes);
    after.bytes += room;
    if (rc == 0)
        rc = quire__node_change(l, txn, &item->id.key, is_new ? NULL : &before, &after);
    if (rc == 0)
        rc = quire__lmdb_add_room(l, txn, room, 0);
    if (rc == 0 && is_new && item->depth == 0)
        rc = quire__lmdb_add_roots(l, txn, 1, 0);
    added->pages += is_new && item->depth > 0;
    added->bytes += item->n_bytes;
    return rc;
}

/* The items of a text that are to be written. */
typedef struct batch {
    const quire_store_key *keys;
    size_t n_keys;
    const quire_backend_item *items;
    size_t n;
    uint64_t room; /* bytes that they take in the file */
} batch;

static int write_once(quire_lmdb *l, const batch *b, quire_store_added *added) {
    MDB_txn *txn;
    uint64_t bytes = 0, moment;
    *added = (quire_store_added){0};
    int rc = quire__lmdb_begin(l, true, &txn);
    if (rc != 0)
        return rc;
    rc = quire__lmdb_use(l, txn, b->keys, b->n_keys, &moment);
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        rc = add_item(l, txn, &b->items[i], moment, added);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "bytes", &bytes);
    if (rc == 0 && bytes > quire__lmdb_most_bytes(l))
        rc = MDB_MAP_FULL; /* nearly full: drop something first */
    const quire_backend_counts more = {.added_pages = (uint64_t)added->pages};
    return quire__lmdb_commit(l, txn, &more, rc);
}

/* After dropping records did not help: waits for readers of older snapshots, which usually takes
 * milliseconds. False: there is none, or it keeps reading. */
static bool wait_for_readers(quire_lmdb *l) {
    const struct timespec pause = {0, WAIT_MILLIS * 1000000L};
    MDB_envinfo info;
    int n = 0;
    if (mdb_env_info(l->env, &info) != 0)
        return false;
    while (quire__lmdb_is_held(l, info.me_last_txnid, &l->holder, &l->held)) {
        if (n++ == WAITS)
            return false;
        nanosleep(&pause, NULL);
    }
    l->held = 0;
    return n > 0;
}

/* Whether the reader that held the space is still reading: then dropping more would not help. */
static bool still_held(quire_lmdb *l) {
    size_t state;
    const bool is =
        l->held != 0 && quire__lmdb_is_held(l, l->held + 1, &l->holder, &state) && state == l->held;
    l->held = is ? l->held : 0;
    return is;
}

/* Drops what the batch needs, and writes it; drops a little more each time, because free pages may
 * not be contiguous. */
static int write_with_room(quire_lmdb *l, const batch *b, quire_store_added *added) {
    int rc = MDB_MAP_FULL;
    for (int i = 0; rc == MDB_MAP_FULL && i < TRIES; i++) {
        if (still_held(l))
            return QUIRE_LMDB_HELD;
        rc = quire__lmdb_make_room(l, b->room + (uint64_t)i * (l->limit / 16), b->keys, b->n_keys);
        if (rc == 0)
            rc = write_once(l, b, added);
        if (rc == MDB_MAP_FULL && wait_for_readers(l))
            rc = write_once(l, b, added);
    }
    return rc;
}

quire_status quire__lmdb_write(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                               const quire_backend_item *items, size_t n,
                               quire_store_added *added) {
    quire_lmdb *l = (quire_lmdb *)backend;
    batch b = {.keys = keys, .n_keys = n_keys, .items = items, .n = n};
    for (size_t i = 0; i < n; i++)
        b.room += quire__lmdb_room(l, items[i].n_bytes);
    int rc = write_once(l, &b, added), n_dead = 0;
    if (rc == MDB_MAP_FULL && mdb_reader_check(l->env, &n_dead) == 0 && n_dead > 0)
        rc = write_once(l, &b, added); /* killed readers had blocked the reuse of space */
    if (rc == MDB_MAP_FULL)
        rc = write_with_room(l, &b, added);
    if (rc == 0)
        return QUIRE_OK;
    *added = (quire_store_added){0};
    return quire__lmdb_failed(l, "take a page", rc);
}

quire_status quire__lmdb_remove(quire_backend *backend, const quire_record_id *ids, size_t n) {
    quire_lmdb *l = (quire_lmdb *)backend;
    MDB_txn *txn;
    int rc = quire__lmdb_begin(l, true, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "drop a page", rc);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint8_t bytes[QUIRE_LMDB_ID];
        MDB_val name = quire__lmdb_id(&ids[i], bytes), data;
        rc = mdb_get(txn, l->records, &name, &data);
        const uint64_t room = rc == 0 ? quire__lmdb_room(l, data.mv_size) : 0;
        if (rc == 0)
            rc = quire__lmdb_check_record(l, txn, &name);
        if (rc == 0)
            rc = mdb_del(txn, l->records, &name, NULL);
        quire_lmdb_node before;
        if (rc == 0)
            rc = quire__node_get(l, txn, &ids[i].key, &before);
        if (rc == 0) {
            quire_lmdb_node after = before;
            after.bytes = before.bytes > room ? before.bytes - room : 0;
            rc = quire__node_change(l, txn, &ids[i].key, &before, after.bytes > 0 ? &after : NULL);
            if (rc == 0 && after.bytes == 0 && before.depth == 0)
                rc = quire__lmdb_add_roots(l, txn, 0, 1);
        }
        if (rc == 0)
            rc = quire__lmdb_add_room(l, txn, 0, room);
        rc = rc == MDB_NOTFOUND ? 0 : rc; /* another process removed it first */
    }
    rc = quire__lmdb_commit(l, txn, NULL, rc);
    return rc ? quire__lmdb_failed(l, "drop a page", rc) : QUIRE_OK;
}

void quire__lmdb_count(quire_backend *backend, const quire_backend_counts *more) {
    quire_lmdb *l = (quire_lmdb *)backend;
    quire__counts_add(&l->counted, more);
}
