/* Decode attention on the GPU against fp64 attention over what the CPU library decodes from the
 * same records.
 *
 * Bounds. With h = FP16_ROUNDING (kit.h), what rounding a number to fp16 costs as a relative error
 * in the mean:
 *   - a product of q and a channel's scale is rounded once (h): a logit is off by h times the part
 *     of its standard deviation that is left without what all tokens share;
 *   - a weight is rounded once, and its product with V's scale once more: 2 h^2 together, as
 *     squares;
 *   - where K is small and q large, these products are subnormal: their error is 2^-25 / sqrt(3)
 *     of q's largest element, times 16 or 32 for the upper fields of 4-bit codes, of which half of
 *     the channels are, times codes that are 3.5 or 1.5 from the middle: 6.2e-7 max|q| sqrt(D)
 *     scale in a logit. (8 bits: q is 32 times larger there, and less is lost.)
 * So over all rows of a case, as relative L2 error: sqrt(2 h^2 + (h sigma)^2 + (6.2e-7 max|q|)^2)
 * with the usual scale, sigma being the deviation of a row's logits; times 1 + 1/sqrt(rows), for
 * few rows stray from the mean (test_attend.c); and 2e-5 for fp32 sums and the hardware's 2^x.
 * A soft-cap makes errors of logits smaller, ALiBi and learned sinks leave them as they are.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda_world.h"

/* Relative error of the kernel for all pairs, which rounds nothing to fp16. */
#define FP32_BOUND 2e-5

/* Everything on the device, and the plan. */
static void seal(world *w) {
    world_seal(w);
    world_plan_decode(w);
}

static void run(const world *w, float *out, float *lse) {
    assert_gpu(quire_cuda_decode(w->decode, &w->decode_args, NULL));
    gpu_read(out, w->decode_args.out, w->n_out * sizeof *out);
    gpu_read(lse, w->decode_args.lse, (size_t)(w->s.n_seqs * w->s.n_heads) * sizeof *lse);
}

static double bound_of(const outcome *o) {
    const double h = FP16_ROUNDING, logit = hypot(h * o->sigma, 6.2e-7 * o->largest);
    return sqrt(2 * h * h + logit * logit) * (1 + 1 / sqrt(fmax(o->n_rows, 1))) + 2e-5;
}

static void check(const shape *s, const char *what) {
    world w;
    world_fill(&w, s, 1234);
    seal(&w);
    float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse);
    for (int round = 0; round < 2; round++) { /* the second finds the first one's workspace */
        run(&w, out, lse);
        const outcome o = compare(&w, out, lse);
        const double error = o.norm > 0 ? sqrt(o.error / o.norm) : 0, bound = bound_of(&o);
        if (!(error <= bound) || !(o.lse_error <= 4 * bound))
            fail_msg("%s: %s:%s %dx%dx%d: relative error %.2e, bound %.2e; log-sum-exp off by %.2e",
                     what, quire_codec_name(s->pair.k), quire_codec_name(s->pair.v), s->n_heads,
                     s->n_kv, s->dim, error, bound, o.lse_error);
    }
    free(out), free(lse);
    world_free(&w);
}

/* ------------------------------------------------------------------ tests */

static void ragged(shape *s, int n_seqs, const int *lengths, int n_lengths) {
    s->n_seqs = n_seqs;
    for (int i = 0; i < n_seqs; i++) {
        s->before[i] = lengths[i % n_lengths] - 1;
        s->rows[i] = 1;
    }
}

static void every_length(void **state) {
    (void)state;
    static const int lengths[] = {1,  2,  15, 16,  17,  31,  33,  48,  63,  64,
                                  65, 66, 80, 127, 128, 129, 130, 191, 193, 700};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 20; i++) {
            shape s = shape_of(8, 2, DIMS[i % 5], PAIRS[p]);
            s.type = i % 3 ? QUIRE_F16 : QUIRE_BF16;
            ragged(&s, 1, lengths + i, 1);
            check(&s, "one sequence");
        }
}

static void every_group(void **state) {
    (void)state;
    static const int lengths[] = {300, 1, 64, 0, 65, 1000, 129};
    for (int p = 0; p < 4; p++)
        for (int group = 1; group <= 16; group++) {
            shape s = shape_of(2 * group, 2, DIMS[group % 5], PAIRS[p]);
            ragged(&s, 7, lengths, 7);
            check(&s, "groups");
        }
}

