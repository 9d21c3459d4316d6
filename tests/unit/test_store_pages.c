/* Damage to LMDB's own pages: trees, free list, meta pages, headers of overflow pages. Whatever is
 * overwritten, every call returns a status. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "saved.h"
#include "store/store.h"
#include "store_kit.h"
#include "store_reader.h"

enum { N_TEXT = 320, LIMIT = 1 << 20, TEXTS = 60, N_DAMAGES = 300 };
enum { FLAG_BRANCH = 1, FLAG_LEAF = 2, FLAG_OVERFLOW = 4 };

/* A store that is full, and its bytes before anything was damaged. */
typedef struct place {
    fixture f;
    quire_seq *seq;
    int32_t tokens[N_TEXT];
    char dir[300], data[320], lock[320];
    bytes file;
    size_t page; /* bytes of an LMDB page */
} place;

static quire_store_text text_of(place *p, uint64_t seed) {
    text_tokens(seed, N_TEXT, p->tokens);
    return (quire_store_text){
        .identity = "me", .identity_bytes = 2, .tokens = p->tokens, .n_tokens = N_TEXT};
}

static quire_status open_at(const place *p, bool read_only, quire_store **store) {
    quire_store_options o;
    quire_store_options_default(&o);
    o.read_only = read_only;
    return quire_store_open(store, p->dir, &o);
}

/* Without free pages: all that is in the file is in use. */
static void compact(place *p) {
    MDB_env *env;
    char to[340];
    snprintf(to, sizeof to, "%s/compact", p->dir);
    assert_int_equal(mkdir(to, 0700), 0);
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_open(env, p->dir, MDB_RDONLY, 0600), 0);
    assert_int_equal(mdb_env_copy2(env, to, MDB_CP_COMPACT), 0);
    mdb_env_close(env);
    snprintf(to, sizeof to, "%s/compact/data.mdb", p->dir);
    assert_int_equal(rename(to, p->data), 0);
    snprintf(to, sizeof to, "%s/compact", p->dir);
    assert_int_equal(rmdir(to), 0);
}

static void open_place(place *p, const char *name, bool without_free_pages) {
    const source s = source_default(5);
    open_small_pool(&p->f, "k4v4");
    assert_ok(quire_seq_create(p->f.pool, &p->seq));
    feed(&p->f, p->seq, &s, N_TEXT, 64, 1, 0, NULL);
    snprintf(p->dir, sizeof p->dir, "%s", store_dir(name));
    snprintf(p->data, sizeof p->data, "%s/data.mdb", p->dir);
    snprintf(p->lock, sizeof p->lock, "%s/lock.mdb", p->dir);
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.max_bytes = LIMIT;
    assert_ok(quire_store_open(&store, p->dir, &o));
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(p, (uint64_t)i);
        assert_ok(quire_store_put(store, p->seq, &text, NULL));
    }
    quire_store_close(store);
    if (without_free_pages)
        compact(p);
    p->file = file_read(p->data);
    uint32_t psize;
    memcpy(&psize, p->file.data + 16 + 24, sizeof psize); /* of the free tree in the meta page */
    p->page = psize;
}

static void close_place(place *p) {
    free(p->file.data);
    fixture_close(&p->f);
}

static uint16_t u16_at(const place *p, size_t page, size_t at) {
    uint16_t value;
    memcpy(&value, p->file.data + page * p->page + at, sizeof value);
    return value;
}

static uint16_t flags_of(const place *p, size_t page) { return u16_at(p, page, 10); }

/* The k-th page of these flags, from the start, or 0. Pages 0 and 1 are meta pages. */
static size_t page_of(const place *p, unsigned flags, int k) {
    for (size_t i = 2; i < p->file.n / p->page; i++)
        if ((flags_of(p, i) & flags) && k-- == 0)
            return i;
    return 0;
}

static int count_pages(const place *p, unsigned flags) {
    int n = 0;
    while (page_of(p, flags, n))
        n++;
    return n;
}

static void restore(const place *p) {
    unlink(p->lock);
    file_write(p->data, p->file.data, p->file.n);
}

