/* Memory that cannot be had: every allocation fails once, nothing leaks, and the next try works. */
#include "ledger.h"

static const source SOURCE = {
    .seed = 31, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};
static const source OTHER = {
    .seed = 32, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};

static void init(fixture *f, const quire_allocator *allocator) {
    static const float slopes[2] = {0.5f, 0.25f}, sinks[2] = {1, -1};
    fixture_init(f, 4, 2, 1, 32, 48, "k8v4");
    f->layer[0].alibi = slopes;
    f->layer[0].sink_logits = sinks;
    f->layer[1].window = 70;
    f->layer[2].k = f->layer[2].v = QUIRE_CODEC_RAW;
    f->layer[3].share = 0;
    f->options.allocator = allocator;
    f->options.budget_bytes = (size_t)8 << 20;
    f->options.max_tokens = 512;
    f->options.max_batches = 2;
    f->options.max_workers = 2;
}

/* A life with everything in it. Returns the first status that is not OK. */
static quire_status scenario(fixture *f, float *out) {
    quire_seq *a, *b, *c;
    const quire_status created = fixture_try(f);
    if (created != QUIRE_OK)
        return created;
    assert_ok(quire_seq_create(f->pool, &a));
    feed(f, a, &SOURCE, 150, 37, 1, 0, NULL);
    assert_ok(quire_seq_fork(a, &b));
    assert_ok(quire_seq_trim(b, 140));
    assert_ok(step(f, &(step_item){b, &OTHER, 9}, 1, &(step_options){.abort = true}, NULL));
    const step_item both[] = {{a, &SOURCE, 50}, {b, &OTHER, 3}};
    assert_ok(step(f, both, 2, &(step_options){.n_accept = (int32_t[]){48, 2}}, NULL));
    const size_t bytes = quire_seq_page_bytes(f->pool, 0);
    uint8_t *page = malloc(bytes);
    assert_ok(quire_seq_create(f->pool, &c));
    feed(f, c, &SOURCE, 64, 64, 1, 0, NULL);
    assert_ok(quire_seq_page_save(c, 0, page, bytes));
    assert_ok(quire_seq_trim(c, 0));
    assert_ok(quire_seq_page_load(c, page, bytes));
    free(page);
    const step_item all[] = {{c, &OTHER, 5}, {a, &OTHER, 5}, {b, &OTHER, 5}};
    assert_ok(step(f, all, 3, NULL, out));
    balance(f);
    drop(a);
    drop(c);
    fixture_close(f); /* with b still alive: it dies with its pool */
    return QUIRE_OK;
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    fixture f;
    ledger l = {.fill = 0xee};
    const quire_allocator allocator = ledger_allocator(&l);
    init(&f, &allocator);
    const size_t floats = answer_floats(&f, 15);
    float *wanted = malloc(floats * sizeof *wanted), *out = malloc(floats * sizeof *out);
    assert_ok(scenario(&f, wanted));
    assert_int_equal(l.n_live, 0);
    const int n_calls = l.n_calls;
    assert_in_range(n_calls, 1, 100);
    for (int n = 1; n <= n_calls; n++) {
        l = (ledger){.fill = n, .refuse_call = n};
        f.pool = (quire_pool *)&f;
        assert_status(scenario(&f, out), QUIRE_E_NOMEM);
        assert_reason("no memory");
        assert_null(f.pool);
        assert_int_equal(l.n_calls, n); /* it gave up at once ... */
        assert_int_equal(l.n_live, 0);  /* ... and gave back all it had */
        assert_ok(scenario(&f, out));
        assert_int_equal(l.n_live, 0);
        assert_memory_equal(out, wanted, floats * sizeof *out);
    }
    free(wanted), free(out);
}

/* Other reasons to refuse a pool must not leak either. */
static void refusals_leak_nothing(void **state) {
    (void)state;
    ledger l = {0};
    const quire_allocator allocator = ledger_allocator(&l);
    for (int i = 0; i < 6; i++) {
        fixture f;
        init(&f, &allocator);
        quire_status wanted = QUIRE_E_INVALID;
        if (i == 0)
            f.layer[3].share = 3;
        if (i == 1)
            f.layer[3].v_dim = 64;
        if (i == 2)
            f.layer[2].k = QUIRE_CODEC_VT4, wanted = QUIRE_E_UNSUPPORTED;
        if (i == 3)
            f.layer[1].k_dim = 40, wanted = QUIRE_E_UNSUPPORTED;
        if (i == 4)
            f.options.budget_bytes = 1000, wanted = QUIRE_E_BUDGET;
        if (i == 5)
            f.options.policy.windowed.k = QUIRE_CODEC_DEFAULT, wanted = QUIRE_E_UNKNOWN;
        assert_status(fixture_try(&f), wanted);
        assert_null(f.pool);
        assert_int_equal(l.n_live, 0);
    }
}

/* A budget that the machine cannot give is not the library's end. */
static void too_large_for_the_machine(void **state) {
    (void)state;
    fixture f;
    ledger l = {.refuse_above = (size_t)64 << 20};
    const quire_allocator allocator = ledger_allocator(&l);
    init(&f, &allocator);
    for (int shift = 27; shift <= 40; shift++) {
        f.options.budget_bytes = (size_t)1 << shift;
        assert_status(fixture_try(&f), QUIRE_E_NOMEM);
        assert_int_equal(l.n_live, 0);
    }
    f.options.budget_bytes = (size_t)8 << 20;
    fixture_open(&f);
    fixture_close(&f);
    assert_int_equal(l.n_live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(refusals_leak_nothing),
        cmocka_unit_test(too_large_for_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
