/* Batches: calls out of order, values that cannot be stored, all or nothing, partial commits,
 * what the counters say. */
#include <math.h>

#include "ledger.h"

static const source SOURCE = {
    .seed = 5, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};
static const source OTHER = {
    .seed = 6, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};

static void init_plain(fixture *f, const char *kv) {
    fixture_init(f, 2, 4, 2, 32, 48, kv);
    f->options.budget_bytes = (size_t)8 << 20;
    f->options.max_tokens = 2048;
    f->options.max_workers = 3;
}

/* One layer's tensors for n rows from `position` on. */
typedef struct tensors {
    float *k, *v, *q, *out;
} tensors;

static tensors tensors_of(const fixture *f, int layer, int position, int n) {
    const quire_layer *l = &f->layer[layer];
    const int nk = l->n_kv_heads * l->k_dim, nv = l->n_kv_heads * l->v_dim,
              nq = l->n_heads * l->k_dim, no = l->n_heads * l->v_dim;
    tensors t = {malloc((size_t)(n * nk) * 4), malloc((size_t)(n * nv) * 4),
                 malloc((size_t)(n * nq) * 4), malloc((size_t)(n * no) * 4)};
    for (int i = 0; i < n; i++) {
        source_k(&SOURCE, l, layer, position + i, t.k + i * nk);
        source_v(&SOURCE, l, layer, position + i, t.v + i * nv);
        source_q(&SOURCE, l, layer, position + i, t.q + i * nq);
    }
    return t;
}

static void tensors_free(tensors t) { free(t.k), free(t.v), free(t.q), free(t.out); }
static quire_rows rows_f32(const float *data) { return (quire_rows){data, QUIRE_F32, 0}; }

static quire_status store(quire_batch *batch, int layer, const tensors *t, int ith, int nth) {
    return quire_batch_append(batch, layer, rows_f32(t->k), rows_f32(t->v), ith, nth);
}

static quire_status attend(quire_batch *batch, int layer, const tensors *t, int ith, int nth) {
    const quire_attend_args args = {.q = rows_f32(t->q), .out = t->out};
    return quire_batch_attend(batch, layer, &args, ith, nth);
}

static quire_batch *begin(const fixture *f, quire_seq *seq, int n) {
    quire_batch *batch;
    assert_ok(quire_batch_begin(f->pool, &(quire_batch_item){seq, n}, 1, &batch));
    return batch;
}

/* ------------------------------------------------------------------ calls */

static void call_order(void **state) {
    (void)state;
    enum { N = 200 }; /* long enough for pages in scratch */
    fixture f;
    init_plain(&f, "k8v4");
    fixture_open(&f);
    quire_seq *seq = new_seq(&f);
    quire_batch *batch = begin(&f, seq, N);
    const tensors t[2] = {tensors_of(&f, 0, 0, N), tensors_of(&f, 1, 0, N)};
    assert_int_equal(quire_batch_rows(batch), N);
    assert_string_equal(quire_batch_error(batch), "");
    assert_status(attend(batch, 0, &t[0], 0, 1), QUIRE_E_STATE);
    assert_reason("layer 0");
    assert_status(quire_batch_commit(batch, NULL), QUIRE_E_STATE);
    assert_ok(store(batch, 1, &t[1], 0, 1)); /* any order of layers ... */
    assert_ok(attend(batch, 1, &t[1], 0, 1));
    assert_status(quire_batch_commit(batch, NULL), QUIRE_E_STATE);
    assert_reason("layer 0 was not appended to");
    assert_ok(store(batch, 0, &t[0], 0, 1));
    assert_status(attend(batch, 1, &t[1], 0, 1), QUIRE_E_STATE); /* ... but one at a time */
    assert_reason("layer 1: another layer was appended to since");
    assert_ok(attend(batch, 0, &t[0], 0, 1));
    assert_ok(attend(batch, 0, &t[0], 0, 1)); /* twice is fine */
    assert_int_equal(quire_seq_length(seq), 0);
    assert_ok(quire_batch_commit(batch, NULL));
    assert_int_equal(quire_seq_length(seq), N);
    assert_status(quire_batch_commit(batch, NULL), QUIRE_E_INVALID); /* it is over */
    assert_status(store(batch, 0, &t[0], 0, 1), QUIRE_E_INVALID);
    assert_status(attend(batch, 0, &t[0], 0, 1), QUIRE_E_INVALID);
    quire_batch_abort(batch);
    assert_int_equal(quire_seq_length(seq), N);
    tensors_free(t[0]), tensors_free(t[1]);
    fixture_close(&f);
}

