/* Pools: what is refused and how it is said, memory within the budget, exact accounts,
 * exhaustion, limits. */
#include <math.h>
#include <stdio.h>

#include "ledger.h"

static const source SOURCE = {
    .seed = 11, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};

/* Two layers of two KV heads; every field may then be spoiled. */
static void init_plain(fixture *f) {
    fixture_init(f, 2, 4, 2, 32, 48, "k8v4");
    f->options.max_tokens = 1024;
    f->options.max_batch_tokens = 256;
    f->options.max_workers = 1;
    f->options.budget_bytes = (size_t)8 << 20;
}

/* ------------------------------------------------------------------ refusals */

#define assert_refused(change, wanted, words)                                                      \
    do {                                                                                           \
        fixture f;                                                                                 \
        init_plain(&f);                                                                            \
        change;                                                                                    \
        assert_status(fixture_try(&f), wanted);                                                    \
        assert_reason(words);                                                                      \
        assert_null(f.pool);                                                                       \
    } while (0)

static void bad_options(void **state) {
    (void)state;
    assert_refused(f.options.struct_size = 0, QUIRE_E_INVALID, "quire_pool_options_default");
    assert_refused(f.options.struct_size--, QUIRE_E_INVALID, "quire_pool_options_default");
    assert_refused(f.options.n_layers = 0, QUIRE_E_INVALID, "n_layers");
    assert_refused(f.options.n_layers = INT32_MIN, QUIRE_E_INVALID, "n_layers");
    assert_refused(f.options.n_layers = INT32_MAX, QUIRE_E_INVALID, "n_layers");
    assert_refused(f.options.max_seqs = 0, QUIRE_E_INVALID, "max_seqs");
    assert_refused(f.options.max_seqs = -1, QUIRE_E_INVALID, "max_seqs");
    assert_refused(f.options.max_seqs = INT32_MAX, QUIRE_E_INVALID, "max_seqs");
    assert_refused(f.options.max_tokens = -1, QUIRE_E_INVALID, "max_tokens");
    assert_refused(f.options.max_tokens = INT32_MAX, QUIRE_E_INVALID, "max_tokens");
    assert_refused(f.options.max_batch_tokens = 0, QUIRE_E_INVALID, "max_batch_tokens");
    assert_refused(f.options.max_batch_tokens = INT32_MAX, QUIRE_E_INVALID, "max_batch_tokens");
    assert_refused(f.options.max_batches = 0, QUIRE_E_INVALID, "max_batches");
    assert_refused(f.options.max_batches = INT32_MAX, QUIRE_E_INVALID, "max_batches");
    assert_refused(f.options.max_workers = 0, QUIRE_E_INVALID, "max_workers");
    assert_refused(f.options.max_workers = INT32_MAX, QUIRE_E_INVALID, "max_workers");
    assert_refused(f.options.policy.sinks = -1, QUIRE_E_INVALID, "policy.sinks");
    assert_refused(f.options.policy.sinks = 65, QUIRE_E_INVALID, "policy.sinks");
    assert_refused(f.options.policy.edge_first = -1, QUIRE_E_INVALID, "policy.edge_first");
    assert_refused(f.options.policy.edge_first = 3, QUIRE_E_INVALID, "policy.edge_first");
    assert_refused(f.options.policy.edge_last = 3, QUIRE_E_INVALID, "policy.edge_last");
    assert_refused(f.options.raw = (quire_type)7, QUIRE_E_INVALID, "raw type 7");
    assert_refused(f.options.budget_bytes = SIZE_MAX, QUIRE_E_TOO_BIG, "budget");
    assert_refused(f.options.budget_bytes = 0, QUIRE_E_BUDGET, "budget of 0 bytes");
    assert_refused(f.options.policy.pair.k = QUIRE_CODEC_VT4, QUIRE_E_UNSUPPORTED,
                   "layer 0: codec vt4 does not serve K");
    assert_refused(f.options.policy.pair.v = (quire_codec)999, QUIRE_E_UNKNOWN,
                   "layer 0: V codec number 999");
    quire_allocator allocator = ledger_allocator(NULL);
    allocator.free = NULL;
    assert_refused(f.options.allocator = &allocator, QUIRE_E_INVALID, "allocator");
    allocator = ledger_allocator(NULL);
    allocator.alloc = NULL;
    assert_refused(f.options.allocator = &allocator, QUIRE_E_INVALID, "allocator");
}

