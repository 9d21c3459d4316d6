/* Rows that have left a window stay lost, whatever is made of their page afterwards: another
 * policy, a file re-sealed, a shift. A trim back to them is refused, and what is not refused
 * answers without them.
 *
 * V is 1 in every channel of every token, so attention over any tokens that are really there gives
 * 1. Each test counts by itself which tokens can be there. */
#include <math.h>

#include "ledger.h"
#include "saved.h"

enum { D = 32, WINDOW = 100, KEEP = 4, LENGTH = 500 };

static const quire_rope NOTHING_TURNS = {0};

static void open_layers(fixture *f, const char *kv, int sinks, int n_layers) {
    fixture_init(f, n_layers, 1, 1, D, D, kv);
    for (int i = 0; i < n_layers; i++) {
        f->layer[i].window = WINDOW;
        f->layer[i].keep = KEEP;
    }
    f->options.policy.windowed = f->options.policy.pair;
    f->options.policy.sinks = sinks;
    f->options.max_tokens = 2 * LENGTH;
    fixture_open(f);
}

static void open_windowed(fixture *f, const char *kv, int sinks) { open_layers(f, kv, sinks, 1); }

/* n tokens; every answer must be 1. */
static void feed_ones(fixture *f, quire_seq *seq, int n) {
    rng r = {(uint64_t)quire_seq_length(seq)};
    while (n > 0) {
        const int now = n < 50 ? n : 50;
        float k[50 * D], v[50 * D], q[50 * D], out[50 * D];
        quire_batch *batch;
        rng_fill(&r, k, (size_t)(now * D), 1);
        rng_fill(&r, q, (size_t)(now * D), 1);
        for (int i = 0; i < now * D; i++)
            v[i] = 1;
        assert_ok(quire_batch_begin(f->pool, &(quire_batch_item){seq, now}, 1, &batch));
        for (int layer = 0; layer < f->options.n_layers; layer++) {
            const quire_rows rows_k = {k, QUIRE_F32, 0}, rows_v = {v, QUIRE_F32, 0};
            assert_ok(quire_batch_append(batch, layer, rows_k, rows_v, 0, 1));
            const quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out};
            assert_ok(quire_batch_attend(batch, layer, &args, 0, 1));
            for (int i = 0; i < now * D; i++)
                if (fabsf(out[i] - 1) > 0.05f)
                    fail_msg("layer %d, row %d after %d tokens: %g instead of 1", layer, i / D,
                             (int)quire_seq_length(seq), (double)out[i]);
        }
        assert_ok(quire_batch_commit(batch, NULL));
        n -= now;
    }
}

static quire_seq *fed(fixture *f, int n) {
    quire_seq *seq;
    assert_ok(quire_seq_create(f->pool, &seq));
    feed_ones(f, seq, n);
    return seq;
}

/* Every trim: possible exactly if all that the next query sees is among the first `first_there`
 * tokens of page 0 (0: that page has gone) or among those from `there` on. */
static void check_trims(fixture *f, quire_seq *seq, int first_there, int there) {
    const int length = quire_seq_length(seq);
    int n_gone = 0;
    for (int n = length; n > 0; n--) {
        const int first = n < WINDOW ? 0 : n - WINDOW + 1;
        const bool possible = first >= there || n <= first_there;
        quire_seq *fork;
        assert_ok(quire_seq_fork(seq, &fork));
        const quire_status status = quire_seq_trim(fork, n);
        if (status != (possible ? QUIRE_OK : QUIRE_E_GONE))
            fail_msg("%d tokens trimmed to %d: %s", length, n, quire_status_name(status));
        assert_int_equal(quire_seq_length(fork), possible ? n : length);
        feed_ones(f, fork, 3); /* goes on, trimmed or not */
        assert_ok(quire_seq_free(fork));
        n_gone += !possible;
    }
    assert_true(n_gone > 0);
}

static int first_page(int length) {
    return (length - WINDOW + 1) / 64 * 64;
} /* that a window at the end still sees */

