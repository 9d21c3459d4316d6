/* divergence.c: log-softmax and divergence. In double: a KLD of 1e-5 is a small difference of
 * large sums. */
#include "quire_engine.h"

#include <math.h>

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

quire_divergence quire_logits_compare(const float *base, const float *other, int32_t n,
                                      int32_t truth) {
    const softmax a = softmax_of(base, n), b = softmax_of(other, n);
    double kld = 0;
    for (int32_t i = 0; i < n; i++) {
        const double log_p = (double)base[i] - a.max - a.log_sum;
        if (!(log_p <= -40)) /* e^-40 of anything does not show; NaN does */
            kld += exp(log_p) * (log_p - ((double)other[i] - b.max - b.log_sum));
    }
    return (quire_divergence){.kld = kld < 0 ? 0 : kld, /* NaN stays */
                              .nll = b.max + b.log_sum - (double)other[truth],
                              .nll_base = a.max + a.log_sum - (double)base[truth],
                              .same_top = a.top == b.top};
}

double quire_logits_nll(const float *logits, int32_t n, int32_t token) {
    const softmax s = softmax_of(logits, n);
    return s.max + s.log_sum - (double)logits[token];
}
