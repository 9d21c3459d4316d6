/* Reads records of an LMDB store, straight from the map, without copying. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "store/lmdb_pages.h"
#include "store/millis.h"

/* A walk holds a snapshot for this long, plus one record: meanwhile dropped pages free no space. */
enum { HOLD_MILLIS = 20 };

quire_status quire__lmdb_has(quire_backend *backend, const quire_record_id *ids, size_t n,
                             bool *present) {
    quire_lmdb *l = (quire_lmdb *)backend;
    MDB_txn *txn;
    int rc = quire__lmdb_begin(l, false, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "be read", rc);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint8_t bytes[QUIRE_LMDB_ID];
        MDB_val name = quire__lmdb_id(&ids[i], bytes), data;
        rc = mdb_get(txn, l->records, &name, &data);
        present[i] = rc == 0;
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    mdb_txn_abort(txn);
    return rc ? quire__lmdb_failed(l, "be read", rc) : QUIRE_OK;
}

quire_status quire__lmdb_read(quire_backend *backend, const quire_record_id *id,
                              quire_backend_view view, void *user, bool *found) {
    quire_lmdb *l = (quire_lmdb *)backend;
    uint8_t bytes[QUIRE_LMDB_ID];
    MDB_val name = quire__lmdb_id(id, bytes), data;
    MDB_txn *txn;
    *found = false;
    int rc = quire__lmdb_begin(l, false, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "be read", rc);
    rc = mdb_get(txn, l->records, &name, &data);
    if (rc == 0) {
        *found = true;
        view(user, id, data.mv_data, data.mv_size, 0);
    }
    mdb_txn_abort(txn);
    return rc && rc != MDB_NOTFOUND ? quire__lmdb_failed(l, "be read", rc) : QUIRE_OK;
}

/* The position of a walk. */
typedef struct walk {
    quire_record_id last; /* if `started` */
    bool started, ended;
} walk;

/* Moves to the first record that has not been visited. */
static int first_record(MDB_cursor *cursor, const walk *w, MDB_val *name, MDB_val *data) {
    uint8_t bytes[QUIRE_LMDB_ID];
    if (!w->started)
        return mdb_cursor_get(cursor, name, data, MDB_FIRST);
    *name = quire__lmdb_id(&w->last, bytes);
    const MDB_val last = *name;
    int rc = mdb_cursor_get(cursor, name, data, MDB_SET_RANGE);
    if (rc == 0 && name->mv_size == last.mv_size && memcmp(name->mv_data, bytes, sizeof bytes) == 0)
        rc = mdb_cursor_get(cursor, name, data, MDB_NEXT);
    return rc;
}

static int walk_records(quire_lmdb *l, MDB_txn *txn, MDB_cursor *cursor, walk *w,
                        quire_backend_view view, void *user) {
    const int64_t end = quire__millis() + HOLD_MILLIS;
    MDB_val name, data;
    int rc = first_record(cursor, w, &name, &data);
    for (; rc == 0; rc = mdb_cursor_get(cursor, &name, &data, MDB_NEXT)) {
        quire_lmdb_node n = {0};
        if (!quire__lmdb_read_id(&name, &w->last))
            return MDB_CORRUPTED;
        w->started = true;
        rc = quire__node_get(l, txn, &w->last.key, &n);
        if (rc != 0 && rc != MDB_NOTFOUND)
            return rc;
        w->ended = !view(user, &w->last, data.mv_data, data.mv_size, (int64_t)(n.used / 1000000));
        if (w->ended || quire__millis() >= end)
            return 0;
    }
    w->ended = rc == MDB_NOTFOUND;
    return w->ended ? 0 : rc;
}

quire_status quire__lmdb_walk(quire_backend *backend, const quire_record_id *after,
                              quire_backend_view view, void *user) {
    quire_lmdb *l = (quire_lmdb *)backend;
    walk w = {.started = after != NULL};
    if (after)
        w.last = *after;
    while (!w.ended) {
        MDB_txn *txn;
        MDB_cursor *cursor;
        int rc = quire__lmdb_begin(l, false, &txn);
        if (rc != 0)
            return quire__lmdb_failed(l, "be read", rc);
        rc = mdb_cursor_open(txn, l->records, &cursor);
        if (rc == 0) {
            rc = walk_records(l, txn, cursor, &w, view, user);
            mdb_cursor_close(cursor);
        }
        mdb_txn_abort(txn);
        if (rc != 0)
            return quire__lmdb_failed(l, "be read", rc);
    }
    return QUIRE_OK;
}

quire_status quire__lmdb_check(quire_backend *backend, const quire_record_id *id) {
    uint8_t bytes[QUIRE_LMDB_ID];
    MDB_val name = {0};
    if (id)
        name = quire__lmdb_id(id, bytes);
    return quire__lmdb_check_now((quire_lmdb *)backend, id ? &name : NULL);
}

quire_status quire__lmdb_describe(quire_backend *backend, quire_backend_room *r,
                                  quire_backend_counts *counts) {
    quire_lmdb *l = (quire_lmdb *)backend;
    MDB_txn *txn;
    MDB_stat records, nodes;
    mdb_filehandle_t fd;
    struct stat file;
    uint64_t roots = 0, limit = 0;
    int rc = quire__lmdb_begin(l, false, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "be read", rc);
    rc = mdb_stat(txn, l->records, &records);
    if (rc == 0)
        rc = mdb_stat(txn, l->nodes, &nodes);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "bytes", &r->bytes);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "roots", &roots);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "limit", &limit);
    if (rc == 0)
        rc = quire__lmdb_counts(l, txn, counts);
    mdb_txn_abort(txn);
    if (rc == 0)
        rc = mdb_env_get_fd(l->env, &fd);
    if (rc != 0 || fstat(fd, &file) != 0)
        return quire__lmdb_failed(l, "be read", rc ? rc : errno);
    r->records = (int64_t)records.ms_entries;
    r->nodes = (int64_t)nodes.ms_entries;
    r->roots = (int64_t)roots;
    r->file_bytes = (uint64_t)file.st_size;
    r->max_bytes = limit ? limit : l->limit;
    quire__counts_add(counts, &l->counted);
    return QUIRE_OK;
}
