/* Names, errors, extremes and the promises of each codec that need no other system. Values
 * against mlx, ggml and an independent decoder: tests/py. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kit.h"

enum { T = 64 };

static void names(void **state) {
    (void)state;
    quire_policy p;
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info preset;
        assert_ok(quire_preset_at(i, &preset));
        assert_ok(quire_policy_parse(preset.name, &p));
        assert_int_equal(p.pair.k, preset.pair.k);
        assert_int_equal(p.pair.v, preset.pair.v);
        assert_int_equal(p.sinks, preset.sinks);
    }
    const char *wanted[] = {"none", "k8v8", "k8v4", "k4v4", "k4v3", "k3v3", "k4v2",
                            "tq4",  "tq3",  "mlx8", "mlx4", "q8_0", "q4_0", "rot_k_tq4v"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_ok(quire_policy_parse(wanted[i], &p));
    for (size_t i = 0; i < quire_codec_count();
         i++) { /* every codec by name, on the sides it serves and no other */
        quire_codec_info info;
        char text[64];
        assert_ok(quire_codec_at(i, &info));
        snprintf(text, sizeof text, "%s:raw", info.name);
        assert_status(quire_policy_parse(text, &p), info.for_k ? QUIRE_OK : QUIRE_E_UNSUPPORTED);
        if (info.for_k)
            assert_int_equal(p.pair.k, info.codec);
        snprintf(text, sizeof text, "raw:%s", info.name);
        assert_status(quire_policy_parse(text, &p), info.for_v ? QUIRE_OK : QUIRE_E_UNSUPPORTED);
        assert_string_equal(quire_codec_name(info.codec), info.name);
    }
    assert_ok(quire_policy_parse("a4g64:a8g64", &p));
    assert_true(p.pair.k == QUIRE_CODEC_A4 && p.pair.v == QUIRE_CODEC_A8);
    const char *unknown[] = {
        "",      ":",           "kc4",       "kc4:",        ":vt4",        "kc4:vt5",    "KC4:VT4",
        "k4v4 ", "kc4:vt4:vt4", "none:none", "a4g16:a4g16", "a4g32g64:a4", "q8_0g64:a4", "a:a"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const quire_policy before = p;
        assert_status(quire_policy_parse(unknown[i], &p), QUIRE_E_UNKNOWN);
        assert_memory_equal(&before, &p, sizeof p);
    }
    assert_status(quire_policy_parse(NULL, &p), QUIRE_E_INVALID);
    assert_status(quire_codec_at(quire_codec_count(), &(quire_codec_info){0}), QUIRE_E_INVALID);
    assert_null(quire_codec_name((quire_codec)9999));
}

static quire_page_shape shape_of(const char *kv, int dk, int dv, quire_type raw) {
    quire_policy p;
    assert_ok(quire_policy_parse(kv, &p));
    return (quire_page_shape){p.pair, dk, dv, raw};
}

/* A message names what is wrong. */
static void null_arguments(void **state) {
    (void)state;
    quire_codec_info codec;
    quire_preset_info preset;
    assert_status(quire_codec_at(0, NULL), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "NULL"));
    assert_status(quire_preset_at(0, NULL), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "NULL"));
    assert_status(quire_codec_at(quire_codec_count(), &codec), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "out of range"));
    assert_status(quire_preset_at(quire_preset_count(), &preset), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "out of range"));
}

static void shapes(void **state) {
    (void)state;
    size_t bytes;
    const int bad[] = {0, -16, 16, 31, 33, 40, 577, 592, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const quire_page_shape k = shape_of("kc4:vt4", bad[i], 64, QUIRE_F16),
                               v = shape_of("kc4:vt4", 64, bad[i], QUIRE_F16);
        assert_status(quire_page_bytes(&k, &bytes), QUIRE_E_UNSUPPORTED);
        assert_non_null(strstr(quire_last_error(), "K head size"));
        assert_status(quire_page_bytes(&v, &bytes), QUIRE_E_UNSUPPORTED);
        assert_non_null(strstr(quire_last_error(), "V head size"));
    }
    const quire_page_shape grouped = shape_of("a4:a4g128", 64, 192, QUIRE_F16);
    assert_status(quire_page_bytes(&grouped, &bytes), QUIRE_E_UNSUPPORTED);
    assert_non_null(strstr(quire_last_error(), "a4g128"));
    const quire_page_shape type = {{QUIRE_CODEC_KC4, QUIRE_CODEC_VT4}, 64, 64, (quire_type)7};
    assert_status(quire_page_bytes(&type, &bytes), QUIRE_E_INVALID);
    const quire_page_shape number = {{(quire_codec)5, QUIRE_CODEC_VT4}, 64, 64, QUIRE_F16};
    assert_status(quire_page_bytes(&number, &bytes), QUIRE_E_UNKNOWN);
    const quire_page_shape side = {{QUIRE_CODEC_VT4, QUIRE_CODEC_KC4}, 64, 64, QUIRE_F16};
    assert_status(quire_page_bytes(&side, &bytes), QUIRE_E_UNSUPPORTED);
}

