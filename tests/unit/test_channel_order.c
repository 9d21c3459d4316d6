/* Orders of channels: how they are made, and that km4 and km3 are what they promise under any of
 * them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kit.h"

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The three classes by sorting, for every head size: no ranks, no places computed twice the same
 * way. */
static void classes(void **state) {
    (void)state;
    rng r = {31};
    for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP)
        for (int round = 0; round < 4; round++) {
            float importance[QUIRE_DIM_MAX];
            uint16_t order[QUIRE_DIM_MAX];
            int sorted[QUIRE_DIM_MAX]; /* channels, the most important first */
            for (int d = 0; d < dim; d++)
                importance[d] = round == 0   ? 1
                                : round == 1 ? (float)rng_below(&r, 5)
                                             : rng_normal(&r);
            if (round == 3)
                importance[dim / 2] = INFINITY, importance[3] = -INFINITY;
            int n = 0;
            for (int d = 0; d < dim; d++) { /* by insertion, behind equal ones */
                int at = n++;
                for (; at > 0 && importance[sorted[at - 1]] < importance[d]; at--)
                    sorted[at] = sorted[at - 1];
                sorted[at] = d;
            }
            const int few = dim / 32 * 8;
            qsort(sorted, (size_t)few, sizeof *sorted, compare);
            qsort(sorted + few, (size_t)(dim - 2 * few), sizeof *sorted, compare);
            qsort(sorted + dim - few, (size_t)few, sizeof *sorted, compare);
            assert_ok(quire_channel_order(importance, dim, order));
            for (int i = 0; i < few; i++) {
                assert_int_equal(order[i / 8 * 16 + i % 8], sorted[i]);
                assert_int_equal(order[i / 8 * 16 + 8 + i % 8], sorted[dim - few + i]);
            }
            for (int i = 2 * few; i < dim; i++)
                assert_int_equal(order[i], sorted[few + i - 2 * few]);
        }
}

static void bad_arguments(void **state) {
    (void)state;
    float importance[64] = {0};
    uint16_t order[64];
    assert_status(quire_channel_order(NULL, 64, order), QUIRE_E_INVALID);
    assert_status(quire_channel_order(importance, 64, NULL), QUIRE_E_INVALID);
    const int sizes[] = {0, -32, 16, 33, 592};
    for (int i = 0; i < 5; i++)
        assert_status(quire_channel_order(importance, sizes[i], order), QUIRE_E_INVALID);
    importance[41] = NAN;
    assert_status(quire_channel_order(importance, 64, order), QUIRE_E_VALUE);
    assert_non_null(strstr(quire_last_error(), "channel 41"));
}

/* One policy after the other: what lacks an order is refused before anything changes. */
static void requantize_without(void **state) {
    (void)state;
    fixture f;
    quire_policy km;
    quire_layer_stats stats;
    const source s = source_default(3);
    quire_seq *seq;
    float wanted[3 * 2 * 64], got[3 * 2 * 64];
    fixture_init(&f, 2, 2, 1, 64, 64, "k8v4");
    f.layer[0].k_order = random_order(1, 64);
    f.no_orders = true;
    fixture_open(&f);
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, 100, 64, 1, 0, NULL);
    assert_ok(step(&f, &(step_item){seq, &s, 1}, 1, &(step_options){.abort = true}, wanted));
    assert_ok(quire_policy_parse("km4:vt4", &km));
    assert_status(quire_pool_requantize(f.pool, &km), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "layer 1: codec km4 needs a channel order"));
    assert_ok(quire_layer_get_stats(f.pool, 0, &stats));
    assert_int_equal(stats.pair.k, QUIRE_CODEC_KC8);
    assert_ok(step(&f, &(step_item){seq, &s, 1}, 1, &(step_options){.abort = true}, got));
    assert_memory_equal(wanted, got, 2 * 2 * 64 * sizeof *got);
    fixture_close(&f);
}

