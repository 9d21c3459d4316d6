/* Attention over packed pages with AVX-512 VNNI and FP16: the few rows of level amx. */
#define SIMD "kern/x86/avx512_simd.h"
#define PRODUCTS "kern/x86/avx512_vnni_products.h"
#define HALVES "kern/x86/half.h"
#include "kern/x86/packed_tmpl.h"

const quire_attend_kernel NAME(quire__attend_avx512_fp16) = {attend, workspace_bytes, serves,
                                                             LEVEL("avx512_fp16"), NULL};
