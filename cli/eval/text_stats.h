/* text_stats.h: how much a text repeats itself, and how far two agree. */
#ifndef CLI_EVAL_TEXT_STATS_H
#define CLI_EVAL_TEXT_STATS_H

#include <stdint.h>

/* The share of groups of `width` tokens that stand in the text before; 0 for a text without
 * groups. A text that has fallen into a loop comes close to 1. */
double cli_text_repeats(const int32_t *tokens, int32_t n, int32_t width);
/* Tokens before the first that differs, or before the end of the shorter text. */
int32_t cli_text_agreement(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b);

#endif
