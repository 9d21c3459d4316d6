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
 * The map is as large as the limit, so the file cannot grow beyond it. Records are dropped a little earlier, because
 * LMDB reuses the room of dropped ones only two transactions later, and needs some for its own trees. */
#include <dirent.h>
#include <errno.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "base/file.h"
#include "store/store.h"

enum { ID_BYTES = 34, NODE_BYTES = 24, USE_BYTES = 44, N_COUNTS = 5, TREE_BYTES = 384, TRIES = 8, LOCK_ROOM = 1 << 17 };

static const uint64_t DEFAULT_LIMIT = (uint64_t)8 << 30, LEAST_LIMIT = (uint64_t)1 << 20,
                      MOST_BATCH = (uint64_t)32 << 20;

typedef struct lmdb {
    quire_keeper keeper; /* first: what callers hold */
    MDB_env *env;
    MDB_dbi meta, records, nodes, uses;
    uint64_t limit;
    int64_t touch_micros;
    quire_keeper_counts pending; /* to be written with the next transaction */
} lmdb;

typedef struct node {
    uint64_t used; /* microseconds since 1970, a little later if several come at once */
    uint64_t bytes;
    uint32_t depth;
} node;

/* ------------------------------------------------------------------ errors */

static bool disk_is_full(const char *directory, uint64_t n_bytes) {
    struct statvfs disk;
    return statvfs(directory, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < n_bytes;
}

/* LMDB calls a write that fits in part an I/O error. */
static bool is_full(const lmdb *l) {
    const char *directory;
    return mdb_env_get_path(l->env, &directory) == 0 && disk_is_full(directory, LEAST_LIMIT);
}

static quire_status failed(const lmdb *l, const char *what, int rc) {
    switch (rc == EIO && is_full(l) ? ENOSPC : rc) {
    case ENOMEM:
        return quire__fail(QUIRE_E_NOMEM, "the store cannot %s: out of memory", what);
    case ENOSPC:
        return quire__fail(QUIRE_E_IO, "the store cannot %s: the disk is full", what);
    case MDB_MAP_FULL:
        return quire__fail(QUIRE_E_TOO_BIG, "the store cannot %s: its limit is reached and nothing older can go", what);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
        return quire__fail(QUIRE_E_CORRUPT, "the store cannot %s: its file is damaged", what);
    case MDB_READERS_FULL:
        return quire__fail(QUIRE_E_BUSY, "the store cannot %s: too many processes read it", what);
    default:
        return quire__fail(QUIRE_E_IO, "the store cannot %s: %s", what, mdb_strerror(rc));
    }
}

/* ------------------------------------------------------------------ small values */

static MDB_val value(const void *bytes, size_t n_bytes) {
    return (MDB_val){.mv_size = n_bytes, .mv_data = (void *)(uintptr_t)bytes}; /* LMDB does not write to it */
}

static MDB_val id_value(const quire_record_id *id, uint8_t bytes[ID_BYTES]) {
    memcpy(bytes, id->key.byte, sizeof id->key.byte);
    bytes[32] = (uint8_t)(id->piece >> 8);
    bytes[33] = (uint8_t)id->piece;
    return value(bytes, ID_BYTES);
}

static bool id_read(const MDB_val *from, quire_record_id *id) {
    const uint8_t *bytes = from->mv_data;
    if (from->mv_size != ID_BYTES)
        return false;
    memcpy(id->key.byte, bytes, sizeof id->key.byte);
    id->piece = (uint32_t)bytes[32] << 8 | bytes[33];
    return true;
}

static void use_write(const quire_store_key *key, const node *n, uint8_t bytes[USE_BYTES]) {
    for (int i = 0; i < 8; i++) /* big-endian, for LMDB's order */
        bytes[i] = (uint8_t)(n->used >> (56 - 8 * i));
    for (int i = 0; i < 4; i++)
        bytes[8 + i] = (uint8_t)(~n->depth >> (24 - 8 * i));
    memcpy(bytes + 12, key->byte, sizeof key->byte);
}

static int get_number(lmdb *l, MDB_txn *txn, const char *name, uint64_t *number) {
    MDB_val key = value(name, strlen(name)), found;
    const int rc = mdb_get(txn, l->meta, &key, &found);
    if (rc == 0 && found.mv_size != 8)
        return MDB_CORRUPTED;
    *number = rc == 0 ? quire__get64(found.mv_data) : 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int put_number(lmdb *l, MDB_txn *txn, const char *name, uint64_t number) {
    uint8_t bytes[8];
    quire__put64(bytes, number);
    MDB_val key = value(name, strlen(name)), data = value(bytes, sizeof bytes);
    return mdb_put(txn, l->meta, &key, &data, 0);
}

/* ------------------------------------------------------------------ transactions */

static int begin(lmdb *l, bool writes, MDB_txn **txn) {
    int rc = mdb_txn_begin(l->env, NULL, writes ? 0 : MDB_RDONLY, txn);
    if (rc == MDB_MAP_RESIZED) { /* another process has raised the limit */
        rc = mdb_env_set_mapsize(l->env, 0);
        if (rc == 0)
            rc = mdb_txn_begin(l->env, NULL, writes ? 0 : MDB_RDONLY, txn);
    }
    return rc;
}

static void counts_pack(const quire_keeper_counts *c, uint8_t *bytes) {
    const uint64_t all[N_COUNTS] = {c->hit_pages, c->missed_pages, c->added_pages, c->evicted_pages, c->bad_records};
    for (int i = 0; i < N_COUNTS; i++)
        quire__put64(bytes + 8 * i, all[i]);
}

static void counts_add(quire_keeper_counts *c, const quire_keeper_counts *more) {
    c->hit_pages += more->hit_pages;
    c->missed_pages += more->missed_pages;
    c->added_pages += more->added_pages;
    c->evicted_pages += more->evicted_pages;
    c->bad_records += more->bad_records;
}

static int counts_get(lmdb *l, MDB_txn *txn, quire_keeper_counts *c) {
    MDB_val key = value("counts", 6), found;
    const int rc = mdb_get(txn, l->meta, &key, &found);
    *c = (quire_keeper_counts){0};
    if (rc != 0 || found.mv_size != 8 * N_COUNTS)
        return rc == MDB_NOTFOUND ? 0 : rc ? rc : MDB_CORRUPTED;
    const uint8_t *at = found.mv_data;
    *c = (quire_keeper_counts){.hit_pages = quire__get64(at),
                               .missed_pages = quire__get64(at + 8),
                               .added_pages = quire__get64(at + 16),
                               .evicted_pages = quire__get64(at + 24),
                               .bad_records = quire__get64(at + 32)};
    return 0;
}

/* With what was counted since the last one, and `more` of this one. rc: what happened so far. */
static int commit(lmdb *l, MDB_txn *txn, const quire_keeper_counts *more, int rc) {
    quire_keeper_counts all;
    uint8_t bytes[8 * N_COUNTS];
    MDB_val key = value("counts", 6), data = value(bytes, sizeof bytes);
    if (rc == 0)
        rc = counts_get(l, txn, &all);
    if (rc == 0) {
        counts_add(&all, &l->pending);
        if (more)
            counts_add(&all, more);
        counts_pack(&all, bytes);
        rc = mdb_put(txn, l->meta, &key, &data, 0);
    }
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc;
    }
    rc = mdb_txn_commit(txn);
    if (rc == 0)
        l->pending = (quire_keeper_counts){0};
    return rc;
}

/* Later than any moment before, whatever the machine's clock does. */
static int next_moment(lmdb *l, MDB_txn *txn, uint64_t *moment) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t last;
    const int rc = get_number(l, txn, "clock", &last);
    *moment = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    if (*moment <= last)
        *moment = last + 1;
    return rc ? rc : put_number(l, txn, "clock", *moment);
}

