/* Included before every source of ggml (tools/build-llama). gcc 12 declares that `ldtilecfg`
 * reads 8 bytes of the 64 that it reads, so it drops the stores to the rest of the
 * configuration, and the first tile instruction faults. The same instruction, with an operand of
 * its true size: */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config)                                                                   \
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)))
#endif