/* Every codec, both sides, on rows made by `make`; then `judge` sees original and decoded. */
typedef void (*make_rows)(rng *r, float *rows, int dim);
typedef void (*judge_rows)(const char *name, const float *rows, const float *decoded, int dim);

static void for_every_codec(make_rows make, judge_rows judge) {
    static float k[T * 128], v[T * 128], k2[T * 128], v2[T * 128];
    static uint8_t page[T * 128 * 8];
    rng r = {77};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        const quire_page_shape shape = {
            {info.for_k ? info.codec : QUIRE_CODEC_RAW, info.for_v ? info.codec : QUIRE_CODEC_RAW},
            128,
            128,
            QUIRE_F16};
        make(&r, k, 128);
        make(&r, v, 128);
        assert_ok(quire_page_encode(&shape, k, v, 0, page));
        assert_ok(quire_page_decode(&shape, page, k2, v2));
        if (info.for_k)
            judge(info.name, k, k2, 128);
        if (info.for_v)
            judge(info.name, v, v2, 128);
    }
}

static void make_zero(rng *r, float *rows, int dim) {
    (void)r;
    memset(rows, 0, (size_t)(T * dim) * sizeof *rows);
}

static void make_constant(rng *r, float *rows, int dim) {
    (void)r;
    for (int i = 0; i < T * dim; i++)
        rows[i] = 3.25f;
}

static void make_outliers(rng *r, float *rows, int dim) {
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_normal(r) * (rng_below(r, 100) ? 1 : 3000);
}

static void make_limits(rng *r, float *rows, int dim) {
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_below(r, 2) ? 65504.0f : -65504.0f;
}

static void make_tiny(rng *r, float *rows, int dim) {
    for (int i = 0; i < T * dim; i++)
        rows[i] = rng_normal(r) * 1e-7f;
}

static void judge_zero(const char *name, const float *rows, const float *decoded, int dim) {
    (void)rows;
    for (int i = 0; i < T * dim; i++)
        if (decoded[i] != 0)
            fail_msg("%s: zero became %g", name, (double)decoded[i]);
}

static double row_error(const float *rows, const float *decoded, int n) {
    double error = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        error += pow((double)rows[i] - decoded[i], 2);
        norm += pow((double)rows[i], 2);
    }
    return sqrt(error / norm);
}

/* No codec may lose more than 2 bits of uniform quantization lose: relative error well below 1. */
static void judge_sane(const char *name, const float *rows, const float *decoded, int dim) {
    for (int i = 0; i < T * dim; i++)
        if (!isfinite(decoded[i]))
            fail_msg("%s: value %d became %g", name, i, (double)decoded[i]);
    const double error = row_error(rows, decoded, T * dim);
    if (!(error < 0.75))
        fail_msg("%s: relative error %g", name, error);
}

static void judge_tiny(const char *name, const float *rows, const float *decoded, int dim) {
    (void)rows;
    for (int i = 0; i < T * dim; i++)
        if (!(fabsf(decoded[i]) < 2e-6f))
            fail_msg("%s: tiny value became %g", name, (double)decoded[i]);
}

static void extremes(void **state) {
    (void)state;
    for_every_codec(make_zero, judge_zero);
    for_every_codec(make_constant, judge_sane);
    for_every_codec(make_outliers, judge_sane);
    for_every_codec(make_limits, judge_sane);
    for_every_codec(make_tiny, judge_tiny);
}