static void ragged_batches(void **state) {
    (void)state;
    static const int lengths[] = {1, 700, 64, 65, 0, 128, 3, 2000, 191, 0, 17, 449};
    static const int n_seqs[] = {2, 5, 31, 32, 33, 48}, n_kv[] = {1, 3, 8};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 6; i++) {
            shape s = shape_of(4 * n_kv[i % 3], n_kv[i % 3], DIMS[(i + p) % 5], PAIRS[p]);
            s.type = i % 2 ? QUIRE_BF16 : QUIRE_F16;
            ragged(&s, n_seqs[i], lengths, 12);
            check(&s, "ragged batch");
        }
}

/* So much work that every warp has several pages of an item, and what it carries from page to page
 * matters. */
static shape many_pages(quire_pair pair) {
    shape s = shape_of(8, 8, 128, pair);
    ragged(&s, 1, (const int[]){20000}, 1);
    return s;
}

static void long_contexts(void **state) {
    (void)state;
    for (int p = 0; p < 4; p++) {
        shape s = shape_of(8, 2, 128, PAIRS[p]);
        ragged(&s, 1, (const int[]){8192}, 1);
        check(&s, "8K");
        s = shape_of(4, 1, 64, PAIRS[p]);
        ragged(&s, 2, (const int[]){20001, 9000}, 2);
        check(&s, "20K");
        s = many_pages(PAIRS[p]);
        check(&s, "several pages for each warp");
    }
}

static void every_number_of_sinks(void **state) {
    (void)state;
    static const int sinks[] = {0, 1, 4, 16, 17, 63, 64}, lengths[] = {40, 65, 300};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 7; i++) {
            shape s = shape_of(4, 2, DIMS[i % 5], PAIRS[p]);
            s.sinks = sinks[i];
            ragged(&s, 3, lengths, 3);
            check(&s, "sinks");
        }
}

/* Windows that end within pages, at their edges, in the raw page, and before the sinks. */
static void windows(void **state) {
    (void)state;
    static const struct {
        int window, keep, sinks;
    } sights[] = {{1, 0, 4},   {30, 4, 4},     {64, 0, 0},  {65, 70, 4},
                  {100, 1, 0}, {128, 130, 64}, {500, 4, 4}, {5000, 0, 4}};
    static const int lengths[] = {1, 64, 65, 129, 200, 700, 1500, 0};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 8; i++) {
            shape s = shape_of(8, 2, DIMS[(i + p) % 5], PAIRS[p]);
            s.window = sights[i].window, s.keep = sights[i].keep, s.sinks = sights[i].sinks;
            ragged(&s, 8, lengths, 8);
            check(&s, "window");
        }
}

static void other_logits(void **state) {
    (void)state;
    static const int lengths[] = {1, 64, 65, 300, 900, 0};
    for (int p = 0; p < 4; p++)
        for (int i = 1; i < 16; i++) {
            shape s = shape_of(i % 3 ? 8 : 32, 2, DIMS[(i + p) % 5], PAIRS[p]);
            s.softcap = i & 1 ? 2.5f : 0;
            s.alibi = i & 2;
            s.sink_logits = i & 4;
            s.window = i & 8 ? 200 : 0;
            ragged(&s, 6, lengths, 6);
            check(&s, "soft-cap, ALiBi, learned sinks");
        }
}

/* Equal inputs give equal bits, wherever pages lie and whatever ran before. */
static void the_same_bits_again(void **state) {
    (void)state;
    shape s = shape_of(16, 4, 128, PAIRS[0]);
    ragged(&s, 5, (const int[]){3000, 70, 1, 1111, 640}, 5);
    world w;
    world_fill(&w, &s, 5);
    seal(&w);
    const size_t n_lse = (size_t)(s.n_seqs * s.n_heads);
    float *first = malloc(w.n_out * sizeof *first), *lse = malloc(n_lse * sizeof *lse),
          *again = malloc(w.n_out * sizeof *again), *lse_again = malloc(n_lse * sizeof *lse_again);
    run(&w, first, lse);
    for (int i = 0; i < 20; i++) {
        run(&w, again, lse_again);
        assert_memory_equal(first, again, w.n_out * sizeof *first);
        assert_memory_equal(lse, lse_again, n_lse * sizeof *lse);
    }
    world_move_pages(&w);
    run(&w, again, lse_again);
    assert_memory_equal(first, again, w.n_out * sizeof *first);
    free(first), free(lse), free(again), free(lse_again);
    world_free(&w);
}

