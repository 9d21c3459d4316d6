/* bench_attn.h: one measurement of attention over a packed cache. */
#ifndef CLI_BENCH_ATTN_H
#define CLI_BENCH_ATTN_H

#include "attn_check.h"
#include "synth_cache.h"

typedef struct cli_bench_attn {
    int32_t n_rows;   /* queries of one attend; 1: decode */
    int32_t depth;    /* tokens before the first of them */
    int32_t n_repeat; /* 0: as many as fit in min_seconds, within reason */
    double min_seconds;
    bool check;
} cli_bench_attn;

typedef struct cli_bench_attn_result {
    char kernel[64], isa[32];
    double bits_per_element;
    int32_t n_repeat;
    double median_ms, best_ms;
    uint64_t bytes_read; /* by one attend */
    uint64_t fallbacks;
    double gbps;   /* bytes_read in the median time */
    double gflops; /* multiplications and additions of q.k and p.v */
    double rows_per_s;
    cli_attn_errors errors; /* NaN: not checked */
} cli_bench_attn_result;

/* Returns an exit status. options: one layer; max_tokens and attend_rows are set here. */
int cli_bench_attn_measure(const cli_bench_attn *bench, const cli_cache_options *options,
                           cli_bench_attn_result *result);

#endif
