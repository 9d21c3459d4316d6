/* Rows of numbers to strips, 16 rows side by side, and back. */
#ifndef QUIRE_KERN_X86_AMX_TRANSPOSE_H
#define QUIRE_KERN_X86_AMX_TRANSPOSE_H

#include "kern/x86/amx/amx_work.h"

#ifndef QUIRE_EMULATED
INLINE void transpose_vectors(fvec x[16]) {
    fvec y[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int j = 0; j < 2; j++) {
        const __m512d a = _mm512_castps_pd(y[i + j]), b = _mm512_castps_pd(y[i + 2 + j]);
        x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 2; j++) {
        y[8 * j + i] = _mm512_shuffle_f32x4(x[8 * j + i], x[8 * j + 4 + i], 0x88);
        y[8 * j + 4 + i] = _mm512_shuffle_f32x4(x[8 * j + i], x[8 * j + 4 + i], 0xdd);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0x88);
        x[8 + i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0xdd);
    }
}
#else
static void transpose_vectors(fvec x[16]) {
    float y[16][16], z[16][16];
    for (int i = 0; i < 16; i++)
        f_store(y[i], x[i]);
    for (int i = 0; i < 256; i++)
        z[i % 16][i / 16] = y[i / 16][i % 16];
    for (int i = 0; i < 16; i++)
        x[i] = f_load(z[i]);
}
#endif

/* n rows (at most 16) of `dim` numbers to [dim][16]; rows beyond are zeros. */
static void rows_to_strip(const float *rows, int n, int dim, strip_rows *to) {
    for (int d = 0; d < dim; d += 16) {
        fvec x[16];
        for (int i = 0; i < 16; i++)
            x[i] = i < n ? f_load(rows + (size_t)i * (size_t)dim + d) : f_all(0);
        transpose_vectors(x);
        for (int i = 0; i < 16; i++)
            f_store(to[d + i], x[i]);
    }
}
static void strip_to_rows(strip_rows *from, int n, int dim, float *rows) {
    for (int d = 0; d < dim; d += 16) {
        fvec x[16];
        for (int i = 0; i < 16; i++)
            x[i] = f_load(from[d + i]);
        transpose_vectors(x);
        for (int i = 0; i < n; i++)
            f_store(rows + (size_t)i * (size_t)dim + d, x[i]);
    }
}

#endif
