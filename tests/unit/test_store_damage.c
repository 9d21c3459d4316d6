/* Stores that are damaged, foreign, cut off or full: whatever is wrong is a miss or a clear
 * error, and changes nothing. */
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "saved.h"
#include "store/store.h"
#include "store_kit.h"

enum { N_TEXT = 192 };

typedef struct place {
    fixture f;
    quire_seq *seq, *live; /* what is put; what must never notice */
    int32_t tokens[N_TEXT];
    quire_store_text text;
    char dir[300], data[320], lock[320];
} place;

static void open_place(place *p, const char *name, const char *kv) {
    const source s = source_default(5), other = source_default(6);
    open_small_pool(&p->f, kv);
    text_tokens(1, N_TEXT, p->tokens);
    p->text = (quire_store_text){
        .identity = "me", .identity_bytes = 2, .tokens = p->tokens, .n_tokens = N_TEXT};
    assert_ok(quire_seq_create(p->f.pool, &p->seq));
    assert_ok(quire_seq_create(p->f.pool, &p->live));
    feed(&p->f, p->seq, &s, N_TEXT, 64, 1, 0, NULL);
    feed(&p->f, p->live, &other, 100, 64, 1, 0, NULL);
    snprintf(p->dir, sizeof p->dir, "%s", store_dir(name));
    snprintf(p->data, sizeof p->data, "%s/data.mdb", p->dir);
    snprintf(p->lock, sizeof p->lock, "%s/lock.mdb", p->dir);
}

static quire_store *open_at(const place *p) {
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.max_bytes = 1 << 20;
    assert_ok(quire_store_open(&store, p->dir, &o));
    return store;
}

static int found(quire_store *store, place *p) {
    quire_seq *seq;
    assert_ok(quire_store_get(store, p->f.pool, &p->text, 0, &seq));
    const int n = quire_seq_length(seq);
    assert_ok(quire_seq_free(seq));
    return n;
}

static quire_store_stats stats_of(quire_store *store) {
    quire_store_stats stats;
    assert_ok(quire_store_get_stats(store, &stats));
    return stats;
}

static bytes live_bytes(const place *p) {
    assert_ok(quire_seq_save(p->live, saved_path("live"), NULL));
    return file_read(saved_path("live"));
}

/* ------------------------------------------------------------------ every byte */

/* The records in the store's file, by their mark; returns how many. */
static int find_records(bytes file, size_t *at, int most) {
    int n = 0;
    for (size_t i = 0; i + 8 <= file.n && n < most; i++)
        if (memcmp(file.data + i, "\x89QLEAF\r\n", 8) == 0)
            at[n++] = i;
    return n;
}

