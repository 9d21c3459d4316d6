/* batch.c: two sequences in one step, a fork, a trim.
 *
 * The usual life of a server: a system prompt is computed once, forked for each user, both users
 * decode in the same batch, and one of them takes back its last tokens. At the end the program
 * checks what a fork, a neighbour and a trim promise: the same bits as without them.
 *   cc batch.c $(pkg-config --cflags --libs quire) -lm -o batch && ./batch */
#include <quire.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 150, HEADS = 8, KV_HEADS = 2, DIM = 64, MAX_ROWS = 256 };
enum { KV_ROW = KV_HEADS * DIM, Q_ROW = HEADS * DIM };

static void must(quire_status status) {
    if (status != QUIRE_OK) {
        fprintf(stderr, "%s\n", quire_last_error());
        exit(1);
    }
}

static void must_hold(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(1);
    }
}

/* Stands for the model: K, V and q of token `id` at `position`. */
static void compute_rows(int id, int position, float *k, float *v, float *q) {
    for (int i = 0; i < KV_ROW; i++) {
        k[i] = sinf((float)(id * 31 + i) + .1f * (float)position);
        v[i] = cosf((float)(id * 17 + i));
    }
    for (int i = 0; i < Q_ROW; i++)
        q[i] = sinf((float)(id * 7 + i) - .1f * (float)position);
}

/* What one sequence brings to a step. */
typedef struct part {
    quire_seq *seq;
    const int *tokens;
    int n_tokens;
} part;

/* One step of any number of sequences. The rows of part 0 come first in every tensor, then those
 * of part 1, and so on; out (rows, HEADS, DIM) has the same order. */
static void step(quire_pool *pool, const part *parts, int n_parts, float *out) {
    static float k[MAX_ROWS * KV_ROW], v[MAX_ROWS * KV_ROW], q[MAX_ROWS * Q_ROW];
    quire_batch_item items[2];
    int row = 0;
    for (int i = 0; i < n_parts; i++) {
        items[i] = (quire_batch_item){parts[i].seq, parts[i].n_tokens};
        for (int t = 0; t < parts[i].n_tokens; t++, row++)
            compute_rows(parts[i].tokens[t], quire_seq_length(parts[i].seq) + t, k + row * KV_ROW,
                         v + row * KV_ROW, q + row * Q_ROW);
    }
    quire_batch *batch;
    must(quire_batch_begin(pool, items, (size_t)n_parts, &batch));
    must(quire_batch_append(batch, 0, (quire_rows){.data = k}, (quire_rows){.data = v}, 0, 1));
    must(quire_batch_attend(batch, 0, &(quire_attend_args){.q = {.data = q}, .out = out}, 0, 1));
    must(quire_batch_commit(batch, NULL));
}

static quire_pool *create_pool(void) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = HEADS;
    layer.n_kv_heads = KV_HEADS;
    layer.k_dim = layer.v_dim = DIM;
    quire_pool_options options;
    quire_pool_options_default(&options);
    options.layers = &layer;
    options.n_layers = 1;
    options.budget_bytes = (size_t)16 << 20;
    options.max_batch_tokens = MAX_ROWS;
    must(quire_policy_parse("k8v4", &options.policy));
    quire_pool *pool;
    must(quire_pool_create(&pool, &options));
    return pool;
}

static size_t sealed_bytes(const quire_pool *pool) {
    quire_pool_stats stats;
    quire_pool_get_stats(pool, &stats);
    return stats.sealed_bytes;
}

int main(void) {
    static float out[MAX_ROWS * Q_ROW], unused[MAX_ROWS * Q_ROW], alone[Q_ROW], again[Q_ROW];
    quire_pool *pool = create_pool();

    /* 1. The prompt, once: two sealed pages of 64 tokens and an open one of 22. */
    int prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i;
    quire_seq *first, *second;
    must(quire_seq_create(pool, &first));
    step(pool, &(part){first, prompt, PROMPT}, 1, out);

    /* 2. A fork shares every page and copies nothing. The open page is copied when one of the two
     *    sequences appends to it. */
    const size_t before = sealed_bytes(pool);
    must(quire_seq_fork(first, &second));
    must_hold(quire_seq_length(second) == PROMPT, "a fork has the same tokens");
    must_hold(sealed_bytes(pool) == before, "a fork takes no memory for pages");

    /* 3. One decode step of both, with different tokens. */
    const int hello[] = {500}, world[] = {600};
    step(pool, (part[]){{first, hello, 1}, {second, world, 1}}, 2, out);
    printf("first  %d tokens, output %8.5f %8.5f ..\n", (int)quire_seq_length(first),
           (double)out[0], (double)out[1]);
    printf("second %d tokens, output %8.5f %8.5f ..\n", (int)quire_seq_length(second),
           (double)out[Q_ROW], (double)out[Q_ROW + 1]);
    must_hold(memcmp(out, out + Q_ROW, sizeof alone) != 0, "different tokens differ");

    /* 4. Neighbours do not matter: a third sequence that runs alone gets the bits of the first. */
    quire_seq *third;
    must(quire_seq_create(pool, &third));
    step(pool, &(part){third, prompt, PROMPT}, 1, unused);
    step(pool, &(part){third, hello, 1}, 1, alone);
    must_hold(memcmp(alone, out, sizeof alone) == 0, "a row does not depend on its batch");

    /* 5. Take the last token back and append it again: the same bits once more. */
    must(quire_seq_trim(third, PROMPT));
    step(pool, &(part){third, hello, 1}, 1, again);
    must_hold(memcmp(again, alone, sizeof alone) == 0, "a trim in the open page is exact");

    /* Pages that only this sequence holds go back to the pool. */
    must(quire_seq_free(third));
    must(quire_seq_free(second));
    must_hold(sealed_bytes(pool) == before, "freed pages are free");
    printf("fork, batch and trim gave the same bits as one sequence alone\n");
    quire_pool_free(pool);
    return 0;
}
