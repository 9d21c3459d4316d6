/* test_eval_stats.c: divergences of predictions, and their means, intervals and quantiles,
 * against figures worked out by hand or with numpy and scipy. */
#include "eval/eval_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N = 4 };
#define LN2 0.693147181F
#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

static quire_divergence compare(const float *base, const float *other) {
    return quire_logits_compare(base, other, N, 1);
}

/* p = (1/2, 1/4, 1/8, 1/8), q even: ln 4 - H(p). A constant added to all logits changes nothing. */
static void test_divergence(void **state) {
    (void)state;
    const float p[N] = {3 * LN2, 2 * LN2, LN2, LN2}, even[N] = {-7, -7, -7, -7};
    const quire_divergence d = compare(p, even);
    assert_near(d.kld, 0.25 * (double)LN2, 1e-6);
    assert_near(d.nll, log(4), 1e-12);
    assert_near(d.nll_base, log(4), 1e-6);
    assert_true(d.same_top); /* of equal ones the first */
    assert_near(compare(p, p).kld, 0, 0);
    assert_false(compare(p, (float[N]){0, 1, 0, 0}).same_top);
}

/* What is no number must not look like a perfect prediction. */
static void test_no_number(void **state) {
    (void)state;
    const float good[N] = {0, 1, 2, 3};
    for (int i = 0; i < N; i++) {
        float bad[N] = {0, 1, 2, 3};
        bad[i] = NAN;
        assert_false(isfinite(compare(good, bad).kld));
        assert_false(isfinite(compare(bad, good).kld));
        bad[i] = INFINITY;
        assert_false(isfinite(compare(good, bad).kld));
    }
}

static cli_divergences sum_of(const double *kld, size_t n) {
    quire_divergence *rows = malloc(n * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < n; i++)
        rows[i] =
            (quire_divergence){.kld = kld[i], .nll = 1, .nll_base = 2, .same_top = i % 2 == 0};
    const cli_divergences sum = cli_divergences_sum(rows, n);
    free(rows);
    return sum;
}

/* numpy.quantile and scipy.stats.t.interval have the same. */
static void test_few_rows(void **state) {
    (void)state;
    const cli_divergences sum = sum_of((double[]){0.4, 0.1, 0.2, 0.5}, 4);
    assert_near(sum.kld_mean, 0.3, 1e-12);
    assert_near(sum.kld_median, 0.3, 1e-12);
    assert_near(sum.kld_p999, 0.4997, 1e-12);
    assert_near(sum.kld_max, 0.5, 0);
    assert_near(sum.kld_error, 0.290516, 1e-4);
    assert_near(sum.same_top, 0.5, 0);
    assert_near(sum.ppl, exp(1), 1e-12);
    assert_near(sum.ppl_base, exp(2), 1e-12);
    assert_near(sum.ppl_error, 0, 1e-12);
}

static void test_one_row_has_no_interval(void **state) {
    (void)state;
    const cli_divergences sum = sum_of((double[]){0.25}, 1);
    assert_true(isnan(sum.kld_error) && isnan(sum.ppl_error));
    assert_near(sum.kld_median, 0.25, 0);
    assert_near(sum.kld_p999, 0.25, 0);
    assert_int_equal(sum_of(NULL, 0).n, 0);
}

/* 0, 1, .. 1000, in some order: the quantile is a row of its own. */
static void test_many_rows(void **state) {
    (void)state;
    double kld[1001];
    for (int i = 0; i <= 1000; i++)
        kld[i] = i * 2 % 1001;
    const cli_divergences sum = sum_of(kld, 1001);
    assert_near(sum.kld_p999, 999, 1e-9);
    assert_near(sum.kld_median, 500, 1e-9);
    assert_near(sum.kld_error, 1.96 * sqrt(1001 * 1002 / 12.0 / 1001), 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence), cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_few_rows),   cmocka_unit_test(test_one_row_has_no_interval),
        cmocka_unit_test(test_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
