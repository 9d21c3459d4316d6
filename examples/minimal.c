/* minimal.c: one attention layer on a quantized cache.
 *   cc minimal.c $(pkg-config --cflags --libs quire) -lm -o minimal && ./minimal */
#include <quire.h>

#include <math.h>
#include <stdio.h>

enum { N_TOKENS = 100, HEADS = 32, KV_HEADS = 8, DIM = 128 };

/* K and V rows of n_tokens go into the cache, f32, (n_tokens, KV_HEADS, DIM); q and out:
 * (n_tokens, HEADS, DIM). A decode step is the same from quire_batch_begin on, with one token. */
static quire_status attend_prompt(quire_pool **pool, quire_seq **seq, int32_t n_tokens,
                                  const float *k, const float *v, const float *q, float *out) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = HEADS;
    layer.n_kv_heads = KV_HEADS;
    layer.k_dim = layer.v_dim = DIM;
    quire_pool_options options;
    quire_pool_options_default(&options);
    options.layers = &layer;
    options.n_layers = 1;
    options.budget_bytes = (size_t)64 << 20; /* all the memory it will ever take */
    quire_status s = quire_policy_parse("k8v4", &options.policy); /* or "kc8:vt4" */
    if (!s)
        s = quire_pool_create(pool, &options);
    if (!s)
        s = quire_seq_create(*pool, seq);

    const quire_batch_item item = {*seq, n_tokens};
    const quire_rows k_rows = {.data = k}, v_rows = {.data = v};
    const quire_attend_args args = {.q.data = q, .out = out};
    quire_batch *batch = NULL;
    if (!s)
        s = quire_batch_begin(*pool, &item, 1, &batch);
    if (!s)
        s = quire_batch_append(batch, 0, k_rows, v_rows, 0, 1);
    if (!s)
        s = quire_batch_attend(batch, 0, &args, 0, 1);
    if (!s)
        s = quire_batch_commit(batch, NULL);
    return s; /* quire_last_error() says why not */
}

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
