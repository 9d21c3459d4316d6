/* One store and one pool, many threads: each puts and finds its own texts and those of the
 * others. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "quire_store.h"
#include "store_kit.h"
#include "store_places.h"

enum { N_TEXT = 192, THREADS = 4, ROUNDS = 30, TEXTS = 10 };

typedef struct shared {
    fixture f;
    quire_store *store;
    quire_seq *seq[THREADS];
    atomic_int failures, found;
} shared;

typedef struct worker {
    shared *all;
    int index;
    pthread_t thread;
} worker;

static void *work(void *user) {
    const worker *w = user;
    shared *all = w->all;
    int32_t tokens[N_TEXT];
    for (int i = 0; i < ROUNDS; i++) {
        text_tokens((uint64_t)((i * 7 + w->index) % TEXTS), N_TEXT, tokens);
        const quire_store_text text = {
            .identity = "me", .identity_bytes = 2, .tokens = tokens, .n_tokens = N_TEXT};
        quire_seq *seq;
        bool good = quire_store_put(all->store, all->seq[w->index], &text, NULL) == QUIRE_OK &&
                    quire_store_get(all->store, all->f.pool, &text, 0, &seq) == QUIRE_OK;
        if (good) {
            atomic_fetch_add(&all->found, quire_seq_length(seq) / 64);
            good = quire_seq_length(seq) == N_TEXT && quire_seq_free(seq) == QUIRE_OK;
        }
        atomic_fetch_add(&all->failures, !good);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    static shared all;
    static worker workers[THREADS];
    const source s = source_default(5);
    fixture_init(&all.f, 1, 2, 1, 32, 32, "k4v4");
    all.f.options.max_seqs = 2 * THREADS;
    fixture_open(&all.f);
    assert_ok(places_open(&all.store, "threads", NULL));
    for (int i = 0; i < THREADS; i++) {
        assert_ok(quire_seq_create(all.f.pool, &all.seq[i]));
        feed(&all.f, all.seq[i], &s, N_TEXT, 64, 1, 0, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.all = &all, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_int_equal(atomic_load(&all.found), THREADS * ROUNDS * N_TEXT / 64);
    quire_store_stats stats;
    quire_store_verdict verdict;
    assert_ok(quire_store_get_stats(all.store, &stats));
    assert_int_equal(stats.pages, TEXTS * N_TEXT / 64);
    assert_int_equal(stats.hit_pages, THREADS * ROUNDS * N_TEXT / 64);
    assert_ok(quire_store_verify(all.store, NULL, &verdict));
    assert_int_equal(verdict.bad, 0);
    quire_store_close(all.store);
    fixture_close(&all.f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    const int missing = places_missing(places_kind() >= PLACE_REDIS);
    return missing ? missing : cmocka_run_group_tests(tests, NULL, places_teardown);
}
