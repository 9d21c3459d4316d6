/* Prefill attention on the GPU against fp64 attention over what the CPU library decodes from the
 * same records.
 *
 * Bounds. With h = FP16_ROUNDING (kit.h), what rounding a number to fp16 costs as a relative error
 * in the mean:
 *   - an element of packed K is rounded once when it is unpacked: a logit is off by
 *     h * scale * sqrt(sum of (q K)^2);
 *   - a weight is rounded once, and its product with V's scale, or a rotated element of raw V, once
 *     more: 2 h^2 as squares;
 *   - elements of K below fp16's normal range are off by 2^-25 / sqrt(3): 1.7e-8 max|q| sqrt(D)
 *     scale in a logit.
 * So over all rows of a case, as relative L2 error: sqrt(2 h^2 + mean of the squares of the logits'
 * errors), times 1 + 1/sqrt(rows), for few rows stray from the mean (test_attend.c); and 2e-5 for
 * fp32 sums and the hardware's 2^x.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda_world.h"

/* Everything on the device, and the plan. */
static void seal(world *w) {
    world_seal(w);
    world_plan_prefill(w);
}

static void run(const world *w, float *out, float *lse) {
    assert_cuda(cudaMemset(w->prefill_args.out, 0xff, w->n_out * 4));
    assert_gpu(quire_cuda_prefill(w->prefill, &w->prefill_args, NULL));
    gpu_read(out, w->prefill_args.out, w->n_out * sizeof *out);
    gpu_read(lse, w->prefill_args.lse, (size_t)(w->n_rows * w->s.n_heads) * sizeof *lse);
}

static double bound_of(const outcome *o) {
    const double h = FP16_ROUNDING;
    return sqrt(2 * h * h + o->noise) * (1 + 1 / sqrt(fmax(o->n_rows, 1))) + 2e-5;
}

static void check_world(world *w, const char *what) {
    const shape *s = &w->s;
    float *out = malloc(w->n_out * sizeof *out), *lse = malloc(w->n_out * sizeof *lse);
    run(w, out, lse);
    const outcome o = compare(w, out, lse);
    const double error = o.norm > 0 ? sqrt(o.error / o.norm) : 0, bound = bound_of(&o);
    if (!(error <= bound) || !(o.lse_error <= 4 * bound))
        fail_msg("%s: %s:%s %dx%dx%d, %d sequences, %d tokens and %d rows: relative error %.2e "
                 "(worst row %.2e), bound "
                 "%.2e; log-sum-exp off by %.2e",
                 what, quire_codec_name(s->pair.k), quire_codec_name(s->pair.v), s->n_heads,
                 s->n_kv, s->dim, s->n_seqs, s->before[0], s->rows[0], error, sqrt(o.worst), bound,
                 o.lse_error);
    free(out), free(lse);
}

static void check(const shape *s, const char *what) {
    world w;
    world_fill(&w, s, 1234);
    seal(&w);
    check_world(&w, what);
    world_free(&w);
}

/* ------------------------------------------------------------------ tests */

static void batch(shape *s, int n_seqs, const int (*cases)[2], int n_cases) {
    s->n_seqs = n_seqs;
    for (int i = 0; i < n_seqs; i++) {
        s->before[i] = cases[i % n_cases][0];
        s->rows[i] = cases[i % n_cases][1];
    }
}

static void every_start_and_length(void **state) {
    (void)state;
    static const int cases[][2] = {{0, 1},    {0, 3},    {0, 63},   {0, 64},   {0, 65},
                                   {0, 200},  {1, 63},   {1, 64},   {63, 1},   {63, 2},
                                   {64, 1},   {64, 64},  {65, 130}, {100, 29}, {127, 66},
                                   {320, 45}, {640, 88}, {1000, 9}, {77, 500}};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 19; i++)
            for (int hint = 0; hint <= 8; hint += 8) {
                shape s = shape_of(8, 2, hint ? 128 : DIMS[(i + p) % 5], PAIRS[p]);
                s.type = i % 3 ? QUIRE_F16 : QUIRE_BF16;
                s.rows_hint = hint;
                batch(&s, 1, cases + i, 1);
                check(&s, "one sequence");
            }
}

