/* eval_stats.c: log-softmax, divergence, quantiles. In double: a KLD of 1e-5 is a small difference of large sums. */
#include "eval_stats.h"

#include <math.h>
#include <stdlib.h>

typedef struct softmax {
    double max, log_sum;
    int32_t top;
} softmax;

static softmax softmax_of(const float *x, int32_t n) {
    softmax s = {.top = 0};
    for (int32_t i = 1; i < n; i++)
        s.top = x[i] > x[s.top] ? i : s.top;
    s.max = (double)x[s.top];
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - s.max);
    s.log_sum = log(sum);
    return s;
}

cli_divergence cli_divergence_of(const float *base, const float *other, int32_t n, int32_t truth) {
    const softmax a = softmax_of(base, n), b = softmax_of(other, n);
    double kld = 0;
    for (int32_t i = 0; i < n; i++) {
        const double log_p = (double)base[i] - a.max - a.log_sum;
        if (log_p > -40) /* e^-40 of anything does not show */
            kld += exp(log_p) * (log_p - ((double)other[i] - b.max - b.log_sum));
    }
    return (cli_divergence){.kld = kld > 0 ? kld : 0,
                            .nll = b.max + b.log_sum - (double)other[truth],
                            .nll_base = a.max + a.log_sum - (double)base[truth],
                            .same_top = a.top == b.top};
}

double cli_nll(const float *logits, int32_t n, int32_t token) {
    const softmax s = softmax_of(logits, n);
    return s.max + s.log_sum - (double)logits[token];
}

static double half_interval(double sum, double squares, double n) {
    const double variance = squares / n - sum / n * (sum / n);
    return 1.96 * sqrt((variance > 0 ? variance : 0) / n);
}

static int by_kld(const void *a, const void *b) {
    const double x = ((const cli_divergence *)a)->kld, y = ((const cli_divergence *)b)->kld;
    return (x > y) - (x < y);
}

cli_divergences cli_divergences_sum(cli_divergence *rows, size_t n) {
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
