/* Workers side by side, and independent batches of one pool in flight at once. Meant for
 * ThreadSanitizer too. */
#include <pthread.h>
#include <string.h>

#include "kit.h"

enum { H = 4, G = 2, D = 64, N = 150 };

static void workers_store_and_attend(void **state) {
    (void)state;
    const char *pairs[] = {"k4v4", "none", "tqp4:a4"};
    for (int p = 0; p < 3; p++) {
        const source s = source_default(1);
        static float one[1300 * H * D], many[1300 * H * D];
        fixture f;
        fixture_init(&f, 2, H, G, D, D, pairs[p]);
        f.layer[1].window = 100;
        f.layer[1].keep = 4;
        fixture_open(&f);
        for (int n = 1; n <= 8; n += 7) {
            quire_seq *seq;
            assert_ok(quire_seq_create(f.pool, &seq));
            feed(&f, seq, &s, 1100, 300, n, 0, NULL);
            feed(&f, seq, &s, 40, 3, n, 1, n == 1 ? one : many);
            feed(&f, seq, &s, 90, 90, n, 0, (n == 1 ? one : many) + 40 * H * D);
            assert_ok(quire_seq_free(seq));
        }
        assert_memory_equal(one, many, 130 * H * D * sizeof *one);
        fixture_close(&f);
    }
}

typedef struct user {
    fixture *f;
    uint64_t seed;
    float out[N * H * D];
    int n_converting; /* steps that left pages converted */
} user;

static void *
use_pool(void *argument) /* create, fill, fork, trim, save, free, while others do the same */
{
    user *u = argument;
    const source s = source_default(u->seed);
    quire_seq *seq, *child;
    quire_pool_stats stats;
    for (int round = 0; round < 3; round++) {
        if (quire_seq_create(u->f->pool, &seq) != QUIRE_OK)
            return "create";
        for (int done = 0; done < N; done += 50) {
            const step_item item = {seq, &s, 50};
            if (step(u->f, &item, 1, NULL, u->out + done * H * D) != QUIRE_OK)
                return "step";
        }
        if (quire_seq_fork(seq, &child) != QUIRE_OK || quire_seq_trim(child, 70) != QUIRE_OK)
            return "fork, trim";
        quire_pool_get_stats(u->f->pool, &stats);
        if (stats.shadow_bytes != 0)
            return "shadow bytes";
        if (quire_seq_free(child) != QUIRE_OK || quire_seq_free(seq) != QUIRE_OK)
            return "free";
    }
    return NULL;
}

static void users_of_one_pool(void **state) {
    (void)state;
    enum { USERS = 4 };
    static user alone[USERS], together[USERS];
    pthread_t thread[USERS];
    fixture f;
    fixture_init(&f, 1, H, G, D, D, "k8v4");
    f.options.max_batches = USERS;
    fixture_open(&f);
    for (int i = 0; i < USERS; i++) {
        alone[i].f = together[i].f = &f;
        alone[i].seed = together[i].seed = 50 + (uint64_t)i;
        assert_null(use_pool(&alone[i]));
    }
    for (int i = 0; i < USERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use_pool, &together[i]), 0);
    for (int i = 0; i < USERS; i++) {
        void *trouble = NULL;
        pthread_join(thread[i], &trouble);
        if (trouble)
            fail_msg("user %d: %s", i, (const char *)trouble);
        assert_memory_equal(alone[i].out, together[i].out, sizeof alone[i].out);
    }
    quire_pool_stats stats;
    quire_pool_get_stats(f.pool, &stats);
    assert_int_equal(stats.n_seqs, 0);
    assert_int_equal(stats.free_bytes, stats.arena_bytes);
    fixture_close(&f);
}

