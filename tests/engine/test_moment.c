/* test_moment.c: the second moment of queries over a context, against turning every query to every position. */
#include "moment.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <ggml.h>

enum { DIM = 32, ROWS = 6, POSITIONS = 300 };

static uint64_t seed = 1;
static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1 << 24) * 2 - 1;
}

/* As ggml turns a row: pair j by position * base^(-2j/n) * scale. */
static void turn(const quire__rope *r, double position, const double *q, double *turned) {
    memcpy(turned, q, DIM * sizeof *turned);
    for (int j = 0; j < r->n_dims / 2; j++) {
        const bool neighbours = r->type == GGML_ROPE_TYPE_NORMAL;
        const int a = neighbours ? 2 * j : j, b = neighbours ? 2 * j + 1 : j + r->n_dims / 2;
        const double angle = position * pow((double)r->base, -2.0 * j / r->n_dims) * (double)r->scale;
        turned[a] = q[a] * cos(angle) - q[b] * sin(angle);
        turned[b] = q[a] * sin(angle) + q[b] * cos(angle);
    }
}

static void check(int type, int n_dims, float scale) {
    quire__layer layer = {.rope = {.type = type, .n_dims = n_dims, .base = 10000, .scale = scale}};
    quire_layer cache = {.k_dim = DIM};
    const quire_model model = {.layers = &layer, .cache = &cache};
    quire__turns turns;
    quire__turns_of(&model, 0, &turns);
    assert_int_equal(turns.n, DIM / 2);
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
        turn(&layer.rope, seen_at, q, turned);
        for (int d = 0; d < DIM; d++)
            row[d] = (float)turned[d];
        quire__moment_add(sums, &turns, row, seen_at);
        for (int p = 0; p < POSITIONS; p++) {
            turn(&layer.rope, p, q, turned);
            for (int a = 0; a < DIM; a++)
                for (int b = 0; b < DIM; b++)
                    wanted[a * DIM + b] += turned[a] * turned[b] / POSITIONS;
        }
    }
    quire__moment_mean(sums, &turns, POSITIONS, moment);
    for (int i = 0; i < DIM * DIM; i++)
        assert_true(fabs((double)moment[i] - wanted[i]) < 1e-5 * ROWS);
}

static void all_positions(void **state) {
    (void)state;
    check(GGML_ROPE_TYPE_NORMAL, DIM, 1);
    check(GGML_ROPE_TYPE_NEOX, DIM, 1);
    check(GGML_ROPE_TYPE_NEOX, DIM, 0.125f);
    check(GGML_ROPE_TYPE_NORMAL, DIM / 2, 1); /* the other half stays as it is */
    check(GGML_ROPE_TYPE_NEOX, DIM / 2, 1);
}

static void rotations_that_are_not_known(void **state) {
    (void)state;
    quire__layer layer = {.rope = {.type = GGML_ROPE_TYPE_MROPE, .n_dims = DIM, .base = 10000, .scale = 1}};
    quire_layer cache = {.k_dim = DIM};
    const quire_model model = {.layers = &layer, .cache = &cache};
    quire__turns turns;
    quire__turns_of(&model, 0, &turns);
    assert_int_equal(turns.n, 0);
    layer.rope.type = GGML_ROPE_TYPE_NEOX;
    layer.rope.ext_factor = 1; /* YaRN */
    quire__turns_of(&model, 0, &turns);
    assert_int_equal(turns.n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_positions),
        cmocka_unit_test(rotations_that_are_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
