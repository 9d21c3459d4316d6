/* A pool on the GPU beside a pool of the CPU library: the same steps give the same page bytes, and
 * results within both bounds.
 *
 * Bounds: test_cuda_decode.c and test_cuda_prefill.c derive them. Here a logit's products have mean
 * square (1 + bias^2) of source_default's K, and rounding q or K to fp16 costs at most h times its
 * root: both kernels stay within sqrt(2 h^2 + h^2 (1 + bias^2)). With what the CPU's kernels may be
 * off (attend_bound) that is a bound for many rows. The root of the mean square of n rows and heads
 * strays by 1 / (2 sqrt n) (test_attend.c). All steps of a case together are granted two of these.
 * Each single step is granted five, because a case has hundreds, and twice the bound at most. */
#include <math.h>
#include <string.h>

#include "cuda_kit.h"

enum { T = QUIRE_PAGE_TOKENS, MOST = 8 };

typedef struct twins { /* two pools */
    fixture f;
    quire_cuda_pool *gpu;
    quire_cuda_pool_options options;
    bool store_only;                /* nothing is attended */
    double error[MOST], norm[MOST]; /* of a layer's results so far, squares */
    int rows;
} twins;

typedef struct twin { /* two sequences */
    quire_seq *cpu;
    quire_cuda_seq *gpu;
    source rows;
} twin;

/* Change what you like, then twins_open. */
static void twins_init(twins *t, int n_layers, int h, int g, int dim, const char *kv,
                       quire_type type) {
    memset(t, 0, sizeof *t);
    fixture_init(&t->f, n_layers, h, g, dim, dim, kv);
    t->f.options.raw = type;
    t->f.options.max_tokens = 4096;
    quire_cuda_pool_options_default(&t->options);
    t->options.raw = type;
    t->options.max_seqs = MOST;
    t->options.max_tokens = 4096;
    t->options.max_batch_tokens = 512;
}

static void twins_open(twins *t) {
    fixture_open(&t->f);
    t->options.layers = t->f.layer;
    t->options.n_layers = t->f.options.n_layers;
    t->options.pair = t->f.options.policy.pair;
    t->options.sinks = t->f.options.policy.sinks;
    assert_gpu(quire_cuda_pool_create(&t->gpu, &t->options));
}

static twin twin_new(twins *t, uint64_t seed) {
    twin s = {.rows = source_default(seed)};
    assert_ok(quire_seq_create(t->f.pool, &s.cpu));
    assert_gpu(quire_cuda_seq_create(t->gpu, &s.gpu));
    return s;
}

static void twin_free(twin *s) {
    assert_ok(quire_seq_free(s->cpu));
    assert_gpu(quire_cuda_seq_free(s->gpu));
}

/* ------------------------------------------------------------------ a step of the GPU's pool */

/* Device memory of one layer's rows and results, which a captured graph finds again. */
typedef struct buffers {
    void *k, *v, *q;
    float *out, *lse;
} buffers;

static buffers buffers_new(const twins *t, int layer, int rows) {
    const quire_layer *l = &t->f.layer[layer];
    const size_t n = (size_t)(rows > 0 ? rows : 1);
    return (buffers){gpu_new(n * (size_t)(l->n_kv_heads * l->k_dim) * 2, 0xff),
                     gpu_new(n * (size_t)(l->n_kv_heads * l->v_dim) * 2, 0xff),
                     gpu_new(n * (size_t)(l->n_heads * l->k_dim) * 2, 0xff),
                     gpu_new(n * (size_t)(l->n_heads * l->v_dim) * 4, 0xff),
                     gpu_new(n * (size_t)l->n_heads * 4, 0xff)};
}

static void buffers_free(buffers *b) {
    cudaFree(b->k), cudaFree(b->v), cudaFree(b->q), cudaFree(b->out), cudaFree(b->lse);
}

typedef void (*draw_row)(const source *, const quire_layer *, int, int, float *);

/* The next n[i] rows of every item. */
static void put_rows(const twins *t, int layer, draw_row draw, int width, const twin *items,
                     const int *n, int count, void *to) {
    int rows = 0, row = 0;
    for (int i = 0; i < count; i++)
        rows += n[i];
    float *x = calloc((size_t)(rows * width + 1), sizeof *x);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < n[i]; j++, row++)
            if (items[i].gpu)
                draw(&items[i].rows, &t->f.layer[layer], layer,
                     quire_cuda_seq_length(items[i].gpu) + j, x + (size_t)row * (size_t)width);
    uint16_t *narrow = narrowed(t->options.raw, x, (size_t)(rows * width));
    assert_cuda(cudaMemcpy(to, narrow, (size_t)(rows * width) * 2, cudaMemcpyHostToDevice));
    free(x), free(narrow);
}

static void put_layer(const twins *t, int layer, const twin *items, const int *n, int count,
                      buffers *b) {
    const quire_layer *l = &t->f.layer[layer];
    const int source_layer = l->share < 0 ? layer : l->share;
    put_rows(t, source_layer, source_k, l->n_kv_heads * l->k_dim, items, n, count, b->k);
    put_rows(t, source_layer, source_v, l->n_kv_heads * l->v_dim, items, n, count, b->v);
    put_rows(t, layer, source_q, l->n_heads * l->k_dim, items, n, count, b->q);
}

static void begin_gpu(const twins *t, const twin *items, const int *n, int count,
                      cudaStream_t stream) {
    quire_cuda_step_item list[MOST];
    for (int i = 0; i < count; i++)
        list[i] = (quire_cuda_step_item){items[i].gpu, n[i]};
    assert_gpu(quire_cuda_step_begin(t->gpu, list, count, stream));
}

static void launch_layer(const twins *t, int layer, const buffers *b, cudaStream_t stream) {
    if (t->f.layer[layer].share < 0)
        assert_gpu(quire_cuda_step_append(t->gpu, layer, b->k, b->v, stream));
    if (!t->store_only)
        assert_gpu(quire_cuda_step_attend(t->gpu, layer, b->q, b->out, b->lse, stream));
}

/* ------------------------------------------------------------------ both pools */

static double bound_of(const twins *t, int layer) {
    const quire_layer *l = &t->f.layer[layer];
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(t->f.pool, layer, &stats));
    const double h = FP16_ROUNDING, bias = (double)source_default(0).k_channel_bias;
    return sqrt(2 * h * h + h * h * (1 + bias * bias)) + 2e-5 +
           attend_bound(stats.pair, l->k_dim, 1, false, false);
}

static double strayed(double bound, int n_rows, int deviations) {
    return bound * fmin(1 + deviations / (2 * sqrt((double)n_rows)), 2);
}

