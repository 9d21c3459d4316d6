/* Sequences: fork, copy on write, trim to any length, windows, shared layers, pages saved and
 * loaded. */
#include <math.h>

#include "ledger.h"

static const source SOURCE = {
    .seed = 21, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 1};
static const source OTHER = {
    .seed = 22, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 1};
static const source THIRD = {
    .seed = 23, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 1};

static void init_small(fixture *f, int n_layers, const char *kv) {
    fixture_init(f, n_layers, 2, 1, 32, 48, kv);
    f->options.budget_bytes = (size_t)8 << 20;
    f->options.max_tokens = 1024;
    f->options.max_workers = 1;
}

static double difference(const float *x, const float *y, size_t n) {
    double *wanted = malloc(n * sizeof *wanted);
    for (size_t i = 0; i < n; i++)
        wanted[i] = (double)y[i];
    const double error = relative_error(x, wanted, n);
    free(wanted);
    return error;
}

/* ------------------------------------------------------------------ trim */

/* Continue both with n tokens that are then forgotten. Bit for bit the same, or within what
 * packing costs. */
static void check_continuation(fixture *f, quire_seq *seq, quire_seq *wanted, int n,
                               double tolerance) {
    float *a = probe(f, seq, &OTHER, n), *b = probe(f, wanted, &OTHER, n);
    const size_t floats = answer_floats(f, n);
    if (tolerance == 0)
        assert_memory_equal(a, b, floats * sizeof *a);
    else if (!(difference(a, b, floats) < tolerance))
        fail_msg("off by %g", difference(a, b, floats));
    free(a), free(b);
}

/* A trimmed sequence against one that grows token by token and never went further. */
static void check_every_trim(fixture *f, int length, double tolerance) {
    quire_seq *growing = new_seq(f), *whole = fed_seq(f, &SOURCE, length);
    const bool packed = f->layer[0].k != QUIRE_CODEC_RAW;
    const int exact_pages = f->options.exact_trim ? 1 : 0; /* behind the open one */
    assert_true((balance(f).last_raw_bytes > 0) == (packed && exact_pages > 0));
    for (int n = 0; n <= length; n++) {
        const bool exact = n % 64 == 0 || n / 64 >= length / 64 - exact_pages || !packed;
        const uint64_t reopened = balance(f).reopened_pages;
        quire_seq *seq;
        if (n % 3 == 0)
            seq = fed_seq(f, &SOURCE, length); /* owns its pages: they are reused in place */
        else
            assert_ok(quire_seq_fork(whole, &seq)); /* shares them: they are copied */
        assert_ok(quire_seq_trim(seq, n));
        assert_int_equal(quire_seq_length(seq), n);
        assert_int_equal(balance(f).reopened_pages - reopened, exact ? 0 : 1);
        check_continuation(f, seq, growing, n % 7 ? 2 : 66, exact ? 0 : tolerance);
        drop(seq);
        feed(f, growing, &SOURCE, 1, 1, 1, 0, NULL);
    }
    drop(growing), drop(whole);
    assert_all_free(f);
}

static void trim_to_every_length(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 1, "k8v8");
    fixture_open(&f);
    check_every_trim(&f, 300, 0.02);
    check_every_trim(&f, 256, 0.02); /* no open page */
    fixture_close(&f);
    init_small(&f, 1, "k8v8");
    f.options.exact_trim = false;
    fixture_open(&f);
    check_every_trim(&f, 200, 0.02);
    fixture_close(&f);
    init_small(&f, 1, "none");
    f.layer[0].k = f.layer[0].v = QUIRE_CODEC_RAW;
    fixture_open(&f);
    check_every_trim(&f, 200, 0);
    fixture_close(&f);
    init_small(&f, 2, "k8v8");
    f.layer[1].k = f.layer[1].v =
        QUIRE_CODEC_F32; /* packed as it is: a reopened page loses nothing in this layer */
    f.options.policy.sinks = 64;
    fixture_open(&f);
    check_every_trim(&f, 150, 0.02);
    fixture_close(&f);
}

