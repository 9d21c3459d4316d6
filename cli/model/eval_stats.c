/* eval_stats.c: sums and quantiles. */
#include "eval_stats.h"

#include <math.h>
#include <stdlib.h>

static double half_interval(double sum, double squares, double n) {
    const double variance = squares / n - sum / n * (sum / n);
    return 1.96 * sqrt((variance > 0 ? variance : 0) / n);
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
    sum.ppl_error = sum.ppl * half_interval(nll, nll_squares, count);
    sum.ppl_base = exp(nll_base / count);
    sum.kld_mean = kld / count;
    sum.kld_error = half_interval(kld, squares, count);
    sum.kld_median = rows[n / 2].kld;
    sum.kld_p999 = rows[(size_t)(0.999 * (count - 1))].kld;
    sum.kld_max = rows[n - 1].kld;
    sum.same_top = same / count;
    return sum;
}
