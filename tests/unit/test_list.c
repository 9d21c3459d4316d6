/* Lists of sequences, left-padded input, masks of KV heads, branches over one prefix. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"

enum { N = 6 };
static const int LENGTHS[N] = {1, 64, 65, 130, 200, 333};

static source source_of(int i) { return source_default(40 + (uint64_t)i); }

static void open_pool(fixture *f, const char *kv) {
    fixture_init(f, 2, 4, 2, 64, 32, kv);
    f->layer[1].window = 70;
    f->layer[1].keep = 3;
    f->options.max_seqs = 40;
    f->options.max_tokens = 1024;
    fixture_open(f);
}

/* What item i of a step of several gives is what it gives alone, bit for bit, for any order and
 * pace. */
static void together_as_alone(void **state) {
    (void)state;
    fixture f;
    open_pool(&f, "k8v4");
    quire_seq *alone[N], *members[2 * N];
    quire_list list = {members, 0, 2 * N};
    source s[N];
    for (int i = 0; i < N; i++) {
        s[i] = source_of(i);
        alone[i] = fed_seq(&f, &s[i], LENGTHS[i]);
    }
    assert_ok(quire_list_merge(&list, alone, N));
    float *out = malloc(answer_floats(&f, N) * sizeof *out),
          *one = malloc(answer_floats(&f, 1) * sizeof *one);
    const size_t row = 4 * 32;
    for (int step_no = 0; step_no < 140; step_no++) {
        step_item items[N];
        for (int i = 0; i < N; i++)
            items[i] = (step_item){list.seq[i], &s[i], 1};
        assert_ok(step(&f, items, N, &(step_options){.n_workers = 1 + step_no % 3}, out));
        for (int i = 0; i < N; i++) {
            const step_item item = {alone[i], &s[i], 1};
            assert_ok(step(&f, &item, 1, NULL, one));
            for (int l = 0; l < 2; l++)
                assert_memory_equal(one + (size_t)l * row, out + (size_t)(l * N + i) * row,
                                    row * sizeof *out);
        }
    }
    free(out), free(one);
    assert_ok(quire_list_clear(&list));
    for (int i = 0; i < N; i++)
        drop(alone[i]);
    assert_all_free(&f);
    fixture_close(&f);
}

/* Merge, extract, filter and extend move references alone: no page is added, and every sequence
 * answers as before. */
static void references_alone(void **state) {
    (void)state;
    fixture f;
    open_pool(&f, "k4v4");
    quire_seq *seqs[N], *a_members[20], *b_members[20], *one;
    float *wanted[N];
    const source probe_source = source_of(77);
    for (int i = 0; i < N; i++) {
        const source s = source_of(i);
        seqs[i] = fed_seq(&f, &s, LENGTHS[i]);
        wanted[i] = probe(&f, seqs[i], &probe_source, 3);
    }
    const quire_pool_stats before = balance(&f);
    quire_list a = {a_members, 0, 20}, b = {b_members, 0, 20};
    assert_ok(quire_list_merge(&a, seqs, N));
    assert_ok(quire_list_merge(&b, seqs + 1, 2));
    const quire_pool_stats merged = balance(&f);
    assert_int_equal(merged.free_bytes, before.free_bytes);
    assert_int_equal(merged.n_seqs, N + N + 2);
    const int32_t keep[4] = {5, 0, 3, 2};
    assert_ok(quire_list_filter(&a, keep, 4));
    assert_int_equal(a.n, 4);
    for (int i = 0; i < 4; i++)
        assert_answers(&f, a.seq[i], &probe_source, 3, wanted[keep[i]]);
    assert_ok(quire_list_extend(&a, &b));
    assert_true(a.n == 6 && b.n == 0);
    assert_answers(&f, a.seq[4], &probe_source, 3, wanted[1]);
    assert_ok(quire_list_extract(&a, 0, &one));
    const source s = source_of(5);
    feed(&f, a.seq[0], &s, 70, 7, 1, 0, NULL); /* the extracted one does not follow */
    assert_answers(&f, one, &probe_source, 3, wanted[5]);
    drop(one);
    for (int i = 0; i < N; i++)
        drop(seqs[i]);
    assert_answers(&f, a.seq[3], &probe_source, 3,
                   wanted[2]); /* the list lives on without the originals */
    assert_ok(quire_list_filter(&a, NULL, 0));
    assert_all_free(&f);
    for (int i = 0; i < N; i++)
        free(wanted[i]);
    fixture_close(&f);
}