static void bad_layers(void **state) {
    (void)state;
    const float not_finite[4] = {0, 0, 0, NAN}, infinite[4] = {INFINITY};
    assert_refused(f.layer[1].n_heads = 0, QUIRE_E_INVALID, "layer 1: 0 query heads");
    assert_refused(f.layer[1].n_kv_heads = 0, QUIRE_E_INVALID, "layer 1: 4 query heads over 0");
    assert_refused(f.layer[1].n_kv_heads = 3, QUIRE_E_INVALID, "layer 1: 4 query heads over 3");
    assert_refused(f.layer[1].n_kv_heads = 8, QUIRE_E_INVALID, "layer 1: 4 query heads over 8");
    assert_refused(f.layer[1].n_heads = -4, QUIRE_E_INVALID, "layer 1: -4 query heads");
    assert_refused(f.layer[1].n_kv_heads = INT32_MIN, QUIRE_E_INVALID, "layer 1");
    assert_refused(f.layer[1].n_heads = INT32_MAX - 1, QUIRE_E_INVALID, "layer 1");
    assert_refused(f.layer[1].window = -1, QUIRE_E_INVALID, "layer 1: window -1");
    assert_refused(f.layer[1].window = INT32_MAX, QUIRE_E_INVALID, "layer 1: window");
    assert_refused(f.layer[1].keep = -1, QUIRE_E_INVALID, "keep -1");
    assert_refused(f.layer[1].keep = INT32_MAX, QUIRE_E_INVALID, "keep");
    assert_refused(f.layer[1].scale = -1, QUIRE_E_INVALID, "layer 1: scale -1");
    assert_refused(f.layer[1].scale = NAN, QUIRE_E_INVALID, "layer 1: scale");
    assert_refused(f.layer[1].scale = INFINITY, QUIRE_E_INVALID, "layer 1: scale");
    assert_refused(f.layer[1].softcap = -0.5f, QUIRE_E_INVALID, "softcap -0.5");
    assert_refused(f.layer[1].softcap = INFINITY, QUIRE_E_INVALID, "softcap");
    assert_refused(f.layer[1].alibi = infinite, QUIRE_E_INVALID,
                   "layer 1: ALiBi slope or sink logit of head 0");
    assert_refused(f.layer[1].sink_logits = not_finite, QUIRE_E_INVALID,
                   "layer 1: ALiBi slope or sink logit of head 3");
    assert_refused(f.layer[1].k_dim = 0, QUIRE_E_UNSUPPORTED, "layer 1: K head size 0");
    assert_refused(f.layer[1].k_dim = 33, QUIRE_E_UNSUPPORTED, "layer 1: K head size 33");
    assert_refused(f.layer[1].k_dim = 16, QUIRE_E_UNSUPPORTED, "layer 1: K head size 16");
    assert_refused(f.layer[1].k_dim = 592, QUIRE_E_UNSUPPORTED, "layer 1: K head size 592");
    assert_refused(f.layer[1].k_dim = INT32_MIN, QUIRE_E_UNSUPPORTED, "layer 1: K head size");
    assert_refused(f.layer[1].v_dim = INT32_MAX, QUIRE_E_UNSUPPORTED, "layer 1: V head size");
    assert_refused(f.layer[1].k = QUIRE_CODEC_VT4, QUIRE_E_UNSUPPORTED,
                   "layer 1: codec vt4 does not serve K");
    assert_refused(f.layer[1].v = QUIRE_CODEC_KC4, QUIRE_E_UNSUPPORTED,
                   "layer 1: codec kc4 does not serve V");
    assert_refused(f.layer[1].v = QUIRE_CODEC_A4, QUIRE_E_UNSUPPORTED,
                   "layer 1: codec a4 needs a V head size divisible by 64");
    static const uint16_t twice[2 * 64] = {0}, beyond[2 * 64] = {64};
    assert_refused((f.layer[1].k = QUIRE_CODEC_KM4, f.no_orders = true), QUIRE_E_INVALID,
                   "layer 1: codec km4 needs a channel order");
    assert_refused(f.layer[1].k_order = twice, QUIRE_E_INVALID,
                   "layer 1, KV head 0: k_order[1] is channel 0, which came before");
    assert_refused(f.layer[1].k_order = beyond, QUIRE_E_INVALID,
                   "layer 1, KV head 0: k_order[0] is channel 64, which does not exist");
    assert_refused(f.layer[1].k = (quire_codec)999, QUIRE_E_UNKNOWN, "layer 1: K codec number 999");
}