/* The sequences `which` of a world as a batch of their own, in this order. */
static void run_some(const world *w, const int *which, int n, float *out, float *lse) {
    const shape *s = &w->s;
    const int stride = w->longest / T;
    const size_t row = (size_t)(s->n_heads * s->dim);
    int32_t lengths[MOST_SEQS], slots[MOST_SEQS], *pages = malloc((size_t)(n * stride) * 4);
    float *q = malloc((size_t)n * row * sizeof *q);
    for (int i = 0; i < n; i++) {
        lengths[i] = length_of(s, which[i]);
        slots[i] = s->n_seqs - 1 - which[i];
        memcpy(pages + i * stride, w->pages + which[i] * stride, (size_t)stride * 4);
        memcpy(q + (size_t)i * row, w->q + (size_t)which[i] * row, row * sizeof *q);
    }
    uint16_t *narrow = narrowed(s->type, q, (size_t)n * row);
    void *device[] = {gpu_copy(lengths, (size_t)n * 4), gpu_copy(slots, (size_t)n * 4),
                      gpu_copy(pages, (size_t)(n * stride) * 4),
                      gpu_copy(narrow, (size_t)n * row * 2)};
    quire_cuda_decode_args a = w->decode_args;
    a.n_seqs = n, a.lengths = device[0], a.slots = device[1], a.pages = device[2], a.q = device[3];
    assert_gpu(quire_cuda_decode(w->decode, &a, NULL));
    gpu_read(out, a.out, (size_t)n * row * sizeof *out);
    gpu_read(lse, a.lse, (size_t)(n * s->n_heads) * sizeof *lse);
    for (int i = 0; i < 4; i++)
        cudaFree(device[i]);
    free(pages), free(q), free(narrow);
}

/* Exact mode: a sequence's bits are the same alone, and in any batch, wherever its pages lie. */
static void exact_in_any_batch(const shape *s) {
    world w;
    world_fill(&w, s, 99);
    seal(&w);
    const size_t row = (size_t)(s->n_heads * s->dim);
    float *all = malloc(w.n_out * sizeof *all), *lse = malloc(w.n_out * sizeof *lse),
          *some = malloc(w.n_out * sizeof *some), *some_lse = malloc(w.n_out * sizeof *some_lse);
    run(&w, all, lse);
    const outcome o = compare(&w, all, lse);
    assert_true(sqrt(o.error / o.norm) <= bound_of(&o));
    world_move_pages(&w);
    rng r = {7};
    for (int round = 0; round < s->n_seqs + 6; round++) {
        int which[MOST_SEQS], n = round < s->n_seqs ? 1 : 2 + rng_below(&r, s->n_seqs - 1);
        for (int i = 0; i < n; i++) /* each alone, then batches in which some occur twice */
            which[i] = round < s->n_seqs ? round : rng_below(&r, s->n_seqs);
        run_some(&w, which, n, some, some_lse);
        for (int i = 0; i < n; i++)
            if (memcmp(some + (size_t)i * row, all + (size_t)which[i] * row, row * sizeof *some) ||
                memcmp(some_lse + i * s->n_heads, lse + which[i] * s->n_heads,
                       (size_t)s->n_heads * sizeof *lse))
                fail_msg(
                    "%s:%s %dx%dx%d, at most %d parts: sequence %d of %d tokens has other bits "
                    "in a batch of %d",
                    quire_codec_name(s->pair.k), quire_codec_name(s->pair.v), s->n_heads, s->n_kv,
                    s->dim, s->exact, which[i], length_of(s, which[i]), n);
    }
    free(all), free(lse), free(some), free(some_lse);
    world_free(&w);
}

static void exact_mode(void **state) {
    (void)state;
    static const int lengths[] = {3000, 70, 1, 1111, 0, 640, 8192, 65, 5001};
    static const int parts[] = {1, 4, 16, 128};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 4; i++) {
            shape s = shape_of(i % 2 ? 8 : 4, i % 2 ? 8 : 1, DIMS[(i + p) % 5], PAIRS[p]);
            s.exact = parts[i];
            s.window = i == p ? 2500 : 0;
            ragged(&s, 9, lengths, 9);
            exact_in_any_batch(&s);
        }
    shape s = shape_of(8, 8, 128, PAIRS[0]);
    s.exact = 16;
    ragged(&s, 9, lengths, 9);
    exact_in_any_batch(&s);
    s = shape_of(4, 2, 96, (quire_pair){QUIRE_CODEC_TQ4, QUIRE_CODEC_VT3});
    ragged(&s, 9, lengths, 9); /* the kernel for all pairs is always exact */
    exact_in_any_batch(&s);
}