/* A layer counts as stored when all workers are back, and not before. */
static void all_workers(void **state) {
    (void)state;
    fixture f;
    init_plain(&f, "k8v4");
    f.options.n_layers = 1;
    fixture_open(&f);
    quire_seq *seq = new_seq(&f);
    quire_batch *batch = begin(&f, seq, 100);
    const tensors t = tensors_of(&f, 0, 0, 100);
    for (int i = 0; i < 3; i++) {
        assert_status(attend(batch, 0, &t, 0, 1), QUIRE_E_STATE);
        assert_status(quire_batch_commit(batch, NULL), QUIRE_E_STATE);
        assert_ok(store(batch, 0, &t, 2 - i, 3));
    }
    for (int i = 0; i < 2; i++)
        assert_ok(attend(batch, 0, &t, i, 2));
    assert_ok(quire_batch_commit(batch, NULL));
    tensors_free(t);
    fixture_close(&f);
}

/* Layer 2 shares layer 1's cache. */
static void open_shared(fixture *f) {
    init_plain(f, "k8v4");
    f->options.n_layers = 3;
    f->layer[2] = f->layer[1];
    f->layer[2].share = 1;
    fixture_open(f);
}

static void bad_calls(void **state) {
    (void)state;
    fixture f;
    open_shared(&f);
    quire_seq *seq = new_seq(&f);
    quire_batch *batch = begin(&f, seq, 2);
    const tensors t = tensors_of(&f, 0, 0, 2);
    static const int32_t layers[] = {-1, 3, INT32_MIN, INT32_MAX};
    static const int32_t workers[][2] = {
        {0, 0}, {-1, 1}, {1, 1}, {0, 4}, {3, 3}, {0, -1}, {INT32_MAX, INT32_MAX}};
    for (int i = 0; i < 4; i++) {
        assert_status(store(batch, layers[i], &t, 0, 1), QUIRE_E_INVALID);
        assert_reason("layer");
        assert_status(attend(batch, layers[i], &t, 0, 1), QUIRE_E_INVALID);
    }
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        assert_status(store(batch, 0, &t, workers[i][0], workers[i][1]), QUIRE_E_INVALID);
        assert_reason("worker");
        assert_status(attend(batch, 0, &t, workers[i][0], workers[i][1]), QUIRE_E_INVALID);
    }
    assert_status(store(batch, 2, &t, 0, 1), QUIRE_E_STATE);
    assert_reason("layer 2 shares layer 1");

    const quire_rows k = rows_f32(t.k), v = rows_f32(t.v), none = {NULL, QUIRE_F32, 0},
                     odd = {t.k, (quire_type)9, 0};
    const quire_rows narrow_k = {t.k, QUIRE_F32, 63}, narrow_v = {t.v, QUIRE_F32, 95},
                     narrow_q = {t.q, QUIRE_F32, 127};
    assert_status(quire_batch_append(batch, 0, none, v, 0, 1), QUIRE_E_INVALID);
    assert_reason("layer 0: K");
    assert_status(quire_batch_append(batch, 0, k, none, 0, 1), QUIRE_E_INVALID);
    assert_reason("layer 0: V");
    assert_status(quire_batch_append(batch, 0, odd, v, 0, 1), QUIRE_E_INVALID);
    assert_status(quire_batch_append(batch, 0, narrow_k, v, 0, 1), QUIRE_E_INVALID);
    assert_reason("K row stride 63");
    assert_status(quire_batch_append(batch, 0, k, narrow_v, 0, 1), QUIRE_E_INVALID);
    assert_reason("V row stride 95");
    assert_status(quire_batch_append(NULL, 0, k, v, 0, 1), QUIRE_E_INVALID);
    assert_status(attend(batch, 0, &t, 0, 1), QUIRE_E_STATE); /* none of that counts as stored */

    assert_ok(store(batch, 0, &t, 0, 1));
    const quire_attend_args wrong[] = {
        {.q = none, .out = t.out},
        {.q = rows_f32(t.q), .out = NULL},
        {.q = narrow_q, .out = t.out},
        {.q = rows_f32(t.q), .out = t.out, .out_stride = 191},
        {.q = {t.q, (quire_type)9, 0}, .out = t.out},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_status(quire_batch_attend(batch, 0, &wrong[i], 0, 1), QUIRE_E_INVALID);
        assert_reason("layer 0");
    }
    assert_status(quire_batch_attend(batch, 0, NULL, 0, 1), QUIRE_E_INVALID);
    assert_status(quire_batch_attend(NULL, 0, wrong, 0, 1), QUIRE_E_INVALID);
    assert_ok(attend(batch, 0, &t, 0, 1)); /* none of that spoiled the batch */
    quire_batch_abort(batch);
    tensors_free(t);
    fixture_close(&f);
}

