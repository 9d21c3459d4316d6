/* synth_cache.h: a pool with one sequence of synthetic tokens, for reports and benchmarks without a
 * model.
 *
 * Functions that return int return an exit status, after a message if they failed. */
#ifndef CLI_BENCH_SYNTH_CACHE_H
#define CLI_BENCH_SYNTH_CACHE_H

#include "bench/synth.h"
#include "options/cache_args.h"
#include "options/workers.h"

#include "quire.h"

typedef struct cli_cache_options {
    cli_shape shape;
    int32_t n_layers;
    int32_t max_tokens;   /* largest length of the sequence */
    int32_t attend_rows;  /* most rows of a batch that attends */
    int32_t window, keep; /* of every layer */
    quire_policy policy;
    quire_type raw;
    size_t budget_bytes; /* 0: as much as necessary */
    bool by_queries; /* query-aware rounding, with synthetic query moments, for codecs of K with an
                        order of channels */
    int32_t n_workers;
    uint64_t seed;
} cli_cache_options;

typedef struct cli_cache {
    cli_cache_options options;
    quire_pool *pool;
    quire_seq *seq;
    cli_workers *workers;
    int32_t batch_rows; /* most rows of any batch */
    uint16_t *orders;   /* (n_layers,G,DK) orders of channels, if K's codec needs them; else NULL */
    float *feedback;    /* (G,DK*DK/2) for every layer, with by_queries; else NULL */
    quire_rope rope;    /* for `feedback` */

    /* the open batch */
    quire_batch *batch;
    int32_t first_token, n_rows;
    float *k, *v;   /* (n_rows,G,DK) (n_rows,G,DV) of the layer appended last */
    float *q, *out; /* (n_rows,H,DK) (n_rows,H,DV) */
} cli_cache;

int cli_cache_open(cli_cache *cache, const cli_cache_options *options);
void cli_cache_close(cli_cache *cache); /* after a failed open too */

/* Appends tokens, without attending, until the sequence has n_tokens. */
int cli_cache_fill(cli_cache *cache, int32_t n_tokens);

int cli_cache_begin(cli_cache *cache, int32_t n_rows);
int cli_cache_append(cli_cache *cache, int32_t layer); /* cli_cache_make_rows and _append_rows */
void cli_cache_make_rows(cli_cache *cache, int32_t layer);
int cli_cache_append_rows(cli_cache *cache, int32_t layer);
void cli_cache_make_queries(cli_cache *cache, int32_t layer);
/* Attention of cache->q into cache->out, with all workers. */
int cli_cache_attend(cli_cache *cache, int32_t layer);
int cli_cache_commit(cli_cache *cache);
void cli_cache_abort(cli_cache *cache);

cli_synth cli_cache_synth(const cli_cache *cache, cli_stream stream, int32_t layer);
/* The order of channels of one layer and KV head, or NULL. */
const uint16_t *cli_cache_order(const cli_cache *cache, int32_t layer, int32_t head);

#endif