static void bad_sharing(void **state) {
    (void)state;
    assert_refused(f.layer[1].share = 1, QUIRE_E_INVALID, "layer 1 shares layer 1");
    assert_refused(f.layer[0].share = 1, QUIRE_E_INVALID, "layer 0 shares layer 1");
    assert_refused(f.layer[1].share = -2, QUIRE_E_INVALID, "layer 1 shares layer -2");
    assert_refused(f.layer[1].share = INT32_MAX, QUIRE_E_INVALID, "layer 1 shares layer");
    assert_refused((f.layer[1].share = 0, f.layer[1].v_dim = 64), QUIRE_E_INVALID, "differs");
    assert_refused((f.layer[1].share = 0, f.layer[1].n_kv_heads = 1), QUIRE_E_INVALID, "differs");
    assert_refused((f.layer[1].share = 0, f.layer[1].window = 9), QUIRE_E_INVALID, "differs");
    assert_refused((f.layer[1].share = 0, f.layer[1].keep = 9), QUIRE_E_INVALID, "differs");
    fixture f;
    init_plain(&f);
    f.options.n_layers = 3;
    f.layer[1].share = 0;
    f.layer[2] = f.layer[1];
    f.layer[2].share = 1; /* which stores nothing itself */
    assert_status(fixture_try(&f), QUIRE_E_INVALID);
    assert_reason("layer 2 shares layer 1");
}