/* Every codec of K with every codec of V. Pairs without a kernel of their own are computed in fp32.
 */
static void every_pair(void **state) {
    (void)state;
    int n = 0;
    double worst = 0;
    for (size_t i = 0; i < quire_codec_count(); i++)
        for (size_t j = 0; j < quire_codec_count(); j++)
            for (int dim = 0; dim < 5; dim++) {
                quire_codec_info k, v;
                assert_ok(quire_codec_at(i, &k));
                assert_ok(quire_codec_at(j, &v));
                shape s = shape_of(6, 2, DIMS[dim], (quire_pair){k.codec, v.codec});
                s.type = n % 3 ? QUIRE_F16 : QUIRE_BF16;
                s.window = n % 7 == 1 ? 100 : 0;
                s.softcap = n % 7 == 2 ? 2.5f : 0;
                s.alibi = n % 7 == 3;
                s.sink_logits = n % 7 == 4;
                ragged(&s, 2, (const int[]){200, 66}, 2);
                const quire_page_shape page = {s.pair, s.dim, s.dim, s.type};
                size_t bytes;
                if (quire_page_bytes(&page, &bytes) != QUIRE_OK) {
                    quire_cuda_decode_options o;
                    quire_cuda_decode_plan *plan;
                    quire_cuda_decode_options_default(&o);
                    o.n_heads = 6, o.n_kv_heads = 2, o.k_dim = o.v_dim = s.dim, o.pair = s.pair;
                    assert_status(quire_cuda_decode_create(&plan, &o), QUIRE_E_UNSUPPORTED);
                    continue;
                }
                world w;
                world_fill(&w, &s, 1000 + (uint64_t)n);
                seal(&w);
                float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse);
                run(&w, out, lse);
                const outcome o = compare(&w, out, lse);
                const bool own = strstr(quire_cuda_decode_kernel(w.decode), "all pairs") == NULL;
                const double error = sqrt(o.error / o.norm),
                             bound = own ? bound_of(&o) : FP32_BOUND;
                if (!own)
                    worst = fmax(worst, error);
                if (!(error <= bound) || !(o.lse_error <= 4 * bound))
                    fail_msg("%s:%s d%d: relative error %.2e, bound %.2e; log-sum-exp off by %.2e",
                             k.name, v.name, s.dim, error, bound, o.lse_error);
                free(out), free(lse);
                world_free(&w);
                n++;
            }
    printf("%d pairs and head sizes; largest error in fp32 %.2e\n", n, worst);
    assert_true(n > 2000);
}