static void damage(const place *p, size_t at, const void *value, size_t n) {
    FILE *file = fopen(p->data, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(value, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* ------------------------------------------------------------------ every call */

enum { SOUND, NOTICED, NO_REASON = 90 };

static bool noticed; /* some call found damage */

static quire_status told(quire_status status) {
    noticed |=
        status == QUIRE_E_CORRUPT || status == QUIRE_E_TRUNCATED || status == QUIRE_E_FOREIGN;
    if (status != QUIRE_OK && !*quire_last_error())
        _exit(NO_REASON);
    return status;
}

static bool visit(void *user, const quire_store_entry *entry) {
    *(quire_store_key *)user = entry->key;
    return true;
}

static void read_all(place *p, quire_store *store) {
    quire_store_key key = {{0}};
    quire_store_stats stats;
    quire_store_verdict verdict;
    for (int i = 0; i < TEXTS; i += 7) {
        const quire_store_text text = text_of(p, (uint64_t)i);
        quire_seq *seq = NULL;
        told(quire_store_get(store, p->f.pool, &text, 0, &seq));
        if (seq)
            quire_seq_free(seq);
    }
    told(quire_store_walk(store, visit, &key));
    told(quire_store_export(store, &key, saved_path("exported"), NULL));
    told(quire_store_key_find(store, "a", &key));
    told(quire_store_get_stats(store, &stats));
    if (told(quire_store_verify(store, NULL, &verdict)) == QUIRE_OK)
        noticed |= verdict.bad > 0 || verdict.lost > 0;
}

/* In a process of its own, which must end by itself. */
static int use_everything(place *p) {
    quire_store *store;
    if (told(open_at(p, true, &store)) == QUIRE_OK) {
        read_all(p, store);
        quire_store_close(store);
    }
    if (told(open_at(p, false, &store)) == QUIRE_OK) {
        for (int i = 0; i < TEXTS * 2 / 3; i++) { /* everything old goes */
            const quire_store_text text = text_of(p, (uint64_t)(1000 + i));
            told(quire_store_put(store, p->seq, &text, NULL));
        }
        read_all(p, store);
        told(quire_store_remove(store, NULL, NULL));
        quire_store_close(store);
    }
    if (told(open_at(p, false, &store)) == QUIRE_OK) { /* and again, after all that */
        const quire_store_text text = text_of(p, 1);
        told(quire_store_put(store, p->seq, &text, NULL));
        read_all(p, store);
        quire_store_close(store);
    }
    return noticed ? NOTICED : SOUND;
}

/* SOUND, NOTICED; -1: the process did not survive. */
static int survive(place *p, const char *what) {
    saved_path("exported"); /* in a directory of this process, which removes it in the end */
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL,
                                      SIGABRT}; /* cmocka would go on with the tests */
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
            signal(signals[i], SIG_DFL);
        _exit(use_everything(p));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) <= NOTICED)
        return WEXITSTATUS(status);
    print_error("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return -1;
}

static void test_sound(void **state) {
    (void)state;
    place p;
    open_place(&p, "sound", false);
    assert_true(count_pages(&p, FLAG_BRANCH) > 0 && count_pages(&p, FLAG_LEAF) > 4);
    assert_true(count_pages(&p, FLAG_OVERFLOW) > 100);
    restore(&p);
    assert_int_equal(survive(&p, "sound"), SOUND);
    close_place(&p);
}

/* ------------------------------------------------------------------ anything, anywhere */

/* In the first `most` bytes of a page, or, 0, where a page of a tree has something: not in the room
 * between. */
static size_t place_in(const place *p, size_t page, int most, int width, rng *r) {
    if (most > 0)
        return (size_t)(2 * rng_below(r, (most - width) / 2 + 1));
    const int lower = u16_at(p, page, 12), upper = u16_at(p, page, 14), end = (int)p->page;
    const bool at_start = upper >= end || rng_below(r, 2);
    const int first = at_start ? 0 : upper, last = (at_start ? lower : end) - width;
    return (size_t)(first + 2 * rng_below(r, (last - first) / 2 + 1));
}

static void check_random_damage(const char *name, bool without_free_pages) {
    place p;
    open_place(&p, name, without_free_pages);
    const int n_trees = count_pages(&p, FLAG_BRANCH | FLAG_LEAF),
              n_branches = count_pages(&p, FLAG_BRANCH);
    const int n_big = count_pages(&p, FLAG_OVERFLOW);
    const int n_damages = sweep_is_full() ? N_DAMAGES : N_DAMAGES / 3;
    int n_noticed = 0, n_crashed = 0;
    for (int i = 0; i < n_damages; i++) {
        rng r = {(uint64_t)(7000 + i)};
        const int kind = rng_below(&r, 10), width = rng_below(&r, 2) ? 2 : 4;
        const size_t page = kind < 6 ? page_of(&p, FLAG_BRANCH | FLAG_LEAF, rng_below(&r, n_trees))
                            : kind < 7 ? page_of(&p, FLAG_BRANCH, rng_below(&r, n_branches))
                            : kind < 9 ? (size_t)rng_below(&r, 2)
                                       : page_of(&p, FLAG_OVERFLOW, rng_below(&r, n_big));
        const size_t at = page * p.page + place_in(&p, page,
                                                   kind == 9  ? 16
                                                   : kind > 6 ? 152
                                                              : 0,
                                                   width, &r);
        uint32_t value;
        memcpy(&value, p.file.data + at, sizeof value);
        switch (rng_below(&r, 6)) {
        case 0:
            value = 0;
            break;
        case 1:
            value = UINT32_MAX;
            break;
        case 2:
            value += rng_below(&r, 2) ? 2 : UINT32_MAX - 1;
            break;
        case 3:
            value ^= 1u << rng_below(&r, 8 * width);
            break;
        case 4:
            value = (uint32_t)rng_below(&r, 4200);
            break;
        default:
            value = (uint32_t)rng_next(&r);
        }
        char what[100];
        snprintf(what, sizeof what, "damage %d: %d bytes at %zu of page %zu become %u", i, width,
                 at % p.page, page, (unsigned)value);
        restore(&p);
        damage(&p, at, &value, (size_t)width);
        const int n = survive(&p, what);
        n_noticed += n == NOTICED;
        n_crashed += n < 0;
    }
    assert_int_equal(n_crashed, 0);
    assert_true(n_noticed > n_damages / (without_free_pages ? 2 : 6)); /* it was damage */
    close_place(&p);
}

static void test_random_damage(void **state) {
    (void)state;
    check_random_damage("random", false);
}

static void test_random_damage_of_used_pages(void **state) {
    (void)state;
    check_random_damage("random-used", true);
}

/* ------------------------------------------------------------------ what is wrong, and where */

static quire_status open_damaged(const place *p, size_t page, size_t at, const void *value,
                                 size_t n) {
    quire_store *store;
    restore(p);
    damage(p, page * p->page + at, value, n);
    const quire_status status = open_at(p, true, &store);
    if (status == QUIRE_OK)
        quire_store_close(store);
    return status;
}

static void assert_named(const place *p, size_t page, size_t at, const void *value, size_t n) {
    char name[40];
    snprintf(name, sizeof name, "page %zu of ", page);
    const quire_status status = open_damaged(p, page, at, value, n);
    if (status != QUIRE_E_CORRUPT || !strstr(quire_last_error(), name))
        fail_msg("%zu bytes at %zu of page %zu: %s: %s", n, at, page, quire_status_name(status),
                 quire_last_error());
    assert_non_null(strstr(quire_last_error(), "Remove the directory"));
}

static size_t size_at(const place *p, size_t page, size_t at) {
    size_t value;
    memcpy(&value, p->file.data + page * p->page + at, sizeof value);
    return value;
}

/* Every field of a page of a tree, each time with values that it cannot have. */
static void test_fields(void **state) {
    (void)state;
    place p;
    open_place(&p, "fields", true);
    const size_t pages[] = {page_of(&p, FLAG_BRANCH, 0), page_of(&p, FLAG_LEAF, 0),
                            page_of(&p, FLAG_LEAF, 1)};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        const size_t page = pages[i], node = u16_at(&p, page, 16), other = u16_at(&p, page, 18);
        const size_t number = page + 1;
        const uint16_t flags[] = {0, 3, 4, 8, 0x12, 0x22, 0xffff},
                       ends[] = {0, 2, 15, 17, 0x7fff, 0xfffe};
        const uint16_t offsets[] = {
            0, 8, (uint16_t)(node + 1), (uint16_t)other, (uint16_t)(p.page - 2), 0xfffe};
        assert_named(&p, page, 0, &number, sizeof number);
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
            assert_named(&p, page, 10, &flags[k], 2);
        for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) {
            assert_named(&p, page, 12, &ends[k], 2);
            assert_named(&p, page, 14, &ends[k], 2);
        }
        for (size_t k = 0; k < sizeof offsets / sizeof offsets[0]; k++)
            assert_named(&p, page, 16, &offsets[k], 2); /* of the first node */
        const uint16_t lengths[] = {0xffff, 512, 0};
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
            assert_named(&p, page, other + 6, &lengths[k], 2);
        if (i == 0) { /* a child that cannot be: a meta page, a page behind the last, a sibling */
            const uint32_t none = 0, far = 0x00ffffff;
            uint32_t sibling;
            memcpy(&sibling, p.file.data + page * p.page + other, sizeof sibling);
            assert_named(&p, page, node, &none, 4);
            assert_named(&p, page, node, &far, 4);
            assert_int_equal(open_damaged(&p, page, node, &sibling, 4), QUIRE_E_CORRUPT);
        }
    }
    close_place(&p);
}

