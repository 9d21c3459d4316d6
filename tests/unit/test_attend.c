/* Attention against dense fp64 attention over the decoded codes, for every codec, shape and
 * feature.
 *
 * Bounds, as relative L2 error over all rows of a case, K and q of unit variance:
 *   1e-5   a raw side: fp32 sums alone, or q and weights as two bf16 numbers each, which leave
 *          out at most 2^-18. 2.08e-4 where f16 meets q or weights that are fp16 too
 *          (FP16_ROUNDING in kit.h)
 *   2e-4   an 8-bit side: q as 15-bit, weights as 16-bit integers
 *   7e-3   K below 8 bits, q as int8, at 128 channels and logits of standard deviation 1. The error
 * of a logit is half a step of max|q|/127 against every channel: it grows with the logits' scale,
 * with max|q| (the root of ln 2D, and for kc* 1.1 for the spread of the scales folded into q), and
 * with the energy that 2-bit rounding adds to K (root of 1.2) 7e-3   V below 8 bits, weights as u8:
 * half a step of 1/255 of the block's largest. 8.5e-3 where every group has scales of its own,
 * which spread the weights further from their largest Independent errors add as squares. Those are
 * what a row's error is in the mean; over the n rows and heads of a case the root of the mean
 * square strays by 1 / (2 sqrt n), of which two are granted. (Without that, one draw in 20 fails.)
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/element.h"
#include "kit.h"

static double bound_of(const fixture *f, int rows) {
    const quire_layer *l = &f->layer[0];
    return attend_bound(f->options.policy.pair, l->k_dim,
                        l->scale > 0 ? l->scale * sqrt(l->k_dim) : 1, side_uses_fp16(f, false),
                        side_uses_fp16(f, true)) *
           (1 + 1 / sqrt(rows * l->n_heads));
}

/* Fill `context` tokens, attend `rows` more one batch, compare each with the oracle. Returns the
 * error. */
static double error_at_depth(fixture *f, int context, int rows, const source *s,
                             step_options options) {
    quire_seq *seq;
    assert_ok(quire_seq_create(f->pool, &seq));
    feed(f, seq, s, context, 256, 1, 0, NULL);
    const quire_layer *l = &f->layer[0];
    const size_t n = (size_t)(rows * l->n_heads * l->v_dim), n_lse = (size_t)(rows * l->n_heads);
    float *out = malloc(n * sizeof *out), *lse = malloc(n_lse * sizeof *lse);
    double *wanted = malloc(n * sizeof *wanted), *wanted_lse = malloc(n_lse * sizeof *wanted_lse);
    const step_item item = {seq, s, rows};
    options.lse = lse;
    assert_ok(step(f, &item, 1, &options, out));
    oracle_attend_rows(f, 0, s, context, rows, &options, wanted, wanted_lse);
    for (size_t i = 0; i < n_lse; i++) {
        if (isinf(wanted_lse[i]))
            assert_true(isinf(lse[i]) && lse[i] < 0);
        else if (!(fabs((double)lse[i] - wanted_lse[i]) < 4 * bound_of(f, rows) + 1e-4))
            fail_msg("lse %.6f, wanted %.6f", (double)lse[i], wanted_lse[i]);
    }
    const double error = relative_error(out, wanted, n);
    assert_ok(quire_seq_free(seq));
    free(out), free(lse), free(wanted), free(wanted_lse);
    return error;
}

static void check(fixture *f, const char *what, int context, int rows, const source *s,
                  step_options options) {
    fixture_open(f);
    const double error = error_at_depth(f, context, rows, s, options), bound = bound_of(f, rows);
    if (!(error < bound))
        fail_msg("%s: relative error %.2e, bound %.2e", what, error, bound);
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f->pool, 0, &stats));
    assert_int_equal(stats.fallbacks, 0);
    if (context >= 64)
        assert_true(stats.packed_read > 0);
    fixture_close(f);
}

/* K without a channel bias: group codecs cannot separate it, and their q error would grow with
 * it. */
static source plain_source(uint64_t seed) {
    source s = source_default(seed);
    s.k_channel_bias = 0;
    return s;
}

