#include "kit.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/element.h"
#include "kern/kern.h"

/* ------------------------------------------------------------------ kernel levels */

bool level_is_missing(void) {
    quire_kernels kernels;
    if (quire__kernels_init(&kernels, NULL) != QUIRE_E_UNSUPPORTED)
        return false;
    printf("left out: %s\n", quire_last_error());
    return true;
}

/* ------------------------------------------------------------------ sweeps */

bool sweep_is_full(void) {
    const char *sweep = getenv("QUIRE_TEST_SWEEP");
    return sweep && strcmp(sweep, "full") == 0;
}

bool sweep_takes(int *turn, int n) { return sweep_takes_of(turn, 1, n); }

bool sweep_takes_of(int *turn, int plain, int n) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const bool repeats = true;
#else
    const char *level = getenv("QUIRE_CPU");
    const bool repeats = level && *level;
#endif
    return (*turn)++ % (repeats ? n : plain) == 0 || sweep_is_full();
}

/* ------------------------------------------------------------------ random */

uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double rng_uniform(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }
int rng_below(rng *r, int n) { return (int)(rng_next(r) % (uint64_t)n); }

float rng_normal(rng *r) {
    double sum = -6; /* sum of twelve uniforms: no libm, so the same everywhere */
    for (int i = 0; i < 12; i++)
        sum += rng_uniform(r);
    return (float)sum;
}

void rng_fill(rng *r, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++)
        x[i] = rng_normal(r) * scale;
}

/* ------------------------------------------------------------------ tokens */

source source_default(uint64_t seed) {
    return (source){.seed = seed, .k_scale = 1, .v_scale = 1, .q_scale = 1, .k_channel_bias = 2};
}

static rng stream(const source *s, int kind, int layer, int position) {
    rng r = {s->seed * 1000003u + (uint64_t)kind * 7919u + (uint64_t)layer * 104729u +
             (uint64_t)position * 15485863u};
    rng_next(&r);
    return r;
}

/* The next PIECE normal numbers, as rng_normal draws them. Tests feed the same tokens to many
 * sequences, and drawing took most of their time, so pieces of streams are remembered. The state
 * that a piece begins with determines it, and so is its key. */
enum { PIECE = 64, N_PIECES = 1 << 16 };

static void next_piece(rng *r, float x[PIECE]) {
    static struct {
        rng before, after;
        float x[PIECE];
    } pieces[N_PIECES];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    rng hash = *r;
    const size_t slot = rng_next(&hash) % N_PIECES;
    pthread_mutex_lock(&lock);
    if (pieces[slot].before.state != r->state || pieces[slot].after.state == 0) {
        pieces[slot].before = pieces[slot].after = *r;
        rng_fill(&pieces[slot].after, pieces[slot].x, PIECE, 1);
    }
    *r = pieces[slot].after;
    memcpy(x, pieces[slot].x, sizeof pieces[slot].x);
    pthread_mutex_unlock(&lock);
}

/* row += normal numbers of the stream, times scale */
static void add_normals(rng r, float *row, int n, float scale) {
    float x[PIECE];
    for (int at = 0; at < n; at += PIECE) {
        next_piece(&r, x);
        for (int i = 0; i < PIECE && at + i < n; i++)
            row[at + i] += x[i] * scale;
    }
}

static void fill_normals(rng r, float *row, int n, float scale) {
    memset(row, 0, (size_t)n * sizeof *row);
    add_normals(r, row, n, scale);
}

void source_k(const source *s, const quire_layer *l, int layer, int position, float *row) {
    const int n = l->n_kv_heads * l->k_dim;
    const source channels = {.seed = s->channel_seed ? s->channel_seed : s->seed};
    fill_normals(stream(s, 1, layer, position), row, n, s->k_scale);
    add_normals(stream(&channels, 9, layer, 0), row, n, s->k_channel_bias);
    if (s->k_offset)
        for (int i = 0; i < n; i++)
            row[i] += s->k_offset[i % l->k_dim];
}

void source_v(const source *s, const quire_layer *l, int layer, int position, float *row) {
    fill_normals(stream(s, 2, layer, position), row, l->n_kv_heads * l->v_dim, s->v_scale);
}

void source_q(const source *s, const quire_layer *l, int layer, int position, float *row) {
    fill_normals(stream(s, 3, layer, position), row, l->n_heads * l->k_dim, s->q_scale);
}

/* ------------------------------------------------------------------ orders of channels */

