/* quire_pool_price and quire_pool_capacity: a priced pool holds what it was priced for, the price
 * is not far above it, and the two functions are each other's inverse. */
#include <stdio.h>
#include <string.h>

#include "kit.h"

enum { SEQS_MAX = 5 };

static const source SOURCE = {
    .seed = 7, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 1};

static void random_options(fixture *f, rng *r) {
    static const char *const KV[] = {"none", "k8v4", "k4v4", "k3v3", "tq4", "mlx4"};
    static const int WINDOWS[] = {0, 0, 1, 63, 64, 65, 200, 700};
    fixture_init(f, 1 + rng_below(r, 4), 2, 1, 64, 64, KV[rng_below(r, 6)]);
    for (int i = 0; i < f->options.n_layers; i++) {
        f->layer[i].window = WINDOWS[rng_below(r, 8)];
        f->layer[i].keep = f->layer[i].window ? (int[]){0, 0, 4, 130}[rng_below(r, 4)] : 0;
        if (rng_below(r, 4) == 0) /* another leaf size in the class, or a raw layer beside it */
            f->layer[i].k = f->layer[i].v = rng_below(r, 2) ? QUIRE_CODEC_RAW : QUIRE_CODEC_VT8;
        f->layer[i].v_dim = rng_below(r, 3) ? 64 : 128;
    }
    quire_policy *policy = &f->options.policy;
    if (rng_below(r, 2)) /* windowed layers are raw otherwise */
        policy->windowed = policy->pair;
    f->options.max_seqs = 1 + rng_below(r, SEQS_MAX);
    f->options.max_tokens = 1 + rng_below(r, 1400);
    f->options.max_batch_tokens = (int[]){1, 7, 64, 65, 300}[rng_below(r, 5)];
    f->options.max_workers = 1;
    f->options.exact_trim = rng_below(r, 4) != 0;
}

static int smaller(int a, int b) { return a < b ? a : b; }

static void create(fixture *f, quire_seq **seq) {
    for (int i = 0; i < f->options.max_seqs; i++)
        assert_ok(quire_seq_create(f->pool, &seq[i]));
}

static void release(fixture *f, quire_seq **seq) {
    for (int i = 0; i < f->options.max_seqs; i++)
        assert_ok(quire_seq_free(seq[i]));
}

/* Grows all sequences to the full length: one after the other or side by side, in pieces of any
 * size. */
static void grow(fixture *f, quire_seq **seq, rng *r) {
    const int n_seqs = f->options.max_seqs, most = f->options.max_batch_tokens;
    const bool side_by_side = rng_below(r, 2);
    for (;;) {
        step_item items[SEQS_MAX];
        int n_items = 0, left = most;
        for (int i = 0; i < n_seqs && left > 0; i++) {
            const int to_go = f->options.max_tokens - quire_seq_length(seq[i]);
            if (to_go == 0 || (n_items > 0 && !side_by_side))
                continue;
            const int cap = side_by_side && most > n_seqs ? most / n_seqs : left;
            const int n = smaller(to_go, rng_below(r, 2) ? cap : 1 + rng_below(r, cap));
            items[n_items++] = (step_item){seq[i], &SOURCE, n};
            left -= n;
        }
        if (n_items == 0)
            break;
        const step_options options = {.store_only = true};
        assert_ok(step(f, items, n_items, &options, NULL));
        quire_pool_stats stats;
        if (rng_below(r, 8) == 0) /* gives the places of spare leaves back to the arena */
            quire_pool_get_stats(f->pool, &stats);
    }
}

/* Random layers, in a pool of the budget that they were priced at. */
static void open_priced(fixture *f, rng *r) {
    random_options(f, r);
    f->no_orders = false;
    fixture_open(f); /* gives layers their orders of channels */
    quire_pool_free(f->pool);
    assert_ok(quire_pool_price(&f->options, &f->options.budget_bytes));
    assert_ok(quire_pool_create(&f->pool, &f->options));
}

static void a_priced_pool_holds_what_it_was_priced_for(void **state) {
    (void)state;
    for (int turn = 0; turn < 100; turn++) {
        rng r = {.state = (uint64_t)turn};
        fixture f;
        quire_seq *seq[SEQS_MAX];
        open_priced(&f, &r);
        for (int times = 1 + rng_below(&r, 2); times > 0; times--) { /* again: in used memory */
            create(&f, seq);
            grow(&f, seq, &r);
            release(&f, seq);
        }
        fixture_close(&f);
    }
}

/* Raw pages lie side by side, every other one goes back, and sinks take their places: where sinks
 * are large, what is left of such a place serves no raw page. */
