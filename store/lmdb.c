/* Opens an LMDB store, and refuses what is not one. */
#include "store/lmdb_pages.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

enum { LOCK_ROOM = 1 << 17 };

static const uint64_t DEFAULT_LIMIT = (uint64_t)8 << 30;
static const uint64_t LAST_MOMENT = (uint64_t)1 << 62; /* a later clock means damage */

static void close_lmdb(quire_backend *backend) {
    quire_lmdb *l = (quire_lmdb *)backend;
    static const quire_backend_counts none = {0};
    MDB_txn *txn;
    if (l->env && !l->backend.read_only &&
        (l->n_used > 0 || memcmp(&l->counted, &none, sizeof none) != 0) &&
        quire__lmdb_begin(l, true, &txn) == 0)
        quire__lmdb_commit(l, txn, NULL, 0); /* if it fails, only uses and statistics are lost */
    if (l->env)
        mdb_env_close(l->env);
    quire__lmdb_forget_waiting(l);
    free(l);
}

/* The contents of a directory before anything is opened. */
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

static quire_status check_directory(const char *directory, const quire_store_options *o,
                                    bool *fresh) {
    struct stat info;
    const bool there = stat(directory, &info) == 0;
    if (!there && errno != ENOENT)
        return quire__fail(QUIRE_E_IO, "cannot access '%.200s': %s", directory, strerror(errno));
    if (!there) {
        if (!o->create)
            return quire__fail(QUIRE_E_IO, "there is no directory '%.200s'", directory);
        if (mkdir(directory, 0700) != 0 && errno != EEXIST)
            return quire__fail(QUIRE_E_IO, "cannot create the directory '%.200s': %s", directory,
                               strerror(errno));
    } else if (!S_ISDIR(info.st_mode)) {
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s' is not a directory", directory);
    }
    const found what = look(directory);
    *fresh = what != STORE;
    if (what == NOTHING)
        return quire__fail(QUIRE_E_IO, "cannot read the directory '%.200s': %s", directory,
                           strerror(errno));
    if (what == OTHER_FILES || (what == EMPTY && !o->create))
        return quire__fail(QUIRE_E_FOREIGN, "there is no store in '%.200s'%s", directory,
                           what == OTHER_FILES ? ", which has other files: choose another directory"
                                               : "");
    return QUIRE_OK;
}

static quire_status open_failed(const char *directory, int rc) {
    switch (rc) {
    case MDB_INVALID:
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s/data.mdb' is not the file of a store",
                           directory);
    case MDB_VERSION_MISMATCH:
        return quire__fail(QUIRE_E_VERSION, "'%.200s' was written by another version of LMDB",
                           directory);
    case ENOSPC:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be written: the disk is full", directory);
    case ENOMEM:
        return quire__fail(
            QUIRE_E_NOMEM,
            "'%.200s' cannot be opened: there is not enough address space for a store of its "
            "size; lower its limit",
            directory);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
        return quire__fail(QUIRE_E_CORRUPT,
                           "'%.120s/data.mdb' is damaged. Remove the directory; its pages can be "
                           "computed again",
                           directory);
    case EACCES:
    case EPERM:
    case EROFS:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be read and written: %s", directory,
                           strerror(rc));
    default:
        return quire__fail(QUIRE_E_IO, "'%.200s' cannot be opened: %s", directory,
                           mdb_strerror(rc));
    }
}

/* Opens or creates the four trees and the format number, in one transaction, so that a killed
 * process leaves no incomplete store. */
static int open_trees(quire_lmdb *l, MDB_txn *txn, bool make, bool *foreign) {
    struct {
        const char *name;
        MDB_dbi *dbi;
    } trees[] = {
        {"meta", &l->meta}, {"records", &l->records}, {"nodes", &l->nodes}, {"uses", &l->uses}};
    MDB_dbi main_tree;
    MDB_stat info;
    int rc = mdb_dbi_open(txn, NULL, 0, &main_tree);
    if (rc == 0)
        rc = mdb_stat(txn, main_tree, &info);
    make = make && rc == 0 && info.ms_entries == 0;
    for (size_t i = 0; rc == 0 && i < sizeof trees / sizeof trees[0]; i++)
        rc = mdb_dbi_open(txn, trees[i].name, make ? MDB_CREATE : 0, trees[i].dbi);
    *foreign = rc == MDB_NOTFOUND || rc == MDB_INCOMPATIBLE;
    return rc == 0 && make ? quire__lmdb_put(l, txn, "format", QUIRE_STORE_FORMAT) : rc;
}

static quire_status read_meta(quire_lmdb *l, MDB_txn *txn, const char *directory, uint64_t *limit) {
    uint64_t format, clock;
    int rc = quire__lmdb_get(l, txn, "format", &format);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "limit", limit);
    if (rc == 0)
        rc = quire__lmdb_get(l, txn, "clock", &clock);
    if (rc == 0 && ((*limit != 0 && !quire__lmdb_is_limit(*limit)) || clock > LAST_MOMENT))
        rc = MDB_CORRUPTED;
    if (rc != 0)
        return open_failed(directory, rc);
    if (format > QUIRE_STORE_FORMAT)
        return quire__fail(
            QUIRE_E_VERSION,
            "the store '%.200s' has format %llu, which is newer; this program reads format %d",
            directory, (unsigned long long)format, QUIRE_STORE_FORMAT);
    if (format == 0)
        return quire__fail(QUIRE_E_FOREIGN, "'%.200s' is an LMDB database, but not a store",
                           directory);
    return QUIRE_OK;
}