static void every_codec(void **state) {
    (void)state;
    const source s = plain_source(11);
    const step_options none = {0};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        char kv[64];
        fixture f;
        quire_codec_at(i, &info);
        for (int v = 0; v < 2; v++) {
            if (!(v ? info.for_v : info.for_k))
                continue;
            snprintf(kv, sizeof kv, v ? "f32:%s" : "%s:f32", info.name);
            fixture_init(&f, 1, 4, 2, 128, 128, kv);
            f.options.raw = QUIRE_F32;
            check(&f, kv, 900, 30, &s, none);
        }
    }
}

static void every_preset(void **state) {
    (void)state;
    const source s = plain_source(12);
    const quire_type types[] = {QUIRE_F16, QUIRE_BF16, QUIRE_F32};
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info preset;
        quire_preset_at(i, &preset);
        fixture f;
        fixture_init(&f, 1, 6, 2, 64, 64, preset.name); /* groups of three */
        f.options.raw = types[i % 3];
        check(&f, preset.name, 500, 70, &s, (step_options){.type = QUIRE_F32});
    }
}

/* Raw pages of every type, K with a bias that all tokens share: what rounding q does to it must
 * cancel. */
static void raw_types(void **state) {
    (void)state;
    const source s = source_default(21);
    const quire_type types[] = {QUIRE_F16, QUIRE_BF16, QUIRE_F32};
    for (int i = 0; i < 3; i++)
        for (int rows = 1; rows <= 30; rows += 29) {
            fixture f;
            fixture_init(&f, 1, 8, 2, 128, 96, "none");
            f.options.raw = types[i];
            check(&f, "raw types", 930, rows, &s, (step_options){0});
        }
}

static void head_sizes(void **state) {
    (void)state;
    const source s = plain_source(13);
    int sweep = 0;
    for (int d = 32; d <= 576; d += 16) {
        if (!sweep_takes(&sweep, 3)) /* 12 of 35 sizes, with each codec */
            continue;
        fixture f;
        fixture_init(&f, 1, 2, 1, d, 608 - d,
                     d % 32 ? "kc8:vt8" : "kc4:vt4"); /* K and V of different sizes */
        check(&f, "head sizes", 200, 20, &s, (step_options){0});
    }
}

static void head_groups(void **state) {
    (void)state;
    const source s = plain_source(14);
    for (int group = 1; group <= 16; group += group < 8 ? 1 : 4)
        for (int kv = 1; kv <= 3; kv += 2) {
            fixture f;
            fixture_init(&f, 1, group * kv, kv, 64, 64, "k8v8");
            check(&f, "head groups", 200, 5, &s, (step_options){0});
        }
}

static void features(void **state) {
    (void)state;
    const source s = plain_source(15);
    const char *pairs[] = {"none", "k8v8", "k4v4", "tq4", "mlx8", "q8_0"};
    float slopes[4], sinks[4];
    int sweep = 0;
    for (int h = 0; h < 4; h++) {
        slopes[h] = 0.02f * (float)(h + 1);
        sinks[h] = (float)(h - 1) * 2;
    }
    for (int p = 0; p < 6; p++)
        for (int feature = 0; feature < 32; feature++) { /* every combination */
            if (!sweep_takes(&sweep, 5))
                continue;
            fixture f;
            fixture_init(&f, 1, 4, 2, 64, 64, pairs[p]);
            quire_layer *l = &f.layer[0];
            if (feature & 1)
                l->softcap = 5;
            if (feature & 2)
                l->alibi = slopes;
            if (feature & 4)
                l->sink_logits = sinks;
            if (feature & 8) {
                l->window = 150;
                l->keep = feature & 1 ? 0 : 70;
            }
            if (feature & 16)
                l->scale = 0.2f;
            check(&f, pairs[p], 330, 8, &s, (step_options){0});
        }
}

