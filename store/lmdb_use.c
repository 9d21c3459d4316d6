/* Records when texts were used, and evicts the least recently used ones. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/lmdb_store.h"

static uint64_t now_micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ------------------------------------------------------------------ moments */

/* Whether a text equals the one used last, or continues it. */
static bool continues(const quire_lmdb_moment *last, const quire_store_key *keys, size_t n) {
    return last->n > 0 && last->n <= n && quire__same_key(&last->key, &keys[last->n - 1]);
}

int quire__lmdb_use(quire_lmdb *l, MDB_txn *txn, const quire_store_key *keys, size_t n,
                    uint64_t *moment) {
    quire_lmdb_moment *last = &l->moment;
    uint64_t clock;
    size_t first = 0;
    int rc = quire__lmdb_get(l, txn, "clock", &clock);
    if (rc != 0)
        return rc;
    if (clock == last->moment && continues(last, keys, n)) {
        /* Nothing else was used since: the first nodes already have this timestamp. */
        *moment = clock;
        first = last->n;
    } else {
        *moment = now_micros();
        if (*moment <= clock) /* always increasing, whatever the machine's clock does */
            *moment = clock + 1;
        rc = quire__lmdb_put(l, txn, "clock", *moment);
    }
    for (size_t i = first; rc == 0 && i < n; i++) {
        quire_lmdb_node before, after;
        rc = quire__node_get(l, txn, &keys[i], &before);
        if (rc == 0 && before.used != *moment) {
            after = before;
            after.used = *moment;
            rc = quire__node_change(l, txn, &keys[i], &before, &after);
        }
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    *last = (quire_lmdb_moment){.key = keys[n - 1], .n = n, .moment = *moment};
    return rc;
}

/* ------------------------------------------------------------------ uses that wait in memory */

int quire__lmdb_use_waiting(quire_lmdb *l, MDB_txn *txn) {
    int rc = 0;
    uint64_t unused;
    for (size_t i = 0; rc == 0 && i < l->n_used; i++)
        rc = quire__lmdb_use(l, txn, l->used[i].key, l->used[i].n, &unused);
    return rc;
}

void quire__lmdb_forget_waiting(quire_lmdb *l) {
    for (size_t i = 0; i < l->n_used; i++)
        free(l->used[i].key);
    l->n_used = 0;
}

/* A text replaces the texts that it continues. If memory runs out its use is lost, which does no
 * harm. */
static void remember(quire_lmdb *l, const quire_store_key *keys, size_t n) {
    size_t n_left = 0;
    for (size_t i = 0; i < l->n_used; i++) {
        const quire_lmdb_text *t = &l->used[i];
        if (t->n <= n && quire__same_key(&t->key[t->n - 1], &keys[t->n - 1]))
            free(t->key);
        else
            l->used[n_left++] = *t;
    }
    l->n_used = n_left;
    quire_store_key *own = malloc(n * sizeof *own);
    if (!own)
        return;
    memcpy(own, keys, n * sizeof *own);
    l->used[l->n_used++] = (quire_lmdb_text){.key = own, .n = n};
}

/* Whether the last use on disk is so old that the new one must be written now. */
static int is_stale(quire_lmdb *l, const quire_store_key *keys, size_t n, bool *stale) {
    MDB_txn *txn;
    quire_lmdb_node found;
    *stale = false;
    int rc = quire__lmdb_begin(l, false, &txn);
    if (rc != 0)
        return rc;
    for (rc = MDB_NOTFOUND; rc == MDB_NOTFOUND && n-- > 0;) /* the deepest node is the oldest */
        rc = quire__node_get(l, txn, &keys[n], &found);
    mdb_txn_abort(txn);
    if (rc == 0) {
        const uint64_t now = now_micros();
        *stale = l->touch_micros == 0 ||
                 (now > found.used && now - found.used >= (uint64_t)l->touch_micros);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

quire_status quire__lmdb_touch(quire_backend *backend, const quire_store_key *keys, size_t n) {
    quire_lmdb *l = (quire_lmdb *)backend;
    bool stale;
    MDB_txn *txn;
    uint64_t moment;
    int rc = is_stale(l, keys, n, &stale);
    if (rc != 0)
        return quire__lmdb_failed(l, "be read", rc);
    if (!stale && l->n_used < QUIRE_LMDB_WAITING) {
        remember(l, keys, n);
        return QUIRE_OK;
    }
    rc = quire__lmdb_begin(l, true, &txn);
    if (rc != 0)
        return quire__lmdb_failed(l, "record a use", rc);
    rc = quire__lmdb_use(l, txn, keys, n, &moment);
    rc = quire__lmdb_commit(l, txn, NULL, rc);
    return rc ? quire__lmdb_failed(l, "record a use", rc) : QUIRE_OK;
}

/* -------------------------------------------------------- dropping what was used least recently */

/* Drops the first node of `uses`, if it was used before `before`. *dropped false: the entry was
 * wrong and has been corrected. */
static int drop_first(quire_lmdb *l, MDB_txn *txn, MDB_cursor *cursor, uint64_t before,
                      quire_lmdb_node *n, bool *dropped) {
    MDB_val name, data;
    quire_store_key key;
    uint8_t use[QUIRE_LMDB_USE];
    *dropped = false;
    int rc = mdb_cursor_get(cursor, &name, &data, MDB_FIRST);
    if (rc == MDB_NOTFOUND)
        return quire__lmdb_put(l, txn, "bytes", 0); /* the store is empty, whatever was counted */
    if (rc == 0 && name.mv_size != QUIRE_LMDB_USE)
        rc = MDB_CORRUPTED;
    if (rc != 0)
        return rc;
    memcpy(key.byte, (const uint8_t *)name.mv_data + 12, sizeof key.byte);
    rc = quire__node_get(l, txn, &key, n);
    if (rc == 0)
        quire__use_write(&key, n, use);
    if (rc == MDB_NOTFOUND || (rc == 0 && memcmp(use, name.mv_data, sizeof use) != 0)) {
        const bool is_there = rc == 0;
        rc = mdb_cursor_del(cursor, 0);
        return rc == 0 && is_there ? quire__node_change(l, txn, &key, NULL, n) : rc;
    }
    if (rc == 0 && n->used >= before)
        return QUIRE_LMDB_NOTHING_OLDER;
    if (rc == 0)
        rc = quire__node_drop(l, txn, &key, n);
    *dropped = rc == 0;
    return rc;
}

/* Drops nodes used before `before` until at most `target` bytes are left, or one step is done. */
static int evict(quire_lmdb *l, MDB_txn *txn, uint64_t target, uint64_t before, uint64_t *n_pages,
                 bool *reached) {
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(txn, l->uses, &cursor);
    if (rc != 0)
        return rc;
    for (uint64_t gone = 0;;) {
        uint64_t bytes;
        quire_lmdb_node n;
        bool dropped;
        rc = quire__lmdb_get(l, txn, "bytes", &bytes);
        *reached = rc == 0 && bytes <= target;
        if (rc != 0 || *reached || gone >= l->step)
            break;
        rc = drop_first(l, txn, cursor, before, &n, &dropped);
        if (rc != 0)
            break;
        *n_pages += dropped && n.depth > 0;
        gone += dropped ? n.bytes : 0;
    }
    mdb_cursor_close(cursor);
    return rc;
}

/* LMDB needs the rest for half-empty tree pages, and for pages of the last transactions that it
 * cannot reuse yet. */
uint64_t quire__lmdb_most_bytes(const quire_lmdb *l) {
    return l->limit - l->limit / 8 - QUIRE_LMDB_LEAST / 4;
}

int quire__lmdb_make_room(quire_lmdb *l, uint64_t spare, const quire_store_key *keys,
                          size_t n_keys) {
    /* What one transaction frees, the one after the next can use. */
    for (int after = 0; after < 2;) {
        MDB_txn *txn;
        uint64_t n_pages = 0, moment;
        bool reached = false;
        int rc = quire__lmdb_begin(l, true, &txn);
        if (rc != 0)
            return rc;
        const uint64_t most = quire__lmdb_most_bytes(l);
        rc = spare >= most ? QUIRE_LMDB_NOTHING_OLDER
                           : quire__lmdb_use(l, txn, keys, n_keys, &moment);
        if (rc == 0) /* this text was used just now, so all others are older */
            rc = evict(l, txn, most - spare, moment, &n_pages, &reached);
        const quire_backend_counts more = {.evicted_pages = n_pages};
        rc = quire__lmdb_commit(l, txn, &more, rc);
        if (rc != 0)
            return rc;
        after += reached;
    }
    return 0;
}
