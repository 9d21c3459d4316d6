/* Rows and pages of every kernel level against the reference, bit for bit: the bytes of a sealed
 * page, rotations, conversions. Nothing may be written outside. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/element.h"
#include "codec/hadamard.h"
#include "kern/kern.h"
#include "kernel_case.h"
#include "kit.h"

enum { T = QUIRE_PAGE_TOKENS, GUARD = 64, ROW_MAX = T * QUIRE_DIM_MAX };

extern const quire_row_kernels test_rows_8_lanes, test_rows_16_lanes; /* rows_*_lanes.c */

enum { MOST_LEVELS = 16 };
static struct {
    const char *name;
    const quire_row_kernels *rows;
} levels[MOST_LEVELS] = {{"plain C, 8 lanes", &test_rows_8_lanes},
                         {"plain C, 16 lanes", &test_rows_16_lanes}};
static int n_levels = 2;

static void add_level(const char *name, const quire_row_kernels *rows) {
    if (rows == &quire__rows_ref)
        return; /* what the others are compared with */
    for (int i = 0; i < n_levels; i++)
        if (levels[i].rows == rows)
            return;
    assert_true(n_levels < MOST_LEVELS);
    levels[n_levels].name = name;
    levels[n_levels++].rows = rows;
}

/* Every table that this machine can run, whether or not its level is ever chosen. */
static int find_levels(void **state) {
    const kernel_level *found;
    const int n = kernel_levels(&found);
    (void)state;
    for (int i = 0; i < n; i++)
        add_level(found[i].name, found[i].kernels.rows);
#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        add_level("avx512, without VNNI", &quire__rows_avx512);
#endif
    return 0;
}

/* ------------------------------------------------------------------ rows */

typedef struct input {
    const char *name;
    void (*make)(rng *r, float *rows, int dim, float largest);
} input;

static void normal(rng *r, float *rows, int dim, float largest) {
    (void)largest;
    rng_fill(r, rows, (size_t)(T * dim), 1);
    for (int d = 0; d < dim; d++)
        for (int t = 0; t < T; t++)
            rows[t * dim + d] += (float)(d % 7) * 0.4f;
}

static void zeros(rng *r, float *rows, int dim, float largest) {
    (void)largest;
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_below(r, 2) ? 0.0f : -0.0f;
}

static void constants(rng *r, float *rows, int dim, float largest) {
    const float x = rng_normal(r);
    (void)largest;
    for (int i = 0; i < T * dim; i++)
        rows[i] = x;
}

/* Few values, so that maxima, minima and roundings tie; whole steps of every codec's grid. */
static void ties(rng *r, float *rows, int dim, float largest) {
    (void)largest;
    for (int i = 0; i < T * dim; i++)
        rows[i] = (float)(rng_below(r, 33) - 16) * 0.5f;
}

static void opposite(rng *r, float *rows, int dim, float largest) {
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_below(r, 2) ? largest : -largest;
}

static void huge(rng *r, float *rows, int dim, float largest) {
    for (int i = 0; i < T * dim; i++)
        rows[i] = (float)(rng_uniform(r) * 2 - 1) * largest;
}

static void tiny(rng *r, float *rows, int dim, float largest) {
    (void)largest;
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_normal(r) * ldexpf(1, -10 - rng_below(r, 40));
}

static void subnormal(rng *r, float *rows, int dim, float largest) {
    (void)largest;
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_normal(r) * ldexpf(1, -126 - rng_below(r, 24));
}

static void outlier_channel(rng *r, float *rows, int dim, float largest) {
    normal(r, rows, dim, largest);
    const int d = rng_below(r, dim);
    for (int t = 0; t < T; t++)
        rows[t * dim + d] = largest * (float)(rng_uniform(r) * 2 - 1);
}

/* Each row of another kind: tokens of one page meet in a codec's batches. */
static void mixed(rng *r, float *rows, int dim, float largest) {
    for (int t = 0; t < T; t++)
        for (int d = 0; d < dim; d++) {
            const float scale = ldexpf(1, (t * 37) % 40 - 30);
            rows[t * dim + d] = t % 9 == 0 ? 0 : t % 11 == 0 ? largest : rng_normal(r) * scale;
        }
}

static const input INPUTS[] = {
    {"normal", normal}, {"zeros", zeros},         {"constants", constants},
    {"ties", ties},     {"opposite", opposite},   {"huge", huge},
    {"tiny", tiny},     {"subnormal", subnormal}, {"outlier channel", outlier_channel},
    {"mixed", mixed},
};
enum { N_INPUTS = sizeof INPUTS / sizeof *INPUTS };

