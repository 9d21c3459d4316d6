/* attn_check.c: fp64 attention, page by page.
 *
 * Rows are generated again, rounded to the pool's raw type, and encoded and decoded with the
 * library's page functions. Attention uses an online softmax, so memory does not grow with the
 * depth. What row i sees:
 *
 *     page 0          page 1 ..       page i/64
 *     sinks | packed  packed          raw up to i
 *
 * A worker takes whole KV heads, and sums are added in the order of heads, so the result does not
 * depend on -t. */
#include "bench/attn_check.h"

#include "command.h"
#include "output/progress.h"
#include "output/report.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { T = QUIRE_PAGE_TOKENS, ROWS_MAX = 3 };

typedef struct kv_page {
    float *k, *v; /* (T,DK) (T,DV) */
} kv_page;

/* One query head of one row, in progress. */
typedef struct softmax_state {
    double max, sum;
    double *acc; /* (DV) */
} softmax_state;

typedef struct head_sums {
    double held_diff, held_norm;   /* against the values in the cache */
    double given_diff, given_norm; /* against the original rows */
} head_sums;

typedef struct check_job {
    cli_cache *cache;
    cli_synth k_rows, v_rows;
    quire_page_shape packed_shape, raw_shape;
    size_t packed_bytes, raw_bytes;
    int32_t rows[ROWS_MAX], n_rows; /* rows of the batch that are checked */
    int32_t n_pages;
    head_sums *sums; /* (G) */
    cli_progress *progress;
    atomic_int status; /* quire_status of a failed page */
} check_job;

/* A worker's memory. */
typedef struct scratch {
    void *page;
    kv_page given, raw, later; /* original; as rows of the page see it; as rows of later pages do */
    kv_page placed;            /* with the channels of K in the order of the cache */
    softmax_state *held,
        *full; /* (n_rows * H/G) over the values in the cache; over original rows */
    double *acc;
} scratch;

/* ------------------------------------------------------------------ scratch */

static bool new_kv_page(kv_page *page, const cli_shape *shape) {
    page->k = malloc((size_t)T * (size_t)shape->k_dim * sizeof(float));
    page->v = malloc((size_t)T * (size_t)shape->v_dim * sizeof(float));
    return page->k && page->v;
}

static void free_kv_page(kv_page *page) {
    free(page->k);
    free(page->v);
}

static size_t states_per_head(const check_job *job) {
    const cli_shape *shape = &job->cache->options.shape;
    return (size_t)job->n_rows * (size_t)(shape->n_heads / shape->n_kv_heads);
}

static void free_scratch(scratch *s) {
    free(s->page);
    free_kv_page(&s->given);
    free_kv_page(&s->raw);
    free_kv_page(&s->later);
    free_kv_page(&s->placed);
    free(s->held);
    free(s->full);
    free(s->acc);
}

static bool new_scratch(const check_job *job, scratch *s) {
    const cli_shape *shape = &job->cache->options.shape;
    size_t n_states = states_per_head(job), v_dim = (size_t)shape->v_dim;
    memset(s, 0, sizeof *s);
    s->page = malloc(job->packed_bytes > job->raw_bytes ? job->packed_bytes : job->raw_bytes);
    s->held = calloc(n_states, sizeof *s->held);
    s->full = calloc(n_states, sizeof *s->full);
    s->acc = calloc(2 * n_states, v_dim * sizeof *s->acc);
    bool pages = new_kv_page(&s->given, shape) && new_kv_page(&s->raw, shape) &&
                 new_kv_page(&s->later, shape) && new_kv_page(&s->placed, shape);
    return s->page && s->held && s->full && s->acc && pages;
}

static void clear_states(const check_job *job, scratch *s) {
    size_t n_states = states_per_head(job), v_dim = (size_t)job->cache->options.shape.v_dim;
    for (size_t i = 0; i < n_states; i++) {
        s->held[i] = (softmax_state){.max = -INFINITY, .acc = s->acc + i * v_dim};
        s->full[i] = (softmax_state){.max = -INFINITY, .acc = s->acc + (n_states + i) * v_dim};
    }
    memset(s->acc, 0, 2 * n_states * v_dim * sizeof *s->acc);
}

/* ------------------------------------------------------------------ what the cache holds */

static quire_status through_page(const quire_page_shape *shape, const kv_page *in, int32_t skip,
                                 void *page, kv_page *out) {
    quire_status status = quire_page_encode(shape, in->k, in->v, skip, page);
    return status == QUIRE_OK ? quire_page_decode(shape, page, out->k, out->v) : status;
}