static void bad_lists(void **state) {
    (void)state;
    fixture f, g;
    open_pool(&f, "none");
    open_pool(&g, "none");
    const source s = source_of(0);
    quire_seq *x = fed_seq(&f, &s, 70), *y = fed_seq(&g, &s, 70), *members[3], *others[3], *one;
    quire_list list = {members, 0, 3}, other = {others, 0, 3};
    quire_seq *four[4] = {x, x, x, x}, *mixed[2] = {x, NULL};
    assert_status(quire_list_merge(&list, four, 4), QUIRE_E_TOO_BIG);
    assert_status(quire_list_merge(&list, mixed, 2), QUIRE_E_INVALID);
    assert_int_equal(list.n, 0);
    assert_int_equal(balance(&f).n_seqs, 1); /* the fork that had succeeded is gone again */
    assert_ok(quire_list_merge(&list, four, 2));
    assert_ok(quire_list_merge(&other, &y, 1));
    assert_status(quire_list_merge(&list, &y, 1),
                  QUIRE_E_INVALID); /* of another pool: nobody could filter it out again */
    assert_status(quire_list_merge(&other, (quire_seq *[]){y, x}, 2), QUIRE_E_INVALID);
    assert_status(quire_list_extend(&list, &other), QUIRE_E_INVALID);
    assert_status(quire_list_extend(&list, &list), QUIRE_E_INVALID);
    assert_status(quire_list_extract(&list, 2, &one), QUIRE_E_INVALID);
    assert_status(quire_list_filter(&list, (int32_t[]){0, 0}, 2), QUIRE_E_INVALID);
    assert_status(quire_list_filter(&list, (int32_t[]){2}, 1), QUIRE_E_INVALID);
    assert_status(quire_list_filter(&list, (int32_t[]){-1}, 1), QUIRE_E_INVALID);
    assert_status(quire_list_filter(&list, NULL, 1), QUIRE_E_INVALID);
    assert_status(quire_list_merge(NULL, four, 1), QUIRE_E_INVALID);
    quire_batch *batch;
    assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){list.seq[1], 1}, 1, &batch));
    assert_status(quire_list_filter(&list, (int32_t[]){0}, 1), QUIRE_E_BUSY);
    assert_int_equal(list.n, 2);
    assert_ok(quire_list_filter(&list, (int32_t[]){1}, 1));
    quire_batch_abort(batch);
    assert_ok(quire_list_clear(&list));
    drop(x);
    assert_all_free(&f);
    fixture_close(&f);
    fixture_close(&g);
}

/* ------------------------------------------------------------------ padding */

/* Rows (items, length) with padding on the left against the same rows without: same bits out,
 * same cache. */
