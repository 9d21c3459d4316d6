/* Pages that are addressed by cell, against a pool bit for bit, and against dense fp64 attention
 * over the values that each query is supposed to see. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/fp16.h"
#include "kit.h"
#include "ledger.h"
#include "quire_cells.h"

/* ------------------------------------------------------------------ a grid of cells */

typedef struct grid {
    quire_cells *cells;
    quire_sight *sight;
    quire_cells_options options;
    quire_layer layer[2];
    int n_workers;
} grid;

static void grid_init(grid *g, int n_layers, int h, int kv, int dk, int dv, const char *policy,
                      int n_streams, int n_cells) {
    memset(g, 0, sizeof *g);
    quire_cells_options_default(&g->options);
    assert_ok(quire_policy_parse(policy, &g->options.policy));
    for (int i = 0; i < n_layers; i++) {
        quire_layer_default(&g->layer[i]);
        g->layer[i].n_heads = h;
        g->layer[i].n_kv_heads = kv;
        g->layer[i].k_dim = dk;
        g->layer[i].v_dim = dv;
        g->layer[i].k_order = random_order(kv, dk);
    }
    g->options.layers = g->layer;
    g->options.n_layers = n_layers;
    g->options.n_streams = n_streams;
    g->options.n_cells = n_cells;
    g->n_workers = 1;
}

static void grid_open(grid *g) {
    g->options.layers = g->layer;
    assert_ok(quire_cells_create(&g->cells, &g->options));
    assert_ok(quire_sight_create(g->cells, &g->sight));
}

static void grid_close(grid *g) {
    quire_sight_free(g->sight);
    quire_cells_free(g->cells);
}

/* ------------------------------------------------------------------ workers */

typedef struct job {
    grid *g;
    int layer, ith;
    quire_side side;
    quire_rows rows;
    const quire_cells_attend_args *attend; /* NULL: write */
    quire_status status;
    char error[200];
} job;

static void *run(void *user) {
    job *j = user;
    j->status =
        j->attend
            ? quire_cells_attend(j->g->cells, j->layer, j->attend, j->ith, j->g->n_workers)
            : quire_cells_write(j->g->cells, j->layer, j->side, j->rows, j->ith, j->g->n_workers);
    snprintf(j->error, sizeof j->error, "%s", quire_last_error());
    return NULL;
}

static void run_all(job common) {
    job each[8];
    pthread_t thread[8];
    for (int i = 0; i < common.g->n_workers; i++) {
        each[i] = common;
        each[i].ith = i;
        if (i > 0)
            assert_int_equal(pthread_create(&thread[i], NULL, run, &each[i]), 0);
    }
    run(&each[0]);
    for (int i = 1; i < common.g->n_workers; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < common.g->n_workers; i++)
        if (each[i].status != QUIRE_OK)
            fail_msg("worker %d: %s", i, each[i].error);
}

static void write_side(grid *g, int layer, quire_side side, const int64_t *cell, int n,
                       const float *rows) {
    assert_ok(quire_cells_plan(g->cells, layer, side, cell, n, 0));
    run_all((job){.g = g, .layer = layer, .side = side, .rows = {rows, QUIRE_F32, 0}});
}

/* ------------------------------------------------------------------ the same bits as a pool */

/* One sequence, cells in order, a causal mask in f16 of `n_cells` columns. */
static void step_cells(grid *g, const source *s, int first, int n, uint16_t *mask, int n_cells,
                       float *out /* (layers, n, H, DV) */) {
    const quire_layer *l = &g->layer[0];
    const size_t kn = (size_t)(l->n_kv_heads * l->k_dim), vn = (size_t)(l->n_kv_heads * l->v_dim),
                 qn = (size_t)(l->n_heads * l->k_dim), on = (size_t)(l->n_heads * l->v_dim);
    float *k = malloc((size_t)n * kn * 4), *v = malloc((size_t)n * vn * 4),
          *q = malloc((size_t)n * qn * 4);
    int64_t *cell = malloc((size_t)n * sizeof *cell);
    for (int r = 0; r < n; r++) {
        cell[r] = first + r;
        for (int c = 0; c < n_cells; c++)
            mask[(size_t)r * (size_t)n_cells + (size_t)c] = c <= first + r ? 0 : 0xfc00;
    }
    assert_ok(quire_sight_set(g->sight, &(quire_sight_args){.n_streams = 1,
                                                            .rows_per_stream = n,
                                                            .n_cells = n_cells,
                                                            .mask = mask,
                                                            .mask_type = QUIRE_F16,
                                                            .row_stride = (size_t)n_cells,
                                                            .own = cell}));
    for (int i = 0; i < g->options.n_layers; i++) {
        for (int r = 0; r < n; r++) {
            source_k(s, l, i, first + r, k + (size_t)r * kn);
            source_v(s, l, i, first + r, v + (size_t)r * vn);
            source_q(s, l, i, first + r, q + (size_t)r * qn);
        }
        write_side(g, i, QUIRE_SIDE_K, cell, n, k);
        write_side(g, i, QUIRE_SIDE_V, cell, n, v);
        run_all(
            (job){.g = g,
                  .layer = i,
                  .attend = &(quire_cells_attend_args){.sight = g->sight,
                                                       .n_heads = l->n_heads,
                                                       .q = q,
                                                       .q_type = QUIRE_F32,
                                                       .out = out + (size_t)i * (size_t)n * on}});
    }
    free(k), free(v), free(q), free(cell);
}

