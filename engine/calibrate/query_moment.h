/* query_moment.h: the second moment of the queries that look at a page, E[q q^T].
 *
 * RoPE turns pairs of channels by an angle that grows with the position, so that what a short
 * text shows of q is its direction at these positions. Rows are turned back first; then, a pair
 * being a complex number z, the mean of z_a conj(z_b) over other positions is that of the rows
 * times the mean of e^(i p (angle_a - angle_b)), and that of z_a z_b has the sum of the angles.
 * Pairs that turn far from one of these positions to the next are left without a direction, slow
 * ones keep theirs.
 *
 * Which positions? A page is looked at from 32 tokens behind its middle up to the end of the
 * window or context, from near more often than from afar: every doubling of the distance counts
 * the same. */
#ifndef ENGINE_CALIBRATE_QUERY_MOMENT_H
#define ENGINE_CALIBRATE_QUERY_MOMENT_H

#include "codec/codec.h"
#include "model/model.h"

/* Sums of one head, (D * D), zero at first. */
static inline size_t quire__query_moment_size(int32_t dim) { return (size_t)dim * (size_t)dim; }
void quire__query_moment_add(double *sums, const quire_rope_pairs *pairs, const float *q,
                             int32_t position);
/* Of the queries that look at the first page, from up to `reach` tokens away; up to a factor. */
void quire__query_moment_mean(const double *sums, const quire_rope_pairs *pairs, int32_t reach,
                              float *moment /* (D, D) */);

#endif
