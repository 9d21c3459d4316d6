#include "moment.h"

#include "rope.h"

#include <complex.h>

void quire__turns_of(const quire_model *model, int32_t layer, quire__turns *turns) {
    const quire__rope *r = &model->layers[layer].rope;
    const int32_t dim = model->cache[layer].k_dim, half = r->n_dims / 2;
    *turns = (quire__turns){0};
    if (!quire__rope_is_simple(r))
        return;
    for (int32_t j = 0; j < half; j++) {
        const bool neighbours = r->type == GGML_ROPE_TYPE_NORMAL;
        turns->first[j] = (uint16_t)(neighbours ? 2 * j : j);
        turns->second[j] = (uint16_t)(neighbours ? 2 * j + 1 : j + half);
        turns->angle[j] = quire__rope_frequency(r, j) * (double)r->scale;
    }
    for (int32_t j = half; j < dim / 2; j++) {
        turns->first[j] = (uint16_t)(2 * j);
        turns->second[j] = (uint16_t)(2 * j + 1);
    }
    turns->n = dim / 2;
}

/* Two (n, n) matrices of complex numbers, of which a >= b is used. */
static double complex *products(double *sums) { return (double complex *)(void *)sums; }
static double complex *products_with_conjugates(double *sums, int32_t n) {
    return (double complex *)(void *)sums + (size_t)n * (size_t)n;
}

/* e^(i angle). */
static double complex turn_by(double angle) { return cos(angle) + sin(angle) * I; }

void quire__moment_add(double *sums, const quire__turns *turns, const float *q, int32_t position) {
    const int32_t n = turns->n;
    double complex z[QUIRE_DIM_MAX / 2], *plain = products(sums), *conjugate = products_with_conjugates(sums, n);
    for (int32_t a = 0; a < n; a++)
        z[a] = ((double)q[turns->first[a]] + (double)q[turns->second[a]] * I) * turn_by(-turns->angle[a] * position);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b <= a; b++) {
            plain[a * n + b] += z[a] * z[b];
            conjugate[a * n + b] += z[a] * conj(z[b]);
        }
}

/* Of e^(i p angle) over p = 0 .. n - 1. */
static double complex mean_turn(double angle, int32_t n) {
    const double half = sin(angle / 2);
    if (fabs(half) < 1e-12)
        return 1;
    return turn_by(angle * (n - 1) / 2) * (sin(angle * n / 2) / (n * half));
}

void quire__moment_mean(const double *sums, const quire__turns *turns, int32_t n_positions, float *moment) {
    const int32_t n = turns->n, dim = 2 * n;
    const double complex *plain = products((double *)sums), *conjugate = products_with_conjugates((double *)sums, n);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b <= a; b++) {
            const double complex sum = plain[a * n + b] * mean_turn(turns->angle[a] + turns->angle[b], n_positions);
            const double complex difference =
                conjugate[a * n + b] * mean_turn(turns->angle[a] - turns->angle[b], n_positions);
            /* z_a z_b = (xx' - yy') + i (xy' + yx');  z_a conj(z_b) = (xx' + yy') + i (yx' - xy') */
            const double real[2][2] = {
                {(creal(difference) + creal(sum)) / 2, (cimag(sum) - cimag(difference)) / 2},
                {(cimag(sum) + cimag(difference)) / 2, (creal(difference) - creal(sum)) / 2},
            };
            const int32_t rows[2] = {turns->first[a], turns->second[a]},
                          columns[2] = {turns->first[b], turns->second[b]};
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    moment[rows[i] * dim + columns[j]] = moment[columns[j] * dim + rows[i]] = (float)real[i][j];
        }
}