static void compare_with_pool(const char *kv, int h, int g_heads, int dk, int dv, int n_workers,
                              quire_type raw) {
    enum { CELLS = 1408, MOST = 512 };
    static const int chunks[] = {100, 1, 1, 27, 64, 300, 1, 62, 1, 1, 512, 9, 1, 64, 130};
    fixture f;
    grid g;
    fixture_init(&f, 2, h, g_heads, dk, dv, kv);
    f.options.raw = raw;
    fixture_open(&f);
    grid_init(&g, 2, h, g_heads, dk, dv, kv, 1, CELLS);
    g.options.raw = raw;
    g.n_workers = n_workers;
    grid_open(&g);
    const source s = source_default(7);
    quire_seq *seq;
    assert_ok(quire_seq_create(f.pool, &seq));
    const size_t row = (size_t)(h * dv);
    float *wanted = malloc(2 * MOST * row * 4), *got = malloc(2 * MOST * row * 4);
    uint16_t *mask = malloc(MOST * CELLS * sizeof *mask);
    for (int i = 0, first = 0; i < (int)(sizeof chunks / sizeof *chunks); first += chunks[i++]) {
        const int n = chunks[i];
        const step_item item = {seq, &s, n};
        const int seen = (first + n + 255) / 256 * 256; /* as llama.cpp pads */
        assert_ok(step(&f, &item, 1, &(step_options){0}, wanted));
        step_cells(&g, &s, first, n, mask, seen < CELLS ? seen : CELLS, got);
        for (size_t j = 0; j < 2 * (size_t)n * row; j++)
            if (memcmp(&wanted[j], &got[j], 4) != 0)
                fail_msg("%s %dx%dx%d/%d, %d rows at %d: layer %zu, row %zu: %.9g, pool %.9g", kv,
                         h, g_heads, dk, dv, n, first, j / ((size_t)n * row), j / row % (size_t)n,
                         (double)got[j], (double)wanted[j]);
    }
    for (int i = 0; i < 2; i++) {
        quire_cells_stats stats;
        assert_ok(quire_cells_get_stats(g.cells, i, &stats));
        assert_int_equal(stats.fallbacks, 0);
        assert_int_equal(stats.reopened_pages, 0);
        assert_int_equal(stats.masked_pages, 0);
        assert_true(stats.packed_read > 0 && stats.raw_read > 0);
    }
    free(wanted), free(got), free(mask);
    fixture_close(&f);
    grid_close(&g);
}

static int sweep;

static void same_bits_as_a_pool(void **state) {
    (void)state;
    static const char *const pairs[] = {"none", "k8v8", "k8v4",     "k4v4",    "k3v3",   "tq4",
                                        "mlx4", "q4_0", "tqp4:vt2", "raw:vt4", "km4:raw"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (sweep_takes(&sweep, 3)) {
            compare_with_pool(pairs[i], 6, 2, 64, 64, 1, QUIRE_F16);
            compare_with_pool(pairs[i], 4, 1, 128, 64, 3, QUIRE_BF16);
        }
}

/* ------------------------------------------------------------------ scattered cells, against fp64
 */

enum { N_CELLS = 384, STREAMS = 2, H = 4, G = 2, D = 64 };

/* What the test knows about its cells. */
typedef struct model {
    float *k, *v; /* (cells of all streams, G, D): the rows that were written */
    int *owner;   /* the sequence of a cell, or -1 */
    int *age;     /* when it was written: a query sees older cells of its sequence */
    int clock;
} model;

static float as_f16(float x) { return quire__f16_to_f32(quire__f32_to_f16(x)); }

/* fp64 attention of one query row over the cells its mask shows. Values of the page of its own cell
 * are the rows as f16, of all other pages what quire_cells_read says. */
static void oracle(const float *q, const float *mask, float slope, const float *k, const float *v,
                   int n, double scale, double softcap, const float *sink, double *out) {
    double logit[N_CELLS], most = sink ? (double)*sink : -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        if (isinf(mask[t])) {
            logit[t] = -INFINITY;
            continue;
        }
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += (double)q[d] * (double)k[(size_t)t * G * D + (size_t)d];
        dot *= scale;
        logit[t] =
            (softcap > 0 ? softcap * tanh(dot / softcap) : dot) + (double)slope * (double)mask[t];
        most = fmax(most, logit[t]);
    }
    for (int d = 0; d < D; d++)
        out[d] = 0;
    if (isinf(most))
        return;
    sum = sink ? exp((double)*sink - most) : 0;
    for (int t = 0; t < n; t++) {
        const double w = exp(logit[t] - most);
        sum += w;
        for (int d = 0; d < D && w > 0; d++)
            out[d] += w * (double)v[(size_t)t * G * D + (size_t)d];
    }
    for (int d = 0; d < D; d++)
        out[d] /= sum;
}

typedef struct look { /* features of a case */
    bool bias, sinks;
    float softcap;
} look;

/* Writes n rows of some sequences into cells chosen by `pick`, then attends them. */
static double scattered_step(grid *g, model *m, rng *r, const int64_t *cell, const int *owner,
                             int n_per_stream, look features) {
    const int n = n_per_stream * STREAMS;
    float *k = malloc((size_t)n * G * D * 4), *v = malloc((size_t)n * G * D * 4),
          *q = malloc((size_t)n * H * D * 4), *out = malloc((size_t)n * H * D * 4),
          *mask = malloc((size_t)n * N_CELLS * 4);
    float *seen_k = malloc((size_t)STREAMS * N_CELLS * G * D * 4),
          *seen_v = malloc((size_t)STREAMS * N_CELLS * G * D * 4), slopes[H], sinks[H];
    double *wanted = malloc((size_t)n * H * D * sizeof *wanted);
    rng_fill(r, k, (size_t)n * G * D, 1);
    rng_fill(r, v, (size_t)n * G * D, 1);
    rng_fill(r, q, (size_t)n * H * D, 1);
    rng_fill(r, sinks, H, 1);
    for (int h = 0; h < H; h++)
        slopes[h] = features.bias ? 0.25f / (float)(h + 1) : 1;
    for (int i = 0; i < n; i++) {
        memcpy(m->k + cell[i] * G * D, k + (size_t)i * G * D, G * D * 4);
        memcpy(m->v + cell[i] * G * D, v + (size_t)i * G * D, G * D * 4);
        m->owner[cell[i]] = owner[i];
        m->age[cell[i]] = m->clock++;
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < N_CELLS; c++) {
            const int at = i / n_per_stream * N_CELLS + c;
            const int distance = m->age[cell[i]] - m->age[at];
            const bool sees = m->owner[at] == owner[i] && distance >= 0;
            mask[(size_t)i * N_CELLS + (size_t)c] = !sees           ? -INFINITY
                                                    : features.bias ? -(float)(distance % 16)
                                                                    : 0;
        }
    assert_ok(quire_sight_set(g->sight,
                              &(quire_sight_args){.n_streams = STREAMS,
                                                  .rows_per_stream = n_per_stream,
                                                  .n_cells = N_CELLS,
                                                  .mask = mask,
                                                  .mask_type = QUIRE_F32,
                                                  .row_stride = N_CELLS,
                                                  .stream_stride = (size_t)n_per_stream * N_CELLS,
                                                  .own = cell}));
    write_side(g, 0, QUIRE_SIDE_K, cell, n, k);
    write_side(g, 0, QUIRE_SIDE_V, cell, n, v);
    const quire_cells_attend_args args = {.sight = g->sight,
                                          .n_heads = H,
                                          .q = q,
                                          .q_type = QUIRE_F32,
                                          .out = out,
                                          .softcap = features.softcap,
                                          .mask_slopes = features.bias ? slopes : NULL,
                                          .sink_logits = features.sinks ? sinks : NULL};
    run_all((job){.g = g, .layer = 0, .attend = &args});
    for (int side = 0; side < 2; side++)
        assert_ok(quire_cells_read(g->cells, 0, side ? QUIRE_SIDE_V : QUIRE_SIDE_K, 0,
                                   STREAMS * N_CELLS, QUIRE_F32, side ? seen_v : seen_k));
    for (int i = 0; i < n; i++) {
        const int first = i / n_per_stream * N_CELLS, own = (int)(cell[i] / 64 * 64);
        float *kc = malloc((size_t)N_CELLS * G * D * 4), *vc = malloc((size_t)N_CELLS * G * D * 4);
        memcpy(kc, seen_k + (size_t)first * G * D, (size_t)N_CELLS * G * D * 4);
        memcpy(vc, seen_v + (size_t)first * G * D, (size_t)N_CELLS * G * D * 4);
        quire_cells_stats stats;
        assert_ok(quire_cells_get_stats(g->cells, 0, &stats));
        /* A page that was reopened is raw, but has been packed before: what it reads is what it is.
         * A page that this step completed is raw for its own rows. */
        for (int c = own; stats.reopened_pages == 0 && c < own + 64; c++)
            for (int d = 0; d < G * D; d++) {
                kc[(size_t)(c - first) * G * D + (size_t)d] =
                    as_f16(m->k[(size_t)c * G * D + (size_t)d]);
                vc[(size_t)(c - first) * G * D + (size_t)d] =
                    as_f16(m->v[(size_t)c * G * D + (size_t)d]);
            }
        for (int h = 0; h < H; h++)
            oracle(q + ((size_t)i * H + (size_t)h) * D, mask + (size_t)i * N_CELLS, slopes[h],
                   kc + h / (H / G) * D, vc + h / (H / G) * D, N_CELLS, 1 / sqrt(D),
                   (double)features.softcap, features.sinks ? &sinks[h] : NULL,
                   wanted + ((size_t)i * H + (size_t)h) * D);
        free(kc), free(vc);
    }
    const double error = relative_error(out, wanted, (size_t)n * H * D);
    free(k), free(v), free(q), free(out), free(mask), free(seen_k), free(seen_v), free(wanted);
    return error;
}

