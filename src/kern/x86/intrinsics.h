/* The compiler's intrinsics, or, in test builds, the same ones in portable C: SIMDe's. The kernels' own source is then the
 * same to the last line, and runs on any machine as a level of its own, `<level>_emulated`. */
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

#endif