/* Cuts follow cuts: what the last one left is where the next one starts. */
static void trim_again(void **state) {
    (void)state;
    static const struct {
        int to, then, exact;
    } cuts[] = {
        {280, 270, 1}, {270, 256, 1}, {256, 200, 1}, {200, 195, 1}, {195, 192, 1},
        {230, 100, 0}, {192, 190, 0}, {256, 64, 1},  {64, 0, 1},
    };
    fixture f;
    init_small(&f, 1, "k8v8");
    fixture_open(&f);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        quire_seq *seq = fed_seq(&f, &SOURCE, 300), *wanted = fed_seq(&f, &SOURCE, cuts[i].then);
        assert_ok(quire_seq_trim(seq, cuts[i].to));
        assert_ok(quire_seq_trim(seq, cuts[i].then));
        check_continuation(&f, seq, wanted, 70, cuts[i].exact ? 0 : 0.02);
        /* Filled up again, the page that was sealed last is again one that can be cut exactly. */
        const int end = (cuts[i].then / 64 + 1) * 64 + 5;
        feed(&f, seq, &SOURCE, end - cuts[i].then, 9, 1, 0, NULL);
        assert_ok(quire_seq_trim(seq, end - 6));
        feed(&f, wanted, &SOURCE, end - 6 - cuts[i].then, 100, 1, 0, NULL);
        check_continuation(&f, seq, wanted, 70, cuts[i].exact ? 0 : 0.02);
        drop(seq), drop(wanted);
    }
    quire_seq *seq = fed_seq(&f, &SOURCE, 100);
    assert_status(quire_seq_trim(seq, -1), QUIRE_E_INVALID);
    assert_status(quire_seq_trim(seq, 101), QUIRE_E_INVALID);
    assert_status(quire_seq_trim(seq, INT32_MIN), QUIRE_E_INVALID);
    assert_status(quire_seq_trim(seq, INT32_MAX), QUIRE_E_INVALID);
    assert_int_equal(quire_seq_length(seq), 100);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ fork */

/* SOURCE for the first n tokens, `then` after that. */
static quire_seq *branch(fixture *f, int n, const source *then, int more) {
    quire_seq *seq = fed_seq(f, &SOURCE, n);
    feed(f, seq, then, more, 512, 1, 0, NULL);
    return seq;
}

static void fork_anywhere(void **state) {
    (void)state;
    static const int lengths[] = {0, 1, 40, 63, 64, 65, 100, 127, 128, 130, 191, 192};
    fixture f;
    init_small(&f, 3, "k8v4");
    f.layer[1].window = 70;
    f.layer[1].keep = 3;
    f.layer[2].k = f.layer[2].v = QUIRE_CODEC_RAW;
    fixture_open(&f);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int n = lengths[i];
        quire_seq *parent = fed_seq(&f, &SOURCE, n), *child, *grandchild;
        assert_ok(quire_seq_fork(parent, &child));
        assert_ok(quire_seq_fork(child, &grandchild));
        assert_int_equal(quire_seq_length(grandchild), n);
        balance(&f);
        for (int done = 0; done < 70; done += 14) { /* all in one batch, side by side */
            const step_item items[] = {
                {child, &OTHER, 14}, {parent, &SOURCE, 14}, {grandchild, &THIRD, 14}};
            assert_ok(step(&f, items, 3, &(step_options){.store_only = true}, NULL));
            balance(&f);
        }
        quire_seq *fresh[] = {branch(&f, n, &SOURCE, 70), branch(&f, n, &OTHER, 70),
                              branch(&f, n, &THIRD, 70)};
        quire_seq *forked[] = {parent, child, grandchild};
        for (int j = 0; j < 3; j++)
            check_continuation(&f, forked[j], fresh[j], 5, 0);
        for (int j = 0; j < 3; j++)
            drop(fresh[j]), drop(forked[j]);
        assert_all_free(&f);
    }
    fixture_close(&f);
}

/* A fork sees nothing of what the other does to the page they share. */
static void copy_on_write(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 2, "k8v4");
    f.layer[1].k = f.layer[1].v = QUIRE_CODEC_RAW;
    fixture_open(&f);
    quire_seq *a = fed_seq(&f, &SOURCE, 100), *b, *fresh = fed_seq(&f, &SOURCE, 100);
    assert_ok(quire_seq_fork(a, &b));
    assert_ok(quire_seq_trim(a, 80)); /* b still owns rows 80..99 of the page */
    feed(&f, a, &OTHER, 10, 3, 1, 0, NULL);
    check_continuation(&f, b, fresh, 70, 0);
    assert_ok(quire_seq_trim(b, 70)); /* and the other way round, in the page sealed last */
    assert_ok(quire_seq_trim(fresh, 70));
    feed(&f, a, &OTHER, 60, 60, 1, 0, NULL);
    check_continuation(&f, b, fresh, 70, 0);
    assert_ok(quire_seq_trim(b, 64));
    assert_ok(quire_seq_trim(fresh, 64));
    quire_seq *c;
    assert_ok(quire_seq_fork(a, &c)); /* 150 tokens, page 1 sealed and kept */
    assert_ok(quire_seq_trim(c, 120));
    feed(&f, c, &THIRD, 1, 1, 1, 0, NULL);
    assert_ok(quire_seq_trim(a, 120)); /* the kept rows must be a's own still */
    quire_seq *wanted = fed_seq(&f, &SOURCE, 80);
    feed(&f, wanted, &OTHER, 40, 40, 1, 0, NULL);
    check_continuation(&f, a, wanted, 70, 0);
    drop(a), drop(b), drop(c), drop(fresh), drop(wanted);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Four generations, freed in all 24 orders: the others never notice. */