static void scattered_cells(void **state) {
    (void)state;
    static const char *const pairs[] = {"none", "k8v8", "k8v4", "k4v4", "tq4", "mlx4"};
    static const look features[] = {{0}, {.sinks = true}, {.softcap = 3}, {.bias = true}};
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (size_t f = 0; f < sizeof features / sizeof *features; f++) {
            if (!sweep_takes(&sweep, 5))
                continue;
            grid g;
            rng r = {p * 31 + f};
            grid_init(&g, 1, H, G, D, D, pairs[p], STREAMS, N_CELLS);
            g.n_workers = 2;
            grid_open(&g);
            model m = {calloc(STREAMS * N_CELLS * G * D, 4), calloc(STREAMS * N_CELLS * G * D, 4),
                       malloc(STREAMS * N_CELLS * sizeof(int)),
                       calloc(STREAMS * N_CELLS, sizeof(int)), 1};
            int free_cell[STREAMS][N_CELLS];
            for (int c = 0; c < STREAMS * N_CELLS; c++)
                m.owner[c] = -1;
            /* Cells are handed out nearly in order, to three sequences in each stream. */
            for (int s = 0; s < STREAMS; s++)
                for (int c = 0; c < N_CELLS; c++)
                    free_cell[s][c] = c;
            for (int s = 0; s < STREAMS; s++)
                for (int c = 0; c + 8 < N_CELLS; c++) {
                    const int other = c + rng_below(&r, 8), x = free_cell[s][c];
                    free_cell[s][c] = free_cell[s][other], free_cell[s][other] = x;
                }
            quire_pair pair = g.options.policy.pair;
            const bool halved_k = false;
            for (int used = 0; used < N_CELLS;) {
                static const int sizes[] = {3, 90, 1, 64, 5};
                int n = sizes[rng_below(&r, 5)];
                n = n < N_CELLS - used ? n : N_CELLS - used;
                int64_t cell[2 * 90];
                int owner[2 * 90];
                for (int s = 0; s < STREAMS; s++)
                    for (int i = 0; i < n; i++) {
                        cell[s * n + i] = s * N_CELLS + free_cell[s][used + i];
                        owner[s * n + i] = n > 5 ? used % 3 : rng_below(&r, 3);
                    }
                used += n;
                const double error = scattered_step(&g, &m, &r, cell, owner, n, features[f]);
                const double bound =
                    attend_bound(pair, D, 1, halved_k, halved_k) * (1 + 1 / sqrt(n * STREAMS * H)) +
                    FP16_ROUNDING * 2;
                if (!(error <= bound))
                    fail_msg("%s, case %zu, %d rows, %d cells: error %.2e, bound %.2e", pairs[p], f,
                             n, used, error, bound);
            }
            grid_close(&g);
            free(m.k), free(m.v), free(m.owner), free(m.age);
        }
}

/* ------------------------------------------------------------------ rows in and out */

static void fill(grid *g, rng *r, int64_t first, int n, float *k, float *v) {
    int64_t *cell = malloc((size_t)n * sizeof *cell);
    for (int i = 0; i < n; i++)
        cell[i] = first + i;
    rng_fill(r, k, (size_t)n * G * D, 1);
    rng_fill(r, v, (size_t)n * G * D, 1);
    write_side(g, 0, QUIRE_SIDE_K, cell, n, k);
    write_side(g, 0, QUIRE_SIDE_V, cell, n, v);
    free(cell);
}

static float k_rows[256 * G * D], v_rows[256 * G * D], back[256 * G * D];

