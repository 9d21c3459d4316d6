/* minimal.c: one attention layer on a quantized cache.
 *   cc minimal.c $(pkg-config --cflags --libs quire) -lm -o minimal && ./minimal */
#include <quire.h>

#include <math.h>
#include <stdio.h>

enum { N_TOKENS = 100, HEADS = 32, KV_HEADS = 8, DIM = 128 };

/* README.md prints this function; readme.cmake compares the two. */
/* clang-format off */
/* k, v: (n_tokens, 8, 128) go into the cache; q, out: (n_tokens, 32, 128). A decode step is the
 * same from quire_batch_begin on, with n_tokens = 1. */
static quire_status attend_prompt(quire_pool **pool, quire_seq **seq, int32_t n_tokens,
                                  const float *k, const float *v, const float *q, float *out) {
    quire_layer layer;                quire_layer_default(&layer);
    quire_pool_options options;       quire_pool_options_default(&options);
    quire_batch *batch = NULL;
    layer.n_heads = 32;               layer.n_kv_heads = 8;
    layer.k_dim = layer.v_dim = 128;  options.layers = &layer;  options.n_layers = 1;
    options.budget_bytes = (size_t)64 << 20;               /* all the memory it will ever take */
    quire_status s = quire_policy_parse("k8v4", &options.policy);              /* or "kc8:vt4" */
    if (!s) s = quire_pool_create(pool, &options);
    if (!s) s = quire_seq_create(*pool, seq);
    if (!s) s = quire_batch_begin(*pool, &(quire_batch_item){*seq, n_tokens}, 1, &batch);
    quire_rows k_rows = {.data = k}, v_rows = {.data = v};                     /* f32, dense rows */
    if (!s) s = quire_batch_append(batch, 0, k_rows, v_rows, 0, 1);
    if (!s) s = quire_batch_attend(batch, 0, &(quire_attend_args){.q.data = q, .out = out}, 0, 1);
    return s ? s : quire_batch_commit(batch, NULL);           /* quire_last_error() says why not */
}
/* clang-format on */

int main(void) {
    /* What the model computes for each token: K and V rows, and the queries that look at them. */
    static float k[N_TOKENS * KV_HEADS * DIM], v[N_TOKENS * KV_HEADS * DIM];
    static float q[N_TOKENS * HEADS * DIM], out[N_TOKENS * HEADS * DIM];
    for (int i = 0; i < N_TOKENS * KV_HEADS * DIM; i++)
        k[i] = sinf((float)i), v[i] = cosf((float)i);
    for (int i = 0; i < N_TOKENS * HEADS * DIM; i++)
        q[i] = sinf(.5f * (float)i);

    quire_pool *pool = NULL;
    quire_seq *seq = NULL;
    quire_layer_stats stats;
    if (attend_prompt(&pool, &seq, N_TOKENS, k, v, q, out) != QUIRE_OK ||
        quire_layer_get_stats(pool, 0, &stats) != QUIRE_OK) {
        fprintf(stderr, "%s\n", quire_last_error());
        quire_pool_free(pool); /* NULL is fine; sequences and batches go with their pool */
        return 1;
    }
    printf(
        "%d tokens, kernel %s, %.3f bits per element in a full page, %zu bytes packed, %zu raw\n",
        (int)quire_seq_length(seq), stats.kernel, stats.bits_per_element, stats.sealed_bytes,
        stats.raw_bytes);
    printf("first output: %g %g %g %g\n", (double)out[0], (double)out[1], (double)out[2],
           (double)out[3]);
    /* The first token sees itself alone, raw: its output is its V, rounded to f16. */
    for (int i = 0; i < DIM; i++)
        if (fabsf(out[i] - v[i]) > 1e-3f) {
            fprintf(stderr, "channel %d is %g, not %g\n", i, (double)out[i], (double)v[i]);
            return 1;
        }
    quire_pool_free(pool);
    return 0;
}