static void compare_layer(twins *t, int layer, int rows, const buffers *b, const float *cpu,
                          const float *cpu_lse) {
    const quire_layer *l = &t->f.layer[layer];
    const size_t n_out = (size_t)(rows * l->n_heads * l->v_dim),
                 n_lse = (size_t)(rows * l->n_heads);
    float *out = malloc(n_out * sizeof *out), *lse = malloc(n_lse * sizeof *lse);
    gpu_read(out, b->out, n_out * sizeof *out);
    gpu_read(lse, b->lse, n_lse * sizeof *lse);
    double error = 0, norm = 0;
    for (size_t i = 0; i < n_out; i++) {
        const double x = (double)cpu[i], d = (double)out[i] - x;
        error += d * d;
        norm += x * x;
    }
    const double bound = bound_of(t, layer), most = strayed(bound, rows * l->n_heads, 5);
    if (!(error <= most * most * norm))
        fail_msg("layer %d, %d rows: %.2e from the CPU's result, bound %.2e", layer, rows,
                 sqrt(error / norm), most);
    t->error[layer] += error, t->norm[layer] += norm;
    for (size_t i = 0; i < n_lse; i++)
        if (!(fabs((double)lse[i] - (double)cpu_lse[i]) <= 4 * bound))
            fail_msg("layer %d, row %zu: log-sum-exp %g, not %g", layer, i / (size_t)l->n_heads,
                     (double)lse[i], (double)cpu_lse[i]);
    free(out), free(lse);
}

/* All steps together are within the bound. */
static void twins_close(twins *t) {
    quire_cuda_pool_info info;
    assert_gpu(quire_cuda_pool_get_info(t->gpu, &info, NULL));
    assert_int_equal(info.n_bad, 0);
    for (int i = 0; i < t->f.options.n_layers && t->rows > 0; i++) {
        const double error = sqrt(t->error[i] / t->norm[i]),
                     bound = strayed(bound_of(t, i), t->rows * t->f.layer[i].n_heads, 2);
        if (!(error <= bound))
            fail_msg("layer %d, %d rows in all: %.2e from the CPU's results, bound %.2e", i,
                     t->rows, error, bound);
    }
    quire_cuda_pool_free(t->gpu);
    fixture_close(&t->f);
}

/* Appends n[i] tokens to every item in both pools and compares the results. */
static void both_step(twins *t, const twin *items, const int *n, int count,
                      const int32_t *n_accept) {
    const int n_layers = t->f.options.n_layers;
    int rows = 0;
    size_t width = 0, heads = 0;
    for (int i = 0; i < count; i++)
        rows += n[i];
    t->rows += t->store_only ? 0 : rows;
    for (int i = 0; i < n_layers; i++) {
        width += (size_t)(t->f.layer[i].n_heads * t->f.layer[i].v_dim);
        heads += (size_t)t->f.layer[i].n_heads;
    }
    buffers *b = malloc((size_t)n_layers * sizeof *b);
    begin_gpu(t, items, n, count, NULL);
    for (int i = 0; i < n_layers; i++) {
        b[i] = buffers_new(t, i, rows);
        put_layer(t, i, items, n, count, &b[i]);
        launch_layer(t, i, &b[i], NULL);
    }
    assert_gpu(quire_cuda_step_end(t->gpu, n_accept, NULL));

    step_item list[MOST];
    for (int i = 0; i < count; i++)
        list[i] = (step_item){items[i].cpu, &items[i].rows, n[i]};
    float *cpu = malloc((size_t)rows * width * sizeof *cpu),
          *lse = malloc((size_t)rows * heads * sizeof *lse);
    assert_ok(step(
        &t->f, list, count,
        &(step_options){
            .type = t->options.raw, .lse = lse, .n_accept = n_accept, .store_only = t->store_only},
        cpu));
    for (int i = 0; i < count; i++)
        assert_int_equal(quire_seq_length(items[i].cpu), quire_cuda_seq_length(items[i].gpu));
    size_t at = 0, lse_at = 0;
    for (int i = 0; i < n_layers; i++) {
        const quire_layer *l = &t->f.layer[i];
        if (!t->store_only)
            compare_layer(t, i, rows, &b[i], cpu + at, lse + lse_at);
        at += (size_t)(rows * l->n_heads * l->v_dim);
        lse_at += (size_t)(rows * l->n_heads);
        buffers_free(&b[i]);
    }
    free(b), free(cpu), free(lse);
}

/* n tokens to one sequence of both pools, `chunk` at a time. */
static void both_feed(twins *t, const twin *s, int n, int chunk) {
    for (int done = 0; done < n; done += chunk)
        both_step(t, s, &(int){n - done < chunk ? n - done : chunk}, 1, NULL);
}

/* Every full page has the same bytes in both pools. */
static void same_pages(const twins *t, const twin *s) {
    const int length = quire_seq_length(s->cpu);
    assert_int_equal(quire_cuda_seq_length(s->gpu), length);
    for (int page = 0; page < length / T; page++) {
        const size_t n = quire_seq_page_bytes(t->f.pool, page);
        assert_int_equal(quire_cuda_seq_page_bytes(t->gpu, page), n);
        uint8_t *cpu = malloc(n), *gpu = malloc(n);
        assert_ok(quire_seq_page_save(s->cpu, page, cpu, n));
        assert_gpu(quire_cuda_seq_page_save(s->gpu, page, gpu, n, NULL));
        assert_cuda(cudaDeviceSynchronize());
        for (size_t i = 0; i < n; i++)
            if (cpu[i] != gpu[i])
                fail_msg("page %d of %d tokens: byte %zu of %zu is %02x, not %02x", page, length, i,
                         n, gpu[i], cpu[i]);
        free(cpu), free(gpu);
    }
}

/* A stream that refuses every launch and copy: a wait has spoilt its capture. Until it is freed,
 * nothing may wait for the device. */
static cudaStream_t refusing_stream(void) {
    cudaStream_t stream;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    assert_true(cudaStreamSynchronize(stream) != cudaSuccess);
    cudaGetLastError();
    return stream;
}

static void refusing_stream_free(cudaStream_t stream) {
    cudaGraph_t none;
    assert_true(cudaStreamEndCapture(stream, &none) != cudaSuccess);
    cudaGetLastError();
    assert_cuda(cudaStreamDestroy(stream));
}

/* ------------------------------------------------------------------ tests */

/* Prompts in chunks of many sizes, then single tokens across pages, in a ragged batch. */
static void prompts_and_tokens(void **state) {
    (void)state;
    static const struct {
        const char *kv;
        int h, g, dim;
        quire_type type;
    } cases[] = {{"km4:vt4", 8, 2, 128, QUIRE_F16},
                 {"km4:vt4", 4, 4, 64, QUIRE_BF16},
                 {"kc8:vt4", 6, 2, 80, QUIRE_F16},
                 {"kc8:vt8", 4, 1, 256, QUIRE_BF16}};
    for (int c = 0; c < 4; c++) {
        twins t;
        twins_init(&t, 3, cases[c].h, cases[c].g, cases[c].dim, cases[c].kv, cases[c].type);
        twins_open(&t);
        twin s[4];
        for (int i = 0; i < 4; i++)
            s[i] = twin_new(&t, (uint64_t)(i + 1));
        both_feed(&t, &s[0], 1, 1);
        both_feed(&t, &s[1], 200, 67); /* chunks end and start within pages */
        both_feed(&t, &s[2], 500, 300);
        both_feed(&t, &s[3], 128, 64);
        both_step(&t, s, (const int[]){3, 60, 0, 130}, 4, NULL); /* a ragged batch of rows */
        for (int i = 0; i < 70; i++)
            both_step(&t, s, (const int[]){1, 1, 1, 1}, 4, NULL);
        both_step(&t, s + 1, (const int[]){1, 1}, 2, NULL); /* another batch: tables move */
        for (int i = 0; i < 4; i++)
            same_pages(&t, &s[i]);
        for (int i = 0; i < 4; i++)
            twin_free(&s[i]);
        quire_cuda_pool_info info;
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.free_pages, info.n_pages);
        assert_int_equal(info.n_seqs, 0);
        twins_close(&t);
    }
}