/* A layer that shares another's cache reads it in that one's order, whatever it says itself. */
static void shared(void **state) {
    (void)state;
    static uint16_t backwards[2 * 80];
    const source s = source_default(4);
    enum { CONTEXT = 300, ROWS = 3, H = 8 };
    for (int i = 0; i < 2 * 80; i++)
        backwards[i] = (uint16_t)(79 - i % 80);
    fixture f;
    fixture_init(&f, 2, H, 2, 80, 64, "km4:vt8");
    f.layer[1].share = 0;
    f.layer[1].k_order = backwards;
    fixture_open(&f);
    quire_seq *seq;
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, CONTEXT, 100, 1, 0, NULL);
    static float out[2][ROWS * H * 64];
    static double wanted[ROWS * H * 64];
    assert_ok(step(&f, &(step_item){seq, &s, ROWS}, 1, NULL, out[0]));
    f.layer[1].k_order = f.layer[0].k_order; /* what the oracle is to believe */
    for (int layer = 0; layer < 2; layer++) {
        oracle_attend_rows(&f, layer, &s, CONTEXT, ROWS, NULL, wanted, NULL);
        const double error = relative_error(out[layer], wanted, ROWS * H * 64),
                     bound = attend_bound(f.options.policy.pair, 80, 1, false, false) *
                             (1 + 1 / sqrt(ROWS * H));
        if (!(error < bound))
            fail_msg("layer %d: relative error %.2e, bound %.2e", layer, error, bound);
    }
    fixture_close(&f);
}

/* What it is for. A quarter of the channels is four times as large, another a fourth, as q sees
 * them; at the same bytes the error of K.q must fall. Its mean square over channels is step^2 /
 * 12 times that of q, steps being ranges over 2^bits - 1: against kc's 16 + 2 + 1/16 over 15^2,
 * km has 16/31^2 + 2/15^2 + 1/16/7^2 (or with 7; 15, 7, 3). */
static void better_than_uniform(void **state) {
    (void)state;
    enum { D = 128, N = 40 };
    rng r = {32};
    float size[D], k[64 * D], placed[64 * D], v[64 * 32] = {0};
    uint16_t order[D];
    for (int d = 0; d < D; d++)
        size[d] = d % 4 == 1 ? 4.0f : d % 4 == 2 ? 0.25f : 1.0f;
    assert_ok(quire_channel_order(size, D, order));
    const quire_codec codecs[2][2] = {{QUIRE_CODEC_KC4, QUIRE_CODEC_KM4},
                                      {QUIRE_CODEC_KC3, QUIRE_CODEC_KM3}};
    for (int width = 0; width < 2; width++) {
        double error[2] = {0, 0};
        const double levels = width ? 7 : 15, wide = width ? 15 : 31, narrow = width ? 3 : 7;
        const double wanted =
            (16 / (wide * wide) + 2 / (levels * levels) + 1 / (16 * narrow * narrow)) /
            ((16 + 2 + 1.0 / 16) / (levels * levels));
        for (int round = 0; round < N; round++) {
            for (int i = 0; i < 64 * D; i++)
                k[i] = rng_normal(&r) * size[i % D];
            for (int mixed = 0; mixed < 2; mixed++) {
                const quire_codec codec = codecs[width][mixed];
                const quire_page_shape shape = {{codec, QUIRE_CODEC_VT4}, D, 32, QUIRE_F16};
                size_t bytes;
                float back[64 * D];
                assert_ok(quire_page_bytes(&shape, &bytes));
                uint8_t *record = malloc(bytes);
                rows_into_order(codec, order, D, k, placed);
                assert_ok(quire_page_encode(&shape, placed, v, 0, record));
                assert_ok(quire_page_decode(&shape, record, placed, NULL));
                rows_from_order(codec, order, D, placed, back);
                for (int i = 0; i < 64 * D; i++)
                    error[mixed] += pow((double)(back[i] - k[i]), 2);
                free(record);
            }
        }
        if (!(fabs(error[1] / error[0] / wanted - 1) <
              0.05)) /* some 80000 values a class: samples */
            fail_msg("%s: error %.3f of %s's, expected %.3f", quire_codec_name(codecs[width][1]),
                     error[1] / error[0], quire_codec_name(codecs[width][0]), wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(requantize_without),
        cmocka_unit_test(shared),
        cmocka_unit_test(better_than_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
