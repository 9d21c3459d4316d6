#define SIMD "kern/neon/fvec.h"
#define NARROW "kern/neon/narrow.h"
#include "kern/raw.h"

const quire_attend_kernel quire__attend_neon_fp16_sealed_raw = {attend_sealed, workspace_bytes, serves,
                                                                "neon_fp16_raw"};
const quire_raw_kernel quire__attend_neon_fp16_raw = {attend_raw, workspace_bytes};