static void test_every_byte(void **state) {
    (void)state;
    place p;
    open_place(&p, "flip", "k4v4");
    p.text.n_tokens = 64;
    quire_store *store = open_at(&p);
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    assert_int_equal(found(store, &p), 64);
    quire_store_close(store);
    const bytes file = file_read(p.data), before = live_bytes(&p);
    quire_pool_stats pool, after;
    quire_pool_get_stats(p.f.pool, &pool);
    size_t at[4];
    assert_int_equal(find_records(file, at, 4), 2); /* a root and a page */
    int n_checked = 0;
    for (int r = 0; r < 2; r++) {
        const bool is_root = quire__get32(file.data + at[r] + 16) == 0;
        const size_t n =
            quire__record_bytes(is_root ? 0 : 1, (size_t)quire__get64(file.data + at[r] + 24));
        for (size_t i = 0; i < n; i++, n_checked++) {
            file.data[at[r] + i] ^= (uint8_t)(1 << i % 8);
            unlink(p.lock);
            file_write(p.data, file.data, file.n);
            store = open_at(&p);
            const uint64_t bad = stats_of(store).bad_records;
            quire_store_verdict verdict;
            assert_ok(quire_store_verify(store, NULL, &verdict));
            assert_int_equal(verdict.bad, 1);
            assert_int_equal(stats_of(store).bad_records, bad);
            if (is_root) { /* pages are found without it, but it is never believed */
                quire_store_key key;
                int32_t n_tokens;
                assert_int_equal(found(store, &p), 64);
                assert_ok(quire_store_find(store, p.f.pool, &p.text, &key, &n_tokens));
                const quire_status status =
                    quire_store_export(store, &key, saved_path("exported"), NULL);
                assert_true(status == QUIRE_E_CORRUPT || status == QUIRE_E_GONE);
                assert_int_equal(access(saved_path("exported"), F_OK), -1);
            } else {
                assert_int_equal(found(store, &p), 0);
            }
            assert_int_equal(stats_of(store).bad_records, bad + 1);
            assert_int_equal(stats_of(store).records, 1);
            assert_ok(quire_store_verify(store, NULL, &verdict));
            assert_int_equal(verdict.bad, 0);
            if (i % 97 == 0) { /* and what was lost can be put again */
                assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
                assert_int_equal(stats_of(store).records, 2);
                assert_int_equal(found(store, &p), 64);
            }
            quire_store_close(store);
            file.data[at[r] + i] ^= (uint8_t)(1 << i % 8);
        }
    }
    assert_true(n_checked > 2000);
    quire_pool_get_stats(p.f.pool, &after);
    assert_memory_equal(&pool, &after, sizeof pool);
    const bytes now = live_bytes(&p);
    assert_int_equal(before.n, now.n);
    assert_memory_equal(before.data, now.data, now.n);
    free(file.data), free(before.data), free(now.data);
    fixture_close(&p.f);
}

/* -------------------------------------------------- records of another length, place or content */

typedef struct kept {
    quire_record_id id;
    quire_record record;
    bytes bytes;
} kept;

static bool keep_pages(void *user, const quire_record_id *id, const uint8_t *data, size_t n,
                       int64_t used) {
    (void)used;
    kept *k = user;
    quire_record r;
    assert_true(quire__record_read(data, n, id, &r));
    k += r.depth; /* 0: the root */
    *k = (kept){.id = *id, .record = r, .bytes = {malloc(n), n}};
    memcpy(k->bytes.data, data, n);
    return true;
}

/* Instead of a page's record. */
static void replace(quire_store *store, const kept *k, const uint8_t *data, size_t n) {
    const quire_backend_item item = {.id = k->id,
                                     .parent = k->record.parent,
                                     .depth = k->record.depth,
                                     .bytes = data,
                                     .n_bytes = n};
    quire_store_added added;
    assert_ok(store->backend->remove(store->backend, &k->id, 1));
    assert_ok(store->backend->write(store->backend, &k->record.parent, 1, &item, 1, &added));
}

/* The middle page of three is not what it should be: one page is found, the record is gone and
 * counted. */
static void check_refused(quire_store *store, place *p, const kept *k, const uint8_t *data,
                          size_t n) {
    replace(store, k, data, n);
    const quire_store_stats before = stats_of(store);
    assert_int_equal(found(store, p), 64);
    const quire_store_stats after = stats_of(store);
    assert_int_equal(after.bad_records, before.bad_records + 1);
    assert_int_equal(after.records, before.records - 1);
    assert_int_equal(found(store, p), 64);
    assert_int_equal(stats_of(store).bad_records, after.bad_records);
}