static void null_arguments(void **state) {
    (void)state;
    fixture f;
    quire_seq *seq;
    quire_batch *batch;
    quire_layer_stats stats;
    init_plain(&f);
    assert_status(quire_pool_create(NULL, &f.options), QUIRE_E_INVALID);
    assert_status(quire_pool_create(&f.pool, NULL), QUIRE_E_INVALID);
    f.options.layers = NULL;
    assert_status(quire_pool_create(&f.pool, &f.options), QUIRE_E_INVALID);
    assert_reason("layers");
    fixture_open(&f);
    assert_status(quire_seq_create(NULL, &seq), QUIRE_E_INVALID);
    assert_status(quire_seq_create(f.pool, NULL), QUIRE_E_INVALID);
    assert_status(quire_seq_fork(NULL, &seq), QUIRE_E_INVALID);
    assert_status(quire_seq_trim(NULL, 0), QUIRE_E_INVALID);
    drop(NULL);
    assert_int_equal(quire_seq_length(NULL), 0);
    assert_status(quire_seq_page_save(NULL, 0, &f, sizeof f), QUIRE_E_INVALID);
    assert_status(quire_seq_page_load(NULL, &f, sizeof f), QUIRE_E_INVALID);
    seq = new_seq(&f);
    assert_status(quire_seq_fork(seq, NULL), QUIRE_E_INVALID);
    assert_status(quire_seq_page_load(seq, NULL, quire_seq_page_bytes(f.pool, 0)), QUIRE_E_INVALID);
    const quire_batch_item none = {NULL, 1}, one = {seq, 1};
    assert_status(quire_batch_begin(NULL, &one, 1, &batch), QUIRE_E_INVALID);
    assert_status(quire_batch_begin(f.pool, NULL, 1, &batch), QUIRE_E_INVALID);
    assert_status(quire_batch_begin(f.pool, &one, 1, NULL), QUIRE_E_INVALID);
    assert_status(quire_batch_begin(f.pool, &none, 1, &batch), QUIRE_E_INVALID);
    assert_status(quire_batch_begin(f.pool, &one, 0, &batch), QUIRE_E_INVALID);
    assert_null(batch);
    assert_status(quire_batch_commit(NULL, NULL), QUIRE_E_INVALID);
    assert_status(quire_layer_get_stats(NULL, 0, &stats), QUIRE_E_INVALID);
    assert_reason("NULL");
    assert_status(quire_layer_get_stats(f.pool, 0, NULL), QUIRE_E_INVALID);
    assert_reason("NULL");
    assert_status(quire_layer_get_stats(f.pool, 2, &stats), QUIRE_E_INVALID);
    assert_status(quire_layer_get_stats(f.pool, -1, &stats), QUIRE_E_INVALID);
    quire_batch_abort(NULL);
    quire_pool_free(NULL);
    quire_layer_default(NULL);
    quire_pool_options_default(NULL);
    drop(seq);
    assert_status(quire_seq_free(seq), QUIRE_E_INVALID); /* a second time */
    assert_all_free(&f);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ sizes and budgets */

/* Everything at its largest wants more than 64 bits can count; that is said, not wrapped. */
static void largest_sizes(void **state) {
    (void)state;
    enum { N = 4096 };
    quire_layer *layer = calloc(N, sizeof *layer);
    fixture f;
    init_plain(&f);
    for (int i = 0; i < N; i++) {
        layer[i] = f.layer[0];
        layer[i].n_heads = layer[i].n_kv_heads = 2048;
        layer[i].k_dim = layer[i].v_dim = QUIRE_DIM_MAX;
        layer[i].share = i < N / 2 ? -1 : i - N / 2; /* shared layers need scratch of their own */
    }
    ledger l = {.refuse_above = (size_t)1 << 30};
    const quire_allocator allocator = ledger_allocator(&l);
    f.options.layers = layer;
    f.options.n_layers = N;
    f.options.raw = QUIRE_F32;
    f.options.allocator = &allocator;
    f.options.budget_bytes = (size_t)1 << 46;
    f.options.max_seqs = 1 << 16;
    f.options.max_tokens = 1 << 30;
    f.options.max_batch_tokens = 1 << 20;
    f.options.max_batches = 1 << 10;
    f.options.max_workers = 1 << 12;
    assert_status(quire_pool_create(&f.pool, &f.options), QUIRE_E_TOO_BIG);
    assert_int_equal(l.n_live, 0);
    for (int i = 0; i < 4; i++) { /* one at a time it is a matter of the budget, or of memory */
        f.options.max_seqs = i == 0 ? 1 << 16 : 1;
        f.options.max_tokens = i == 1 ? 1 << 30 : 64;
        f.options.max_batch_tokens = i == 2 ? 1 << 20 : 1;
        f.options.max_batches = f.options.max_workers = i == 3 ? 1 << 10 : 1;
        f.options.n_layers = 1;
        assert_status(quire_pool_create(&f.pool, &f.options), QUIRE_E_NOMEM);
        assert_int_equal(l.n_live, 0);
        f.options.budget_bytes = (size_t)1 << 20;
        assert_status(quire_pool_create(&f.pool, &f.options), QUIRE_E_BUDGET);
        assert_int_equal(l.n_live, 0);
        f.options.budget_bytes = (size_t)1 << 46;
    }
    free(layer);
}

static size_t stated_need(void) {
    size_t need = 0;
    const char *words = strstr(quire_last_error(), "at least ");
    if (!words || sscanf(words, "at least %zu", &need) != 1)
        fail_msg("no need in: %s", quire_last_error());
    return need;
}

/* What the refusal asks for is enough and not a byte too much, and such a pool can fill a page
 * and go on. */
static void check_need(fixture *f) {
    f->options.budget_bytes = 1;
    assert_status(fixture_try(f), QUIRE_E_BUDGET);
    const size_t need = stated_need();
    f->options.budget_bytes = need - 1;
    assert_status(fixture_try(f), QUIRE_E_BUDGET);
    assert_int_equal(stated_need(), need);
    f->options.budget_bytes = need;
    fixture_open(f);
    quire_seq *seq = new_seq(f);
    feed(f, seq, &SOURCE, 65, 1, 1, 0, NULL);
    assert_int_equal(balance(f).total_bytes, need);
    drop(seq);
    assert_all_free(f);
    fixture_close(f);
}

static void smallest_budget(void **state) {
    (void)state;
    static const int32_t max_tokens[] = {0, 128, 1000000}, max_seqs[] = {1, 16, 300};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            fixture f;
            init_plain(&f);
            f.options.max_tokens = max_tokens[i];
            f.options.max_seqs = max_seqs[j];
            f.options.policy.sinks = 3;
            check_need(&f);
            f.layer[1].window = 100; /* two groups */
            check_need(&f);
            f.layer[0].k = f.layer[0].v = QUIRE_CODEC_RAW;
            check_need(&f);
            f.layer[0].window = 30; /* windows only: nothing bounds the length but max_tokens */
            check_need(&f);
            f.options.raw = QUIRE_F32;
            f.options.max_workers = 5;
            f.options.max_batches = 3;
            check_need(&f);
        }
}