/* Head sizes of K and V that differ: one KV head, two sealed pages and three own rows. */
static void head_sizes_differ(void **state) {
    (void)state;
    enum { LENGTH = 2 * T + 3, H = 4 };
    static const int dims[][2] = {{128, 64}, {96, 256}, {48, 112}, {256, 32}};
    static const quire_pair pairs[] = {{QUIRE_CODEC_TQ4, QUIRE_CODEC_VT3},
                                       {QUIRE_CODEC_KC4, QUIRE_CODEC_VT4},
                                       {QUIRE_CODEC_TQP3, QUIRE_CODEC_TQ2}};
    for (int i = 0; i < 12; i++) {
        const int dk = dims[i % 4][0], dv = dims[i % 4][1];
        const quire_page_shape page = {pairs[i / 4], dk, dv, QUIRE_F16};
        const size_t nk = (size_t)(LENGTH * dk), nv = (size_t)(LENGTH * dv);
        size_t bytes;
        assert_ok(quire_page_bytes(&page, &bytes));
        float *k = malloc(nk * sizeof *k), *v = malloc(nv * sizeof *v), q[H * 256], out[H * 256];
        uint8_t *records = malloc(2 * bytes);
        rng r = {(uint64_t)i};
        rng_fill(&r, k, nk, 1), rng_fill(&r, v, nv, 1), rng_fill(&r, q, (size_t)(H * dk), 1);
        round_rows(QUIRE_F16, k, nk), round_rows(QUIRE_F16, v, nv);
        round_rows(QUIRE_F16, q, (size_t)(H * dk));
        uint16_t *own_k = narrowed(QUIRE_F16, k + 2 * T * dk, (size_t)(3 * dk)),
                 *own_v = narrowed(QUIRE_F16, v + 2 * T * dv, (size_t)(3 * dv)),
                 *narrow_q = narrowed(QUIRE_F16, q, (size_t)(H * dk));
        for (int n = 0; n < 2; n++) { /* from here on k and v are what the query sees */
            uint8_t *record = records + (size_t)n * bytes;
            assert_ok(quire_page_encode(&page, k + n * T * dk, v + n * T * dv, 0, record));
            assert_ok(quire_page_decode(&page, record, k + n * T * dk, v + n * T * dv));
        }
        quire_cuda_decode_options o;
        quire_cuda_decode_plan *plan;
        quire_cuda_decode_options_default(&o);
        o.n_heads = H, o.n_kv_heads = 1, o.k_dim = dk, o.v_dim = dv, o.pair = pairs[i / 4],
        o.sinks = 0, o.max_seqs = 1;
        assert_gpu(quire_cuda_decode_create(&plan, &o));
        const int32_t length = LENGTH, ids[] = {0, 1};
        void *device[] = {gpu_copy(narrow_q, (size_t)(H * dk) * 2),
                          gpu_new(sizeof out, 0xff),
                          gpu_copy(&length, sizeof length),
                          gpu_copy(ids, sizeof ids),
                          gpu_copy(records, 2 * bytes),
                          gpu_copy(own_k, (size_t)(3 * dk) * 2),
                          gpu_copy(own_v, (size_t)(3 * dv) * 2),
                          gpu_new(quire_cuda_decode_workspace(plan), 0)};
        const quire_cuda_decode_args a = {
            .n_seqs = 1,
            .q = device[0],
            .out = device[1],
            .lengths = device[2],
            .pages = device[3],
            .pages_stride = 2,
            .records = {device[4], bytes, bytes},
            .own = {device[5], device[6], 3 * dk, 3 * dk, dk, 3 * dv, 3 * dv, dv},
            .workspace = device[7]};
        assert_gpu(quire_cuda_decode(plan, &a, NULL));
        gpu_read(out, a.out, (size_t)(H * dv) * sizeof *out);
        double error = 0, norm = 0;
        for (int h = 0; h < H; h++) {
            double sum = 0, wanted[256] = {0};
            for (int t = 0; t < LENGTH; t++) {
                double x = 0;
                for (int d = 0; d < dk; d++)
                    x += (double)q[h * dk + d] * (double)k[t * dk + d];
                x = exp(x / sqrt(dk));
                sum += x;
                for (int d = 0; d < dv; d++)
                    wanted[d] += x * (double)v[t * dv + d];
            }
            for (int d = 0; d < dv; d++) {
                const double x = wanted[d] / sum;
                norm += x * x;
                error += (x - (double)out[h * dv + d]) * (x - (double)out[h * dv + d]);
            }
        }
        if (!(sqrt(error / norm) <= FP32_BOUND))
            fail_msg("%s, head sizes %d and %d: relative error %.2e",
                     quire_cuda_decode_kernel(plan), dk, dv, sqrt(error / norm));
        for (int n = 0; n < 8; n++)
            cudaFree(device[n]);
        quire_cuda_decode_free(plan);
        free(k), free(v), free(records), free(own_k), free(own_v), free(narrow_q);
    }
}

