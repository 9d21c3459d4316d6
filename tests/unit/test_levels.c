/* Every kernel level against the scalar reference through a pool: packed pages, raw rows,
 * merging. Kernels alone: test_kernels.c.
 *
 * Integer scores agree exactly, so what is left is rounding, and weights that round the other
 * way because they came out a little different. Weights made in fp16 (rounding 3e-4) go to
 * another of u8's steps once in fifteen times: a difference as large as u8's own noise, 5e-3,
 * though the error against exact attention (test_attend, on every level) hardly changes. Made in
 * fp32, 16 bits of weight: 2e-5. Raw sides: 2e-6. A level that rounds q and weights of a raw f16
 * layer to fp16 (FP16_ROUNDING in kit.h, for K times the standard deviation of the logits) is
 * off by that, as a mean over all rows, and strays from it as test_attend.c says.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "kernel_case.h"
#include "kit.h"
#include "page/pages.h"

static double bound_of(const char *v_name) {
    quire_codec_info info = {0};
    for (size_t i = 0; i < quire_codec_count() && (!info.name || strcmp(info.name, v_name) != 0);
         i++)
        quire_codec_at(i, &info);
    return strcmp(info.family, "raw") == 0 ? 2e-6 : info.bits == 8 ? 2e-5 : 5e-3;
}

typedef struct test_case {
    const char *k, *v;
    int h, g, dk, dv, context, rows;
    float softcap, q_scale, v_scale;
    int window, keep;
} test_case;

/* By how much outputs may differ because the level rounds to fp16. */
static double fp16_bound(const test_case *c, const fixture *f) {
    const double logits = c->q_scale > 0 ? (double)c->q_scale : 1,
                 k = side_uses_fp16(f, false) ? FP16_ROUNDING * logits : 0,
                 v = side_uses_fp16(f, true) ? FP16_ROUNDING : 0;
    return hypot(k, v) * (1 + 1 / sqrt(c->rows * c->h));
}

/* Returns that. */
static double run(const test_case *c, const char *level, float *out) {
    char kv[40];
    fixture f;
    snprintf(kv, sizeof kv, "%s:%s", c->k, c->v);
    fixture_init(&f, 1, c->h, c->g, c->dk, c->dv, kv);
    f.options.cpu = level;
    f.options.max_batch_tokens = 600;
    f.layer[0].softcap = c->softcap;
    f.layer[0].window = c->window;
    f.layer[0].keep = c->keep;
    fixture_open(&f);
    source s = source_default(3);
    s.q_scale = c->q_scale ? c->q_scale : 1;
    s.v_scale = c->v_scale ? c->v_scale : 1;
    quire_seq *seq;
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, c->context, 512, 1, 0, NULL);
    feed(&f, seq, &s, c->rows, c->rows, 1, 0, out);
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f.pool, 0, &stats));
    assert_int_equal(stats.fallbacks, 0);
    const double fp16_error = fp16_bound(c, &f);
    fixture_close(&f);
    return fp16_error;
}

static void compare(const test_case *c) {
    const size_t n = (size_t)(c->rows * c->h * c->dv);
    float *wanted = malloc(n * sizeof *wanted), *got = malloc(n * sizeof *got);
    double *exact = malloc(n * sizeof *exact);
    run(c, "ref", wanted);
    for (size_t i = 0; i < n; i++)
        exact[i] = wanted[i];
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    for (int i = 1; i < n_levels; i++) { /* 0 is the reference */
        const char *level = levels[i].name;
        const double bound = run(c, level, got) + bound_of(c->v),
                     error = relative_error(got, exact, n);
        if (!(error <= bound))
            fail_msg("%s, %s:%s, %dx%dx%d/%d, %d rows at %d: differs by %.2e, bound %.2e", level,
                     c->k, c->v, c->h, c->g, c->dk, c->dv, c->rows, c->context, error, bound);
    }
    free(wanted), free(got), free(exact);
}

static void every_codec(void **state) {
    (void)state;
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        for (int rows = 1; rows <= 40; rows += 39) {
            if (info.for_k)
                compare(&(test_case){.k = info.name,
                                     .v = info.for_v ? info.name : "vt4",
                                     .h = 4,
                                     .g = 1,
                                     .dk = 128,
                                     .dv = 128,
                                     .context = 200,
                                     .rows = rows});
            if (info.for_v && !info.for_k)
                compare(&(test_case){.k = "kc4",
                                     .v = info.name,
                                     .h = 4,
                                     .g = 1,
                                     .dk = 128,
                                     .dv = 128,
                                     .context = 200,
                                     .rows = rows});
        }
    }
}