/* The meta page that counts: page size, last page, roots, depths, numbers of entries. */
static void test_meta_fields(void **state) {
    (void)state;
    place p;
    open_place(&p, "meta", true);
    const size_t meta = size_at(&p, 0, 144) > size_at(&p, 1, 144) ? 0 : 1;
    const uint32_t sizes[] = {0, 1, 4095, 512, 8192, 65536, UINT32_MAX};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        assert_named(&p, meta, 40, &sizes[k], 4);
    const uint16_t flags = 1, depths[] = {0, 1, 33, 0xffff};
    assert_named(&p, meta, 44, &flags, 2); /* a map at a fixed address */
    const size_t last = size_at(&p, meta, 136);
    const size_t lasts[] = {0, 1 << 30, (size_t)1 << 52, SIZE_MAX};
    for (size_t k = 0; k < sizeof lasts / sizeof lasts[0]; k++)
        assert_named(&p, meta, 136, &lasts[k], sizeof lasts[k]);
    const size_t roots[] = {0, 1, last + 1, (size_t)1 << 40, SIZE_MAX};
    for (size_t k = 0; k < sizeof roots / sizeof roots[0]; k++)
        assert_named(&p, meta, 128, &roots[k], sizeof roots[k]);
    for (size_t k = 0; k < sizeof depths / sizeof depths[0]; k++)
        if (depths[k] != u16_at(&p, meta, 94))
            assert_int_not_equal(open_damaged(&p, meta, 94, &depths[k], 2), QUIRE_OK);
    const size_t transaction = size_at(&p, meta, 144) + 1;
    assert_named(&p, meta, 144, &transaction, sizeof transaction);
    close_place(&p);
}