static void free_in_any_order(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 2, "k8v4");
    f.layer[1].window = 60;
    fixture_open(&f);
    float *wanted[4];
    for (int i = 0; i < 4; i++) {
        quire_seq *fresh = fed_seq(&f, &SOURCE, 50 + 30 * i);
        wanted[i] = probe(&f, fresh, &OTHER, 3);
        drop(fresh);
    }
    for (int order = 0; order < 24; order++) {
        quire_seq *seq[4] = {fed_seq(&f, &SOURCE, 50)};
        for (int i = 1; i < 4; i++) {
            assert_ok(quire_seq_fork(seq[i - 1], &seq[i]));
            feed(&f, seq[i], &SOURCE, 30, 30, 1, 0, NULL);
        }
        int left[4] = {0, 1, 2, 3}, code = order;
        for (int n = 4; n > 0; n--) {
            const int pick = code % n;
            code /= n;
            drop(seq[left[pick]]);
            left[pick] = left[n - 1];
            balance(&f);
            for (int i = 0; i < n - 1; i++)
                assert_answers(&f, seq[left[i]], &OTHER, 3, wanted[left[i]]);
        }
        assert_all_free(&f);
    }
    for (int i = 0; i < 4; i++)
        free(wanted[i]);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ windows */

enum { N_WINDOWS = 8 };
static const int WINDOWS[N_WINDOWS] = {1, 5, 63, 64, 65, 100, 128, 200};

static int window_start(int window, int i) { return i < window ? 0 : i - window + 1; }

/* Whether page p must be resident when the sequence has n tokens. */
static bool page_resident(const quire_layer *l, int sinks, int p, int n) {
    if (p >= n / 64)
        return false;
    const bool kept = p * 64 < l->keep && !(p == 0 && l->keep <= sinks);
    return kept || p >= window_start(l->window, n) / 64 ||
           p == n / 64 - 1; /* the page sealed last can be opened again */
}

static void check_residents(const fixture *f) {
    const quire_pool_stats s = balance(f);
    for (int i = 0; i < f->options.n_layers; i++) {
        quire_layer_stats layer;
        assert_ok(quire_layer_get_stats(f->pool, i, &layer));
        const bool raw = layer.pair.k == QUIRE_CODEC_RAW;
        size_t wanted = 0;
        for (int p = 0; p < (int)s.tokens / 64; p++)
            wanted +=
                page_resident(&f->layer[i], raw ? 0 : f->options.policy.sinks, p, (int)s.tokens);
        assert_int_equal(layer.sealed_bytes, wanted * layer.record_bytes);
    }
}

/* Rows of one layer in a step's output. */
static const float *layer_rows(const fixture *f, const float *out, int layer, int rows) {
    for (int i = 0; i < layer; i++)
        out += rows * f->layer[i].n_heads * f->layer[i].v_dim;
    return out;
}

/* A layer per window: fed whole against the oracle, and bit for bit the same token by token
 * while pages are recycled. */
static void check_windows(int keep, int sinks, const char *kv) {
    enum { N = 330 };
    static const int spans[][2] = {{0, 8}, {60, 10}, {124, 12}, {190, 8}, {254, 6}, {317, 13}};
    fixture f;
    init_small(&f, N_WINDOWS, kv);
    f.options.policy.sinks = sinks;
    for (int i = 0; i < N_WINDOWS; i++)
        f.layer[i].window = WINDOWS[i], f.layer[i].keep = keep;
    fixture_open(&f);
    const size_t floats = answer_floats(&f, N),
                 row = (size_t)(f.layer[0].n_heads * f.layer[0].v_dim);
    float *whole = malloc(floats * sizeof *whole),
          *one = malloc(answer_floats(&f, 1) * sizeof *one);
    quire_seq *seq = new_seq(&f);
    assert_ok(step(&f, &(step_item){seq, &SOURCE, N}, 1, NULL, whole));
    check_residents(&f);
    drop(seq);
    for (int i = 0; i < N_WINDOWS; i++)
        for (size_t j = 0; j < sizeof spans / sizeof *spans; j++) {
            const int from = spans[j][0], n = spans[j][1];
            double *wanted = malloc((size_t)n * row * sizeof *wanted);
            oracle_attend_rows(&f, i, &SOURCE, from, n, NULL, wanted, NULL);
            const double error = relative_error(layer_rows(&f, whole, i, N) + (size_t)from * row,
                                                wanted, (size_t)n * row);
            free(wanted);
            if (!(error < 1e-3))
                fail_msg("window %d, keep %d, sinks %d, %s: rows from %d are off by %g", WINDOWS[i],
                         keep, sinks, kv, from, error);
        }
    seq = new_seq(&f);
    for (int t = 0; t < N; t++) {
        assert_ok(step(&f, &(step_item){seq, &SOURCE, 1}, 1, NULL, one));
        for (int i = 0; i < N_WINDOWS; i++)
            assert_memory_equal(layer_rows(&f, one, i, 1),
                                layer_rows(&f, whole, i, N) + (size_t)t * row, row * sizeof *one);
        if (t % 5 == 0 || t % 64 == 0 || t % 64 == 63)
            check_residents(&f);
    }
    drop(seq);
    assert_all_free(&f);
    free(whole), free(one);
    fixture_close(&f);
}