/* Reading gives what a page record of these rows decodes to, open rows as f16, and zeros beyond. */
static void reads_what_pages_hold(void **state) {
    (void)state;
    grid g;
    rng r = {3};
    grid_init(&g, 1, H, G, D, D, "k8v4", 1, 256);
    grid_open(&g);
    fill(&g, &r, 0, 100, k_rows, v_rows);
    fill(&g, &r, 100, 60, k_rows + 100 * G * D, v_rows + 100 * G * D);
    const quire_page_shape shape = {g.options.policy.pair, D, D, QUIRE_F16};
    size_t bytes;
    assert_ok(quire_page_bytes(&shape, &bytes));
    uint8_t *page = malloc(bytes);
    for (int side = 0; side < 2; side++) {
        const float *rows = side ? v_rows : k_rows;
        assert_ok(quire_cells_read(g.cells, 0, side ? QUIRE_SIDE_V : QUIRE_SIDE_K, 0, 256,
                                   QUIRE_F32, back));
        for (int p = 0; p < 4; p++)
            for (int h = 0; h < G; h++) {
                float k[64 * D], v[64 * D], kd[64 * D], vd[64 * D];
                for (int t = 0; t < 64; t++)
                    for (int d = 0; d < D; d++) {
                        k[t * D + d] = as_f16(k_rows[((p * 64 + t) * G + h) * D + d]);
                        v[t * D + d] = as_f16(v_rows[((p * 64 + t) * G + h) * D + d]);
                    }
                const int sinks = p == 0 ? 4 : 0;
                assert_ok(quire_page_encode(&shape, k, v, sinks, page));
                assert_ok(quire_page_decode(&shape, page, kd, vd));
                for (int t = 0; t < 64; t++)
                    for (int d = 0; d < D; d++) {
                        const int c = p * 64 + t;
                        const float raw = as_f16(rows[(c * G + h) * D + d]),
                                    packed = (side ? vd : kd)[t * D + d];
                        const float want = c >= 160 ? 0 : p == 2 || t < sinks ? raw : packed;
                        if (back[(c * G + h) * D + d] != want)
                            fail_msg("side %d, cell %d: %g, not %g", side, c,
                                     (double)back[(c * G + h) * D + d], (double)want);
                    }
            }
    }
    free(page);
    grid_close(&g);
}

/* Cell by cell, sides in turn, as all pages at once. */
static void same_in_parts(grid *g) {
    static float whole[2][256 * G * D];
    for (int side = 0; side < 2; side++)
        assert_ok(quire_cells_read(g->cells, 0, side ? QUIRE_SIDE_V : QUIRE_SIDE_K, 0, 256,
                                   QUIRE_F32, whole[side]));
    for (int cell = 0; cell < 256; cell++)
        for (int side = 0; side < 2; side++) {
            assert_ok(quire_cells_read(g->cells, 0, side ? QUIRE_SIDE_V : QUIRE_SIDE_K, cell, 1,
                                       QUIRE_F32, back));
            assert_memory_equal(back, whole[side] + cell * G * D, G * D * sizeof *back);
        }
}

/* What is kept of a page that is read in parts does not outlive a change of the page. */
static void reads_in_parts(void **state) {
    (void)state;
    grid g;
    rng r = {31};
    grid_init(&g, 1, H, G, D, D, "k8v4", 1, 256);
    g.options.n_streams = 2;
    grid_open(&g);
    fill(&g, &r, 0, 200, k_rows, v_rows);
    same_in_parts(&g);
    const int64_t last = 255, cell = 63; /* read last by same_in_parts, and in a packed page */
    write_side(&g, 0, QUIRE_SIDE_V, &last, 1, v_rows + 7 * G * D);
    same_in_parts(&g);
    write_side(&g, 0, QUIRE_SIDE_K, &cell, 1, k_rows + 9 * G * D);
    same_in_parts(&g);
    fill(&g, &r, 256, 256, k_rows, v_rows);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 255, 1, QUIRE_F32, back));
    assert_ok(quire_cells_copy(g.cells, 0, QUIRE_SIDE_K, 256, 0, 256));
    same_in_parts(&g);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 3, 1, QUIRE_F32, back));
    assert_ok(quire_cells_clear(g.cells));
    same_in_parts(&g);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 3, 1, QUIRE_F32, back));
    assert_true(back[0] == 0);
    grid_close(&g);
}

/* A write to a packed page reopens it; its other cells keep their packed values, the written one is
 * exact until the page is packed again by a write elsewhere. */
static void reopens(void **state) {
    (void)state;
    grid g;
    rng r = {4};
    quire_cells_stats stats;
    float before[128 * G * D];
    grid_init(&g, 1, H, G, D, D, "k4v4", 1, 256);
    grid_open(&g);
    fill(&g, &r, 0, 128, k_rows, v_rows);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 0, 128, QUIRE_F32, before));
    float row[2][G * D];
    fill(&g, &r, 70, 1, row[0], row[1]);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 0, 128, QUIRE_F32, back));
    for (int c = 0; c < 128; c++)
        for (int d = 0; d < G * D; d++) {
            const float want = c == 70  ? as_f16(row[0][d])
                               : c < 64 ? before[c * G * D + d]
                                        : as_f16(before[c * G * D + d]);
            assert_true(back[c * G * D + d] == want);
        }
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.reopened_pages, 2); /* K and V */
    assert_true(stats.open_bytes == 2 * 64 * G * D * 2);
    fill(&g, &r, 71, 1, row[0], row[1]); /* still there: not packed, not counted again */
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.reopened_pages, 2);
    fill(&g, &r, 130, 1, row[0], row[1]);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 64, 64, QUIRE_F32, back));
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.sealed_pages, 2 * 3);
    grid_close(&g);
}

/* A write that not all workers finished is as if it had never been planned. */
static void takes_back_unfinished_writes(void **state) {
    (void)state;
    grid g;
    rng r = {5};
    quire_cells_stats a, b;
    float before[256 * G * D];
    static const int firsts[] = {10, 40, 64, 100};
    for (int i = 0; i < 4; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            grid_init(&g, 1, H, G, D, D, in_place ? "none" : "k8v4", 1, 256);
            grid_open(&g);
            fill(&g, &r, 0, 100, k_rows, v_rows);
            assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_V, 0, 256, QUIRE_F32, before));
            assert_ok(quire_cells_get_stats(g.cells, 0, &a));
            int64_t cell[128];
            for (int j = 0; j < 128; j++)
                cell[j] = firsts[i] + j;
            assert_ok(quire_cells_plan(g.cells, 0, QUIRE_SIDE_V, cell, 128, 0));
            if (i % 2 == 0 && !in_place) /* one of two workers */
                assert_ok(quire_cells_write(g.cells, 0, QUIRE_SIDE_V,
                                            (quire_rows){k_rows, QUIRE_F32, 0}, 0, 2));
            assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_V, 0, 256, QUIRE_F32, back));
            assert_ok(quire_cells_get_stats(g.cells, 0, &b));
            assert_int_equal(a.packed_bytes, b.packed_bytes);
            assert_int_equal(a.open_bytes, b.open_bytes);
            /* Cells that the write would have changed in an open page are undefined; others hold.
             */
            for (int c = 0; c < 256; c++)
                if (c < firsts[i] || c >= firsts[i] + 128)
                    assert_memory_equal(before + c * G * D, back + c * G * D, G * D * 4);
            grid_close(&g);
        }
}