static void head_sizes(void **state) {
    (void)state;
    const char *pairs[][2] = {{"kc4", "vt4"}, {"kc8", "vt8"}, {"kc3", "vt3"},
                              {"kc2", "vt2"}, {"tq4", "tq4"}, {"f16", "f16"}};
    int sweep = 0;
    for (int d = 32; d <= 576; d += d < 128 ? 16 : 64)
        for (int p = 0; p < 6; p++) {
            if (!sweep_takes(&sweep, 5))
                continue;
            compare(&(test_case){.k = pairs[p][0],
                                 .v = pairs[p][1],
                                 .h = 3,
                                 .g = 1,
                                 .dk = d,
                                 .dv = 608 - d,
                                 .context = 140,
                                 .rows = 2});
        }
}

static void raw_with_quantized(void **state) {
    (void)state;
    const char *raw[] = {"f16", "bf16", "f32"}, *k[] = {"kc4", "kc8", "tq3", "a4g32"},
               *v[] = {"vt4", "vt8", "tq2", "q4_0"};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            for (int rows = 1; rows <= 34; rows += 33) {
                compare(&(test_case){.k = raw[i],
                                     .v = v[j],
                                     .h = 3,
                                     .g = 1,
                                     .dk = 80,
                                     .dv = 96,
                                     .context = 300,
                                     .rows = rows});
                compare(&(test_case){.k = k[j],
                                     .v = raw[i],
                                     .h = 5,
                                     .g = 1,
                                     .dk = 96,
                                     .dv = 80,
                                     .context = 300,
                                     .rows = rows});
            }
    compare(&(test_case){.k = "f16",
                         .v = "vt4",
                         .h = 4,
                         .g = 2,
                         .dk = 64,
                         .dv = 64,
                         .context = 1200,
                         .rows = 5,
                         .window = 65,
                         .keep = 70});
    compare(&(test_case){.k = "kc4",
                         .v = "f16",
                         .h = 4,
                         .g = 2,
                         .dk = 64,
                         .dv = 64,
                         .context = 300,
                         .rows = 9,
                         .softcap = 3});
}

static void groups_of_heads(void **state) {
    (void)state;
    for (int group = 1; group <= 17; group++) {
        compare(&(test_case){.k = "kc4",
                             .v = "vt4",
                             .h = group,
                             .g = 1,
                             .dk = 64,
                             .dv = 64,
                             .context = 150,
                             .rows = 1});
        compare(&(test_case){.k = "kc8",
                             .v = "vt8",
                             .h = group,
                             .g = 1,
                             .dk = 64,
                             .dv = 64,
                             .context = 150,
                             .rows = 3});
    }
}

static void rules(void **state) {
    (void)state;
    const char *pairs[][2] = {{"kc4", "vt4"}, {"kc8", "vt8"}, {"a4", "a8"}, {"f16", "f16"}};
    const test_case cases[] = {
        {.context = 300, .rows = 9, .softcap = 3},
        {.context = 300, .rows = 70, .window = 100, .keep = 3},
        {.context = 1200, .rows = 5, .window = 65, .keep = 70},
    };
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 3; i++) {
            test_case c = cases[i];
            c.k = pairs[p][0], c.v = pairs[p][1], c.h = 4, c.g = 2, c.dk = c.dv = 64;
            compare(&c);
        }
}

static void extremes(void **state) /* sharp and flat softmax, tiny and large V */ {
    (void)state;
    const char *pairs[][2] = {{"kc8", "vt8"}, {"kc8", "q8_0"}, {"f16", "f16"}};
    const float q[] = {1e-6f, 0.1f, 5, 20}, v[] = {1e-3f, 1, 1000};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++)
                compare(&(test_case){.k = pairs[p][0],
                                     .v = pairs[p][1],
                                     .h = 4,
                                     .g = 2,
                                     .dk = 64,
                                     .dv = 64,
                                     .context = 500,
                                     .rows = 3,
                                     .q_scale = q[i],
                                     .v_scale = v[j]});
}

static bool has_level(const char *name) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    for (int i = 0; i < n_levels; i++)
        if (strcmp(levels[i].name, name) == 0)
            return true;
    return false;
}

/* Levels that are not had are passed over above, so those that this processor has must be had:
 * by what Linux says of it, and not by the library's own look. */