/* The first failure of any worker is kept, whatever it is. */
static void errors_are_kept(void **state) {
    (void)state;
    static const struct {
        int32_t layer, ith, nth;
        const char *reason;
    } wrong[] = {{9, 0, 1, "no layer 9"}, {0, 3, 3, "worker 3"}, {2, 0, 1, "shares layer 1"}};
    fixture f;
    open_shared(&f);
    quire_seq *seq = new_seq(&f);
    const tensors t = tensors_of(&f, 0, 0, 2);
    for (int i = 0; i < 5; i++) {
        quire_batch *batch = begin(&f, seq, 2);
        assert_string_equal(quire_batch_error(batch), "");
        const int32_t layer = wrong[i % 3].layer, ith = wrong[i % 3].ith, nth = wrong[i % 3].nth;
        assert_true((i < 3 ? store(batch, layer, &t, ith, nth)
                           : attend(batch, layer, &t, ith, nth)) != QUIRE_OK);
        assert_non_null(strstr(quire_batch_error(batch), wrong[i % 3].reason));
        quire_batch_abort(batch);
    }
    tensors_free(t);
    fixture_close(&f);
}

/* A batch fails for a reason of its own, whatever was refused before. */
static void the_failure_is_named(void **state) {
    (void)state;
    fixture f;
    init_plain(&f, "k8v4");
    fixture_open(&f);
    quire_batch *batch = begin(&f, new_seq(&f), 2);
    const tensors t = tensors_of(&f, 0, 0, 2);
    assert_status(attend(batch, 0, &t, 0, 1), QUIRE_E_STATE);
    assert_non_null(strstr(quire_batch_error(batch), "before attending"));
    t.k[1] = NAN;
    assert_status(store(batch, 0, &t, 0, 1), QUIRE_E_VALUE);
    assert_non_null(strstr(quire_batch_error(batch), "row 0"));
    assert_status(store(batch, 7, &t, 0, 1), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_batch_error(batch), "row 0"));
    quire_batch_abort(batch);
    tensors_free(t);
    fixture_close(&f);
}

/* Which workers have appended counts, not how many calls were made. */
static void every_worker_appends(void **state) {
    (void)state;
    fixture f;
    init_plain(&f, "k8v4");
    f.options.n_layers = 1;
    fixture_open(&f);
    quire_batch *batch = begin(&f, new_seq(&f), 2);
    const tensors t = tensors_of(&f, 0, 0, 2);
    assert_ok(store(batch, 0, &t, 0, 2));
    assert_ok(store(batch, 0, &t, 0, 2));
    assert_status(attend(batch, 0, &t, 0, 1), QUIRE_E_STATE);
    assert_status(quire_batch_commit(batch, NULL), QUIRE_E_STATE);
    assert_status(store(batch, 0, &t, 2, 2), QUIRE_E_INVALID); /* and all of them again */
    assert_ok(store(batch, 0, &t, 0, 2));
    assert_ok(store(batch, 0, &t, 1, 2));
    assert_ok(attend(batch, 0, &t, 0, 1));
    assert_ok(store(batch, 0, &t, 0, 3)); /* in three parts, of which two are missing */
    assert_status(attend(batch, 0, &t, 0, 1), QUIRE_E_STATE);
    assert_ok(store(batch, 0, &t, 2, 3));
    assert_ok(store(batch, 0, &t, 1, 3));
    assert_ok(attend(batch, 0, &t, 0, 1));
    assert_ok(quire_batch_commit(batch, NULL));
    tensors_free(t);
    fixture_close(&f);
}

/* One worker of a call is refused and the other one does all the work: the next call, of any
 * number of workers, writes its output all the same. */
