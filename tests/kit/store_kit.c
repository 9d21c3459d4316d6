#define _XOPEN_SOURCE 700 /* nftw */
#include "store_kit.h"
#include "saved.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char base[64];

const char *store_dir(const char *name) {
    static char path[4][512];
    static int next;
    if (!base[0]) {
        strcpy(base, access("/dev/shm", W_OK) == 0 ? "/dev/shm/quire-test-XXXXXX"
                                                   : "/tmp/quire-test-XXXXXX");
        assert_non_null(mkdtemp(base));
    }
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", base, name);
    return path[next];
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

void store_remove_all(void) {
    if (base[0])
        nftw(base, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    base[0] = 0;
}

int store_teardown(void **state) {
    store_remove_all();
    return saved_teardown(state);
}

void text_tokens(uint64_t seed, int n, int32_t *tokens) {
    rng r = {seed};
    for (int i = 0; i < n; i++)
        tokens[i] = rng_below(&r, 50000);
}

static void bound_pool(fixture *f) {
    f->options.budget_bytes = (size_t)8 << 20;
    f->options.max_seqs = 4;
    f->options.max_batch_tokens = 128;
    f->options.max_workers = 1;
}

void open_pool(fixture *f, const char *kv, pool_kind kind, quire_type raw) {
    fixture_init(f, 3, 4, 2, 64, 64, kv);
    f->options.raw = raw;
    bound_pool(f);
    for (int i = 0; i < 3; i++) {
        quire_layer *l = &f->layer[i];
        l->k_dim = i == 1 ? 128 : 64;
        if (kind == POOL_FULL || (kind == POOL_MIXED && i == 0))
            continue;
        l->window = kind == POOL_MIXED && i == 1 ? 140 : 100;
        l->keep = kind == POOL_KEEP ? (i == 2 ? 70 : 4) : 0;
        if (kind != POOL_MIXED || i == 2) { /* windowed layers are raw unless they say otherwise */
            l->k = f->options.policy.pair.k;
            l->v = f->options.policy.pair.v;
        }
    }
    fixture_open(f);
}

void open_small_pool(fixture *f, const char *kv) {
    fixture_init(f, 1, 2, 1, 32, 32, kv);
    bound_pool(f);
    f->options.budget_bytes = (size_t)2 << 20;
    fixture_open(f);
}

static size_t out_floats(const fixture *f) {
    size_t n = 0;
    for (int i = 0; i < f->options.n_layers; i++)
        n += (size_t)(f->layer[i].n_heads * f->layer[i].v_dim);
    return n;
}

void assert_same_future(fixture *fa, quire_seq *a, fixture *fb, quire_seq *b, const source *s,
                        int n) {
    assert_int_equal(quire_seq_length(a), quire_seq_length(b));
    const size_t floats = out_floats(fa) * (size_t)n;
    float *x = malloc(floats * sizeof *x), *y = malloc(floats * sizeof *y);
    for (int done = 0, now = 1; done < n; done += now, now = n - done < 33 ? n - done : 33) {
        assert_ok(step(fa, &(step_item){a, s, now}, 1, NULL, x));
        assert_ok(step(fb, &(step_item){b, s, now}, 1, NULL, y));
        assert_memory_equal(x, y, out_floats(fa) * (size_t)now * sizeof *x);
    }
    free(x), free(y);
}
