/* synth_cache.c: creates the pool and runs its batches with all workers. */
#include "bench/synth_cache.h"

#include "command.h"
#include "output/progress.h"
#include "output/report.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { FILL_ROWS = 512 };

/* ------------------------------------------------------------------ open and close */

static quire_status create_pool(cli_cache *cache, const quire_layer *layers) {
    const cli_cache_options *options = &cache->options;
    quire_pool_options pool;
    quire_pool_options_default(&pool);
    pool.layers = layers;
    pool.n_layers = options->n_layers;
    pool.policy = options->policy;
    /* If there is a window, all layers have it; raw, as in presets, they would ignore --kv. */
    pool.policy.windowed = options->policy.pair;
    pool.raw = options->raw;
    pool.max_seqs = 1;
    pool.max_tokens = options->max_tokens;
    pool.max_batch_tokens = cache->batch_rows;
    pool.max_workers = options->n_workers;
    pool.budget_bytes = options->budget_bytes;
    const quire_status status =
        pool.budget_bytes ? QUIRE_OK : quire_pool_price(&pool, &pool.budget_bytes);
    return status == QUIRE_OK ? quire_pool_create(&cache->pool, &pool) : status;
}

const uint16_t *cli_cache_order(const cli_cache *cache, int32_t layer, int32_t head) {
    const cli_shape *shape = &cache->options.shape;
    if (!cache->orders)
        return NULL;
    return cache->orders +
           ((size_t)layer * (size_t)shape->n_kv_heads + (size_t)head) * (size_t)shape->k_dim;
}

static quire_status make_orders(cli_cache *cache, quire_layer *layers) {
    const cli_cache_options *options = &cache->options;
    const size_t per_layer = (size_t)options->shape.n_kv_heads * (size_t)options->shape.k_dim;
    quire_status status = QUIRE_OK;
    if (!quire_codec_is_ordered(options->policy.pair.k))
        return QUIRE_OK;
    cache->orders = calloc((size_t)options->n_layers * per_layer, sizeof *cache->orders);
    if (!cache->orders)
        return QUIRE_E_NOMEM;
    for (int32_t i = 0; status == QUIRE_OK && i < options->n_layers; i++) {
        const cli_synth k_rows = cli_cache_synth(cache, CLI_STREAM_K, i);
        status = cli_synth_order(&k_rows, cache->orders + (size_t)i * per_layer);
        layers[i].k_order = cache->orders + (size_t)i * per_layer;
    }
    return status;
}

/* A moment that halves with each place between two channels. Any moment will do for timing. */
static quire_status fill_feedback(const cli_shape *shape, const quire_rope *rope, float *moment,
                                  float *feedback) {
    const size_t dim = (size_t)shape->k_dim, n_weights = dim * dim / 2;
    quire_status status = QUIRE_OK;
    for (size_t i = 0; i < dim * dim; i++)
        moment[i] = exp2f(-fabsf((float)(i / dim) - (float)(i % dim)));
    for (int32_t head = 0; status == QUIRE_OK && head < shape->n_kv_heads; head++)
        status =
            quire_channel_feedback(moment, rope, shape->k_dim, feedback + (size_t)head * n_weights);
    return status;
}

static quire_status make_feedback(cli_cache *cache, quire_layer *layers) {
    const cli_shape *shape = &cache->options.shape;
    const size_t dim = (size_t)shape->k_dim;
    if (!cache->options.by_queries || !cache->orders)
        return QUIRE_OK;
    cache->rope = (quire_rope){.n_rot = shape->k_dim, .base = 10000};
    float *moment = calloc(dim * dim, sizeof *moment);
    cache->feedback = calloc((size_t)shape->n_kv_heads * (dim * dim / 2), sizeof *cache->feedback);
    const quire_status status = moment && cache->feedback
                                    ? fill_feedback(shape, &cache->rope, moment, cache->feedback)
                                    : QUIRE_E_NOMEM;
    for (int32_t i = 0; i < cache->options.n_layers; i++)
        layers[i].k_feedback = cache->feedback, layers[i].k_rope = &cache->rope;
    free(moment);
    return status;
}

