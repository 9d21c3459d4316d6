/* Attention over raw rows with NEON and fp16 products. */
#define SIMD "kern/neon/neon_simd.h"
#define NARROW "kern/neon/raw_narrow_tmpl.h"
#include "kern/shared/raw_tmpl.h"

const quire_attend_kernel quire__attend_neon_fp16_sealed_raw = {attend_sealed, workspace_bytes,
                                                                serves, "neon_fp16_raw", NULL};
const quire_raw_kernel quire__attend_neon_fp16_raw = {attend_raw, workspace_bytes};
