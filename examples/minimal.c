/* minimal.c: one attention layer on a quantized cache.
 *   cc minimal.c $(pkg-config --cflags --libs quire) -lm -o minimal && ./minimal */
#include <quire.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_TOKENS = 100, HEADS = 32, KV_HEADS = 8, DIM = 128 };

static void must(quire_status status) {
    if (status != QUIRE_OK) {
        fprintf(stderr, "%s\n", quire_last_error());
        exit(1);
    }
}

int main(void) {
    /* What the model computes for each token: K and V rows, and the queries that look at them. */
    static float k[N_TOKENS * KV_HEADS * DIM], v[N_TOKENS * KV_HEADS * DIM],
        q[N_TOKENS * HEADS * DIM];
    static float out[N_TOKENS * HEADS * DIM];
    for (int i = 0; i < N_TOKENS * KV_HEADS * DIM; i++)
        k[i] = sinf((float)i), v[i] = cosf((float)i);
    for (int i = 0; i < N_TOKENS * HEADS * DIM; i++)
        q[i] = sinf(.5f * (float)i);

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
    must(quire_policy_parse("k8v4", &options.policy));

    quire_pool *pool;
    quire_seq *seq;
    quire_batch *batch;
    must(quire_pool_create(&pool, &options));
    must(quire_seq_create(pool, &seq));

    /* One step: the prompt. A decode step is the same with one token. */
    must(quire_batch_begin(pool, &(quire_batch_item){seq, N_TOKENS}, 1, &batch));
    must(quire_batch_append(batch, 0, (quire_rows){.data = k}, (quire_rows){.data = v}, 0, 1));
    must(quire_batch_attend(batch, 0, &(quire_attend_args){.q = {.data = q}, .out = out}, 0, 1));
    must(quire_batch_commit(batch, NULL));

    quire_layer_stats stats;
    must(quire_layer_get_stats(pool, 0, &stats));
    printf(
        "%d tokens, kernel %s, %.3f bits per element in a full page, %zu bytes packed, %zu raw\n",
        (int)quire_seq_length(seq), stats.kernel, stats.bits_per_element, stats.sealed_bytes,
        stats.raw_bytes);
    printf("first output: %g %g %g %g\n", (double)out[0], (double)out[1], (double)out[2],
           (double)out[3]);
    quire_pool_free(pool);
    return 0;
}
