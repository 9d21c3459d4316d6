/* Errors, transactions, numbers and nodes of the LMDB backend. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "store/lmdb_pages.h"

enum { N_COUNTS = 5, TREE_BYTES = 384, MOST_BATCH = 32 << 20 };

/* ------------------------------------------------------------------ errors */

bool quire__disk_is_full(const char *directory, uint64_t n_bytes) {
    struct statvfs disk;
    return statvfs(directory, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < n_bytes;
}

/* LMDB reports a partial write as an I/O error. */
static bool is_full(const quire_lmdb *l) {
    const char *directory;
    return mdb_env_get_path(l->env, &directory) == 0 &&
           quire__disk_is_full(directory, QUIRE_LMDB_LEAST);
}

/* The oldest reader. */
typedef struct reader {
    int process;
    size_t state;
} reader;

/* LMDB lists its readers as lines of text: process, thread, snapshot; "-" for a reader without
 * one. */
static int see_reader(const char *line, void *user) {
    reader *oldest = user, r;
    if (sscanf(line, "%d %*s %zu", &r.process, &r.state) == 2 && r.state < oldest->state)
        *oldest = r;
    return 0;
}

bool quire__lmdb_is_held(const quire_lmdb *l, size_t state, int *process, size_t *held) {
    reader oldest = {.state = SIZE_MAX};
    mdb_reader_list(l->env, see_reader, &oldest);
    *process = oldest.process;
    *held = oldest.state;
    return oldest.state < state;
}

static quire_status held(const char *what, int process) {
    return quire__fail(
        QUIRE_E_BUSY,
        "the store cannot %s: process %d is reading an old snapshot of it, and until it is done no "
        "space becomes free. Try again later, or end that process",
        what, process);
}

/* LMDB found no space: the limit is reached, or a reader holds it. */
static quire_status no_room(const quire_lmdb *l, const char *what) {
    MDB_envinfo info;
    size_t state;
    int process;
    if (mdb_env_info(l->env, &info) == 0 &&
        quire__lmdb_is_held(l, info.me_last_txnid, &process, &state))
        return held(what, process);
    return quire__fail(QUIRE_E_TOO_BIG, "the store cannot %s: its limit is reached", what);
}

quire_status quire__lmdb_failed(const quire_lmdb *l, const char *what, int rc) {
    if (l->unmapped)
        return quire__fail(l->unmapped == ENOMEM ? QUIRE_E_NOMEM : QUIRE_E_IO,
                           "the store cannot %s: its file could not be mapped (%s); open it again",
                           what, mdb_strerror(l->unmapped));
    switch (rc == EIO && is_full(l) ? ENOSPC : rc) {
    case ENOMEM:
        return quire__fail(QUIRE_E_NOMEM, "the store cannot %s: out of memory", what);
    case ENOSPC:
        return quire__fail(QUIRE_E_IO, "the store cannot %s: the disk is full", what);
    case MDB_MAP_FULL:
        return no_room(l, what);
    case QUIRE_LMDB_NOTHING_OLDER:
        return quire__fail(
            QUIRE_E_TOO_BIG,
            "the store cannot %s: its limit is reached, and there is nothing older to drop", what);
    case QUIRE_LMDB_HELD:
        return held(what, l->holder);
    case QUIRE_LMDB_REPORTED:
        return l->reported;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
        return quire__fail(
            QUIRE_E_CORRUPT,
            "the store cannot %s: its file is damaged. Remove its directory; its pages can be "
            "computed again",
            what);
    case MDB_READERS_FULL:
        return quire__fail(
            QUIRE_E_BUSY, "the store cannot %s: too many processes are reading it; try again later",
            what);
    default:
        return quire__fail(QUIRE_E_IO, "the store cannot %s: %s", what, mdb_strerror(rc));
    }
}

/* ------------------------------------------------------------------ small values */

MDB_val quire__lmdb_id(const quire_record_id *id, uint8_t bytes[QUIRE_LMDB_ID]) {
    memcpy(bytes, id->key.byte, sizeof id->key.byte);
    bytes[32] = (uint8_t)(id->piece >> 8);
    bytes[33] = (uint8_t)id->piece;
    return quire__lmdb_value(bytes, QUIRE_LMDB_ID);
}

bool quire__lmdb_read_id(const MDB_val *from, quire_record_id *id) {
    const uint8_t *bytes = from->mv_data;
    if (from->mv_size != QUIRE_LMDB_ID)
        return false;
    memcpy(id->key.byte, bytes, sizeof id->key.byte);
    id->piece = (uint32_t)bytes[32] << 8 | bytes[33];
    return true;
}

void quire__use_write(const quire_store_key *key, const quire_lmdb_node *n,
                      uint8_t bytes[QUIRE_LMDB_USE]) {
    for (int i = 0; i < 8; i++) /* big-endian, for LMDB's order */
        bytes[i] = (uint8_t)(n->used >> (56 - 8 * i));
    for (int i = 0; i < 4; i++)
        bytes[8 + i] = (uint8_t)(~n->depth >> (24 - 8 * i));
    memcpy(bytes + 12, key->byte, sizeof key->byte);
}

int quire__lmdb_get(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t *number) {
    MDB_val key = quire__lmdb_value(name, strlen(name)), found;
    const int rc = mdb_get(txn, l->meta, &key, &found);
    if (rc == 0 && found.mv_size != 8)
        return MDB_CORRUPTED;
    *number = rc == 0 ? quire__get64(found.mv_data) : 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

int quire__lmdb_put(quire_lmdb *l, MDB_txn *txn, const char *name, uint64_t number) {
    uint8_t bytes[8];
    quire__put64(bytes, number);
    MDB_val key = quire__lmdb_value(name, strlen(name)),
            data = quire__lmdb_value(bytes, sizeof bytes);
    return mdb_put(txn, l->meta, &key, &data, 0);
}

/* ------------------------------------------------------------------ transactions */

/* If this fails, the old map is lost too, and LMDB must not be called any more. */
static int map(quire_lmdb *l, uint64_t n_bytes) {
    const int rc = mdb_env_set_mapsize(l->env, (size_t)n_bytes);
    l->unmapped = rc;
    return rc;
}

int quire__lmdb_used(quire_lmdb *l, uint64_t *bytes) {
    MDB_envinfo info;
    const int rc = l->unmapped ? l->unmapped : mdb_env_info(l->env, &info);
    *bytes = rc == 0 ? ((uint64_t)info.me_last_pgno + 1) * l->page_bytes : 0;
    return rc;
}

static int begin(quire_lmdb *l, bool writes, MDB_txn **txn) {
    const unsigned flags = writes ? 0 : MDB_RDONLY;
    uint64_t used;
    if (l->unmapped)
        return l->unmapped;
    int rc = mdb_txn_begin(l->env, NULL, flags, txn);
    /* Another process has written beyond the end of our map, and may write more. */
    if (rc == MDB_MAP_RESIZED) {
        l->narrow = true;
        rc = quire__lmdb_used(l, &used);
        if (rc == 0)
            rc = map(l, 2 * used);
        if (rc == 0)
            rc = mdb_txn_begin(l->env, NULL, flags, txn);
    }
    return rc;
}

int quire__lmdb_set_limit(quire_lmdb *l, uint64_t limit) {
    const uint64_t part = limit / 16;
    uint64_t used;
    const int rc = quire__lmdb_used(l, &used);
    if (rc != 0)
        return rc;
    l->limit = limit;
    l->backend.batch_bytes = (size_t)(part < MOST_BATCH ? part : MOST_BATCH);
    /* A file that is already larger than the limit needs space for the transactions that drop the
     * excess, one step at a time. */
    const bool too_large = used > limit;
    l->step = too_large ? used / 128 + QUIRE_LMDB_LEAST / 4 : UINT64_MAX;
    l->narrow = false;
    return map(l, too_large ? used + 8 * l->step : limit);
}

/* Another process may have changed the limit: follow it, or pages that fit would be dropped. */
static int begin_writing(quire_lmdb *l, MDB_txn **txn) {
    uint64_t limit = 0;
    int rc = begin(l, true, txn);
    if (rc != 0 || l->limit == 0) /* the store is being opened */
        return rc;
    rc = quire__lmdb_get(l, *txn, "limit", &limit);
    if (rc == 0 && limit != 0 && !quire__lmdb_is_limit(limit))
        rc = MDB_CORRUPTED;
    if (rc == 0 && (limit == l->limit || limit == 0) && !l->narrow)
        return 0;
    mdb_txn_abort(*txn); /* the map can be resized only between transactions */
    *txn = NULL;
    if (rc == 0)
        rc = quire__lmdb_set_limit(l, limit ? limit : l->limit);
    return rc == 0 ? begin(l, true, txn) : rc;
}

int quire__lmdb_begin(quire_lmdb *l, bool writes, MDB_txn **txn) {
    if (!writes)
        return begin(l, false, txn);
    int rc = begin_writing(l, txn);
    l->moment = l->moment_on_disk;
    if (rc != 0 || l->n_used == 0)
        return rc;
    rc = quire__lmdb_use_waiting(l, *txn);
    if (rc == 0)
        return 0;
    mdb_txn_abort(*txn); /* losing a use does no harm */
    quire__lmdb_forget_waiting(l);
    l->moment = l->moment_on_disk;
    return begin_writing(l, txn);
}

static void counts_pack(const quire_backend_counts *c, uint8_t *bytes) {
    const uint64_t all[N_COUNTS] = {c->hit_pages, c->missed_pages, c->added_pages, c->evicted_pages,
                                    c->bad_records};
    for (int i = 0; i < N_COUNTS; i++)
        quire__put64(bytes + 8 * i, all[i]);
}

int quire__lmdb_counts(quire_lmdb *l, MDB_txn *txn, quire_backend_counts *c) {
    MDB_val key = quire__lmdb_value("counts", 6), found;
    const int rc = mdb_get(txn, l->meta, &key, &found);
    *c = (quire_backend_counts){0};
    if (rc != 0 || found.mv_size != 8 * N_COUNTS)
        return rc == MDB_NOTFOUND ? 0 : rc ? rc : MDB_CORRUPTED;
    const uint8_t *at = found.mv_data;
    *c = (quire_backend_counts){.hit_pages = quire__get64(at),
                                .missed_pages = quire__get64(at + 8),
                                .added_pages = quire__get64(at + 16),
                                .evicted_pages = quire__get64(at + 24),
                                .bad_records = quire__get64(at + 32)};
    return 0;
}

int quire__lmdb_commit(quire_lmdb *l, MDB_txn *txn, const quire_backend_counts *more, int rc) {
    quire_backend_counts all;
    uint8_t bytes[8 * N_COUNTS];
    MDB_val key = quire__lmdb_value("counts", 6), data = quire__lmdb_value(bytes, sizeof bytes);
    if (rc == 0)
        rc = quire__lmdb_counts(l, txn, &all);
    if (rc == 0) {
        quire__counts_add(&all, &l->counted);
        if (more)
            quire__counts_add(&all, more);
        counts_pack(&all, bytes);
        rc = mdb_put(txn, l->meta, &key, &data, 0);
    }
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc;
    }
    rc = mdb_txn_commit(txn);
    if (rc == 0) {
        l->counted = (quire_backend_counts){0};
        l->moment_on_disk = l->moment;
        quire__lmdb_forget_waiting(l);
    }
    return rc;
}

/* ------------------------------------------------------------------ nodes */

int quire__node_get(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key, quire_lmdb_node *n) {
    MDB_val name = quire__lmdb_value(key->byte, sizeof key->byte), found;
    const int rc = mdb_get(txn, l->nodes, &name, &found);
    if (rc == 0 && found.mv_size != QUIRE_LMDB_NODE)
        return MDB_CORRUPTED;
    if (rc == 0) {
        const uint8_t *at = found.mv_data;
        *n = (quire_lmdb_node){.used = quire__get64(at),
                               .bytes = quire__get64(at + 8),
                               .depth = quire__get32(at + 16)};
    }
    return rc;
}

int quire__node_change(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                       const quire_lmdb_node *before, const quire_lmdb_node *after) {
    uint8_t use[QUIRE_LMDB_USE], bytes[QUIRE_LMDB_NODE] = {0};
    MDB_val name = quire__lmdb_value(key->byte, sizeof key->byte),
            entry = quire__lmdb_value(use, sizeof use),
            data = quire__lmdb_value(bytes, sizeof bytes), nothing = quire__lmdb_value(NULL, 0);
    int rc = 0;
    if (before && (!after || before->used != after->used)) {
        quire__use_write(key, before, use);
        rc = mdb_del(txn, l->uses, &entry, NULL);
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    if (rc == 0 && after && (!before || before->used != after->used)) {
        quire__use_write(key, after, use);
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

uint64_t quire__lmdb_room(quire_lmdb *l, size_t n_bytes) {
    const uint64_t page = l->page_bytes;
    return TREE_BYTES + (n_bytes < page / 2 ? n_bytes : (n_bytes + 16 + page - 1) / page * page);
}

int quire__lmdb_add_room(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less) {
    uint64_t bytes;
    const int rc = quire__lmdb_get(l, txn, "bytes", &bytes);
    if (rc != 0)
        return rc;
    bytes += more;
    return quire__lmdb_put(l, txn, "bytes", bytes > less ? bytes - less : 0);
}

static int drop_records(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key) {
    uint8_t bytes[QUIRE_LMDB_ID];
    const quire_record_id first = {.key = *key};
    MDB_val name = quire__lmdb_id(&first, bytes), data;
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(txn, l->records, &cursor);
    if (rc != 0)
        return rc;
    while ((rc = mdb_cursor_get(cursor, &name, &data, MDB_SET_RANGE)) == 0 &&
           name.mv_size == QUIRE_LMDB_ID &&
           memcmp(name.mv_data, key->byte, sizeof key->byte) == 0 &&
           (rc = quire__lmdb_check_record(l, txn, &name)) == 0 &&
           (rc = mdb_cursor_del(cursor, 0)) == 0)
        name = quire__lmdb_id(&first, bytes);
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

int quire__lmdb_add_roots(quire_lmdb *l, MDB_txn *txn, uint64_t more, uint64_t less) {
    uint64_t n;
    const int rc = quire__lmdb_get(l, txn, "roots", &n);
    return rc ? rc : quire__lmdb_put(l, txn, "roots", n + more > less ? n + more - less : 0);
}

int quire__node_drop(quire_lmdb *l, MDB_txn *txn, const quire_store_key *key,
                     const quire_lmdb_node *n) {
    int rc = drop_records(l, txn, key);
    if (rc == 0)
        rc = quire__node_change(l, txn, key, n, NULL);
    if (rc == 0 && n->depth == 0)
        rc = quire__lmdb_add_roots(l, txn, 0, 1);
    return rc ? rc : quire__lmdb_add_room(l, txn, 0, n->bytes);
}
