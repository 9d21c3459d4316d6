/* Template, part of packed_tmpl.h: from the logits of one row to the integer weights of one block:
 * maximum, 2^(s - max), times the scale of V, operands. */
#ifndef QUIRE_KERN_X86_SOFTMAX_TMPL_H
#define QUIRE_KERN_X86_SOFTMAX_TMPL_H

#include "kern/x86/work_tmpl.h"

/* 2^x, x <= 0; below 2^-126 it is 0, which hidden tokens (-inf) are: a tiny number would become
 * subnormal when it is multiplied by V's scale, and that takes a hundred cycles. */
INLINE fvec exp2_negative(fvec x, const int degree) {
    const float *c = degree == 3 ? EXP2_3 : EXP2_5;
    const fvec f = f_fraction(x);
    fvec p = f_all(c[degree]);
    UNROLL for (int i = degree - 1; i >= 0; i--) p = f_fma(p, f, f_all(c[i]));
    return f_times_power(p, x);
}

/* The largest logits of some rows. */
INLINE rvec maxima(const int rows, const float (*s)[BLOCK], int n) {
    fvec m[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) m[r] = f_all(QUIRE_NOTHING_SEEN);
    for (int t = 0; t < n; t += W)
        UNROLL for (int r = 0; r < rows; r++) m[r] = f_max(m[r], f_load(s[r] + t));
    return f_largest_rows(m);
}

/* Turns s into 2^(s - m), or, given the scales of V, into the weight 2^(s - m) * scale, and finds
 * the largest weight on the way. Returns the sum of 2^(s - m). Both are still spread over a vector.
 */
INLINE fvec exponentials(float *s, const float *scale /* (n) or NULL */, const int degree, int n,
                         float m, fvec *largest) {
    fvec sum[4], top[4];
    EACH sum[u] = top[u] = f_all(0);
    for (int t = 0; t < n; t += 4 * W) {
        fvec e[4];
        EACH e[u] = exp2_negative(f_sub(f_load(s + t + u * W), f_all(m)), degree);
        EACH sum[u] = f_add(sum[u], e[u]);
        if (scale) {
            EACH e[u] = f_mul(e[u], f_load(scale + t + u * W));
            EACH top[u] = f_max(top[u], e[u]);
        }
        EACH f_store(s + t + u * W, e[u]);
    }
    *largest = f_max(f_max(top[0], top[1]), f_max(top[2], top[3]));
    return f_add(f_add(sum[0], sum[1]), f_add(sum[2], sum[3]));
}

/* The largest e * scale of some rows; constant: their sums of e * zero. */
INLINE rvec largest_weights(const int rows, const float (*e)[BLOCK], const float *scale,
                            const float *zero, int n, rvec *constant) {
    fvec top[ABREAST], sum[ABREAST];
    UNROLL for (int r = 0; r < ABREAST; r++) top[r] = sum[r] = f_all(0);
    for (int t = 0; t < n; t += W) {
        const fvec s = f_load(scale + t), z = f_load(zero + t);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec x = f_load(e[r] + t);
            top[r] = f_max(top[r], f_mul(x, s));
            sum[r] = f_fma(x, z, sum[r]);
        }
    }
    *constant = f_sum_rows(sum);
    return f_largest_rows(top);
}

/* Operands of n weights, given as weights or as e and scale; returns the sum of the integers,
 * spread over a vector. */
INLINE ivec put_weights(const product kind, const float *s,
                        const float *scale /* NULL: s holds weights */, int n, float inverse,
                        uint8_t *plane0, uint8_t *plane1) {
    const fvec magic = f_all(QUIRE_ROUND_MAGIC), factor = f_all(inverse);
    ivec total = i_all(0);
    for (int t = 0; t < n; t += 4 * W) {
        ivec x[4];
        EACH {
            fvec w = f_load(s + t + u * W);
            if (scale)
                w = f_mul(w, f_load(scale + t + u * W));
            x[u] = i_sub(f_bits(f_fma(w, factor, magic)), f_bits(magic));
            total = i_add(total, x[u]);
        }
        v_store(kind, x, plane0 + t, plane1 + t);
    }
    return total;
}

#endif
