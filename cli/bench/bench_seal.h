/* bench_seal.h: one measurement of packing pages. */
#ifndef CLI_BENCH_BENCH_SEAL_H
#define CLI_BENCH_BENCH_SEAL_H

#include "bench/synth_cache.h"

typedef struct cli_bench_seal_result {
    char isa[32];
    int32_t n_repeat;
    double
        store_us; /* per page and KV head: 64 rows of K and V checked and put into the open page */
    double seal_us;    /* per page and KV head: packing them */
    double mb_per_s;   /* raw bytes that sealing takes in */
    double page_bytes; /* of a record */
} cli_bench_seal_result;

/* Returns an exit status. options: one layer, one worker; sizes are set here. */
int cli_bench_seal_measure(const cli_cache_options *options, double min_seconds,
                           cli_bench_seal_result *result);

#endif