/* A captured graph serves other lengths: they are read on the device. */
static void in_a_graph(void **state) {
    (void)state;
    shape s = shape_of(8, 2, 128, PAIRS[0]);
    ragged(&s, 3, (const int[]){900, 65, 260}, 3);
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
    assert_gpu(quire_cuda_decode(w.decode, &w.decode_args, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    const int32_t shorter[] = {130, 64, 1};
    assert_cuda(
        cudaMemcpy((void *)w.decode_args.lengths, shorter, sizeof shorter, cudaMemcpyHostToDevice));
    run(&w, direct, lse);
    assert_cuda(cudaMemset(w.decode_args.out, 0xff, w.n_out * 4));
    assert_cuda(cudaGraphLaunch(exec, stream));
    gpu_read(replayed, w.decode_args.out, w.n_out * sizeof *replayed);
    assert_memory_equal(direct, replayed, w.n_out * sizeof *direct);
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    free(direct), free(replayed), free(lse);
    world_free(&w);
}

/* One token's logit is far above all others, in a sealed page, in the sinks, or in the raw page: it
 * alone counts. */
static void takes_all(world *w, const int *where /* (n_kv) */) {
    const shape *s = &w->s;
    for (int d = 0; d < s->dim; d++) {
        const float sign = d % 3 ? 1.0f : -1.0f;
        for (int head = 0; head < s->n_kv; head++)
            w->k[row_of(w, 0, head, where[head]) + (size_t)d] = 400 * sign;
        for (int h = 0; h < s->n_heads; h++)
            w->q[h * s->dim + d] = 300 * sign;
    }
    seal(w);
    float *out = malloc(w->n_out * sizeof *out), *lse = malloc(w->n_out * sizeof *lse);
    run(w, out, lse);
    const outcome o = compare(w, out, lse);
    if (!(sqrt(o.error / o.norm) < 2 * 0x1p-11)) /* its own weight, rounded twice */
        fail_msg("token %d: relative error %.2e", where[0], sqrt(o.error / o.norm));
    free(out), free(lse);
}

static void one_token_takes_all(void **state) {
    (void)state;
    static const int where[] = {2, 70, 127, 128, 150, 255, 270};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 7; i++) {
            shape s = shape_of(4, 1, 128, PAIRS[p]);
            s.bias = 0;
            ragged(&s, 1, (const int[]){280}, 1);
            world w;
            world_fill(&w, &s, 77);
            takes_all(&w, &where[i]);
            world_free(&w);
        }
}

/* The maximum moves at a warp's second and third page: units go to warps in turn. */
static void the_maximum_moves_late(void **state) {
    (void)state;
    for (int p = 0; p < 4; p += 3) {
        shape s = many_pages(PAIRS[p]);
        s.bias = 0;
        world w;
        world_fill(&w, &s, 78);
        takes_all(&w, (const int[]){645, 710, 771, 840, 905, 963, 1030, 1101}); /* pages 10 to 17 */
        world_free(&w);
    }
}

/* Sizes of K, V and q over the whole range of what can be stored: the row's own bound holds. */
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
        for (int i = 0; i < 7; i++) {
            shape s = shape_of(4, 2, DIMS[(i + p) % 5], PAIRS[p]);
            s.k_scale = sizes[i].k, s.v_scale = sizes[i].v, s.q_scale = sizes[i].q,
            s.type = sizes[i].type;
            s.bias = 0;
            ragged(&s, 2, (const int[]){400, 777}, 2);
            check(&s, "sizes");
        }
}

/* V of one page is up to 2^20 times that of another, smaller ones first. */
static void sizes_of_v_differ(void **state) {
    (void)state;
    for (int p = 0; p < 4; p += 3) {
        const shape s = many_pages(PAIRS[p]);
        world w;
        world_fill(&w, &s, 3);
        for (int head = 0; head < s.n_kv; head++)
            for (int t = 0; t < length_of(&s, 0); t++)
                for (int d = 0; d < s.dim; d++)
                    w.v[row_of(&w, 0, head, t) + (size_t)d] *= t / T % 3 == 2 ? 8192.0f
                                                               : t / T % 3    ? 1.0f
                                                                              : 1.0f / 128;
        round_rows(s.type, w.v, (size_t)(s.n_kv * w.longest * s.dim));
        seal(&w);
        float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse);
        run(&w, out, lse);
        const outcome o = compare(&w, out, lse);
        if (!(sqrt(o.error / o.norm) <= bound_of(&o)))
            fail_msg("relative error %.2e, bound %.2e", sqrt(o.error / o.norm), bound_of(&o));
        free(out), free(lse);
        world_free(&w);
    }
}