static void another_policy(void **state) {
    (void)state;
    static const char *const kv[] = {"k8v8", "none", "q8_0"};
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        for (int sinks = 0; sinks <= 9;
             sinks += 3) { /* fewer than are kept: page 0 is made of the raw sinks alone */
            fixture f;
            open_windowed(&f, "k8v8", 4);
            quire_seq *seq = fed(&f, LENGTH);
            quire_policy policy;
            assert_ok(quire_policy_parse(kv[i], &policy));
            policy.windowed = policy.pair;
            policy.sinks = sinks;
            assert_ok(quire_pool_requantize(f.pool, &policy));
            assert_ok(quire_pool_requantize_step(f.pool, 100, NULL));
            if (sinks >= KEEP &&
                i !=
                    1) { /* page 0 is still gone, so not even the kept tokens can be opened again */
                assert_status(quire_seq_trim(seq, KEEP), QUIRE_E_GONE);
            } else {
                check_trims(&f, seq, KEEP, first_page(LENGTH));
                feed_ones(&f, seq, 130); /* it wraps on */
                check_trims(&f, seq, KEEP, first_page(LENGTH + 130));
            }
            const size_t n_bytes = quire_seq_page_bytes(f.pool, 0);
            uint8_t *page = malloc(n_bytes);
            assert_status(quire_seq_page_save(seq, 0, page, n_bytes), QUIRE_E_GONE);
            free(page);
            fixture_close(&f);
        }
}

/* The sinks grow, and their page comes back later: rows that the larger sinks never had do not come
 * back with it. */
static void sinks_that_grew(void **state) {
    (void)state;
    fixture f;
    open_windowed(&f, "k8v8", 4);
    quire_seq *seq = fed(&f, LENGTH);
    for (int sinks = 40; sinks >= 0; sinks -= 40) {
        quire_policy policy;
        assert_ok(quire_policy_parse("k8v8", &policy));
        policy.windowed = policy.pair;
        policy.sinks = sinks;
        assert_ok(quire_pool_requantize(f.pool, &policy));
        assert_ok(quire_pool_requantize_step(f.pool, 100, NULL));
        /* Token 20 would be among the kept ones. */
        assert_status(quire_seq_shift(seq, 2, 20, &NOTHING_TURNS, 1), QUIRE_E_GONE);
    }
    check_trims(&f, seq, KEEP, first_page(LENGTH));
    fixture_close(&f);
}

/* Through a file in other codecs, and then through one in the same. */
static void a_file(void **state) {
    (void)state;
    fixture f, g;
    quire_seq *loaded, *again;
    const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};
    open_windowed(&f, "k8v8", 4);
    open_windowed(&g, "k8v8", 0);
    quire_seq *seq = fed(&f, LENGTH);
    assert_ok(quire_seq_save(seq, saved_path("lost"), NULL));
    assert_ok(saved_load(g.pool, saved_path("lost"), &reseal, &loaded));
    check_trims(&g, loaded, KEEP, first_page(LENGTH));
    assert_ok(quire_seq_save(loaded, saved_path("again"), NULL));
    assert_ok(saved_load(g.pool, saved_path("again"), NULL, &again));
    check_trims(&g, again, KEEP, first_page(LENGTH));
    assert_ok(saved_load(f.pool, saved_path("again"), &reseal,
                         &again)); /* and back, with sinks of their own */
    assert_status(quire_seq_trim(again, 60), QUIRE_E_GONE);
    /* A file may not say that a token is there which the sinks must have had. */
    bytes file = file_read(saved_path("again"));
    quire_file *opened;
    quire_file_info info;
    assert_ok(quire_file_open(&opened, saved_path("again")));
    quire_file_get_info(opened, &info);
    uint8_t *rows = file.data + info.sections[3].offset + 16 + 24; /* of page 0 */
    quire_file_close(opened);
    assert_int_equal(rows[0], 0x0f);
    rows[0] = 0x07; /* the last kept token is not there */
    file_sign(file);
    file_write(saved_path("again"), file.data, file.n);
    assert_status(saved_load(g.pool, saved_path("again"), NULL, &again), QUIRE_E_FORMAT);
    free(file.data);
    fixture_close(&f);
    fixture_close(&g);
}

/* The page at the window's edge is built again from pages of which one has gone. */
static void a_shift(void **state) {
    (void)state;
    static const int by[] = {1, 10, 30, 63};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
        fixture f;
        open_windowed(&f, "k8v8", 4);
        quire_seq *seq = fed(&f, LENGTH), *loaded;
        assert_ok(quire_seq_shift(seq, 64, 64 + by[i], &NOTHING_TURNS, 1));
        const int moved = first_page(LENGTH) - by[i], held = first_page(LENGTH - by[i]),
                  there = moved > held ? moved : held;
        check_trims(&f, seq, 0, there);
        assert_ok(quire_seq_save(seq, saved_path("shifted"), NULL));
        assert_ok(saved_load(f.pool, saved_path("shifted"), NULL, &loaded));
        check_trims(&f, loaded, 0, there);
        fixture_close(&f);
    }
}

