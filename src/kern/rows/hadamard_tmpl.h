/* Template, part of rows_tmpl.h: the rotation of codec/hadamard.c, the same butterflies in the same
 * order, several levels per trip through memory. */
#ifndef QUIRE_KERN_ROWS_HADAMARD_TMPL_H
#define QUIRE_KERN_ROWS_HADAMARD_TMPL_H

#include "codec/codec.h"
#include "codec/hadamard.h"
#include "kern/rows/vec_tmpl.h"

enum { MAX_PASSES = QUIRE_ROTATION_PASSES };

/* Where each pass flips signs, as sign bits: made once for many rows. */
typedef struct rotation {
    quire_passes passes;
    float norm;
    uint32_t flip[MAX_PASSES][QUIRE_DIM_MAX];
} rotation;

static void rotation_init(rotation *r, int dim, int stream) {
    r->passes = quire__passes_of(dim);
    r->norm = 1.0f / sqrtf((float)r->passes.length);
    for (int p = 0; p < r->passes.count; p++)
        for (int i = 0; i < dim; i += 32) { /* may write 16 beyond dim; rows are multiples of 32 */
            const uint32_t word = (uint32_t)(quire__sign_word(stream + p, i / 64) >> (i % 64));
            for (int j = 0; j < 32; j++)
                r->flip[p][i + j] = word << (31 - j) & 0x80000000u;
        }
}

/* ---- butterflies inside a vector: lane i meets lane i ^ h, and where bit h is set the difference
 * stays. Multiplying by 1 or -1 is exact, so the fma rounds once, like the addition or subtraction
 * that it replaces. */
#define SIGN_1(i) ((i)&1 ? -1.0f : 1.0f)
#define SIGN_2(i) ((i)&2 ? -1.0f : 1.0f)
#define SIGN_4(i) ((i)&4 ? -1.0f : 1.0f)
#define SIGN_8(i) ((i)&8 ? -1.0f : 1.0f)
INLINE vf within(vf x) {
#define STEP(h) x = fma_f(x, (vf){PER_LANE(SIGN_##h)}, SWAPPED(x, h));
    EACH_SWAP_UP(STEP)
#undef STEP
    return x;
}

/* ---- and between n = 2, 4, 8 vectors: as many levels as n has factors of two */
INLINE void between(vf *v, const int n) {
    UNROLL for (int step = 1; step < n; step *= 2) {
        UNROLL for (int i = 0; i < n; i++) {
            if (i & step)
                continue;
            const vf a = v[i], b = v[i + step];
            v[i] = a + b;
            v[i + step] = a - b;
        }
    }
}

/* Levels h = 1 .. 8 of 16 coordinates. */
INLINE void butterflies_16(vf x[PER_16]) {
    UNROLL for (int i = 0; i < PER_16; i++) x[i] = within(x[i]);
    between(x, PER_16);
}

/* Levels h, 2h, .. of n coordinates, `width` of them at a time. The last levels also scale, and
 * flip the signs of the inverse rotation (`flip`, or NULL). */
INLINE void butterflies(float *x, int n, int h, const int width, const bool last, float norm,
                        const uint32_t *flip) {
    for (int i = 0; i < n; i += h * width)
        for (int j = i; j < i + h; j += LANES) {
            vf v[8];
            UNROLL for (int k = 0; k < width; k++) v[k] = load_f(x + j + k * h);
            between(v, width);
            UNROLL for (int k = 0; k < width; k++) {
                if (last)
                    v[k] = v[k] * norm;
                if (last && flip)
                    v[k] = xor_f(v[k], load_i(flip + j + k * h));
                store_f(x + j + k * h, v[k]);
            }
        }
}

/* One pass over n = 32 .. 512 coordinates. `before`: signs to flip first (rotation); `after`: signs
 * to flip last (inverse). */
INLINE void hadamard(const float *from, float *x, int n, float norm, const uint32_t *before,
                     const uint32_t *after) {
    for (int i = 0; i < n; i += 16) {
        vf v[PER_16];
        UNROLL for (int j = 0; j < PER_16; j++) {
            v[j] = load_f(from + i + j * LANES);
            if (before)
                v[j] = xor_f(v[j], load_i(before + i + j * LANES));
        }
        butterflies_16(v);
        UNROLL for (int j = 0; j < PER_16; j++) store_f(x + i + j * LANES, v[j]);
    }
    switch (n) {
    case 32:
        butterflies(x, n, 16, 2, true, norm, after);
        break;
    case 64:
        butterflies(x, n, 16, 4, true, norm, after);
        break;
    case 128:
        butterflies(x, n, 16, 8, true, norm, after);
        break;
    case 256:
        butterflies(x, n, 16, 4, false, 0, NULL);
        butterflies(x, n, 64, 4, true, norm, after);
        break;
    default:
        butterflies(x, n, 16, 8, false, 0, NULL);
        butterflies(x, n, 128, 4, true, norm, after);
    }
}

/* x may be `from` itself. */
static void rotate_there(const rotation *r, const float *from, float *x, int dim) {
    const int n = r->passes.length, rest = dim - n;
    hadamard(from, x, n, r->norm, r->flip[0], NULL);
    if (rest == 0)
        return;
    memmove(x + n, from + n, (size_t)rest * sizeof *x);
    for (int p = 1; p < r->passes.count; p++) {
        float *at = x + r->passes.offset[p];
        hadamard(at, at, n, r->norm, r->flip[p] + r->passes.offset[p], NULL);
    }
}

static void rotate_back(const rotation *r, float *x) {
    for (int p = r->passes.count - 1; p >= 0; p--) {
        float *at = x + r->passes.offset[p];
        hadamard(at, at, r->passes.length, r->norm, NULL, r->flip[p] + r->passes.offset[p]);
    }
}

/* ---- one row, as the kernel table has it */

static void rotate(float *x, int dim) {
    rotation r;
    rotation_init(&r, dim, QUIRE_STREAM_ROTATION);
    rotate_there(&r, x, x, dim);
}

static void unrotate(float *x, int dim) {
    rotation r;
    rotation_init(&r, dim, QUIRE_STREAM_ROTATION);
    rotate_back(&r, x);
}

static void project(float *x, int dim) {
    rotation r;
    rotation_init(&r, dim, QUIRE_STREAM_PROJECTION);
    rotate_there(&r, x, x, dim);
}

#endif
