/* A store has what computing a text gives, and nothing else: caches with a history are refused with
 * the reason, pages that lost tokens are left out, and names do not depend on the policies that a
 * pool has had. */
#include <string.h>

#include "ledger.h"
#include "quire_store.h"
#include "saved.h"
#include "store_kit.h"

enum { N_TEXT = 300 };

static const char IDENTITY[] = "a model";
static const quire_rope ROPE = {.n_rot = 64, .base = 1e4f};
static int32_t tokens[N_TEXT];

static quire_store_text text_of(int n) {
    return (quire_store_text){.identity = IDENTITY,
                              .identity_bytes = sizeof IDENTITY - 1,
                              .tokens = tokens,
                              .n_tokens = n};
}

static quire_store *open_store(const char *name) {
    quire_store *store;
    assert_ok(quire_store_open(&store, store_dir(name), NULL));
    return store;
}

static int64_t records_of(quire_store *store) {
    quire_store_stats stats;
    assert_ok(quire_store_get_stats(store, &stats));
    return stats.records;
}

static quire_status import_seq(quire_store *store, const quire_seq *seq, quire_store_added *added) {
    quire_save_options o;
    quire_file *file;
    quire_save_options_default(&o);
    o.identity = IDENTITY;
    o.identity_bytes = sizeof IDENTITY - 1;
    o.tokens = tokens;
    o.n_tokens = N_TEXT;
    assert_ok(quire_seq_save(seq, saved_path("import"), &o));
    assert_ok(quire_file_open(&file, saved_path("import")));
    const quire_status status = quire_store_import(store, file, NULL, NULL, added);
    quire_file_close(file);
    return status;
}

/* Neither the sequence nor its file gets in, and the sentence names the reason. */
static void assert_refused(quire_store *store, const quire_seq *seq, const char *why) {
    const quire_store_text text = text_of(N_TEXT);
    quire_store_added added = {7, 7};
    assert_status(quire_store_put(store, seq, &text, &added), QUIRE_E_HISTORY);
    assert_non_null(strstr(quire_last_error(), why));
    assert_int_equal(added.pages, 0);
    assert_status(import_seq(store, seq, &added), QUIRE_E_HISTORY);
    assert_non_null(strstr(quire_last_error(), why));
    assert_int_equal(added.pages, 0);
    assert_int_equal(records_of(store), 0);
}

static void assert_taken(const quire_seq *seq, int n_pages) {
    for (int by_file = 0; by_file < 2; by_file++) {
        quire_store *store = open_store(by_file ? "taken-file" : "taken");
        const quire_store_text text = text_of(N_TEXT);
        quire_store_added added;
        assert_ok(by_file ? import_seq(store, seq, &added)
                          : quire_store_put(store, seq, &text, &added));
        assert_int_equal(added.pages, n_pages);
        assert_ok(quire_store_remove(store, NULL, NULL));
        quire_store_close(store);
    }
}

static void history(void **state) {
    (void)state;
    const source s = source_default(7);
    fixture f, other;
    quire_seq *fork;
    open_pool(&f, "k8v4", POOL_FULL, QUIRE_F16);
    open_pool(&other, "k8v8", POOL_FULL, QUIRE_F16);
    quire_store *store = open_store("refused");
    quire_seq *seq = fed_seq(&f, &s, N_TEXT), *loaded;
    const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};

    assert_ok(quire_seq_fork(seq, &fork)); /* deep inside a sealed page */
    assert_ok(quire_seq_trim(fork, 100));
    feed(&f, fork, &s, 100, 64, 1, 0, NULL);
    assert_refused(store, fork, "trimmed");
    const quire_store_text first = text_of(64); /* the page before it is what it was */
    assert_ok(quire_store_put(store, fork, &first, NULL));
    assert_ok(quire_store_remove(store, NULL, NULL));
    assert_ok(quire_seq_trim(fork, 64)); /* and without the rest all of it is */
    assert_taken(fork, 1);
    drop(fork);
    assert_ok(quire_seq_fork(seq, &fork)); /* in the page sealed last, then between pages: exact */
    assert_ok(quire_seq_trim(fork, 250));
    assert_taken(fork, 3);
    assert_ok(quire_seq_trim(fork, 128));
    assert_taken(fork, 2);
    drop(fork);

    assert_ok(quire_seq_fork(seq, &fork));
    assert_ok(quire_seq_shift(fork, 70, 80, &ROPE, 1));
    assert_refused(store, fork, "shifted");
    drop(fork);

    assert_ok(quire_seq_save(seq, saved_path("sealed"), NULL));
    assert_ok(saved_load(other.pool, saved_path("sealed"), &reseal, &loaded));
    assert_refused(store, loaded, "resealed");
    assert_ok(quire_seq_trim(loaded, 192));
    feed(&other, loaded, &s, 64, 64, 1, 0, NULL); /* computed here, but from what was resealed */
    assert_refused(store, loaded, "resealed");
    assert_ok(saved_load(f.pool, saved_path("sealed"), &reseal,
                         &loaded)); /* nothing had to be sealed again */
    assert_taken(loaded, 4);

    quire_policy policy;
    assert_ok(quire_policy_parse("k8v8", &policy));
    assert_ok(quire_pool_requantize(f.pool, &policy));
    assert_ok(quire_pool_requantize_step(f.pool, 1000, NULL));
    assert_refused(store, seq, "requantized");
    quire_store_close(store);
    fixture_close(&f);
    fixture_close(&other);
}

