/* The randomised Hadamard rotation, for every head size. */
#ifndef QUIRE_CODEC_HADAMARD_H
#define QUIRE_CODEC_HADAMARD_H

#include <stdint.h>

/* y = R x in place; D is a multiple of 16, at least 32. Orthogonal, and canonical: same bits
 * everywhere. */
void quire__rotate(float *x /* (D) */, int dim);
void quire__unrotate(float *x /* (D) */, int dim); /* x = R^T y */

/* The projection S of the prod codec: a second, independent rotation. */
void quire__project(float *x, int dim);
void quire__unproject(float *x, int dim);

/* ---- their building blocks, for kernels */

/* The first of the four streams of random signs of each. */
enum { QUIRE_STREAM_ROTATION = 0, QUIRE_STREAM_PROJECTION = 4, QUIRE_ROTATION_PASSES = 4 };

typedef struct quire_passes {
    int length, count, offset[QUIRE_ROTATION_PASSES]; /* pass i uses stream + i */
} quire_passes;

quire_passes quire__passes_of(int dim);
/* Signs of coordinates 64w .. 64w+63, as bits. */
uint64_t quire__sign_word(int stream, int w);

#endif
