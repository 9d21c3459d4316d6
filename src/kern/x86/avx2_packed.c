/* Attention over packed pages with AVX2. */
#define SIMD "kern/x86/avx2_simd.h"
#define PRODUCTS "kern/x86/avx2_products.h"
#include "kern/x86/packed_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx2) = {attend, workspace_bytes, serves,
                                                      LEVEL("avx2"), NULL};