static void attend_after_a_refusal(void **state) {
    (void)state;
    static const int rows[] = {1, 100}; /* chunks shared by workers, and whole tiles */
    for (int i = 0; i < 2; i++) {
        fixture f;
        init_plain(&f, "k8v4");
        f.options.n_layers = 1;
        fixture_open(&f);
        quire_seq *seq = fed_seq(&f, &SOURCE, 1900);
        quire_batch *batch = begin(&f, seq, rows[i]);
        const tensors t = tensors_of(&f, 0, 1900, rows[i]);
        const size_t n = (size_t)(rows[i] * f.layer[0].n_heads * f.layer[0].v_dim);
        float *wanted = malloc(n * sizeof *wanted);
        assert_ok(store(batch, 0, &t, 0, 1));
        assert_ok(attend(batch, 0, &t, 0, 1));
        memcpy(wanted, t.out, n * sizeof *wanted);
        for (int refused = 0; refused < 2; refused++)
            for (int nth = 1; nth <= 3; nth++) {
                assert_ok(attend(batch, 0, &t, 0, 2));
                if (refused)
                    assert_status(attend(batch, 0, &t, 2, 2), QUIRE_E_INVALID);
                else
                    assert_status(attend(batch, 7, &t, 1, 2), QUIRE_E_INVALID);
                for (size_t j = 0; j < n; j++)
                    t.out[j] = NAN;
                for (int ith = 0; ith < nth; ith++)
                    assert_ok(attend(batch, 0, &t, ith, nth));
                assert_memory_equal(t.out, wanted, n * sizeof *wanted);
            }
        quire_batch_abort(batch);
        free(wanted);
        tensors_free(t);
        drop(seq);
        fixture_close(&f);
    }
}

/* Rows need not be dense, nor f32. */
static void strides(void **state) {
    (void)state;
    enum { N = 70, PAD = 13 };
    fixture f;
    init_plain(&f, "k8v4");
    f.options.n_layers = 1;
    fixture_open(&f);
    const quire_layer *l = &f.layer[0];
    const size_t nk = (size_t)(l->n_kv_heads * l->k_dim), nv = (size_t)(l->n_kv_heads * l->v_dim),
                 nq = (size_t)(l->n_heads * l->k_dim), no = (size_t)(l->n_heads * l->v_dim);
    quire_seq *seq = fed_seq(&f, &SOURCE, 30);
    float *wanted = probe(&f, seq, &SOURCE, N);
    const tensors t = tensors_of(&f, 0, 30, N);
    float *wide[4];
    const size_t dense[4] = {nk, nv, nq, no};
    const float *from[4] = {t.k, t.v, t.q, t.out};
    for (int i = 0; i < 4; i++) {
        wide[i] = malloc(N * (dense[i] + PAD) * sizeof(float));
        for (size_t j = 0; j < N * (dense[i] + PAD); j++)
            wide[i][j] = NAN; /* gaps are neither read nor written */
        for (size_t r = 0; r < N && i < 3; r++)
            memcpy(wide[i] + r * (dense[i] + PAD), from[i] + r * dense[i],
                   dense[i] * sizeof(float));
    }
    quire_batch *batch = begin(&f, seq, N);
    assert_ok(quire_batch_append(batch, 0, (quire_rows){wide[0], QUIRE_F32, nk + PAD},
                                 (quire_rows){wide[1], QUIRE_F32, nv + PAD}, 0, 1));
    const quire_attend_args args = {
        .q = {wide[2], QUIRE_F32, nq + PAD}, .out = wide[3], .out_stride = no + PAD};
    assert_ok(quire_batch_attend(batch, 0, &args, 0, 1));
    for (size_t r = 0; r < N; r++) {
        assert_memory_equal(wide[3] + r * (no + PAD), wanted + r * no, no * sizeof(float));
        for (size_t j = no; j < no + PAD; j++)
            assert_true(isnan(wide[3][r * (no + PAD) + j]));
    }
    quire_batch_abort(batch);
    for (int i = 0; i < 4; i++)
        free(wide[i]);
    free(wanted);
    tensors_free(t);
    fixture_close(&f);
}

static void busy_sequence(void **state) {
    (void)state;
    fixture f;
    init_plain(&f, "k8v4");
    f.options.max_batches = 2;
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 128), *child = (quire_seq *)&f;
    const size_t bytes = quire_seq_page_bytes(f.pool, 2), bytes_1 = quire_seq_page_bytes(f.pool, 1);
    uint8_t *page = malloc(bytes), *saved = malloc(bytes_1), *saved_busy = malloc(bytes_1);
    assert_ok(quire_seq_page_save(seq, 1, saved, bytes_1));
    quire_batch *batch = begin(&f, seq, 70), *second = (quire_batch *)&f;
    const quire_pool_stats before = balance(&f);
    assert_status(quire_seq_fork(seq, &child), QUIRE_E_BUSY);
    assert_null(child);
    assert_status(quire_seq_trim(seq, 3), QUIRE_E_BUSY);
    assert_status(quire_seq_free(seq), QUIRE_E_BUSY);
    assert_status(quire_seq_page_load(seq, page, bytes), QUIRE_E_BUSY);
    assert_status(quire_batch_begin(f.pool, &(quire_batch_item){seq, 1}, 1, &second), QUIRE_E_BUSY);
    assert_null(second);
    assert_ok(quire_seq_page_save(seq, 1, saved_busy,
                                  bytes_1)); /* sealed pages do not change: saving is fine */
    assert_memory_equal(saved, saved_busy, bytes_1);
    assert_status(quire_seq_page_save(seq, 2, page, bytes),
                  QUIRE_E_INVALID); /* reserved, not yet its own */
    assert_same_residents(before, balance(&f));
    quire_batch_abort(batch);
    assert_ok(quire_seq_fork(seq, &child));
    free(page), free(saved), free(saved_busy);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ values */

