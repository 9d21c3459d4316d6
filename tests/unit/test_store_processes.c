/* Many processes at one store, processes that are killed, and a limit that is reached. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "saved.h"
#include "store/store.h"
#include "store_kit.h"
#include "store_reader.h"

enum { N_TEXT = 320, PAGES = N_TEXT / 64, N_KILLS = 50 };

typedef struct writer {
    fixture f;
    quire_seq *seq; /* rows are the same for all texts: their tokens tell them apart */
    int32_t tokens[N_TEXT];
} writer;

static void open_writer(writer *w) {
    const source s = source_default(5);
    open_small_pool(&w->f, "k4v4");
    assert_ok(quire_seq_create(w->f.pool, &w->seq));
    feed(&w->f, w->seq, &s, N_TEXT, 64, 1, 0, NULL);
}

static quire_store_text text_of(writer *w, uint64_t seed, int n) {
    text_tokens(seed, N_TEXT, w->tokens);
    return (quire_store_text){
        .identity = "me", .identity_bytes = 2, .tokens = w->tokens, .n_tokens = n};
}

static quire_store *open_store(const char *dir, uint64_t max_bytes) {
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.max_bytes = max_bytes;
    return quire_store_open(&store, dir, &o) == QUIRE_OK ? store : NULL;
}

/* Every use is written at once. */
static quire_store *open_store_eager(const char *dir, uint64_t max_bytes) {
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.max_bytes = max_bytes;
    o.touch_seconds = 0;
    return quire_store_open(&store, dir, &o) == QUIRE_OK ? store : NULL;
}

static int found(quire_store *store, writer *w, uint64_t seed) {
    const quire_store_text text = text_of(w, seed, N_TEXT);
    quire_seq *seq;
    assert_ok(quire_store_get(store, w->f.pool, &text, 0, &seq));
    const int n = quire_seq_length(seq);
    assert_ok(quire_seq_free(seq));
    return n;
}

static void assert_sound(quire_store *store, bool none_lost) {
    quire_store_verdict verdict;
    assert_ok(quire_store_verify(store, NULL, &verdict));
    assert_int_equal(verdict.bad, 0);
    if (none_lost)
        assert_int_equal(verdict.lost, 0);
}

static quire_store_stats stats_of(quire_store *store) {
    quire_store_stats stats;
    assert_ok(quire_store_get_stats(store, &stats));
    return stats;
}

/* ------------------------------------------------------------------ side by side */

static int write_and_read(const char *dir, writer *w, uint64_t first, int n) {
    quire_store *store = open_store(dir, 0);
    if (!store)
        return 2;
    for (int round = 0; round < n; round++) {
        const uint64_t seed = first + (uint64_t)round;
        for (int length = 64; length <= N_TEXT; length += 64) {
            const quire_store_text text = text_of(w, seed, length);
            if (quire_store_put(store, w->seq, &text, NULL) != QUIRE_OK)
                return 3;
        }
        const quire_store_text text = text_of(w, seed, N_TEXT);
        quire_seq *seq;
        if (quire_store_get(store, w->f.pool, &text, 0, &seq) != QUIRE_OK ||
            quire_seq_length(seq) != N_TEXT)
            return 4;
        quire_seq_free(seq);
    }
    quire_store_close(store);
    return 0;
}