/* ------------------------------------------------------------------ pages */

static float k_rows[ROW_MAX], v_rows[ROW_MAX];
static uint8_t wanted[GUARD + 2 * 4 * ROW_MAX + GUARD], got[sizeof wanted];

/* What a function forgets to initialise must not happen to be zero. */
static __attribute__((noinline)) void dirty_stack(void) {
    volatile uint8_t dirt[200000];
    for (size_t i = 0; i < sizeof dirt; i++)
        dirt[i] = 0xa5;
}

/* k_rows and v_rows by every level. `what` names the case. */
static void compare_seals(const quire_format *format, int skip, const char *what) {
    memset(wanted, 0xa5, format->bytes + 2 * GUARD);
    quire__page_encode(format, k_rows, v_rows, skip, wanted + GUARD);
    for (int level = 0; level < n_levels; level++) {
        const quire_row_kernels *rows = levels[level].rows;
        if (!rows)
            continue;
        memset(got, 0xa5, format->bytes + 2 * GUARD);
        if (skip)
            dirty_stack();
        quire__seal_page(rows, format, k_rows, v_rows, skip, got + GUARD);
        for (size_t i = 0; i < format->bytes + 2 * GUARD; i++)
            if (got[i] != wanted[i])
                fail_msg("%s: %s:%s, D %d, skip %d, %s: byte %ld of %zu (K parameters at %zu, V "
                         "codes at %zu,"
                         " V parameters at %zu) is %02x, not %02x",
                         levels[level].name, quire_codec_name(format->k.codec),
                         quire_codec_name(format->v.codec), format->k.dim, skip, what,
                         (long)i - GUARD, format->bytes, format->k.params, format->v.codes,
                         format->v.params, got[i], wanted[i]);
    }
}

static void compare_page(const quire_codec_info *info, int dim, quire_type raw, const input *in,
                         int skip) {
    const quire_pair pair = {info->for_k ? info->codec : QUIRE_CODEC_RAW,
                             info->for_v ? info->codec : QUIRE_CODEC_RAW};
    quire_format format;
    if (quire__format_init(&format, pair, dim, dim, raw) != QUIRE_OK)
        return; /* does not serve this size */
    rng r = {(uint64_t)(dim * 100 + skip)};
    in->make(&r, k_rows, dim, format.k.max_abs);
    in->make(&r, v_rows, dim, format.v.max_abs);
    for (int i = 0; i < skip * dim; i++) /* nobody looks at skipped rows */
        k_rows[i] = v_rows[i] = NAN;
    compare_seals(&format, skip, in->name);
}

/* Under a sanitizer one page in so many (sweep_takes): bytes are compared by the plain build, and a
 * sanitizer sees what a kernel touches. The longest sweeps are thinned in a plain build, too: every
 * codec still has two sizes of three, and every kind of rows and every raw type. */
enum { SWEEP = 11 };

/* Values exactly on an edge of the codebook, and sums that only an fma rounds to a whole number,
 * are one in millions. */
static void rare_roundings(void **state) {
    (void)state;
    enum { DIM = 64, PAGES = 3000 };
    rng r = {11};
    int sweep = 0;
    quire_format format;
    assert_ok(quire__format_init(&format, (quire_pair){QUIRE_CODEC_TQ4, QUIRE_CODEC_Q4_0}, DIM, DIM,
                                 QUIRE_F16));
    for (int page = 0; page < PAGES; page++) {
        for (int i = 0; i < T * DIM; i++) {
            const uint64_t bits = rng_next(&r); /* uniform is enough, and quick */
            k_rows[i] = (float)(int32_t)bits * 0x1p-31f;
            v_rows[i] = (float)(int32_t)(bits >> 32) * 0x1p-31f;
        }
        if (sweep_takes(&sweep, SWEEP))
            compare_seals(&format, 0, "uniform");
    }
}

static void every_size(void **state) {
    (void)state;
    int sweep = 0;
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP)
            for (int skip = 0; skip <= 4; skip += 4)
                if (sweep_takes_of(&sweep, 3, SWEEP))
                    compare_page(&info, dim, QUIRE_F16, &INPUTS[0], skip);
    }
}

static void every_input(void **state) {
    (void)state;
    int sweep = 0;
    const int dims[] = {32, 64, 80, 96, 112, 128, 256, 576}, skips[] = {0, 1, 4, 13, 63, 64};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int raw = QUIRE_F32; raw <= QUIRE_BF16; raw++)
                for (int in = 0; in < N_INPUTS; in++)
                    if (sweep_takes_of(&sweep, 7, SWEEP))
                        compare_page(&info, dims[d], (quire_type)raw, &INPUTS[in],
                                     skips[(in + (int)d + raw) % 6]);
    }
}