static void left_padding(void **state) {
    (void)state;
    enum { LENGTH = 90 };
    const int32_t n_tokens[4] = {90, 1, 0, 67};
    int32_t pad[4];
    fixture f;
    open_pool(&f, "k8v4");
    quire_seq *padded[4], *plain[4];
    source s[4];
    quire_batch_item items[4];
    int rows = 0;
    for (int i = 0; i < 4; i++) {
        s[i] = source_of(i);
        padded[i] = fed_seq(&f, &s[i], 10 * i);
        plain[i] = fed_seq(&f, &s[i], 10 * i);
        pad[i] = LENGTH - n_tokens[i];
        items[i] = (quire_batch_item){padded[i], n_tokens[i]};
        rows += n_tokens[i];
    }
    quire_batch *batch;
    assert_status(quire_batch_begin_padded(f.pool, items, 4, (int32_t[]){0, -1, 0, 0}, &batch),
                  QUIRE_E_INVALID);
    assert_status(
        quire_batch_begin_padded(f.pool, items, 4, (int32_t[]){0, INT32_MAX, INT32_MAX, 0}, &batch),
        QUIRE_E_TOO_BIG);
    float *wanted = malloc(answer_floats(&f, rows) * sizeof *wanted);
    step_item steps[4];
    for (int i = 0; i < 4; i++)
        steps[i] = (step_item){plain[i], &s[i], n_tokens[i]};
    assert_ok(step(&f, steps, 4, NULL, wanted));
    assert_ok(quire_batch_begin_padded(f.pool, items, 4, pad, &batch));
    assert_int_equal(quire_batch_rows(batch), 4 * LENGTH);
    const float *at = wanted;
    for (int layer = 0; layer < 2; layer++) {
        const quire_layer *l = &f.layer[layer];
        const size_t nk = 2 * 64, nv = 2 * 32, nq = 4 * 64, no = 4 * 32, n = 4 * LENGTH;
        float *k = malloc(n * nk * 4), *v = malloc(n * nv * 4), *q = malloc(n * nq * 4),
              *out = malloc(n * no * 4), *lse = malloc(n * 4 * 4);
        for (size_t i = 0; i < n * nk; i++)
            k[i] = NAN;
        for (size_t i = 0; i < n * nv; i++)
            v[i] = INFINITY;
        for (size_t i = 0; i < n * nq; i++)
            q[i] = NAN;
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < n_tokens[i]; t++) {
                const size_t row = (size_t)(i * LENGTH + pad[i] + t);
                source_k(&s[i], l, layer, 10 * i + t, k + row * nk);
                source_v(&s[i], l, layer, 10 * i + t, v + row * nv);
                source_q(&s[i], l, layer, 10 * i + t, q + row * nq);
            }
        assert_ok(quire_batch_append(batch, layer, (quire_rows){k, QUIRE_F32, 0},
                                     (quire_rows){v, QUIRE_F32, 0}, 0, 1));
        const quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out, .lse = lse};
        assert_ok(quire_batch_attend(batch, layer, &args, 0, 1));
        for (int i = 0; i < 4; i++)
            for (int t = -pad[i]; t < n_tokens[i]; t++) {
                const size_t row = (size_t)(i * LENGTH + pad[i] + t);
                if (t >= 0) {
                    assert_memory_equal(out + row * no, at, no * sizeof *at);
                    at += no;
                }
                for (size_t d = 0; t < 0 && d < no; d++)
                    assert_true(out[row * no + d] == 0);
                for (size_t h = 0; h < 4; h++)
                    assert_true(t < 0 ? isinf(lse[row * 4 + h]) && lse[row * 4 + h] < 0
                                      : isfinite(lse[row * 4 + h]));
            }
        free(k), free(v), free(q), free(out), free(lse);
    }
    assert_ok(quire_batch_commit(batch, NULL));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(quire_seq_length(padded[i]), 10 * i + n_tokens[i]);
        float *answers = probe(&f, plain[i], &s[i], 5);
        assert_answers(&f, padded[i], &s[i], 5, answers);
        free(answers);
    }
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f.pool, 0, &stats));
    /* All rows were attended twice, and five more of each of the eight sequences; the first
     * tokens were only stored. */
    assert_int_equal(stats.attended_rows, 2 * rows + 8 * 5);
    free(wanted);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ masks */