static void explicit_mask(void **state) {
    (void)state;
    enum { CONTEXT = 300, ROWS = 6, H = 4, STRIDE = CONTEXT + ROWS };
    static float mask[H][ROWS][STRIDE];
    rng r = {5};
    const source s = plain_source(16);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < ROWS; i++)
            for (int t = 0; t < STRIDE; t++)
                mask[h][i][t] = rng_uniform(&r) < 0.4 ? -INFINITY : rng_normal(&r);
    for (int t = 0; t < STRIDE; t++)
        mask[1][2][t] = -INFINITY; /* sees nothing at all */
    const char *pairs[] = {"none", "k8v8", "tq3"};
    for (int p = 0; p < 3; p++)
        for (int per_head = 0; per_head < 2; per_head++) {
            fixture f;
            fixture_init(&f, 1, H, 2, 64, 64, pairs[p]);
            check(&f, "mask", CONTEXT, ROWS, &s,
                  (step_options){.mask = &mask[0][0][0],
                                 .mask_row_stride = STRIDE,
                                 .mask_head_stride = per_head ? ROWS * STRIDE : 0});
        }
}

static void sees_nothing(void **state) /* a row that may see nothing: zeros and -inf */
{
    (void)state;
    enum { ROWS = 3, H = 2 };
    float mask[ROWS * 100], out[ROWS * H * 64], lse[ROWS * H];
    for (int i = 0; i < ROWS * 100; i++)
        mask[i] = i / 100 == 1 ? -INFINITY : 0;
    const source s = plain_source(17);
    fixture f;
    fixture_init(&f, 1, H, 1, 64, 64, "k4v4");
    fixture_open(&f);
    quire_seq *seq;
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, 80, 80, 1, 0, NULL);
    const step_item item = {seq, &s, ROWS};
    const step_options options = {.mask = mask, .mask_row_stride = 100, .lse = lse};
    assert_ok(step(&f, &item, 1, &options, out));
    for (int i = 0; i < H * 64; i++)
        assert_true(out[H * 64 + i] == 0);
    for (int i = 0; i < H * 64; i++)
        assert_true(out[i] != 0 && out[2 * H * 64 + i] != 0);
    assert_true(isinf(lse[H]) && lse[H] < 0 && isfinite(lse[0]));
    fixture_close(&f);
}

static void bad_queries(void **state) /* NaN in, NaN out, for that row and head alone */
{
    (void)state;
    enum { ROWS = 3, H = 2, D = 64 };
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int b = 0; b < 4; b++)
        for (int c = 0; c < 3; c++) {
            const char *pairs[] = {"k4v4", "none", "tqp4:a4"};
            float k[ROWS * D], v[ROWS * D], q[ROWS * H * D], out[2][ROWS * H * D], lse[ROWS * H];
            rng r = {3};
            const source s = plain_source(18);
            fixture f;
            fixture_init(&f, 1, H, 1, D, D, pairs[c]);
            fixture_open(&f);
            quire_seq *seq;
            quire_batch *batch;
            assert_ok(quire_seq_create(f.pool, &seq));
            feed(&f, seq, &s, 200, 100, 1, 0, NULL);
            const quire_batch_item item = {seq, ROWS};
            assert_ok(quire_batch_begin(f.pool, &item, 1, &batch));
            rng_fill(&r, k, ROWS * D, 1);
            rng_fill(&r, v, ROWS * D, 1);
            rng_fill(&r, q, ROWS * H * D, 1);
            assert_ok(quire_batch_append(batch, 0, (quire_rows){k, QUIRE_F32, 0},
                                         (quire_rows){v, QUIRE_F32, 0}, 0, 1));
            quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out[0], .lse = lse};
            assert_ok(quire_batch_attend(batch, 0, &args, 0, 1));
            q[(1 * H + 1) * D + 7] = bad[b];
            args.out = out[1];
            assert_ok(quire_batch_attend(batch, 0, &args, 0, 1)); /* the same layer again is fine */
            for (int i = 0; i < ROWS * H * D; i++) {
                if (i / D == H + 1)
                    assert_true(isnan(out[1][i]));
                else
                    assert_true(out[0][i] == out[1][i]);
            }
            assert_true(isnan(lse[H + 1]) && isfinite(lse[H]));
            quire_batch_abort(batch);
            fixture_close(&f);
        }
}

/* Adding a constant vector to all K only shifts every logit of a query: kc* keeps it in its
 * zeros, tq* in its mean. */