/* Layers of different heads and codecs, one that shares another's cache, ALiBi. */
static void layers_differ(void **state) {
    (void)state;
    static const float slopes[] = {.5f, .25f, .125f, .0625f};
    twins t;
    twins_init(&t, 5, 4, 2, 64, "kc8:vt4", QUIRE_F16);
    t.f.layer[1].k = QUIRE_CODEC_KM4;
    t.f.layer[2].n_heads = 8, t.f.layer[2].k_dim = t.f.layer[2].v_dim = 128;
    t.f.layer[3].n_heads = 16, t.f.layer[3].k_dim = t.f.layer[3].v_dim = 128;
    t.f.layer[3].share = 2;
    t.f.layer[4].alibi = slopes;
    twins_open(&t);
    twin s[2] = {twin_new(&t, 5), twin_new(&t, 6)};
    both_feed(&t, &s[0], 150, 150);
    both_feed(&t, &s[1], 70, 33);
    for (int i = 0; i < 60; i++)
        both_step(&t, s, (const int[]){1, 1}, 2, NULL);
    same_pages(&t, &s[0]);
    same_pages(&t, &s[1]);
    twins_close(&t);
}

/* (G, D*D/2): error feedback for random queries, some of which point in similar directions. */
static float *random_feedback(int g, int dim, const quire_rope *rope, uint64_t seed) {
    enum { QUERIES = 300 };
    const size_t n = (size_t)(dim * dim);
    float *feedback = malloc((size_t)g * n / 2 * sizeof *feedback),
          *moment = malloc(n * sizeof *moment), *q = malloc((size_t)dim * sizeof *q);
    rng r = {seed};
    for (int head = 0; head < g; head++) {
        memset(moment, 0, n * sizeof *moment);
        for (int i = 0; i < QUERIES; i++) {
            rng_fill(&r, q, (size_t)dim, 1);
            for (int d = 1; d < dim; d++)
                q[d] += 0.9f * q[d - 1];
            for (int j = 0; j < dim; j++)
                for (int k = 0; k < dim; k++)
                    moment[j * dim + k] += q[j] * q[k] / QUERIES;
        }
        assert_ok(quire_channel_feedback(moment, rope, dim, feedback + (size_t)head * n / 2));
    }
    free(moment), free(q);
    return feedback;
}

/* K rounded with error feedback has the CPU's bytes on every page, and other ones than without
 * (kc8 takes no feedback). */
static void check_rounding(const char *kv, int dim, quire_type type, bool store_only) {
    const quire_rope turned = {.n_rot = 32, .base = 10000, .scale = 0},
                     other = {.first = 16, .n_rot = 48, .interleaved = true, .base = 500000};
    const quire_rope *ropes[] = {&turned, &turned, &other, NULL};
    twins t;
    twins_init(&t, 5, 4, 2, dim, kv, type);
    t.store_only = store_only;
    float *feedback[4];
    for (int i = 0; i < 4; i++) { /* the last layer has none */
        feedback[i] = random_feedback(2, dim, ropes[i], (uint64_t)i);
        t.f.layer[i].k_feedback = feedback[i], t.f.layer[i].k_rope = ropes[i];
    }
    twins_open(&t);
    twin s = twin_new(&t, 91);
    both_feed(&t, &s, 300, 150);
    for (int i = 0; i < 80; i++)
        both_step(&t, &s, &(int){1}, 1, NULL);
    same_pages(&t, &s);

    fixture plain = t.f;
    for (int i = 0; i < 4; i++)
        plain.layer[i].k_feedback = NULL;
    fixture_open(&plain);
    quire_seq *seq;
    assert_ok(quire_seq_create(plain.pool, &seq));
    feed(&plain, seq, &s.rows, 128, 128, 1, 0, NULL);
    const size_t n = quire_seq_page_bytes(plain.pool, 1);
    uint8_t *with = malloc(n), *without = malloc(n);
    assert_gpu(quire_cuda_seq_page_save(s.gpu, 1, with, n, NULL));
    assert_ok(quire_seq_page_save(seq, 1, without, n));
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(memcmp(with, without, n) != 0, strncmp(kv, "kc8", 3) != 0);
    free(with), free(without);
    fixture_close(&plain);
    twins_close(&t);
    for (int i = 0; i < 4; i++)
        free(feedback[i]);
}

static void query_aware_rounding(void **state) {
    (void)state;
    check_rounding("km4:vt4", 128, QUIRE_F16, false);
    check_rounding("kc4:vt4", 64, QUIRE_BF16, false);
    check_rounding("km4:vt4", 256, QUIRE_F16, false);
    check_rounding("km4:vt4", 80, QUIRE_BF16, false);
    check_rounding("kc8:vt8", 64, QUIRE_BF16, false);
}

/* Codecs without a kernel of their own for several rows: pages are compared, nothing is attended.
 */
static void query_aware_rounding_of_few_bits(void **state) {
    (void)state;
    check_rounding("kc3:vt4", 96, QUIRE_F16, true);
    check_rounding("km3:vt2", 128, QUIRE_BF16, true);
    check_rounding("kc2:vt3", 256, QUIRE_F16, true);
}

