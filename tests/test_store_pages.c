/* Damage to LMDB's own pages: trees, free list, meta pages, headers of overflow pages. Whatever is overwritten, every call
 * returns a status. */
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quire_store.h"
#include "saved.h"
#include "store_kit.h"

enum { N_TEXT = 320, PAGES = N_TEXT / 64, LIMIT = 1 << 20, TEXTS = 60, N_DAMAGES = 600 };
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
    return (quire_store_text){.identity = "me", .identity_bytes = 2, .tokens = p->tokens, .n_tokens = N_TEXT};
}

static quire_status open_at(const place *p, bool read_only, quire_store **store) {
    quire_store_options o;
    quire_store_options_default(&o);
    o.read_only = read_only;
    o.touch_seconds = 0;
    return quire_store_open(store, p->dir, &o);
}

static void open_place(place *p, const char *name) {
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
    o.touch_seconds = 0;
    assert_ok(quire_store_open(&store, p->dir, &o));
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(p, (uint64_t)i);
        assert_ok(quire_store_put(store, p->seq, &text, NULL));
    }
    quire_store_close(store);
    p->file = file_read(p->data);
    uint32_t psize;
    memcpy(&psize, p->file.data + 16 + 24, sizeof psize); /* of the free tree in the meta page */
    p->page = psize;
}

static void close_place(place *p) {
    free(p->file.data);
    fixture_close(&p->f);
}

static uint16_t flags_of(const place *p, size_t page) {
    uint16_t flags;
    memcpy(&flags, p->file.data + page * p->page + 10, sizeof flags);
    return flags;
}

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

static int n_errors;

static void told(quire_status status) {
    n_errors += status != QUIRE_OK;
    if (status != QUIRE_OK && !*quire_last_error())
        _exit(90); /* a failure without a reason */
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
    told(quire_store_verify(store, NULL, &verdict));
}

/* In a process of its own, which must end by itself. Returns how many calls failed. */
static int use_everything(place *p) {
    quire_store *store;
    n_errors = 0;
    quire_status status = open_at(p, true, &store);
    told(status);
    if (status == QUIRE_OK) {
        read_all(p, store);
        quire_store_close(store);
    }
    status = open_at(p, false, &store);
    told(status);
    if (status == QUIRE_OK) {
        for (int i = 0; i < 2 * TEXTS; i++) { /* everything old goes */
            const quire_store_text text = text_of(p, (uint64_t)(1000 + i));
            told(quire_store_put(store, p->seq, &text, NULL));
        }
        read_all(p, store);
        told(quire_store_remove(store, NULL, NULL));
        quire_store_close(store);
    }
    status = open_at(p, false, &store); /* and again, after all that */
    told(status);
    if (status == QUIRE_OK) {
        const quire_store_text text = text_of(p, 1);
        told(quire_store_put(store, p->seq, &text, NULL));
        read_all(p, store);
        quire_store_close(store);
    }
    return n_errors < 80 ? n_errors : 80;
}

/* How many calls failed; -1: the process did not survive. */
static int survive(place *p, const char *what) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}; /* cmocka would go on with the tests */
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
            signal(signals[i], SIG_DFL);
        _exit(use_everything(p));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) && WEXITSTATUS(status) <= 80)
        return WEXITSTATUS(status);
    print_error("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return -1;
}

static void test_sound(void **state) {
    (void)state;
    place p;
    open_place(&p, "sound");
    assert_true(count_pages(&p, FLAG_BRANCH) > 0 && count_pages(&p, FLAG_LEAF) > 4);
    assert_true(count_pages(&p, FLAG_OVERFLOW) > 100);
    restore(&p);
    /* Export of a key that the read-write pass has evicted is the only thing that may fail. */
    const int n = survive(&p, "sound");
    assert_true(n >= 0 && n < 4);
    close_place(&p);
}

/* ------------------------------------------------------------------ anything, anywhere */

static void test_random_damage(void **state) {
    (void)state;
    place p;
    open_place(&p, "random");
    const int n_trees = count_pages(&p, FLAG_BRANCH | FLAG_LEAF), n_branches = count_pages(&p, FLAG_BRANCH);
    const int n_big = count_pages(&p, FLAG_OVERFLOW);
    int n_noticed = 0, n_crashed = 0;
    for (int i = 0; i < N_DAMAGES; i++) {
        rng r = {(uint64_t)(7000 + i)};
        const int kind = rng_below(&r, 10), width = rng_below(&r, 2) ? 2 : 4;
        const size_t page = kind < 6   ? page_of(&p, FLAG_BRANCH | FLAG_LEAF, rng_below(&r, n_trees))
                            : kind < 7 ? page_of(&p, FLAG_BRANCH, rng_below(&r, n_branches))
                            : kind < 9 ? (size_t)rng_below(&r, 2)
                                       : page_of(&p, FLAG_OVERFLOW, rng_below(&r, n_big));
        const int most = kind == 9 ? 16 : kind > 6 || rng_below(&r, 2) ? 160 : (int)p.page;
        const size_t at = page * p.page + (size_t)(2 * rng_below(&r, (most - width) / 2));
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
        snprintf(what, sizeof what, "damage %d: %d bytes at %zu of page %zu become %u", i, width, at % p.page, page,
                 (unsigned)value);
        restore(&p);
        damage(&p, at, &value, (size_t)width);
        const int n = survive(&p, what);
        n_noticed += n > 3;
        n_crashed += n < 0;
    }
    assert_int_equal(n_crashed, 0);
    assert_true(n_noticed > N_DAMAGES / 8); /* it was damage */
    close_place(&p);
}

static int teardown(void **state) {
    (void)state;
    store_remove_all();
    saved_remove_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
