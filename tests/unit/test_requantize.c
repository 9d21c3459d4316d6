/* Another policy for a pool in use: raw to quantized, before and after a window has wrapped, any
 * codec to any other, full pools, shared pages, batches in flight, taking it back.
 * tests/unit/test_ops.c does the same at random. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"
#include "saved.h"

static const source SOURCE = {.seed = 5, .k_scale = 1, .v_scale = 1, .q_scale = 1};
static const source OTHER = {.seed = 6, .k_scale = 1, .v_scale = 1, .q_scale = 1};

static quire_policy policy_of(const char *kv) {
    quire_policy policy;
    assert_ok(quire_policy_parse(kv, &policy));
    policy.windowed = policy.pair;
    return policy;
}

static void init(fixture *f, const char *kv) {
    fixture_init(f, 3, 4, 2, 64, 64, kv);
    f->layer[1].window = 100;
    f->layer[1].keep = 5;
    f->layer[2].share = 0;
    f->options.max_tokens = 2048;
}

static quire_requantize_stats convert_all(fixture *f, const char *kv) {
    const quire_policy policy = policy_of(kv);
    quire_requantize_stats stats;
    assert_ok(quire_pool_requantize(f->pool, &policy));
    assert_ok(quire_pool_requantize_step(f->pool, INT32_MAX, &stats));
    assert_int_equal(stats.pages_left, 0);
    balance(f);
    return stats;
}

/* A raw cache that becomes quantized is from then on the one that always was: same bits, same
 * bytes, same roll-back. */
static void raw_becomes_what_it_would_have_been(void **state) {
    (void)state;
    static const char *const kvs[] = {"k8v4", "k4v4",    "tq4",     "tqp4:vt3", "mlx4",
                                      "q8_0", "raw:vt4", "kc8:raw", "km4:vt4",  "km3:vt2"};
    static const int lengths[] = {1, 63, 64, 65, 130, 200, 333, 700};
    int sweep = 0;
    for (size_t i = 0; i < sizeof kvs / sizeof *kvs; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            if (!sweep_takes(&sweep, 3))
                continue;
            fixture raw, always;
            init(&raw, "none");
            init(&always, kvs[i]);
            fixture_open(&raw);
            fixture_open(&always);
            quire_seq *a = fed_seq(&raw, &SOURCE, lengths[j]),
                      *b = fed_seq(&always, &SOURCE, lengths[j]);
            const quire_requantize_stats stats = convert_all(&raw, kvs[i]);
            assert_int_equal(quire_seq_length(a), lengths[j]);
            assert_int_equal(stats.pages_done > 0, lengths[j] >= 64);
            assert_true(lengths[j] < 64 || stats.bytes_after < stats.bytes_before);
            const quire_pool_stats now = balance(&raw), wanted = balance(&always);
            assert_int_equal(now.sealed_bytes, wanted.sealed_bytes);
            assert_int_equal(now.open_bytes, wanted.open_bytes);
            assert_int_equal(now.last_raw_bytes, wanted.last_raw_bytes);
            assert_int_equal(now.sink_bytes, wanted.sink_bytes);
            float *answers = probe(&always, b, &OTHER, 70);
            assert_answers(&raw, a, &OTHER, 70, answers);
            free(answers);
            const int back =
                lengths[j] < 65 ? 1 : 64 * (lengths[j] / 64) - 3; /* into the page sealed last */
            const quire_status status = quire_seq_trim(b, back);
            assert_status(quire_seq_trim(a, back), status);
            answers = probe(&always, b, &OTHER, 3);
            assert_answers(&raw, a, &OTHER, 3, answers);
            free(answers);
            drop(a), drop(b);
            assert_all_free(&raw);
            fixture_close(&raw);
            fixture_close(&always);
        }
}

static void again_changes_nothing(void **state) {
    (void)state;
    fixture f;
    init(&f, "none");
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 400);
    convert_all(&f, "k8v4");
    const quire_pool_stats before = balance(&f);
    float *answers = probe(&f, seq, &OTHER, 5);
    const quire_requantize_stats stats = convert_all(&f, "k8v4");
    assert_true(stats.pages_left == 0);
    quire_pool_stats after = balance(&f);
    assert_int_equal(after.sealed_pages,
                     before.sealed_pages); /* counted when probes seal, too: there were none */
    assert_same_residents(before, after);
    assert_answers(&f, seq, &OTHER, 5, answers);
    free(answers);
    drop(seq);
    fixture_close(&f);
}