static void every_group(void **state) {
    (void)state;
    static const int cases[][2] = {{300, 40}, {0, 1}, {64, 64}, {65, 3}, {200, 0}, {700, 130}};
    for (int p = 0; p < 4; p++)
        for (int group = 1; group <= 16; group++) {
            shape s = shape_of(2 * group, 2, DIMS[(group + p) % 5], PAIRS[p]);
            s.rows_hint = group % 2;
            batch(&s, 6, cases, 6);
            check(&s, "groups");
        }
}

static void ragged_batches(void **state) {
    (void)state;
    static const int cases[][2] = {{0, 1},   {700, 4},  {64, 0},   {0, 300}, {63, 1},
                                   {128, 5}, {2000, 7}, {190, 66}, {17, 0}};
    static const int n_seqs[] = {2, 5, 31, 32, 33, 40}, n_kv[] = {1, 3, 4};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 6; i++) {
            shape s = shape_of(4 * n_kv[i % 3], n_kv[i % 3], DIMS[(i + p) % 5], PAIRS[p]);
            s.type = i % 2 ? QUIRE_BF16 : QUIRE_F16;
            s.rows_hint = i % 2 * 4;
            batch(&s, n_seqs[i], cases, 9);
            check(&s, "ragged batch");
        }
}

/* Tiles that several workers share, and workers that have several tiles. */
static void long_contexts(void **state) {
    (void)state;
    static const int cases[][2] = {{8192, 20}, {0, 3000}, {20000, 1}, {5000, 400}};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 4; i++) {
            shape s = shape_of(i % 2 ? 4 : 8, i % 2 ? 1 : 2,
                               p == 1   ? 64
                               : p == 2 ? 256
                                        : 128,
                               PAIRS[p]);
            s.rows_hint = i == 2 ? 1 : 0;
            batch(&s, 1, cases + i, 1);
            check(&s, "long");
        }
}

static void every_number_of_sinks(void **state) {
    (void)state;
    static const int sinks[] = {0, 1, 4, 16, 17, 63, 64},
                     cases[][2] = {{40, 70}, {0, 66}, {300, 3}};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 7; i++) {
            shape s = shape_of(4, 2, DIMS[i % 5], PAIRS[p]);
            s.sinks = sinks[i];
            batch(&s, 3, cases, 3);
            check(&s, "sinks");
        }
}

static void windows(void **state) {
    (void)state;
    static const struct {
        int window, keep, sinks;
    } sights[] = {{1, 0, 4},    {64, 0, 0},    {64, 4, 4},  {100, 10, 4},
                  {128, 70, 4}, {129, 200, 0}, {500, 3, 8}, {40, 64, 64}};
    static const int cases[][2] = {{0, 400}, {300, 130}, {640, 64}, {1000, 2}};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 8; i++) {
            shape s = shape_of(8, 2, DIMS[(i + p) % 5], PAIRS[p]);
            s.window = sights[i].window, s.keep = sights[i].keep, s.sinks = sights[i].sinks;
            s.rows_hint = i % 3;
            batch(&s, 4, cases, 4);
            check(&s, "window");
        }
}

static void other_logits(void **state) {
    (void)state;
    static const int cases[][2] = {{300, 130}, {0, 70}, {900, 3}};
    for (int p = 0; p < 4; p++)
        for (int i = 1; i < 8; i++) {
            shape s = shape_of(8, 2, DIMS[(i + p) % 5], PAIRS[p]);
            s.softcap = i & 1 ? 2.5f : 0;
            s.alibi = i & 2;
            s.sink_logits = i & 4;
            s.scale = i == 7 ? 0.3f : 0;
            batch(&s, 3, cases, 3);
            check(&s, "soft-cap, ALiBi, learned sinks");
        }
}

