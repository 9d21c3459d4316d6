/* synth.h: made-up rows of K, V and Q, the same on every machine.
 *
 * Every head vector is a function of (seed, stream, layer, token, head) alone, so a check can
 * make any row again instead of keeping it. Values are standard normal; K has a constant offset
 * per channel on top, as real models have, which is what per-channel codecs live on. */
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
/* The order of channels that km4 and km3 want of K: by their ranges in the first page. q's
 * channels are all alike. */
quire_status cli_synth_order(const cli_synth *k_rows, uint16_t *order /* (n_heads, dim) */);

#endif