/* Free pages: in the list twice, or in use. */
static void test_free_list(void **state) {
    (void)state;
    place p;
    open_place(&p, "free", false);
    const size_t meta = size_at(&p, 0, 144) > size_at(&p, 1, 144) ? 0 : 1;
    const size_t root = size_at(&p, meta, 80), node = u16_at(&p, root, 16);
    assert_int_equal(flags_of(&p, root), FLAG_LEAF);
    assert_int_equal(u16_at(&p, root, node + 4), 0); /* its list lies in the leaf */
    const size_t list = node + 16, count = size_at(&p, root, list);
    assert_true(count > 2);
    const size_t more = SIZE_MAX / 8, used = size_at(&p, meta, 128),
                 first = size_at(&p, root, list + 8), zero = 0;
    assert_named(&p, root, list, &more, sizeof more);
    assert_named(&p, root, list + 8, &used, sizeof used);
    assert_named(&p, root, list + 16, &first, sizeof first);
    assert_named(&p, root, list + 16, &zero, sizeof zero);
    close_place(&p);
}

/* LMDB frees as many pages as the header of a value's first page says. Opening does not read these:
 * dropping does. */
static void test_overflow_headers(void **state) {
    (void)state;
    const struct {
        size_t at;
        uint32_t value;
        size_t n;
    } changes[] = {{12, 0, 4}, {12, 2, 4},    {12, UINT32_MAX, 4}, {0, 5, 4},
                   {4, 7, 4},  {10, 0x14, 2}, {10, 2, 2}};
    place p;
    open_place(&p, "overflow", true);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        quire_store *store;
        quire_store_verdict verdict;
        restore(&p);
        for (int k = 0; page_of(&p, FLAG_OVERFLOW, k); k++)
            damage(&p, page_of(&p, FLAG_OVERFLOW, k) * p.page + changes[i].at, &changes[i].value,
                   changes[i].n);
        assert_ok(open_at(&p, false, &store));
        assert_status(quire_store_remove(store, NULL, NULL), QUIRE_E_CORRUPT);
        assert_non_null(strstr(quire_last_error(), "page "));
        assert_status(quire_store_verify(store, NULL, &verdict), QUIRE_E_CORRUPT);
        quire_status put = QUIRE_OK;
        for (uint64_t k = 0; put == QUIRE_OK && k < TEXTS; k++) {
            const quire_store_text text = text_of(&p, 2000 + k);
            put = quire_store_put(store, p.seq, &text, NULL);
        }
        assert_int_equal(put, QUIRE_E_CORRUPT);
        quire_store_close(store);
    }
    close_place(&p);
}