/* ------------------------------------------------------------------ single rows */

static void rotations(void **state) {
    (void)state;
    for (int level = 0; level < n_levels; level++) {
        const quire_row_kernels *rows = levels[level].rows;
        if (!rows)
            continue;
        for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP)
            for (int in = 0; in < N_INPUTS; in++) {
                rng r = {(uint64_t)(dim + in)};
                INPUTS[in].make(&r, k_rows, dim, 1e20f);
                void (*const ours[])(float *, int) = {rows->rotate, rows->unrotate, rows->project};
                void (*const theirs[])(float *, int) = {quire__rotate, quire__unrotate,
                                                        quire__project};
                for (int f = 0; f < 3; f++) {
                    float a[QUIRE_DIM_MAX + 16],
                        b[QUIRE_DIM_MAX + 16]; /* and what lies behind the row */
                    memcpy(a, k_rows, sizeof a);
                    memcpy(b, k_rows, sizeof b);
                    ours[f](a, dim);
                    theirs[f](b, dim);
                    if (memcmp(a, b, sizeof a) != 0)
                        fail_msg("%s: function %d, D %d, %s", levels[level].name, f, dim,
                                 INPUTS[in].name);
                }
            }
    }
}

static void conversions(void **state) {
    (void)state;
    static uint16_t halves[65536];
    static float row[65536], again[65536];
    for (int level = -1; level < n_levels; level++) {
        const quire_row_kernels *rows = level < 0 ? &quire__rows_ref : levels[level].rows;
        if (!rows)
            continue;
        for (int type = QUIRE_F16; type <= QUIRE_BF16; type++) {
            for (uint32_t h = 0; h < 65536; h++)
                halves[h] = (uint16_t)h;
            rows->from_raw((quire_type)type, halves, 65536, row);
            for (uint32_t h = 0; h < 65536; h++) {
                const float x = type == QUIRE_F16 ? quire__f16_to_f32((uint16_t)h)
                                                  : quire__bf16_to_f32((uint16_t)h);
                assert_true(isnan(x) ? isnan(row[h])
                                     : quire__float_bits(x) == quire__float_bits(row[h]));
            }
            rng r = {7};
            for (int i = 0; i < 65536; i++) {
                const uint32_t bits = (uint32_t)rng_next(&r);
                const bool middle = i % 2; /* between two fp16 or bf16 numbers, or anything */
                row[i] = quire__bits_float(
                    middle ? (bits & 0xffff0000u) | 0x8000u | (bits & 1 ? 0x1000u : 0) : bits);
                if (!(fabsf(row[i]) <= 65504.0f))
                    row[i] = 65504.0f;
            }
            for (int n = 65536 - 20; n <= 65536; n++) { /* tails of every length */
                memset(halves, 0, sizeof halves);
                rows->to_raw((quire_type)type, halves, (size_t)n, row);
                for (int i = n - 30; i < 65536; i++)
                    assert_int_equal(halves[i], i >= n              ? 0
                                                : type == QUIRE_F16 ? quire__f32_to_f16(row[i])
                                                                    : quire__f32_to_bf16(row[i]));
            }
            for (int i = 0; i < 65536; i++)
                assert_int_equal(halves[i], type == QUIRE_F16 ? quire__f32_to_f16(row[i])
                                                              : quire__f32_to_bf16(row[i]));
        }
        rows->from_raw(QUIRE_F32, row, 65536, again);
        assert_memory_equal(row, again, sizeof row);
    }
}

static void first_beyond(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 2.5f, -2.5f};
    float row[QUIRE_DIM_MAX] = {0};
    row[3] = 2, row[4] = -2;
    assert_int_equal(quire__first_beyond(row, QUIRE_DIM_MAX, 2), QUIRE_DIM_MAX);
    for (int i = 5; i < QUIRE_DIM_MAX; i++) {
        row[i] = bad[i % 5];
        row[QUIRE_DIM_MAX - 1] = NAN;
        assert_int_equal(quire__first_beyond(row, QUIRE_DIM_MAX, 2), i);
        row[i] = row[QUIRE_DIM_MAX - 1] = 0;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations),      cmocka_unit_test(conversions),
        cmocka_unit_test(first_beyond),   cmocka_unit_test(every_size),
        cmocka_unit_test(rare_roundings), cmocka_unit_test(every_input),
    };
    return cmocka_run_group_tests(tests, find_levels, NULL);
}
