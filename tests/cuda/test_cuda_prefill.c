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

#include "cuda_kit.h"

enum { T = QUIRE_PAGE_TOKENS, MOST_SEQS = 40 };

typedef struct shape {
    int n_heads, n_kv, dim;
    quire_pair pair;
    quire_type type, out;
    int sinks, window, keep, rows_hint;
    float softcap, scale;
    bool alibi, sink_logits;
    int n_seqs;
    int before[MOST_SEQS], rows[MOST_SEQS]; /* tokens before the rows */
    float k_scale, v_scale, q_scale, bias;
} shape;

static const quire_pair PAIRS[] = {{QUIRE_CODEC_KM4, QUIRE_CODEC_VT4},
                                   {QUIRE_CODEC_KC4, QUIRE_CODEC_VT4},
                                   {QUIRE_CODEC_KC8, QUIRE_CODEC_VT4},
                                   {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8}};
static const int DIMS[] = {64, 80, 96, 128, 256};

/* Host and device sides of one call. Rows of K and V: (seq, head, token, dim); of q: (row, head,
 * dim). */
typedef struct world {
    shape s;
    int longest, n_pages, n_rows, start[MOST_SEQS + 1];
    size_t record_bytes, n_kv_values, n_out;
    float *k, *v, *q, alibi[64], sink_logits[64];
    uint8_t *records;
    int32_t *pages;
    const uint16_t *order;
    quire_cuda_prefill_plan *plan;
    quire_cuda_prefill_args args;
    void *device[20];
    int n_device;
} world;

static int length_of(const shape *s, int seq) { return s->before[seq] + s->rows[seq]; }
static int sealed(int length) { return length > 0 ? (length - 1) / T : 0; }
static size_t row_of(const world *w, int seq, int head, int token) {
    return (((size_t)seq * (size_t)w->s.n_kv + (size_t)head) * (size_t)w->longest + (size_t)token) *
           (size_t)w->s.dim;
}
static void *keep(world *w, void *memory) {
    assert_true(w->n_device < 20);
    return w->device[w->n_device++] = memory;
}

static shape shape_of(int n_heads, int n_kv, int dim, quire_pair pair) {
    return (shape){.n_heads = n_heads,
                   .n_kv = n_kv,
                   .dim = dim,
                   .pair = pair,
                   .type = QUIRE_F16,
                   .out = QUIRE_F32,
                   .sinks = 4,
                   .n_seqs = 1,
                   .k_scale = 1,
                   .v_scale = 1,
                   .q_scale = 1,
                   .bias = 1};
}

/* Rows and queries; a test may change them before world_seal. */
static void world_fill(world *w, const shape *s, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->s = *s;
    w->longest = T;
    for (int i = 0; i < s->n_seqs; i++) {
        w->longest = length_of(s, i) > w->longest ? length_of(s, i) : w->longest;
        w->start[i + 1] = w->start[i] + s->rows[i];
    }
    w->longest = (w->longest + T - 1) / T * T;
    w->n_rows = w->start[s->n_seqs];
    w->n_kv_values = (size_t)s->n_seqs * (size_t)s->n_kv * (size_t)w->longest * (size_t)s->dim;
    w->n_out = (size_t)w->n_rows * (size_t)s->n_heads * (size_t)s->dim;
    rng r = {seed};
    w->k = malloc(w->n_kv_values * sizeof *w->k), w->v = malloc(w->n_kv_values * sizeof *w->v);
    w->q = malloc(w->n_out * sizeof *w->q);
    rng_fill(&r, w->k, w->n_kv_values, s->k_scale);
    rng_fill(&r, w->v, w->n_kv_values, s->v_scale);
    rng_fill(&r, w->q, w->n_out, s->q_scale);
    for (size_t i = 0; i < w->n_kv_values; i++) /* channels have constants, as models' K do */
        w->k[i] += s->bias * s->k_scale * (float)((int)(i % (size_t)s->dim) * 5 % 7 - 3);
    round_rows(s->type, w->k, w->n_kv_values);
    round_rows(s->type, w->v, w->n_kv_values);
    round_rows(s->type, w->q, w->n_out);
    for (int h = 0; h < s->n_heads; h++) {
        w->alibi[h] = 0.02f / (float)(h + 1);
        w->sink_logits[h] = (float)h - 3.0f;
    }
    w->order = random_order(s->n_kv, s->dim);
}