static void test_wrong_records(void **state) {
    (void)state;
    place p;
    open_place(&p, "wrong", "k4v4");
    quire_store *store = open_at(&p);
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    kept k[4];
    assert_ok(store->backend->walk(store->backend, NULL, keep_pages, k));
    const size_t n = k[2].bytes.n;
    uint8_t *data = malloc(n + 64);
    for (size_t cut = 0; cut < n; cut += cut < 500 ? 7 : 131) { /* cut off */
        check_refused(store, &p, &k[2], k[2].bytes.data, cut);
    }
    memcpy(data, k[2].bytes.data, n);
    memset(data + n, 0, 64);
    check_refused(store, &p, &k[2], data, n + 64);                  /* too long */
    check_refused(store, &p, &k[2], k[3].bytes.data, k[3].bytes.n); /* another page's */
    check_refused(store, &p, &k[2], k[0].bytes.data, k[0].bytes.n); /* the root's */
    /* From here on checksums are right, as whoever means harm would have them. */
    for (int change = 0; change < 9; change++) {
        memcpy(data, k[2].bytes.data, n);
        size_t length = n;
        switch (change) {
        case 0: /* another token */
            data[128] ^= 1;
            break;
        case 1: /* another parent */
            data[64] ^= 1;
            break;
        case 2: /* another root */
            data[96] ^= 1;
            break;
        case 3: /* another key */
            data[32] ^= 1;
            break;
        case 4: /* another depth */
            data[16] ^= 1;
            break;
        case 5: /* a payload that is one byte shorter */
            length = n - 1;
            quire__put64(data + 24, quire__get64(data + 24) - 1);
            break;
        case 6: /* a version to come */
            data[8] = 2;
            break;
        case 7: /* values that are not finite: scales are somewhere in the second half */
            memset(data + 384 + k[2].record.payload_bytes / 4, 0xff,
                   k[2].record.payload_bytes * 3 / 4);
            break;
        case 8: /* a depth beyond all tokens */
            quire__put32(data + 16, 0x7fffffff);
            break;
        }
        quire__record_seal(data, length);
        check_refused(store, &p, &k[2], data, length);
    }
    /* Read-only: refused just as well, and stays. */
    memcpy(data, k[2].bytes.data, n);
    data[n / 2] ^= 1;
    replace(store, &k[2], data, n);
    quire_store_close(store);
    quire_store_options o;
    quire_store_options_default(&o);
    o.read_only = true;
    assert_ok(quire_store_open(&store, p.dir, &o));
    assert_int_equal(found(store, &p), 64);
    assert_int_equal(found(store, &p), 64);
    assert_int_equal(stats_of(store).records, 4);
    quire_store_close(store);
    store = open_at(&p);
    quire_store_verify_options v;
    quire_store_verdict verdict;
    quire_store_verify_options_default(&v);
    v.remove = true;
    assert_ok(quire_store_verify(store, &v, &verdict));
    assert_int_equal(verdict.bad, 1);
    assert_ok(quire_store_verify(store, &v, &verdict));
    assert_int_equal(verdict.bad, 0);
    assert_int_equal(verdict.records, 3);
    assert_int_equal(verdict.lost, 1); /* the page behind it */
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    assert_int_equal(found(store, &p), N_TEXT); /* and is of use again */
    quire_store_close(store);
    for (int i = 0; i < 4; i++)
        free(k[i].bytes.data);
    free(data);
    fixture_close(&p.f);
}

/* ------------------------------------------------------------------ directories */

static quire_status try_open(const char *dir, bool create) {
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.create = create;
    const quire_status status = quire_store_open(&store, dir, &o);
    if (status == QUIRE_OK)
        quire_store_close(store);
    else
        assert_null(store);
    return status;
}