static void test_side_by_side(void **state) {
    (void)state;
    enum { WRITERS = 4, TEXTS = 12, STEP = 6 }; /* each shares half of its texts with the next */
    writer w;
    open_writer(&w);
    char dir[300];
    snprintf(dir, sizeof dir, "%s", store_dir("side-by-side"));
    pid_t child[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        child[i] = fork();
        if (child[i] == 0)
            _exit(write_and_read(dir, &w, (uint64_t)(100 + STEP * i), TEXTS));
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    quire_store *store = open_store(dir, 0);
    assert_non_null(store);
    assert_sound(store, true);
    const int n_texts = STEP * (WRITERS - 1) + TEXTS;
    for (int i = 0; i < n_texts; i++)
        assert_int_equal(found(store, &w, (uint64_t)(100 + i)), N_TEXT);
    const quire_store_stats stats = stats_of(store);
    assert_int_equal(stats.pages, n_texts * PAGES);
    assert_int_equal(stats.added_pages, stats.pages); /* each once */
    assert_int_equal(stats.hit_pages, (WRITERS * TEXTS + n_texts) * PAGES);
    assert_int_equal(stats.bad_records, 0);
    quire_store_close(store);
    fixture_close(&w.f);
}

/* ------------------------------------------------------------------ killed */

static void put_for_ever(const char *dir, writer *w, uint64_t seed) {
    quire_store *store =
        open_store(dir, (uint64_t)2 << 20); /* small: dropping pages is interrupted too */
    while (store) {
        const quire_store_text text = text_of(w, seed++, N_TEXT);
        quire_seq *seq;
        if (quire_store_put(store, w->seq, &text, NULL) != QUIRE_OK ||
            quire_store_get(store, w->f.pool, &text, 0, &seq) != QUIRE_OK)
            _exit(3);
        quire_seq_free(seq);
    }
    _exit(2);
}

static void test_killed(void **state) {
    (void)state;
    writer w;
    rng r = {11};
    open_writer(&w);
    char dir[300];
    snprintf(dir, sizeof dir, "%s", store_dir("killed"));
    uint64_t added = 0;
    for (int i = 0; i < N_KILLS; i++) {
        const pid_t child = fork();
        if (child == 0)
            put_for_ever(dir, &w, (uint64_t)(1000 * i));
        const struct timespec wait = {0, 1000000L + 1000L * rng_below(&r, 25000)};
        nanosleep(&wait, NULL);
        int status;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it had not ended by itself */
        quire_store *store = open_store(dir, 0);
        assert_non_null(store);
        assert_sound(store, true);
        const quire_store_stats stats = stats_of(store);
        assert_true(stats.added_pages >= added);
        assert_true(stats.file_bytes <= stats.max_bytes);
        added = stats.added_pages;
        quire_store_close(store);
    }
    assert_true(added > N_KILLS);
    quire_store *store = open_store(dir, 0);
    const quire_store_text text = text_of(&w, 999999, N_TEXT);
    assert_ok(quire_store_put(store, w.seq, &text, NULL));
    assert_int_equal(found(store, &w, 999999), N_TEXT);
    quire_store_close(store);
    fixture_close(&w.f);
}

/* Opening and verifying check LMDB's own pages, whoever changes them at that moment. */
static void test_opened_while_written(void **state) {
    (void)state;
    enum { OPENS = 60 };
    writer w;
    open_writer(&w);
    char dir[300];
    snprintf(dir, sizeof dir, "%s", store_dir("opened"));
    quire_store_close(open_store(dir, (uint64_t)2 << 20));
    const pid_t child = fork();
    if (child == 0)
        put_for_ever(dir, &w, 0);
    uint64_t added = 0;
    for (int i = 0; i < OPENS; i++) {
        quire_store_options o;
        quire_store *store;
        quire_store_options_default(&o);
        o.read_only = i % 2;
        assert_ok(quire_store_open(&store, dir, &o));
        assert_sound(store, false);
        added = stats_of(store).added_pages;
        quire_store_close(store);
    }
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(added > 0);
    fixture_close(&w.f);
}

/* ------------------------------------------------------------------ a limit */

enum { EVICTION_LIMIT = 1 << 20 };

static bool is_whole(void *user, const quire_store_entry *entry) {
    (void)user;
    assert_true(entry->whole);
    return true;
}

static void check_eviction(quire_store *store) {
    enum { TEXTS = 120, FAVOURITE = 5 };
    writer w;
    open_writer(&w);
    assert_non_null(store);
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        assert_ok(quire_store_put(store, w.seq, &text, NULL));
        assert_int_equal(found(store, &w, (uint64_t)i), N_TEXT);
        if (i >= FAVOURITE) /* used again and again: it stays */
            assert_int_equal(found(store, &w, FAVOURITE), N_TEXT);
        assert_true(stats_of(store).file_bytes <= EVICTION_LIMIT);
        assert_ok(
            quire_store_walk(store, is_whole, NULL)); /* whatever goes, what stays can be found */
    }
    const quire_store_stats stats = stats_of(store);
    assert_true(stats.evicted_pages > 0);
    assert_int_equal(stats.added_pages, TEXTS * PAGES);
    assert_int_equal(stats.pages + (int64_t)stats.evicted_pages, stats.added_pages);
    assert_sound(store, true);
    /* Oldest first: once one is whole, all that came after it are; at most one is there in part,
     * from its start. */
    int before = 0, n_whole = 0, n_part = 0;
    for (int i = 0; i < TEXTS; i++) {
        quire_store_key key;
        int32_t n = 0;
        const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        quire_store_find(store, w.f.pool, &text, &key, &n);
        if (i == FAVOURITE)
            continue;
        assert_true(n >= before);
        before = n;
        n_whole += n == N_TEXT;
        n_part += n > 0 && n < N_TEXT;
    }
    assert_true(n_whole > 10 && n_part <= 1);
    quire_store_close(store);
    fixture_close(&w.f);
}

