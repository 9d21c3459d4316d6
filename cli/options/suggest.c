/* suggest.c: edit distance of short names. */
#include "options/suggest.h"

#include <stdint.h>
#include <string.h>

enum { LONGEST_NAME = 63 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`. */
static size_t edit_distance(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST_NAME || n_b > LONGEST_NAME)
        return SIZE_MAX;

    size_t rows[3][LONGEST_NAME + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        above[j] = before[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t cost = least(above[j], row[j - 1]) + 1;
            cost = least(cost, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = least(cost, before[j - 2] + 1);
            row[j] = cost;
        }
        size_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[n_b];
}

void cli_suggest_start(cli_suggestion *suggestion, const char *typed) {
    *suggestion = (cli_suggestion){.typed = typed, .best = NULL, .distance = SIZE_MAX};
}

void cli_suggest_offer(cli_suggestion *suggestion, const char *name) {
    size_t distance = edit_distance(suggestion->typed, name);
    size_t n_typed = strlen(suggestion->typed);
    /* An abbreviated name counts as one mistake, not as one per missing letter. */
    if (n_typed >= 2 && distance > 1 && strncmp(suggestion->typed, name, n_typed) == 0)
        distance = 1;
    if (distance < suggestion->distance) {
        suggestion->distance = distance;
        suggestion->best = name;
    }
}

const char *cli_suggest_result(const cli_suggestion *suggestion) {
    return suggestion->distance <= 1 + strlen(suggestion->typed) / 3 ? suggestion->best : NULL;
}
