/* eval_stats.h: statistics of the divergence between predictions of the next token. */
#ifndef CLI_EVAL_EVAL_STATS_H
#define CLI_EVAL_EVAL_STATS_H

#include "quire_engine.h"

typedef struct cli_divergences {
    double ppl, ppl_base, ppl_error; /* errors: half of the 95 % interval; NaN for one row */
    double kld_mean, kld_error, kld_median, kld_p999, kld_max;
    double same_top;
    size_t n;
} cli_divergences;

/* Half of the 95 % interval of the mean of n numbers, from their sum and the sum of their squares.
 * NaN if n < 2. */
double cli_half_interval(double sum, double squares, size_t n);

/* Sorts `rows` by kld. */
cli_divergences cli_divergences_sum(quire_divergence *rows, size_t n);

#endif