static void test_eviction(void **state) {
    (void)state;
    check_eviction(open_store_eager(store_dir("eviction"), EVICTION_LIMIT));
}

/* As users have it: within a minute no use is written but with pages. */
static void test_eviction_by_default(void **state) {
    (void)state;
    check_eviction(open_store(store_dir("eviction-by-default"), EVICTION_LIMIT));
}

/* The transaction that was committed last, from LMDB's meta pages. */
static size_t last_transaction(const char *dir) {
    char path[320];
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    const bytes file = file_read(path);
    uint32_t page;
    size_t id[2];
    memcpy(&page, file.data + 40, sizeof page);
    for (int i = 0; i < 2; i++)
        memcpy(&id[i], file.data + (size_t)i * page + 144, sizeof id[i]);
    free(file.data);
    return id[0] > id[1] ? id[0] : id[1];
}

/* Finding writes nothing, however often; what was found goes last all the same, also after the
 * store was closed. */
static void test_finding_writes_nothing(void **state) {
    (void)state;
    enum { TEXTS = 10, MORE = 60 };
    for (int closes = 0; closes < 2; closes++) {
        writer w;
        char dir[300];
        open_writer(&w);
        snprintf(dir, sizeof dir, "%s", store_dir(closes ? "found-closed" : "found"));
        quire_store *store = open_store(dir, EVICTION_LIMIT);
        for (int i = 0; i < TEXTS; i++) {
            const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
            assert_ok(quire_store_put(store, w.seq, &text, NULL));
        }
        const size_t before = last_transaction(dir);
        for (int round = 0; round < 50; round++)
            for (int i = 0; i < TEXTS / 2; i++)
                assert_int_equal(found(store, &w, (uint64_t)i), N_TEXT);
        assert_int_equal(last_transaction(dir), before);
        if (closes) {
            quire_store_close(store);
            store = open_store(dir, 0);
        }
        int n_kept = TEXTS;
        for (int i = 0; i < MORE && n_kept == TEXTS; i++) { /* until the first page goes */
            const quire_store_text text = text_of(&w, (uint64_t)(100 + i), N_TEXT);
            assert_ok(quire_store_put(store, w.seq, &text, NULL));
            n_kept -= stats_of(store).evicted_pages > 0;
        }
        assert_int_equal(n_kept, TEXTS - 1);
        quire_store_key key;
        int32_t n = N_TEXT;
        const quire_store_text oldest =
            text_of(&w, TEXTS / 2, N_TEXT); /* the first that was not found */
        quire_store_find(store, w.f.pool, &oldest, &key, &n);
        assert_true(n < N_TEXT);
        for (int i = 0; i < TEXTS / 2; i++)
            assert_int_equal(found(store, &w, (uint64_t)i), N_TEXT);
        quire_store_close(store);
        fixture_close(&w.f);
    }
}

