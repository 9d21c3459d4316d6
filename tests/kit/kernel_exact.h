/* Cases whose integers show: K, its scales and q are chosen so that every logit is exact in
 * fp32, in whatever order it is summed, and known from integer arithmetic done here. A logit
 * shows as the maximum m of a row that sees one token alone, or that the token wins. Where a
 * codec's unit is no power of two, the integer shows as the nearest multiple.
 */
#ifndef QUIRE_TESTS_KERNEL_EXACT_H
#define QUIRE_TESTS_KERNEL_EXACT_H

#include "kernel_case.h"

typedef enum exact_data {
    EXACT_LARGE_QUERY, /* q over its whole range; 8-bit codes small, so that sums stay below 2^24 */
    EXACT_LARGE_CODES, /* codes over their whole range; q against 8-bit codes small, but for one
                          channel of a group */
    EXACT_SIGNS,       /* prod: the sign plane alone */
    EXACT_N
} exact_data;

typedef struct exact_case {
    kernel_case c;
    double *logit;   /* (heads, tokens) */
    double *quantum; /* (tokens) the smallest difference between logits; 0: they are exact */
    double *v;       /* (tokens, DV), as the kernel sums them: in the rotated space, if V is */
    double *v_error; /* (tokens, DV) fp32 rounding of one value */
    int n_tokens;
    int *only; /* (heads) the token each sees, or NULL: all */
} exact_case;

bool exact_open(exact_case *e, const case_shape *shape, exact_data data, rng *r);
/* Every row and head sees one token, a different one each, first .. on. */
void exact_see_one(exact_case *e, int first);
/* Runs a level and fails the test if an integer, or with one token a value, is not what it must
 * be. */
void exact_check(exact_case *e, const kernel_level *level);
void exact_close(exact_case *e);

#endif