static quire_page_shape page_shape(const world *w) {
    return (quire_page_shape){w->s.pair, w->s.dim, w->s.dim, w->s.type};
}

/* Raw rows of all sequences on the device, in slots in reverse order; rows beyond a sequence's are
 * NaN. */
static quire_cuda_rows raw_rows(world *w, int room, const int *first, const int *n) {
    const shape *s = &w->s;
    const size_t count = (size_t)(s->n_seqs * s->n_kv * room) * (size_t)s->dim;
    const int64_t head = (int64_t)room * s->dim;
    quire_cuda_rows rows = {NULL, NULL, head * s->n_kv, head, s->dim, head * s->n_kv, head, s->dim};
    for (int side = 0; side < 2; side++) {
        float *x = malloc(count * sizeof *x);
        for (size_t i = 0; i < count; i++)
            x[i] = NAN;
        for (int seq = 0; seq < s->n_seqs; seq++)
            for (int g = 0; g < s->n_kv; g++)
                memcpy(x + (size_t)(s->n_seqs - 1 - seq) * (size_t)(head * s->n_kv) +
                           (size_t)(g * head),
                       (side ? w->v : w->k) + row_of(w, seq, g, first[seq]),
                       (size_t)(n[seq] * s->dim) * sizeof *x);
        uint16_t *narrow = narrowed(s->type, x, count);
        *(side ? &rows.v : &rows.k) = keep(w, gpu_copy(narrow, count * 2));
        free(narrow), free(x);
    }
    return rows;
}