/* One captured step serves all later ones. */
static void in_a_graph(void **state) {
    (void)state;
    enum { COUNT = 3, STEPS = 140 };
    static const int one[COUNT] = {1, 1, 1};
    twins t;
    twins_init(&t, 2, 8, 2, 128, "km4:vt4", QUIRE_BF16);
    twins_open(&t);
    twin s[COUNT];
    for (int i = 0; i < COUNT; i++) {
        s[i] = twin_new(&t, (uint64_t)(i + 11));
        both_feed(&t, &s[i], 50 * i + 7, 64);
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    assert_cuda(cudaStreamCreate(&stream));
    buffers b[2] = {buffers_new(&t, 0, COUNT), buffers_new(&t, 1, COUNT)};
    float *cpu = malloc(2 * COUNT * 8 * 128 * sizeof *cpu), lse[2 * COUNT * 8];
    for (int i = 0; i < STEPS; i++) {
        for (int layer = 0; layer < 2; layer++)
            put_layer(&t, layer, s, one, COUNT, &b[layer]);
        begin_gpu(&t, s, one, COUNT, stream);
        if (!exec) {
            assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            for (int layer = 0; layer < 2; layer++)
                launch_layer(&t, layer, &b[layer], stream);
            assert_cuda(cudaStreamEndCapture(stream, &graph));
            assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
        }
        assert_cuda(cudaGraphLaunch(exec, stream));
        assert_gpu(quire_cuda_step_end(t.gpu, NULL, stream));
        assert_cuda(cudaStreamSynchronize(stream));
        step_item list[COUNT];
        for (int j = 0; j < COUNT; j++)
            list[j] = (step_item){s[j].cpu, &s[j].rows, 1};
        assert_ok(step(&t.f, list, COUNT, &(step_options){.type = QUIRE_BF16, .lse = lse}, cpu));
        t.rows += COUNT;
        for (int layer = 0; layer < 2; layer++)
            compare_layer(&t, layer, COUNT, &b[layer], cpu + layer * COUNT * 8 * 128,
                          lse + layer * COUNT * 8);
    }
    for (int i = 0; i < COUNT; i++)
        same_pages(&t, &s[i]);
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    buffers_free(&b[0]), buffers_free(&b[1]);
    free(cpu);
    twins_close(&t);
}

/* Other rows have the same channel constants, as those of one model do: a page with rows of two
 * models has K of another size than the bounds are derived for. */
static twin twin_fork(twin *s, uint64_t seed_of_rows) {
    twin child = {.rows = s->rows};
    if (seed_of_rows) {
        child.rows.channel_seed = s->rows.seed;
        child.rows.seed = seed_of_rows;
    }
    assert_ok(quire_seq_fork(s->cpu, &child.cpu));
    assert_gpu(quire_cuda_seq_fork(s->gpu, &child.gpu, NULL));
    return child;
}

static void both_trim(const twin *s, int n) {
    assert_ok(quire_seq_trim(s->cpu, n));
    assert_gpu(quire_cuda_seq_trim(s->gpu, n));
}

static void forks_and_trims(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 8, 2, 128, "km4:vt4", QUIRE_F16);
    twins_open(&t);
    twin s = twin_new(&t, 21);
    both_feed(&t, &s, 300, 128);
    twin child = twin_fork(&s, 99); /* its rows differ from here on: they share four pages */
    for (int i = 0; i < 40; i++) {
        const twin two[] = {s, child};
        both_step(&t, two, (const int[]){1, 1}, 2, NULL);
    }
    same_pages(&t, &s), same_pages(&t, &child);
    child.rows = s.rows;
    both_trim(&child, 330); /* in the open page: 300 .. 329 are its own rows */
    both_trim(&child, 300);
    both_feed(&t, &child, 45, 1); /* now as its parent */
    same_pages(&t, &child);
    both_trim(&s, 290); /* in the page that was sealed last */
    both_feed(&t, &s, 100, 1);
    same_pages(&t, &s);
    both_trim(&s, 128); /* between pages */
    both_feed(&t, &s, 90, 90);
    same_pages(&t, &s);
    both_feed(&t, &s, 200, 200);
    assert_status(quire_cuda_seq_trim(s.gpu, 200), QUIRE_E_GONE);
    assert_status(quire_cuda_seq_trim(s.gpu, 1000), QUIRE_E_INVALID);
    both_feed(&t, &s, 3, 1); /* and nothing has changed */
    same_pages(&t, &s);
    both_trim(&s, 0);
    both_feed(&t, &s, 70, 7);
    same_pages(&t, &s);
    twin_free(&s);
    same_pages(&t, &child);
    twin_free(&child);
    quire_cuda_pool_info info;
    assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
    assert_int_equal(info.free_pages, info.n_pages);
    twins_close(&t);
}

/* A page of every codec, rounded with error feedback: small enough for compute-sanitizer. */
static void rounding_of_a_page(void **state) {
    (void)state;
    static const char *const kv[] = {"km4:vt4", "kc3:vt3", "kc2:vt2"};
    for (int i = 0; i < 3; i++) {
        twins t;
        twins_init(&t, 1, 2, 1, 64, kv[i], i == 1 ? QUIRE_BF16 : QUIRE_F16);
        t.store_only = true;
        float *feedback = random_feedback(1, 64, NULL, 1);
        t.f.layer[0].k_feedback = feedback;
        twins_open(&t);
        twin s = twin_new(&t, 92);
        both_feed(&t, &s, 128, 64);
        same_pages(&t, &s);
        twins_close(&t);
        free(feedback);
    }
}

/* Some of the rows of a step are accepted, as in speculative decoding; a step is undone. */
static void accepted_rows(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 8, 2, 128, "kc8:vt4", QUIRE_F16);
    twins_open(&t);
    twin s[2] = {twin_new(&t, 31), twin_new(&t, 32)};
    both_feed(&t, &s[0], 250, 250);
    both_feed(&t, &s[1], 60, 60);
    rng r = {5};
    for (int i = 0; i < 40; i++) {
        int32_t accept[2] = {rng_below(&r, 8), 1 + rng_below(&r, 5)};
        both_step(&t, s, (const int[]){7, 5}, 2, accept);
    }
    same_pages(&t, &s[0]), same_pages(&t, &s[1]);
    for (int n = 1; n <= 65; n += 64) { /* one token, and rows that fill a page */
        const int before = quire_cuda_seq_length(s[0].gpu);
        begin_gpu(&t, s, &n, 1, NULL);
        buffers b = buffers_new(&t, 0, n);
        for (int layer = 0; layer < 2; layer++) {
            put_layer(&t, layer, &s[1], &n, 1, &b); /* others' rows: they must leave no trace */
            launch_layer(&t, layer, &b, NULL);
        }
        assert_gpu(quire_cuda_step_end(t.gpu, &(int32_t){0}, NULL));
        buffers_free(&b);
        assert_int_equal(quire_cuda_seq_length(s[0].gpu), before);
        both_feed(&t, &s[0], 70, 1);
        same_pages(&t, &s[0]);
    }
    /* Two pages fill up with one token each; the first token is not kept. */
    for (int i = 0; i < 2; i++)
        both_feed(&t, &s[i], 2 * T - 1 - quire_cuda_seq_length(s[i].gpu) % T, 1);
    both_step(&t, s, (const int[]){1, 1}, 2, (const int32_t[]){0, 1});
    both_step(&t, s, (const int[]){1, 1}, 2, NULL);
    same_pages(&t, &s[0]), same_pages(&t, &s[1]);
    /* Rows that go on for several pages after the open one, which has 20 rows. */
    both_feed(&t, &s[0], T + 20 - quire_cuda_seq_length(s[0].gpu) % T, 1);
    const int many = 200, before = quire_cuda_seq_length(s[0].gpu);
    begin_gpu(&t, s, &many, 1, NULL);
    assert_gpu(quire_cuda_step_end(t.gpu, &(int32_t){0}, NULL)); /* nothing was appended */
    assert_int_equal(quire_cuda_seq_length(s[0].gpu), before);
    both_trim(&s[0], before - 1); /* the raw rows are there */
    both_feed(&t, &s[0], 70, 1);
    same_pages(&t, &s[0]);
    both_trim(&s[0], before);
    begin_gpu(&t, s, &many, 1, NULL);
    buffers b = buffers_new(&t, 0, many);
    for (int layer = 0; layer < 2; layer++) {
        put_layer(&t, layer, &s[1], &many, 1, &b);
        launch_layer(&t, layer, &b, NULL);
    }
    assert_status(quire_cuda_step_end(t.gpu, &(int32_t){0}, NULL), QUIRE_E_INVALID);
    assert_gpu(quire_cuda_step_end(t.gpu, NULL, NULL)); /* what the header advises */
    buffers_free(&b);
    both_trim(&s[0], before / T * T);
    both_feed(&t, &s[0], 150, 150);
    same_pages(&t, &s[0]);
    twins_close(&t);
}