/* Permutes the channels of K before encoding and back after decoding, if the cache orders them. */
static quire_status through_ordered_page(const check_job *job, int32_t head, const kv_page *in,
                                         int32_t skip, scratch *s, kv_page *out) {
    const uint16_t *order = cli_cache_order(job->cache, job->k_rows.layer, head);
    const int32_t dim = job->k_rows.dim;
    if (!order)
        return through_page(&job->packed_shape, in, skip, s->page, out);
    for (int32_t i = 0; i < T * dim; i++)
        s->placed.k[i] = in->k[i / dim * dim + order[i % dim]];
    memcpy(s->placed.v, in->v, (size_t)T * (size_t)job->v_rows.dim * sizeof(float));
    quire_status status = through_page(&job->packed_shape, &s->placed, skip, s->page, &s->placed);
    for (int32_t i = 0; i < T * dim; i++)
        out->k[i / dim * dim + order[i % dim]] = s->placed.k[i];
    memcpy(out->v, s->placed.v, (size_t)T * (size_t)job->v_rows.dim * sizeof(float));
    return status;
}

static quire_status make_page(const check_job *job, int32_t page, int32_t head, scratch *s) {
    size_t k_dim = (size_t)job->k_rows.dim, v_dim = (size_t)job->v_rows.dim;
    for (int32_t t = 0; t < T; t++) {
        cli_synth_head(&job->k_rows, page * T + t, head, s->given.k + (size_t)t * k_dim);
        cli_synth_head(&job->v_rows, page * T + t, head, s->given.v + (size_t)t * v_dim);
    }
    quire_status status = through_page(&job->raw_shape, &s->given, 0, s->page, &s->raw);
    /* No later page sees the last one, which may not be full. */
    if (status != QUIRE_OK || page + 1 == job->n_pages)
        return status;

    size_t sinks = page == 0 ? (size_t)job->cache->options.policy.sinks : 0;
    status = through_ordered_page(job, head, &s->raw, (int32_t)sinks, s, &s->later);
    memcpy(s->later.k, s->raw.k, sinks * k_dim * sizeof(float));
    memcpy(s->later.v, s->raw.v, sinks * v_dim * sizeof(float));
    return status;
}

/* ------------------------------------------------------------------ attention */

