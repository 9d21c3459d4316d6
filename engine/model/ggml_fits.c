#include "model/ggml_fits.h"

#include <ggml-cpu.h>

#include <stdbool.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef struct instruction_set {
    const char *name;
    int compiled_for;
    bool present;
} instruction_set;

quire_status quire__ggml_fits(void) {
#if defined(__x86_64__)
    const instruction_set sets[] = {
        {"SSSE3", ggml_cpu_has_ssse3(), __builtin_cpu_supports("ssse3")},
        {"AVX", ggml_cpu_has_avx(), __builtin_cpu_supports("avx")},
        {"AVX2", ggml_cpu_has_avx2(), __builtin_cpu_supports("avx2")},
        {"BMI2", ggml_cpu_has_bmi2(), __builtin_cpu_supports("bmi2")},
        {"FMA", ggml_cpu_has_fma(), __builtin_cpu_supports("fma")},
        {"AVX-512", ggml_cpu_has_avx512(), __builtin_cpu_supports("avx512f")},
        {"AVX-512 VBMI", ggml_cpu_has_avx512_vbmi(), __builtin_cpu_supports("avx512vbmi")},
        {"AVX-512 VNNI", ggml_cpu_has_avx512_vnni(), __builtin_cpu_supports("avx512vnni")},
        {"AVX-512 BF16", ggml_cpu_has_avx512_bf16(), __builtin_cpu_supports("avx512bf16")},
    };
#elif defined(__aarch64__) && defined(__linux__)
    /* of HWCAP and HWCAP2: fixed by the kernel's ABI */
    enum { FP16_BIT = 10, DOTPROD_BIT = 20, SVE_BIT = 22, I8MM_BIT = 13, SME_BIT = 23 };
    const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    const instruction_set sets[] = {
        {"dot products", ggml_cpu_has_dotprod(), caps >> DOTPROD_BIT & 1},
        {"fp16 arithmetic", ggml_cpu_has_fp16_va(), caps >> FP16_BIT & 1},
        {"I8MM", ggml_cpu_has_matmul_int8(), caps2 >> I8MM_BIT & 1},
        {"SVE", ggml_cpu_has_sve(), caps >> SVE_BIT & 1},
        {"SME", ggml_cpu_has_sme(), caps2 >> SME_BIT & 1},
    };
#else
    const instruction_set sets[] = {{"", 0, true}};
#endif
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].compiled_for && !sets[i].present)
            return quire__fail(
                QUIRE_E_UNSUPPORTED,
                "the ggml of this program was compiled for processors with %s, which "
                "this one does not have: build it here, or with QUIRE_LLAMA_MARCH",
                sets[i].name);
    return QUIRE_OK;
}
