/* eval_stats.h: how far two predictions of the next token are apart. */
#ifndef CLI_EVAL_STATS_H
#define CLI_EVAL_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_divergence {
    double kld;           /* of the second from the first, in nats */
    double nll, nll_base; /* -ln of the probability of the true token, by the second and by the first */
    bool same_top;
} cli_divergence;

/* base, other: (n) logits */
cli_divergence cli_divergence_of(const float *base, const float *other, int32_t n, int32_t truth);

/* -ln of the probability of a token. */
double cli_nll(const float *logits, int32_t n, int32_t token);

typedef struct cli_divergences {
    double ppl, ppl_base, ppl_error; /* errors are half of a 95 % interval */
    double kld_mean, kld_error, kld_median, kld_p999, kld_max;
    double same_top;
    size_t n;
} cli_divergences;

/* Sorts `rows` by kld. */
cli_divergences cli_divergences_sum(cli_divergence *rows, size_t n);

#endif
