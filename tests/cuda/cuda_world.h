/* One attention layer for the tests of decode and prefill: rows, pages that the CPU library packed,
 * all of it on the device, and fp64 attention over what each query is supposed to see. */
#ifndef QUIRE_TESTS_CUDA_WORLD_H
#define QUIRE_TESTS_CUDA_WORLD_H

#include "cuda_kit.h"

enum { T = QUIRE_PAGE_TOKENS, MOST_SEQS = 48 };

typedef struct shape {
    int n_heads, n_kv, dim;
    quire_pair pair;
    quire_type type, out;
    int sinks, window, keep;
    int exact, rows_hint; /* of decode; of prefill */
    float softcap, scale;
    bool alibi, sink_logits;
    int n_seqs;
    /* Queries, and tokens before them. Decode: one query, and -1 token before it if there is none
     * to be seen. */
    int before[MOST_SEQS], rows[MOST_SEQS];
    float k_scale, v_scale, q_scale, bias;
} shape;

/* Those with kernels of their own. */
extern const quire_pair PAIRS[4];
extern const int DIMS[5];

shape shape_of(int n_heads, int n_kv, int dim, quire_pair pair);
int length_of(const shape *s, int seq);
int sealed(int length); /* pages that a query at the end sees packed */

/* Host and device sides of one call. Rows of K and V: (seq, head, token, dim); of q: (row, head,
 * dim). */
typedef struct world {
    shape s;
    int longest, n_pages, n_rows, start[MOST_SEQS + 1];
    size_t record_bytes, n_kv_values, n_out;
    float *k, *v, *q, alibi[64], sink_logits[64];
    uint8_t *records;
    int32_t *pages;
    const uint16_t *order;
    /* The arguments of both calls; world_plan_.. makes one of the plans. */
    quire_cuda_decode_plan *decode;
    quire_cuda_decode_args decode_args;
    quire_cuda_prefill_plan *prefill;
    quire_cuda_prefill_args prefill_args;
    void *device[24];
    int n_device;
} world;

size_t row_of(const world *w, int seq, int head, int token); /* of k and v */
/* Rows and queries; a test may change them before world_seal. */
void world_fill(world *w, const shape *s, uint64_t seed);
/* Pages packed by the CPU library, at places in random order; everything copied to the device. What
 * no query may read is NaN. */
void world_seal(world *w);
void world_plan_decode(world *w);
void world_plan_prefill(world *w);
void world_move_pages(world *w); /* every record to another place */
void world_free(world *w);

typedef struct outcome {
    double error, norm; /* squares, over all rows */
    double sigma;       /* of logits within rows, root of the mean square */
    double noise;       /* of logits if packed K is rounded to fp16, mean of squares */
    double lse_error, worst;
    double largest; /* |q| */
    int n_rows;
} outcome;

/* Results (rows, heads, dim) and log-sum-exp (rows, heads) against the oracle. A query that sees
 * nothing must have zeros. */
outcome compare(const world *w, const float *out, const float *lse);

#endif