static quire_status create_pool_of_equal_layers(cli_cache *cache) {
    const cli_cache_options *options = &cache->options;
    quire_layer *layers = calloc((size_t)options->n_layers, sizeof *layers);
    if (!layers)
        return QUIRE_E_NOMEM;
    for (int32_t i = 0; i < options->n_layers; i++) {
        quire_layer_default(&layers[i]);
        layers[i].n_heads = options->shape.n_heads;
        layers[i].n_kv_heads = options->shape.n_kv_heads;
        layers[i].k_dim = options->shape.k_dim;
        layers[i].v_dim = options->shape.v_dim;
        layers[i].window = options->window;
        layers[i].keep = options->keep;
    }
    quire_status status = make_orders(cache, layers);
    if (status == QUIRE_OK)
        status = make_feedback(cache, layers);
    if (status == QUIRE_OK)
        status = create_pool(cache, layers);
    free(layers);
    return status;
}

static float *new_rows(int32_t n_rows, int32_t n_heads, int32_t dim) {
    return calloc((size_t)n_rows * (size_t)n_heads, (size_t)dim * sizeof(float));
}

static bool allocate_rows(cli_cache *cache) {
    const cli_shape *shape = &cache->options.shape;
    int32_t attend_rows = cache->options.attend_rows;
    cache->k = new_rows(cache->batch_rows, shape->n_kv_heads, shape->k_dim);
    cache->v = new_rows(cache->batch_rows, shape->n_kv_heads, shape->v_dim);
    cache->q = new_rows(attend_rows, shape->n_heads, shape->k_dim);
    cache->out = new_rows(attend_rows, shape->n_heads, shape->v_dim);
    return cache->k && cache->v && cache->q && cache->out;
}

static int32_t most_batch_rows(const cli_cache_options *options) {
    int32_t rows = options->max_tokens < FILL_ROWS ? options->max_tokens : FILL_ROWS;
    return rows > options->attend_rows ? rows : options->attend_rows;
}

int cli_cache_open(cli_cache *cache, const cli_cache_options *options) {
    *cache = (cli_cache){.options = *options, .batch_rows = most_batch_rows(options)};
    quire_status status = create_pool_of_equal_layers(cache);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot create the pool", status, NULL);
    status = quire_seq_create(cache->pool, &cache->seq);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot create a sequence", status, NULL);
    if (!allocate_rows(cache)) {
        cli_error("out of memory for the rows of a batch");
        return CLI_FAILURE;
    }
    cache->workers = cli_workers_start(options->n_workers);
    return cache->workers ? CLI_OK : CLI_FAILURE;
}

void cli_cache_close(cli_cache *cache) {
    cli_cache_abort(cache);
    cli_workers_stop(cache->workers);
    quire_pool_free(cache->pool); /* and its sequence */
    free(cache->k);
    free(cache->v);
    free(cache->q);
    free(cache->out);
    free(cache->orders);
    free(cache->feedback);
    *cache = (cli_cache){.pool = NULL};
}

/* ------------------------------------------------------------------ work for all workers */

typedef struct layer_job {
    cli_cache *cache;
    int32_t layer;
    atomic_int status; /* the quire_status of a worker that failed */
} layer_job;

cli_synth cli_cache_synth(const cli_cache *cache, cli_stream stream, int32_t layer) {
    const cli_shape *shape = &cache->options.shape;
    return (cli_synth){.seed = cache->options.seed,
                       .stream = stream,
                       .layer = layer,
                       .n_heads = stream == CLI_STREAM_Q ? shape->n_heads : shape->n_kv_heads,
                       .dim = stream == CLI_STREAM_V ? shape->v_dim : shape->k_dim};
}

static void make_rows(const layer_job *job, cli_stream stream, float *rows, cli_part part) {
    cli_synth synth = cli_cache_synth(job->cache, stream, job->layer);
    size_t row_floats = (size_t)synth.n_heads * (size_t)synth.dim;
    for (int32_t row = part.first; row < part.last; row++) {
        cli_synth_row(&synth, job->cache->first_token + row, rows + (size_t)row * row_floats);
    }
}

static void make_kv_part(void *user, int32_t ith, int32_t nth) {
    layer_job *job = user;
    cli_part part = cli_part_of(job->cache->n_rows, ith, nth);
    make_rows(job, CLI_STREAM_K, job->cache->k, part);
    make_rows(job, CLI_STREAM_V, job->cache->v, part);
}

static void make_q_part(void *user, int32_t ith, int32_t nth) {
    layer_job *job = user;
    make_rows(job, CLI_STREAM_Q, job->cache->q, cli_part_of(job->cache->n_rows, ith, nth));
}