enum { MOST_ORDERED_HEADS = 64 };

const uint16_t *random_order(int g, int dk) {
    static uint16_t orders[QUIRE_DIM_MAX / 16 + 1][MOST_ORDERED_HEADS * QUIRE_DIM_MAX];
    static bool made[QUIRE_DIM_MAX / 16 + 1];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    assert_true(g <= MOST_ORDERED_HEADS && dk <= QUIRE_DIM_MAX);
    pthread_mutex_lock(&lock);
    rng r = {(uint64_t)dk};
    for (int h = 0; !made[dk / 16] && h < MOST_ORDERED_HEADS; h++) {
        uint16_t *order = orders[dk / 16] + h * dk;
        for (int p = 0; p < dk; p++) {
            const int other = rng_below(&r, p + 1);
            order[p] = order[other];
            order[other] = (uint16_t)p;
        }
    }
    made[dk / 16] = true;
    pthread_mutex_unlock(&lock);
    return orders[dk / 16];
}

static bool in_order(quire_codec codec) {
    return codec == QUIRE_CODEC_KM4 || codec == QUIRE_CODEC_KM3;
}

void rows_into_order(quire_codec codec, const uint16_t *order, int dk, const float *rows,
                     float *placed) {
    for (int i = 0; i < 64 * dk; i++)
        placed[i] = in_order(codec) ? rows[i / dk * dk + order[i % dk]] : rows[i];
}

void rows_from_order(quire_codec codec, const uint16_t *order, int dk, const float *placed,
                     float *rows) {
    for (int i = 0; i < 64 * dk; i++)
        rows[in_order(codec) ? i / dk * dk + order[i % dk] : i] = placed[i];
}

/* ------------------------------------------------------------------ pools */

void fixture_init(fixture *f, int n_layers, int h, int g, int dk, int dv, const char *kv) {
    memset(f, 0, sizeof *f);
    quire_pool_options_default(&f->options);
    for (int i = 0; i < n_layers; i++) {
        quire_layer_default(&f->layer[i]);
        f->layer[i].n_heads = h;
        f->layer[i].n_kv_heads = g;
        f->layer[i].k_dim = dk;
        f->layer[i].v_dim = dv;
    }
    f->options.layers = f->layer;
    f->options.n_layers = n_layers;
    f->options.budget_bytes = (size_t)64 << 20;
    f->options.max_seqs = 16;
    assert_ok(quire_policy_parse(kv, &f->options.policy));
    f->options.policy.windowed = f->options.policy.pair;
}

quire_status fixture_try(fixture *f) {
    f->options.layers = f->layer;
    for (int i = 0; i < f->options.n_layers && i < 8 && !f->no_orders; i++) {
        quire_layer *l = &f->layer[i];
        if (!l->k_order && l->n_kv_heads > 0 && l->n_kv_heads <= MOST_ORDERED_HEADS &&
            l->k_dim > 0 && l->k_dim <= QUIRE_DIM_MAX && l->k_dim % 16 == 0)
            l->k_order = random_order(l->n_kv_heads, l->k_dim);
    }
    return quire_pool_create(&f->pool, &f->options);
}

void fixture_open(fixture *f) { assert_ok(fixture_try(f)); }

quire_policy fixture_open_edges(fixture *made, fixture *given, int dim) {
    fixture_init(made, 4, 2, 1, dim, dim, "k8v4");
    quire_policy *policy = &made->options.policy;
    policy->edge = (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};
    policy->edge_first = policy->edge_last = 1;
    *given = *made;
    assert_ok(quire_policy_parse("none", &given->options.policy));
    fixture_open(made);
    fixture_open(given);
    return *policy;
}

void fixture_close(fixture *f) {
    quire_pool_free(f->pool);
    f->pool = NULL;
}

/* ------------------------------------------------------------------ steps */

typedef struct work {
    quire_batch *batch;
    int layer;
    quire_rows k, v;
    const quire_attend_args *attend; /* NULL: store */
    int ith, nth;
    quire_status status;
} work;

static void *run_worker(void *argument) {
    work *w = argument;
    w->status = w->attend ? quire_batch_attend(w->batch, w->layer, w->attend, w->ith, w->nth)
                          : quire_batch_append(w->batch, w->layer, w->k, w->v, w->ith, w->nth);
    return NULL;
}

