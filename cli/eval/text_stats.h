/* text_stats.h: measures how much a text repeats itself, and how far two texts agree. */
#ifndef CLI_EVAL_TEXT_STATS_H
#define CLI_EVAL_TEXT_STATS_H

#include <stdint.h>

/* The share of `width`-grams that occur earlier in the text; 0 for a text without any. A text that
 * loops is close to 1. */
double cli_text_repeats(const int32_t *tokens, int32_t n, int32_t width);
/* The length of the common prefix. */
int32_t cli_text_agreement(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b);

#endif