static void append_part(void *user, int32_t ith, int32_t nth) {
    layer_job *job = user;
    quire_rows k = {.data = job->cache->k, .type = QUIRE_F32},
               v = {.data = job->cache->v, .type = QUIRE_F32};
    quire_status status = quire_batch_append(job->cache->batch, job->layer, k, v, ith, nth);
    if (status != QUIRE_OK)
        atomic_store(&job->status, (int)status);
}

static void attend_part(void *user, int32_t ith, int32_t nth) {
    layer_job *job = user;
    quire_attend_args args = {.q = {.data = job->cache->q, .type = QUIRE_F32},
                              .out = job->cache->out};
    quire_status status = quire_batch_attend(job->cache->batch, job->layer, &args, ith, nth);
    if (status != QUIRE_OK)
        atomic_store(&job->status, (int)status);
}

static int finish(layer_job *job, const char *doing) {
    quire_status status = (quire_status)atomic_load(&job->status);
    if (status == QUIRE_OK)
        return CLI_OK;
    return cli_quire_error(doing, status, quire_batch_error(job->cache->batch));
}

/* ------------------------------------------------------------------ batches */

int cli_cache_begin(cli_cache *cache, int32_t n_rows) {
    quire_batch_item item = {.seq = cache->seq, .n_tokens = n_rows};
    cache->first_token = quire_seq_length(cache->seq);
    cache->n_rows = n_rows;
    quire_status status = quire_batch_begin(cache->pool, &item, 1, &cache->batch);
    if (status != QUIRE_OK) {
        cache->batch = NULL;
        cli_quire_error("cannot begin a batch", status, NULL);
        if (status == QUIRE_E_NO_PAGES && cache->options.budget_bytes)
            cli_error("the tokens do not fit; give a larger --budget");
        return CLI_FAILURE;
    }
    return CLI_OK;
}

void cli_cache_make_rows(cli_cache *cache, int32_t layer) {
    layer_job job = {.cache = cache, .layer = layer};
    cli_workers_run(cache->workers, make_kv_part, &job);
}

int cli_cache_append_rows(cli_cache *cache, int32_t layer) {
    layer_job job = {.cache = cache, .layer = layer};
    atomic_init(&job.status, QUIRE_OK);
    cli_workers_run(cache->workers, append_part, &job);
    return finish(&job, "cannot append rows");
}

int cli_cache_append(cli_cache *cache, int32_t layer) {
    cli_cache_make_rows(cache, layer);
    return cli_cache_append_rows(cache, layer);
}

void cli_cache_make_queries(cli_cache *cache, int32_t layer) {
    layer_job job = {.cache = cache, .layer = layer};
    cli_workers_run(cache->workers, make_q_part, &job);
}

int cli_cache_attend(cli_cache *cache, int32_t layer) {
    layer_job job = {.cache = cache, .layer = layer};
    atomic_init(&job.status, QUIRE_OK);
    cli_workers_run(cache->workers, attend_part, &job);
    return finish(&job, "cannot compute attention");
}

int cli_cache_commit(cli_cache *cache) {
    quire_status status = quire_batch_commit(cache->batch, NULL);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot commit a batch", status, NULL);
    cache->batch = NULL;
    return CLI_OK;
}

void cli_cache_abort(cli_cache *cache) {
    quire_batch_abort(cache->batch);
    cache->batch = NULL;
}

static int fill_batch(cli_cache *cache, int32_t n_rows) {
    int status = cli_cache_begin(cache, n_rows);
    for (int32_t layer = 0; status == CLI_OK && layer < cache->options.n_layers; layer++) {
        status = cli_cache_append(cache, layer);
    }
    return status == CLI_OK ? cli_cache_commit(cache) : status;
}

int cli_cache_fill(cli_cache *cache, int32_t n_tokens) {
    cli_progress progress;
    cli_progress_start(&progress, "filling");
    int status = CLI_OK;
    int32_t length = quire_seq_length(cache->seq);
    while (status == CLI_OK && length < n_tokens) {
        int32_t left = n_tokens - length;
        status = fill_batch(cache, left < FILL_ROWS ? left : FILL_ROWS);
        length = quire_seq_length(cache->seq);
        cli_progress_update(&progress, length, n_tokens);
    }
    cli_progress_end(&progress);
    return status;
}