static void windows(void **state) {
    (void)state;
    static const int keeps[] = {0, 3, 4, 10, 70, 130}, sinks[] = {0, 4, 64};
    for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
        for (size_t j = 0; j < sizeof sinks / sizeof *sinks; j++)
            check_windows(keeps[i], sinks[j], "k8v8");
        check_windows(keeps[i], 0, "none");
    }
}

/* Kept tokens, the window and the own page in chunks of pages of their own; one row at a time
 * they are even attended by parts. */
static void windows_over_many_pages(void **state) {
    (void)state;
    enum { LENGTH = 2170, N = 12 };
    static const struct {
        int window, keep;
    } cases[] = {{5, 10}, {100, 130}, {1100, 4}, {1100, 1500}, {1500, 0}, {30, 1030}};
    fixture f;
    init_small(&f, 6, "k8v8");
    for (int i = 0; i < 6; i++)
        f.layer[i].window = cases[i].window, f.layer[i].keep = cases[i].keep;
    f.options.max_tokens = 4096;
    fixture_open(&f);
    quire_seq *a = fed_seq(&f, &SOURCE, LENGTH), *b;
    assert_ok(quire_seq_fork(a, &b));
    const size_t row = (size_t)(f.layer[0].n_heads * f.layer[0].v_dim), n = answer_floats(&f, N);
    float *whole = malloc(n * sizeof *whole), *one = malloc(answer_floats(&f, 1) * sizeof *one);
    double *wanted = malloc(N * row * sizeof *wanted);
    assert_ok(step(&f, &(step_item){a, &SOURCE, N}, 1, NULL, whole)); /* across the end of a page */
    for (int i = 0; i < 6; i++) {
        oracle_attend_rows(&f, i, &SOURCE, LENGTH, N, NULL, wanted, NULL);
        const double error = relative_error(layer_rows(&f, whole, i, N), wanted, N * row);
        if (!(error < 1e-3))
            fail_msg("window %d, keep %d: off by %g", cases[i].window, cases[i].keep, error);
    }
    for (int t = 0; t < N; t++) {
        assert_ok(step(&f, &(step_item){b, &SOURCE, 1}, 1, NULL, one));
        for (int i = 0; i < 6; i++)
            assert_memory_equal(layer_rows(&f, one, i, 1),
                                layer_rows(&f, whole, i, N) + (size_t)t * row, row * sizeof *one);
    }
    drop(a), drop(b);
    assert_all_free(&f);
    free(whole), free(one), free(wanted);
    fixture_close(&f);
}

/* A sequence that was cut short recycles its pages when it grows again. */
static void window_after_trim(void **state) {
    (void)state;
    static const int cuts[] = {0, 64, 150, 192, 330};
    fixture f;
    init_small(&f, 2, "k8v8");
    f.layer[0].window = f.layer[1].window = 100;
    f.layer[0].keep = f.layer[1].keep = 300; /* so that a cut may go far back */
    f.layer[1].k = f.layer[1].v = QUIRE_CODEC_RAW;
    fixture_open(&f);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        quire_seq *seq = fed_seq(&f, &SOURCE, i == 4 ? 380 : 700);
        assert_ok(quire_seq_trim(seq, cuts[i]));
        while (quire_seq_length(seq) < 800) {
            feed(&f, seq, &SOURCE, 23, 23, 1, 0, NULL);
            check_residents(&f);
        }
        drop(seq);
        assert_all_free(&f);
    }
    fixture_close(&f);
}

/* Pages recycled by one sequence live on in its forks. */
static void fork_outlives_window(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 2, "k8v4");
    f.layer[0].window = 70;
    f.layer[1].window = 70;
    f.layer[1].keep = 6;
    fixture_open(&f);
    quire_seq *a = fed_seq(&f, &SOURCE, 140), *b, *fresh;
    float *wanted = probe(&f, a, &OTHER, 4);
    assert_ok(quire_seq_fork(a, &b));
    feed(&f, a, &SOURCE, 300, 41, 1, 0, NULL);
    assert_answers(&f, b, &OTHER, 4, wanted);
    fresh = fed_seq(&f, &SOURCE, 440);
    check_continuation(&f, a, fresh, 70, 0);
    drop(a);
    assert_answers(&f, b, &OTHER, 4, wanted);
    drop(b), drop(fresh);
    assert_all_free(&f);
    free(wanted);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ windows and trim */