/* --------------------------------------------------------------- sound after whatever LMDB does */

static void random_key(rng *r, quire_store_key *key) {
    for (size_t i = 0; i < sizeof key->byte; i++)
        key->byte[i] = (uint8_t)rng_next(r);
}

/* A text of records of any size: in leaves, and in one to 25 overflow pages. */
static quire_status write_some(quire_store *store, rng *r, quire_record_id *last) {
    enum { MOST = 12, MOST_BYTES = 100000 };
    static uint8_t zeros[MOST_BYTES];
    quire_store_key keys[MOST];
    quire_backend_item items[MOST];
    quire_store_added added;
    const size_t n = (size_t)(1 + rng_below(r, MOST));
    for (size_t i = 0; i < n; i++) {
        const int sizes[] = {40, 400, 4000, MOST_BYTES};
        random_key(r, &keys[i]);
        items[i] = (quire_backend_item){.id = {.key = keys[i]},
                                        .depth = (uint32_t)i,
                                        .bytes = zeros,
                                        .n_bytes = (size_t)rng_below(r, sizes[rng_below(r, 4)])};
        if (i > 0)
            items[i].parent = keys[i - 1];
    }
    *last = items[n - 1].id;
    return store->backend->write(store->backend, keys, n, items, n, &added);
}

/* A store whose room a reader holds takes nothing and drops nothing. */
static bool done_or_busy(quire_status status) {
    if (status != QUIRE_OK && status != QUIRE_E_BUSY)
        fail_msg("%s: %s", quire_status_name(status), quire_last_error());
    return status == QUIRE_OK;
}

/* Of the tree of free pages, as meta page 0 has it. */
static int depth_of_free_list(const char *dir) {
    char path[320];
    uint8_t head[48];
    uint16_t depth;
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, sizeof head, 1, file), 1);
    fclose(file);
    memcpy(&depth, head + 46, sizeof depth);
    return depth;
}

static void test_sound_after_everything(void **state) {
    (void)state;
    enum { OPERATIONS = 2500, KEPT = 200, READS = 500 };
    char dir[300];
    quire_store_options o;
    quire_store *store;
    quire_record_id kept[KEPT];
    rng r = {99};
    other_process reader;
    int n_put = 0, deepest = 0;
    snprintf(dir, sizeof dir, "%s", store_dir("everything"));
    quire_store_options_default(&o);
    o.max_bytes = 4 << 20;
    assert_ok(quire_store_open(&store, dir, &o));
    for (int i = 0; i < OPERATIONS; i++) {
        quire_record_id *slot = &kept[n_put < KEPT ? n_put : rng_below(&r, KEPT)];
        if (i % READS == READS / 5)
            start_other(&reader, read_one_state, dir); /* the free list grows */
        if (i % READS == READS - 1)
            end_other(&reader);
        const int what = rng_below(&r, 10);
        if (what < 6) {
            n_put += done_or_busy(write_some(store, &r, slot));
        } else if (n_put >= KEPT && what < 8) {
            done_or_busy(store->backend->remove(store->backend, slot, 1));
        } else if (n_put >= KEPT) {
            done_or_busy(store->backend->touch(store->backend, &slot->key, 1));
        }
        if (what == 9 && i % 10 == 0) {
            quire_store_close(store);
            o.max_bytes = (uint64_t)2 << (20 + rng_below(&r, 6));
            assert_ok(quire_store_open(&store, dir, &o));
        }
        assert_ok(store->backend->check(store->backend, NULL));
        if (n_put > 0)
            assert_ok(store->backend->check(store->backend,
                                            &kept[rng_below(&r, n_put < KEPT ? n_put : KEPT)]));
        const int depth = depth_of_free_list(dir);
        deepest = depth > deepest ? depth : deepest;
    }
    assert_true(n_put > OPERATIONS / 10 && deepest > 1); /* so its branches were looked at too */
    quire_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_meta_fields),
        cmocka_unit_test(test_free_list),
        cmocka_unit_test(test_overflow_headers),
        cmocka_unit_test(test_sound_after_everything),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_random_damage_of_used_pages),
    };
    return cmocka_run_group_tests(tests, NULL, store_teardown);
}
