/* Integer products with AVX-512 VNNI: vnni_products.h in vectors of 512 bits. */
#ifndef QUIRE_KERN_X86_AVX512_VNNI_PRODUCTS_H
#define QUIRE_KERN_X86_AVX512_VNNI_PRODUCTS_H

#include "kern/x86/avx512_simd.h"

#define SET 8
#define WIDE_SET 4 /* wide sums take two registers */
#define QUADS 1

/* u8 times s8, added to acc. gcc 12 keeps sums that a loop carries in two places, and moves them
 * from one to the other in every turn, unless it sees one operand that is read and written. */
INLINE ivec multiply_bytes(ivec acc, ivec u8, ivec s8) {
#if GCC_ASSEMBLY
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u8), "v"(s8));
    return acc;
#else
    return _mm512_dpbusd_epi32(acc, u8, s8);
#endif
}

/* gcc copies one zero for every sum, which occupies a port; clearing a register does not. */
INLINE ivec no_sum(void) {
#if GCC_ASSEMBLY
    ivec x;
    __asm__("vpxord %0, %0, %0" : "=v"(x));
    return x;
#else
    return _mm512_setzero_si512();
#endif
}
#include "kern/x86/vnni_products.h"

#endif