static void queries_that_are_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    for (int i = 0; i < 4; i++) {
        shape s = shape_of(6, 2, DIMS[i], PAIRS[i]);
        s.type = QUIRE_BF16;
        ragged(&s, 2, (const int[]){300, 40}, 2);
        world w;
        world_fill(&w, &s, 8);
        float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse),
              *clean = malloc(w.n_out * sizeof *clean),
              *clean_lse = malloc(w.n_out * sizeof *clean_lse);
        seal(&w);
        run(&w, clean, clean_lse);
        const int row = s.n_heads + 4; /* sequence 1, head 4 */
        w.q[row * s.dim + 11] = bad[i];
        uint16_t *q = narrowed(s.type, w.q, w.n_out);
        assert_cuda(cudaMemcpy((void *)w.decode_args.q, q, w.n_out * 2, cudaMemcpyHostToDevice));
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
    ragged(&s, 2, (const int[]){500, 90}, 2);
    float *wanted = NULL;
    for (int type = QUIRE_F32; type <= QUIRE_BF16; type++) {
        world w;
        s.out = (quire_type)type;
        s.scale = 0.3f;
        world_fill(&w, &s, 21);
        seal(&w);
        assert_gpu(quire_cuda_decode(w.decode, &w.decode_args, NULL));
        if (type == QUIRE_F32) {
            wanted = malloc(w.n_out * sizeof *wanted);
            gpu_read(wanted, w.decode_args.out, w.n_out * sizeof *wanted);
            float *lse = malloc(w.n_out * sizeof *lse);
            gpu_read(lse, w.decode_args.lse, (size_t)(s.n_seqs * s.n_heads) * sizeof *lse);
            const outcome o = compare(&w, wanted, lse);
            assert_true(sqrt(o.error / o.norm) <= bound_of(&o));
            free(lse);
        } else {
            uint16_t *out = malloc(w.n_out * 2),
                     *rounded_out = narrowed((quire_type)type, wanted, w.n_out);
            gpu_read(out, w.decode_args.out, w.n_out * 2);
            assert_memory_equal(out, rounded_out, w.n_out * 2);
            free(out), free(rounded_out);
        }
        world_free(&w);
    }
    free(wanted);
}

/* A pool of the CPU library and the GPU: the same pages, results within both bounds. */
static void beside_a_pool(void **state) {
    (void)state;
    enum { LENGTH = 333, H = 8, G = 2 };
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 5; i++) {
            const int dim = DIMS[i];
            char kv[32];
            snprintf(kv, sizeof kv, "%s:%s", quire_codec_name(PAIRS[p].k),
                     quire_codec_name(PAIRS[p].v));
            fixture f;
            quire_seq *seq;
            const source rows = source_default(31);
            fixture_init(&f, 1, H, G, dim, dim, kv);
            fixture_open(&f);
            assert_ok(quire_seq_create(f.pool, &seq));
            feed(&f, seq, &rows, LENGTH - 1, 100, 1, 0, NULL);
            float *cpu = malloc((size_t)(H * dim) * sizeof *cpu), cpu_lse[H];
            assert_ok(step(&f, &(step_item){seq, &rows, 1}, 1,
                           &(step_options){.type = QUIRE_F16, .lse = cpu_lse}, cpu));

            shape s = shape_of(H, G, dim, PAIRS[p]);
            ragged(&s, 1, (const int[]){LENGTH}, 1);
            world w;
            world_fill(&w, &s, 1);
            float *k = malloc((size_t)(G * dim) * sizeof *k),
                  *v = malloc((size_t)(G * dim) * sizeof *v);
            for (int t = 0; t < LENGTH; t++) {
                source_k(&rows, &f.layer[0], 0, t, k);
                source_v(&rows, &f.layer[0], 0, t, v);
                for (int head = 0; head < G; head++) {
                    memcpy(w.k + row_of(&w, 0, head, t), k + head * dim, (size_t)dim * sizeof *k);
                    memcpy(w.v + row_of(&w, 0, head, t), v + head * dim, (size_t)dim * sizeof *v);
                }
            }
            source_q(&rows, &f.layer[0], 0, LENGTH - 1, w.q);
            round_rows(s.type, w.k, (size_t)(G * w.longest * dim));
            round_rows(s.type, w.v, (size_t)(G * w.longest * dim));
            round_rows(s.type, w.q, w.n_out);
            seal(&w);
            for (int page = 0; page < sealed(LENGTH); page++) {
                const size_t n = quire_seq_page_bytes(f.pool, page),
                             n_packed = (size_t)G * w.record_bytes;
                uint8_t *bytes = malloc(n);
                assert_ok(quire_seq_page_save(seq, page, bytes, n));
                assert_memory_equal(bytes, w.records + (size_t)w.pages[page] * n_packed, n_packed);
                free(bytes);
            }
            float *out = malloc(w.n_out * sizeof *out), *lse = malloc(w.n_out * sizeof *lse);
            double *wanted = malloc(w.n_out * sizeof *wanted);
            run(&w, out, lse);
            const outcome o = compare(&w, out, lse);
            const double cpu_bound =
                attend_bound(PAIRS[p], dim, fmax(o.sigma, 1), false, false) * (1 + 1 / sqrt(H));
            for (size_t j = 0; j < w.n_out; j++)
                wanted[j] = (double)cpu[j];
            const double error = relative_error(out, wanted, w.n_out);
            if (!(error < cpu_bound + bound_of(&o)))
                fail_msg("%s d%d: %.2e from the CPU library's result, bound %.2e", kv, dim, error,
                         cpu_bound + bound_of(&o));
            for (int h = 0; h < H; h++)
                assert_true(fabs((double)lse[h] - (double)cpu_lse[h]) <
                            4 * (cpu_bound + bound_of(&o)));
            free(cpu), free(k), free(v), free(out), free(lse), free(wanted);
            world_free(&w);
            fixture_close(&f);
        }
}