/* Pages packed by the CPU library, at places in random order; everything copied to the device. */
static void world_seal(world *w) {
    const shape *s = &w->s;
    const quire_page_shape page = page_shape(w);
    assert_ok(quire_page_bytes(&page, &w->record_bytes));
    const size_t page_bytes = w->record_bytes * (size_t)s->n_kv;
    const int stride = w->longest / T;
    w->n_pages = s->n_seqs * stride;
    w->records = malloc((size_t)(w->n_pages + 1) * page_bytes);
    memset(w->records, 0xff,
           (size_t)(w->n_pages + 1) * page_bytes); /* scales of unused pages are NaN */
    w->pages = malloc((size_t)w->n_pages * sizeof *w->pages);
    rng r = {42};
    for (int i = 0; i < w->n_pages; i++) {
        const int other = rng_below(&r, i + 1);
        w->pages[i] = w->pages[other];
        w->pages[other] = i;
    }
    float *placed = malloc((size_t)(T * s->dim) * sizeof *placed);
    int own_first[MOST_SEQS], own_n[MOST_SEQS], sink_first[MOST_SEQS], sink_n[MOST_SEQS],
        lengths[MOST_SEQS];
    int32_t slots[MOST_SEQS];
    int room = 1;
    for (int seq = 0; seq < s->n_seqs; seq++) {
        lengths[seq] = length_of(s, seq);
        slots[seq] = s->n_seqs - 1 - seq;
        own_first[seq] = s->before[seq] / T * T;
        own_n[seq] = lengths[seq] - own_first[seq];
        sink_first[seq] = 0;
        sink_n[seq] = lengths[seq] < s->sinks ? lengths[seq] : s->sinks;
        room = own_n[seq] > room ? own_n[seq] : room;
        for (int i = 0; i < sealed(lengths[seq]); i++)
            for (int head = 0; head < s->n_kv; head++) {
                const size_t at = row_of(w, seq, head, i * T);
                rows_into_order(s->pair.k, w->order + head * s->dim, s->dim, w->k + at, placed);
                assert_ok(quire_page_encode(&page, placed, w->v + at, i == 0 ? s->sinks : 0,
                                            w->records +
                                                (size_t)w->pages[seq * stride + i] * page_bytes +
                                                (size_t)head * w->record_bytes));
            }
    }
    free(placed);

    quire_cuda_prefill_options o;
    quire_cuda_prefill_options_default(&o);
    o.n_heads = s->n_heads, o.n_kv_heads = s->n_kv, o.k_dim = o.v_dim = s->dim;
    o.pair = s->pair, o.raw = s->type, o.out = s->out, o.scale = s->scale, o.sinks = s->sinks;
    o.window = s->window, o.keep = s->keep, o.softcap = s->softcap, o.rows_hint = s->rows_hint;
    assert_gpu(quire_cuda_prefill_create(&w->plan, &o));
    uint16_t *q = narrowed(s->type, w->q, w->n_out);
    w->args = (quire_cuda_prefill_args){
        .n_seqs = s->n_seqs,
        .q = keep(w, gpu_copy(q, w->n_out * 2)),
        .out = keep(w, gpu_new(w->n_out * 4, 0xff)),
        .lse = keep(w, gpu_new((size_t)(w->n_rows * s->n_heads) * 4, 0xff)),
        .starts = keep(w, gpu_copy(w->start, (size_t)(s->n_seqs + 1) * 4)),
        .lengths = keep(w, gpu_copy(lengths, (size_t)s->n_seqs * 4)),
        .pages = keep(w, gpu_copy(w->pages, (size_t)w->n_pages * 4)),
        .pages_stride = stride,
        .records = {keep(w, gpu_copy(w->records, (size_t)(w->n_pages + 1) * page_bytes)),
                    page_bytes, w->record_bytes},
        .own = raw_rows(w, room, own_first, own_n),
        .sink = raw_rows(w, s->sinks ? s->sinks : 1, sink_first, sink_n),
        .slots = keep(w, gpu_copy(slots, (size_t)s->n_seqs * 4)),
        .k_order = keep(w, gpu_copy(w->order, (size_t)(s->n_kv * s->dim) * 2)),
        .alibi = s->alibi ? keep(w, gpu_copy(w->alibi, (size_t)s->n_heads * 4)) : NULL,
        .sink_logits =
            s->sink_logits ? keep(w, gpu_copy(w->sink_logits, (size_t)s->n_heads * 4)) : NULL,
        .workspace = keep(w, gpu_new(quire_cuda_prefill_workspace(w->plan), 0xff)),
    };
    free(q);
}

static void world_free(world *w) {
    for (int i = 0; i < w->n_device; i++)
        cudaFree(w->device[i]);
    quire_cuda_prefill_free(w->plan);
    free(w->k), free(w->v), free(w->q), free(w->records), free(w->pages);
}

/* ------------------------------------------------------------------ the oracle */

typedef struct outcome {
    double error, norm; /* squares, over all rows */
    double noise;       /* of logits, mean of squares */
    double lse_error, worst;
    int n_rows;
} outcome;

/* All sealed pages of a head, decoded: (tokens, dim). */
static void decode_pages(const world *w, int seq, int head, float *k, float *v) {
    const shape *s = &w->s;
    const quire_page_shape page = page_shape(w);
    float *placed = malloc((size_t)(T * s->dim) * sizeof *placed);
    for (int i = 0; i < sealed(length_of(s, seq)); i++) {
        const size_t id = (size_t)w->pages[seq * (w->longest / T) + i],
                     at = (size_t)(i * T * s->dim);
        assert_ok(quire_page_decode(
            &page, w->records + (id * (size_t)s->n_kv + (size_t)head) * w->record_bytes, placed,
            v + at));
        rows_from_order(s->pair.k, w->order + head * s->dim, s->dim, placed, k + at);
    }
    free(placed);
}