/* ------------------------------------------------------------------ memory */

static void memory_within_budget(void **state) {
    (void)state;
    fixture f;
    ledger l = {.fill = 0xa5};
    const quire_allocator allocator = ledger_allocator(&l);
    init_plain(&f);
    f.layer[1].window = 100;
    f.options.allocator = &allocator;
    fixture_open(&f);
    const int n_calls = l.n_calls;
    const quire_pool_stats s = balance(&f);
    assert_int_equal(l.peak_bytes, s.total_bytes);
    assert_int_equal(l.live_bytes, s.total_bytes);
    assert_int_equal(s.budget_bytes, f.options.budget_bytes);
    assert_true(s.budget_bytes - s.total_bytes < 128);
    assert_int_equal(s.free_bytes, s.arena_bytes);

    quire_seq *a = new_seq(&f), *b;
    for (int i = 0; i < 40; i++)
        feed(&f, a, &SOURCE, 1 + i % 17, 7, 1, 0, NULL);
    assert_ok(quire_seq_fork(a, &b));
    for (int i = 0; i < 10; i++) {
        const step_item items[2] = {{a, &SOURCE, 9}, {b, &SOURCE, 20}};
        assert_ok(step(&f, items, 2, &(step_options){.abort = i % 3 == 0}, NULL));
        assert_ok(quire_seq_trim(b, 320));
    }
    drop(a);
    drop(b);
    assert_all_free(&f);
    assert_int_equal(l.n_calls, n_calls); /* not one allocation since create */
    assert_int_equal(l.live_bytes, s.total_bytes);
    fixture_close(&f);
    assert_int_equal(l.n_live, 0);
}

/* ------------------------------------------------------------------ accounts */

/* Bytes of one leaf over all layers. */
static size_t packed_leaf(const fixture *f) {
    size_t bytes = 0;
    for (int32_t i = 0; i < f->options.n_layers; i++) {
        quire_layer_stats s;
        assert_ok(quire_layer_get_stats(f->pool, i, &s));
        bytes += (size_t)f->layer[i].n_kv_heads * s.record_bytes;
    }
    return bytes;
}

static size_t raw_rows(const fixture *f, int rows) {
    size_t bytes = 0;
    for (int32_t i = 0; i < f->options.n_layers; i++)
        bytes +=
            (size_t)(f->layer[i].n_kv_heads * (f->layer[i].k_dim + f->layer[i].v_dim) * rows) * 2;
    return bytes;
}

static void assert_residents(const fixture *f, int sealed, int open, int kept, int sinks) {
    const quire_pool_stats s = balance(f);
    assert_int_equal(s.sealed_bytes, (size_t)sealed * packed_leaf(f));
    assert_int_equal(s.open_bytes, (size_t)open * raw_rows(f, 64));
    assert_int_equal(s.last_raw_bytes, (size_t)kept * raw_rows(f, 64));
    assert_int_equal(s.sink_bytes, (size_t)sinks * raw_rows(f, 4));
}

