/* synth.h: synthetic rows of K, V and Q, the same on every machine.
 *
 * Every head vector depends only on (seed, stream, layer, token, head), so a check can generate any
 * row again instead of keeping it. Values are standard normal. K also has a constant offset per
 * channel, as in real models, which per-channel codecs exploit. */
#ifndef CLI_BENCH_SYNTH_H
#define CLI_BENCH_SYNTH_H

#include "quire.h"

#include <stdint.h>

typedef enum cli_stream { CLI_STREAM_K = 1, CLI_STREAM_V = 2, CLI_STREAM_Q = 3 } cli_stream;

typedef struct cli_synth {
    uint64_t seed;
    cli_stream stream;
    int32_t layer;
    int32_t n_heads, dim; /* a row is (n_heads, dim) */
} cli_synth;

void cli_synth_head(const cli_synth *synth, int32_t token, int32_t head, float *out /* (dim) */);
void cli_synth_row(const cli_synth *synth, int32_t token, float *out /* (n_heads, dim) */);
/* The order of the channels of K for km4 and km3, by their ranges in the first page. All channels
 * of q have the same distribution. */
quire_status cli_synth_order(const cli_synth *k_rows, uint16_t *order /* (n_heads, dim) */);

#endif