/* Texts that share their start: the start stays as long as one of them, and the branches go by
 * their own uses. */
static void test_branches(void **state) {
    (void)state;
    enum { TEXTS = 90, SHARED = 128 };
    writer w;
    open_writer(&w);
    quire_store *store = open_store(store_dir("branches"), EVICTION_LIMIT);
    int32_t start[SHARED];
    text_tokens(4242, SHARED, start);
    for (int i = 0; i < TEXTS; i++) {
        quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        memcpy(w.tokens, start, sizeof start);
        for (text.n_tokens = 64; text.n_tokens <= N_TEXT;
             text.n_tokens += 64) /* as a prompt comes in, batch by batch */
            assert_ok(quire_store_put(store, w.seq, &text, NULL));
        assert_ok(quire_store_walk(store, is_whole, NULL));
    }
    int before = 0;
    for (int i = 0; i < TEXTS; i++) {
        quire_store_key key;
        int32_t n = 0;
        const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        memcpy(w.tokens, start, sizeof start);
        assert_ok(quire_store_find(store, w.f.pool, &text, &key, &n));
        assert_true(n >= SHARED && n >= before); /* oldest first */
        before = n;
    }
    assert_true(stats_of(store).evicted_pages > 0);
    assert_sound(store, true);
    quire_store_close(store);
    fixture_close(&w.f);
}

/* A text that is larger than the limit: its start stays, and what others use is not thrown out
 * for its end. */
static void test_too_long_for_the_limit(void **state) {
    (void)state;
    enum { LONG = 64 * 600 };
    const source s = source_default(5);
    fixture f;
    fixture_init(&f, 1, 2, 1, 32, 32, "k4v4");
    f.options.max_seqs = 2;
    fixture_open(&f);
    quire_seq *seq, *again;
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, LONG, 512, 1, 0, NULL);
    int32_t *tokens = malloc(LONG * sizeof *tokens);
    text_tokens(77, LONG, tokens);
    const quire_store_text text = {
        .identity = "me", .identity_bytes = 2, .tokens = tokens, .n_tokens = LONG};
    quire_store *store = open_store(store_dir("too-long"), 1 << 20);
    quire_store_added added;
    assert_status(quire_store_put(store, seq, &text, &added), QUIRE_E_TOO_BIG);
    assert_true(added.pages > 50 && added.pages < 600);
    assert_ok(quire_store_get(store, f.pool, &text, 1, &again));
    assert_int_equal(quire_seq_length(again), added.pages * 64);
    assert_ok(quire_seq_free(again));
    assert_sound(store, true);
    assert_true(stats_of(store).file_bytes <= 1 << 20);
    quire_store_close(store);
    /* With more room it fits: the limit can be changed. */
    store = open_store(store_dir("too-long"), 8 << 20);
    assert_ok(quire_store_put(store, seq, &text, &added));
    assert_ok(quire_store_get(store, f.pool, &text, 0, &again));
    assert_int_equal(quire_seq_length(again), LONG);
    quire_store_close(store);
    store = open_store(store_dir("too-long"), 0);
    assert_int_equal(stats_of(store).max_bytes, 8 << 20);
    quire_store_close(store);
    free(tokens);
    fixture_close(&f);
}

enum { DIR_BYTES = 300 };

/* A writer, and a store of its own, whose directory other processes are told. */
static quire_store *open_both(writer *w, char dir[DIR_BYTES], const char *name, uint64_t limit) {
    open_writer(w);
    snprintf(dir, DIR_BYTES, "%s", store_dir(name));
    quire_store *store = open_store(dir, limit);
    assert_non_null(store);
    return store;
}