/* A write of all cells of packed pages is as if they had been empty. */
static void replaces_whole_pages(void **state) {
    (void)state;
    grid g, fresh;
    rng r = {8};
    quire_cells_stats stats;
    grid_init(&g, 1, H, G, D, D, "k4v4", 1, 256);
    grid_init(&fresh, 1, H, G, D, D, "k4v4", 1, 256);
    grid_open(&g);
    grid_open(&fresh);
    fill(&g, &r, 0, 128, k_rows, v_rows);
    rng same = r;
    fill(&g, &r, 0, 128, k_rows, v_rows);
    fill(&fresh, &same, 0, 128, k_rows, v_rows);
    for (int side = 0; side < 2; side++) {
        const quire_side which = side ? QUIRE_SIDE_V : QUIRE_SIDE_K;
        float wanted[128 * G * D];
        assert_ok(quire_cells_read(fresh.cells, 0, which, 0, 128, QUIRE_F32, wanted));
        assert_ok(quire_cells_read(g.cells, 0, which, 0, 128, QUIRE_F32, back));
        assert_memory_equal(wanted, back, sizeof wanted);
    }
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.reopened_pages, 0);
    assert_int_equal(stats.open_bytes, 0);
    assert_int_equal(stats.sealed_pages, 2 * 4);
    grid_close(&g);
    grid_close(&fresh);
}

static void copies_streams(void **state) {
    (void)state;
    grid g;
    rng r = {6};
    grid_init(&g, 1, H, G, D, D, "k4v4", 3, 256);
    grid_open(&g);
    fill(&g, &r, 256, 150, k_rows, v_rows);
    for (int side = 0; side < 2; side++) {
        const quire_side which = side ? QUIRE_SIDE_V : QUIRE_SIDE_K;
        float from[256 * G * D];
        assert_ok(quire_cells_copy(g.cells, 0, which, 256, 512, 256));
        assert_ok(quire_cells_read(g.cells, 0, which, 256, 256, QUIRE_F32, from));
        assert_ok(quire_cells_read(g.cells, 0, which, 512, 256, QUIRE_F32, back));
        assert_memory_equal(from, back, sizeof from);
        assert_status(quire_cells_copy(g.cells, 0, which, 256, 320, 64), QUIRE_E_INVALID);
        assert_status(quire_cells_copy(g.cells, 0, which, 256, 256, 64), QUIRE_E_INVALID);
        assert_status(quire_cells_copy(g.cells, 0, which, 1, 513, 64), QUIRE_E_INVALID);
    }
    /* The copy goes on by itself. */
    float row[2][G * D];
    fill(&g, &r, 512 + 150, 1, row[0], row[1]);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 256 + 150, 1, QUIRE_F32, back));
    for (int d = 0; d < G * D; d++)
        assert_true(back[d] == 0);
    assert_ok(quire_cells_clear(g.cells));
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 256, 256, QUIRE_F32, back));
    for (int i = 0; i < 256 * G * D; i++)
        assert_true(back[i] == 0);
    grid_close(&g);
}

/* ------------------------------------------------------------------ a measured order */

/* Without an order, pages stay raw until four are complete; then they are packed, with the wider
 * codes where K's range times the size of q is largest. */
static void measures_an_order(void **state) {
    (void)state;
    grid g, given;
    const source s = source_default(11);
    enum { N = 300, CELLS = 512 };
    uint16_t *mask = malloc(512 * CELLS * 2), order[G * D];
    float *out = malloc(512 * H * D * 4), *other = malloc(512 * H * D * 4);
    quire_cells_stats stats;
    grid_init(&g, 1, H, G, D, D, "k4v4", 1, CELLS);
    g.layer[0].k_order = NULL;
    g.options.policy.sinks = 0;
    g.n_workers = 3;
    grid_open(&g);
    step_cells(&g, &s, 0, 200, mask, 256, out);
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.sealed_pages, 0);
    step_cells(&g, &s, 200, 60, mask, 512, out); /* completes page 3 */
    step_cells(&g, &s, 260, 1, mask, 512, out);  /* packs pages 0 .. 3 */
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.sealed_pages, 2 * 4);

    for (int h = 0; h < G; h++) {
        float importance[D];
        for (int d = 0; d < D; d++) {
            double range = 0, squares = 0;
            for (int p = 0; p < 4; p++) {
                float low = INFINITY, high = -INFINITY;
                for (int t = p * 64; t < p * 64 + 64; t++) {
                    float row[G * D];
                    source_k(&s, &g.layer[0], 0, t, row);
                    low = fminf(low, as_f16(row[h * D + d]));
                    high = fmaxf(high, as_f16(row[h * D + d]));
                }
                range += (double)(high - low);
            }
            for (int t = 0; t < 260; t++) {
                float row[H * D];
                source_q(&s, &g.layer[0], 0, t, row);
                for (int i = h * H / G; i < (h + 1) * H / G; i++)
                    squares += (double)row[i * D + d] * (double)row[i * D + d];
            }
            importance[d] = (float)(range * sqrt(squares));
        }
        assert_ok(quire_channel_order(importance, D, order + h * D));
    }
    grid_init(&given, 1, H, G, D, D, "k4v4", 1, CELLS);
    given.layer[0].k_order = order;
    given.options.policy.sinks = 0;
    grid_open(&given);
    step_cells(&given, &s, 0, 261, mask, 512, other);
    step_cells(&g, &s, 261, 20, mask, 512, out);
    step_cells(&given, &s, 261, 20, mask, 512, other);
    assert_memory_equal(out, other, 20 * H * D * 4);
    grid_close(&g);
    grid_close(&given);
    free(mask), free(out), free(other);
}

/* ------------------------------------------------------------------ sights at their edges */

/* Attends n rows of a stream under an fp32 mask (NULL: none) of n_cells columns. */
static void attend_rows(grid *g, int n, int n_cells, const float *mask, const int64_t *own,
                        const quire_cells_attend_args *common, const float *q, float *out) {
    quire_cells_attend_args args = *common;
    assert_ok(quire_sight_set(g->sight, &(quire_sight_args){.n_streams = 1,
                                                            .rows_per_stream = n,
                                                            .n_cells = n_cells,
                                                            .mask = mask,
                                                            .mask_type = QUIRE_F32,
                                                            .row_stride = (size_t)n_cells,
                                                            .own = own}));
    args.sight = g->sight;
    args.q = q;
    args.q_type = QUIRE_F32;
    args.out = out;
    run_all((job){.g = g, .layer = 0, .attend = &args});
}