/* Every codec into every other: the values are what packing the decoded ones gives, as page
 * bytes show. */
static void every_codec_to_every_other(void **state) {
    (void)state;
    enum { N = 64 };
    quire_codec_info info[N];
    const size_t n = quire_codec_count();
    assert_true(n <= N);
    for (size_t i = 0; i < n; i++)
        assert_ok(quire_codec_at(i, &info[i]));
    int sweep = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            if (!sweep_takes(&sweep,
                             7)) /* each codec still becomes four others, and is made of four */
                continue;
            const quire_pair from = {info[i].for_k ? info[i].codec : QUIRE_CODEC_KC8,
                                     info[i].for_v ? info[i].codec : QUIRE_CODEC_VT8},
                             to = {info[j].for_k ? info[j].codec : QUIRE_CODEC_KC4,
                                   info[j].for_v ? info[j].codec : QUIRE_CODEC_VT4};
            fixture f;
            fixture_init(&f, 1, 1, 1, 128, 128, "none");
            f.options.policy.pair = from;
            f.options.max_workers = 1;
            f.options.max_tokens = 512;
            fixture_open(&f);
            quire_seq *seq = fed_seq(&f, &SOURCE, 150);
            /* Page 1 still has its raw rows, page 0 has not. */
            const quire_page_shape old = {from, 128, 128, QUIRE_F16},
                                   new = {to, 128, 128, QUIRE_F16};
            size_t old_bytes, new_bytes;
            assert_ok(quire_page_bytes(&old, &old_bytes));
            assert_ok(quire_page_bytes(&new, &new_bytes));
            uint8_t *packed = malloc(old_bytes), *wanted = malloc(new_bytes),
                    *got = malloc(new_bytes);
            float *k = malloc(64 * 128 * 4), *v = malloc(64 * 128 * 4);
            assert_int_equal(quire_seq_page_bytes(f.pool, 0), old_bytes);
            assert_ok(quire_seq_page_save(seq, 0, packed, old_bytes));
            float *placed = malloc(64 * 128 * 4);
            assert_ok(quire_page_decode(&old, packed, placed, v));
            rows_from_order(from.k, f.layer[0].k_order, 128, placed, k);
            rows_into_order(to.k, f.layer[0].k_order, 128, k, placed);
            assert_ok(quire_page_encode(&new, placed, v, 0, wanted));
            free(placed);
            const quire_policy policy = {.pair = to, .windowed = to};
            quire_requantize_stats stats;
            assert_ok(quire_pool_requantize(f.pool, &policy));
            assert_ok(quire_pool_requantize_step(f.pool, 100, &stats));
            assert_int_equal(quire_seq_page_bytes(f.pool, 0), new_bytes);
            assert_ok(quire_seq_page_save(seq, 0, got, new_bytes));
            const bool same = from.k == to.k && from.v == to.v;
            if (memcmp(got, same ? packed : wanted, new_bytes) != 0)
                fail_msg("%s to %s: other bytes than by hand", info[i].name, info[j].name);
            quire_layer_stats layer;
            assert_ok(quire_layer_get_stats(f.pool, 0, &layer));
            assert_true(layer.pair.k == to.k && layer.pair.v == to.v);
            balance(&f);
            drop(seq);
            assert_all_free(&f);
            fixture_close(&f);
            free(packed), free(wanted), free(got), free(k), free(v);
        }
}

/* While pages of both forms are there: every number of workers and any neighbour give the same
 * bits, also when a row's pages are shared out; and after the last step, whatever the steps
 * were, the same as in one go. */
