/* Attention over raw rows with AVX-512. */
#define SIMD "kern/x86/avx512_simd.h"
#include "kern/shared/raw_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx512_sealed_raw) = {
    attend_sealed, workspace_bytes, serves, LEVEL("avx512_raw"), NULL};
const quire_raw_kernel NAME(quire__attend_avx512_raw) = {attend_raw, workspace_bytes};
