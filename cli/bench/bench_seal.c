/* bench_seal.c: appends the second page of a sequence repeatedly, with and without the row that
 * fills it: the difference is the time of sealing. */
#include "bench/bench_seal.h"

#include "command.h"
#include "output/progress.h"
#include "output/report.h"

#include <math.h>
#include <stdio.h>

enum { PAGE = QUIRE_PAGE_TOKENS, REPEATS_MIN = 20 };

/* Updates *best, the best time so far. */
static int timed_append(cli_cache *cache, int32_t n_rows, double *best) {
    int status = cli_cache_begin(cache, n_rows);
    if (status != CLI_OK)
        return status;
    double start = cli_seconds();
    status = cli_cache_append_rows(cache, 0);
    double seconds = cli_seconds() - start;
    cli_cache_abort(cache);
    if (seconds < *best)
        *best = seconds;
    return status;
}

static int measure_open(cli_cache *cache, double min_seconds, cli_bench_seal_result *result) {
    const cli_shape *shape = &cache->options.shape;
    int status = cli_cache_fill(cache, PAGE); /* the first page has sinks and is not typical */
    if (status == CLI_OK)
        status = cli_cache_begin(cache, PAGE);
    if (status != CLI_OK)
        return status;
    cli_cache_make_rows(cache, 0);
    cli_cache_abort(cache);

    double filled = INFINITY, open = INFINITY, start = cli_seconds();
    while (status == CLI_OK &&
           (result->n_repeat < REPEATS_MIN || cli_seconds() - start < min_seconds)) {
        status = timed_append(cache, PAGE, &filled);
        if (status == CLI_OK)
            status = timed_append(cache, PAGE - 1, &open);
        result->n_repeat++;
    }
    double store = open * PAGE / (PAGE - 1), pages = shape->n_kv_heads;
    double raw_bytes =
        pages * PAGE * (shape->k_dim + shape->v_dim) * (cache->options.raw == QUIRE_F32 ? 4 : 2);
    result->append_us = 1e6 * store / pages;
    result->seal_us = 1e6 * fmax(filled - store, 0) / pages;
    result->mb_per_s = filled > store ? 1e-6 * raw_bytes / (filled - store) : NAN;
    snprintf(result->isa, sizeof result->isa, "%s", quire_pool_isa(cache->pool));
    return status;
}

int cli_bench_seal_measure(const cli_cache_options *options, double min_seconds,
                           cli_bench_seal_result *result) {
    *result = (cli_bench_seal_result){.n_repeat = 0};
    const cli_shape *shape = &options->shape;
    const quire_page_shape page = {options->policy.pair, shape->k_dim, shape->v_dim, options->raw};
    size_t bytes = 0;
    quire_status sized_page = quire_page_bytes(&page, &bytes);
    if (sized_page != QUIRE_OK)
        return cli_quire_error("cannot measure", sized_page, NULL);
    result->page_bytes = (double)bytes;
    cli_cache_options sized = *options;
    sized.n_layers = 1;
    sized.n_workers = 1;
    sized.max_tokens = 2 * PAGE;
    sized.attend_rows = 1;
    cli_cache cache;
    int status = cli_cache_open(&cache, &sized);
    if (status == CLI_OK)
        status = measure_open(&cache, min_seconds, result);
    cli_cache_close(&cache);
    return status;
}