static void refusals(void **state) {
    (void)state;
    quire_cuda_decode_options good, o;
    quire_cuda_decode_plan *plan;
    quire_cuda_decode_options_default(&good);
    good.n_heads = 8, good.n_kv_heads = 2, good.k_dim = good.v_dim = 128;
    assert_gpu(quire_cuda_decode_create(&plan, &good));
    assert_true(quire_cuda_decode_workspace(plan) > 0);
    assert_string_equal(quire_cuda_decode_kernel(plan), "km4:vt4 d128, 8 warps x 2 pages");
    quire_cuda_decode_args args = {.n_seqs = 1};
    assert_status(quire_cuda_decode(plan, &args, NULL), QUIRE_E_INVALID);
    args.n_seqs = 65;
    assert_status(quire_cuda_decode(plan, &args, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_decode(NULL, &args, NULL), QUIRE_E_INVALID);
    quire_cuda_decode_free(plan);
#define REFUSED(change, status)                                                                    \
    do {                                                                                           \
        o = good;                                                                                  \
        change;                                                                                    \
        assert_status(quire_cuda_decode_create(&plan, &o), status);                                \
        assert_null(plan);                                                                         \
    } while (0)
    REFUSED(o.n_heads = 9, QUIRE_E_INVALID);
    REFUSED(o.n_heads = 34, QUIRE_E_UNSUPPORTED);
    REFUSED(o.k_dim = o.v_dim = 120, QUIRE_E_UNSUPPORTED);
    REFUSED(o.v_dim = 272, QUIRE_E_UNSUPPORTED);
    REFUSED(o.pair.k = QUIRE_CODEC_VT4, QUIRE_E_UNSUPPORTED);
    REFUSED(o.pair.v = (quire_codec)7, QUIRE_E_UNSUPPORTED);
    REFUSED(o.exact = -1, QUIRE_E_INVALID);
    REFUSED(o.exact = 129, QUIRE_E_INVALID);
    REFUSED(o.raw = QUIRE_F32, QUIRE_E_UNSUPPORTED);
    REFUSED(o.sinks = 65, QUIRE_E_INVALID);
    REFUSED(o.max_seqs = 0, QUIRE_E_INVALID);
    REFUSED(o.scale = NAN, QUIRE_E_INVALID);
    REFUSED(o.window = -1, QUIRE_E_INVALID);
    REFUSED(o.softcap = -1, QUIRE_E_INVALID);
    REFUSED(o.struct_size = 1, QUIRE_E_INVALID);
    assert_status(quire_cuda_decode_create(NULL, &good), QUIRE_E_INVALID);
}

int main(int argc, char **argv) {
    if (gpu_is_missing())
        return LEFT_OUT;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length),
        cmocka_unit_test(every_group),
        cmocka_unit_test(ragged_batches),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(every_number_of_sinks),
        cmocka_unit_test(windows),
        cmocka_unit_test(other_logits),
        cmocka_unit_test(the_same_bits_again),
        cmocka_unit_test(exact_mode),
        cmocka_unit_test(every_pair),
        cmocka_unit_test(head_sizes_differ),
        cmocka_unit_test(in_a_graph),
        cmocka_unit_test(one_token_takes_all),
        cmocka_unit_test(the_maximum_moves_late),
        cmocka_unit_test(sizes_of_v_differ),
        cmocka_unit_test(extreme_sizes),
        cmocka_unit_test(queries_that_are_not_finite),
        cmocka_unit_test(every_output_type),
        cmocka_unit_test(beside_a_pool),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
