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

/* To fp16 and back. */
INLINE float round_to_fp16(float x) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}

#endif