typedef struct bad_value {
    quire_type raw;
    const char *kv;
    float value;
} bad_value;

/* One bad value in K or V of layer 1, row 7, head 1: named, refused, and gone without a trace
 * after abort. */
static void check_bad_value(const bad_value *bad, bool in_v) {
    enum { N = 70, ROW = 7, HEAD = 1, AT = 5 };
    fixture f;
    init_plain(&f, bad->kv);
    f.options.raw = bad->raw;
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 30);
    const quire_pool_stats stats = balance(&f);
    float *before = probe(&f, seq, &SOURCE, N);
    quire_batch *batch = begin(&f, seq, N);
    const tensors t[2] = {tensors_of(&f, 0, 30, N), tensors_of(&f, 1, 30, N)};
    const int dim = in_v ? f.layer[1].v_dim : f.layer[1].k_dim;
    (in_v ? t[1].v : t[1].k)[(ROW * 2 + HEAD) * dim + AT] = bad->value;
    assert_ok(store(batch, 0, &t[0], 0, 1));
    assert_ok(attend(batch, 0, &t[0], 0, 1));
    assert_status(store(batch, 1, &t[1], 0, 1), QUIRE_E_VALUE);
    assert_reason("layer 1, row 7, KV head 1");
    assert_reason(in_v ? "V[5]" : "K[5]");
    assert_non_null(strstr(quire_batch_error(batch), "layer 1, row 7, KV head 1"));
    assert_status(attend(batch, 1, &t[1], 0, 1), QUIRE_E_STATE);
    assert_status(attend(batch, 0, &t[0], 0, 1), QUIRE_E_STATE);
    assert_status(quire_batch_commit(batch, NULL), QUIRE_E_STATE);
    assert_reason("row 7");
    quire_batch_abort(batch);
    assert_same_residents(stats, balance(&f));
    assert_answers(&f, seq, &SOURCE, N, before);
    feed(&f, seq, &SOURCE, 40, 40, 1, 0, NULL); /* and the slot is as good as new */
    free(before);
    tensors_free(t[0]), tensors_free(t[1]);
    fixture_close(&f);
}

static void bad_values(void **state) {
    (void)state;
    static const bad_value cases[] = {
        {QUIRE_F16, "k8v4", NAN},        {QUIRE_F16, "k8v4", -INFINITY},
        {QUIRE_F16, "k8v4", 1e6f},       {QUIRE_F16, "none", 1e6f},
        {QUIRE_F16, "none", NAN},        {QUIRE_F16, "f32:f32", 1e6f},
        {QUIRE_BF16, "kc4:vt4", 1e6f},   {QUIRE_BF16, "kc4:vt4", NAN},
        {QUIRE_BF16, "none", INFINITY},  {QUIRE_BF16, "none", 3.4e38f},
        {QUIRE_BF16, "f16:f16", 1e6f},   {QUIRE_F32, "k8v4", -1e6f},
        {QUIRE_F32, "none", NAN},        {QUIRE_F32, "none", -INFINITY},
        {QUIRE_BF16, "q8_0:tq4", -7e4f}, {QUIRE_F16, "kc4:vt4", 65520},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int in_v = 0; in_v < 2; in_v++)
            check_bad_value(&cases[i], in_v);
}

/* Whatever is accepted must come out finite, also when rounding to the raw type carries it past
 * the codec's largest. */
