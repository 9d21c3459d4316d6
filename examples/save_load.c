/* save_load.c: a sequence to a file, and back in another pool.
 *
 * A file has everything of a sequence: packed pages, raw rows, token ids, and an identity that
 * says what computed it. The restored sequence goes on bit for bit like the one that was saved; a
 * file of another model or a damaged file is refused with a sentence that says why.
 *   cc save_load.c $(pkg-config --cflags --libs quire) -lm -o save_load && ./save_load */
#include <quire.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 200, HEADS = 8, KV_HEADS = 2, DIM = 64 };
enum { KV_ROW = KV_HEADS * DIM, Q_ROW = HEADS * DIM };

static const char MODEL[] = "example model, weights 1"; /* the engine takes a digest of the file */

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
    must(quire_policy_parse("k4v4", &options.policy));
    /* km4, the K codec of k4v4, gives the more important channels more bits and needs their order.
     * Importance comes from the model; here lower channels count more. */
    float importance[DIM];
    uint16_t order[KV_HEADS * DIM];
    for (int i = 0; i < DIM; i++)
        importance[i] = (float)(DIM - i);
    for (int head = 0; head < KV_HEADS; head++)
        must(quire_channel_order(importance, DIM, order + head * DIM));
    layer.k_order = order;
    quire_pool *pool;
    must(quire_pool_create(&pool, &options));
    return pool;
}

/* Appends tokens first .. first + n - 1 and attends. Stands for a model's step. */
static void step(quire_pool *pool, quire_seq *seq, int first, int n, float *out) {
    static float k[PROMPT * KV_ROW], v[PROMPT * KV_ROW], q[PROMPT * Q_ROW];
    for (int i = 0; i < n * KV_ROW; i++)
        k[i] = sinf((float)(first * KV_ROW + i)), v[i] = cosf((float)(first * KV_ROW + i));
    for (int i = 0; i < n * Q_ROW; i++)
        q[i] = sinf(.5f * (float)(first * Q_ROW + i));
    quire_batch *batch;
    must(quire_batch_begin(pool, &(quire_batch_item){seq, n}, 1, &batch));
    must(quire_batch_append(batch, 0, (quire_rows){.data = k}, (quire_rows){.data = v}, 0, 1));
    must(quire_batch_attend(batch, 0, &(quire_attend_args){.q = {.data = q}, .out = out}, 0, 1));
    must(quire_batch_commit(batch, NULL));
}

static void save(quire_seq *seq, const char *path) {
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = i;
    quire_save_options options;
    quire_save_options_default(&options);
    options.identity = MODEL;
    options.identity_bytes = sizeof MODEL;
    options.tokens = tokens;
    options.n_tokens = PROMPT;
    must(quire_seq_save(seq, path, &options)); /* writes PATH.part, then renames it */
}

static quire_status load(quire_pool *pool, const char *path, const char *identity, size_t bytes,
                         quire_seq **seq) {
    quire_file *file;
    quire_status status = quire_file_open(&file, path); /* checks everything but the pages */
    if (status != QUIRE_OK)
        return status;
    quire_load_options options;
    quire_load_options_default(&options);
    options.identity = identity;
    options.identity_bytes = bytes;
    status = quire_seq_load(pool, file, &options, seq); /* checks the pages, then adopts them */
    quire_file_close(file);
    return status;
}

/* One byte in the middle of the file, which is inside a page. */
static void damage(const char *path) {
    FILE *file = fopen(path, "r+b");
    must_hold(file != NULL, "the file can be opened");
    fseek(file, 0, SEEK_END);
    const long middle = ftell(file) / 2;
    fseek(file, middle, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, middle, SEEK_SET);
    fputc(byte ^ 1, file);
    must_hold(fclose(file) == 0, "the file can be written");
}

int main(int argc, char **argv) {
    static float out[PROMPT * Q_ROW], saved[Q_ROW], loaded[Q_ROW];
    const char *path = argc > 1 ? argv[1] : "save_load.quire";
    quire_pool *here = create_pool(), *there = create_pool();
    quire_seq *seq, *copy;
    must(quire_seq_create(here, &seq));
    step(here, seq, 0, PROMPT, out);

    save(seq, path);
    must(load(there, path, MODEL, sizeof MODEL, &copy));
    must_hold(quire_seq_length(copy) == PROMPT, "all tokens came back");
    must_hold(quire_seq_history(copy, NULL) == 0, "nothing was approximated on the way");

    step(here, seq, PROMPT, 1, saved);
    step(there, copy, PROMPT, 1, loaded);
    must_hold(memcmp(saved, loaded, sizeof saved) == 0, "both go on with the same bits");
    printf("%d tokens saved to %s and restored: the next token has the same bits\n", PROMPT, path);

    quire_seq *none = NULL;
    must_hold(load(there, path, "another model", 14, &none) == QUIRE_E_IDENTITY, "E_IDENTITY");
    printf("another model: %s\n", quire_last_error());
    damage(path);
    must_hold(load(there, path, MODEL, sizeof MODEL, &none) == QUIRE_E_CORRUPT, "E_CORRUPT");
    printf("a damaged file: %s\n", quire_last_error());
    must_hold(none == NULL, "a file that is refused leaves nothing behind");

    remove(path);
    quire_pool_free(here);
    quire_pool_free(there);
    return 0;
}