/* Raw sinks that can stand for page 0's kept tokens: none where a raw layer shares the page. */
static int sinks_instead(const fixture *f, int layer) {
    const quire_layer *l = &f->layer[layer];
    for (int i = 0; i < f->options.n_layers; i++)
        if (f->layer[i].window == l->window && f->layer[i].keep == l->keep &&
            f->layer[i].k == QUIRE_CODEC_RAW)
            return 0;
    return f->options.policy.sinks;
}

/* Whether all groups hold what a sequence cut from `length` to n would see next. */
static bool can_trim(const fixture *f, int length, int n) {
    for (int i = 0; i < f->options.n_layers && n > 0; i++) {
        const quire_layer *l = &f->layer[i];
        if (l->window == 0)
            continue;
        for (int p = window_start(l->window, n) / 64; p <= (n - 1) / 64 && p < length / 64; p++)
            if (!page_resident(l, sinks_instead(f, i), p, length))
                return false;
    }
    return true;
}

static void check_windowed_trims(fixture *f, int length) {
    quire_seq *whole = fed_seq(f, &SOURCE, length), *growing = new_seq(f);
    int gone = 0;
    for (int n = 0; n <= length; n++) {
        const quire_pool_stats before = balance(f);
        quire_seq *seq;
        assert_ok(quire_seq_fork(whole, &seq));
        if (can_trim(f, length, n)) {
            const bool exact = n % 64 == 0 || n / 64 >= length / 64 - 1;
            assert_ok(quire_seq_trim(seq, n));
            check_continuation(f, seq, growing, 3, exact ? 0 : 0.03);
            if (n % 16 == 0)
                check_continuation(f, seq, growing, 130, exact ? 0 : 0.03);
        } else {
            assert_status(quire_seq_trim(seq, n), QUIRE_E_GONE);
            assert_int_equal(quire_seq_length(seq), length);
            gone++;
        }
        drop(seq);
        assert_same_residents(before, balance(f));
        feed(f, growing, &SOURCE, 1, 1, 1, 0, NULL);
    }
    assert_true(gone > 0);
    drop(whole), drop(growing);
    assert_all_free(f);
}

static void trim_windows(void **state) {
    (void)state;
    static const struct {
        int window, keep, length;
    } cases[] = {
        {1, 0, 200}, {40, 0, 200}, {40, 3, 260}, {70, 10, 260}, {128, 0, 300}, {100, 130, 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        init_small(&f, 3, "k8v8");
        f.layer[1].window = f.layer[2].window = cases[i].window;
        f.layer[1].keep = f.layer[2].keep = cases[i].keep;
        f.layer[2].k = f.layer[2].v = QUIRE_CODEC_RAW;
        fixture_open(&f);
        check_windowed_trims(&f, cases[i].length);
        fixture_close(&f);
    }
}

/* ---------------------------------------------------------- several kinds of layers in one pool */

static void mixed_layers(void **state) {
    (void)state;
    enum { N = 210, ROWS = 5 };
    static const int depths[] = {3, 62, 126, 130, 191, 205};
    fixture f;
    init_small(&f, 7, "k8v8");
    f.layer[1].window = 70;
    f.layer[2].share = 0;
    f.layer[2].n_heads = 3; /* its own queries */
    f.layer[3].k = f.layer[3].v = QUIRE_CODEC_RAW;
    f.layer[3].window = 33;
    f.layer[3].keep = 2;
    f.layer[4] = f.layer[1];
    f.layer[4].share = 1;
    f.layer[5].k_dim = 64; /* another size in the same group as layer 0 */
    f.layer[6] = f.layer[3];
    f.layer[6].share = 3;
    fixture_open(&f);
    float *out = malloc(answer_floats(&f, ROWS) * sizeof *out);
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        quire_seq *seq = fed_seq(&f, &SOURCE, depths[i]);
        assert_ok(step(&f, &(step_item){seq, &SOURCE, ROWS}, 1, NULL, out));
        for (int layer = 0; layer < 7; layer++) {
            const size_t n = (size_t)(ROWS * f.layer[layer].n_heads * f.layer[layer].v_dim);
            double *wanted = malloc(n * sizeof *wanted);
            oracle_attend_rows(&f, layer, &SOURCE, depths[i], ROWS, NULL, wanted, NULL);
            const double error = relative_error(layer_rows(&f, out, layer, ROWS), wanted, n);
            if (!(error < 1e-3))
                fail_msg("layer %d at %d is off by %g", layer, depths[i], error);
            free(wanted);
        }
        drop(seq);
    }
    free(out);
    fixture_close(&f);
}