static void refused_values(void **state) {
    (void)state;
    static float k[T * 64], v[T * 64];
    static uint8_t page[T * 64 * 8], before[sizeof page];
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e6f};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        const quire_page_shape shape = {
            {info.for_k ? info.codec : QUIRE_CODEC_F32, info.for_v ? info.codec : QUIRE_CODEC_F32},
            64,
            64,
            QUIRE_F16};
        if (info.group > 64)
            continue;
        const bool unlimited = info.codec == QUIRE_CODEC_F32 || info.codec == QUIRE_CODEC_BF16;
        for (int b = 0; b < (unlimited ? 3 : 4); b++)
            for (int side = 0; side < 2; side++) {
                if (!(side ? info.for_v : info.for_k))
                    continue;
                memset(k, 0, sizeof k), memset(v, 0, sizeof v), memset(page, 0xa5, sizeof page),
                    memcpy(before, page, sizeof page);
                (side ? v : k)[5 * 64 + 7] = bad[b];
                assert_status(quire_page_encode(&shape, k, v, 0, page), QUIRE_E_VALUE);
                assert_non_null(strstr(quire_last_error(), "token 5, channel 7"));
                assert_memory_equal(page, before, sizeof page);
                assert_ok(
                    quire_page_encode(&shape, k, v, 6, page)); /* skipped rows are not looked at */
            }
    }
}

/* Skipped tokens do not touch the statistics: an outlier among them changes nothing. */
static void skipped_tokens(void **state) {
    (void)state;
    static float k[T * 64], v[T * 64];
    static uint8_t page[2][T * 64 * 8];
    rng r = {9};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        if (info.group > 64)
            continue;
        const quire_page_shape shape = {
            {info.for_k ? info.codec : QUIRE_CODEC_RAW, info.for_v ? info.codec : QUIRE_CODEC_RAW},
            64,
            64,
            QUIRE_BF16};
        size_t bytes;
        assert_ok(quire_page_bytes(&shape, &bytes));
        rng_fill(&r, k, T * 64, 1);
        rng_fill(&r, v, T * 64, 1);
        assert_ok(quire_page_encode(&shape, k, v, 4, page[0]));
        for (int j = 0; j < 4 * 64; j++)
            k[j] = v[j] = 1e4f;
        assert_ok(quire_page_encode(&shape, k, v, 4, page[1]));
        assert_memory_equal(page[0], page[1], bytes);
    }
}

static void exchange_errors(void **state) {
    (void)state;
    static uint8_t page[T * 128 * 8], codes[T * 128 * 8];
    static float a[T * 4], b[T * 4];
    static uint32_t signs[T * 4];
    quire_page_shape shape = shape_of("kc4:vt4", 128, 128, QUIRE_F16);
    quire_arrays arrays = {.codes = codes};
    assert_status(quire_page_export(&shape, QUIRE_SIDE_K, page, &arrays), QUIRE_E_UNSUPPORTED);
    assert_status(quire_page_export(&shape, (quire_side)3, page, &arrays), QUIRE_E_INVALID);
    shape = shape_of("tqp4:a4", 128, 128, QUIRE_F32);
    assert_status(quire_page_export(&shape, QUIRE_SIDE_K, page, &arrays), QUIRE_E_INVALID);
    assert_status(quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page), QUIRE_E_INVALID);
    arrays = (quire_arrays){codes, a, b, a, b, signs, NULL};
    for (int bad = 0; bad < 4; bad++) {
        for (int i = 0; i < T * 4; i++)
            a[i] = b[i] = 1;
        (bad % 2 ? a : b)[17] = bad < 2 ? NAN : INFINITY;
        assert_status(quire_page_import(&shape, QUIRE_SIDE_K, &arrays, page), QUIRE_E_VALUE);
        assert_status(quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page), QUIRE_E_VALUE);
    }
    for (int bad = 0; bad < 2; bad++) { /* finite, but what they decode to is not */
        for (int i = 0; i < T * 4; i++)
            a[i] = b[i] = 1;
        assert_ok(quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page));
        (bad ? a : b)[17] = 3e38f;
        assert_status(quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page), QUIRE_E_VALUE);
    }
    shape = shape_of("tq4:tq4", 128, 128, QUIRE_F16);
    for (int i = 0; i < T * 4; i++)
        a[i] = b[i] = 1;
    assert_status(quire_page_export(&shape, QUIRE_SIDE_K, page, &arrays),
                  QUIRE_E_INVALID); /* its mean has no place */
    assert_ok(quire_page_export(&shape, QUIRE_SIDE_V, page, &arrays));
    assert_ok(quire_page_import(&shape, QUIRE_SIDE_K, &arrays, page));
    arrays.means = b;
    const float bad[] = {NAN, INFINITY, -7e4f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b[127] = bad[i];
        assert_status(quire_page_import(&shape, QUIRE_SIDE_K, &arrays, page), QUIRE_E_VALUE);
        assert_ok(
            quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page)); /* V has none to look at */
    }
}