/* Pages that every layer's window has moved past are given back, and only those. */
static void windows_give_pages_back(void **state) {
    (void)state;
    for (int keep = 0; keep <= 70; keep += 70) {
        twins t;
        twins_init(&t, 2, 4, 2, 64, "km4:vt4", QUIRE_F16);
        t.f.layer[0].window = t.f.layer[1].window = 100;
        t.f.layer[0].keep = t.f.layer[1].keep = keep;
        t.options.n_pages = 40;
        twins_open(&t);
        const int kept = (keep + T - 1) / T;
        twin s = twin_new(&t, 95), child = {.rows = s.rows};
        both_feed(&t, &s, 300, 300);
        both_feed(&t, &s, 600, 150);
        assert_ok(quire_seq_fork(s.cpu, &child.cpu));
        assert_gpu(quire_cuda_seq_fork(s.gpu, &child.gpu, NULL));
        both_feed(&t, &s, 100, 1);
        quire_cuda_pool_info info;
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        /* At 1000 tokens page 14 is left, and pages 12 and 13 are the child's. */
        assert_int_equal(info.n_pages - info.free_pages, 3 + kept);
        const size_t n = quire_cuda_seq_page_bytes(t.gpu, 5);
        uint8_t *bytes = malloc(n);
        assert_status(quire_cuda_seq_page_save(s.gpu, 5, bytes, n, NULL), QUIRE_E_GONE);
        free(bytes);
        for (int length = 999; length > 960; length--) {
            const quire_status status = quire_seq_trim(s.cpu, length);
            assert_int_equal(quire_cuda_seq_trim(s.gpu, length), status);
            assert_int_equal(status, length >= 995 ? QUIRE_OK : QUIRE_E_GONE);
        }
        assert_status(quire_cuda_seq_trim(s.gpu, 512), QUIRE_E_GONE);
        const quire_rope rope = {.n_rot = 64, .base = 10000};
        assert_status(quire_cuda_seq_shift(s.gpu, 970, 980, &rope, 1, NULL), QUIRE_E_GONE);
        const size_t all = quire_cuda_seq_bytes(s.gpu);
        bytes = malloc(all);
        assert_gpu(quire_cuda_seq_save(s.gpu, bytes, all, NULL));
        assert_cuda(cudaDeviceSynchronize());
        assert_gpu(quire_cuda_seq_free(s.gpu));
        assert_gpu(quire_cuda_seq_load(t.gpu, bytes, all, &s.gpu, NULL));
        assert_cuda(cudaDeviceSynchronize());
        free(bytes);
        quire_cuda_pool_options o = t.options;
        quire_layer layers[] = {t.f.layer[0], t.f.layer[1]};
        o.layers = layers;
        layers[1].window = 90; /* the longest one stays */
        assert_status(quire_cuda_pool_requantize(t.gpu, &o, NULL), QUIRE_E_INVALID);
        layers[1].window = 100, layers[1].keep = 3; /* fewer than the sinks */
        assert_status(quire_cuda_pool_requantize(t.gpu, &o, NULL), QUIRE_E_INVALID);
        layers[1].keep = keep;
        assert_gpu(quire_cuda_pool_requantize(t.gpu, &o, NULL)); /* the same codecs: a copy */
        both_feed(&t, &s, 200, 40);
        both_feed(&t, &child, 70, 1);
        twin_free(&s);
        both_trim(&child, 0);
        both_feed(&t, &child, 130, 130);
        same_pages(&t, &child);
        twin_free(&child);
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.free_pages, info.n_pages);
        twins_close(&t);
    }
}

/* A shift to fewer tokens than those that a window has moved past, all of them kept ones: what is
 * saved then can be loaded. */
static void shifts_of_kept_pages(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 1, 4, 2, 64, "km4:vt4", QUIRE_F16);
    t.f.layer[0].window = 100, t.f.layer[0].keep = 2 * T;
    twins_open(&t);
    twin s = twin_new(&t, 96);
    both_feed(&t, &s, 230, 230); /* the window starts in page 2 */
    const quire_rope rope = {.n_rot = 64, .base = 10000};
    assert_gpu(quire_cuda_seq_shift(s.gpu, 10, 200, &rope, 1, NULL));
    const size_t n = quire_cuda_seq_bytes(s.gpu);
    uint8_t *bytes = malloc(n);
    assert_gpu(quire_cuda_seq_save(s.gpu, bytes, n, NULL));
    assert_cuda(cudaDeviceSynchronize());
    quire_cuda_seq *loaded;
    assert_gpu(quire_cuda_seq_load(t.gpu, bytes, n, &loaded, NULL));
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(quire_cuda_seq_length(loaded), 40);
    free(bytes);
    assert_gpu(quire_cuda_seq_free(loaded));
    assert_gpu(quire_cuda_seq_free(s.gpu));
    quire_cuda_pool_info info;
    assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
    assert_int_equal(info.free_pages, info.n_pages);
    twins_close(&t);
}

/* Both pools get other codecs while sequences share pages: the same bytes, and both go on. */
static void other_codecs(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
        int dim;
        quire_type type;
    } cases[] = {{"kc8:vt8", "km4:vt4", 128, QUIRE_F16},
                 {"km4:vt4", "kc8:vt4", 64, QUIRE_BF16},
                 {"kc4:vt4", "km4:vt4", 80, QUIRE_F16},
                 {"km3:vt3", "kc2:vt2", 96, QUIRE_BF16},
                 {"kc8:vt4", "kc3:vt3", 256, QUIRE_F16}};
    for (int c = 0; c < 5; c++) {
        twins t;
        twins_init(&t, 3, 4, 2, cases[c].dim, cases[c].before, cases[c].type);
        t.store_only = c >= 3; /* no kernel of several rows for these */
        t.f.layer[1].k = QUIRE_CODEC_KC8, t.f.layer[1].v = QUIRE_CODEC_VT4; /* these stay */
        float *feedback = random_feedback(2, cases[c].dim, NULL, 3);
        t.f.layer[2].k_feedback = feedback;
        twins_open(&t);
        twin s[2] = {twin_new(&t, 91), twin_new(&t, 92)};
        both_feed(&t, &s[0], 330, 330);
        both_feed(&t, &s[1], 128, 128);
        twin child = {.rows = s[0].rows};
        assert_ok(quire_seq_fork(s[0].cpu, &child.cpu));
        assert_gpu(quire_cuda_seq_fork(s[0].gpu, &child.gpu, NULL));

        quire_policy policy = t.f.options.policy;
        assert_ok(quire_policy_parse(cases[c].after, &policy));
        policy.sinks = t.f.options.policy.sinks;
        assert_ok(quire_pool_requantize(t.f.pool, &policy));
        quire_requantize_stats stats;
        assert_ok(quire_pool_requantize_step(t.f.pool, 1000, &stats));
        assert_int_equal(stats.pages_left, 0);
        quire_cuda_pool_options o = t.options;
        o.pair = policy.pair;
        o.max_tokens /= 2;
        assert_status(quire_cuda_pool_requantize(t.gpu, &o, NULL), QUIRE_E_INVALID);
        o.max_tokens = t.options.max_tokens, o.n_pages = 6;
        assert_status(quire_cuda_pool_requantize(t.gpu, &o, NULL), QUIRE_E_NO_PAGES);
        o.n_pages = 40;
        assert_gpu(quire_cuda_pool_requantize(t.gpu, &o, NULL));
        t.options = o;
        memset(t.error, 0, sizeof t.error), memset(t.norm, 0, sizeof t.norm);
        t.rows = 0; /* the bound is that of the new codecs */
        quire_cuda_pool_info info;
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.n_pages - info.free_pages, 7);
        for (int i = 0; i < 2; i++)
            same_pages(&t, &s[i]);
        same_pages(&t, &child);
        both_feed(&t, &s[0], 100, t.store_only ? 100 : 1);
        both_feed(&t, &child, 90, 90);
        both_feed(&t, &s[1], 70, 70);
        both_trim(&s[0], 400); /* the raw rows have come along */
        both_feed(&t, &s[0], 60, 60);
        for (int i = 0; i < 2; i++)
            same_pages(&t, &s[i]);
        same_pages(&t, &child);
        twin_free(&s[0]), twin_free(&s[1]), twin_free(&child);
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.free_pages, info.n_pages);
        twins_close(&t);
        free(feedback);
    }
}