/* Layers that share a cache may attend after others have stored, in prompts that pass through
 * scratch too. */
static void shared_layers_later(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 4, "k8v4");
    f.layer[2].share = 0;
    f.layer[3].share = 1;
    fixture_open(&f);
    quire_seq *a = new_seq(&f), *b = new_seq(&f);
    enum { N = 260 };
    float *whole = malloc(answer_floats(&f, N) * sizeof *whole),
          *one = malloc(answer_floats(&f, 1) * sizeof *one);
    assert_ok(step(&f, &(step_item){a, &SOURCE, N}, 1, NULL, whole));
    const size_t row = (size_t)(f.layer[0].n_heads * f.layer[0].v_dim);
    for (int t = 0; t < N; t++) {
        assert_ok(step(&f, &(step_item){b, &SOURCE, 1}, 1, NULL, one));
        for (int i = 0; i < 4; i++)
            assert_memory_equal(one + (size_t)i * row, whole + (size_t)(i * N + t) * row,
                                row * sizeof *one);
    }
    free(whole), free(one);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ pages saved and loaded */

/* Sizes that leave gaps: every byte of a saved page must still be defined. */
static void init_saved(fixture *f, ledger *l, quire_allocator *allocator) {
    fixture_init(f, 3, 2, 1, 32, 64, "k8v4");
    f->layer[1].k = f->layer[1].v = QUIRE_CODEC_RAW;
    f->layer[2].window = 300;
    f->options.policy.sinks = 3;
    f->options.max_tokens = 256;
    f->options.max_workers = 1;
    f->options.budget_bytes = (size_t)4 << 20;
    *allocator = ledger_allocator(l);
    f->options.allocator = allocator;
    fixture_open(f);
}

static uint8_t *save(const fixture *f, const quire_seq *seq, int page, size_t *bytes) {
    *bytes = quire_seq_page_bytes(f->pool, page);
    uint8_t *data = malloc(*bytes);
    assert_ok(quire_seq_page_save(seq, page, data, *bytes));
    return data;
}

static void save_and_load(void **state) {
    (void)state;
    ledger la = {.fill = 0xff}, lb = {.fill = 0};
    quire_allocator allocator_a, allocator_b;
    fixture a, b;
    init_saved(&a, &la, &allocator_a);
    init_saved(&b, &lb, &allocator_b);
    for (int pages = 1; pages <= 3; pages++) {
        quire_seq *from = fed_seq(&a, &SOURCE, pages * 64 + 20), *same = new_seq(&a),
                  *other = new_seq(&b);
        quire_seq *computed = fed_seq(&b, &SOURCE, pages * 64);
        for (int p = 0; p < pages; p++) {
            size_t n, m;
            uint8_t *bytes = save(&a, from, p, &n), *again = save(&b, computed, p, &m);
            assert_int_equal(n, m);
            assert_memory_equal(bytes, again,
                                n); /* whoever computed it, whatever lay in its memory before */
            assert_ok(quire_seq_page_load(same, bytes, n));
            assert_ok(quire_seq_page_load(other, bytes, n));
            assert_int_equal(quire_seq_length(other), 64 * (p + 1));
            balance(&a), balance(&b);
            free(bytes), free(again);
        }
        float *wanted = probe(&b, computed, &OTHER, 60);
        assert_answers(&a, same, &OTHER, 60, wanted);
        assert_answers(&b, other, &OTHER, 60, wanted);
        feed(&a, from, &SOURCE, 7, 7, 1, 0, NULL); /* loaded pages belong to nobody else */
        drop(from);
        assert_answers(&a, same, &OTHER, 60, wanted);
        free(wanted);
        drop(same), drop(other), drop(computed);
        assert_all_free(&a), assert_all_free(&b);
    }
    fixture_close(&a), fixture_close(&b);
}