/* *limit: 0 if the store has none yet. */
static quire_status open_trees_and_meta(quire_lmdb *l, const char *directory,
                                        const quire_store_options *o, uint64_t *limit) {
    MDB_txn *txn;
    bool foreign = false;
    int rc = quire__lmdb_begin(l, !o->read_only, &txn);
    if (rc != 0)
        return open_failed(directory, rc);
    rc = open_trees(l, txn, o->create && !o->read_only, &foreign);
    quire_status status =
        foreign ? quire__fail(QUIRE_E_FOREIGN, "'%.200s' is an LMDB database, but not a store",
                              directory)
        : rc    ? open_failed(directory, rc)
                : read_meta(l, txn, directory, limit);
    if (status != QUIRE_OK) {
        mdb_txn_abort(txn);
        return status;
    }
    rc = mdb_txn_commit(txn); /* a reading transaction too, so that its handles stay valid */
    return rc ? open_failed(directory, rc) : QUIRE_OK;
}

/* Maps the file before it writes the limit, so that a limit without enough address space changes
 * nothing. */
static int adopt_limit(quire_lmdb *l, uint64_t limit, bool is_new) {
    MDB_txn *txn;
    int rc = quire__lmdb_set_limit(l, limit);
    if (rc != 0 || !is_new || l->backend.read_only)
        return rc;
    l->limit = 0; /* else the transaction would first restore the limit on disk */
    rc = quire__lmdb_begin(l, true, &txn);
    l->limit = limit;
    if (rc != 0)
        return rc;
    return quire__lmdb_commit(l, txn, NULL, quire__lmdb_put(l, txn, "limit", limit));
}

/* LMDB writes to a new lock.mdb through a map: on a full disk that would kill the process. */
static bool no_room_for_lock(const char *directory) {
    char path[QUIRE_PATH_BYTES];
    struct stat info;
    const int n = snprintf(path, sizeof path, "%s/lock.mdb", directory);
    return n > 0 && n < (int)sizeof path && (stat(path, &info) != 0 || info.st_size == 0) &&
           quire__disk_is_full(directory, LOCK_ROOM);
}

/* The first map: as large as the file. By default LMDB would use the size that the file states,
 * whatever that is. */
static uint64_t first_map(const char *directory, const quire_store_options *o, bool fresh) {
    char path[QUIRE_PATH_BYTES];
    struct stat info;
    const int n = snprintf(path, sizeof path, "%s/data.mdb", directory);
    if (fresh || o->max_bytes)
        return o->max_bytes ? o->max_bytes : DEFAULT_LIMIT;
    return n > 0 && n < (int)sizeof path && stat(path, &info) == 0 &&
                   info.st_size > QUIRE_LMDB_LEAST
               ? (uint64_t)info.st_size
               : QUIRE_LMDB_LEAST;
}

static quire_status open_env(quire_lmdb *l, const char *directory, const quire_store_options *o,
                             bool fresh) {
    MDB_stat info;
    uint64_t limit = 0;
    int n_dead;
    if (no_room_for_lock(directory))
        return open_failed(directory, ENOSPC);
    QUIRE_TRY(quire__lmdb_check_meta(directory));
    int rc = mdb_env_create(&l->env);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(l->env, 4);
    if (rc == 0)
        rc = mdb_env_set_mapsize(l->env, (size_t)first_map(directory, o, fresh));
    if (rc == 0) /* NOMETASYNC: a power cut may lose the last transaction, never more */
        rc = mdb_env_open(l->env, directory,
                          MDB_NOTLS | MDB_NOMETASYNC | (o->read_only ? MDB_RDONLY : 0u), 0600);
    if (rc == 0)
        rc = mdb_env_stat(l->env, &info);
    if (rc != 0)
        return open_failed(directory, rc);
    l->page_bytes = info.ms_psize;
    mdb_reader_check(l->env, &n_dead); /* killed readers must not block the reuse of pages */
    QUIRE_TRY(quire__lmdb_check_now(l, NULL));
    QUIRE_TRY(open_trees_and_meta(l, directory, o, &limit));
    const uint64_t wanted = o->max_bytes ? o->max_bytes : limit ? limit : DEFAULT_LIMIT;
    rc = adopt_limit(l, wanted, wanted != limit);
    return rc ? open_failed(directory, rc) : QUIRE_OK;
}

quire_status quire__lmdb_open(quire_backend **result, const char *directory,
                              const quire_store_options *o) {
    bool fresh = false;
    if (o->max_bytes && !quire__lmdb_is_limit(o->max_bytes))
        return quire__fail(QUIRE_E_INVALID,
                           "a store cannot be limited to %llu bytes: the minimum is %llu",
                           (unsigned long long)o->max_bytes, (unsigned long long)QUIRE_LMDB_LEAST);
    QUIRE_TRY(check_directory(directory, o, &fresh));
    quire_lmdb *l = calloc(1, sizeof *l);
    if (!l)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    l->backend = (quire_backend){.read_only = o->read_only,
                                 .close = close_lmdb,
                                 .has = quire__lmdb_has,
                                 .read = quire__lmdb_read,
                                 .write = quire__lmdb_write,
                                 .remove = quire__lmdb_remove,
                                 .touch = quire__lmdb_touch,
                                 .walk = quire__lmdb_walk,
                                 .check = quire__lmdb_check,
                                 .count = quire__lmdb_count,
                                 .room = quire__lmdb_describe};
    l->touch_micros = (int64_t)o->touch_seconds * 1000000;
    const quire_status status = open_env(l, directory, o, fresh);
    if (status != QUIRE_OK) {
        close_lmdb(&l->backend);
        return status;
    }
    *result = &l->backend;
    return QUIRE_OK;
}