static void largest_values(void **state) {
    (void)state;
    static const float values[] = {60000, 65280, 65400, 65408, 65472, 65500, 65504};
    static const char *const pairs[] = {"kc8:vt4", "kc2:vt2",  "f16:f16", "q8_0:q4_0",
                                        "tq4:tq2", "tqp3:vt8", "none"};
    enum { N = 130 };
    for (int raw = QUIRE_F32; raw <= QUIRE_BF16; raw++)
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
            for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
                fixture f;
                fixture_init(&f, 1, 2, 1, 32, 32, pairs[p]);
                f.options.raw = (quire_type)raw;
                f.options.max_workers = 1;
                fixture_open(&f);
                quire_seq *seq = new_seq(&f);
                quire_batch *batch = begin(&f, seq, N);
                const tensors t = tensors_of(&f, 0, 0, N);
                for (int j = 0; j < N * 32; j++) {
                    t.k[j] = values[i] * (j % 2 ? -1 : 1); /* the same sign in every token: the
                                                              channel's zero is as large */
                    t.v[j] = values[i];
                }
                const quire_status status = store(batch, 0, &t, 0, 1);
                if (status == QUIRE_OK) {
                    assert_ok(attend(batch, 0, &t, 0, 1));
                    for (int j = 0; j < N * 64; j++)
                        assert_true(isfinite(t.out[j]));
                    assert_ok(quire_batch_commit(batch, NULL));
                    assert_ok(quire_seq_trim(seq, 20)); /* packed, unpacked, and packed again */
                    float *out = probe(&f, seq, &SOURCE, 50);
                    for (size_t j = 0; j < answer_floats(&f, 50); j++)
                        assert_true(isfinite(out[j]));
                    free(out);
                } else {
                    assert_int_equal(status, QUIRE_E_VALUE);
                    assert_true(raw == QUIRE_BF16 &&
                                values[i] > 65280); /* the largest bf16 below fp16's largest */
                }
                tensors_free(t);
                fixture_close(&f);
            }
}

/* ------------------------------------------------------------------ all or nothing */

static void zero_tokens(void **state) {
    (void)state;
    fixture f;
    init_plain(&f, "k8v4");
    fixture_open(&f);
    quire_seq *empty = new_seq(&f), *some = fed_seq(&f, &SOURCE, 70);
    const quire_pool_stats before = balance(&f);
    const quire_batch_item nothing[] = {{empty, 0}, {some, 0}};
    quire_batch *batch;
    assert_ok(quire_batch_begin(f.pool, nothing, 2, &batch));
    assert_int_equal(quire_batch_rows(batch), 0);
    assert_status(quire_seq_free(empty), QUIRE_E_BUSY); /* in the batch all the same */
    const quire_rows no_rows = {NULL, QUIRE_F32, 0};
    assert_ok(quire_batch_append(batch, 0, no_rows, no_rows, 0, 1));
    assert_ok(quire_batch_attend(batch, 0, &(quire_attend_args){.out = NULL}, 0, 1));
    assert_ok(quire_batch_commit(batch, (int32_t[2]){0, 0}));
    assert_same_residents(before, balance(&f));

    /* Beside a sequence that brings rows, with and without tokens of its own. */
    float *alone = probe(&f, some, &SOURCE, 3),
          *beside = malloc(answer_floats(&f, 3) * sizeof *beside);
    const step_item items[] = {{empty, &SOURCE, 0}, {some, &SOURCE, 3}};
    assert_ok(step(&f, items, 2, NULL, beside));
    assert_memory_equal(alone, beside, answer_floats(&f, 3) * sizeof *beside);
    assert_int_equal(quire_seq_length(empty), 0);
    assert_int_equal(quire_seq_length(some), 73);
    assert_ok(quire_seq_trim(empty, 0));
    quire_seq *child;
    assert_ok(quire_seq_fork(empty, &child));
    assert_int_equal(quire_seq_length(child), 0);
    drop(child), drop(empty), drop(some);
    assert_all_free(&f);
    free(alone), free(beside);
    fixture_close(&f);
}

/* A pool with every kind of group: packed, packed and windowed with and without kept tokens,
 * raw, raw and windowed. */
static void init_mixed(fixture *f) {
    fixture_init(f, 6, 2, 1, 32, 32, "k8v4");
    f->layer[1].window = 70;
    f->layer[2].window = 40;
    f->layer[2].keep = 10;
    f->layer[3].k = f->layer[3].v = QUIRE_CODEC_RAW;
    f->layer[4].k = f->layer[4].v = QUIRE_CODEC_RAW;
    f->layer[4].window = 90;
    f->layer[5].share = 0;
    f->options.max_workers = 1;
    f->options.max_tokens = 1024;
    f->options.budget_bytes = (size_t)8 << 20;
}

static void abort_leaves_all(void **state) {
    (void)state;
    static const int lengths[] = {0, 1, 63, 64, 65, 100, 127, 128, 190, 250},
                     added[] = {1, 5, 64, 65, 130, 200};
    fixture f;
    init_mixed(&f);
    fixture_open(&f);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        quire_seq *seq = fed_seq(&f, &SOURCE, lengths[i]), *child;
        float *before = probe(&f, seq, &SOURCE, 4);
        for (int shared = 0; shared < 2; shared++) {
            if (shared)
                assert_ok(
                    quire_seq_fork(seq, &child)); /* now pages are copied before they are written */
            const quire_pool_stats stats = balance(&f);
            for (size_t j = 0; j < sizeof added / sizeof *added; j++) {
                const step_item item = {seq, &OTHER, added[j]};
                assert_ok(
                    step(&f, &item, 1, &(step_options){.abort = true, .store_only = true}, NULL));
                assert_same_residents(stats, balance(&f));
                assert_int_equal(quire_seq_length(seq), lengths[i]);
                assert_answers(&f, seq, &SOURCE, 4, before);
            }
        }
        assert_answers(&f, child, &SOURCE, 4, before);
        drop(seq), drop(child);
        assert_all_free(&f);
        free(before);
    }
    fixture_close(&f);
}