static void sinks_lie_in_the_places_of_raw_pages(void **state) {
    (void)state;
    enum { N = 64, LENGTH = 127, STEP = 16 };
    static const int SINKS[] = {4, 21, 22, 33, 40, 60, 64};
    for (size_t i = 0; i < sizeof SINKS / sizeof SINKS[0]; i++) {
        fixture f;
        quire_seq *seq[N];
        fixture_init(&f, 1, 1, 1, 64, 64, "k8v4");
        f.options.policy.sinks = SINKS[i];
        f.options.max_seqs = N;
        f.options.max_tokens = LENGTH;
        f.options.max_batch_tokens = STEP;
        f.options.max_workers = 1;
        assert_ok(quire_pool_price(&f.options, &f.options.budget_bytes));
        fixture_open(&f);
        create(&f, seq);
        for (int s = 0; s < N; s++)
            feed(&f, seq[s], &SOURCE, 1, 1, 1, 0, NULL);
        for (int s = 0; s < N; s += 2)
            assert_ok(quire_seq_trim(seq[s], 0));
        quire_pool_stats stats;
        quire_pool_get_stats(f.pool, &stats); /* which gives leaves back to the arena */
        for (int s = 1; s < N; s += 2)
            feed(&f, seq[s], &SOURCE, 63, STEP, 1, 0, NULL);
        for (int s = 0; s < N; s++)
            feed(&f, seq[s], &SOURCE, LENGTH - quire_seq_length(seq[s]), STEP, 1, 0, NULL);
        release(&f, seq);
        fixture_close(&f);
    }
}

/* Every sequence has its full length. One of them is cut or shifted, and then grows back. What a
 * window has lost (E_GONE) and codecs that cannot be shifted (E_UNSUPPORTED) are no matter of
 * room; that most attempts succeed is counted. */
static void a_full_pool_has_room_for_trims_and_shifts(void **state) {
    (void)state;
    enum { TRIM, SHIFT };
    int n_tried[2] = {0}, n_done[2] = {0};
    const quire_rope rope = {.n_rot = 64, .base = 10000};
    for (int turn = 0; turn < 60; turn++) {
        rng r = {.state = (uint64_t)(2000 + turn)};
        fixture f;
        quire_seq *seq[SEQS_MAX];
        open_priced(&f, &r);
        create(&f, seq);
        grow(&f, seq, &r);
        for (int i = 0; i < 6; i++) {
            quire_seq *one = seq[rng_below(&r, f.options.max_seqs)];
            const int length = quire_seq_length(one), from = rng_below(&r, length);
            const int what = rng_below(&r, 2);
            const quire_status status =
                what == TRIM
                    ? quire_seq_trim(one, from)
                    : quire_seq_shift(one, from, from + 1 + rng_below(&r, length - from), &rope, 1);
            if (status != QUIRE_OK && status != QUIRE_E_GONE && status != QUIRE_E_UNSUPPORTED)
                fail_msg("turn %d: %s of a sequence of %d: %s", turn,
                         what == TRIM ? "trim" : "shift", length, quire_last_error());
            n_tried[what]++;
            n_done[what] += status == QUIRE_OK;
            grow(&f, seq, &r);
        }
        release(&f, seq);
        fixture_close(&f);
    }
    for (int what = TRIM; what <= SHIFT; what++)
        if (n_done[what] < n_tried[what] / 5)
            fail_msg("only %d of %d were possible", n_done[what], n_tried[what]);
}

static void a_price_is_close_to_what_is_held(void **state) {
    (void)state;
    static const char *const KV[] = {"none", "k8v4", "k4v4"};
    for (int i = 0; i < 3; i++) {
        fixture f;
        fixture_init(&f, 8, 32, 8, 128, 128, KV[i]);
        fixture_open(&f);
        quire_pool_free(f.pool);
        f.options.max_seqs = 1;
        f.options.max_tokens = 131072;
        f.options.max_workers = 2;
        size_t price, page;
        assert_ok(quire_pool_price(&f.options, &price));
        assert_ok(quire_pool_create(&f.pool, &f.options));
        page = quire_seq_page_bytes(f.pool, 1);
        const double held = (double)page * f.options.max_tokens / QUIRE_PAGE_TOKENS;
        if (!((double)price > held && (double)price < 1.05 * held))
            fail_msg("%s: %zu bytes for pages of %.0f", KV[i], price, held);
        fixture_close(&f);
    }
}

static void capacity_is_the_inverse_of_price(void **state) {
    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        rng r = {.state = (uint64_t)(1000 + turn)};
        fixture f;
        random_options(&f, &r);
        fixture_open(&f);
        f.options.max_tokens = (1 + rng_below(&r, 50)) * QUIRE_PAGE_TOKENS;
        int32_t tokens;
        assert_ok(quire_pool_price(&f.options, &f.options.budget_bytes));
        assert_ok(quire_pool_capacity(&f.options, &tokens));
        assert_int_equal(tokens, f.options.max_tokens);
        f.options.budget_bytes--;
        if (quire_pool_capacity(&f.options, &tokens) == QUIRE_OK)
            assert_true(tokens < f.options.max_tokens);
        fixture_close(&f);
    }
}

