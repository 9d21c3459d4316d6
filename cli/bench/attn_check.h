/* attn_check.h: how far the library's attention is from attention in double precision. */
#ifndef CLI_BENCH_ATTN_CHECK_H
#define CLI_BENCH_ATTN_CHECK_H

#include "bench/synth_cache.h"

typedef struct cli_attn_errors {
    double rel_err; /* against fp64 attention over the values that the cache holds: what the kernels
                       cost */
    double codec_err; /* against fp64 attention over the rows as they were given: what kernels and
                         codecs cost */
} cli_attn_errors;

/* Checks cache->out of the open batch, attended at layer 0: a few of its rows, over the whole
 * depth. Layers without a window alone. Relative L2 errors over the checked rows, all heads.
 * Returns an exit status. */
int cli_attn_check(cli_cache *cache, cli_attn_errors *errors);

#endif