/* ------------------------------------------------------------------ partial commits */

/* After keeping `kept` of n tokens, the sequence answers like one that never saw the others. */
static void check_keep(fixture *f, int before, int n, int kept, bool shared) {
    const int length = before + kept, last_two = (before + n) / 64 - 1;
    quire_seq *seq = fed_seq(f, &SOURCE, before), *sibling = NULL;
    if (shared)
        assert_ok(quire_seq_fork(seq, &sibling));
    quire_batch *batch = begin(f, seq, n);
    for (int i = 0; i < f->options.n_layers; i++) {
        const tensors t = tensors_of(f, i, before, n);
        if (f->layer[i].share < 0)
            assert_ok(store(batch, i, &t, 0, 1));
        tensors_free(t);
    }
    const int32_t wrong[] = {-1, n + 1}, n_accept = kept;
    for (int i = 0; i < 2; i++)
        assert_status(quire_batch_commit(batch, &wrong[i]), QUIRE_E_INVALID);
    const bool first_page = before % 64 && length / 64 == before / 64;
    if (length % 64 && length / 64 < last_two && !first_page) {
        assert_status(quire_batch_commit(batch, &n_accept), QUIRE_E_INVALID);
        assert_ok(quire_batch_commit(batch, NULL)); /* still open, as if nothing had been asked */
        assert_int_equal(quire_seq_length(seq), before + n);
    } else {
        assert_ok(quire_batch_commit(batch, &n_accept));
        assert_int_equal(quire_seq_length(seq), length);
        assert_int_equal(balance(f).reopened_pages, 0);
        quire_seq *fresh = fed_seq(f, &SOURCE, length);
        float *wanted = probe(f, fresh, &OTHER, 5);
        assert_answers(f, seq, &OTHER, 5, wanted);
        free(wanted);
        drop(fresh);
    }
    const quire_pool_stats stats = balance(f);
    assert_true(f->options.exact_trim || stats.last_raw_bytes == 0);
    drop(seq), drop(sibling);
    assert_all_free(f);
}

static void check_every_keep(bool exact_trim) {
    static const int befores[] = {0, 10, 60, 64, 127, 128, 200}, added[] = {1, 4, 64, 70, 128, 190};
    fixture f;
    init_mixed(&f);
    f.options.exact_trim = exact_trim;
    fixture_open(&f);
    for (size_t i = 0; i < sizeof befores / sizeof *befores; i++)
        for (size_t j = 0; j < sizeof added / sizeof *added; j++) {
            const int before = befores[i], n = added[j],
                      sealed_at = (before + n) / 64 * 64 - before;
            const int keeps[] = {0,
                                 1,
                                 n / 2,
                                 n - 1,
                                 n,
                                 sealed_at - 1,
                                 sealed_at,
                                 sealed_at + 1,
                                 sealed_at - 64,
                                 sealed_at - 65};
            for (size_t k = 0; k < sizeof keeps / sizeof *keeps; k++)
                if (keeps[k] >= 0 && keeps[k] <= n)
                    check_keep(&f, before, n, keeps[k], k % 2);
        }
    fixture_close(&f);
}

static void partial_commit(void **state) {
    (void)state;
    check_every_keep(true);
    check_every_keep(false); /* a commit needs no raw rows of earlier steps */
}

/* ------------------------------------------------------------------ counters */

typedef struct reads {
    uint64_t packed, raw, rows;
} reads;

static reads reads_of(const fixture *f, int layer) {
    quire_layer_stats s;
    assert_ok(quire_layer_get_stats(f->pool, layer, &s));
    assert_int_equal(s.fallbacks, 0);
    return (reads){s.packed_read, s.raw_read, s.attended_rows};
}

