#include "base/cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

unsigned quire__cpu_features(void) {
    /* of HWCAP and HWCAP2: fixed by the kernel's ABI */
    enum { FP16_BIT = 10, DOTPROD_BIT = 20, FP16_FML_BIT = 23, I8MM_BIT = 13 };
    const unsigned long caps = getauxval(AT_HWCAP);
    unsigned features = QUIRE_CPU_NEON; /* part of every aarch64 */
    if (caps >> DOTPROD_BIT & 1)
        features |= QUIRE_CPU_DOTPROD;
    if (caps >> FP16_BIT & caps >> FP16_FML_BIT & 1)
        features |= QUIRE_CPU_FP16;
    if (getauxval(AT_HWCAP2) >> I8MM_BIT & 1)
        features |= QUIRE_CPU_I8MM;
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
           (has("hw.optional.arm.FEAT_FP16", QUIRE_CPU_FP16) & has("hw.optional.arm.FEAT_FHM", QUIRE_CPU_FP16));
}

#else

unsigned quire__cpu_features(void) { return 0; }

#endif
