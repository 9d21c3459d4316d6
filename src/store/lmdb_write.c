/* Records into an LMDB store and out of it, and what goes when it is full. */
#include <string.h>
#include <time.h>

#include "store/lmdb_store.h"

enum { TRIES = 8 };

/* ------------------------------------------------------------------ dropping what was used longest ago */

/* Nodes used before `before` go until at most `target` bytes are left, or a step has gone. MDB_MAP_FULL: that cannot be. */
static int evict(quire_lmdb *l, MDB_txn *txn, uint64_t target, uint64_t before, uint64_t *n_dropped, bool *reached) {
    for (uint64_t gone = 0;;) {
        uint64_t bytes;
        int rc = quire__lmdb_get(l, txn, "bytes", &bytes);
        *reached = rc == 0 && bytes <= target;
        if (rc != 0 || *reached || gone >= l->step)
            return rc;
        MDB_cursor *cursor;
        MDB_val name, data;
        quire_store_key key;
        quire_lmdb_node n;
        rc = mdb_cursor_open(txn, l->uses, &cursor);
        if (rc != 0)
            return rc;
        rc = mdb_cursor_get(cursor, &name, &data, MDB_FIRST);
        if (rc == 0 && name.mv_size != QUIRE_LMDB_USE)
            rc = MDB_CORRUPTED;
        if (rc == 0)
            memcpy(key.byte, (const uint8_t *)name.mv_data + 12, sizeof key.byte);
        mdb_cursor_close(cursor);
        if (rc == 0)
            rc = quire__node_get(l, txn, &key, &n);
        if (rc == MDB_NOTFOUND || (rc == 0 && n.used >= before))
            return MDB_MAP_FULL;
        if (rc == 0)
            rc = quire__node_drop(l, txn, &key, &n);
        if (rc != 0)
            return rc;
        *n_dropped += n.depth > 0;
        gone += n.bytes;
    }
}

/* The rest is for LMDB: trees that are half empty, and pages of the last transactions, which it may not use yet. */
static uint64_t most_bytes(const quire_lmdb *l) { return l->limit - l->limit / 8 - QUIRE_LMDB_LEAST / 4; }

/* Transactions that leave `spare` bytes free, and let LMDB have them. */
static int make_room(quire_lmdb *l, uint64_t spare, uint64_t before) {
    for (int after = 0; after < 2;) { /* what one frees, the one after the next may use */
        MDB_txn *txn;
        uint64_t n_dropped = 0, moment;
        bool reached = false;
        int rc = quire__lmdb_begin(l, true, &txn);
        if (rc != 0)
            return rc;
        rc = spare >= most_bytes(l) ? MDB_MAP_FULL : evict(l, txn, most_bytes(l) - spare, before, &n_dropped, &reached);
        if (rc == 0)
            rc = quire__lmdb_moment(l, txn, &moment);
        const quire_keeper_counts more = {.evicted_pages = n_dropped};
        rc = quire__lmdb_commit(l, txn, &more, rc);
        if (rc != 0)
            return rc;
        after += reached;
    }
    return 0;
}

/* ------------------------------------------------------------------ writing */