static void compare_row(const world *w, int seq, int head, int h, int row, const float *k,
                        const float *v, const float *out, float lse, double *logit, outcome *to) {
    const shape *s = &w->s;
    const int dim = s->dim, i = s->before[seq] + row;
    const double scale = s->scale > 0 ? (double)s->scale : 1 / sqrt(dim);
    const float *q =
        w->q + ((size_t)(w->start[seq] + row) * (size_t)s->n_heads + (size_t)h) * (size_t)dim;
    double top = s->sink_logits ? (double)w->sink_logits[h] : -INFINITY, sum = 0, noise = 0,
           largest = 0;
    double *wanted = calloc((size_t)dim, sizeof *wanted),
           *terms = calloc((size_t)i + 1, sizeof *terms);
    for (int d = 0; d < dim; d++)
        largest = fmax(largest, fabs((double)q[d]));
    const double tiny = 1.7e-8 * largest * sqrt(dim) * scale;
    for (int t = 0; t <= i; t++) {
        const bool raw = t / T == i / T || t < s->sinks;
        const float *key = raw ? w->k + row_of(w, seq, head, t) : k + t * dim;
        double x = 0, squares = 0;
        for (int d = 0; d < dim; d++) {
            const double term = (double)q[d] * (double)key[d];
            x += term;
            squares += term * term;
        }
        x *= scale;
        if (s->softcap > 0)
            x = (double)s->softcap * tanh(x / (double)s->softcap);
        if (s->alibi)
            x += (double)w->alibi[h] * (t - i);
        logit[t] = s->window == 0 || i - t < s->window || t < s->keep ? x : -INFINITY;
        terms[t] = raw ? 0 : FP16_ROUNDING * FP16_ROUNDING * squares * scale * scale + tiny * tiny;
        top = fmax(top, logit[t]);
    }
    double seen = 0;
    if (s->sink_logits)
        sum = exp((double)w->sink_logits[h] - top);
    for (int t = 0; t <= i; t++) {
        const bool raw = t / T == i / T || t < s->sinks;
        const float *value = raw ? w->v + row_of(w, seq, head, t) : v + t * dim;
        const double p = exp(logit[t] - top);
        sum += p;
        seen += p;
        noise += p * terms[t];
        for (int d = 0; d < dim; d++)
            wanted[d] += p * (double)value[d];
    }
    double error = 0, norm = 0;
    for (int d = 0; d < dim; d++) {
        const double x = wanted[d] / sum;
        norm += x * x;
        error += (out[d] - x) * (out[d] - x);
    }
    free(wanted), free(terms);
    if (!(error < INFINITY))
        fail_msg("sequence %d, row %d, head %d: a result is not finite", seq, row, h);
    to->error += error;
    to->norm += norm;
    to->noise += noise / seen;
    to->worst = fmax(to->worst, norm > 0 ? error / norm : 0);
    to->lse_error = fmax(to->lse_error, fabs((double)lse - (top + log(sum))));
    to->n_rows++;
}

static outcome compare(const world *w, const float *out, const float *lse) {
    const shape *s = &w->s;
    const size_t n = (size_t)(w->longest * s->dim);
    const int group = s->n_heads / s->n_kv;
    float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    double *logit = malloc((size_t)w->longest * sizeof *logit);
    outcome o = {0};
    for (int seq = 0; seq < s->n_seqs; seq++)
        for (int head = 0; head < s->n_kv; head++) {
            decode_pages(w, seq, head, k, v);
            /* All rows of few; of many, those around pages' and tiles' edges, and some. */
            for (int row = 0; row < s->rows[seq]; row++) {
                const int i = s->before[seq] + row;
                if (s->rows[seq] > 200 && row > 3 && row < s->rows[seq] - 3 && i % T > 1 &&
                    i % T < T - 1 && row % 43)
                    continue;
                for (int g = 0; g < group; g++) {
                    const int h = head * group + g;
                    const size_t at =
                        (size_t)(w->start[seq] + row) * (size_t)s->n_heads + (size_t)h;
                    compare_row(w, seq, head, h, row, k, v, out + at * (size_t)s->dim, lse[at],
                                logit, &o);
                }
            }
        }
    o.noise = o.n_rows ? o.noise / o.n_rows : 0;
    free(k), free(v), free(logit);
    return o;
}