static void levels_of_this_machine(void **state) {
    (void)state;
    static const struct {
        const char *level, *line, *words[6];
    } known[] = {
        {"avx2", "flags", {"avx2", "fma", "f16c"}},
        {"avx2_vnni", "flags", {"avx2", "fma", "f16c", "avx_vnni"}},
        {"avx512", "flags", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}},
        {"avx512_vnni", "flags", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}},
        {"amx", "flags", {"avx512_vnni", "avx512_fp16", "amx_tile", "amx_int8"}},
        {"neon", "Features", {"asimd"}},
        {"neon_dotprod", "Features", {"asimddp", "asimdhp"}},
        {"neon_i8mm", "Features", {"asimddp", "asimdhp", "i8mm", "asimdfhm"}}};
    static char line[8192];
    FILE *file = fopen("/proc/cpuinfo", "r");
    const char *words = NULL;
    while (file && !words && fgets(line, sizeof line, file))
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)
            words = strchr(line, ':');
    if (file)
        fclose(file);
    line[strcspn(line, "\n")] = ' '; /* every word has a blank before and behind it */
    for (size_t i = 0; words && i < sizeof known / sizeof *known; i++) {
        if (strncmp(line, known[i].line, strlen(known[i].line)) != 0)
            continue; /* of the other processor: this one is emulated, and /proc is not */
        bool built = false, has = true;
        for (int j = 0; quire__kernel_level(j); j++)
            built = built || strcmp(quire__kernel_level(j), known[i].level) == 0;
        for (int j = 0; j < 6 && known[i].words[j]; j++) {
            char word[32];
            snprintf(word, sizeof word, " %s ", known[i].words[j]);
            has = has && strstr(words, word);
        }
        if (built && has != has_level(known[i].level))
            fail_msg("%s: this processor %s, but the library says otherwise", known[i].level,
                     has ? "has it" : "does not have it");
    }
}

/* Which level serves which processor, told by its features: the choice runs no instruction of
 * the kernels. */
static void choice(void **state) {
    (void)state;
    enum {
        NEON = QUIRE_CPU_NEON,
        DOTPROD = QUIRE_CPU_DOTPROD | QUIRE_CPU_FP16,
        I8MM = QUIRE_CPU_I8MM | QUIRE_CPU_FP16_FML,
        BF16 = QUIRE_CPU_BF16,
        AVX2 = QUIRE_CPU_AVX2,
        AVX512 = QUIRE_CPU_AVX512,
        AVX_VNNI = QUIRE_CPU_AVX_VNNI,
        VNNI = QUIRE_CPU_AVX512_VNNI,
        AMX = QUIRE_CPU_AMX
    };
    static const struct {
        unsigned features;
        const char *level, *packed, *raw; /* packed: k4v4; raw: sealed pages of f16 */
    } cases[] = {
        {0, "ref", "ref", "ref"},
#if defined(QUIRE_PORTABLE)
#elif defined(__aarch64__)
        {NEON, "neon", "neon", "neon_raw"},
        {NEON | DOTPROD, "neon_dotprod", "neon_dotprod", "neon_raw"},
        {NEON | DOTPROD | I8MM, "neon_i8mm", "neon_i8mm", "neon_fp16_raw"},
        {NEON | DOTPROD | I8MM | BF16, "neon_bf16", "neon_i8mm", "neon_bf16_raw"},
#elif defined(__x86_64__)
        {AVX2, "avx2", "avx2", "avx2_raw"},
        {AVX2 | AVX_VNNI, "avx2_vnni", "avx2_vnni", "avx2_raw"},
        {AVX2 | AVX512, "avx512", "avx512", "avx512_raw"},
        {AVX2 | AVX512 | VNNI, "avx512_vnni", "avx512_vnni", "avx512_raw"},
        {AVX2 | AVX_VNNI | AVX512 | VNNI | AMX, "amx", "amx", "avx512_raw"},
#endif
    };
    quire_format k4v4, f16;
    assert_ok(quire__format_init(&k4v4, (quire_pair){QUIRE_CODEC_KC4, QUIRE_CODEC_VT4}, 64, 64,
                                 QUIRE_F16));
    assert_ok(quire__format_init(&f16, (quire_pair){QUIRE_CODEC_F16, QUIRE_CODEC_F16}, 64, 64,
                                 QUIRE_F16));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        quire_kernels kernels, named;
        /* no step of the ladder to AVX-512: processors have either, or both */
        const unsigned lacks = QUIRE_CPU_AVX_VNNI & ~cases[i].features;
        assert_ok(quire__kernels_choose(&kernels, NULL, cases[i].features));
        assert_string_equal(kernels.isa, cases[i].level);
        assert_string_equal(quire__attend_kernel(&kernels, &k4v4)->name, cases[i].packed);
        assert_string_equal(quire__attend_kernel(&kernels, &f16)->name, cases[i].raw);
        assert_true(kernels.n_packed <= QUIRE_MAX_PACKED);
        assert_ok(quire__kernels_choose(&named, cases[i].level, ~0u & ~lacks));
        assert_string_equal(kernels.isa, named.isa);
        assert_memory_equal(kernels.packed, named.packed, sizeof named.packed);
        assert_ptr_equal(kernels.raw, named.raw);
        assert_ptr_equal(kernels.rows, named.rows);
#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
        assert_ptr_equal(kernels.rows, cases[i].features & AVX512 ? &quire__rows_avx512
                                       : cases[i].features & AVX2 ? &quire__rows_avx2
                                                                  : &quire__rows_ref);
#endif
        for (size_t above = i + 1; above < sizeof cases / sizeof *cases; above++)
            assert_status(quire__kernels_choose(&named, cases[above].level, cases[i].features),
                          QUIRE_E_UNSUPPORTED);
    }
}