static void run_workers(work w, int nth) {
    work all[64];
    pthread_t thread[64];
    for (int i = 0; i < nth; i++) {
        all[i] = w;
        all[i].ith = i;
        all[i].nth = nth;
        if (nth > 1)
            assert_int_equal(pthread_create(&thread[i], NULL, run_worker, &all[i]), 0);
        else
            run_worker(&all[i]);
    }
    for (int i = 0; i < nth; i++) {
        if (nth > 1)
            pthread_join(thread[i], NULL);
        assert_int_equal(all[i].status, QUIRE_OK);
    }
}

static void *typed_copy(quire_type type, const float *x, size_t n) {
    void *copy = malloc(n * quire__type_bytes(type) + 1);
    quire__row_to_raw(type, copy, n, x);
    return copy;
}

quire_status step(fixture *f, const step_item *items, int n_items, const step_options *options,
                  float *out) {
    const step_options o = options ? *options : (step_options){0};
    quire_batch_item list[64];
    quire_batch *batch;
    for (int i = 0; i < n_items; i++)
        list[i] = (quire_batch_item){items[i].seq, items[i].n_tokens};
    const quire_status status = quire_batch_begin(f->pool, list, (size_t)n_items, &batch);
    if (status != QUIRE_OK)
        return status;
    const size_t rows = (size_t)quire_batch_rows(batch);
    size_t at = 0, lse_at = 0;
    for (int layer = 0; layer < f->options.n_layers; layer++) {
        const quire_layer *l = &f->layer[layer];
        const size_t nk = (size_t)(l->n_kv_heads * l->k_dim),
                     nv = (size_t)(l->n_kv_heads * l->v_dim), nq = (size_t)(l->n_heads * l->k_dim),
                     no = (size_t)(l->n_heads * l->v_dim);
        float *k = malloc((rows * nk + 1) * 4), *v = malloc((rows * nv + 1) * 4),
              *q = malloc((rows * nq + 1) * 4), *result = malloc((rows * no + 1) * 4);
        size_t row = 0;
        for (int i = 0; i < n_items; i++)
            for (int t = 0; t < items[i].n_tokens; t++, row++) {
                const int position = quire_seq_length(items[i].seq) + t;
                source_k(items[i].source, l, l->share < 0 ? layer : l->share, position,
                         k + row * nk);
                source_v(items[i].source, l, l->share < 0 ? layer : l->share, position,
                         v + row * nv);
                source_q(items[i].source, l, layer, position, q + row * nq);
            }
        void *tk = typed_copy(o.type, k, rows * nk), *tv = typed_copy(o.type, v, rows * nv),
             *tq = typed_copy(o.type, q, rows * nq);
        work w = {.batch = batch, .layer = layer, .k = {tk, o.type, 0}, .v = {tv, o.type, 0}};
        const int nth = o.n_workers ? o.n_workers : 1;
        if (l->share < 0)
            run_workers(w, nth);
        quire_attend_args args = {.q = {tq, o.type, 0},
                                  .out = out ? out + at : result,
                                  .mask = o.mask,
                                  .mask_row_stride = o.mask_row_stride,
                                  .mask_head_stride = o.mask_head_stride};
        if (o.lse)
            args.lse = o.lse + lse_at;
        w.attend = &args;
        if (!o.store_only)
            run_workers(w, nth);
        at += rows * no;
        lse_at += rows * (size_t)l->n_heads;
        free(k), free(v), free(q), free(result), free(tk), free(tv), free(tq);
    }
    if (o.abort)
        quire_batch_abort(batch);
    else
        assert_ok(quire_batch_commit(batch, o.n_accept));
    return QUIRE_OK;
}

void feed(fixture *f, quire_seq *seq, const source *s, int n, int chunk, int n_workers, int layer,
          float *out) {
    size_t before = 0, per_row[8], all = 0;
    for (int i = 0; i < f->options.n_layers; i++) {
        per_row[i] = (size_t)(f->layer[i].n_heads * f->layer[i].v_dim);
        if (i < layer)
            before += per_row[i];
        all += per_row[i];
    }
    float *buffer = malloc((size_t)chunk * all * sizeof *buffer + 1);
    for (int done = 0; done < n;) {
        const int now = n - done < chunk ? n - done : chunk;
        const step_item item = {seq, s, now};
        const step_options options = {.n_workers = n_workers, .store_only = !out};
        assert_ok(step(f, &item, 1, &options, buffer));
        if (out)
            memcpy(out + (size_t)done * per_row[layer], buffer + before * (size_t)now,
                   (size_t)now * per_row[layer] * sizeof *out);
        done += now;
    }
    free(buffer);
}