/* Two layers that share pages, one of them raw now and then: raw ones have no sinks, so page 0
 * must stay for their kept tokens and, once lost, comes back with these alone. */
static void raw_beside_packed(void **state) {
    (void)state;
    const quire_pair packed = {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8},
                     raw = {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};
    const struct {
        quire_pair own; /* of layer 1 */
        int sinks;
    } forms[] = {{packed, 4}, {raw, 4}, {packed, 9}, {raw, 0}, {packed, 0}, {raw, 9}};
    enum { N_FORMS = sizeof forms / sizeof *forms };
    for (int from = 0; from < N_FORMS; from++)
        for (int to = 0; to < N_FORMS; to++) {
            if (from == to)
                continue;
            fixture f, g;
            quire_seq *seq[2], *loaded;
            const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};
            for (int i = 0; i < 2;
                 i++) { /* layer 1 has the codecs of the windowed layers, layer 0 its own */
                fixture *x = i ? &g : &f;
                open_layers(x, "k8v8", forms[i ? to : from].sinks, 2);
                fixture_close(x);
                x->layer[0].k = packed.k, x->layer[0].v = packed.v;
                x->options.policy.windowed = forms[i ? to : from].own;
                fixture_open(x);
                seq[i] = fed(x, LENGTH);
            }
            const bool gone = forms[from].own.k != QUIRE_CODEC_RAW && forms[from].sinks >= KEEP,
                       unpinned = forms[to].own.k != QUIRE_CODEC_RAW && forms[to].sinks >= KEEP;
            const int first_there = unpinned ? 0 : gone ? forms[from].sinks : 64;
            assert_ok(quire_seq_save(seq[0], saved_path("beside"), NULL));
            assert_ok(saved_load(g.pool, saved_path("beside"), &reseal, &loaded));
            check_trims(&g, loaded, first_there, first_page(LENGTH));
            assert_ok(quire_pool_requantize(f.pool, &g.options.policy));
            assert_ok(quire_pool_requantize_step(f.pool, 100, NULL));
            check_trims(&f, seq[0], first_there, first_page(LENGTH));
            assert_ok(quire_seq_save(seq[0], saved_path("beside"), NULL));
            assert_ok(saved_load(g.pool, saved_path("beside"), NULL,
                                 &loaded)); /* made with that policy */
            check_trims(&g, loaded, first_there, first_page(LENGTH));
            assert_ok(quire_seq_shift(seq[0], 70, 80, &NOTHING_TURNS, 1));
            feed_ones(&f, seq[0], 70);
            balance(&f);
            fixture_close(&f);
            fixture_close(&g);
        }
}

static void a_cache_from_elsewhere(void **state) {
    (void)state;
    fixture f;
    quire_seq *fork;
    quire_batch *batch;
    open_windowed(&f, "k8v8", 4);
    quire_seq *seq = fed(&f, LENGTH);
    assert_ok(quire_seq_fork(seq, &fork));
    assert_status(quire_seq_forget(seq), QUIRE_E_STATE);
    assert_ok(quire_seq_free(fork));
    assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){seq, 1}, 1, &batch));
    assert_status(quire_seq_forget(seq), QUIRE_E_BUSY);
    quire_batch_abort(batch);
    assert_status(quire_seq_forget(NULL), QUIRE_E_INVALID);
    assert_ok(quire_seq_forget(seq));
    for (int n = LENGTH - 1; n > 0; n--)
        assert_status(quire_seq_trim(seq, n), QUIRE_E_GONE);
    assert_ok(quire_seq_trim(seq, LENGTH));
    feed_ones(&f, seq, 40);
    assert_ok(quire_seq_trim(seq, LENGTH + 20)); /* what came later is there */
    assert_ok(quire_seq_trim(seq, LENGTH));
    assert_status(quire_seq_trim(seq, LENGTH - 1), QUIRE_E_GONE);
    assert_ok(quire_seq_trim(seq, 0));
    feed_ones(&f, seq, 70);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_policy),
        cmocka_unit_test(sinks_that_grew),
        cmocka_unit_test(a_file),
        cmocka_unit_test(a_shift),
        cmocka_unit_test(raw_beside_packed),
        cmocka_unit_test(a_cache_from_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, saved_teardown);
}