static int add_item(quire_lmdb *l, MDB_txn *txn, const quire_keeper_item *item, quire_store_added *added) {
    uint8_t bytes[QUIRE_LMDB_ID];
    MDB_val name = quire__lmdb_id(&item->id, bytes), data = quire__lmdb_value(item->bytes, item->n_bytes);
    int rc = mdb_put(txn, l->records, &name, &data, MDB_NOOVERWRITE);
    if (rc != 0)
        return rc == MDB_KEYEXIST ? 0 : rc;
    quire_lmdb_node before, parent, after = {.depth = item->depth};
    rc = quire__node_get(l, txn, &item->id.key, &before);
    const bool is_new = rc == MDB_NOTFOUND;
    if (is_new) {
        rc = item->depth > 0 ? quire__node_get(l, txn, &item->parent, &parent) : MDB_NOTFOUND;
        if (rc == 0)
            after.used = parent.used;
        else if (rc == MDB_NOTFOUND)
            rc = quire__lmdb_moment(l, txn, &after.used);
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

/* Dropping must stop at what the items follow: their parents' last use. */
static int oldest_use(quire_lmdb *l, const quire_keeper_item *items, size_t n, uint64_t *used) {
    MDB_txn *txn = NULL;
    quire_lmdb_node parent;
    *used = UINT64_MAX;
    int rc = quire__lmdb_begin(l, false, &txn);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = quire__node_get(l, txn, &items[i].parent, &parent);
        if (rc == 0 && parent.used < *used)
            *used = parent.used;
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    if (txn)
        mdb_txn_abort(txn);
    return rc;
}

static int write_once(quire_lmdb *l, const quire_keeper_item *items, size_t n, quire_store_added *added) {
    MDB_txn *txn;
    *added = (quire_store_added){0};
    int rc = quire__lmdb_begin(l, true, &txn);
    if (rc != 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_item(l, txn, &items[i], added);
    uint64_t bytes = 0;
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "bytes", &bytes);
    if (rc == 0 && bytes > most_bytes(l))
        rc = MDB_MAP_FULL; /* as good as full: drop something first */
    const quire_keeper_counts more = {.added_pages = (uint64_t)added->pages};
    return quire__lmdb_commit(l, txn, &more, rc);
}

quire_status quire__lmdb_keep(quire_keeper *keeper, const quire_keeper_item *items, size_t n,
                              quire_store_added *added) {
    quire_lmdb *l = (quire_lmdb *)keeper;
    uint64_t wanted = 0, before = 0;
    for (size_t i = 0; i < n; i++)
        wanted += quire__lmdb_room(l, items[i].n_bytes);
    *added = (quire_store_added){0};
    int rc = write_once(l, items, n, added), n_dead = 0;
    if (rc == MDB_MAP_FULL && mdb_reader_check(l->env, &n_dead) == 0 && n_dead > 0)
        rc = write_once(l, items, n, added); /* readers that were killed had kept room from being used again */
    for (int i = 0; rc == MDB_MAP_FULL && i < TRIES; i++) {
        rc = oldest_use(l, items, n, &before);
        if (rc == 0) /* a little more each time: free pages may lie apart */
            rc = make_room(l, wanted + (uint64_t)i * (l->limit / 16), before);
        if (rc == 0)
            rc = write_once(l, items, n, added);
        else
            break;
    }
    if (rc == 0)
        return QUIRE_OK;
    *added = (quire_store_added){0};
    return quire__lmdb_failed(l, "take a page", rc);
}

quire_status quire__lmdb_forget(quire_keeper *keeper, const quire_record_id *ids, size_t n) {
    quire_lmdb *l = (quire_lmdb *)keeper;
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
        rc = rc == MDB_NOTFOUND ? 0 : rc; /* somebody else was faster */
    }
    rc = quire__lmdb_commit(l, txn, NULL, rc);
    return rc ? quire__lmdb_failed(l, "drop a page", rc) : QUIRE_OK;
}

/* A node of a text that is there and was noted long ago. */
static int is_stale(quire_lmdb *l, const quire_store_key *keys, size_t n, bool *stale) {
    MDB_txn *txn = NULL;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int rc = quire__lmdb_begin(l, false, &txn);
    *stale = false;
    for (size_t i = n; rc == 0 && i-- > 0;) { /* the deepest one is the oldest */
        quire_lmdb_node found;
        rc = quire__node_get(l, txn, &keys[i], &found);
        if (rc == 0) {
            const int64_t age = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 - (int64_t)found.used;
            *stale = age >= l->touch_micros || l->touch_micros == 0;
            break;
        }
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    if (txn)
        mdb_txn_abort(txn);
    return rc;
}

quire_status quire__lmdb_touch(quire_keeper *keeper, const quire_store_key *keys, size_t n) {
    quire_lmdb *l = (quire_lmdb *)keeper;
    bool stale;
    MDB_txn *txn;
    int rc = is_stale(l, keys, n, &stale);
    if (rc != 0 || !stale)
        return rc ? quire__lmdb_failed(l, "be read", rc) : QUIRE_OK;
    rc = quire__lmdb_begin(l, true, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "note a use", rc);
    uint64_t moment;
    rc = quire__lmdb_moment(l, txn, &moment);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        quire_lmdb_node before, after;
        rc = quire__node_get(l, txn, &keys[i], &before);
        if (rc == 0) {
            after = before;
            after.used = moment;
            rc = quire__node_change(l, txn, &keys[i], &before, &after);
        }
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    rc = quire__lmdb_commit(l, txn, NULL, rc);
    return rc ? quire__lmdb_failed(l, "note a use", rc) : QUIRE_OK;
}

void quire__lmdb_count(quire_keeper *keeper, const quire_keeper_counts *more) {
    quire_lmdb *l = (quire_lmdb *)keeper;
    quire__counts_add(&l->pending, more);
}