static void accounts(void **state) {
    (void)state;
    fixture f;
    init_plain(&f);
    f.layer[0].v_dim = f.layer[1].v_dim = 32; /* so that four raw sinks fill their place exactly */
    fixture_open(&f);
    quire_seq *a = new_seq(&f), *b, *c;
    assert_residents(&f, 0, 0, 0, 0);
    feed(&f, a, &SOURCE, 63, 63, 1, 0, NULL);
    assert_residents(&f, 0, 1, 0, 0);
    feed(&f, a, &SOURCE, 1, 1, 1, 0, NULL);
    assert_residents(&f, 1, 0, 1, 1);
    feed(&f, a, &SOURCE, 1, 1, 1, 0, NULL);
    assert_residents(&f, 1, 1, 1, 1);
    feed(&f, a, &SOURCE, 200, 200, 1, 0, NULL); /* 265: pages 1, 2, 3 sealed, only page 3 kept */
    assert_residents(&f, 4, 1, 1, 1);
    assert_int_equal(balance(&f).sealed_pages, 4 * 2 * 2);
    assert_ok(quire_seq_fork(a, &b));
    assert_residents(&f, 4, 1, 1, 1);
    assert_int_equal(balance(&f).tokens, 2 * 265);
    feed(&f, b, &SOURCE, 1, 1, 1, 0, NULL); /* its own open page now */
    assert_residents(&f, 4, 2, 1, 1);
    feed(&f, b, &SOURCE, 54, 54, 1, 0, NULL); /* page 4 sealed, and kept */
    assert_residents(&f, 5, 1, 2, 1);
    assert_ok(quire_seq_fork(b, &c));
    drop(a);
    assert_residents(&f, 5, 0, 1, 1);
    assert_ok(quire_seq_trim(b, 300)); /* the kept rows are b's open page and still c's kept ones */
    assert_residents(&f, 5, 1, 0, 1);
    feed(&f, b, &SOURCE, 1, 1, 1, 0, NULL);
    assert_residents(&f, 5, 1, 1, 1);
    drop(c);
    assert_residents(&f, 4, 1, 0, 1);
    assert_ok(quire_seq_trim(b, 64));
    assert_residents(&f, 1, 0, 0, 1);
    assert_ok(quire_seq_trim(b, 20)); /* page 0 has no kept rows any more */
    assert_residents(&f, 0, 1, 0, 0);
    assert_int_equal(balance(&f).reopened_pages, 1);
    assert_ok(quire_seq_trim(b, 0));
    assert_residents(&f, 0, 0, 0, 0);
    drop(b);
    assert_all_free(&f);
    fixture_close(&f);
}

/* A batch's reservations are on the books as what they will become. */
static void accounts_in_flight(void **state) {
    (void)state;
    fixture f;
    init_plain(&f);
    f.layer[0].v_dim = f.layer[1].v_dim = 32;
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 60);
    quire_batch *batch;
    const quire_batch_item item = {seq,
                                   200}; /* seals 0, 1, 2, 3; pages 1 and 2 pass through scratch */
    assert_ok(quire_batch_begin(f.pool, &item, 1, &batch));
    assert_residents(&f, 4, 3, 0, 1);
    assert_int_equal(balance(&f).n_batches, 1);
    quire_batch_abort(batch);
    assert_residents(&f, 0, 1, 0, 0);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ exhaustion */

static void *arena_copy(const fixture *f, const ledger *l) {
    const size_t bytes = balance(f).arena_bytes;
    void *copy = malloc(bytes);
    int found = 0;
    for (int i = 0; i < l->n_live; i++)
        if (l->block[i].bytes == bytes) {
            memcpy(copy, l->block[i].at, bytes);
            found++;
        }
    assert_int_equal(found, 1);
    return copy;
}

/* Opens a pool with room for a few pages. */
static void open_small(fixture *f) {
    f->options.max_tokens = 512;
    f->options.max_batch_tokens = 128;
    f->options.max_seqs = 32;
    f->options.budget_bytes = 1;
    assert_status(fixture_try(f), QUIRE_E_BUDGET);
    f->options.budget_bytes = stated_need();
    fixture_open(f);
    const size_t one_page = balance(f).arena_bytes;
    fixture_close(f);
    f->options.budget_bytes += 4 * one_page;
    fixture_open(f);
}

/* Sequences of one token until there is no raw page left; the last one that got its page. */
static quire_seq *fill_pool(fixture *f) {
    for (quire_seq *last = NULL;;) {
        quire_seq *next = new_seq(f);
        const quire_status status = step(f, &(step_item){next, &SOURCE, 1}, 1, NULL, NULL);
        if (status == QUIRE_OK) {
            last = next;
            continue;
        }
        assert_int_equal(status, QUIRE_E_NO_PAGES);
        assert_int_equal(quire_seq_length(next), 0);
        drop(next);
        return last;
    }
}

/* begin fails as a whole: not a byte of any page changes, and the same batch works once there is
 * room. */