/* Tokens are dropped in the middle: the same bytes as on the CPU, raw rows and sinks included. */
static void context_shifts(void **state) {
    (void)state;
    static const struct {
        const char *kv;
        int dim;
        quire_type type;
    } cases[] = {
        {"km4:vt4", 128, QUIRE_F16}, {"kc8:vt4", 80, QUIRE_BF16}, {"km3:vt3", 96, QUIRE_F16}};
    /* Within a page, whole pages, from the start, sinks, up to the open page, almost all. */
    static const int cuts[][2] = {{70, 100}, {64, 192}, {0, 64},    {2, 40},
                                  {10, 330}, {0, 350},  {130, 131}, {256, 340}};
    const quire_rope rope = {.n_rot = 64, .base = 10000},
                     other = {.first = 16, .n_rot = 32, .interleaved = true, .base = 500000};
    const quire_rope ropes[] = {rope, other, {0}};
    for (int c = 0; c < 3; c++) {
        twins t;
        twins_init(&t, 3, 4, 2, cases[c].dim, cases[c].kv, cases[c].type);
        t.store_only = true; /* a twin's next rows are those of its length: no matter */
        /* The scratch then takes two pages at a time. */
        t.options.max_batch_tokens = 64, t.options.max_seqs = 2, t.options.n_pages = 20;
        float *feedback = random_feedback(2, cases[c].dim, &other, 3);
        t.f.layer[1].k_feedback = feedback, t.f.layer[1].k_rope = &other;
        twins_open(&t);
        for (int i = 0; i < 8; i++) {
            twin s = twin_new(&t, (uint64_t)(100 + i)), child = {.rows = s.rows};
            both_feed(&t, &s, 356, 60);
            const bool forked = i % 2;
            if (forked) {
                assert_ok(quire_seq_fork(s.cpu, &child.cpu));
                assert_gpu(quire_cuda_seq_fork(s.gpu, &child.gpu, NULL));
            }
            const int n_rope = i % 3 ? 3 : 1;
            assert_ok(quire_seq_shift(s.cpu, cuts[i][0], cuts[i][1], ropes, n_rope));
            assert_gpu(quire_cuda_seq_shift(s.gpu, cuts[i][0], cuts[i][1], ropes, n_rope, NULL));
            same_pages(&t, &s);
            both_feed(&t, &s, 80, 1); /* the open page, and the sinks with it, are packed */
            same_pages(&t, &s);
            if (forked) {
                same_pages(&t, &child);
                twin_free(&child);
            }
            twin_free(&s);
        }
        twin s = twin_new(&t, 99);
        both_feed(&t, &s, 100, 60);
        assert_status(quire_cuda_seq_shift(s.gpu, 50, 40, ropes, 1, NULL), QUIRE_E_INVALID);
        assert_status(quire_cuda_seq_shift(s.gpu, 0, 101, ropes, 1, NULL), QUIRE_E_INVALID);
        assert_status(quire_cuda_seq_shift(s.gpu, 0, 10, ropes, 2, NULL), QUIRE_E_INVALID);
        assert_gpu(quire_cuda_seq_shift(s.gpu, 90, 100, ropes, 1, NULL)); /* a trim */
        assert_int_equal(quire_cuda_seq_length(s.gpu), 90);
        assert_gpu(quire_cuda_seq_free(s.gpu));
        quire_cuda_pool_info info;
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.free_pages, info.n_pages);
        twins_close(&t);
        free(feedback);
    }
}

/* Pages that one side packed are read on the other. */
static void pages_change_sides(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 8, 2, 128, "km4:vt4", QUIRE_BF16);
    twins_open(&t);
    for (int to_gpu = 0; to_gpu < 2; to_gpu++) {
        twin from = twin_new(&t, 41), to = twin_new(&t, 41);
        both_feed(&t, &from, 330, 330);
        for (int page = 0; page < 330 / T; page++) {
            const size_t n = quire_seq_page_bytes(t.f.pool, page);
            uint8_t *bytes = malloc(n);
            if (to_gpu)
                assert_ok(quire_seq_page_save(from.cpu, page, bytes, n));
            else
                assert_gpu(quire_cuda_seq_page_save(from.gpu, page, bytes, n, NULL));
            assert_cuda(cudaDeviceSynchronize());
            assert_ok(quire_seq_page_load(to.cpu, bytes, n));
            assert_gpu(quire_cuda_seq_page_load(to.gpu, bytes, n, NULL));
            assert_cuda(cudaDeviceSynchronize());
            free(bytes);
        }
        /* Raw rows of loaded pages are not there. */
        assert_status(quire_cuda_seq_trim(to.gpu, 300), QUIRE_E_GONE);
        both_feed(&t, &to, 80, 1);
        same_pages(&t, &to);
        both_feed(&t, &to, 130, 65);
        same_pages(&t, &to);
        twin_free(&from), twin_free(&to);
    }
    twins_close(&t);
}

/* A sequence leaves the device and comes back: the same bits as one that stayed. */
static void sequences_come_back(void **state) {
    (void)state;
    enum { N = 130 };
    twins t;
    twins_init(&t, 2, 8, 2, 64, "km4:vt4", QUIRE_F16);
    twins_open(&t);
    for (int length = 0; length < 400; length += 63) {
        twin stayed = twin_new(&t, 51), left = twin_new(&t, 51);
        both_feed(&t, &stayed, length, 100);
        both_feed(&t, &left, length, 64);
        const size_t n = quire_cuda_seq_bytes(left.gpu);
        uint8_t *bytes = malloc(n);
        assert_status(quire_cuda_seq_save(left.gpu, bytes, n - 1, NULL), QUIRE_E_INVALID);
        assert_gpu(quire_cuda_seq_save(left.gpu, bytes, n, NULL));
        assert_cuda(cudaDeviceSynchronize());
        assert_gpu(quire_cuda_seq_free(left.gpu));
        assert_gpu(quire_cuda_seq_load(t.gpu, bytes, n, &left.gpu, NULL));
        assert_cuda(cudaDeviceSynchronize());
        assert_int_equal(quire_cuda_seq_length(left.gpu), length);
        bytes[0] ^= 1;
        quire_cuda_seq *none;
        assert_status(quire_cuda_seq_load(t.gpu, bytes, n, &none, NULL), QUIRE_E_FORMAT);
        assert_null(none);
        free(bytes);
        if (length > T) { /* trims are exact there, too */
            both_trim(&stayed, length - T + 1);
            both_trim(&left, length - T + 1);
        }
        for (int i = 0; i < 2; i++)
            both_feed(&t, i ? &left : &stayed, N, 13);
        same_pages(&t, &stayed), same_pages(&t, &left);
        twin_free(&stayed), twin_free(&left);
    }
    twins_close(&t);
}

