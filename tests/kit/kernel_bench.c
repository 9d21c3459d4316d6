#include "kernel_bench.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/element.h"
#include "kernel_case.h"

/* One entry with all that it needs, called again and again. */
typedef struct timed {
    const kernel_level *level;
    kernel_case *c;
    const quire_attend_kernel *attend;
    float *k, *v; /* seal: rows; rotate: k */
    uint8_t *record;
    void (*rotate)(float *, int);
} timed;

static void call_attend(const timed *t) {
    const quire_state state = {t->c->m.data, t->c->l.data, t->c->o.data};
    t->attend->attend(&t->c->job, &state);
}

static void call_raw(const timed *t) {
    const quire_state state = {t->c->m.data, t->c->l.data, t->c->o.data};
    t->level->kernels.raw->attend(&t->c->job, &state);
}

static void call_seal(const timed *t) {
    quire__seal_page(t->level->kernels.rows, &t->c->format, t->k, t->v, 0, t->record);
}
static void call_rotate(const timed *t) { t->rotate(t->k, t->c->format.k.dim); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of several runs of about a millisecond. */
static double ns_per_call(void (*call)(const timed *), const timed *t) {
    enum { RUNS = 15 };
    double best = 1e9;
    long calls = 1;
    for (int run = 0; run < RUNS;) {
        const double start = now();
        for (long i = 0; i < calls; i++)
            call(t);
        const double taken = now() - start;
        if (taken < 1e-3 && calls < 1 << 24) {
            calls *= 2;
            continue;
        }
        if (taken / (double)calls < best)
            best = taken / (double)calls;
        run++;
    }
    return 1e9 * best;
}

static void print_row(const char *name, const char *level, double ns, double reference_ns) {
    printf("%-44s %-14s %12.0f ns %8.2fx\n", name, level, ns, reference_ns / ns);
    fflush(stdout);
}

static void bench_attend(const char *pattern, const char *k, const char *v, int n_rows, int n_group,
                         int dim) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    quire_policy policy;
    char name[96], kv[64];
    snprintf(name, sizeof name, "attend %s:%s d%d %dx%d, 16 pages", k, v, dim, n_rows, n_group);
    if (!strstr(name, pattern))
        return;
    snprintf(kv, sizeof kv, "%s:%s", k, v);
    assert_ok(quire_policy_parse(kv, &policy));
    kernel_case c;
    rng r = {1};
    const case_shape shape = {.k = policy.pair.k,
                              .v = policy.pair.v,
                              .k_dim = dim,
                              .v_dim = dim,
                              .n_rows = n_rows,
                              .n_group = n_group,
                              .n_pages = 16,
                              .raw = QUIRE_F16};
    assert_true(case_open(&c, &shape, true));
    case_fill(&c, &r);
    double reference = 0;
    for (int i = 0; i < n_levels; i++) {
        timed t = {.level = &levels[i],
                   .c = &c,
                   .attend = quire__attend_kernel(&levels[i].kernels, &c.format)};
        guarded_close(&c.workspace);
        guarded_open(&c.workspace, t.attend->workspace_bytes(case_heads(&c), dim, dim), 64, true);
        c.job.workspace = c.workspace.data;
        const double ns = ns_per_call(call_attend, &t);
        if (i == 0)
            reference = ns;
        print_row(name, t.attend->name, ns, reference);
    }
    case_close(&c);
}

static void bench_raw(const char *pattern, quire_type type, int n_rows, int n_group, int dim) {
    static const char *const TYPES[] = {"f32", "f16", "bf16"};
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    char name[96];
    snprintf(name, sizeof name, "raw %s d%d %dx%d, 64 + 4 rows", TYPES[type], dim, n_rows, n_group);
    if (!strstr(name, pattern))
        return;
    kernel_case c;
    rng r = {2};
    const case_shape shape = {.k = QUIRE_CODEC_F16,
                              .v = QUIRE_CODEC_F16,
                              .k_dim = dim,
                              .v_dim = dim,
                              .n_rows = n_rows,
                              .n_group = n_group,
                              .raw = type};
    assert_true(case_open(&c, &shape, true));
    case_fill(&c, &r);
    case_add_runs(&c, &r, type, 4, QUIRE_PAGE_TOKENS - n_rows);
    double reference = 0;
    for (int i = 0; i < n_levels; i++) {
        guarded_close(&c.workspace);
        guarded_open(&c.workspace, levels[i].kernels.raw->workspace_bytes(case_heads(&c), dim, dim),
                     64, true);
        c.job.workspace = c.workspace.data;
        const double ns = ns_per_call(call_raw, &(timed){.level = &levels[i], .c = &c});
        if (i == 0)
            reference = ns;
        print_row(name, levels[i].name, ns, reference);
    }
    case_close(&c);
}