/* Equal inputs give equal bits, wherever pages lie and whatever is in the workspace. */
static void the_same_bits_again(void **state) {
    (void)state;
    shape s = shape_of(16, 4, 128, PAIRS[0]);
    batch(&s, 3, (const int[][2]){{3000, 70}, {0, 500}, {700, 1}}, 3);
    world w;
    world_fill(&w, &s, 5);
    seal(&w);
    float *first = malloc(w.n_out * sizeof *first), *again = malloc(w.n_out * sizeof *again),
          *lse = malloc(w.n_out * sizeof *lse);
    run(&w, first, lse);
    for (int i = 0; i < 10; i++) {
        run(&w, again, lse);
        assert_memory_equal(first, again, w.n_out * sizeof *first);
    }
    world_move_pages(&w);
    run(&w, again, lse);
    assert_memory_equal(first, again, w.n_out * sizeof *first);
    free(first), free(again), free(lse);
    world_free(&w);
}

/* A captured graph serves other rows and lengths: they are read on the device. */
static void in_a_graph(void **state) {
    (void)state;
    shape s = shape_of(8, 2, 128, PAIRS[0]);
    batch(&s, 2, (const int[][2]){{900, 60}, {640, 30}}, 2);
    world w;
    world_fill(&w, &s, 6);
    seal(&w);
    float *direct = malloc(w.n_out * sizeof *direct),
          *replayed = malloc(w.n_out * sizeof *replayed), *lse = malloc(w.n_out * sizeof *lse);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_gpu(quire_cuda_prefill(w.prefill, &w.prefill_args, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    /* the first queries stay in the same pages */
    const int32_t starts[] = {0, 12, 26}, lengths[] = {910, 660};
    assert_cuda(
        cudaMemcpy((void *)w.prefill_args.starts, starts, sizeof starts, cudaMemcpyHostToDevice));
    assert_cuda(cudaMemcpy((void *)w.prefill_args.lengths, lengths, sizeof lengths,
                           cudaMemcpyHostToDevice));
    run(&w, direct, lse);
    assert_cuda(cudaMemset(w.prefill_args.out, 0xff, w.n_out * 4));
    assert_cuda(cudaGraphLaunch(exec, stream));
    gpu_read(replayed, w.prefill_args.out, w.n_out * sizeof *replayed);
    assert_memory_equal(direct, replayed, w.n_out * sizeof *direct);
    for (int i = 0; i < 26 * s.n_heads * s.dim; i++)
        assert_true(isfinite(direct[i]));
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    free(direct), free(replayed), free(lse);
    world_free(&w);
}

/* One token's logit is far above all others: more than fp32's range of exponents, in a late page,
 * the sinks, or a raw page. */
static void one_token_takes_all(void **state) {
    (void)state;
    static const int where[] = {2, 70, 127, 500, 640, 1021, 1030};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 7; i++)
            for (int hint = 0; hint < 2; hint++) {
                shape s = shape_of(4, 1, 128, PAIRS[p]);
                s.bias = 0;
                s.rows_hint = hint;
                batch(&s, 1, (const int[][2]){{1020, 40}}, 1);
                world w;
                world_fill(&w, &s, 77);
                for (int d = 0; d < s.dim; d++) {
                    const float sign = d % 3 ? 1.0f : -1.0f;
                    w.k[row_of(&w, 0, 0, where[i]) + (size_t)d] = 400 * sign;
                    for (int row = 0; row < s.rows[0] * s.n_heads; row++)
                        w.q[row * s.dim + d] = 300 * sign;
                }
                seal(&w);
                float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse);
                run(&w, out, lse);
                const outcome o = compare(&w, out, lse);
                /* rows that see it: its own weight, rounded twice, and V; others have logits of
                 * size 3400 */
                if (where[i] <= s.before[0] ? !(sqrt(o.error / o.norm) < 3 * 0x1p-11)
                                            : !(o.error < INFINITY))
                    fail_msg("token %d: relative error %.2e", where[i], sqrt(o.error / o.norm));
                free(out), free(lse);
                world_free(&w);
            }
}

