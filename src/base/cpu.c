#include "base/cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

unsigned quire__cpu_features(void) {
    enum { DOTPROD_BIT = 20, I8MM_BIT = 13 }; /* of HWCAP and HWCAP2: fixed by the kernel's ABI */
    unsigned features = QUIRE_CPU_NEON;       /* part of every aarch64 */
    if (getauxval(AT_HWCAP) >> DOTPROD_BIT & 1)
        features |= QUIRE_CPU_DOTPROD;
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
           has("hw.optional.arm.FEAT_I8MM", QUIRE_CPU_I8MM);
}

#else

unsigned quire__cpu_features(void) { return 0; }

#endif