/* ------------------------------------------------------------------ oracle */

static float raw_rounded(const fixture *f, float x) {
    uint8_t bytes[4];
    quire__put_element(f->options.raw, bytes, 0, x);
    return quire__get_element(f->options.raw, bytes, 0);
}

void seen_values(const fixture *f, int layer, const source *s, int head, int n, int own_page,
                 double *k, double *v) {
    const quire_layer *l = &f->layer[layer];
    const int from = l->share < 0 ? layer : l->share, dk = l->k_dim, dv = l->v_dim;
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f->pool, layer, &stats));
    const quire_page_shape shape = {stats.pair, dk, dv, f->options.raw};
    float *row = malloc((size_t)(l->n_kv_heads * (dk > dv ? dk : dv)) * 4);
    const uint16_t *order = l->k_order ? l->k_order + head * dk : NULL;
    float *pk = malloc((size_t)(64 * dk) * 4), *pv = malloc((size_t)(64 * dv) * 4),
          *placed = malloc((size_t)(64 * dk) * 4), *dk_rows = malloc((size_t)(64 * dk) * 4),
          *dv_rows = malloc((size_t)(64 * dv) * 4);
    uint8_t *record = malloc(stats.record_bytes);
    for (int page = 0; page * 64 < n; page++) {
        for (int t = 0; t < 64; t++) {
            source_k(s, l, from, page * 64 + t, row);
            for (int d = 0; d < dk; d++)
                pk[t * dk + d] = raw_rounded(f, row[head * dk + d]);
            source_v(s, l, from, page * 64 + t, row);
            for (int d = 0; d < dv; d++)
                pv[t * dv + d] = raw_rounded(f, row[head * dv + d]);
        }
        int skip = 0;
        bool packed = page < own_page;
        if (packed) {
            skip = page == 0 ? f->options.policy.sinks : 0;
            rows_into_order(stats.pair.k, order, dk, pk, placed);
            assert_ok(quire_page_encode(&shape, placed, pv, skip, record));
            assert_ok(quire_page_decode(&shape, record, placed, dv_rows));
            rows_from_order(stats.pair.k, order, dk, placed, dk_rows);
        }
        for (int t = 0; t < 64 && page * 64 + t < n; t++) {
            const bool raw = !packed || t < skip;
            for (int d = 0; d < dk; d++)
                k[(page * 64 + t) * dk + d] = raw ? pk[t * dk + d] : dk_rows[t * dk + d];
            for (int d = 0; d < dv; d++)
                v[(page * 64 + t) * dv + d] = raw ? pv[t * dv + d] : dv_rows[t * dv + d];
        }
    }
    free(row), free(pk), free(pv), free(placed), free(dk_rows), free(dv_rows), free(record);
}

typedef struct head_view { /* what one query row and head meets */
    const fixture *f;
    const quire_layer *l;
    const step_options *o;
    int h, position, row;
    const float *q;      /* (DK) */
    const double *k, *v; /* (position + 1, D) */
    double *logit;       /* scratch */
} head_view;

static double attend_head(const head_view *x, double *out) /* -> lse */
{
    const quire_layer *l = x->l;
    const int dk = l->k_dim, dv = l->v_dim, n = x->position + 1;
    const double scale = l->scale > 0 ? l->scale : 1 / sqrt(dk);
    double top = -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        double y = 0;
        for (int d = 0; d < dk; d++)
            y += (double)x->q[d] * x->k[t * dk + d];
        y *= scale;
        if (l->softcap > 0)
            y = l->softcap * tanh(y / l->softcap);
        if (l->alibi)
            y += (double)l->alibi[x->h] * (t - x->position);
        if (x->o && x->o->mask)
            y += (double)x->o->mask[(size_t)x->row * x->o->mask_row_stride +
                                    (size_t)x->h * x->o->mask_head_stride + (size_t)t];
        if (l->window > 0 && x->position - t >= l->window && t >= l->keep)
            y = -INFINITY;
        x->logit[t] = y;
        if (y > top)
            top = y;
    }
    if (l->sink_logits && l->sink_logits[x->h] > top)
        top = l->sink_logits[x->h];
    for (int d = 0; d < dv; d++)
        out[d] = 0;
    for (int t = 0; t < n; t++) {
        if (x->logit[t] == -INFINITY)
            continue;
        const double e = exp(x->logit[t] - top);
        sum += e;
        for (int d = 0; d < dv; d++)
            out[d] += e * x->v[t * dv + d];
    }
    if (l->sink_logits)
        sum += exp(l->sink_logits[x->h] - top);
    for (int d = 0; d < dv && sum > 0; d++)
        out[d] /= sum;
    return sum > 0 ? top + log(sum) : -INFINITY;
}