static void save_and_load_refusals(void **state) {
    (void)state;
    ledger l = {0};
    quire_allocator allocator;
    fixture f;
    init_saved(&f, &l, &allocator);
    quire_seq *seq = fed_seq(&f, &SOURCE, 200), *empty = new_seq(&f);
    size_t n, n0;
    uint8_t *page = save(&f, seq, 1, &n), *page0 = save(&f, seq, 0, &n0);
    assert_true(n0 > n); /* the sinks */
    const quire_pool_stats before = balance(&f);
    assert_status(quire_seq_page_save(seq, 3, page, n), QUIRE_E_INVALID); /* open */
    assert_status(quire_seq_page_save(seq, -1, page, n), QUIRE_E_INVALID);
    assert_status(quire_seq_page_save(seq, INT32_MAX, page, n), QUIRE_E_INVALID);
    assert_status(quire_seq_page_save(empty, 0, page0, n0), QUIRE_E_INVALID);
    assert_status(quire_seq_page_save(seq, 1, NULL, n), QUIRE_E_INVALID);
    assert_status(quire_seq_page_save(seq, 1, page, n - 1), QUIRE_E_INVALID);
    assert_status(quire_seq_page_save(seq, 1, page0, n0), QUIRE_E_INVALID);
    assert_status(quire_seq_page_load(seq, page, n), QUIRE_E_STATE); /* 200 is no multiple of 64 */
    assert_status(quire_seq_page_load(empty, page, n), QUIRE_E_FORMAT); /* page 0 is longer */
    assert_status(quire_seq_page_load(empty, page0, 0), QUIRE_E_FORMAT);
    assert_status(quire_seq_page_load(empty, page0, n0 + 1), QUIRE_E_FORMAT);
    assert_status(quire_seq_page_load(empty, page0, SIZE_MAX), QUIRE_E_FORMAT);
    uint8_t *spoilt = malloc(n0);
    memset(spoilt, 0xff, n0); /* parameters that are no numbers */
    assert_status(quire_seq_page_load(empty, spoilt, n0), QUIRE_E_FORMAT);
    free(spoilt);
    assert_same_residents(before, balance(&f));
    assert_int_equal(quire_seq_length(empty), 0);

    assert_ok(quire_seq_page_load(empty, page0, n0));
    for (int i = 1; i < 4; i++)
        assert_ok(quire_seq_page_load(empty, page, n));
    assert_status(quire_seq_page_load(empty, page, n), QUIRE_E_TOO_BIG); /* 256 tokens at most */
    assert_int_equal(quire_seq_length(empty), 256);
    free(page), free(page0);
    fixture_close(&f);
}

/* Bytes spoilt anywhere: refused, or a page like others. Nothing that is not finite ever comes
 * out. */
