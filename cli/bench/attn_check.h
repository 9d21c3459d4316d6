/* attn_check.h: compares the library's attention with attention in double precision. */
#ifndef CLI_BENCH_ATTN_CHECK_H
#define CLI_BENCH_ATTN_CHECK_H

#include "bench/synth_cache.h"

typedef struct cli_attn_errors {
    double rel_err; /* against fp64 attention over the values in the cache: error of the kernels */
    double
        codec_err; /* against fp64 attention over the original rows: error of kernels and codecs */
} cli_attn_errors;

/* Checks up to three rows of cache->out, the attention of the open batch in layer 0, which must
 * have no window. The errors are relative L2 errors over these rows and all heads. Returns an exit
 * status. */
int cli_attn_check(cli_cache *cache, cli_attn_errors *errors);

#endif