static void half_way(void **state) {
    (void)state;
    fixture one_go, steps;
    init(&one_go, "k8v8");
    init(&steps, "k8v8");
    one_go.layer[1].window = steps.layer[1].window = 1500;
    fixture_open(&one_go);
    fixture_open(&steps);
    quire_seq *a = fed_seq(&one_go, &SOURCE, 1990), *b = fed_seq(&steps, &SOURCE, 1990),
              *other = fed_seq(&steps, &OTHER, 100);
    convert_all(&one_go, "tq4");
    const quire_policy policy = policy_of("tq4"), third = policy_of("k4v4");
    assert_ok(quire_pool_requantize(steps.pool, &policy));
    assert_status(quire_pool_requantize(steps.pool, &third), QUIRE_E_STATE);
    const size_t n = answer_floats(&steps, 2);
    float *first = malloc(n * sizeof *first), *more = malloc(n * sizeof *more),
          *both = malloc(answer_floats(&steps, 5) * sizeof *both);
    quire_requantize_stats stats;
    int64_t left = -1;
    int n_steps = 0;
    do {
        const step_item items[2] = {{b, &SOURCE, 2}, {other, &OTHER, 3}};
        assert_ok(step(&steps, items, 1, &(step_options){.abort = true}, first));
        for (int workers = 2; workers <= 7; workers++) {
            assert_ok(
                step(&steps, items, 1, &(step_options){.abort = true, .n_workers = workers}, more));
            assert_memory_equal(first, more, n * sizeof *first);
        }
        assert_ok(step(&steps, items, 2, &(step_options){.abort = true}, both));
        const size_t layer = 2 * 4 * 64; /* two rows of a layer */
        for (int l = 0; l < 3; l++)
            assert_memory_equal(both + (size_t)l * layer / 2 * 5, first + (size_t)l * layer,
                                layer * sizeof *first);
        assert_ok(quire_pool_requantize_step(steps.pool, 9, &stats));
        assert_true(left < 0 || stats.pages_left == left - 9 || stats.pages_left == 0);
        left = stats.pages_left;
        n_steps++;
    } while (left > 0);
    assert_int_equal(n_steps, (stats.pages_done + 8) / 9); /* so many times it was half-way */
    assert_true(n_steps > 4);
    float *answers = probe(&one_go, a, &SOURCE, 40);
    assert_answers(&steps, b, &SOURCE, 40, answers);
    free(answers), free(first), free(more), free(both);
    fixture_close(&one_go);
    fixture_close(&steps);
}

/* A pool that is full of raw pages can still be converted: the first page where it lies, the
 * others into what that frees. */
static void full_pool(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 2, 2, 1, 64, 64, "none");
    f.options.budget_bytes = (size_t)4 << 20;
    f.options.max_workers = 1;
    f.options.max_seqs = 60;
    fixture_open(&f);
    for (size_t rest; (rest = balance(&f).arena_bytes % (2 * 64 * 2 * 64 * 2)) != 0;
         fixture_open(&f)) {
        fixture_close(&f); /* until raw pages fill it to the last byte */
        f.options.budget_bytes -= rest;
    }
    quire_seq *seqs[60];
    int n = 0;
    float *wanted[60];
    fixture always;
    fixture_init(&always, 2, 2, 1, 64, 64, "k4v4");
    always.options.max_seqs = 60;
    fixture_open(&always);
    for (;; n++) {
        source s = SOURCE;
        s.seed = 100 + (uint64_t)n;
        seqs[n] = new_seq(&f);
        const step_item item = {seqs[n], &s, 256};
        if (step(&f, &item, 1, &(step_options){.store_only = true}, NULL) != QUIRE_OK)
            break;
        quire_seq *same = fed_seq(&always, &s, 256);
        wanted[n] = probe(&always, same, &OTHER, 2);
        drop(same);
    }
    drop(seqs[n]);
    assert_true(n > 3 && n < 60);
    while (true) { /* not a page is left */
        quire_seq *seq = new_seq(&f);
        const step_item item = {seq, &OTHER, 1};
        if (step(&f, &item, 1, &(step_options){.store_only = true}, NULL) != QUIRE_OK) {
            drop(seq);
            break;
        }
    }
    assert_int_equal(balance(&f).free_bytes, 0);
    const quire_requantize_stats stats = convert_all(&f, "k4v4");
    assert_int_equal(stats.pages_done, 4 * n);
    assert_true(stats.bytes_after * 3 < stats.bytes_before);
    for (int i = 0; i < n; i++) {
        assert_answers(&f, seqs[i], &OTHER, 2, wanted[i]);
        free(wanted[i]);
    }
    fixture_close(&f);
    fixture_close(&always);
}

/* Growing pages need room: none, then the page stays, the pool goes on serving, and the change
 * can be taken back. */