/* A pool refuses bytes that mean something else to it, though it would have as many. */
static void sequences_of_other_pools(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 4, 2, 64, "km4:vt4", QUIRE_F16);
    twins_open(&t);
    twin s = twin_new(&t, 53);
    both_feed(&t, &s, 200, 200);
    const size_t n = quire_cuda_seq_bytes(s.gpu);
    uint8_t *bytes = malloc(n);
    assert_gpu(quire_cuda_seq_save(s.gpu, bytes, n, NULL));
    assert_cuda(cudaDeviceSynchronize());
    uint16_t order[2 * 64];
    memcpy(order, t.f.layer[1].k_order, sizeof order);
    order[0] = t.f.layer[1].k_order[1], order[1] = t.f.layer[1].k_order[0];
    for (int i = 0; i < 5; i++) {
        quire_layer layers[] = {t.f.layer[0], t.f.layer[1]};
        quire_cuda_pool_options o = t.options;
        o.layers = layers;
        o.max_seqs = 2, o.n_pages = 10; /* these may differ */
        if (i == 1)
            o.pair.k = QUIRE_CODEC_KC4;
        else if (i == 2)
            o.raw = QUIRE_BF16;
        else if (i == 3)
            layers[1].k_order = order;
        else if (i == 4)
            layers[0].window = 100;
        quire_cuda_pool *other;
        quire_cuda_seq *seq;
        assert_gpu(quire_cuda_pool_create(&other, &o));
        assert_status(quire_cuda_seq_load(other, bytes, n, &seq, NULL),
                      i == 0 ? QUIRE_OK : QUIRE_E_FORMAT);
        assert_int_equal(quire_cuda_seq_length(seq), i == 0 ? 200 : 0);
        quire_cuda_pool_free(other);
    }
    free(bytes);
    twins_close(&t);
}

/* An empty place in a batch of single tokens has zeros as results. */
static void empty_places(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 1, 4, 2, 64, "kc4:vt4", QUIRE_F16);
    twins_open(&t);
    twin s[2] = {twin_new(&t, 61), {.gpu = NULL}};
    both_feed(&t, s, 100, 100);
    buffers b = buffers_new(&t, 0, 2);
    static const int one[] = {1, 1};
    begin_gpu(&t, s, one, 2, NULL);
    put_layer(&t, 0, s, one, 2, &b);
    launch_layer(&t, 0, &b, NULL);
    assert_gpu(quire_cuda_step_end(t.gpu, NULL, NULL));
    float out[2 * 4 * 64];
    gpu_read(out, b.out, sizeof out);
    for (int i = 0; i < 4 * 64; i++)
        assert_true(out[i] != 0 && out[4 * 64 + i] == 0);
    buffers_free(&b);
    assert_int_equal(quire_cuda_seq_length(s[0].gpu), 101);
    twins_close(&t);
}

/* Without a prefill kernel every item needs one token; one without tokens is as bad as two. */
static void steps_without_prefill(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 1, 4, 2, 64, "kc3:vt3", QUIRE_F16);
    twins_open(&t);
    twin s[2] = {twin_new(&t, 63), twin_new(&t, 64)};
    buffers b = buffers_new(&t, 0, 3);
    for (int n = 0; n <= 2; n++) {
        const int rows[] = {1, n};
        begin_gpu(&t, s, rows, 2, NULL);
        put_layer(&t, 0, s, rows, 2, &b);
        assert_gpu(quire_cuda_step_append(t.gpu, 0, b.k, b.v, NULL));
        assert_status(quire_cuda_step_attend(t.gpu, 0, b.q, b.out, NULL, NULL),
                      n == 1 ? QUIRE_OK : QUIRE_E_UNSUPPORTED);
        assert_gpu(quire_cuda_step_end(t.gpu, (const int32_t[]){0, 0}, NULL));
    }
    buffers_free(&b);
    twins_close(&t);
}

/* What is refused changes nothing. */
static void refusals(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 4, 2, 64, "km4:vt4", QUIRE_F16);
    t.options.n_pages = 3;
    twins_open(&t);
    quire_cuda_pool *none;
    quire_cuda_pool_options o = t.options;
