/* bench_seal.h: times the quantization of pages. */
#ifndef CLI_BENCH_BENCH_SEAL_H
#define CLI_BENCH_BENCH_SEAL_H

#include "bench/synth_cache.h"

typedef struct cli_bench_seal_result {
    char isa[32];
    int32_t n_repeat;
    double
        append_us;  /* per page and KV head: checking 64 rows and copying them into the open page */
    double seal_us; /* per page and KV head: quantizing them */
    double mb_per_s;   /* raw bytes quantized per second */
    double page_bytes; /* of a record */
} cli_bench_seal_result;

/* options: one layer, one worker; sizes are set here. Returns an exit status. */
int cli_bench_seal_measure(const cli_cache_options *options, double min_seconds,
                           cli_bench_seal_result *result);

#endif
