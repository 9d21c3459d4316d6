/* R spreads an outlier over all coordinates, so that one scale per row loses little.
 *
 * Let P be the largest power of two <= D. A pass over P neighbouring coordinates multiplies them
 * by random signs and by the orthonormal Hadamard matrix of order P. If D = P, R is one pass.
 * Otherwise R is four passes, over the first P, the last P, the first P and the last P
 * coordinates: each is orthogonal, they overlap, and after four the energy of any vector is
 * spread almost evenly. One rule for all head sizes, made of butterflies only: no tables of
 * Hadamard matrices of odd orders, no padding to store.
 */
#include "codec/hadamard.h"

#include <math.h>

/* 64 signs as bits: word `w` of stream `s` is output s*16 + w of splitmix64 seeded with 0
 * (counted from 1). */
uint64_t quire__sign_word(int stream, int w) {
    uint64_t z = (uint64_t)(stream * 16 + w + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void flip_signs(float *x, int first, int n, int stream) {
    uint64_t word = 0;
    for (int i = first; i < first + n; i++) {
        if (i == first || i % 64 == 0)
            word = quire__sign_word(stream, i / 64);
        if (word >> (i % 64) & 1)
            x[i] = -x[i];
    }
}

static void hadamard(float *x, int n) {
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    const float norm = 1.0f / sqrtf((float)n);
    for (int i = 0; i < n; i++)
        x[i] *= norm;
}

quire_passes quire__passes_of(int dim) {
    int length = 1;
    while (2 * length <= dim)
        length *= 2;
    const int last = dim - length;
    return (quire_passes){length, last ? 4 : 1, {0, last, 0, last}};
}

static void forward(float *x, int dim, int stream) {
    const quire_passes p = quire__passes_of(dim);
    for (int i = 0; i < p.count; i++) {
        flip_signs(x, p.offset[i], p.length, stream + i);
        hadamard(x + p.offset[i], p.length);
    }
}

static void backward(float *x, int dim, int stream) {
    const quire_passes p = quire__passes_of(dim);
    for (int i = p.count - 1; i >= 0; i--) {
        hadamard(x + p.offset[i], p.length);
        flip_signs(x, p.offset[i], p.length, stream + i);
    }
}

void quire__rotate(float *x, int dim) { forward(x, dim, QUIRE_STREAM_ROTATION); }
void quire__unrotate(float *x, int dim) { backward(x, dim, QUIRE_STREAM_ROTATION); }
void quire__project(float *x, int dim) { forward(x, dim, QUIRE_STREAM_PROJECTION); }
void quire__unproject(float *x, int dim) { backward(x, dim, QUIRE_STREAM_PROJECTION); }