static void test_directories(void **state) {
    (void)state;
    char path[400];
    quire_store *store;
    assert_status(try_open(store_dir("no/such"), true), QUIRE_E_IO);
    assert_status(try_open(store_dir("absent"), false), QUIRE_E_IO);
    assert_status(quire_store_open(&store, "", NULL), QUIRE_E_INVALID);

    const char *dir = store_dir("mine"); /* somebody's own files */
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_status(try_open(dir, false), QUIRE_E_FOREIGN);
    snprintf(path, sizeof path, "%s/letter.txt", dir);
    file_write(path, "dear", 4);
    assert_status(try_open(dir, true), QUIRE_E_FOREIGN);
    assert_status(try_open(path, true), QUIRE_E_FOREIGN);
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    assert_int_equal(access(path, F_OK), -1);

    char garbage[20000];
    memset(garbage, 'x', sizeof garbage);
    dir = store_dir("garbage");
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    file_write(path, garbage, sizeof garbage);
    assert_status(try_open(dir, true), QUIRE_E_FOREIGN);

    dir = store_dir("other-lmdb"); /* another program's */
    assert_int_equal(mkdir(dir, 0700), 0);
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val key = {5, "hello"}, value = {5, "world"};
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_open(env, dir, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, NULL, 0, &dbi), 0);
    assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
    assert_status(try_open(dir, true), QUIRE_E_FOREIGN);

    dir = store_dir("newer"); /* of a program to come */
    assert_status(try_open(dir, true), QUIRE_OK);
    uint8_t format[8] = {QUIRE_STORE_FORMAT + 1};
    key = (MDB_val){6, "format"};
    value = (MDB_val){8, format};
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 4), 0);
    assert_int_equal(mdb_env_open(env, dir, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, "meta", 0, &dbi), 0);
    assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
    assert_status(try_open(dir, true), QUIRE_E_VERSION);
    assert_non_null(strstr(quire_last_error(), "newer"));

    if (geteuid() != 0) { /* root may write anywhere */
        dir = store_dir("closed");
        assert_status(try_open(dir, true), QUIRE_OK);
        snprintf(path, sizeof path, "%s/data.mdb", dir);
        assert_int_equal(chmod(path, 0400), 0);
        assert_status(try_open(dir, true), QUIRE_E_IO);
    }
    struct stat info; /* for its owner alone */
    snprintf(path, sizeof path, "%s/data.mdb", store_dir("newer"));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(store_dir("newer"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
}

static void test_cut_off_file(void **state) {
    (void)state;
    place p;
    open_place(&p, "cut", "k8v4");
    quire_store *store = open_at(&p);
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    quire_store_close(store);
    const bytes file = file_read(p.data);
    for (size_t n = 0; n < file.n; n += 1777) {
        unlink(p.lock);
        file_write(p.data, file.data, n);
        quire_store_options o;
        quire_store_options_default(&o);
        const quire_status status = quire_store_open(&store, p.dir, &o);
        if (status == QUIRE_OK) { /* an empty file is a new store */
            assert_int_equal(n, 0);
            assert_int_equal(found(store, &p), 0);
            quire_store_close(store);
        } else {
            assert_true(status == QUIRE_E_FOREIGN || status == QUIRE_E_TRUNCATED ||
                        status == QUIRE_E_IO);
        }
    }
    free(file.data);
    fixture_close(&p.f);
}

/* A disk that takes no more: an error, and a store that is as sound as before. */
static void test_full_disk(void **state) {
    (void)state;
    place p;
    open_place(&p, "full", "k8v4");
    quire_store *store = open_at(&p);
    p.text.n_tokens = 64;
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    quire_store_close(store);
    struct stat info;
    assert_int_equal(stat(p.data, &info), 0);
    p.text.n_tokens = N_TEXT;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {(rlim_t)info.st_size, (rlim_t)info.st_size};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        quire_store_options o;
        quire_store_options_default(&o);
        if (quire_store_open(&store, p.dir, &o) != QUIRE_OK)
            _exit(2);
        const quire_status status = quire_store_put(store, p.seq, &p.text, NULL);
        quire_seq *seq;
        p.text.n_tokens = 64;
        if (quire_store_get(store, p.f.pool, &p.text, 0, &seq) != QUIRE_OK ||
            quire_seq_length(seq) != 64)
            _exit(3);
        quire_store_close(store);
        _exit(status == QUIRE_E_IO ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    store = open_at(&p);
    quire_store_verdict verdict;
    assert_ok(quire_store_verify(store, NULL, &verdict));
    assert_int_equal(verdict.bad, 0);
    assert_int_equal(found(store, &p), 64);
    assert_ok(quire_store_put(store, p.seq, &p.text, NULL));
    assert_int_equal(found(store, &p), N_TEXT);
    quire_store_close(store);
    fixture_close(&p.f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),  cmocka_unit_test(test_wrong_records),
        cmocka_unit_test(test_directories), cmocka_unit_test(test_cut_off_file),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, store_teardown);
}