static void constant_in_k(void **state) {
    (void)state;
    const char *pairs[] = {"kc8:f32", "kc4:f32", "kc3:f32", "kc2:f32",
                           "tq4:f32", "tq3:f32", "tq2:f32"};
    float offset[128];
    rng r = {8};
    for (int d = 0; d < 128; d++)
        offset[d] = (float)(rng_below(&r, 33) - 16); /* integers: no rounding of K itself in f32 */
    for (int p = 0; p < 7; p++) {
        static float out[2][400 * 2 * 128];
        for (int shifted = 0; shifted < 2; shifted++) {
            source s = source_default(19);
            if (shifted)
                s.k_offset = offset;
            fixture f;
            fixture_init(&f, 1, 2, 1, 128, 128, pairs[p]);
            f.options.raw = QUIRE_F32;
            fixture_open(&f);
            quire_seq *seq;
            assert_ok(quire_seq_create(f.pool, &seq));
            feed(&f, seq, &s, 400, 100, 1, 0, out[shifted]);
            fixture_close(&f);
        }
        double error = 0, norm = 0;
        for (int i = 0; i < 400 * 2 * 128; i++) {
            error += pow((double)out[0][i] - (double)out[1][i], 2);
            norm += pow((double)out[0][i], 2);
        }
        /* A zero near 16 is rounded by up to 2^-7 (2^-8 on average), which makes that fraction
         * of a step's codes flip. A flip moves a value by one step; 64 normal values span about
         * 4.8, and the levels of tq less. */
        const int levels[] = {255, 16, 8, 4, 16, 8, 4};
        const double bound = sqrt(4.8 / (levels[p] - 1) * 0x1p-8);
        if (!(sqrt(error / norm) < bound))
            fail_msg("%s: changed by %.2e, bound %.2e", pairs[p], sqrt(error / norm), bound);
    }
}

/* Rows of K, V and q in the pool's own type give the bits that the same values give as f32. */
static void input_types(void **state) {
    (void)state;
    enum { N = 300, ROWS = 5, H = 4, G = 2, D = 64 };
    const quire_type types[] = {QUIRE_F16, QUIRE_BF16};
    const source s = plain_source(20);
    for (int i = 0; i < 2; i++) {
        fixture f;
        fixture_init(&f, 1, H, G, D, D, "k8v4");
        f.options.raw = types[i];
        fixture_open(&f);
        float out[2][ROWS * H * D];
        for (int typed = 0; typed < 2; typed++) {
            quire_seq *seq;
            assert_ok(quire_seq_create(f.pool, &seq));
            const step_options options = {.type = typed ? types[i] : QUIRE_F32, .store_only = true};
            for (int n = 0; n < N; n += 100) /* what is not of the pool's type is rounded to it */
                assert_ok(step(&f, &(step_item){seq, &s, 100}, 1, &options, NULL));
            float q[ROWS * H * D], k[ROWS * G * D], v[ROWS * G * D];
            float half[ROWS * H * D]; /* room for any type */
            for (int row = 0; row < ROWS; row++) {
                source_q(&s, &f.layer[0], 0, N + row, q + row * H * D);
                source_k(&s, &f.layer[0], 0, N + row, k + row * G * D);
                source_v(&s, &f.layer[0], 0, N + row, v + row * G * D);
            }
            quire__row_to_raw(types[i], half, ROWS * H * D,
                              q); /* q is not stored: both get what the type holds */
            quire__row_from_raw(types[i], half, ROWS * H * D, q);
            quire_batch *batch;
            assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){seq, ROWS}, 1, &batch));
            assert_ok(quire_batch_append(batch, 0, (quire_rows){k, QUIRE_F32, 0},
                                         (quire_rows){v, QUIRE_F32, 0}, 0, 1));
            const quire_rows queries =
                typed ? (quire_rows){half, types[i], 0} : (quire_rows){q, QUIRE_F32, 0};
            assert_ok(quire_batch_attend(
                batch, 0, &(quire_attend_args){.q = queries, .out = out[typed]}, 0, 1));
            quire_batch_abort(batch);
        }
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        fixture_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec),   cmocka_unit_test(every_preset),
        cmocka_unit_test(head_sizes),    cmocka_unit_test(head_groups),
        cmocka_unit_test(features),      cmocka_unit_test(explicit_mask),
        cmocka_unit_test(sees_nothing),  cmocka_unit_test(bad_queries),
        cmocka_unit_test(constant_in_k), cmocka_unit_test(input_types),
        cmocka_unit_test(raw_types),
    };
    if (level_is_missing())
        return LEFT_OUT;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