/* A mask for each KV head is the same as that mask given to each of its query heads. */
static void mask_of_kv_heads(void **state) {
    (void)state;
    enum { ROWS = 5, CONTEXT = 200, S = CONTEXT + ROWS };
    fixture f;
    fixture_init(&f, 1, 6, 2, 64, 64, "k8v4");
    fixture_open(&f);
    const source s = source_of(0);
    quire_seq *seq = fed_seq(&f, &s, CONTEXT);
    float *per_kv = malloc(ROWS * 2 * S * 4), *per_head = malloc(ROWS * 6 * S * 4);
    rng r = {9};
    for (int i = 0; i < ROWS * 2 * S; i++)
        per_kv[i] = rng_below(&r, 4) ? 0 : rng_below(&r, 2) ? -INFINITY : rng_normal(&r);
    for (int row = 0; row < ROWS; row++)
        for (int h = 0; h < 6; h++)
            memcpy(per_head + (row * 6 + h) * S, per_kv + (row * 2 + h / 3) * S,
                   S * sizeof *per_kv);
    float *wanted = malloc(ROWS * 6 * 64 * 4), *out = malloc(ROWS * 6 * 64 * 4);
    const step_item item = {seq, &s, ROWS};
    assert_ok(
        step(&f, &item, 1,
             &(step_options){
                 .abort = true, .mask = per_head, .mask_row_stride = 6 * S, .mask_head_stride = S},
             wanted));
    quire_batch *batch;
    assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){seq, ROWS}, 1, &batch));
    float k[ROWS * 2 * 64], v[ROWS * 2 * 64], q[ROWS * 6 * 64];
    for (int t = 0; t < ROWS; t++) {
        source_k(&s, &f.layer[0], 0, CONTEXT + t, k + t * 128);
        source_v(&s, &f.layer[0], 0, CONTEXT + t, v + t * 128);
        source_q(&s, &f.layer[0], 0, CONTEXT + t, q + t * 384);
    }
    assert_ok(quire_batch_append(batch, 0, (quire_rows){k, QUIRE_F32, 0},
                                 (quire_rows){v, QUIRE_F32, 0}, 0, 1));
    const quire_attend_args args = {.q = {q, QUIRE_F32, 0},
                                    .out = out,
                                    .mask = per_kv,
                                    .mask_row_stride = 2 * S,
                                    .mask_head_stride = S,
                                    .mask_per_kv_head = true};
    assert_ok(quire_batch_attend(batch, 0, &args, 0, 1));
    quire_batch_abort(batch);
    assert_memory_equal(out, wanted, ROWS * 6 * 64 * sizeof *out);
    free(per_kv), free(per_head), free(wanted), free(out);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ branches */

/* Five guesses of different lengths over one prefix, verified in one batch; a part of one wins,
 * then again. Each round must leave the cache that only ever saw the accepted tokens. */
static void branches(void **state) {
    (void)state;
    enum { BRANCHES = 5 };
    fixture f;
    open_pool(&f, "k8v4");
    const source truth = source_of(1);
    quire_seq *seq = fed_seq(&f, &truth, 50), *plain = fed_seq(&f, &truth, 50), *members[BRANCHES];
    rng r = {4};
    while (quire_seq_length(seq) < 500) {
        quire_list list = {members, 0, BRANCHES};
        quire_seq *prefix[BRANCHES] = {seq, seq, seq, seq, seq};
        const size_t before = balance(&f).sealed_bytes;
        assert_ok(quire_list_merge(&list, prefix, BRANCHES));
        assert_int_equal(balance(&f).sealed_bytes, before);
        source guess[BRANCHES];
        step_item items[BRANCHES];
        int32_t n_accept[BRANCHES] = {0};
        for (int i = 0; i < BRANCHES; i++) {
            guess[i] = i == 2 ? truth : source_of(60 + i);
            items[i] = (step_item){list.seq[i], &guess[i], 1 + rng_below(&r, 9)};
        }
        n_accept[2] = 1 + rng_below(&r, items[2].n_tokens);
        const step_options options = {.n_accept = n_accept};
        int rows = 0, row = 0;
        for (int i = 0; i < BRANCHES; i++) {
            row += i < 2 ? items[i].n_tokens : 0;
            rows += items[i].n_tokens;
        }
        float *out = malloc(answer_floats(&f, rows) * sizeof *out),
              *wanted = malloc(answer_floats(&f, n_accept[2]) * sizeof *wanted);
        assert_ok(step(&f, items, BRANCHES, &options, out));
        const step_item alone = {plain, &truth, n_accept[2]};
        assert_ok(step(&f, &alone, 1, NULL, wanted));
        const int no = 4 * 32;
        for (int l = 0; l < 2; l++)
            assert_memory_equal(out + (l * rows + row) * no, wanted + l * n_accept[2] * no,
                                (size_t)(n_accept[2] * no) * sizeof *out);
        free(out), free(wanted);
        drop(seq);
        assert_ok(quire_list_filter(&list, (int32_t[]){2}, 1));
        seq = list.seq[0];
        assert_int_equal(quire_seq_length(seq), quire_seq_length(plain));
    }
    float *answers = probe(&f, plain, &truth, 70);
    assert_answers(&f, seq, &truth, 70, answers);
    free(answers);
    drop(seq), drop(plain);
    assert_all_free(&f);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_as_alone), cmocka_unit_test(references_alone),
        cmocka_unit_test(bad_lists),         cmocka_unit_test(left_padding),
        cmocka_unit_test(mask_of_kv_heads),  cmocka_unit_test(branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