/* A page at a window's edge that has lost tokens: the text up to the last full page, a little
 * shorter than the cache, would see some of them. */
static void pages_with_lost_tokens(void **state) {
    (void)state;
    const source s = source_default(8);
    for (int kind = POOL_WINDOWS; kind <= POOL_KEEP; kind++) {
        fixture a, b;
        quire_seq *found;
        open_pool(&a, "k8v4", (pool_kind)kind, QUIRE_F16);
        open_pool(&b, "k8v4", (pool_kind)kind, QUIRE_F16);
        quire_seq *seq = fed_seq(&a, &s, 260);
        assert_ok(quire_seq_forget(seq));
        for (int by_file = 0; by_file < 2; by_file++) {
            quire_store *store = open_store("lost");
            const quire_store_text all = text_of(N_TEXT);
            assert_ok(by_file ? import_seq(store, seq, NULL)
                              : quire_store_put(store, seq, &all, NULL));
            assert_ok(quire_store_get(store, b.pool, &all, 0, &found));
            assert_int_equal(quire_seq_length(found), 0);
            drop(found);
            assert_ok(quire_store_remove(store, NULL, NULL));
            quire_store_close(store);
        }
        drop(seq);
        quire_store *store = open_store("whole"); /* with all its tokens it is found */
        const quire_store_text all = text_of(N_TEXT);
        seq = fed_seq(&a, &s, 260);
        assert_ok(quire_store_put(store, seq, &all, NULL));
        assert_ok(quire_store_get(store, b.pool, &all, 0, &found));
        assert_int_equal(quire_seq_length(found), 256);
        drop(found), drop(seq);
        assert_ok(quire_store_remove(store, NULL, NULL));
        quire_store_close(store);
        fixture_close(&a);
        fixture_close(&b);
    }
}

/* A pool that was given a policy finds what one that was made with it has put, and the other way
 * round. */
static void names_of_a_policy(void **state) {
    (void)state;
    const source s = source_default(9);
    for (int way = 0; way < 2; way++) {
        fixture made, given;
        quire_seq *found;
        const quire_policy policy = fixture_open_edges(&made, &given, 64);
        assert_ok(quire_pool_requantize(given.pool, &policy));
        fixture *from = way ? &given : &made, *to = way ? &made : &given;
        quire_store *store = open_store("names");
        const quire_store_text text = text_of(N_TEXT);
        quire_seq *seq = fed_seq(from, &s, N_TEXT);
        assert_ok(quire_store_put(store, seq, &text, NULL));
        assert_ok(quire_store_get(store, to->pool, &text, 0, &found));
        assert_int_equal(quire_seq_length(found), N_TEXT / 64 * 64);
        assert_ok(quire_seq_trim(seq, N_TEXT / 64 * 64));
        assert_same_future(from, seq, to, found, &s, 70);
        assert_ok(quire_store_remove(store, NULL, NULL));
        quire_store_close(store);
        fixture_close(&made);
        fixture_close(&given);
    }
}

int main(void) {
    text_tokens(1, N_TEXT, tokens);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(history),
        cmocka_unit_test(pages_with_lost_tokens),
        cmocka_unit_test(names_of_a_policy),
    };
    return cmocka_run_group_tests(tests, NULL, store_teardown);
}
