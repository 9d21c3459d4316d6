/* The randomised Hadamard rotation, for every head size. */
#ifndef QUIRE_CODEC_ROTATE_H
#define QUIRE_CODEC_ROTATE_H

/* y = R x in place; D is a multiple of 16, at least 32. Orthogonal, and canonical: same bits everywhere. */
void quire__rotate(float *x /* (D) */, int dim);
void quire__unrotate(float *x /* (D) */, int dim); /* x = R^T y */

/* The projection S of the prod codec: a second, independent rotation. */
void quire__project(float *x, int dim);
void quire__unproject(float *x, int dim);

#endif
