/* Integer products with AVX-VNNI: vnni_products.h in vectors of 256 bits. */
#ifndef QUIRE_KERN_X86_AVX2_VNNI_PRODUCTS_H
#define QUIRE_KERN_X86_AVX2_VNNI_PRODUCTS_H

#include "kern/x86/avx2_simd.h"

#define SET 4
#define WIDE_SET SET
#define QUADS 0

/* In assembly for the reason given in avx512_vnni_products.h. */
INLINE ivec multiply_bytes(ivec acc, ivec u8, ivec s8) {
#if GCC_ASSEMBLY
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(u8), "x"(s8));
    return acc;
#else
    return _mm256_dpbusd_avx_epi32(acc, u8, s8);
#endif
}
INLINE ivec no_sum(void) { return _mm256_setzero_si256(); }

#include "kern/x86/vnni_products.h"

#endif