/* A layer that no kernel of the level serves has the reference. There is none among the codecs, so
 * the test puts it there; asked for by name, the reference is no fallback. */
static void fallbacks(void **state) {
    (void)state;
    const char *const levels[] = {NULL, "ref"};
    float out[3 * 4 * 64];
    for (int i = 0; i < 2; i++) {
        fixture f;
        source s = source_default(4);
        quire_seq *seq;
        quire_layer_stats before, after;
        fixture_init(&f, 1, 4, 2, 64, 64, "k4v4");
        f.options.cpu = levels[i];
        fixture_open(&f);
        assert_ok(quire_seq_create(f.pool, &seq));
        feed(&f, seq, &s, 200, 50, 1, 0, NULL);
        assert_ok(quire_layer_get_stats(f.pool, 0, &before));
        f.pool->layer[0].packed = &quire__attend_ref;
        feed(&f, seq, &s, 3, 1, 1, 0, out);
        assert_ok(quire_layer_get_stats(f.pool, 0, &after));
        assert_int_equal(before.fallbacks, 0);
        /* one job per step and KV head, if the machine has anything better */
        const bool better = strcmp(before.kernel, "ref") != 0;
        assert_int_equal(after.fallbacks, better ? 3 * 2 : 0);
        assert_string_equal(after.kernel, "ref");
        fixture_close(&f);
    }
}

/* The caller's thread may have configured tiles for its own products, as ggml does once per thread:
 * they must be as they were when attention returns. */
#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
static void tiles_of_the_caller(void **state) {
    (void)state;
    typedef struct tile_config {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } tile_config;
    tile_config mine = {.palette = 1, .row_bytes = {64, 32, 8}, .rows = {16, 7, 1}}, after,
                none = {0};
    kernel_case c;
    rng r = {5};
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    if (!has_level("amx"))
        skip();
    assert_true(case_open(&c,
                          &(case_shape){.k = QUIRE_CODEC_KC4,
                                        .v = QUIRE_CODEC_VT4,
                                        .k_dim = 64,
                                        .v_dim = 64,
                                        .n_rows = 20,
                                        .n_group = 1,
                                        .n_pages = 2},
                          true));
    case_fill(&c, &r);
    for (int configured = 0; configured < 2; configured++) {
        const tile_config *wanted = configured ? &mine : &none;
        if (configured)
            __asm__ volatile("ldtilecfg %0" ::"m"(mine));
        case_result result = case_attend(&c, &levels[n_levels - 1]);
        __asm__ volatile("sttilecfg %0" : "=m"(after));
        assert_memory_equal(&after, wanted, sizeof after);
        result_free(&result);
    }
    __asm__ volatile("tilerelease" ::);
    case_close(&c);
}
#endif

static void unknown_level(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 1, 2, 1, 64, 64, "k4v4");
    f.options.cpu = "pentium";
    assert_status(fixture_try(&f), QUIRE_E_UNKNOWN);
    assert_non_null(strstr(quire_last_error(), "pentium"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec),
        cmocka_unit_test(head_sizes),
        cmocka_unit_test(groups_of_heads),
        cmocka_unit_test(raw_with_quantized),
        cmocka_unit_test(rules),
        cmocka_unit_test(extremes),
        cmocka_unit_test(choice),
        cmocka_unit_test(levels_of_this_machine),
        cmocka_unit_test(unknown_level),
        cmocka_unit_test(fallbacks),
#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
        cmocka_unit_test(tiles_of_the_caller),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