/* A process that has the store open goes by the limit that another gives it. */
static void test_another_changes_the_limit(void **state) {
    (void)state;
    enum { SMALL = 1 << 20, LARGE = 64 << 20, TEXTS = 2000 };
    writer w;
    char dir[DIR_BYTES];
    quire_store *store = open_both(&w, dir, "another-limit", SMALL);
    for (int round = 0; round < 2; round++) { /* more, then less again */
        const pid_t child = fork();
        if (child == 0) {
            quire_store *other = open_store(dir, round == 0 ? LARGE : SMALL);
            quire_store_close(other);
            _exit(other ? 0 : 2);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        for (int i = 0; i < TEXTS; i++) {
            const quire_store_text text = text_of(&w, (uint64_t)(TEXTS * round + i), N_TEXT);
            assert_ok(quire_store_put(store, w.seq, &text, NULL));
        }
        const quire_store_stats stats = stats_of(store);
        assert_int_equal(stats.max_bytes, round == 0 ? LARGE : SMALL);
        if (round == 0) {
            assert_int_equal(stats.evicted_pages, 0);
            assert_int_equal(stats.pages, TEXTS * PAGES);
            assert_true(stats.file_bytes > SMALL);
        } else {
            assert_true(stats.evicted_pages > TEXTS * PAGES);
            assert_true(stats.bytes <= SMALL);
        }
        assert_sound(store, true);
    }
    quire_store_close(store);
    fixture_close(&w.f);
}

/* ------------------------------------------------------------------ those who read long */

static void wait_at_first(void *user, int64_t done, int64_t total) {
    (void)total;
    if (done == 1)
        tell_and_wait(user);
}

static void verify_slowly(const char *dir, other_process *o) {
    quire_store_verify_options options;
    quire_store_verdict verdict;
    quire_store_verify_options_default(&options);
    options.on_progress = wait_at_first;
    options.user = o;
    quire_store *store = open_store(dir, 0);
    _exit(store && quire_store_verify(store, &options, &verdict) == QUIRE_OK && verdict.bad == 0
              ? 0
              : 3);
}

/* A reader that was killed holds on to old pages of the file until somebody looks whether it
 * lives. */
static void test_killed_reader(void **state) {
    (void)state;
    enum { TEXTS = 200 };
    writer w;
    char dir[DIR_BYTES];
    quire_store *store = open_both(&w, dir, "killed-reader", EVICTION_LIMIT);
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        assert_ok(quire_store_put(store, w.seq, &text, NULL));
        if (i != TEXTS / 2)
            continue;
        other_process o;
        start_other(&o, read_one_state, dir);
        assert_int_equal(kill(o.process, SIGKILL), 0);
        assert_true(WIFSIGNALED(wait_for_other(&o)));
    }
    assert_int_equal(found(store, &w, TEXTS - 1), N_TEXT);
    assert_true(stats_of(store).pages > 20 * PAGES); /* no more than room asks for has gone */
    assert_sound(store, true);
    quire_store_close(store);
    fixture_close(&w.f);
}

/* LMDB reuses nothing that a reader may still see. That is not a store that is too small: it
 * passes. */