/* Cells beyond the sight's are hidden, also from the row that was written there. */
static void an_own_cell_that_is_hidden(void **state) {
    (void)state;
    grid g;
    rng r = {21};
    float q[2 * H * D], wanted[2 * H * D], got[2 * H * D], mask[2 * 64] = {0};
    const quire_cells_attend_args common = {.n_heads = H};
    grid_init(&g, 1, H, G, D, D, "k8v4", 1, 256);
    grid_open(&g);
    fill(&g, &r, 0, 200, k_rows, v_rows);
    rng_fill(&r, q, 2 * H * D, 1);
    attend_rows(&g, 2, 64, mask, (int64_t[]){-1, -1}, &common, q, wanted);
    attend_rows(&g, 2, 256, NULL, (int64_t[]){198, 199}, &common, q, got); /* seen: raw */
    attend_rows(&g, 2, 64, mask, (int64_t[]){198, 199}, &common, q, got);
    assert_memory_equal(wanted, got, sizeof wanted);
    grid_close(&g);
}

/* A row may be forbidden to see its own page while the next one sees it. */
static void an_own_page_that_the_first_row_does_not_see(void **state) {
    (void)state;
    grid g;
    rng r = {22};
    float q[2 * H * D], out[2 * H * D], mask[2 * 128];
    double wanted[H * D];
    const quire_cells_attend_args common = {.n_heads = H};
    grid_init(&g, 1, H, G, D, D, "none", 1, 256);
    grid_open(&g);
    fill(&g, &r, 0, 102, k_rows, v_rows);
    rng_fill(&r, q, 2 * H * D, 1);
    for (int c = 0; c < 128; c++) {
        mask[c] = c < 64 ? 0 : -INFINITY;
        mask[128 + c] = c <= 101 ? 0 : -INFINITY;
    }
    for (int i = 0; i < 102 * G * D; i++) {
        k_rows[i] = as_f16(k_rows[i]);
        v_rows[i] = as_f16(v_rows[i]);
    }
    attend_rows(&g, 2, 128, mask, (int64_t[]){100, 101}, &common, q, out);
    for (int i = 0; i < 2; i++) {
        for (int h = 0; h < H; h++)
            oracle(q + (i * H + h) * D, mask + (size_t)i * 128, 1, k_rows + h / (H / G) * D,
                   v_rows + h / (H / G) * D, 128, 1 / sqrt(D), 0, NULL, wanted + (size_t)h * D);
        assert_true(relative_error(out + (size_t)i * H * D, wanted, H * D) < 2 * FP16_ROUNDING);
    }
    grid_close(&g);
}

/* ALiBi with more query heads on one KV head than a tile has rows: each head as it is alone. */
static void slopes_of_a_wide_group(void **state) {
    (void)state;
    enum { WIDE = 80, N = 5 };
    grid g;
    rng r = {23};
    float slopes[WIDE], mask[N * 256];
    int64_t cell[200], own[N];
    float *q = malloc(N * WIDE * D * 4), *out = malloc(N * WIDE * D * 4),
          *alone = malloc(N * WIDE * D * 4);
    grid_init(&g, 1, WIDE, 1, D, D, "k8v4", 1, 256);
    g.n_workers = 2;
    grid_open(&g);
    for (int i = 0; i < 200; i++)
        cell[i] = i;
    rng_fill(&r, k_rows, 200 * D, 1);
    rng_fill(&r, v_rows, 200 * D, 1);
    rng_fill(&r, q, N * WIDE * D, 1);
    write_side(&g, 0, QUIRE_SIDE_K, cell, 200, k_rows);
    write_side(&g, 0, QUIRE_SIDE_V, cell, 200, v_rows);
    for (int h = 0; h < WIDE; h++)
        slopes[h] = 1.0f / (float)(h + 1);
    for (int i = 0; i < N; i++) {
        own[i] = 195 + i;
        for (int c = 0; c < 256; c++)
            mask[i * 256 + c] = c <= 195 + i ? -(float)(195 + i - c) / 16 : -INFINITY;
    }
    attend_rows(&g, N, 256, mask, own,
                &(quire_cells_attend_args){.n_heads = WIDE, .mask_slopes = slopes}, q, out);
    for (int h = 0; h < WIDE; h++)
        attend_rows(&g, N, 256, mask, own,
                    &(quire_cells_attend_args){.n_heads = 1,
                                               .mask_slopes = slopes + h,
                                               .q_row_stride = WIDE * D,
                                               .out_row_stride = WIDE * D},
                    q + h * D, alone + h * D);
    for (int i = 0; i < N * WIDE * D; i++)
        assert_true(fabsf(out[i] - alone[i]) <= 1e-5f);
    grid_close(&g);
    free(q), free(out), free(alone);
}

/* Channel i of the queries is of size 1 / (1 + i % 7). */
static void uneven_queries(rng *r, float *q, int n) {
    rng_fill(r, q, (size_t)n * H * D, 1);
    for (int i = 0; i < n * H * D; i++)
        q[i] /= (float)(1 + i % D % 7);
}

/* Rows that come without queries, as a saved state does, are ordered by their range alone, whatever
 * was asked before a clear. Queries count however small a soft-cap makes them. */
static void measures_with_few_queries(void **state) {
    (void)state;
    enum { N = 8 };
    float mask[N * 256] = {0}, *q = malloc(N * H * D * 4);
    float out[2][N * H * D];
    uint16_t order[G * D];
    for (int queried = 0; queried < 2; queried++) {
        grid g, given;
        grid *both[2] = {&g, &given};
        rng r = {41};
        const quire_cells_attend_args common = {.n_heads = H, .softcap = 3000};
        for (int i = 0; i < 2; i++) {
            grid_init(both[i], 1, H, G, D, D, "k4v4", 1, 512);
            both[i]->options.policy.sinks = 0;
        }
        g.layer[0].k_order = NULL;
        grid_open(&g);
        uneven_queries(&r, q, N);
        fill(&g, &(rng){42}, 0, 10, k_rows, v_rows);
        attend_rows(&g, N, 256, mask, NULL, &common, q, out[0]);
        assert_ok(quire_cells_clear(g.cells));
        fill(&g, &(rng){43}, 0, 256, k_rows, v_rows);
        if (queried)
            attend_rows(&g, N, 256, mask, NULL, &common, q, out[0]);
        for (int h = 0; h < G; h++) {
            float importance[D];
            for (int d = 0; d < D; d++) {
                double range = 0, squares = 0;
                for (int p = 0; p < 4; p++) {
                    float low = INFINITY, high = -INFINITY;
                    for (int t = p * 64; t < p * 64 + 64; t++) {
                        low = fminf(low, as_f16(k_rows[(t * G + h) * D + d]));
                        high = fmaxf(high, as_f16(k_rows[(t * G + h) * D + d]));
                    }
                    range += (double)(high - low);
                }
                for (int i = 0; i < N * H; i++)
                    if (i % H / (H / G) == h)
                        squares += (double)q[i * D + d] * (double)q[i * D + d];
                importance[d] = (float)(range * (queried ? sqrt(squares) : 1));
            }
            assert_ok(quire_channel_order(importance, D, order + h * D));
        }
        given.layer[0].k_order = order;
        grid_open(&given);
        fill(&given, &(rng){43}, 0, 256, k_rows, v_rows);
        for (int i = 0; i < 2; i++) {
            fill(both[i], &(rng){44}, 256, 1, k_rows, v_rows);
            attend_rows(both[i], N, 256, mask, NULL, &common, q, out[i]);
        }
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        grid_close(&g);
        grid_close(&given);
    }
    free(q);
}

