/* eval_stats.c: computes means, errors and quantiles. */
#include "eval/eval_stats.h"

#include <math.h>
#include <stdlib.h>

/* Student's t at 97.5 %, for 1, 2, .. degrees of freedom. */
static const double STUDENT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                 2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                 2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                 2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
enum { N_STUDENT = sizeof STUDENT / sizeof *STUDENT };

double cli_half_interval(double sum, double squares, size_t n) {
    if (n < 2)
        return NAN;
    const double count = (double)n, variance = (squares - sum * sum / count) / (count - 1);
    const double t = n - 1 <= N_STUDENT ? STUDENT[n - 2] : 1.96;
    return t * sqrt((variance > 0 ? variance : 0) / count);
}

/* Interpolates between neighbours, as llama.cpp does, so that tables can be compared. */
static double quantile(const quire_divergence *rows, size_t n, double p) {
    const double place = p * (double)(n - 1);
    const size_t below = (size_t)place, above = below + 1 < n ? below + 1 : below;
    return rows[below].kld + (place - (double)below) * (rows[above].kld - rows[below].kld);
}

static int by_kld(const void *a, const void *b) {
    const double x = ((const quire_divergence *)a)->kld, y = ((const quire_divergence *)b)->kld;
    return (x > y) - (x < y);
}

cli_divergences cli_divergences_sum(quire_divergence *rows, size_t n) {
    cli_divergences sum = {.n = n};
    if (n == 0)
        return sum;
    double nll = 0, nll_squares = 0, nll_base = 0, kld = 0, squares = 0, same = 0;
    for (size_t i = 0; i < n; i++) {
        nll += rows[i].nll;
        nll_squares += rows[i].nll * rows[i].nll;
        nll_base += rows[i].nll_base;
        kld += rows[i].kld;
        squares += rows[i].kld * rows[i].kld;
        same += rows[i].same_top;
    }
    qsort(rows, n, sizeof *rows, by_kld);
    const double count = (double)n;
    sum.ppl = exp(nll / count);
    sum.ppl_error = sum.ppl * cli_half_interval(nll, nll_squares, n);
    sum.ppl_base = exp(nll_base / count);
    sum.kld_mean = kld / count;
    sum.kld_error = cli_half_interval(kld, squares, n);
    sum.kld_median = quantile(rows, n, 0.5);
    sum.kld_p999 = quantile(rows, n, 0.999);
    sum.kld_max = rows[n - 1].kld;
    sum.same_top = same / count;
    return sum;
}
