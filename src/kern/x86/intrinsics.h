/* The compiler's intrinsics, or SIMDe's, the same in portable C (test builds). The kernels' source
 * is identical either way, and runs on any machine as a level of its own, `<level>_emulated`. */
#ifndef QUIRE_KERN_X86_INTRINSICS_H
#define QUIRE_KERN_X86_INTRINSICS_H

#include <stdint.h>
#include <string.h>

#include "kern/shared/inline.h"

#ifdef QUIRE_EMULATED
#include "kern/x86/emulated.h"
#define NAME(kernel) kernel##_emulated
#define LEVEL(name) name "_emulated"
#else
#include <immintrin.h>
#define NAME(kernel) kernel
#define LEVEL(name) name
#endif

/* Whether instructions are written out where gcc 12 allots registers badly. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(QUIRE_EMULATED)
#define GCC_ASSEMBLY 1
#else
#define GCC_ASSEMBLY 0
#endif

/* n lines of 64 bytes into L1: unpacked pages lie in L2. */
INLINE void fetch_lines(const void *at, const int n) {
    UNROLL for (int i = 0; i < n; i++) __builtin_prefetch((const char *)at + 64 * i, 0, 3);
}

/* The order of a page's dims under 8 bits, in each four, as an index of _mm_shuffle_epi8. */
INLINE __m128i dim_order(void) {
    return _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
}

/* quire__f32_to_f16, by the processor. */
INLINE uint16_t fp16_bits(float x) {
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT));
}

#endif