/* Pages are converted, back and forth, while others attend over pages of both forms. */
static void *convert_pool(void *argument) {
    user *u = argument;
    const char *kv[2] = {"tq4", "k8v4"};
    for (int round = 0; round < 40; round++) {
        quire_policy policy;
        quire_requantize_stats stats;
        if (quire_policy_parse(kv[round % 2], &policy) != QUIRE_OK)
            return "policy";
        const quire_status status = quire_pool_requantize(u->f->pool, &policy);
        if (status != QUIRE_OK && status != QUIRE_E_BUSY && status != QUIRE_E_STATE)
            return "requantize";
        if (quire_pool_requantize_step(u->f->pool, 2, &stats) != QUIRE_OK)
            return "step";
        u->n_converting += stats.pages_done > 0;
    }
    return NULL;
}

static void conversion_beside_users(void **state) {
    (void)state;
    enum { USERS = 3 };
    static user users[USERS];
    pthread_t thread[USERS];
    fixture f;
    fixture_init(&f, 1, H, G, D, D, "k8v4");
    f.options.max_batches = USERS;
    fixture_open(&f);
    const source s = source_default(9);
    quire_seq *idle;
    assert_ok(quire_seq_create(f.pool, &idle));
    feed(&f, idle, &s, 300, 300, 1, 0, NULL);
    quire_policy
        policy; /* begun before there are others: from then on batches may always be in its way */
    assert_ok(quire_policy_parse("tq4", &policy));
    assert_ok(quire_pool_requantize(f.pool, &policy));
    for (int i = 0; i < USERS; i++) {
        users[i].f = &f;
        users[i].seed = 70 + (uint64_t)i;
        assert_int_equal(
            pthread_create(&thread[i], NULL, i == 0 ? convert_pool : use_pool, &users[i]), 0);
    }
    for (int i = 0; i < USERS; i++) {
        void *trouble = NULL;
        pthread_join(thread[i], &trouble);
        if (trouble)
            fail_msg("user %d: %s", i, (const char *)trouble);
    }
    assert_true(users[0].n_converting > 0);
    quire_requantize_stats stats;
    assert_ok(quire_pool_requantize_step(f.pool, INT32_MAX, &stats));
    assert_int_equal(stats.pages_left, 0);
    assert_ok(quire_seq_free(idle));
    quire_pool_stats all;
    quire_pool_get_stats(f.pool, &all);
    assert_int_equal(all.free_bytes, all.arena_bytes);
    fixture_close(&f);
}

/* A worker whose call is refused does not disturb the others, nor the next call. */
static void refused_worker(void **state) {
    (void)state;
    static float k[G * D * 3], v[G * D * 3], q[H * D * 3], one[H * D * 3], two[H * D * 3];
    rng r = {1};
    fixture f;
    fixture_init(&f, 1, H, G, D, D, "k8v4");
    fixture_open(&f);
    quire_seq *seq;
    quire_batch *batch;
    assert_ok(quire_seq_create(f.pool, &seq));
    const quire_batch_item item = {seq, 3};
    assert_ok(quire_batch_begin(f.pool, &item, 1, &batch));
    rng_fill(&r, k, G * D * 3, 1);
    rng_fill(&r, v, G * D * 3, 1);
    rng_fill(&r, q, H * D * 3, 1);
    assert_ok(quire_batch_append(batch, 0, (quire_rows){k, QUIRE_F32, 0},
                                 (quire_rows){v, QUIRE_F32, 0}, 0, 1));
    quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = one},
                      bad = {.q = {NULL, QUIRE_F32, 0}, .out = one};
    assert_string_equal(quire_batch_error(batch), "");
    assert_status(quire_batch_attend(batch, 0, &bad, 1, 2), QUIRE_E_INVALID);
    assert_ok(quire_batch_attend(batch, 0, &args, 0, 2));
    assert_string_not_equal(quire_batch_error(batch), "");
    args.out = two;
    assert_ok(quire_batch_attend(batch, 0, &args, 0, 2));
    assert_ok(quire_batch_attend(batch, 0, &args, 1, 2));
    assert_memory_equal(one, two, sizeof one);
    quire_batch_abort(batch);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_store_and_attend), cmocka_unit_test(users_of_one_pool),
        cmocka_unit_test(conversion_beside_users), cmocka_unit_test(refused_worker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
