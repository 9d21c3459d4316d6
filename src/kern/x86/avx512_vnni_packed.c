/* Attention over packed pages with AVX-512 VNNI. */
#define SIMD "kern/x86/avx512_simd.h"
#define PRODUCTS "kern/x86/avx512_vnni_products.h"
#include "kern/x86/packed_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx512_vnni) = {attend, workspace_bytes, serves,
                                                             LEVEL("avx512_vnni"), NULL};
