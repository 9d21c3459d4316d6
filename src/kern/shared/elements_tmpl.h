/* Template: raw elements as fp32 vectors, dot products, and 2^x.
 *
 * Parameters:
 *   SIMD  header of the vectors: fvec of W floats and the operations on it
 */
#ifndef QUIRE_KERN_SHARED_ELEMENTS_TMPL_H
#define QUIRE_KERN_SHARED_ELEMENTS_TMPL_H

#ifndef SIMD
#error "elements_tmpl.h needs SIMD"
#endif

#include "base/real.h"
#include "quire.h"
#include SIMD

/* Elements i .. i+W-1 as fp32. */
INLINE fvec load_elements(const quire_type type, const uint8_t *at, int i) {
    return type == QUIRE_F32   ? f_load((const float *)(const void *)at + i)
           : type == QUIRE_F16 ? f_load_f16(at + 2 * i)
                               : f_load_bf16(at + 2 * i);
}

/* Dot products of rows of q with four tokens: four numbers per row, `stride` apart. */
INLINE void dots(const quire_type type, const int rows, const float *const q[4],
                 const uint8_t *const k[4], int dim, float *to, int stride) {
    fvec acc[4][4];
    UNROLL for (int i = 0; i < 4 * rows; i++) acc[i / 4][i % 4] = f_all(0);
    for (int d = 0; d < dim; d += W) {
        fvec y[4];
        UNROLL for (int t = 0; t < 4; t++) y[t] = load_elements(type, k[t], d);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec x = f_load(q[r] + d);
            UNROLL for (int t = 0; t < 4; t++) acc[r][t] = f_fma(x, y[t], acc[r][t]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) f_store_sums(to + r * stride, acc[r]);
}

/* As quire__exp2: exact at 0, so that a state that nothing changes keeps its bits. */
INLINE void exp2_exact_each(const int n, fvec *x) { /* side by side, because each is a long chain */
    static const float c[7] = {1.0f,          6.9314718e-1f, 2.4022651e-1f, 5.5504109e-2f,
                               9.6181291e-3f, 1.3333558e-3f, 1.5403530e-4f};
    const fvec magic = f_all(QUIRE_ROUND_MAGIC);
    fvec y[4], f[4], p[4];
    UNROLL for (int u = 0; u < n; u++) {
        x[u] = f_max(x[u], f_all(-126.0f));
        y[u] = f_add(x[u], magic);
    }
    UNROLL for (int u = 0; u < n; u++) f[u] = f_sub(x[u], f_sub(y[u], magic));
    UNROLL for (int u = 0; u < n; u++) p[u] = f_fma(f_all(c[6]), f[u], f_all(c[5]));
    UNROLL for (int i = 4; i >= 0; i--) UNROLL for (int u = 0; u < n; u++) p[u] =
        f_fma(p[u], f[u], f_all(c[i]));
    UNROLL for (int u = 0; u < n; u++) x[u] =
        f_from_bits(i_add(f_bits(p[u]), i_shl(f_bits(y[u]), 23)));
}

INLINE fvec exp2_exact(fvec x) {
    exp2_exact_each(1, &x);
    return x;
}

#endif
