/* bench_attn.h: times attention over a quantized cache. */
#ifndef CLI_BENCH_BENCH_ATTN_H
#define CLI_BENCH_BENCH_ATTN_H

#include "bench/attn_check.h"
#include "bench/synth_cache.h"

typedef struct cli_bench_attn {
    int32_t n_rows;        /* query rows per call; 1: decode */
    int32_t n_layers;      /* attended in turn by each call; more than 1 needs n_rows 1 */
    const int32_t *depths; /* tokens before the first row, ascending: one measurement each */
    size_t n_depths;
    int32_t n_repeat; /* 0: as many as fit in min_seconds, within limits */
    double min_seconds;
    bool check;
} cli_bench_attn;

/* Of one layer: times are the mean over the layers of a call. */
typedef struct cli_bench_attn_result {
    char kernel[64], isa[32];
    double bits_per_element;
    int32_t depth, n_repeat;
    double median_ms, best_ms;
    uint64_t bytes_read; /* by one call, in one layer */
    uint64_t fallbacks;
    double gbps;  /* bytes_read in the median time */
    double gmacs; /* 1e9 multiply-accumulates of q.k and p.v per second; each counts once, even if
                     8-bit codes need two passes */
    double rows_per_s;
    double ns_per_token;          /* best time per row and token; constant if the cost is linear */
    double best_gbps, best_gmacs; /* in the best time */
    cli_attn_errors errors;       /* NaN: not checked */
} cli_bench_attn_result;

/* Times one cache that grows from depth to depth. options: n_layers, max_tokens and attend_rows
 * are set here. Returns an exit status. */
int cli_bench_attn_measure(const cli_bench_attn *bench, const cli_cache_options *options,
                           cli_bench_attn_result *results /* (n_depths) */);

#endif
