/* Attention over raw rows with AVX2. */
#define SIMD "kern/x86/avx2_simd.h"
#include "kern/shared/raw_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx2_sealed_raw) = {attend_sealed, workspace_bytes,
                                                                 serves, LEVEL("avx2_raw"), NULL};
const quire_raw_kernel NAME(quire__attend_avx2_raw) = {attend_raw, workspace_bytes};
