/* Attention over packed pages with AVX-VNNI. */
#define SIMD "kern/x86/avx2_simd.h"
#define PRODUCTS "kern/x86/avx2_vnni_products.h"
#include "kern/x86/packed_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx2_vnni) = {attend, workspace_bytes, serves,
                                                           LEVEL("avx2_vnni"), NULL};