/* The tables of a pool grow with max_tokens, or with the budget where that is 0: they leave less
 * for pages than those of a pool for just the tokens that fit. */
static void a_pool_holds_its_capacity(void **state) {
    (void)state;
    int n_tried = 0;
    for (int turn = 0; turn < 100; turn++) {
        rng r = {.state = (uint64_t)(3000 + turn)};
        fixture f;
        quire_seq *seq[SEQS_MAX];
        int32_t tokens;
        random_options(&f, &r);
        fixture_open(&f);
        quire_pool_free(f.pool);
        assert_ok(quire_pool_price(&f.options, &f.options.budget_bytes));
        f.options.max_tokens = rng_below(&r, 2) ? 0 : 1 << 20;
        f.options.budget_bytes += (size_t)rng_below(&r, 2) * f.options.budget_bytes / 2;
        f.options.budget_bytes += (size_t)f.options.max_seqs << 17;
        const quire_status status = quire_pool_capacity(&f.options, &tokens);
        if (status != QUIRE_OK) {
            assert_int_equal(status, QUIRE_E_BUDGET);
            continue;
        }
        n_tried++;
        assert_ok(quire_pool_create(&f.pool, &f.options));
        create(&f, seq);
        f.options.max_tokens = smaller(tokens, 4000); /* where `grow` ends */
        grow(&f, seq, &r);
        release(&f, seq);
        fixture_close(&f);
    }
    assert_true(n_tried > 50);
}

/* The budget that a refusal names is enough, and no smaller one is. */
static void the_smallest_budget_is_named(void **state) {
    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        rng r = {.state = (uint64_t)(4000 + turn)};
        fixture f;
        int32_t tokens;
        random_options(&f, &r);
        fixture_open(&f);
        f.options.max_tokens = (int[]){0, 64, 100, 1 << 20}[rng_below(&r, 4)];
        f.options.budget_bytes = (size_t)rng_below(&r, 5000);
        assert_status(quire_pool_capacity(&f.options, &tokens), QUIRE_E_BUDGET);
        const char *named = strstr(quire_last_error(), "at least ");
        assert_non_null(named);
        f.options.budget_bytes = (size_t)strtoull(named + strlen("at least "), NULL, 10);
        assert_ok(quire_pool_capacity(&f.options, &tokens));
        assert_true(tokens >= QUIRE_PAGE_TOKENS);
        f.options.budget_bytes--;
        assert_status(quire_pool_capacity(&f.options, &tokens), QUIRE_E_BUDGET);
        fixture_close(&f);
    }
}

static void bad_options_are_refused(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 2, 4, 2, 64, 64, "k8v4");
    fixture_open(&f);
    size_t bytes = 1;
    int32_t tokens = 1;
    f.options.max_tokens = 0;
    assert_status(quire_pool_price(&f.options, &bytes), QUIRE_E_INVALID);
    f.options.max_tokens = 1000;
    assert_status(quire_pool_price(NULL, &bytes), QUIRE_E_INVALID);
    assert_status(quire_pool_price(&f.options, NULL), QUIRE_E_INVALID);
    f.options.budget_bytes = 1000;
    assert_status(quire_pool_capacity(&f.options, &tokens), QUIRE_E_BUDGET);
    f.options.max_tokens = 63; /* no budget makes a page of them */
    f.options.budget_bytes = (size_t)1 << 30;
    assert_status(quire_pool_capacity(&f.options, &tokens), QUIRE_E_INVALID);
    f.options.budget_bytes = SIZE_MAX;
    assert_status(quire_pool_capacity(&f.options, &tokens), QUIRE_E_TOO_BIG);
    f.options.max_tokens = 1000; /* a price does not depend on the budget */
    assert_ok(quire_pool_price(&f.options, &bytes));
    bytes = 1;
    f.options.max_tokens = 1 << 30;
    f.options.max_seqs = 1 << 16;
    assert_status(quire_pool_price(&f.options, &bytes), QUIRE_E_TOO_BIG);
    f.options.max_seqs = 0;
    assert_status(quire_pool_price(&f.options, &bytes), QUIRE_E_INVALID);
    f.options.max_seqs = 1;
    f.layer[1].k_dim = 33;
    assert_status(quire_pool_price(&f.options, &bytes), QUIRE_E_UNSUPPORTED);
    assert_int_equal(bytes, 1);
    assert_int_equal(tokens, 1);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_priced_pool_holds_what_it_was_priced_for),
        cmocka_unit_test(sinks_lie_in_the_places_of_raw_pages),
        cmocka_unit_test(a_full_pool_has_room_for_trims_and_shifts),
        cmocka_unit_test(a_price_is_close_to_what_is_held),
        cmocka_unit_test(capacity_is_the_inverse_of_price),
        cmocka_unit_test(a_pool_holds_its_capacity),
        cmocka_unit_test(the_smallest_budget_is_named),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