#define REFUSED(change, status)                                                                    \
    do {                                                                                           \
        o = t.options;                                                                             \
        change;                                                                                    \
        assert_status(quire_cuda_pool_create(&none, &o), status);                                  \
        assert_null(none);                                                                         \
    } while (0)
    quire_layer layer = t.f.layer[0];
    REFUSED(o.struct_size = 1, QUIRE_E_INVALID);
    REFUSED(o.n_layers = 0, QUIRE_E_INVALID);
    REFUSED(o.raw = QUIRE_F32, QUIRE_E_UNSUPPORTED);
    REFUSED(o.sinks = 65, QUIRE_E_INVALID);
    REFUSED(o.max_seqs = 0, QUIRE_E_INVALID);
    REFUSED(o.max_tokens = INT32_MAX, QUIRE_E_TOO_BIG);
    REFUSED(o.pair.k = QUIRE_CODEC_TQ4, QUIRE_E_UNSUPPORTED);
    REFUSED((layer.k_order = NULL, o.layers = &layer, o.n_layers = 1), QUIRE_E_INVALID);
    uint16_t order[2 * 64] = {0};
    REFUSED((layer.k_order = order, o.layers = &layer, o.n_layers = 1), QUIRE_E_INVALID);
    layer = t.f.layer[0];
    REFUSED((layer.share = 0, o.layers = &layer, o.n_layers = 1), QUIRE_E_INVALID);
    layer.share = -1;
    REFUSED((layer.v_dim = 48, o.layers = &layer, o.n_layers = 1), QUIRE_E_UNSUPPORTED);

    twin s = twin_new(&t, 71), other = twin_new(&t, 72);
    both_feed(&t, &s, 130, 130);
    quire_cuda_step_item item = {s.gpu, 130};
    assert_status(quire_cuda_step_begin(t.gpu, &item, 1, NULL), QUIRE_E_NO_PAGES);
    item.n_tokens = 5000;
    assert_status(quire_cuda_step_begin(t.gpu, &item, 1, NULL), QUIRE_E_TOO_BIG);
    item.n_tokens = -1;
    assert_status(quire_cuda_step_begin(t.gpu, &item, 1, NULL), QUIRE_E_INVALID);
    const quire_cuda_step_item twice[] = {{s.gpu, 1}, {s.gpu, 1}};
    assert_status(quire_cuda_step_begin(t.gpu, twice, 2, NULL), QUIRE_E_BUSY);
    assert_status(quire_cuda_step_end(t.gpu, NULL, NULL), QUIRE_E_STATE);
    assert_status(quire_cuda_step_append(t.gpu, 0, s.gpu, s.gpu, NULL), QUIRE_E_STATE);
    item.n_tokens = 1;
    assert_gpu(quire_cuda_step_begin(t.gpu, &item, 1, NULL));
    assert_status(quire_cuda_step_begin(t.gpu, &item, 1, NULL), QUIRE_E_BUSY);
    assert_status(quire_cuda_seq_free(s.gpu), QUIRE_E_BUSY);
    assert_status(quire_cuda_seq_trim(s.gpu, 1), QUIRE_E_BUSY);
    assert_status(quire_cuda_step_append(t.gpu, 2, &t, &t, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_step_append(t.gpu, 0, NULL, NULL, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_step_end(t.gpu, &(int32_t){2}, NULL), QUIRE_E_INVALID);
    assert_gpu(quire_cuda_step_end(t.gpu, &(int32_t){0}, NULL));
    both_feed(&t, &s, 62, 31); /* the third page */
    same_pages(&t, &s);
    item = (quire_cuda_step_item){other.gpu, 64};
    assert_status(quire_cuda_step_begin(t.gpu, &item, 1, NULL), QUIRE_E_NO_PAGES);
    assert_gpu(quire_cuda_seq_free(s.gpu));
    assert_status(quire_cuda_seq_free(s.gpu), QUIRE_E_INVALID);
    assert_status(quire_cuda_seq_trim(s.gpu, 0), QUIRE_E_INVALID);
    quire_cuda_seq *child;
    assert_status(quire_cuda_seq_fork(s.gpu, &child, NULL), QUIRE_E_INVALID);
    assert_null(child);
    const quire_rope rope = {0};
    assert_status(quire_cuda_seq_shift(s.gpu, 0, 0, &rope, 1, NULL), QUIRE_E_INVALID);
    const size_t n = quire_cuda_seq_bytes(s.gpu), n_page = quire_cuda_seq_page_bytes(t.gpu, 0);
    uint8_t *bytes = calloc(1, n > n_page ? n : n_page);
    assert_status(quire_cuda_seq_save(s.gpu, bytes, n, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_seq_page_save(s.gpu, 0, bytes, n_page, NULL), QUIRE_E_INVALID);
    assert_status(quire_cuda_seq_page_load(s.gpu, bytes, n_page, NULL), QUIRE_E_INVALID);
    free(bytes);
    assert_int_equal(quire_cuda_seq_length(s.gpu), 0);
    both_feed(&t, &other, 64, 64);
    same_pages(&t, &other);
    twins_close(&t);
}

/* What the device refuses leaves sequences as they were, or as the header says, and the next call
 * goes through. */
static void refused_launches(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 2, 4, 2, 64, "km4:vt4", QUIRE_F16);
    twins_open(&t);
    twin s[2] = {twin_new(&t, 73), twin_new(&t, 74)};
    both_feed(&t, &s[0], 128, 128);
    both_feed(&t, &s[1], 100, 100);
    quire_cuda_pool_info before, after;
    assert_gpu(quire_cuda_pool_get_info(t.gpu, &before, NULL));
    const quire_cuda_step_item items[] = {{s[1].gpu, 100}, {s[0].gpu, 70}};
    cudaStream_t refusing = refusing_stream();
    assert_status(quire_cuda_step_begin(t.gpu, items, 2, refusing), QUIRE_E_DEVICE);
    refusing_stream_free(refusing);
    assert_gpu(quire_cuda_pool_get_info(t.gpu, &after, NULL));
    assert_int_equal(after.free_pages, before.free_pages);
    both_step(&t, s, (const int[]){70, 100}, 2, NULL); /* no page table of the failed step */
    same_pages(&t, &s[0]), same_pages(&t, &s[1]);

    both_feed(&t, &s[0], 58, 58); /* to the end of a page */
    const size_t n = quire_cuda_seq_page_bytes(t.gpu, 4);
    uint8_t *bytes = calloc(1, n);
    refusing = refusing_stream();
    assert_status(quire_cuda_seq_page_load(s[0].gpu, bytes, n, refusing), QUIRE_E_DEVICE);
    refusing_stream_free(refusing);
    free(bytes);
    both_trim(&s[0], 250); /* the raw rows are still there */
    both_feed(&t, &s[0], 30, 1);
    same_pages(&t, &s[0]);

    const quire_rope rope = {.n_rot = 64, .base = 10000};
    refusing = refusing_stream();
    assert_status(quire_cuda_seq_shift(s[1].gpu, 70, 100, &rope, 1, refusing), QUIRE_E_DEVICE);
    refusing_stream_free(refusing);
    assert_int_equal(quire_cuda_seq_length(s[1].gpu), T); /* what the header promises */
    assert_ok(quire_seq_trim(s[1].cpu, T));
    both_step(&t, s, (const int[]){1, 80}, 2, NULL);
    same_pages(&t, &s[0]), same_pages(&t, &s[1]);
    twin_free(&s[0]), twin_free(&s[1]);
    assert_gpu(quire_cuda_pool_get_info(t.gpu, &after, NULL));
    assert_int_equal(after.free_pages, after.n_pages);
    twins_close(&t);
}

/* A pool that is freed when it must not be, during a capture, leaves no error for others. */
static void freed_during_a_capture(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 1, 4, 2, 64, "km4:vt4", QUIRE_F16);
    t.options.n_pages = 1;
    twins_open(&t);
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    quire_cuda_pool_free(t.gpu);
    assert_cuda(cudaGetLastError());
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess)
        assert_cuda(cudaGraphDestroy(graph));
    cudaGetLastError(); /* the refused call has spoilt the capture */
    assert_cuda(cudaStreamDestroy(stream));
    fixture_close(&t.f);
}

/* A value that no codec can hold is counted when its page is packed. */
static void bad_values_are_counted(void **state) {
    (void)state;
    twins t;
    twins_init(&t, 1, 4, 2, 64, "kc4:vt4", QUIRE_F16);
    twins_open(&t);
    twin s = twin_new(&t, 81);
    both_feed(&t, &s, 63, 63);
    const int one = 1;
    buffers b = buffers_new(&t, 0, 1);           /* NaN */
    for (int accept = 0; accept < 2; accept++) { /* first it is not kept: no page is packed */
        begin_gpu(&t, &s, &one, 1, NULL);
        launch_layer(&t, 0, &b, NULL);
        assert_gpu(quire_cuda_step_end(t.gpu, &(int32_t){accept}, NULL));
        quire_cuda_pool_info info;
        assert_gpu(quire_cuda_pool_get_info(t.gpu, &info, NULL));
        assert_int_equal(info.n_bad, accept ? 4 : 0); /* two KV heads, K and V */
    }
    buffers_free(&b);
    quire_cuda_pool_free(t.gpu);
    fixture_close(&t.f);
}

int main(int argc, char **argv) {
    if (gpu_is_missing())
        return LEFT_OUT;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_and_tokens),
        cmocka_unit_test(layers_differ),
        cmocka_unit_test(query_aware_rounding),
        cmocka_unit_test(query_aware_rounding_of_few_bits),
        cmocka_unit_test(rounding_of_a_page),
        cmocka_unit_test(in_a_graph),
        cmocka_unit_test(forks_and_trims),
        cmocka_unit_test(accepted_rows),
        cmocka_unit_test(windows_give_pages_back),
        cmocka_unit_test(shifts_of_kept_pages),
        cmocka_unit_test(other_codecs),
        cmocka_unit_test(context_shifts),
        cmocka_unit_test(pages_change_sides),
        cmocka_unit_test(sequences_come_back),
        cmocka_unit_test(sequences_of_other_pools),
        cmocka_unit_test(empty_places),
        cmocka_unit_test(steps_without_prefill),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refused_launches),
        cmocka_unit_test(freed_during_a_capture),
        cmocka_unit_test(bad_values_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