/* Bytes that n tokens from `length` on should have read of one layer, counted page by page. */
static reads expected_reads(const fixture *f, int layer, int length, int n) {
    const quire_layer *l = &f->layer[layer];
    quire_layer_stats s;
    assert_ok(quire_layer_get_stats(f->pool, layer, &s));
    const bool raw_group = s.pair.k == QUIRE_CODEC_RAW;
    const int sinks = raw_group ? 0 : f->options.policy.sinks;
    uint64_t pages = 0, raw_rows = 0;
    for (int from = length; from < length + n;) { /* rows of one page share what they read */
        const int own = from / 64, to = length + n < (own + 1) * 64 ? length + n : (own + 1) * 64;
        const int seen_from = l->window && from >= l->window ? from - l->window + 1 : 0;
        for (int page = 0; page < own; page++) {
            const bool kept = page * 64 < l->keep && (page > 0 || l->keep > sinks);
            pages += page >= seen_from / 64 || kept;
        }
        raw_rows += (uint64_t)(to - own * 64);
        if (own > 0 && (l->keep > 0 || seen_from < sinks))
            raw_rows += (uint64_t)sinks;
        from = to;
    }
    const uint64_t heads = (uint64_t)l->n_kv_heads;
    return (reads){pages * s.record_bytes * heads,
                   raw_rows * (uint64_t)(l->k_dim + l->v_dim) * 2 * heads, (uint64_t)n};
}

static void bytes_read(void **state) {
    (void)state;
    static const int steps[] = {200, 1, 1, 54, 1, 7, 63, 64, 65, 1, 300, 1};
    fixture f;
    init_mixed(&f);
    for (int i = 0; i < 6; i++)
        f.layer[i].n_heads = 4, f.layer[i].n_kv_heads = 2;
    fixture_open(&f);
    quire_seq *seq = new_seq(&f);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        reads before[6];
        const int length = quire_seq_length(seq);
        for (int j = 0; j < 6; j++)
            before[j] = reads_of(&f, j);
        const step_item item = {seq, &SOURCE, steps[i]};
        assert_ok(step(&f, &item, 1, &(step_options){.n_workers = 1}, NULL));
        for (int j = 0; j < 6; j++) {
            const reads now = reads_of(&f, j), wanted = expected_reads(&f, j, length, steps[i]);
            assert_int_equal(now.packed - before[j].packed, wanted.packed);
            assert_int_equal(now.raw - before[j].raw, wanted.raw);
            assert_int_equal(now.rows - before[j].rows, wanted.rows);
        }
    }
    fixture_close(&f);
}

static void layer_statistics(void **state) {
    (void)state;
    fixture f;
    init_mixed(&f);
    fixture_open(&f);
    quire_seq *seq = fed_seq(&f, &SOURCE, 64 * 4 + 10);
    const size_t raw = 64 * (32 + 32) * 2, sinks = 4 * (32 + 32) * 2;
    /* layer 1 sees from 266 - 69 on: page 3; layer 2 from page 3, and pins page 0; layer 4 from
     * 177 on: page 2 */
    static const int pages[6] = {4, 1, 2, 4, 2, 0};
    /* layer 3 is raw beside layer 0: its rows of the page sealed last are kept with those; layer
     * 4 is alone */
    const size_t raw_bytes[6] = {2 * raw + sinks, 2 * raw, 2 * raw + sinks, 2 * raw, raw, 0};
    for (int i = 0; i < 6; i++) {
        quire_layer_stats s;
        assert_ok(quire_layer_get_stats(f.pool, i, &s));
        const quire_page_shape shape = {s.pair, 32, 32, QUIRE_F16};
        size_t record;
        assert_ok(quire_page_bytes(&shape, &record));
        assert_int_equal(s.record_bytes, record);
        assert_true(s.bits_per_element == 8.0 * (double)record / (64.0 * 64.0));
        assert_true(s.kernel && s.kernel[0]);
        assert_int_equal(s.pair.k, i == 3 || i == 4 ? QUIRE_CODEC_RAW : QUIRE_CODEC_KC8);
        assert_int_equal(s.sealed_bytes, (size_t)pages[i] * record);
        assert_int_equal(s.raw_bytes, raw_bytes[i]);
    }
    assert_int_equal(balance(&f).sealed_pages,
                     3 * 4); /* three packed layers; raw ones never pack */
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_order),
        cmocka_unit_test(all_workers),
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(errors_are_kept),
        cmocka_unit_test(attend_after_a_refusal),
        cmocka_unit_test(the_failure_is_named),
        cmocka_unit_test(every_worker_appends),
        cmocka_unit_test(strides),
        cmocka_unit_test(busy_sequence),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(largest_values),
        cmocka_unit_test(zero_tokens),
        cmocka_unit_test(abort_leaves_all),
        cmocka_unit_test(partial_commit),
        cmocka_unit_test(bytes_read),
        cmocka_unit_test(layer_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