/* Sizes of K, V and q over the whole range of what can be stored, and queries of very different
 * size side by side. */
static void extreme_sizes(void **state) {
    (void)state;
    static const struct {
        float k, v, q;
        quire_type type;
    } sizes[] = {{1, 15000, 1, QUIRE_F16},     {1, 1e-4f, 1, QUIRE_F16},
                 {8000, 1, 1e-4f, QUIRE_F16},  {1e-3f, 1, 900, QUIRE_F16},
                 {1, 1, 0, QUIRE_F16},         {1e-3f, 1, 1e3f, QUIRE_BF16},
                 {1e-4f, 1, 1e-6f, QUIRE_BF16}};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 7; i++)
            for (int differ = 0; differ < 2; differ++) {
                shape s = shape_of(4, 2, DIMS[(i + p) % 5], PAIRS[p]);
                s.k_scale = sizes[i].k, s.v_scale = sizes[i].v, s.q_scale = sizes[i].q,
                s.type = sizes[i].type;
                s.bias = 0;
                batch(&s, 2, (const int[][2]){{380, 20}, {700, 77}}, 2);
                world w;
                world_fill(&w, &s, 4);
                if (differ) {
                    const size_t row = (size_t)s.dim;
                    for (size_t j = 0; j < w.n_out; j++)
                        w.q[j] *= j / row % 3 == 0   ? 1.0f / 1024
                                  : j / row % 3 == 1 ? 1.0f / 32
                                                     : 1.0f;
                    round_rows(s.type, w.q, w.n_out);
                }
                seal(&w);
                check_world(&w, "sizes");
                world_free(&w);
            }
}

/* V of one page is up to 2^20 times that of another, smaller ones first. */
static void sizes_of_v_differ(void **state) {
    (void)state;
    for (int p = 0; p < 4; p += 3) {
        shape s = shape_of(8, 2, 128, PAIRS[p]);
        batch(&s, 1, (const int[][2]){{3000, 100}}, 1);
        world w;
        world_fill(&w, &s, 3);
        for (size_t i = 0; i < w.n_kv_values; i++) {
            const size_t t = i / (size_t)s.dim % (size_t)w.longest;
            w.v[i] *= t / T % 3 == 2 ? 8192.0f : t / T % 3 ? 1.0f : 1.0f / 128;
        }
        round_rows(s.type, w.v, w.n_kv_values);
        seal(&w);
        check_world(&w, "V of different size");
        world_free(&w);
    }
}

static void queries_that_are_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    for (int i = 0; i < 4; i++) {
        shape s = shape_of(6, 2, DIMS[i], PAIRS[i]);
        s.type = QUIRE_BF16;
        batch(&s, 2, (const int[][2]){{300, 40}, {10, 60}}, 2);
        world w;
        world_fill(&w, &s, 8);
        float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse),
              *clean = malloc(w.n_out * sizeof *clean),
              *clean_lse = malloc(w.n_out * sizeof *clean_lse);
        seal(&w);
        run(&w, clean, clean_lse);
        const int row = 50 * s.n_heads + 4; /* sequence 1, its row 10, head 4 */
        w.q[row * s.dim + 11] = bad[i];
        uint16_t *q = narrowed(s.type, w.q, w.n_out);
        assert_cuda(cudaMemcpy((void *)w.prefill_args.q, q, w.n_out * 2, cudaMemcpyHostToDevice));
        run(&w, out, lse);
        for (size_t j = 0; j < w.n_out; j++)
            if (j / (size_t)s.dim == (size_t)row)
                assert_true(isnan(out[j]));
            else
                assert_memory_equal(&out[j], &clean[j], sizeof *out);
        assert_true(isnan(lse[row]));
        free(out), free(lse), free(clean), free(clean_lse), free(q);
        world_free(&w);
    }
}