static void no_room_to_grow(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 1, 2, 1, 64, 64, "k4v4");
    f.options.budget_bytes = (size_t)4 << 20;
    f.options.max_workers = 1;
    fixture_open(&f);
    quire_seq *seq = new_seq(&f), *filler;
    const step_item item = {seq, &SOURCE, 64};
    while (step(&f, &item, 1, &(step_options){.store_only = true}, NULL) == QUIRE_OK)
        ;
    assert_ok(quire_seq_fork(seq, &filler));
    assert_ok(
        quire_seq_trim(seq, quire_seq_length(seq) - 128)); /* the fork still holds all pages */
    const quire_policy wide = policy_of("f32:f32"), back = policy_of("k4v4");
    quire_requantize_stats stats;
    assert_ok(quire_pool_requantize(f.pool, &wide));
    quire_status status;
    do
        status = quire_pool_requantize_step(f.pool, 1, &stats);
    while (status == QUIRE_OK && stats.pages_left > 0);
    assert_int_equal(status, QUIRE_E_NO_PAGES);
    assert_true(stats.pages_left > 0);
    const int64_t grown = stats.pages_done;
    balance(&f);
    assert_ok(quire_pool_requantize(f.pool, &back));
    assert_ok(quire_pool_requantize_step(f.pool, INT32_MAX, &stats));
    assert_int_equal(stats.pages_left, 0);
    assert_int_equal(stats.pages_done, grown);
    balance(&f);
    drop(seq), drop(filler);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Sequences in a batch keep their pages until they are out; begin waits for all batches. */
static void busy(void **state) {
    (void)state;
    fixture f;
    init(&f, "k8v8");
    f.options.max_batches = 2;
    fixture_open(&f);
    quire_seq *a = fed_seq(&f, &SOURCE, 200), *b = fed_seq(&f, &OTHER, 200), *fork;
    assert_ok(quire_seq_fork(a, &fork));
    const quire_policy policy = policy_of("k4v4");
    quire_batch *batch;
    const quire_batch_item items[1] = {{a, 1}};
    quire_requantize_stats stats;
    assert_ok(quire_batch_begin(f.pool, items, 1, &batch));
    assert_status(quire_pool_requantize(f.pool, &policy), QUIRE_E_BUSY);
    quire_batch_abort(batch);
    assert_ok(quire_pool_requantize(f.pool, &policy));
    assert_ok(quire_batch_begin(f.pool, items, 1, &batch));
    assert_ok(quire_pool_requantize_step(f.pool, INT32_MAX, &stats));
    assert_int_equal(stats.pages_done, 3 * 2); /* b's, in both groups */
    assert_int_equal(stats.pages_left, 3 * 2); /* a's, which its fork shares */
    uint8_t byte;
    assert_status(quire_seq_page_save(a, 0, &byte, 1), QUIRE_E_INVALID);
    const size_t n = quire_seq_page_bytes(f.pool, 1);
    uint8_t *page = malloc(n);
    assert_status(quire_seq_page_save(a, 1, page, n), QUIRE_E_STATE);
    assert_ok(quire_seq_page_save(b, 1, page, n));
    free(page);
    quire_batch_abort(batch);
    assert_ok(quire_pool_requantize_step(f.pool, INT32_MAX, &stats));
    assert_int_equal(stats.pages_done, 2 * 3 * 2);
    assert_int_equal(stats.pages_left, 0);
    float *answers = probe(&f, a, &OTHER, 4);
    assert_answers(&f, fork, &OTHER, 4, answers);
    free(answers);
    fixture_close(&f);
}

static void bad_arguments(void **state) {
    (void)state;
    fixture f;
    init(&f, "k8v8");
    f.layer[0].k_dim = f.layer[2].k_dim = 48;
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 100);
    const quire_pool_stats before = balance(&f);
    quire_policy policy = policy_of("k4v4");
    policy.sinks = 65;
    assert_status(quire_pool_requantize(f.pool, &policy), QUIRE_E_INVALID);
    policy = policy_of("mlx4"); /* groups of 64 */
    assert_status(quire_pool_requantize(f.pool, &policy), QUIRE_E_UNSUPPORTED);
    assert_reason("layer 0");
    policy.pair.k = (quire_codec)99;
    assert_status(quire_pool_requantize(f.pool, &policy), QUIRE_E_UNKNOWN);
    assert_status(quire_pool_requantize(f.pool, NULL), QUIRE_E_INVALID);
    assert_status(quire_pool_requantize_step(f.pool, -1, NULL), QUIRE_E_INVALID);
    assert_ok(quire_pool_requantize_step(f.pool, 5, NULL)); /* nothing to do */
    assert_same_residents(before, balance(&f));
    drop(seq);
    fixture_close(&f);
}

