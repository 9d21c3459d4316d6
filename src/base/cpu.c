/* CPU features from the kernel (aarch64) or from CPUID (x86-64). */
#define _DEFAULT_SOURCE /* syscall */
#include "base/cpu.h"

#include <stdbool.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

unsigned quire__cpu_features(void) {
    /* of HWCAP and HWCAP2: fixed by the kernel's ABI */
    enum { FP16_BIT = 10, DOTPROD_BIT = 20, FP16_FML_BIT = 23, I8MM_BIT = 13, BF16_BIT = 14 };
    const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    unsigned features = QUIRE_CPU_NEON; /* part of every aarch64 */
    if (caps >> DOTPROD_BIT & 1)
        features |= QUIRE_CPU_DOTPROD;
    if (caps >> FP16_BIT & 1)
        features |= QUIRE_CPU_FP16;
    if (caps >> FP16_FML_BIT & 1)
        features |= QUIRE_CPU_FP16_FML;
    if (caps2 >> I8MM_BIT & 1)
        features |= QUIRE_CPU_I8MM;
    if (caps2 >> BF16_BIT & 1)
        features |= QUIRE_CPU_BF16;
    return features;
}

#elif defined(__aarch64__) && defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>

static unsigned has(const char *name, unsigned feature) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value ? feature : 0;
}

unsigned quire__cpu_features(void) {
    return QUIRE_CPU_NEON | has("hw.optional.arm.FEAT_DotProd", QUIRE_CPU_DOTPROD) |
           has("hw.optional.arm.FEAT_I8MM", QUIRE_CPU_I8MM) |
           has("hw.optional.arm.FEAT_BF16", QUIRE_CPU_BF16) |
           has("hw.optional.arm.FEAT_FP16", QUIRE_CPU_FP16) |
           has("hw.optional.arm.FEAT_FHM", QUIRE_CPU_FP16_FML);
}

#elif defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Which registers the operating system saves. Features of the processor are usable only with
 * these. */
static unsigned saved_state(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Linux saves a process's tiles only once it has asked. Threads that start later may use them too;
 * it refuses while one has a signal stack that is too small for them. */
static bool tiles_permitted(void) {
#ifdef __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* fixed by the kernel's ABI */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

unsigned quire__cpu_features(void) {
    enum { YMM = 0x6, ZMM = 0xe6, TILES = 0x60000 };                           /* of saved_state */
    enum { AVX512_FP16 = 1 << 23, AMX = 1 << 24 | 1 << 25 /* tiles, int8 */ }; /* of leaf 7's EDX */
    enum { AVX_VNNI = 1 << 4 }; /* of EAX of its second part */
    const unsigned avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C,
                   avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    unsigned a, b, c, d, more, unused, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & avx) != avx ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const unsigned saved = saved_state();
    if ((saved & YMM) == YMM && (b & bit_AVX2))
        features |= QUIRE_CPU_AVX2;
    if (features && __get_cpuid_count(7, 1, &more, &unused, &unused, &unused) && (more & AVX_VNNI))
        features |= QUIRE_CPU_AVX_VNNI;
    if (features && (saved & ZMM) == ZMM && (b & avx512) == avx512)
        features |= QUIRE_CPU_AVX512;
    if ((features & QUIRE_CPU_AVX512) && (c & bit_AVX512VNNI))
        features |= QUIRE_CPU_AVX512_VNNI;
    if ((features & QUIRE_CPU_AVX512_VNNI) && (saved & TILES) == TILES && (d & AMX) == AMX &&
        (d & AVX512_FP16) && (c & bit_GFNI) && tiles_permitted())
        features |= QUIRE_CPU_AMX;
    return features;
}

#else

unsigned quire__cpu_features(void) { return 0; }

#endif