/* A row that is not a number costs those who see it, and nobody else: the rows beside it are stored
 * as if it were zeros. */
static void a_row_that_is_no_number(void **state) {
    (void)state;
    enum { N = 150, BAD = 70 };
    const quire_cells_attend_args common = {.n_heads = H};
    for (int side = 0; side < 2; side++)
        for (int kind = 0; kind < 2; kind++) {
            grid g, zeros;
            rng r = {31};
            int64_t cell[N];
            float mask[2 * 256], q[2 * H * D], wanted[2 * H * D], got[2 * H * D];
            grid *both[2] = {&zeros, &g};
            quire_rows rows[2] = {{k_rows, QUIRE_F32, 0}, {v_rows, QUIRE_F32, 0}};
            float *poisoned = (side ? v_rows : k_rows) + BAD * G * D + D + 3; /* of KV head 1 */
            rng_fill(&r, k_rows, N * G * D, 1);
            rng_fill(&r, v_rows, N * G * D, 1);
            rng_fill(&r, q, 2 * H * D, 1);
            memset(poisoned - 3, 0, D * sizeof *poisoned);
            for (int i = 0; i < N; i++)
                cell[i] = i;
            for (int i = 0; i < 2; i++) {
                grid_init(both[i], 1, H, G, D, D, kind ? "none" : "k4v4", 1, 256);
                grid_open(both[i]);
                *poisoned = i ? NAN : 0;
                for (int s = 0; s < 2; s++) {
                    const quire_side which = s ? QUIRE_SIDE_V : QUIRE_SIDE_K;
                    quire_status first = QUIRE_OK;
                    assert_ok(quire_cells_plan(both[i]->cells, 0, which, cell, N, 0));
                    for (int w = 0; w < 2; w++) {
                        const quire_status status =
                            quire_cells_write(both[i]->cells, 0, which, rows[s], w, 2);
                        if (status != QUIRE_OK)
                            assert_non_null(strstr(quire_last_error(), "row 70, KV head 1"));
                        first = first ? first : status;
                    }
                    assert_int_equal(first, i && s == side ? QUIRE_E_VALUE : QUIRE_OK);
                }
            }
            /* The first row sees everything but the bad one, the second that one too. */
            for (int c = 0; c < 256; c++)
                for (int i = 0; i < 2; i++)
                    mask[i * 256 + c] = c < N && (i == 1 || c != BAD) ? 0 : -INFINITY;
            for (int again = 0; again < 3; again++) {
                for (int i = 0; i < 2; i++) {
                    attend_rows(both[i], 2, 256, mask, NULL, &common, q, i ? got : wanted);
                    fill(both[i], &(rng){again + 5}, N + again, 1, k_rows, v_rows);
                }
                assert_memory_equal(wanted, got, H * D * 4);
                for (int i = H * D; i < 2 * H * D; i++)
                    assert_true(isnan(got[i]));
            }
            for (int i = 0; i < 2; i++) {
                fill(both[i], &(rng){77}, BAD, 1, k_rows, v_rows);
                attend_rows(both[i], 2, 256, mask, NULL, &common, q, i ? got : wanted);
            }
            assert_memory_equal(wanted, got, sizeof wanted);
            grid_close(&g);
            grid_close(&zeros);
        }
}

/* ------------------------------------------------------------------ refusals */

static void refuses(void **state) {
    (void)state;
    grid g;
    quire_cells *none = NULL;
    grid_init(&g, 1, H, G, D, D, "k4v4", 1, 256);
    g.options.n_cells = 100;
    assert_status(quire_cells_create(&none, &g.options), QUIRE_E_INVALID);
    g.options.n_cells = 256;
    g.layer[0].k_order = NULL;
    g.options.measure_order = false;
    assert_status(quire_cells_create(&none, &g.options), QUIRE_E_INVALID);
    g.layer[0].k_order = random_order(G, D);
    g.layer[0].k_dim = 40;
    assert_status(quire_cells_create(&none, &g.options), QUIRE_E_UNSUPPORTED);
    g.layer[0].k_dim = D;
    assert_null(none);
    grid_open(&g);
    int64_t cell[2] = {3, 256};
    assert_status(
        quire_cells_write(g.cells, 0, QUIRE_SIDE_K, (quire_rows){k_rows, QUIRE_F32, 0}, 0, 1),
        QUIRE_E_STATE);
    assert_status(quire_cells_plan(g.cells, 0, QUIRE_SIDE_K, cell, 2, 0), QUIRE_E_INVALID);
    assert_status(quire_cells_plan(g.cells, 1, QUIRE_SIDE_K, cell, 1, 0), QUIRE_E_INVALID);
    assert_status(quire_cells_plan(g.cells, 0, QUIRE_SIDE_K, cell, 600, 0), QUIRE_E_INVALID);
    memset(k_rows, 0, sizeof k_rows);
    k_rows[5] = 1e9f;
    assert_ok(quire_cells_plan(g.cells, 0, QUIRE_SIDE_K, cell, 1, 0));
    assert_ok(
        quire_cells_write(g.cells, 0, QUIRE_SIDE_K, (quire_rows){k_rows, QUIRE_F32, 0}, 0, 1));
    quire_cells_stats stats;
    assert_ok(quire_cells_get_stats(g.cells, 0, &stats));
    assert_int_equal(stats.clamped_values, 1);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_K, 3, 1, QUIRE_F32, back));
    assert_true(back[5] == 65504);
    k_rows[5] = NAN;
    assert_ok(quire_cells_plan(g.cells, 0, QUIRE_SIDE_K, cell, 1, 0));
    assert_status(
        quire_cells_write(g.cells, 0, QUIRE_SIDE_K, (quire_rows){k_rows, QUIRE_F32, 0}, 0, 1),
        QUIRE_E_VALUE);
    assert_status(
        quire_sight_set(g.sight,
                        &(quire_sight_args){.n_streams = 2, .rows_per_stream = 1, .n_cells = 256}),
        QUIRE_E_INVALID);
    assert_status(
        quire_cells_attend(
            g.cells, 0,
            &(quire_cells_attend_args){
                .sight = g.sight, .n_heads = H, .q = k_rows, .q_type = QUIRE_F32, .out = back},
            0, 1),
        QUIRE_E_STATE); /* the sight was never set */
    assert_ok(quire_sight_set(
        g.sight, &(quire_sight_args){.n_streams = 1, .rows_per_stream = 1, .n_cells = 256}));
    assert_status(
        quire_cells_attend(
            g.cells, 0,
            &(quire_cells_attend_args){
                .sight = g.sight, .n_heads = 3, .q = k_rows, .q_type = QUIRE_F32, .out = back},
            0, 1),
        QUIRE_E_INVALID);
    grid_close(&g);
}