/* No page is left that has to be converted: a change is not unfinished. */
static void nothing_left_to_convert(void **state) {
    (void)state;
    static const char *const KV[] = {"k4v4", "k8v4", "k8v8"};
    fixture f;
    init(&f, "k8v8");
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 100);
    assert_ok(quire_seq_trim(seq, 40));
    for (size_t i = 0; i < sizeof KV / sizeof KV[0]; i++) {
        const quire_policy policy = policy_of(KV[i]);
        assert_ok(quire_pool_requantize(f.pool, &policy));
    }
    drop(seq);
    fixture_close(&f);
}

/* Values that bf16 holds and an f16 scale does not: a million times the usual K or V. */
static quire_seq *fed_with_large(fixture *f, const char *kv, int dim, bool is_v, int n) {
    fixture_init(f, 1, 1, 1, dim, dim, kv);
    f->options.raw = QUIRE_BF16;
    fixture_open(f);
    source large = SOURCE;
    *(is_v ? &large.v_scale : &large.k_scale) = 1e6f;
    return fed_seq(f, &large, n);
}

static void values_that_do_not_fit(void **state) {
    (void)state;
    fixture f;
    quire_seq *seq = fed_with_large(&f, "none", 32, true, 128);
    float *answers = probe(&f, seq, &SOURCE, 2);
    const quire_policy policy = policy_of("k8v8"), back = policy_of("none");
    quire_requantize_stats stats;
    assert_ok(quire_pool_requantize(f.pool, &policy));
    assert_status(quire_pool_requantize_step(f.pool, 10, &stats), QUIRE_E_VALUE);
    assert_reason("layer 0");
    assert_int_equal(stats.pages_left, 2);
    assert_ok(quire_pool_requantize(f.pool, &back));
    assert_ok(quire_pool_requantize_step(f.pool, 10, &stats));
    assert_int_equal(stats.pages_left, 0);
    assert_answers(&f, seq, &SOURCE, 2, answers);
    free(answers);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

/* An open page would be packed later, when nobody can say any more what was wrong. */
static void values_that_do_not_fit_in_an_open_page(void **state) {
    (void)state;
    fixture f;
    quire_seq *seq = fed_with_large(&f, "none", 32, false, 10);
    float *answers = probe(&f, seq, &SOURCE, 60);
    const quire_policy policy = policy_of("k8v8");
    assert_status(quire_pool_requantize(f.pool, &policy), QUIRE_E_VALUE);
    assert_reason("page 0, layer 0, KV head 0: K has the value");
    assert_answers(&f, seq, &SOURCE, 60, answers); /* nothing has changed */
    free(answers);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Half-way, a trim opens a page that awaits its conversion; it cannot be packed, and says so. */
static void a_trim_half_way(void **state) {
    (void)state;
    static const char *const kv[] = {"none", "mlx4"};
    for (int i = 0; i < 2; i++) {
        fixture f;
        quire_seq *seq = fed_with_large(&f, kv[i], 64, false, 192);
        const quire_policy policy = policy_of("k8v8");
        assert_ok(quire_pool_requantize(f.pool, &policy));
        assert_ok(quire_seq_trim(seq, 10));
        static const float zeros[54 * 64];
        const quire_rows rows = {.data = zeros, .type = QUIRE_F32};
        const quire_batch_item item = {seq, 54};
        quire_batch *batch;
        assert_ok(quire_batch_begin(f.pool, &item, 1, &batch));
        assert_status(quire_batch_append(batch, 0, rows, rows, 0, 1), QUIRE_E_VALUE);
        assert_reason("page 0, layer 0, KV head 0: K has the value");
        quire_batch_abort(batch);
        assert_int_equal(quire_seq_length(seq), 10);
        drop(seq);
        assert_all_free(&f);
        fixture_close(&f);
    }
}

static uint64_t sealed_pages(const fixture *f) {
    quire_pool_stats stats;
    quire_pool_get_stats(f->pool, &stats);
    assert_true(stats.resealed_pages <= stats.sealed_pages);
    return stats.sealed_pages;
}

/* However pages are made, raw layers beside packed ones do not count: two layers of four here. */
static void what_counts_as_sealed(void **state) {
    (void)state;
    fixture made, given;
    const quire_policy policy = fixture_open_edges(&made, &given, 32);
    quire_seq *a = fed_seq(&made, &SOURCE, 200), *b = fed_seq(&given, &SOURCE, 200), *loaded;
    assert_int_equal(sealed_pages(&made), 2 * 3);
    const quire_rope rope = {.n_rot = 32, .base = 10000};
    assert_ok(quire_seq_shift(a, 0, 10, &rope, 1)); /* 190 tokens: two pages are made again */
    assert_int_equal(sealed_pages(&made), 2 * (3 + 2));
    assert_ok(quire_seq_save(b, saved_path("raw"), NULL));
    const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};
    assert_ok(saved_load(made.pool, saved_path("raw"), &reseal, &loaded));
    assert_int_equal(sealed_pages(&made), 2 * (3 + 2 + 3));
    assert_int_equal(sealed_pages(&given), 0);
    assert_ok(quire_pool_requantize(given.pool, &policy));
    assert_ok(quire_pool_requantize_step(given.pool, 10, NULL));
    assert_int_equal(sealed_pages(&given), 2 * 3);
    fixture_close(&made), fixture_close(&given);
}

/* Rounding to codes makes some values larger than the raw type of the new sinks holds. */
static void values_that_grow(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 1, 1, 1, 64, 64, "tq2:tq2");
    f.options.policy.sinks = 0;
    f.options.raw = QUIRE_BF16;
    fixture_open(&f);
    static float large[192 * 64];
    for (int i = 0; i < 192 * 64; i++)
        large[i] = 65280;
    const quire_rows rows = {.data = large, .type = QUIRE_F32};
    quire_seq *seq = new_seq(&f);
    quire_batch *batch;
    assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){seq, 192}, 1, &batch));
    assert_ok(quire_batch_append(batch, 0, rows, rows, 0, 1));
    assert_ok(quire_batch_commit(batch, NULL));
    const quire_policy policy = policy_of("k8v4");
    assert_ok(quire_pool_requantize(f.pool, &policy));
    assert_ok(quire_pool_requantize_step(f.pool, 10, NULL));
    assert_ok(quire_seq_save(seq, saved_path("requantized"), NULL));
    quire_file *file;
    assert_ok(quire_file_open(&file, saved_path("requantized")));
    assert_ok(quire_file_check(file));
    quire_file_close(file);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

