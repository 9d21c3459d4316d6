#include "calibrate/query_moment.h"

#include <complex.h>
#include <math.h>

enum { PAGE = QUIRE_PAGE_TOKENS, MAX_OCTAVES = 32 };

/* Two (n, n) matrices of complex numbers, of which a >= b is used. */
static double complex *products(double *sums) { return (double complex *)(void *)sums; }
static double complex *products_with_conjugates(double *sums, int32_t n) {
    return (double complex *)(void *)sums + (size_t)n * (size_t)n;
}

/* e^(i angle). */
static double complex turn_by(double angle) { return cos(angle) + sin(angle) * I; }

void quire__query_moment_add(double *sums, const quire_rope_pairs *pairs, const float *q,
                             int32_t position) {
    const int32_t n = pairs->n;
    double complex z[QUIRE_DIM_MAX / 2], *plain = products(sums),
                                         *conjugate = products_with_conjugates(sums, n);
    for (int32_t a = 0; a < n; a++)
        z[a] = ((double)q[pairs->first[a]] + (double)q[pairs->second[a]] * I) *
               turn_by(-pairs->angle[a] * position);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b <= a; b++) {
            plain[a * n + b] += z[a] * z[b];
            conjugate[a * n + b] += z[a] * conj(z[b]);
        }
}

/* Distances from the middle of a page: half a page, twice that and so on up to the reach. */
typedef struct octaves {
    int n;
    double edge[MAX_OCTAVES + 1], weight[MAX_OCTAVES];
    double complex turned[MAX_OCTAVES + 1]
                         [QUIRE_DIM_MAX / 2]; /* each pair, from position 0 to where an edge is */
} octaves;

static void divide(octaves *o, const quire_rope_pairs *pairs, int32_t reach) {
    const double end = reach > PAGE ? reach : PAGE;
    o->n = 0;
    for (double edge = PAGE / 2; edge < end; edge *= 2)
        o->edge[o->n++] = edge;
    o->edge[o->n] = end;
    for (int i = 0; i < o->n; i++)
        o->weight[i] = log2(o->edge[i + 1] / o->edge[i]); /* 1, but for the last */
    for (int i = 0; i <= o->n; i++)
        for (int32_t a = 0; a < pairs->n; a++)
            o->turned[i][a] = turn_by(pairs->angle[a] * (PAGE / 2 + o->edge[i]));
}

/* Of e^(i p angle) over all these positions p, angle being that of pair a and, added or
 * subtracted, that of pair b. */
static double complex mean_turn(const octaves *o, const quire_rope_pairs *pairs, int32_t a,
                                int32_t b, bool add) {
    const double complex step = turn_by(pairs->angle[a] + (add ? 1 : -1) * pairs->angle[b]) - 1;
    double complex mean = 0;
    for (int i = 0; i < o->n; i++) {
        double complex ends[2];
        for (int k = 0; k < 2; k++)
            ends[k] = o->turned[i + k][a] * (add ? o->turned[i + k][b] : conj(o->turned[i + k][b]));
        const double width = o->edge[i + 1] - o->edge[i];
        mean += o->weight[i] * (cabs(step) < 1e-9 ? (ends[0] + ends[1]) / 2
                                                  : (ends[1] - ends[0]) / (step * width));
    }
    return mean;
}

void quire__query_moment_mean(const double *sums, const quire_rope_pairs *pairs, int32_t reach,
                              float *moment) {
    const int32_t n = pairs->n, dim = 2 * n;
    const double complex *plain = products((double *)sums),
                         *conjugate = products_with_conjugates((double *)sums, n);
    octaves o;
    divide(&o, pairs, reach);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b <= a; b++) {
            const double complex sum = plain[a * n + b] * mean_turn(&o, pairs, a, b, true);
            const double complex difference =
                conjugate[a * n + b] * mean_turn(&o, pairs, a, b, false);
            /* z_a z_b = (xx' - yy') + i (xy' + yx');  z_a conj(z_b) = (xx' + yy') + i (yx' -
             *                                         xy') */
            const double real[2][2] = {
                {(creal(difference) + creal(sum)) / 2, (cimag(sum) - cimag(difference)) / 2},
                {(cimag(sum) + cimag(difference)) / 2, (creal(difference) - creal(sum)) / 2},
            };
            const int32_t rows[2] = {pairs->first[a], pairs->second[a]},
                          columns[2] = {pairs->first[b], pairs->second[b]};
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    moment[rows[i] * dim + columns[j]] = moment[columns[j] * dim + rows[i]] =
                        (float)real[i][j];
        }
}