static void bench_pages(const char *pattern, const char *k, const char *v, int dim) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    quire_policy policy;
    char kv[64];
    snprintf(kv, sizeof kv, "%s:%s", k, v);
    assert_ok(quire_policy_parse(kv, &policy));
    kernel_case c;
    rng r = {3};
    const size_t n = (size_t)(QUIRE_PAGE_TOKENS * dim);
    const case_shape shape = {.k = policy.pair.k,
                              .v = policy.pair.v,
                              .k_dim = dim,
                              .v_dim = dim,
                              .n_rows = 1,
                              .n_group = 1,
                              .n_pages = 1};
    assert_true(case_open(&c, &shape, true));
    timed t = {.c = &c,
               .k = malloc(n * sizeof(float)),
               .v = malloc(n * sizeof(float)),
               .record = c.record[0].data};
    double reference[4] = {0};
    for (int i = 0; i < n_levels; i++) {
        const quire_kernels *kernels = &levels[i].kernels;
        const struct {
            const char *name;
            void (*call)(const timed *);
            void (*rotate)(float *, int);
        } entries[] = {{"seal", call_seal, NULL},
                       {"rotate", call_rotate, kernels->rows->rotate},
                       {"unrotate", call_rotate, kernels->rows->unrotate},
                       {"project", call_rotate, kernels->rows->project}};
        for (int e = 0; e < 4; e++) {
            char name[96];
            snprintf(name, sizeof name, "%s%s%s d%d", entries[e].name, e ? "" : " ", e ? "" : kv,
                     dim);
            if (!strstr(name, pattern) ||
                (e && strcmp(k, "kc4") != 0)) /* rotations once per size */
                continue;
            rng_fill(&r, t.k, n, 1);
            rng_fill(&r, t.v, n, 1);
            t.level = &levels[i];
            t.rotate = entries[e].rotate;
            const double ns = ns_per_call(entries[e].call, &t);
            if (i == 0)
                reference[e] = ns;
            print_row(name, levels[i].name, ns, reference[e]);
        }
    }
    free(t.k), free(t.v);
    case_close(&c);
}

int kernel_bench(const char *pattern) {
    static const char *const PAIRS[][2] = {
        {"kc4", "vt4"}, {"kc8", "vt4"},   {"kc8", "vt8"},   {"kc3", "vt3"},
        {"kc2", "vt2"}, {"tq4", "tq4"},   {"tq3", "tq3"},   {"tqp4", "tq4"},
        {"a8", "a8"},   {"a4", "a4"},     {"q8_0", "q8_0"}, {"q4_0", "q4_0"},
        {"f16", "f16"}, {"bf16", "bf16"}, {"km4", "vt4"},   {"km3", "vt3"}};
    static const int ROWS[][2] = {{1, 1}, {1, 4}, {1, 8}, {64, 4}};
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
            bench_attend(pattern, PAIRS[p][0], PAIRS[p][1], ROWS[i][0], ROWS[i][1], 128);
    bench_attend(pattern, "kc4", "vt4", 1, 3, 64);
    bench_attend(pattern, "kc4", "vt4", 1, 4, 256);
    bench_attend(pattern, "km4", "vt4", 1, 3, 64);
    bench_attend(pattern, "km4", "vt4", 1, 4, 256);
    for (int type = 0; type < 3; type++)
        for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
            bench_raw(pattern, (quire_type)type, ROWS[i][0], ROWS[i][1], 128);
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        bench_pages(pattern, PAIRS[p][0], PAIRS[p][1], 128);
    bench_pages(pattern, "kc4", "vt4", 64);
    bench_pages(pattern, "kc4", "vt4", 96);
    return 0;
}