/* The new form has sinks, and a page of the old one has none: it waits, it has not left a
 * window. */
static void saving_before_conversion(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 1, 1, 1, 32, 32, "none");
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 192);
    const quire_policy policy = policy_of("k8v8");
    assert_ok(quire_pool_requantize(f.pool, &policy));
    const size_t n = quire_seq_page_bytes(f.pool, 0);
    uint8_t *page = malloc(n);
    assert_status(quire_seq_page_save(seq, 0, page, n), QUIRE_E_STATE);
    assert_ok(quire_pool_requantize_step(f.pool, 10, NULL));
    assert_ok(quire_seq_page_save(seq, 0, page, n));
    free(page);
    /* What goes from one codec to another counts as packed again; what comes from raw rows, as
     * the last page's, does not. */
    quire_pool_stats stats;
    quire_pool_get_stats(f.pool, &stats);
    assert_int_equal(stats.resealed_pages, 0);
    const quire_policy smaller = policy_of("k4v4");
    assert_ok(quire_pool_requantize(f.pool, &smaller));
    assert_ok(quire_pool_requantize_step(f.pool, 10, NULL));
    quire_pool_get_stats(f.pool, &stats);
    assert_int_equal(stats.resealed_pages, 2);
    drop(seq);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_becomes_what_it_would_have_been),
        cmocka_unit_test(again_changes_nothing),
        cmocka_unit_test(every_codec_to_every_other),
        cmocka_unit_test(half_way),
        cmocka_unit_test(full_pool),
        cmocka_unit_test(no_room_to_grow),
        cmocka_unit_test(busy),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(nothing_left_to_convert),
        cmocka_unit_test(values_that_do_not_fit),
        cmocka_unit_test(values_that_do_not_fit_in_an_open_page),
        cmocka_unit_test(a_trim_half_way),
        cmocka_unit_test(what_counts_as_sealed),
        cmocka_unit_test(values_that_grow),
        cmocka_unit_test(saving_before_conversion),
    };
    return cmocka_run_group_tests(tests, NULL, saved_teardown);
}
