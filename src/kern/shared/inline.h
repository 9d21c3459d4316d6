/* Keywords of the kernels. UNROLL: unrolls loops whose bounds are constants after inlining. EACH:
 * four independent chains in lock step, because a single one would wait for its own results. */
#ifndef QUIRE_KERN_SHARED_INLINE_H
#define QUIRE_KERN_SHARED_INLINE_H

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define EACH UNROLL for (int u = 0; u < 4; u++)

#endif
