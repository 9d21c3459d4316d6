/* What the tests share: random rows, a small harness around a pool, and an oracle that nobody
 * can confuse with the library: dense fp64 attention over the values each query is supposed to
 * see. */
#ifndef QUIRE_TESTS_KIT_H
#define QUIRE_TESTS_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quire.h"

/* ---- kernel levels: what a test program returns when QUIRE_CPU names one that this machine
 * lacks */
enum { LEFT_OUT = 77 };
bool level_is_missing(void);

/* ---- sweeps: long loops over shapes, codecs and modes. A plain build with the machine's best
 * kernels runs every case. What repeats them, under a sanitizer or with another level named by
 * QUIRE_CPU, takes one case in n, always the same ones, and every case with
 * QUIRE_TEST_SWEEP=full, as `make test-all` has it. n must share no divisor with the sizes of the
 * loops around the case: then every value of every parameter still has its turn.
 * *turn counts the cases and starts at 0. */
bool sweep_takes(int *turn, int n);
/* For a sweep that is too long for `make test` in a plain build, too: there one case in `plain`. */
bool sweep_takes_of(int *turn, int plain, int n);
bool sweep_is_full(void); /* QUIRE_TEST_SWEEP=full */

/* ---- random numbers: splitmix64, so that every machine sees the same */
typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
double rng_uniform(rng *r);   /* [0, 1) */
int rng_below(rng *r, int n); /* 0..n-1 */
float rng_normal(rng *r);
void rng_fill(rng *r, float *x, size_t n, float scale);

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        const quire_status status_ = (call);                                                       \
        if (status_ != QUIRE_OK)                                                                   \
            fail_msg("%s: %s: %s", #call, quire_status_name(status_), quire_last_error());         \
    } while (0)
#define assert_status(call, wanted)                                                                \
    do {                                                                                           \
        const quire_status status_ = (call);                                                       \
        if (status_ != (wanted))                                                                   \
            fail_msg("%s: %s instead of %s: %s", #call, quire_status_name(status_),                \
                     quire_status_name(wanted), quire_last_error());                               \
    } while (0)

/* ---- a token's K, V and q for one layer are functions of (stream, layer, position): any
 * chunking, any order and any number of sequences then present the same rows, as a model would.
 * Two sequences that share a stream share a prefix. */
typedef struct source {
    uint64_t seed;
    float k_scale, v_scale, q_scale;
    const float *k_offset; /* added to every K row of every head (k_dim), or NULL */
    float k_channel_bias;  /* per-channel constant of this size in K, as real models have */
    uint64_t channel_seed; /* draws these constants; 0: seed does */
} source;

source source_default(uint64_t seed);
void source_k(const source *s, const quire_layer *l, int layer, int position,
              float *row /* (G, DK) */);
void source_v(const source *s, const quire_layer *l, int layer, int position,
              float *row /* (G, DV) */);
void source_q(const source *s, const quire_layer *l, int layer, int position,
              float *row /* (H, DK) */);

/* ---- orders of channels */
/* (g, dk): a random permutation for each head, the same at every call. */
const uint16_t *random_order(int g, int dk);
/* (64, dk) rows as they stand in a record of K, or back. `codec` other than km: as they are. */
void rows_into_order(quire_codec codec, const uint16_t *order, int dk, const float *rows,
                     float *placed);
void rows_from_order(quire_codec codec, const uint16_t *order, int dk, const float *placed,
                     float *rows);

/* ---- a pool with its layers */
typedef struct fixture {
    quire_pool *pool;
    quire_pool_options options;
    quire_layer layer[8];
    bool no_orders; /* else layers without one get random_order, so that any codec may be asked for
                     */
} fixture;

/* Sets defaults: one layer, H x G x D, the policy `kv`, 64 MiB. Change what you like, then
 * fixture_open. */
void fixture_init(fixture *f, int n_layers, int h, int g, int dk, int dv, const char *kv);
void fixture_open(fixture *f);
void fixture_close(fixture *f);
quire_status fixture_try(fixture *f); /* open; the status instead of a failed test */
/* Opens two pools of four layers with heads of `dim`: `made` has the policy k8v4 with raw layers at
 * both edges, which is returned; `given` has raw layers, to be given that policy. */
quire_policy fixture_open_edges(fixture *made, fixture *given, int dim);

/* ---- one step of several sequences through all layers, with `nth` threads */
typedef struct step_item {
    quire_seq *seq;
    const source *source;
    int n_tokens;
} step_item;

typedef struct step_options {
    int n_workers;     /* 0: 1 */
    const float *mask; /* as quire_attend_args, for every layer */
    size_t mask_row_stride, mask_head_stride;
    bool abort;      /* abort instead of commit */
    bool store_only; /* do not attend: to fill a cache quickly */
    const int32_t *n_accept;
    float *lse;      /* (layers, rows, H) or NULL */
    quire_type type; /* of the rows handed in */
} step_options;

/* out: (layers, rows, H, DV) or NULL. Returns begin's status when it fails. */
quire_status step(fixture *f, const step_item *items, int n_items, const step_options *options,
                  float *out);
/* Append n tokens in chunks of `chunk`; out: outputs (n, H, DV) of layer `layer`, or NULL: then
 * nothing is attended. */
void feed(fixture *f, quire_seq *seq, const source *s, int n, int chunk, int n_workers, int layer,
          float *out);

/* ---- the oracle */
/* What a query in page `own_page` sees of tokens 0..n-1, one KV head: packed pages decoded, own
 * page and sinks raw. */
void seen_values(const fixture *f, int layer, const source *s, int head, int n, int own_page,
                 double *k /* (n, DK) */, double *v /* (n, DV) */);
/* fp64 attention of the query at `position`, all heads: out (H, DV), lse (H) or NULL. */
void oracle_attend(const fixture *f, int layer, const source *s, int position,
                   const step_options *options, int row, double *out, double *lse);
/* The same for n_rows consecutive positions; row i of the mask belongs to the i-th. out (n_rows,
 * H, DV), lse (n_rows, H). */
void oracle_attend_rows(const fixture *f, int layer, const source *s, int position, int n_rows,
                        const step_options *options, double *out, double *lse);
double relative_error(const float *x, const double *wanted, size_t n); /* L2 */
/* How far attention over pages of these codecs may be from the oracle, over many rows: derived
 * at the head of test_attend.c. `logits`: their standard deviation, times what the layer's scale
 * adds. */
double attend_bound(quire_pair pair, int k_dim, double logits, bool k_halved, bool v_halved);

/* Whether a kernel rounds q (or weights) to fp16 too, where all of K (or V) is raw f16:
 * src/kern/neon/raw_fp16.h. */
bool kernel_uses_fp16(const char *name);
bool side_uses_fp16(const fixture *f, bool is_v); /* whether layer 0 has such a side */
/* What that costs a side, as relative L2 error at logits of standard deviation 1. fp16 rounds by
 * up to 2^-11 of the power of two below a number, uniformly; over all mantissas the root of the
 * mean square is 2^-11 * sqrt(3 / (8 ln 2) / 3) of the number. Errors of q meet K as q does, so
 * that a logit is off by that fraction of its standard deviation. */
#define FP16_ROUNDING 2.08e-4

#endif
