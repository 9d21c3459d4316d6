/* Attention over raw rows with NEON. */
#define SIMD "kern/neon/neon_simd.h"
#include "kern/shared/raw_tmpl.h"

const quire_attend_kernel quire__attend_neon_sealed_raw = {attend_sealed, workspace_bytes, serves,
                                                           "neon_raw", NULL};
const quire_raw_kernel quire__attend_neon_raw = {attend_raw, workspace_bytes};