static void check_exhaustion(fixture *f) {
    enum { PROBE = 3 };
    static const int lengths[3] = {100, 71, 40};
    ledger l = {.fill = 0x5a};
    const quire_allocator allocator = ledger_allocator(&l);
    f->options.allocator = &allocator;
    open_small(f);
    quire_seq *seq[3], *late = new_seq(f);
    float *before[3];
    for (int i = 0; i < 3; i++) {
        seq[i] = fed_seq(f, &SOURCE, lengths[i]);
        before[i] = probe(f, seq[i], &SOURCE, PROBE);
    }
    quire_seq *filler = fill_pool(f);
    const quire_pool_stats full = balance(f);
    void *arena = arena_copy(f, &l);

    /* What the first items could have had is given back when the last one gets nothing. */
    const quire_batch_item items[] = {{seq[0], 28}, {seq[1], 1}, {late, 1}};
    quire_batch *batch = (quire_batch *)&l;
    for (int i = 0; i < 3; i++) {
        assert_status(quire_batch_begin(f->pool, items, 3, &batch), QUIRE_E_NO_PAGES);
        assert_reason("out of pages");
        assert_null(batch);
    }
    assert_same_residents(full, balance(f));
    void *arena_after = arena_copy(f, &l);
    assert_memory_equal(arena, arena_after, full.arena_bytes);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(quire_seq_length(seq[i]), lengths[i]);
        assert_answers(f, seq[i], &SOURCE, PROBE, before[i]);
    }
    drop(filler);
    assert_ok(quire_batch_begin(f->pool, items + 1, 2, &batch));
    quire_batch_abort(batch);
    for (int i = 0; i < 3; i++)
        assert_answers(f, seq[i], &SOURCE, PROBE, before[i]);
    for (int i = 0; i < 3; i++)
        free(before[i]);
    free(arena), free(arena_after);
    fixture_close(f);
    assert_int_equal(l.n_live, 0);
}

static void exhaustion(void **state) {
    (void)state;
    fixture f;
    init_plain(&f);
    check_exhaustion(&f);
    init_plain(&f);
    f.layer[1].k = f.layer[1].v = QUIRE_CODEC_RAW; /* a packed and a raw group */
    check_exhaustion(&f);
    init_plain(&f);
    f.layer[1].window = 70;
    f.layer[1].keep = 10;
    check_exhaustion(&f);
}