static void run(const world *w, float *out, float *lse) {
    assert_cuda(cudaMemset(w->args.out, 0xff, w->n_out * 4));
    assert_gpu(quire_cuda_prefill(w->plan, &w->args, NULL));
    gpu_read(out, w->args.out, w->n_out * sizeof *out);
    gpu_read(lse, w->args.lse, (size_t)(w->n_rows * w->s.n_heads) * sizeof *lse);
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
    world_seal(&w);
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
    world_seal(&w);
    float *first = malloc(w.n_out * sizeof *first), *again = malloc(w.n_out * sizeof *again),
          *lse = malloc(w.n_out * sizeof *lse);
    run(&w, first, lse);
    for (int i = 0; i < 10; i++) {
        run(&w, again, lse);
        assert_memory_equal(first, again, w.n_out * sizeof *first);
    }
    const size_t page_bytes = w.record_bytes * (size_t)s.n_kv;
    uint8_t *moved = malloc((size_t)(w.n_pages + 1) * page_bytes);
    for (int i = 0; i < w.n_pages; i++) {
        const int to = (w.pages[i] + 7) % (w.n_pages + 1);
        memcpy(moved + (size_t)to * page_bytes, w.records + (size_t)w.pages[i] * page_bytes,
               page_bytes);
        w.pages[i] = to;
    }
    assert_cuda(cudaMemcpy(w.args.records.base, moved, (size_t)(w.n_pages + 1) * page_bytes,
                           cudaMemcpyHostToDevice));
    assert_cuda(
        cudaMemcpy((void *)w.args.pages, w.pages, (size_t)w.n_pages * 4, cudaMemcpyHostToDevice));
    run(&w, again, lse);
    assert_memory_equal(first, again, w.n_out * sizeof *first);
    free(first), free(again), free(lse), free(moved);
    world_free(&w);
}

/* A captured graph serves other rows and lengths: they are read on the device. */
static void in_a_graph(void **state) {
    (void)state;
    shape s = shape_of(8, 2, 128, PAIRS[0]);
    batch(&s, 2, (const int[][2]){{900, 60}, {640, 30}}, 2);
    world w;
    world_fill(&w, &s, 6);
    world_seal(&w);
    float *direct = malloc(w.n_out * sizeof *direct),
          *replayed = malloc(w.n_out * sizeof *replayed), *lse = malloc(w.n_out * sizeof *lse);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_gpu(quire_cuda_prefill(w.plan, &w.args, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    /* the first queries stay in the same pages */
    const int32_t starts[] = {0, 12, 26}, lengths[] = {910, 660};
    assert_cuda(cudaMemcpy((void *)w.args.starts, starts, sizeof starts, cudaMemcpyHostToDevice));
    assert_cuda(
        cudaMemcpy((void *)w.args.lengths, lengths, sizeof lengths, cudaMemcpyHostToDevice));
    run(&w, direct, lse);
    assert_cuda(cudaMemset(w.args.out, 0xff, w.n_out * 4));
    assert_cuda(cudaGraphLaunch(exec, stream));
    gpu_read(replayed, w.args.out, w.n_out * sizeof *replayed);
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
                world_seal(&w);
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
                world_seal(&w);
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
        world_seal(&w);
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
        world_seal(&w);
        run(&w, clean, clean_lse);
        const int row = 50 * s.n_heads + 4; /* sequence 1, its row 10, head 4 */
        w.q[row * s.dim + 11] = bad[i];
        uint16_t *q = narrowed(s.type, w.q, w.n_out);
        assert_cuda(cudaMemcpy((void *)w.args.q, q, w.n_out * 2, cudaMemcpyHostToDevice));
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
        world_seal(&w);
        assert_gpu(quire_cuda_prefill(w.plan, &w.args, NULL));
        if (type == QUIRE_F32) {
            wanted = malloc(w.n_out * sizeof *wanted);
            gpu_read(wanted, w.args.out, w.n_out * sizeof *wanted);
        } else {
            uint16_t *out = malloc(w.n_out * 2),
                     *rounded_out = narrowed((quire_type)type, wanted, w.n_out);
            gpu_read(out, w.args.out, w.n_out * 2);
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