/* ------------------------------------------------------------------ nodes */

static int node_get(lmdb *l, MDB_txn *txn, const quire_store_key *key, node *n) {
    MDB_val name = value(key->byte, sizeof key->byte), found;
    const int rc = mdb_get(txn, l->nodes, &name, &found);
    if (rc == 0 && found.mv_size != NODE_BYTES)
        return MDB_CORRUPTED;
    if (rc == 0) {
        const uint8_t *at = found.mv_data;
        *n = (node){.used = quire__get64(at), .bytes = quire__get64(at + 8), .depth = quire__get32(at + 16)};
    }
    return rc;
}

/* before NULL: it is new. after NULL: it goes. */
static int node_change(lmdb *l, MDB_txn *txn, const quire_store_key *key, const node *before, const node *after) {
    uint8_t use[USE_BYTES], bytes[NODE_BYTES] = {0};
    MDB_val name = value(key->byte, sizeof key->byte), entry = value(use, sizeof use),
            data = value(bytes, sizeof bytes), nothing = value(NULL, 0);
    int rc = 0;
    if (before && (!after || before->used != after->used)) {
        use_write(key, before, use);
        rc = mdb_del(txn, l->uses, &entry, NULL);
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    if (rc == 0 && after && (!before || before->used != after->used)) {
        use_write(key, after, use);
        rc = mdb_put(txn, l->uses, &entry, &nothing, 0);
    }
    if (rc != 0)
        return rc;
    if (!after)
        return mdb_del(txn, l->nodes, &name, NULL);
    quire__put64(bytes, after->used);
    quire__put64(bytes + 8, after->bytes);
    quire__put32(bytes + 16, after->depth);
    return mdb_put(txn, l->nodes, &name, &data, 0);
}

/* What a record takes of the file: a large one whole pages of its own, and its lines in the trees. */
static uint64_t room_of(lmdb *l, size_t n_bytes) {
    MDB_stat info;
    mdb_env_stat(l->env, &info);
    const uint64_t page = info.ms_psize;
    return TREE_BYTES + (n_bytes < page / 2 ? n_bytes : (n_bytes + 16 + page - 1) / page * page);
}

static int add_room(lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less) {
    uint64_t bytes;
    const int rc = get_number(l, txn, "bytes", &bytes);
    if (rc != 0)
        return rc;
    bytes += more;
    return put_number(l, txn, "bytes", bytes > less ? bytes - less : 0);
}

static int drop_records(lmdb *l, MDB_txn *txn, const quire_store_key *key) {
    uint8_t bytes[ID_BYTES];
    const quire_record_id first = {.key = *key};
    MDB_val name = id_value(&first, bytes), data;
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(txn, l->records, &cursor);
    if (rc != 0)
        return rc;
    while ((rc = mdb_cursor_get(cursor, &name, &data, MDB_SET_RANGE)) == 0 && name.mv_size == ID_BYTES &&
           memcmp(name.mv_data, key->byte, sizeof key->byte) == 0 && (rc = mdb_cursor_del(cursor, 0)) == 0)
        name = id_value(&first, bytes);
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int add_roots(lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less) {
    uint64_t n;
    const int rc = get_number(l, txn, "roots", &n);
    return rc ? rc : put_number(l, txn, "roots", n + more > less ? n + more - less : 0);
}

static int drop_node(lmdb *l, MDB_txn *txn, const quire_store_key *key, const node *n) {
    int rc = drop_records(l, txn, key);
    if (rc == 0)
        rc = node_change(l, txn, key, n, NULL);
    if (rc == 0 && n->depth == 0)
        rc = add_roots(l, txn, 0, 1);
    return rc ? rc : add_room(l, txn, 0, n->bytes);
}

/* ------------------------------------------------------------------ dropping what was used longest ago */

/* Nodes used before `before` go until at most `target` bytes are left. MDB_MAP_FULL: that cannot be. */
static int evict(lmdb *l, MDB_txn *txn, uint64_t target, uint64_t before, uint64_t *n_dropped) {
    for (;;) {
        uint64_t bytes;
        int rc = get_number(l, txn, "bytes", &bytes);
        if (rc != 0 || bytes <= target)
            return rc;
        MDB_cursor *cursor;
        MDB_val name, data;
        quire_store_key key;
        node n;
        rc = mdb_cursor_open(txn, l->uses, &cursor);
        if (rc != 0)
            return rc;
        rc = mdb_cursor_get(cursor, &name, &data, MDB_FIRST);
        if (rc == 0 && name.mv_size != USE_BYTES)
            rc = MDB_CORRUPTED;
        if (rc == 0)
            memcpy(key.byte, (const uint8_t *)name.mv_data + 12, sizeof key.byte);
        mdb_cursor_close(cursor);
        if (rc == 0)
            rc = node_get(l, txn, &key, &n);
        if (rc == MDB_NOTFOUND || (rc == 0 && n.used >= before))
            return MDB_MAP_FULL;
        if (rc == 0)
            rc = drop_node(l, txn, &key, &n);
        if (rc != 0)
            return rc;
        *n_dropped += n.depth > 0;
    }
}

/* The rest is for LMDB: trees that are half empty, and pages of the last transactions, which it may not use yet. */
static uint64_t most_bytes(const lmdb *l) { return l->limit - l->limit / 8 - LEAST_LIMIT / 4; }

/* Transactions that leave `spare` bytes free, and let LMDB have them. */
static int make_room(lmdb *l, uint64_t spare, uint64_t before) {
    for (int i = 0; i < 2; i++) { /* what one frees, the one after the next may use */
        MDB_txn *txn;
        uint64_t n_dropped = 0, moment;
        int rc = begin(l, true, &txn);
        if (rc != 0)
            return rc;
        rc = spare >= most_bytes(l) ? MDB_MAP_FULL : evict(l, txn, most_bytes(l) - spare, before, &n_dropped);
        if (rc == 0)
            rc = next_moment(l, txn, &moment);
        const quire_keeper_counts more = {.evicted_pages = n_dropped};
        rc = commit(l, txn, &more, rc);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ------------------------------------------------------------------ writing */

static int add_item(lmdb *l, MDB_txn *txn, const quire_keeper_item *item, quire_store_added *added) {
    uint8_t bytes[ID_BYTES];
    MDB_val name = id_value(&item->id, bytes), data = value(item->bytes, item->n_bytes);
    int rc = mdb_put(txn, l->records, &name, &data, MDB_NOOVERWRITE);
    if (rc != 0)
        return rc == MDB_KEYEXIST ? 0 : rc;
    node before, parent, after = {.depth = item->depth};
    rc = node_get(l, txn, &item->id.key, &before);
    const bool is_new = rc == MDB_NOTFOUND;
    if (is_new) {
        rc = item->depth > 0 ? node_get(l, txn, &item->parent, &parent) : MDB_NOTFOUND;
        if (rc == 0)
            after.used = parent.used;
        else if (rc == MDB_NOTFOUND)
            rc = next_moment(l, txn, &after.used);
    } else {
        after = before;
    }
    const uint64_t room = room_of(l, item->n_bytes);
    after.bytes += room;
    if (rc == 0)
        rc = node_change(l, txn, &item->id.key, is_new ? NULL : &before, &after);
    if (rc == 0)
        rc = add_room(l, txn, room, 0);
    if (rc == 0 && is_new && item->depth == 0)
        rc = add_roots(l, txn, 1, 0);
    added->pages += is_new && item->depth > 0;
    added->bytes += item->n_bytes;
    return rc;
}

/* Dropping must stop at what the items follow: their parents' last use. */
static int oldest_use(lmdb *l, const quire_keeper_item *items, size_t n, uint64_t *used) {
    MDB_txn *txn = NULL;
    node parent;
    *used = UINT64_MAX;
    int rc = begin(l, false, &txn);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = node_get(l, txn, &items[i].parent, &parent);
        if (rc == 0 && parent.used < *used)
            *used = parent.used;
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    if (txn)
        mdb_txn_abort(txn);
    return rc;
}

static int write_once(lmdb *l, const quire_keeper_item *items, size_t n, quire_store_added *added) {
    MDB_txn *txn;
    *added = (quire_store_added){0};
    int rc = begin(l, true, &txn);
    if (rc != 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_item(l, txn, &items[i], added);
    uint64_t bytes = 0;
    if (rc == 0)
        rc = get_number(l, txn, "bytes", &bytes);
    if (rc == 0 && bytes > most_bytes(l))
        rc = MDB_MAP_FULL; /* as good as full: drop something first */
    const quire_keeper_counts more = {.added_pages = (uint64_t)added->pages};
    return commit(l, txn, &more, rc);
}

static quire_status keep(quire_keeper *keeper, const quire_keeper_item *items, size_t n, quire_store_added *added) {
    lmdb *l = (lmdb *)keeper;
    uint64_t wanted = 0, before = 0;
    for (size_t i = 0; i < n; i++)
        wanted += room_of(l, items[i].n_bytes);
    *added = (quire_store_added){0};
    int rc = write_once(l, items, n, added);
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
    return failed(l, "take a page", rc);
}

static quire_status forget(quire_keeper *keeper, const quire_record_id *ids, size_t n) {
    lmdb *l = (lmdb *)keeper;
    MDB_txn *txn;
    int rc = begin(l, true, &txn);
    if (rc != 0)
        return failed(l, "drop a page", rc);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint8_t bytes[ID_BYTES];
        MDB_val name = id_value(&ids[i], bytes), data;
        rc = mdb_get(txn, l->records, &name, &data);
        const uint64_t room = rc == 0 ? room_of(l, data.mv_size) : 0;
        if (rc == 0)
            rc = mdb_del(txn, l->records, &name, NULL);
        node before;
        if (rc == 0)
            rc = node_get(l, txn, &ids[i].key, &before);
        if (rc == 0) {
            node after = before;
            after.bytes = before.bytes > room ? before.bytes - room : 0;
            rc = node_change(l, txn, &ids[i].key, &before, after.bytes > 0 ? &after : NULL);
            if (rc == 0 && after.bytes == 0 && before.depth == 0)
                rc = add_roots(l, txn, 0, 1);
        }
        if (rc == 0)
            rc = add_room(l, txn, 0, room);
        rc = rc == MDB_NOTFOUND ? 0 : rc; /* somebody else was faster */
    }
    rc = commit(l, txn, NULL, rc);
    return rc ? failed(l, "drop a page", rc) : QUIRE_OK;
}

/* A node of a text that is there and was noted long ago. */
static int is_stale(lmdb *l, const quire_store_key *keys, size_t n, bool *stale) {
    MDB_txn *txn = NULL;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int rc = begin(l, false, &txn);
    *stale = false;
    for (size_t i = n; rc == 0 && i-- > 0;) { /* the deepest one is the oldest */
        node found;
        rc = node_get(l, txn, &keys[i], &found);
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

static quire_status touch(quire_keeper *keeper, const quire_store_key *keys, size_t n) {
    lmdb *l = (lmdb *)keeper;
    bool stale;
    MDB_txn *txn;
    int rc = is_stale(l, keys, n, &stale);
    if (rc != 0 || !stale)
        return rc ? failed(l, "be read", rc) : QUIRE_OK;
    rc = begin(l, true, &txn);
    if (rc != 0)
        return failed(l, "note a use", rc);
    uint64_t moment;
    rc = next_moment(l, txn, &moment);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        node before, after;
        rc = node_get(l, txn, &keys[i], &before);
        if (rc == 0) {
            after = before;
            after.used = moment;
            rc = node_change(l, txn, &keys[i], &before, &after);
        }
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    rc = commit(l, txn, NULL, rc);
    return rc ? failed(l, "note a use", rc) : QUIRE_OK;
}

static void count(quire_keeper *keeper, const quire_keeper_counts *more) {
    lmdb *l = (lmdb *)keeper;
    counts_add(&l->pending, more);
}

/* ------------------------------------------------------------------ reading */

static quire_status has(quire_keeper *keeper, const quire_record_id *ids, size_t n, bool *present) {
    lmdb *l = (lmdb *)keeper;
    MDB_txn *txn;
    int rc = begin(l, false, &txn);
    if (rc != 0)
        return failed(l, "be read", rc);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint8_t bytes[ID_BYTES];
        MDB_val name = id_value(&ids[i], bytes), data;
        rc = mdb_get(txn, l->records, &name, &data);
        present[i] = rc == 0;
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    mdb_txn_abort(txn);
    return rc ? failed(l, "be read", rc) : QUIRE_OK;
}

static quire_status read_record(quire_keeper *keeper, const quire_record_id *id, quire_keeper_view view, void *user,
                                bool *found) {
    lmdb *l = (lmdb *)keeper;
    uint8_t bytes[ID_BYTES];
    MDB_val name = id_value(id, bytes), data;
    MDB_txn *txn;
    *found = false;
    int rc = begin(l, false, &txn);
    if (rc != 0)
        return failed(l, "be read", rc);
    rc = mdb_get(txn, l->records, &name, &data);
    if (rc == 0) {
        *found = true;
        view(user, id, data.mv_data, data.mv_size, 0);
    }
    mdb_txn_abort(txn);
    return rc && rc != MDB_NOTFOUND ? failed(l, "be read", rc) : QUIRE_OK;
}

static int walk_records(lmdb *l, MDB_txn *txn, MDB_cursor *cursor, quire_keeper_view view, void *user) {
    MDB_val name, data;
    int rc = mdb_cursor_get(cursor, &name, &data, MDB_FIRST);
    for (; rc == 0; rc = mdb_cursor_get(cursor, &name, &data, MDB_NEXT)) {
        quire_record_id id;
        node n = {0};
        if (!id_read(&name, &id))
            return MDB_CORRUPTED;
        rc = node_get(l, txn, &id.key, &n);
        if (rc != 0 && rc != MDB_NOTFOUND)
            return rc;
        if (!view(user, &id, data.mv_data, data.mv_size, (int64_t)(n.used / 1000000)))
            return 0;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static quire_status walk(quire_keeper *keeper, quire_keeper_view view, void *user) {
    lmdb *l = (lmdb *)keeper;
    MDB_txn *txn;
    MDB_cursor *cursor;
    int rc = begin(l, false, &txn);
    if (rc != 0)
        return failed(l, "be read", rc);
    rc = mdb_cursor_open(txn, l->records, &cursor);
    if (rc == 0) {
        rc = walk_records(l, txn, cursor, view, user);
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    return rc ? failed(l, "be read", rc) : QUIRE_OK;
}

static quire_status room(quire_keeper *keeper, quire_keeper_room *r, quire_keeper_counts *counts) {
    lmdb *l = (lmdb *)keeper;
    MDB_txn *txn;
    MDB_stat records, nodes;
    MDB_envinfo info;
    mdb_filehandle_t fd;
    struct stat file;
    uint64_t roots = 0;
    int rc = begin(l, false, &txn);
    if (rc != 0)
        return failed(l, "be read", rc);
    rc = mdb_stat(txn, l->records, &records);
    if (rc == 0)
        rc = mdb_stat(txn, l->nodes, &nodes);
    if (rc == 0)
        rc = get_number(l, txn, "bytes", &r->bytes);
    if (rc == 0)
        rc = get_number(l, txn, "roots", &roots);
    if (rc == 0)
        rc = counts_get(l, txn, counts);
    mdb_txn_abort(txn);
    if (rc == 0)
        rc = mdb_env_info(l->env, &info);
    if (rc == 0)
        rc = mdb_env_get_fd(l->env, &fd);
    if (rc != 0 || fstat(fd, &file) != 0)
        return failed(l, "be read", rc ? rc : errno);
    r->records = (int64_t)records.ms_entries;
    r->nodes = (int64_t)nodes.ms_entries;
    r->roots = (int64_t)roots;
    r->file_bytes = (uint64_t)file.st_size;
    r->max_bytes = l->limit;
    counts_add(counts, &l->pending);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ opening */

static void close_lmdb(quire_keeper *keeper) {
    lmdb *l = (lmdb *)keeper;
    static const quire_keeper_counts none = {0};
    MDB_txn *txn;
    if (l->env && !l->keeper.read_only && memcmp(&l->pending, &none, sizeof none) != 0 && begin(l, true, &txn) == 0)
        commit(l, txn, NULL, 0); /* statistics are not worth a failure */
    if (l->env)
        mdb_env_close(l->env);
    free(l);
}

/* What stands in a directory before anything is opened. */
typedef enum found { NOTHING, EMPTY, STORE, OTHER_FILES } found;

static found look(const char *directory) {
    DIR *dir = opendir(directory);
    if (!dir)
        return NOTHING;
    found what = EMPTY;
    for (struct dirent *entry; (entry = readdir(dir)) && what != STORE;) {
        const char *name = entry->d_name;
        if (strcmp(name, "data.mdb") == 0)
            what = STORE;
        else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lock.mdb") != 0)
            what = OTHER_FILES;
    }
    closedir(dir);
    return what;
}

static quire_status check_directory(const char *directory, const quire_store_options *o, bool *fresh) {
    struct stat info;
    if (stat(directory, &info) != 0 && errno == ENOENT) {
        if (!o->create)
            return quire__fail(QUIRE_E_IO, "there is no directory '%.200s'", directory);
        if (mkdir(directory, 0700) != 0 && errno != EEXIST)
            return quire__fail(QUIRE_E_IO, "cannot make the directory '%.200s': %s", directory, strerror(errno));
    } else if (!S_ISDIR(info.st_mode)) {
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s' is not a directory", directory);
    }
    const found what = look(directory);
    *fresh = what != STORE;
    if (what == NOTHING)
        return quire__fail(QUIRE_E_IO, "cannot look into '%.200s': %s", directory, strerror(errno));
    if (what == OTHER_FILES || (what == EMPTY && !o->create))
        return quire__fail(QUIRE_E_FOREIGN, "there is no store in '%.200s'%s", directory,
                           what == OTHER_FILES ? ", but there are other files" : "");
    return QUIRE_OK;
}

static quire_status open_failed(const char *directory, int rc) {
    switch (rc) {
    case MDB_INVALID:
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s/data.mdb' is not the file of a store", directory);
    case MDB_VERSION_MISMATCH:
        return quire__fail(QUIRE_E_VERSION, "'%.200s' was written by another version of LMDB", directory);
    case ENOSPC:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be written: the disk is full", directory);
    case EACCES:
    case EPERM:
    case EROFS:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be read and written: %s", directory, strerror(rc));
    default:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be opened: %s", directory, mdb_strerror(rc));
    }
}

/* The four trees, and the format; all in one transaction, so that a killed process leaves nothing half made. */
static int open_trees(lmdb *l, MDB_txn *txn, bool make, bool *foreign) {
    struct {
        const char *name;
        MDB_dbi *dbi;
    } trees[] = {{"meta", &l->meta}, {"records", &l->records}, {"nodes", &l->nodes}, {"uses", &l->uses}};
    MDB_dbi main_tree;
    MDB_stat info;
    int rc = mdb_dbi_open(txn, NULL, 0, &main_tree);
    if (rc == 0)
        rc = mdb_stat(txn, main_tree, &info);
    make = make && rc == 0 && info.ms_entries == 0;
    for (size_t i = 0; rc == 0 && i < sizeof trees / sizeof trees[0]; i++)
        rc = mdb_dbi_open(txn, trees[i].name, make ? MDB_CREATE : 0, trees[i].dbi);
    *foreign = rc == MDB_NOTFOUND || rc == MDB_INCOMPATIBLE;
    return rc == 0 && make ? put_number(l, txn, "format", QUIRE_STORE_FORMAT) : rc;
}

static quire_status read_meta(lmdb *l, MDB_txn *txn, const char *directory, const quire_store_options *o) {
    uint64_t format, limit;
    int rc = get_number(l, txn, "format", &format);
    if (rc == 0)
        rc = get_number(l, txn, "limit", &limit);
    if (rc != 0)
        return open_failed(directory, rc);
    if (format > QUIRE_STORE_FORMAT)
        return quire__fail(QUIRE_E_VERSION, "the store '%.200s' is of format %llu, which is newer; this program has %d",
                           directory, (unsigned long long)format, QUIRE_STORE_FORMAT);
    if (format == 0)
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s' holds something else than a store", directory);
    l->limit = o->max_bytes ? o->max_bytes : limit ? limit : DEFAULT_LIMIT;
    if (l->limit != limit && !l->keeper.read_only)
        rc = put_number(l, txn, "limit", l->limit);
    return rc ? open_failed(directory, rc) : QUIRE_OK;
}

/* LMDB reads through a map: a file that ends too early would end the process. */
static quire_status check_length(lmdb *l, const char *directory) {
    MDB_envinfo info;
    MDB_stat stat;
    mdb_filehandle_t fd;
    struct stat file;
    if (mdb_env_info(l->env, &info) != 0 || mdb_env_stat(l->env, &stat) != 0 || mdb_env_get_fd(l->env, &fd) != 0 ||
        fstat(fd, &file) != 0)
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be looked at", directory);
    if ((uint64_t)file.st_size < ((uint64_t)info.me_last_pgno + 1) * stat.ms_psize)
        return quire__fail(QUIRE_E_TRUNCATED, "'%.200s/data.mdb' is cut off", directory);
    return QUIRE_OK;
}

static quire_status open_trees_and_meta(lmdb *l, const char *directory, const quire_store_options *o) {
    MDB_txn *txn;
    bool foreign = false;
    int rc = begin(l, !o->read_only, &txn);
    if (rc != 0)
        return open_failed(directory, rc);
    rc = open_trees(l, txn, o->create && !o->read_only, &foreign);
    quire_status status = foreign
                              ? quire__fail(QUIRE_E_FOREIGN, "'%.200s' holds something else than a store", directory)
                          : rc ? open_failed(directory, rc)
                               : read_meta(l, txn, directory, o);
    if (status != QUIRE_OK) {
        mdb_txn_abort(txn);
        return status;
    }
    rc = mdb_txn_commit(txn); /* also keeps the handles of a reading transaction */
    return rc ? open_failed(directory, rc) : QUIRE_OK;
}

/* LMDB writes to a new lock.mdb through a map: if the disk has no room for it, that would end the process. */
static bool no_room_for_lock(const char *directory) {
    char path[QUIRE_PATH_BYTES];
    struct stat info;
    const int n = snprintf(path, sizeof path, "%s/lock.mdb", directory);
    return n > 0 && n < (int)sizeof path && (stat(path, &info) != 0 || info.st_size == 0) &&
           disk_is_full(directory, LOCK_ROOM);
}

static quire_status open_env(lmdb *l, const char *directory, const quire_store_options *o, bool fresh) {
    if (no_room_for_lock(directory))
        return open_failed(directory, ENOSPC);
    int rc = mdb_env_create(&l->env);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(l->env, 4);
    if (rc == 0 && (fresh || o->max_bytes))
        rc = mdb_env_set_mapsize(l->env, (size_t)(o->max_bytes ? o->max_bytes : DEFAULT_LIMIT));
    if (rc == 0) /* NOMETASYNC: a power cut may cost the last transaction, never more */
        rc = mdb_env_open(l->env, directory, MDB_NOTLS | MDB_NOMETASYNC | (o->read_only ? MDB_RDONLY : 0u), 0600);
    if (rc != 0)
        return open_failed(directory, rc);
    int n_dead;
    mdb_reader_check(l->env, &n_dead); /* killed processes must not keep old pages from being used again */
    QUIRE_TRY(check_length(l, directory));
    QUIRE_TRY(open_trees_and_meta(l, directory, o));
    rc = mdb_env_set_mapsize(l->env, (size_t)l->limit);
    return rc ? open_failed(directory, rc) : QUIRE_OK;
}

quire_status quire__lmdb_open(quire_keeper **result, const char *directory, const quire_store_options *o) {
    bool fresh = false;
    if (o->max_bytes && (o->max_bytes < LEAST_LIMIT || o->max_bytes > SIZE_MAX / 2))
        return quire__fail(QUIRE_E_INVALID, "a store cannot have %llu bytes: at least %llu",
                           (unsigned long long)o->max_bytes, (unsigned long long)LEAST_LIMIT);
    QUIRE_TRY(check_directory(directory, o, &fresh));
    lmdb *l = calloc(1, sizeof *l);
    if (!l)
        return quire__fail(QUIRE_E_NOMEM, "no memory to open a store");
    l->keeper = (quire_keeper){.read_only = o->read_only,
                               .close = close_lmdb,
                               .has = has,
                               .read = read_record,
                               .write = keep,
                               .remove = forget,
                               .touch = touch,
                               .walk = walk,
                               .count = count,
                               .room = room};
    l->touch_micros = (int64_t)o->touch_seconds * 1000000;
    const quire_status status = open_env(l, directory, o, fresh);
    if (status != QUIRE_OK) {
        close_lmdb(&l->keeper);
        return status;
    }
    const uint64_t part = l->limit / 16;
    l->keeper.batch_bytes = (size_t)(part < MOST_BATCH ? part : MOST_BATCH);
    *result = &l->keeper;
    return QUIRE_OK;
}
