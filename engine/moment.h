/* moment.h: the second moment of queries, E[q q^T], as a cache will meet them: at any position of the model's context.
 *
 * RoPE turns pairs of channels by an angle that grows with the position, so that what a short text shows of q is its direction
 * at these positions. Rows are turned back first; then, a pair being a complex number z, the mean of z_a conj(z_b) over all
 * positions is that of the rows times the mean of e^(i p (angle_a - angle_b)), and that of z_a z_b has the sum of the angles.
 * Fast pairs are left without a direction, slow ones keep theirs. */
#ifndef ENGINE_MOMENT_H
#define ENGINE_MOMENT_H

#include "model.h"

/* Pairs of channels of a layer's heads, and by how much a position turns each; 0: channels that RoPE leaves alone. */
typedef struct quire__turns {
    int32_t n; /* pairs; 0: the rotation is not of a kind that is known here */
    uint16_t first[QUIRE_DIM_MAX / 2], second[QUIRE_DIM_MAX / 2];
    double angle[QUIRE_DIM_MAX / 2];
} quire__turns;

void quire__turns_of(const quire_model *model, int32_t layer, quire__turns *turns);

/* Sums of one head, (D * D), zero at first. */
static inline size_t quire__moment_size(int32_t dim) { return (size_t)dim * (size_t)dim; }
void quire__moment_add(double *sums, const quire__turns *turns, const float *q, int32_t position);
/* Over positions 0 .. n_positions - 1; up to a factor. */
void quire__moment_mean(const double *sums, const quire__turns *turns, int32_t n_positions, float *moment /* (D, D) */);

#endif