static void test_long_reader(void **state) {
    (void)state;
    enum { TEXTS = 40, TRIES = 20 };
    writer w;
    char dir[DIR_BYTES], process[40];
    quire_store *store = open_both(&w, dir, "long-reader", EVICTION_LIMIT);
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(&w, (uint64_t)i, N_TEXT);
        assert_ok(quire_store_put(store, w.seq, &text, NULL));
    }
    other_process o;
    start_other(&o, read_one_state, dir);
    uint64_t seed = 1000;
    quire_status status = QUIRE_OK;
    for (; status == QUIRE_OK && seed < 1000 + 10 * TEXTS; seed++) {
        const quire_store_text text = text_of(&w, seed, N_TEXT);
        status = quire_store_put(store, w.seq, &text, NULL);
    }
    assert_status(status, QUIRE_E_BUSY);
    snprintf(process, sizeof process, "process %d", (int)o.process);
    assert_non_null(strstr(quire_last_error(), process));
    assert_non_null(strstr(quire_last_error(), "Try again later"));
    const quire_store_stats before = stats_of(store);
    for (int i = 0; i < TRIES; i++) { /* nothing is thrown out in vain */
        const quire_store_text text = text_of(&w, seed, N_TEXT);
        assert_status(quire_store_put(store, w.seq, &text, NULL), QUIRE_E_BUSY);
    }
    assert_int_equal(stats_of(store).pages, before.pages);
    assert_true(before.pages > 20 * PAGES);
    assert_sound(store, true);
    end_other(&o);
    for (int i = 0; i < TEXTS; i++) {
        const quire_store_text text = text_of(&w, seed + (uint64_t)i, N_TEXT);
        assert_ok(quire_store_put(store, w.seq, &text, NULL));
        assert_int_equal(found(store, &w, seed + (uint64_t)i), N_TEXT);
    }
    quire_store_close(store);
    fixture_close(&w.f);
}

/* Verifying takes as long as it takes, and nobody is kept from writing. */
static void test_slow_verify(void **state) {
    (void)state;
    enum { TEXTS = 40 };
    writer w;
    char dir[DIR_BYTES];
    quire_store *store = open_both(&w, dir, "slow-verify", EVICTION_LIMIT);
    for (int round = 0; round < 4; round++) {
        other_process o = {0};
        if (round > 0)
            start_other(&o, verify_slowly, dir);
        for (int i = 0; i < TEXTS; i++) {
            const quire_store_text text = text_of(&w, (uint64_t)(100 * round + i), N_TEXT);
            assert_ok(quire_store_put(store, w.seq, &text, NULL));
        }
        if (round > 0)
            end_other(&o);
    }
    quire_store_close(store);
    fixture_close(&w.f);
}

typedef struct slow_walk {
    writer *w;
    const char *dir;
    int n_seen;
} slow_walk;

static bool see_slowly(void *user, const quire_record_id *id, const uint8_t *data, size_t n,
                       int64_t used) {
    (void)id, (void)data, (void)n, (void)used;
    slow_walk *s = user;
    if (s->n_seen++ > 0)
        return true;
    const struct timespec long_enough = {0, 100000000L};
    const pid_t child = fork();
    if (child == 0) {
        quire_store *store = open_store(s->dir, 0);
        for (int i = 0; i < 20; i++) {
            const quire_store_text text = text_of(s->w, (uint64_t)(500 + i), N_TEXT);
            if (!store || quire_store_put(store, s->w->seq, &text, NULL) != QUIRE_OK)
                _exit(2);
        }
        quire_store_close(store);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    nanosleep(&long_enough, NULL);
    return true;
}

/* A walk that takes long goes on in a newer state, and sees what has come since. */
static void test_slow_walk(void **state) {
    (void)state;
    writer w;
    char dir[DIR_BYTES];
    quire_store *store = open_both(&w, dir, "slow-walk", 8 << 20);
    const quire_store_text text = text_of(&w, 1, N_TEXT);
    assert_ok(quire_store_put(store, w.seq, &text, NULL));
    slow_walk s = {.w = &w, .dir = dir};
    assert_ok(store->backend->walk(store->backend, NULL, see_slowly, &s));
    assert_true(s.n_seen > 1 + PAGES); /* of 106 records; six were there when it began */
    quire_store_close(store);
    fixture_close(&w.f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_opened_while_written),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_eviction_by_default),
        cmocka_unit_test(test_finding_writes_nothing),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_too_long_for_the_limit),
        cmocka_unit_test(test_another_changes_the_limit),
        cmocka_unit_test(test_killed_reader),
        cmocka_unit_test(test_long_reader),
        cmocka_unit_test(test_slow_verify),
        cmocka_unit_test(test_slow_walk),
    };
    return cmocka_run_group_tests(tests, NULL, store_teardown);
}