/* Trimming deep into an old page needs a page; without one it fails and changes nothing. */
static void exhaustion_of_trim(void **state) {
    (void)state;
    fixture f;
    init_plain(&f);
    f.layer[1].window = 200; /* two groups: the first may get its page and must give it back */
    open_small(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 130);
    float *before = probe(&f, seq, &SOURCE, 3);
    quire_seq *filler = fill_pool(&f);
    const quire_pool_stats full = balance(&f);
    assert_status(quire_seq_trim(seq, 30), QUIRE_E_NO_PAGES);
    assert_same_residents(full, balance(&f));
    assert_int_equal(balance(&f).reopened_pages, 0);
    assert_answers(&f, seq, &SOURCE, 3, before);
    drop(filler);
    assert_ok(quire_seq_trim(seq, 30));
    assert_int_equal(balance(&f).reopened_pages, 1);
    free(before);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ limits */

static void limits(void **state) {
    (void)state;
    fixture f;
    init_plain(&f);
    f.options.max_seqs = 3;
    f.options.max_tokens = 128;
    f.options.max_batch_tokens = 100;
    f.options.max_batches = 2;
    f.options.max_workers = 2;
    fixture_open(&f);
    quire_seq *seq[3], *extra = (quire_seq *)&f;
    for (int i = 0; i < 3; i++)
        seq[i] = new_seq(&f);
    assert_status(quire_seq_create(f.pool, &extra), QUIRE_E_NO_SLOT);
    assert_null(extra);
    assert_status(quire_seq_fork(seq[0], &extra), QUIRE_E_NO_SLOT);
    assert_null(extra);
    assert_reason("3 sequences");
    drop(seq[1]);
    seq[1] = new_seq(&f);

    quire_batch *batch, *second, *third;
    const quire_batch_item wide[] = {{seq[0], 60}, {seq[1], 41}},
                           same[] = {{seq[0], 1}, {seq[0], 1}}, negative = {seq[0], -1};
    assert_status(quire_batch_begin(f.pool, wide, 2, &batch), QUIRE_E_INVALID);
    assert_reason("101 rows");
    assert_status(quire_batch_begin(f.pool, same, 2, &batch), QUIRE_E_INVALID);
    assert_reason("twice");
    assert_status(quire_batch_begin(f.pool, &negative, 1, &batch), QUIRE_E_INVALID);
    assert_status(quire_batch_begin(f.pool, wide, 4, &batch),
                  QUIRE_E_INVALID); /* more items than sequences */
    assert_status(quire_batch_begin(f.pool, wide, SIZE_MAX, &batch), QUIRE_E_INVALID);

    feed(&f, seq[0], &SOURCE, 100, 100, 1, 0, NULL);
    const quire_batch_item long_one = {seq[0], 29}, longest = {seq[0], 28},
                           huge[] = {{seq[1], INT32_MAX}, {seq[2], INT32_MAX}};
    assert_status(quire_batch_begin(f.pool, &long_one, 1, &batch), QUIRE_E_TOO_BIG);
    assert_reason("at most 128");
    assert_status(quire_batch_begin(f.pool, huge, 2, &batch), QUIRE_E_TOO_BIG);
    assert_ok(quire_batch_begin(f.pool, &longest, 1, &batch));
    const quire_batch_item one = {seq[1], 1}, two = {seq[2], 1};
    assert_ok(quire_batch_begin(f.pool, &one, 1, &second));
    assert_status(quire_batch_begin(f.pool, &two, 1, &third), QUIRE_E_NO_SLOT);
    assert_null(third);
    quire_batch_abort(batch);
    assert_ok(quire_batch_begin(f.pool, &two, 1, &third));
    quire_batch_abort(second);
    quire_batch_abort(third);
    feed(&f, seq[0], &SOURCE, 28, 28, 1, 0, NULL);
    assert_int_equal(quire_seq_length(seq[0]), 128);
    for (int i = 0; i < 3; i++)
        drop(seq[i]);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Which codecs serve which layer: the layer's own, else windowed, else edge, else all. */
static void policy_resolved(void **state) {
    (void)state;
    static const quire_codec k[6] = {QUIRE_CODEC_F16,  QUIRE_CODEC_KC8, QUIRE_CODEC_BF16,
                                     QUIRE_CODEC_Q8_0, QUIRE_CODEC_KC8, QUIRE_CODEC_F16};
    static const quire_codec v[6] = {QUIRE_CODEC_F16, QUIRE_CODEC_VT4, QUIRE_CODEC_BF16,
                                     QUIRE_CODEC_VT4, QUIRE_CODEC_TQ2, QUIRE_CODEC_F16};
    fixture f;
    fixture_init(&f, 6, 2, 1, 32, 32, "k8v4");
    f.options.policy.windowed = (quire_pair){QUIRE_CODEC_BF16, QUIRE_CODEC_BF16};
    f.options.policy.edge = (quire_pair){QUIRE_CODEC_F16, QUIRE_CODEC_F16};
    f.options.policy.edge_first = f.options.policy.edge_last = 1;
    f.layer[2].window = 64;
    f.layer[3].k = QUIRE_CODEC_Q8_0;
    f.layer[4].v = QUIRE_CODEC_TQ2;
    fixture_open(&f);
    for (int i = 0; i < 6; i++) {
        quire_layer_stats s;
        assert_ok(quire_layer_get_stats(f.pool, i, &s));
        assert_int_equal(s.pair.k, k[i]);
        assert_int_equal(s.pair.v, v[i]);
    }
    fixture_close(&f);
    quire_layer_default(&f.layer[0]);
    assert_int_equal(f.layer[0].share, -1);
    assert_int_equal(f.layer[0].k, QUIRE_CODEC_DEFAULT);
}

/* One pool's sequence means nothing to another. */
static void foreign_sequence(void **state) {
    (void)state;
    fixture f, g;
    quire_batch *batch;
    init_plain(&f);
    init_plain(&g);
    fixture_open(&f);
    fixture_open(&g);
    const quire_batch_item item = {new_seq(&g), 1};
    assert_status(quire_batch_begin(f.pool, &item, 1, &batch), QUIRE_E_INVALID);
    assert_reason("not a sequence of this pool");
    fixture_close(&f);
    fixture_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options),          cmocka_unit_test(bad_layers),
        cmocka_unit_test(bad_sharing),          cmocka_unit_test(null_arguments),
        cmocka_unit_test(largest_sizes),        cmocka_unit_test(smallest_budget),
        cmocka_unit_test(memory_within_budget), cmocka_unit_test(accounts),
        cmocka_unit_test(accounts_in_flight),   cmocka_unit_test(exhaustion),
        cmocka_unit_test(exhaustion_of_trim),   cmocka_unit_test(limits),
        cmocka_unit_test(policy_resolved),      cmocka_unit_test(foreign_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