static double dot(const float *a, const float *b, int32_t n) {
    double sums[4] = {0}; /* dims are multiples of 16; four chains hide the latency of addition */
    for (int32_t i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++)
            sums[j] += (double)a[i + j] * (double)b[i + j];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static void absorb(softmax_state *state, const float *q, const kv_page *page, int32_t n_seen,
                   int32_t k_dim, int32_t v_dim) {
    double logits[T], max = state->max;
    for (int32_t t = 0; t < n_seen; t++) {
        logits[t] = dot(q, page->k + (size_t)t * (size_t)k_dim, k_dim) / sqrt(k_dim);
        if (logits[t] > max)
            max = logits[t];
    }
    double shrink = exp(state->max - max); /* 0 for the first page */
    state->max = max;
    state->sum *= shrink;
    for (int32_t c = 0; c < v_dim; c++)
        state->acc[c] *= shrink;
    for (int32_t t = 0; t < n_seen; t++) {
        double weight = exp(logits[t] - max);
        const float *v = page->v + (size_t)t * (size_t)v_dim;
        state->sum += weight;
        for (int32_t c = 0; c < v_dim; c++)
            state->acc[c] += weight * (double)v[c];
    }
}

/* The index of query head `member` of KV head `head` in `row`. */
static size_t query_head(const check_job *job, int32_t row, int32_t head, int32_t member) {
    const cli_shape *shape = &job->cache->options.shape;
    int32_t group = shape->n_heads / shape->n_kv_heads;
    return (size_t)row * (size_t)shape->n_heads + (size_t)(head * group + member);
}

static void absorb_page(const check_job *job, int32_t page, int32_t head, scratch *s) {
    const cli_shape *shape = &job->cache->options.shape;
    int32_t group = shape->n_heads / shape->n_kv_heads;
    for (int32_t i = 0; i < job->n_rows; i++) {
        int32_t position = job->cache->first_token + job->rows[i];
        int32_t own_page = position / T;
        if (page > own_page)
            continue;
        int32_t n_seen = page == own_page ? position % T + 1 : T;
        for (int32_t member = 0; member < group; member++) {
            const float *q =
                job->cache->q + query_head(job, job->rows[i], head, member) * (size_t)shape->k_dim;
            size_t at = (size_t)(i * group + member);
            absorb(&s->held[at], q, page == own_page ? &s->raw : &s->later, n_seen, shape->k_dim,
                   shape->v_dim);
            absorb(&s->full[at], q, &s->given, n_seen, shape->k_dim, shape->v_dim);
        }
    }
}

static head_sums compare(const check_job *job, int32_t head, const scratch *s) {
    const cli_shape *shape = &job->cache->options.shape;
    int32_t group = shape->n_heads / shape->n_kv_heads;
    head_sums sums = {0};
    for (int32_t i = 0; i < job->n_rows; i++) {
        for (int32_t member = 0; member < group; member++) {
            const float *out = job->cache->out +
                               query_head(job, job->rows[i], head, member) * (size_t)shape->v_dim;
            const softmax_state *held = &s->held[i * group + member],
                                *full = &s->full[i * group + member];
            for (int32_t c = 0; c < shape->v_dim; c++) {
                double of_held = held->acc[c] / held->sum, of_given = full->acc[c] / full->sum;
                sums.held_diff += (out[c] - of_held) * (out[c] - of_held);
                sums.held_norm += of_held * of_held;
                sums.given_diff += (out[c] - of_given) * (out[c] - of_given);
                sums.given_norm += of_given * of_given;
            }
        }
    }
    return sums;
}

static quire_status check_head(const check_job *job, int32_t head, scratch *s,
                               bool shows_progress) {
    const int32_t n_heads = job->cache->options.shape.n_kv_heads;
    clear_states(job, s);
    for (int32_t page = 0; page < job->n_pages; page++) {
        quire_status status = make_page(job, page, head, s);
        if (status != QUIRE_OK)
            return status;
        absorb_page(job, page, head, s);
        if (shows_progress) {
            cli_progress_update(job->progress, (int64_t)head * job->n_pages + page,
                                (int64_t)n_heads * job->n_pages);
        }
    }
    job->sums[head] = compare(job, head, s);
    return QUIRE_OK;
}

static void check_part(void *user, int32_t ith, int32_t nth) {
    check_job *job = user;
    scratch s;
    quire_status status = new_scratch(job, &s) ? QUIRE_OK : QUIRE_E_NOMEM;
    /* Heads are interleaved, so that the progress of worker 0 is that of all workers. */
    for (int32_t head = ith; status == QUIRE_OK && head < job->cache->options.shape.n_kv_heads;
         head += nth) {
        status = check_head(job, head, &s, ith == 0);
    }
    free_scratch(&s);
    if (status != QUIRE_OK)
        atomic_store(&job->status, (int)status);
}

/* ------------------------------------------------------------------ the check */

/* First, middle and last: they differ in how much of their own page they see. */
static void choose_rows(check_job *job, int32_t n_rows) {
    job->n_rows = n_rows < ROWS_MAX ? n_rows : ROWS_MAX;
    for (int32_t i = 0; i < job->n_rows; i++) {
        job->rows[i] =
            job->n_rows == 1 ? 0 : (int32_t)((int64_t)(n_rows - 1) * i / (job->n_rows - 1));
    }
}

static quire_status prepare(check_job *job, cli_cache *cache) {
    const cli_cache_options *options = &cache->options;
    job->cache = cache;
    job->k_rows = cli_cache_synth(cache, CLI_STREAM_K, 0);
    job->v_rows = cli_cache_synth(cache, CLI_STREAM_V, 0);
    job->packed_shape = (quire_page_shape){.pair = options->policy.pair,
                                           .k_dim = options->shape.k_dim,
                                           .v_dim = options->shape.v_dim,
                                           .raw = options->raw};
    job->raw_shape = job->packed_shape;
    job->raw_shape.pair = (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};
    choose_rows(job, cache->n_rows);
    job->n_pages = (cache->first_token + job->rows[job->n_rows - 1]) / T + 1;
    atomic_init(&job->status, QUIRE_OK);

    quire_status status = quire_page_bytes(&job->packed_shape, &job->packed_bytes);
    if (status == QUIRE_OK)
        status = quire_page_bytes(&job->raw_shape, &job->raw_bytes);
    job->sums = calloc((size_t)options->shape.n_kv_heads, sizeof *job->sums);
    return job->sums ? status : QUIRE_E_NOMEM;
}

static cli_attn_errors add_up(const head_sums *sums, int32_t n_heads) {
    head_sums total = {0};
    for (int32_t head = 0; head < n_heads; head++) {
        total.held_diff += sums[head].held_diff;
        total.held_norm += sums[head].held_norm;
        total.given_diff += sums[head].given_diff;
        total.given_norm += sums[head].given_norm;
    }
    return (cli_attn_errors){.rel_err = sqrt(total.held_diff / total.held_norm),
                             .codec_err = sqrt(total.given_diff / total.given_norm)};
}

int cli_attn_check(cli_cache *cache, cli_attn_errors *errors) {
    cli_progress progress;
    cli_progress_start(&progress, "checking");
    check_job job = {.progress = &progress};
    quire_status status = prepare(&job, cache);
    if (status == QUIRE_OK) {
        cli_workers_run(cache->workers, check_part, &job);
        status = (quire_status)atomic_load(&job.status);
    }
    if (status == QUIRE_OK)
        *errors = add_up(job.sums, cache->options.shape.n_kv_heads);
    free(job.sums);
    cli_progress_end(&progress);
    if (status == QUIRE_OK)
        return CLI_OK;
    return cli_quire_error("cannot check the attention", status, quire_status_text(status));
}
