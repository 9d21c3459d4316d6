/* libFuzzer target: bytes as a saved cache. docs/TESTING.md says how to build and run it.
 *
 * The first byte chooses: taken as they are, or with every checksum made right first, so that
 * what lies behind them is reached. Whatever loads is attended to, saved again and trimmed; the
 * books must balance. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "quire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,                    \
                    quire_last_error());                                                           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { DIM = 32, MOST = 1 << 20 };
static char path[64];
static quire_pool *pool;

static quire_pool *make_pool(const char *kv) {
    quire_layer layer[2];
    uint16_t order[QUIRE_DIM_MAX];
    for (int p = 0; p < QUIRE_DIM_MAX; p++)
        order[p] = (uint16_t)p;
    for (int i = 0; i < 2; i++) {
        quire_layer_default(&layer[i]);
        layer[i].n_heads = layer[i].n_kv_heads = 1;
        layer[i].k_order = order;
        layer[i].k_dim = layer[i].v_dim = DIM;
    }
    layer[1].window = 70;
    layer[1].keep = 4;
    quire_pool_options o;
    quire_pool_options_default(&o);
    o.layers = layer;
    o.n_layers = 2;
    o.max_seqs = 4;
    o.max_batch_tokens = 64;
    o.max_workers = 1;
    o.budget_bytes = (size_t)2 << 20;
    CHECK(quire_policy_parse(kv, &o.policy) == QUIRE_OK);
    quire_pool *made;
    CHECK(quire_pool_create(&made, &o) == QUIRE_OK);
    return made;
}

static void append(quire_pool *to, quire_seq *seq, int32_t n) {
    static float rows[64 * DIM], out[64 * DIM];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)(i * 37 % 101) / 50 - 1;
    quire_batch *batch;
    const quire_status status = quire_batch_begin(to, &(quire_batch_item){seq, n}, 1, &batch);
    CHECK(status == QUIRE_OK || status == QUIRE_E_NO_PAGES || status == QUIRE_E_TOO_BIG);
    if (status != QUIRE_OK)
        return;
    const quire_rows r = {rows, QUIRE_F32, 0};
    for (int32_t i = 0; i < 2; i++) {
        CHECK(quire_batch_append(batch, i, r, r, 0, 1) == QUIRE_OK);
        CHECK(quire_batch_attend(batch, i, &(quire_attend_args){.q = r, .out = out}, 0, 1) ==
              QUIRE_OK);
    }
    CHECK(quire_batch_commit(batch, NULL) == QUIRE_OK);
}

/* QUIRE_FUZZ_SEED names a file that gets a true cache, to begin with: libFuzzer would not guess
 * one. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    snprintf(path, sizeof path, "/dev/shm/quire-fuzz-%d", (int)getpid());
    pool = make_pool("k4v4");
    const char *seed = getenv("QUIRE_FUZZ_SEED");
    if (seed) {
        quire_seq *seq;
        CHECK(quire_seq_create(pool, &seq) == QUIRE_OK);
        for (int i = 0; i < 3; i++)
            append(pool, seq, 50);
        CHECK(quire_seq_save(seq, seed, NULL) == QUIRE_OK);
        CHECK(quire_seq_free(seq) == QUIRE_OK);
    }
    return 0;
}

static uint64_t little(const uint8_t *at, int n) {
    uint64_t x = 0;
    for (int i = n - 1; i >= 0; i--)
        x = x << 8 | at[i];
    return x;
}

static void sign(uint8_t *file, size_t n) {
    if (n < 64)
        return;
    for (int i = 0; i < 8; i++)
        file[16 + i] = (uint8_t)((uint64_t)n >> 8 * i);
    const uint64_t n_sections = little(file + 12, 4), head = (64 + 48 * n_sections + 63) / 64 * 64;
    for (uint64_t i = 0; i < n_sections && 64 + 48 * (i + 1) <= n; i++) {
        uint8_t *entry = file + 64 + 48 * i;
        const uint64_t offset = little(entry + 8, 8), bytes = little(entry + 16, 8);
        if (offset > n || bytes > n - offset || (bytes + 63) / 64 * 64 > n - offset)
            continue;
        const quire_digest digest = quire__hash_of(file + offset, (size_t)((bytes + 63) / 64 * 64));
        memcpy(entry + 24, digest.byte, 16);
    }
    memset(file + 48, 0, 16);
    const quire_digest digest = quire__hash_of(file, (size_t)(head < n ? head : n));
    memcpy(file + 48, digest.byte, 16);
}

static void use(quire_file *file) {
    const quire_load_options o = {.struct_size = sizeof o, .any_identity = true, .reseal = true};
    quire_pool_stats before, after;
    quire_pool_get_stats(pool, &before);
    quire_seq *seq;
    const quire_status checked = quire_file_check(file),
                       loaded = quire_seq_load(pool, file, &o, &seq);
    CHECK(loaded != QUIRE_OK || checked == QUIRE_OK);
    CHECK((loaded == QUIRE_OK) == (seq != NULL));
    if (seq) {
        append(pool, seq, 1);
        append(pool, seq, 63);
        CHECK(quire_seq_save(seq, path, NULL) == QUIRE_OK);
        const quire_status cut = quire_seq_trim(seq, quire_seq_length(seq) / 2);
        CHECK(cut == QUIRE_OK || cut == QUIRE_E_GONE || cut == QUIRE_E_NO_PAGES);
        append(pool, seq, 5);
        CHECK(quire_seq_free(seq) == QUIRE_OK);
    }
    quire_pool_get_stats(pool, &after);
    CHECK(before.free_bytes == after.free_bytes && after.shadow_bytes == 0 &&
          after.n_seqs == before.n_seqs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > MOST)
        return 0;
    uint8_t *copy = malloc(size);
    memcpy(copy, data + 1, size - 1);
    if (data[0] % 4)
        sign(copy, size - 1);
    FILE *out = fopen(path, "wb");
    CHECK(out && fwrite(copy, 1, size - 1, out) == size - 1 && fclose(out) == 0);
    free(copy);
    quire_file *file;
    if (quire_file_open(&file, path) == QUIRE_OK)
        use(file);
    quire_file_close(file);
    return 0;
}