static void every_output_type(void **state) {
    (void)state;
    shape s = shape_of(4, 2, 128, PAIRS[0]);
    batch(&s, 2, (const int[][2]){{500, 30}, {0, 90}}, 2);
    float *wanted = NULL;
    for (int type = QUIRE_F32; type <= QUIRE_BF16; type++) {
        s.out = (quire_type)type;
        world w;
        world_fill(&w, &s, 21);
        seal(&w);
        assert_gpu(quire_cuda_prefill(w.prefill, &w.prefill_args, NULL));
        if (type == QUIRE_F32) {
            wanted = malloc(w.n_out * sizeof *wanted);
            gpu_read(wanted, w.prefill_args.out, w.n_out * sizeof *wanted);
        } else {
            uint16_t *out = malloc(w.n_out * 2),
                     *rounded_out = narrowed((quire_type)type, wanted, w.n_out);
            gpu_read(out, w.prefill_args.out, w.n_out * 2);
            assert_memory_equal(out, rounded_out, w.n_out * 2);
            free(out), free(rounded_out);
        }
        world_free(&w);
    }
    free(wanted);
}

static void refusals(void **state) {
    (void)state;
    quire_cuda_prefill_options good, o;
    quire_cuda_prefill_plan *plan;
    quire_cuda_prefill_options_default(&good);
    good.n_heads = 8, good.n_kv_heads = 2, good.k_dim = good.v_dim = 128;
    assert_gpu(quire_cuda_prefill_create(&plan, &good));
    assert_true(quire_cuda_prefill_workspace(plan) > 0);
    assert_string_equal(quire_cuda_prefill_kernel(plan), "km4:vt4 d128, tiles of 176 queries");
    quire_cuda_prefill_args args = {.n_seqs = 1};
    assert_status(quire_cuda_prefill(plan, &args, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_prefill(NULL, &args, NULL), QUIRE_E_INVALID);
    quire_cuda_prefill_free(plan);
#define REFUSED(change, status)                                                                    \
    do {                                                                                           \
        o = good;                                                                                  \
        change;                                                                                    \
        assert_status(quire_cuda_prefill_create(&plan, &o), status);                               \
        assert_null(plan);                                                                         \
    } while (0)
    REFUSED(o.n_heads = 9, QUIRE_E_INVALID);
    REFUSED(o.n_heads = 34, QUIRE_E_UNSUPPORTED);
    REFUSED(o.k_dim = o.v_dim = 112, QUIRE_E_UNSUPPORTED);
    REFUSED(o.v_dim = 64, QUIRE_E_UNSUPPORTED);
    REFUSED(o.pair.k = QUIRE_CODEC_TQ4, QUIRE_E_UNSUPPORTED);
    REFUSED(o.raw = QUIRE_F32, QUIRE_E_UNSUPPORTED);
    REFUSED(o.sinks = 65, QUIRE_E_INVALID);
    REFUSED(o.window = -1, QUIRE_E_INVALID);
    REFUSED(o.rows_hint = -1, QUIRE_E_INVALID);
    REFUSED(o.softcap = -1, QUIRE_E_INVALID);
    REFUSED(o.scale = NAN, QUIRE_E_INVALID);
    REFUSED(o.struct_size = 1, QUIRE_E_INVALID);
    assert_status(quire_cuda_prefill_create(NULL, &good), QUIRE_E_INVALID);
}

int main(int argc, char **argv) {
    if (gpu_is_missing())
        return LEFT_OUT;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_start_and_length),
        cmocka_unit_test(every_group),
        cmocka_unit_test(ragged_batches),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(every_number_of_sinks),
        cmocka_unit_test(windows),
        cmocka_unit_test(other_logits),
        cmocka_unit_test(the_same_bits_again),
        cmocka_unit_test(in_a_graph),
        cmocka_unit_test(one_token_takes_all),
        cmocka_unit_test(extreme_sizes),
        cmocka_unit_test(sizes_of_v_differ),
        cmocka_unit_test(queries_that_are_not_finite),
        cmocka_unit_test(every_output_type),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
