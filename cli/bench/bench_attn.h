/* bench_attn.h: one measurement of attention over a packed cache. */
#ifndef CLI_BENCH_BENCH_ATTN_H
#define CLI_BENCH_BENCH_ATTN_H

#include "bench/attn_check.h"
#include "bench/synth_cache.h"

typedef struct cli_bench_attn {
    int32_t n_rows;        /* queries of one attend; 1: decode */
    const int32_t *depths; /* tokens before the first of them: one measurement each, ascending */
    size_t n_depths;
    int32_t n_repeat; /* 0: as many as fit in min_seconds, within reason */
    double min_seconds;
    bool check;
} cli_bench_attn;

typedef struct cli_bench_attn_result {
    char kernel[64], isa[32];
    double bits_per_element;
    int32_t depth, n_repeat;
    double median_ms, best_ms;
    uint64_t bytes_read; /* by one attend */
    uint64_t fallbacks;
    double gbps;  /* bytes_read in the median time */
    double gmacs; /* 1e9 multiplications of q.k and p.v per second, each with its addition; one
                     plane of each counts */
    double rows_per_s;
    double ns_per_token; /* best time by rows and tokens that they see: flat where cost is linear */
    double best_gbps, best_gmacs; /* in the best time */
    cli_attn_errors errors;       /* NaN: not checked */
} cli_bench_attn_result;

/* Returns an exit status. options: one layer; max_tokens and attend_rows are set here. One cache
 * grows from depth to depth. */
int cli_bench_attn_measure(const cli_bench_attn *bench, const cli_cache_options *options,
                           cli_bench_attn_result *results /* (n_depths) */);

#endif