void oracle_attend_rows(const fixture *f, int layer, const source *s, int position, int n_rows,
                        const step_options *o, double *out, double *lse) {
    const quire_layer *l = &f->layer[layer];
    const int n = position + n_rows, dk = l->k_dim, dv = l->v_dim,
              group = l->n_heads / l->n_kv_heads;
    double *k = malloc((size_t)(n * dk) * 8), *v = malloc((size_t)(n * dv) * 8),
           *logit = malloc((size_t)n * 8);
    float *q = malloc((size_t)(l->n_heads * dk) * 4);
    for (int kv = 0; kv < l->n_kv_heads; kv++)
        for (int row = 0; row < n_rows; row++) {
            const int at = position + row;
            if (row == 0 || at % 64 == 0)
                seen_values(f, layer, s, kv, n, at / 64, k, v); /* fixed while the own page is */
            source_q(s, l, layer, at, q);
            for (int h = kv * group; h < (kv + 1) * group; h++) {
                const head_view x = {f, l, o, h, at, row, q + h * dk, k, v, logit};
                const double y = attend_head(&x, out + (size_t)(row * l->n_heads + h) * (size_t)dv);
                if (lse)
                    lse[row * l->n_heads + h] = y;
            }
        }
    free(k), free(v), free(logit), free(q);
}

void oracle_attend(const fixture *f, int layer, const source *s, int position,
                   const step_options *o, int row, double *out, double *lse) {
    step_options shifted = o ? *o : (step_options){0};
    if (shifted.mask)
        shifted.mask += (size_t)row * shifted.mask_row_stride;
    oracle_attend_rows(f, layer, s, position, 1, &shifted, out, lse);
}

bool kernel_uses_fp16(const char *name) {
    return strcmp(name, "neon_fp16_raw") == 0 || strcmp(name, "neon_bf16_raw") == 0;
}

bool side_uses_fp16(const fixture *f, bool is_v) {
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f->pool, 0, &stats));
    const quire_codec codec = is_v ? stats.pair.v : stats.pair.k;
    return kernel_uses_fp16(stats.kernel) && f->options.raw == QUIRE_F16 &&
           (codec == QUIRE_CODEC_RAW || codec == QUIRE_CODEC_F16);
}

double relative_error(const float *x, const double *wanted, size_t n) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - wanted[i]) * ((double)x[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

/* ------------------------------------------------------------------ bounds */

static quire_codec_info info_of(quire_codec codec) {
    quire_codec_info info = {0};
    for (size_t i = 0; i < quire_codec_count() && info.codec != codec; i++)
        quire_codec_at(i, &info);
    return info;
}

static bool is_family(const quire_codec_info *info, const char *family) {
    return strcmp(info->family, family) == 0;
}

static double k_bound(quire_codec codec, int k_dim, double logits, bool halved) {
    const quire_codec_info info = info_of(codec);
    if (is_family(&info, "raw"))
        return (halved ? FP16_ROUNDING : 1e-5) * logits;
    if (info.bits == 8)
        return 2e-4 * logits;
    /* km in a random order: q's step goes by the largest of q times scale, twice as large where
     * a narrow code's is; and the codes it multiplies have (4 + 2 + 1/4) / 4 times the mean
     * square. */
    const double mixed = in_order(codec) ? 2 * sqrt(6.25 / 4) : 1;
    return 7e-3 * logits * sqrt(log(2.0 * k_dim) / log(256)) *
           (is_family(&info, "channel") ? 1.1 : 1) * (info.bits == 2 ? sqrt(1.2) : 1) * mixed;
}

static double v_bound(quire_codec codec, bool halved) {
    const quire_codec_info info = info_of(codec);
    if (is_family(&info, "raw"))
        return halved ? FP16_ROUNDING : 1e-5;
    if (info.bits == 8)
        return 2e-4;
    return is_family(&info, "affine") || is_family(&info, "block") ? 8.5e-3 : 7e-3;
}

double attend_bound(quire_pair pair, int k_dim, double logits, bool k_halved, bool v_halved) {
    return hypot(k_bound(pair.k, k_dim, logits, k_halved), v_bound(pair.v, v_halved));
}