/* The price is what is touched at the end, and memory that cannot be had is refused. */
static void memory(void **state) {
    (void)state;
    grid g;
    ledger l = {.fill = 0xff};
    const quire_allocator allocator = ledger_allocator(&l);
    quire_cells *none = NULL;
    size_t bytes;
    grid_init(&g, 2, H, G, D, D, "k4v4", 2, 256);
    g.options.allocator = &allocator;
    assert_ok(quire_cells_price(&g.options, &bytes));
    assert_int_equal(l.n_live, 0);
    const int calls = l.n_calls;
    grid_open(&g);
    assert_true(bytes < l.live_bytes);
    grid_close(&g);
    assert_int_equal(l.n_live, 0);
    const int all = l.n_calls - calls;
    for (int i = 1; i < all; i++) { /* the last one is the sight's */
        l.n_calls = 0;
        l.refuse_call = i;
        assert_status(quire_cells_create(&none, &g.options), QUIRE_E_NOMEM);
        assert_int_equal(l.n_live, 0);
    }
}

/* Bytes that nobody has written to since they were allocated. */
static size_t untouched(const ledger *l) {
    size_t n = 0;
    for (int i = 0; i < l->n_live; i++)
        for (size_t j = 0; j < l->block[i].bytes; j++)
            n += ((const uint8_t *)l->block[i].at)[j] == 0xff;
    return n;
}

/* Workers that never work leave their buffers alone. */
static void memory_of_idle_workers(void **state) {
    (void)state;
    enum { N = 200 };
    static const int workers[2] = {1, 8};
    const source s = source_default(9);
    uint16_t *mask = malloc(N * 256 * sizeof *mask);
    float *out[2] = {malloc(N * H * D * 4), malloc(N * H * D * 4)};
    size_t price[2], idle[2];
    for (int i = 0; i < 2; i++) {
        grid g;
        ledger l = {.fill = 0xff};
        const quire_allocator allocator = ledger_allocator(&l);
        grid_init(&g, 1, H, G, D, D, "k4v4", 1, 256);
        g.options.max_workers = workers[i];
        assert_ok(quire_cells_price(&g.options, &price[i]));
        g.options.allocator = &allocator;
        grid_open(&g);
        step_cells(&g, &s, 0, N, mask, 256, out[i]);
        idle[i] = untouched(&l);
        grid_close(&g);
    }
    assert_memory_equal(out[0], out[1], N * H * D * 4);
    assert_true(idle[1] >= idle[0] + (price[1] - price[0]) * 9 / 10);
    free(mask), free(out[0]), free(out[1]);
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <sys/sysinfo.h>

static bool overcommits(void) {
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    const int mode = file ? fgetc(file) : '2';
    if (file)
        fclose(file);
    return mode != '2';
}

/* Rows may come to more than all memory, if packed they do not: slots for them are addresses. */
static void larger_than_memory(void **state) {
    (void)state;
    enum { KV = 32, DIM = 256, N = QUIRE_PAGE_TOKENS };
    struct sysinfo machine;
    grid g;
    int64_t cell[N];
    if (!overcommits() || sysinfo(&machine) != 0)
        skip();
    float *rows = malloc(N * KV * DIM * sizeof *rows), *read = malloc(N * KV * DIM * sizeof *read);
    const double all = ((double)machine.totalram + (double)machine.totalswap) * machine.mem_unit,
                 cells = 1.5 * all / (2.0 * KV * DIM * sizeof(uint16_t));
    grid_init(&g, 1, KV, KV, DIM, DIM, "kc2:vt2", 1, (int)(cells / N) * N);
    grid_open(&g);
    for (int i = 0; i < N * KV * DIM; i++)
        rows[i] = (float)(i % 5 - 2);
    for (int i = 0; i < N; i++)
        cell[i] = g.options.n_cells - N + i;
    write_side(&g, 0, QUIRE_SIDE_V, cell, N - 1, rows);
    assert_ok(quire_cells_read(g.cells, 0, QUIRE_SIDE_V, cell[0], N - 1, QUIRE_F32, read));
    assert_memory_equal(rows, read, (N - 1) * KV * DIM * sizeof *rows);
    grid_close(&g);
    free(rows), free(read);
}
#else
static void larger_than_memory(void **state) {
    (void)state;
    skip(); /* a sanitizer keeps a record of every byte that malloc gives */
}
#endif

int main(void) {
    if (level_is_missing())
        return LEFT_OUT;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_a_pool),
        cmocka_unit_test(scattered_cells),
        cmocka_unit_test(reads_what_pages_hold),
        cmocka_unit_test(reads_in_parts),
        cmocka_unit_test(reopens),
        cmocka_unit_test(takes_back_unfinished_writes),
        cmocka_unit_test(replaces_whole_pages),
        cmocka_unit_test(copies_streams),
        cmocka_unit_test(measures_an_order),
        cmocka_unit_test(measures_with_few_queries),
        cmocka_unit_test(a_row_that_is_no_number),
        cmocka_unit_test(an_own_cell_that_is_hidden),
        cmocka_unit_test(an_own_page_that_the_first_row_does_not_see),
        cmocka_unit_test(slopes_of_a_wide_group),
        cmocka_unit_test(refuses),
        cmocka_unit_test(memory),
        cmocka_unit_test(memory_of_idle_workers),
        cmocka_unit_test(larger_than_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
