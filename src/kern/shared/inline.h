/* Keywords of the kernels. UNROLL: unrolls loops whose bounds are constants after inlining. EACH:
 * four independent chains in lock step, because a single one would wait for its own results. */
#ifndef QUIRE_KERN_SHARED_INLINE_H
#define QUIRE_KERN_SHARED_INLINE_H

#ifdef QUIRE_EMULATED /* instructions are functions there: all of them inlined take gcc minutes */
#define INLINE static inline
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__ /* its "GCC unroll" comes after the last pass that keeps arrays in registers */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif
#define EACH UNROLL for (int u = 0; u < 4; u++)

#endif