/* What is imported is all that a page has: its bytes do not depend on what lay there before. */
static void import_leaves_nothing_of_before(void **state) {
    (void)state;
    static const char *const kv[] = {"tq4:tq4", "tqp4:tq3", "mlx4", "mlx8", "q8_0", "q4_0"};
    static uint8_t page[2][T * 128 * 8], codes[T * 128 * 8];
    static float norms[T * 8], means[128];
    static uint32_t signs[T * 4];
    const quire_arrays arrays = {codes, norms, norms, norms, norms, signs, means};
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        for (int dim = 64; dim <= 96; dim += i < 2 ? 16 : 64) { /* 80: no multiple of 32 */
            const quire_page_shape shape = shape_of(kv[i], dim, dim, QUIRE_F32);
            size_t bytes;
            assert_ok(quire_page_bytes(&shape, &bytes));
            assert_true(bytes <= sizeof page[0]);
            memset(page[0], 0, bytes);
            memset(page[1], 0xa5, bytes);
            for (int p = 0; p < 2; p++) {
                assert_ok(quire_page_import(&shape, QUIRE_SIDE_K, &arrays, page[p]));
                assert_ok(quire_page_import(&shape, QUIRE_SIDE_V, &arrays, page[p]));
            }
            assert_memory_equal(page[0], page[1], bytes);
        }
    /* A scale of q8_0 is a length: what no encoder writes is refused here, not when the page is
     * loaded. */
    const quire_page_shape shape = shape_of("q8_0", 64, 64, QUIRE_F16);
    codes[1] = 0xbc; /* -1 */
    assert_status(quire_page_import(&shape, QUIRE_SIDE_K, &arrays, page[0]), QUIRE_E_VALUE);
    codes[1] = 0;
}

/* K of tq keeps what its tokens share apart from the codes: rows that are all the same cost
 * nothing but fp16. V does not. */
static void page_mean(void **state) {
    (void)state;
    static float rows[T * 64], k[T * 64], v[T * 64];
    static uint8_t page[T * 64 * 8];
    rng r = {31};
    const char *pairs[] = {"tq4:tq4", "tq3:tq3", "tq2:tq2"};
    const size_t bytes[] = {4480, 3456, 2432};
    for (size_t p = 0; p < 3; p++) {
        const quire_page_shape shape = shape_of(pairs[p], 64, 64, QUIRE_F16);
        size_t size;
        assert_ok(quire_page_bytes(&shape, &size));
        assert_int_equal(size, bytes[p]);
        for (int d = 0; d < 64; d++) {
            rows[d] = rng_normal(&r) * 100;
            for (int t = 1; t < T; t++)
                rows[t * 64 + d] = rows[d];
        }
        for (int skip = 0; skip < T; skip += 21) {
            assert_ok(quire_page_encode(&shape, rows, rows, skip, page));
            assert_ok(quire_page_decode(&shape, page, k, v));
            const double of_k = row_error(rows + skip * 64, k + skip * 64, (T - skip) * 64),
                         of_v = row_error(rows + skip * 64, v + skip * 64, (T - skip) * 64);
            if (!(of_k < 0x1p-12 && of_v > 0.05))
                fail_msg("%s, skip %d: K off by %g, V by %g", pairs[p], skip, of_k, of_v);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),           cmocka_unit_test(null_arguments),
        cmocka_unit_test(shapes),          cmocka_unit_test(extremes),
        cmocka_unit_test(refused_values),  cmocka_unit_test(skipped_tokens),
        cmocka_unit_test(exchange_errors), cmocka_unit_test(import_leaves_nothing_of_before),
        cmocka_unit_test(page_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