static void load_spoilt_pages(void **state) {
    (void)state;
    ledger l = {0};
    quire_allocator allocator;
    fixture f;
    init_saved(&f, &l, &allocator);
    quire_seq *seq = fed_seq(&f, &SOURCE, 64);
    size_t n, n_refused = 0, n_loaded = 0;
    uint8_t *page = save(&f, seq, 0, &n);
    for (size_t i = 0; i + 2 <= n; i += 34) {
        uint8_t was[2] = {page[i], page[i + 1]};
        page[i] = 0x01, page[i + 1] = 0xfd; /* an fp16 NaN */
        quire_seq *loaded = new_seq(&f);
        const quire_status status = quire_seq_page_load(loaded, page, n);
        memcpy(page + i, was, 2);
        if (status == QUIRE_OK) {
            float *out = probe(&f, loaded, &OTHER, 1);
            for (size_t j = 0; j < answer_floats(&f, 1); j++)
                assert_true(isfinite(out[j]));
            free(out);
            n_loaded++;
        } else {
            assert_int_equal(status, QUIRE_E_FORMAT);
            n_refused++;
        }
        drop(loaded);
    }
    assert_true(n_loaded > 50 &&
                n_refused > 50); /* codes may be anything, raw rows and parameters may not */
    drop(seq);
    free(page);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Saves a page, replaces some of its bytes, and loads it into a new sequence. */
static quire_status load_changed(fixture *f, int page, size_t at, const void *bytes,
                                 size_t n_bytes) {
    quire_seq *seq = fed_seq(f, &SOURCE, 128), *loaded = fed_seq(f, &SOURCE, page * 64);
    size_t n;
    uint8_t *data = save(f, seq, page, &n);
    memcpy(data + at, bytes, n_bytes);
    const quire_status status = quire_seq_page_load(loaded, data, n);
    free(data);
    drop(seq), drop(loaded);
    return status;
}

/* Finite numbers that attention turns into infinite ones, or that sealing could not take. */
static void load_values_too_large(void **state) {
    (void)state;
    static const uint16_t bf16[] = {0x7f7f /* largest */, 0x4780 /* 65536 */, 0x477f /* 65280 */};
    static const float f32[] = {3.4e38f, 3.38e38f};
    fixture f;
    fixture_init(&f, 1, 1, 1, 64, 64, "mlx4");
    f.options.raw = QUIRE_BF16;
    fixture_open(&f);
    const size_t scales = 64 * 64 / 2, biases = scales + 2 * 64;
    assert_status(load_changed(&f, 1, scales, &bf16[0], 2), QUIRE_E_FORMAT);
    assert_status(load_changed(&f, 1, biases, &bf16[0], 2), QUIRE_E_FORMAT);
    assert_ok(load_changed(&f, 1, scales, &bf16[1], 2));
    assert_ok(load_changed(&f, 1, biases, &bf16[1], 2));
    fixture_close(&f);

    fixture_init(&f, 1, 1, 1, 64, 64, "none"); /* a value that bf16 would round to infinity */
    f.options.raw = QUIRE_F32;
    fixture_open(&f);
    assert_status(load_changed(&f, 1, 0, &f32[0], 4), QUIRE_E_FORMAT);
    assert_ok(load_changed(&f, 1, 0, &f32[1], 4));
    fixture_close(&f);

    fixture_init(&f, 1, 1, 1, 64, 64, "k8v4"); /* a sink that could not be packed again */
    f.options.raw = QUIRE_BF16;
    fixture_open(&f);
    const size_t sinks = quire_seq_page_bytes(f.pool, 1);
    assert_status(load_changed(&f, 0, sinks, &bf16[1], 2), QUIRE_E_FORMAT);
    assert_ok(load_changed(&f, 0, sinks, &bf16[2], 2));
    fixture_close(&f);
}

/* A loaded page has no kept rows, but is a page like any other. */
static void use_of_loaded_pages(void **state) {
    (void)state;
    ledger l = {0};
    quire_allocator allocator;
    fixture f;
    init_saved(&f, &l, &allocator);
    quire_seq *seq = fed_seq(&f, &SOURCE, 150), *loaded = new_seq(&f),
              *wanted = fed_seq(&f, &SOURCE, 100), *child;
    for (int p = 0; p < 2; p++) {
        size_t n;
        uint8_t *bytes = save(&f, seq, p, &n);
        assert_ok(quire_seq_page_load(loaded, bytes, n));
        free(bytes);
    }
    assert_ok(quire_seq_fork(loaded, &child));
    assert_ok(quire_seq_trim(child, 64));
    quire_seq *one_page = fed_seq(&f, &SOURCE, 64);
    check_continuation(&f, child, one_page, 70, 0);
    assert_ok(quire_seq_trim(loaded, 100));
    assert_int_equal(balance(&f).reopened_pages, 1);
    check_continuation(&f, loaded, wanted, 5, 0.1); /* 4-bit V instead of raw */

    /* Loaded behind a page that was computed: that one's raw rows are no longer those of the
     * last page. */
    size_t n;
    uint8_t *bytes = save(&f, seq, 1, &n);
    quire_seq *both = fed_seq(&f, &SOURCE, 64);
    assert_ok(quire_seq_page_load(both, bytes, n));
    free(bytes);
    balance(&f);
    assert_ok(quire_seq_trim(both, 30));
    assert_int_equal(balance(&f).reopened_pages, 2);
    assert_ok(quire_seq_trim(wanted, 30));
    check_continuation(&f, both, wanted, 5, 0.1);
    drop(both);
    drop(seq), drop(loaded), drop(wanted), drop(child), drop(one_page);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Pages that left a window cannot be saved; loading recycles like computing. */
static void save_and_load_windows(void **state) {
    (void)state;
    fixture f;
    init_small(&f, 2, "k8v4");
    f.layer[1].window = 100;
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 64), *loaded = new_seq(&f);
    for (int p = 0; p < 4; p++) { /* each page while it is still there */
        size_t n;
        uint8_t *bytes = save(&f, seq, p, &n);
        assert_ok(quire_seq_page_load(loaded, bytes, n));
        feed(&f, seq, &SOURCE, 64, 64, 1, 0, NULL);
        free(bytes);
    }
    const size_t n = quire_seq_page_bytes(f.pool, 0);
    uint8_t *bytes = malloc(n);
    assert_status(quire_seq_page_save(seq, 0, bytes, n), QUIRE_E_GONE);
    assert_status(quire_seq_page_save(loaded, 0, bytes, n), QUIRE_E_GONE);
    free(bytes);
    quire_seq *wanted = fed_seq(&f, &SOURCE, 256);
    check_continuation(&f, loaded, wanted, 70, 0);
    drop(seq), drop(loaded), drop(wanted);
    assert_all_free(&f);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trim_to_every_length),
        cmocka_unit_test(trim_again),
        cmocka_unit_test(fork_anywhere),
        cmocka_unit_test(copy_on_write),
        cmocka_unit_test(free_in_any_order),
        cmocka_unit_test(windows),
        cmocka_unit_test(windows_over_many_pages),
        cmocka_unit_test(window_after_trim),
        cmocka_unit_test(fork_outlives_window),
        cmocka_unit_test(trim_windows),
        cmocka_unit_test(mixed_layers),
        cmocka_unit_test(shared_layers_later),
        cmocka_unit_test(save_and_load),
        cmocka_unit_test(save_and_load_refusals),
        cmocka_unit_test(load_spoilt_pages),
        cmocka_unit_test(load_values_too_large),
        cmocka_unit_test(use_of_loaded_pages),
        cmocka_unit_test(save_and_load_windows),
    };
    if (level_is_missing())
        return LEFT_OUT;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
