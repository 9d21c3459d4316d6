/* test_query_moment.c: the second moment of queries that look at a page, against turning every
 * query to every position. */
#include "calibrate/channel_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <ggml.h>

enum { DIM = 32, ROWS = 6, HALF_PAGE = QUIRE_PAGE_TOKENS / 2 };

static uint64_t seed = 1;
static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1 << 24) * 2 - 1;
}

/* Pair j pairs by position * base^(-2j/n) * scale. */
static void turn(const quire_rope *r, double position, const double *q, double *turned) {
    memcpy(turned, q, DIM * sizeof *turned);
    for (int j = 0; j < r->n_rot / 2; j++) {
        const int a = r->interleaved ? 2 * j : j, b = r->interleaved ? 2 * j + 1 : j + r->n_rot / 2;
        const double angle =
            position * pow((double)r->base, -2.0 * j / r->n_rot) * (double)r->scale;
        turned[a] = q[a] * cos(angle) - q[b] * sin(angle);
        turned[b] = q[a] * sin(angle) + q[b] * cos(angle);
    }
}

/* Of a query at a distance of d from the page's middle: every doubling counts the same, and so
 * does every d within it. */
static double weight(int d, int reach) {
    int first = HALF_PAGE;
    while (2 * first <= d)
        first *= 2;
    const int end = 2 * first < reach ? 2 * first : reach;
    return log2((double)end / first) / (end - first);
}

static void check(bool interleaved, int n_rot, float scale, int reach) {
    const quire_rope rope = {
        .n_rot = n_rot, .interleaved = interleaved, .base = 10000, .scale = scale};
    quire_rope_pairs pairs;
    assert_int_equal(quire__rope_pairs_init(&pairs, &rope, DIM), QUIRE_OK);
    assert_int_equal(pairs.n, DIM / 2);
    static double sums[DIM * DIM], wanted[DIM * DIM];
    static float moment[DIM * DIM];
    memset(sums, 0, sizeof sums);
    memset(wanted, 0, sizeof wanted);
    for (int i = 0; i < ROWS; i++) {
        double q[DIM], turned[DIM];
        float row[DIM];
        const int seen_at = 7 * i + 3;
        for (int d = 0; d < DIM; d++)
            q[d] = (double)uniform();
        turn(&rope, seen_at, q, turned);
        for (int d = 0; d < DIM; d++)
            row[d] = (float)turned[d];
        quire__query_moment_add(sums, &pairs, row, seen_at);
        for (int d = HALF_PAGE; d < reach; d++) {
            turn(&rope, HALF_PAGE + d, q, turned);
            for (int a = 0; a < DIM; a++)
                for (int b = 0; b < DIM; b++)
                    wanted[a * DIM + b] += turned[a] * turned[b] * weight(d, reach);
        }
    }
    quire__query_moment_mean(sums, &pairs, reach, moment);
    for (int i = 0; i < DIM * DIM; i++)
        assert_true(fabs((double)moment[i] - wanted[i]) < 1e-5 * ROWS);
}

static void all_positions(void **state) {
    (void)state;
    check(true, DIM, 1, 300);
    check(false, DIM, 1, 300);
    check(false, DIM, 0.125f, 1024);
    check(true, DIM / 2, 1, 64); /* the other half stays as it is */
    check(false, DIM / 2, 1, 3000);
}

static void rotations_that_are_not_known(void **state) {
    (void)state;
    quire__layer layer = {
        .rope = {.type = GGML_ROPE_TYPE_MROPE, .n_dims = DIM, .base = 10000, .scale = 1}};
    quire_layer cache = {.n_heads = 1, .n_kv_heads = 1, .k_dim = DIM, .v_dim = DIM, .share = -1};
    quire_rope rope = {.n_rot = DIM, .base = 10000};
    const quire_model model = {.layers = &layer, .cache = &cache, .ropes = &rope, .n_layers = 1};
    for (int i = 0; i < 3; i++) {
        quire__channel_stats stats;
        assert_int_equal(quire__channel_stats_open(&stats, &model, 0), QUIRE_OK);
        assert_int_equal(stats.rope_pairs[0].n, i == 1 ? DIM / 2 : 0);
        quire__channel_stats_close(&stats);
        layer.rope.type = GGML_ROPE_TYPE_NEOX;
        layer.rope.ext_factor = (float)i; /* the last: YaRN */
    }
}

/* A window of less than a page is looked at as one of a page is. */
static void short_reach(void **state) {
    (void)state;
    const quire_rope rope = {.n_rot = DIM, .base = 10000};
    static double sums[DIM * DIM];
    static float moment[2][DIM * DIM];
    quire_rope_pairs pairs;
    float row[DIM];
    assert_int_equal(quire__rope_pairs_init(&pairs, &rope, DIM), QUIRE_OK);
    for (int d = 0; d < DIM; d++)
        row[d] = uniform();
    quire__query_moment_add(sums, &pairs, row, 5);
    quire__query_moment_mean(sums, &pairs, 1, moment[0]);
    quire__query_moment_mean(sums, &pairs, QUIRE_PAGE_TOKENS, moment[1]);
    assert_memory_equal(moment[0], moment[1], sizeof moment[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_positions),
        cmocka_unit_test(rotations_that_are_not_known),
        cmocka_unit_test(short_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
