/* text_stats.c: compares every n-gram with all earlier ones, because texts are short. */
#include "eval/text_stats.h"

#include <stdbool.h>
#include <string.h>

static bool seen_before(const int32_t *tokens, int32_t at, int32_t width) {
    for (int32_t i = 0; i < at; i++)
        if (memcmp(tokens + i, tokens + at, (size_t)width * sizeof *tokens) == 0)
            return true;
    return false;
}

double cli_text_repeats(const int32_t *tokens, int32_t n, int32_t width) {
    const int32_t n_groups = n - width + 1;
    int32_t n_repeated = 0;
    for (int32_t i = 0; i < n_groups; i++)
        n_repeated += seen_before(tokens, i, width);
    return n_groups > 0 ? (double)n_repeated / n_groups : 0;
}

int32_t cli_text_agreement(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b) {
    int32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}
