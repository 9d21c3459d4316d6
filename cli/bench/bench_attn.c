/* bench_attn.c: fills a cache, then times attention repeatedly in one open batch. */
#include "bench/bench_attn.h"

#include "command.h"
#include "output/progress.h"
#include "output/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS_MIN = 3, REPEATS_MAX = 1000 };
static const double LONG_SECONDS =
    5; /* a call this long is timed once: its relative noise is small */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int32_t choose_repeats(const cli_bench_attn *bench, double call_seconds) {
    if (bench->n_repeat > 0)
        return bench->n_repeat;
    if (call_seconds > LONG_SECONDS)
        return 1;
    double fitting = ceil(bench->min_seconds / (call_seconds > 1e-9 ? call_seconds : 1e-9));
    return fitting < REPEATS_MIN   ? REPEATS_MIN
           : fitting > REPEATS_MAX ? REPEATS_MAX
                                   : (int32_t)fitting;
}

/* Attends every layer once and gives the mean time of one. Layer 0 comes last, so that cache->out
 * is what the check expects. */
static int timed_attend(cli_cache *cache, double *seconds) {
    const int32_t n_layers = cache->options.n_layers;
    double start = cli_seconds();
    int status = CLI_OK;
    for (int32_t layer = n_layers - 1; status == CLI_OK && layer >= 0; layer--)
        status = cli_cache_attend(cache, layer);
    *seconds = (cli_seconds() - start) / n_layers;
    return status;
}

static int time_repeats(cli_cache *cache, int32_t n_repeat, double *seconds) {
    cli_progress progress;
    cli_progress_start(&progress, "attending");
    int status = CLI_OK;
    for (int32_t i = 0; status == CLI_OK && i < n_repeat; i++) {
        status = timed_attend(cache, &seconds[i]);
        cli_progress_update(&progress, i + 1, n_repeat);
    }
    cli_progress_end(&progress);
    return status;
}

/* The tokens that the rows see, summed over rows. */
static double tokens_seen(const cli_cache *cache) {
    double n = cache->n_rows;
    return n * cache->first_token + n * (n + 1) / 2;
}

static void summarize(const cli_cache *cache, double *seconds, cli_bench_attn_result *result) {
    int32_t n = result->n_repeat;
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    const cli_shape *shape = &cache->options.shape;
    const double tokens = tokens_seen(cache),
                 macs = tokens * shape->n_heads * (shape->k_dim + shape->v_dim);
    const double median = 0.5 * (seconds[(n - 1) / 2] + seconds[n / 2]), best = seconds[0];
    result->median_ms = 1e3 * median;
    result->best_ms = 1e3 * best;
    result->gbps = 1e-9 * (double)result->bytes_read / median;
    result->gmacs = 1e-9 * macs / median;
    result->best_gbps = 1e-9 * (double)result->bytes_read / best;
    result->best_gmacs = 1e-9 * macs / best;
    result->rows_per_s = cache->n_rows / median;
    result->ns_per_token = 1e9 * best / tokens;
}

/* Measures the bytes that one call reads in a layer, which also warms the caches and gives an
 * estimate for the number of repeats. */
static int probe(cli_cache *cache, double *seconds, cli_bench_attn_result *result) {
    quire_layer_stats before, after;
    quire_status status = quire_layer_get_stats(cache->pool, 0, &before);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot read the statistics", status, NULL);
    int exit_status = timed_attend(cache, seconds);
    if (exit_status != CLI_OK)
        return exit_status;
    status = quire_layer_get_stats(cache->pool, 0, &after);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot read the statistics", status, NULL);

    result->bytes_read =
        (after.packed_read + after.raw_read) - (before.packed_read + before.raw_read);
    result->fallbacks = after.fallbacks - before.fallbacks;
    result->bits_per_element = after.bits_per_element;
    snprintf(result->kernel, sizeof result->kernel, "%s", after.kernel);
    snprintf(result->isa, sizeof result->isa, "%s", quire_pool_isa(cache->pool));
    return CLI_OK;
}

static int measure_depth(cli_cache *cache, const cli_bench_attn *bench, int32_t depth,
                         cli_bench_attn_result *result) {
    *result = (cli_bench_attn_result){.depth = depth, .errors = {NAN, NAN}};
    int status = cli_cache_fill(cache, depth);
    if (status == CLI_OK)
        status = cli_cache_begin(cache, bench->n_rows);
    for (int32_t layer = 0; status == CLI_OK && layer < bench->n_layers; layer++)
        status = cli_cache_append(cache, layer);
    if (status != CLI_OK)
        return status;
    cli_cache_make_queries(cache, 0);
    double layer_seconds = 0;
    status = probe(cache, &layer_seconds, result);
    if (status != CLI_OK)
        return status;

    result->n_repeat = choose_repeats(bench, layer_seconds * bench->n_layers);
    double *seconds = calloc((size_t)result->n_repeat, sizeof *seconds);
    if (!seconds)
        return cli_quire_error("cannot measure", QUIRE_E_NOMEM, "out of memory");
    status = time_repeats(cache, result->n_repeat, seconds);
    if (status == CLI_OK)
        summarize(cache, seconds, result);
    free(seconds);
    if (status == CLI_OK && bench->check)
        status = cli_attn_check(cache, &result->errors);
    return status;
}

int cli_bench_attn_measure(const cli_bench_attn *bench, const cli_cache_options *options,
                           cli_bench_attn_result *results) {
    cli_cache_options sized = *options;
    sized.n_layers = bench->n_layers;
    sized.max_tokens = bench->depths[bench->n_depths - 1] + bench->n_rows;
    sized.attend_rows = bench->n_rows;
    cli_cache cache;
    int status = cli_cache_open(&cache, &sized);
    for (size_t i = 0; status == CLI_OK && i < bench->n_depths; i++) {
        status = measure_depth(&cache, bench, bench->depths[i], &results[i]);
        cli_cache_abort(&cache); /* drop the rows before the cache grows */
    }
    cli_cache_close(&cache);
    return status;
}
