/* Chooses kernels: every level that the machine has and the caller allows, down to the
 * reference. */
#include "kern/kern.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kern/ref/ref.h"

enum { MOST_PACKED = 4 }; /* kernels of one level */

typedef struct level {
    const char *name;
    unsigned needs; /* CPU features */
    /* Each serves what the ones before it do not; NULL: no more. */
    const quire_attend_kernel *packed[MOST_PACKED];
    const quire_raw_kernel *raw;   /* NULL: use the level below */
    const quire_row_kernels *rows; /* likewise */
} level;

#if defined(__aarch64__) && !defined(QUIRE_PORTABLE)
extern const quire_attend_kernel quire__attend_neon, quire__attend_neon_dotprod,
    quire__attend_neon_i8mm, quire__attend_neon_sealed_raw, quire__attend_neon_fp16_sealed_raw,
    quire__attend_neon_bf16_sealed_raw;
extern const quire_raw_kernel quire__attend_neon_raw, quire__attend_neon_fp16_raw,
    quire__attend_neon_bf16_raw;
#endif

#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
extern const quire_attend_kernel quire__attend_avx2, quire__attend_avx2_sealed_raw,
    quire__attend_avx2_vnni, quire__attend_avx512, quire__attend_avx512_vnni,
    quire__attend_avx512_sealed_raw, quire__attend_amx;
extern const quire_raw_kernel quire__attend_avx2_raw, quire__attend_avx512_raw;
#endif
#ifdef QUIRE_EMULATED
extern const quire_attend_kernel quire__attend_avx2_emulated,
    quire__attend_avx2_sealed_raw_emulated, quire__attend_avx2_vnni_emulated,
    quire__attend_avx512_emulated, quire__attend_avx512_vnni_emulated,
    quire__attend_avx512_sealed_raw_emulated, quire__attend_amx_emulated;
extern const quire_raw_kernel quire__attend_avx2_raw_emulated, quire__attend_avx512_raw_emulated;
#endif

/* From the bottom of the ladder upwards. Levels below the reference, which serves everything, run
 * only when named. */
static const level LEVELS[] = {
#ifdef QUIRE_EMULATED
    {"amx_emulated",
     0,
     {&quire__attend_amx_emulated, &quire__attend_avx512_vnni_emulated,
      &quire__attend_avx512_sealed_raw_emulated, &quire__attend_ref},
     &quire__attend_avx512_raw_emulated,
     &quire__rows_ref},
    {"avx512_vnni_emulated",
     0,
     {&quire__attend_avx512_vnni_emulated, &quire__attend_avx512_sealed_raw_emulated,
      &quire__attend_ref},
     &quire__attend_avx512_raw_emulated,
     &quire__rows_ref},
    {"avx512_emulated",
     0,
     {&quire__attend_avx512_emulated, &quire__attend_avx512_sealed_raw_emulated,
      &quire__attend_ref},
     &quire__attend_avx512_raw_emulated,
     &quire__rows_ref},
    {"avx2_vnni_emulated",
     0,
     {&quire__attend_avx2_vnni_emulated, &quire__attend_avx2_sealed_raw_emulated,
      &quire__attend_ref},
     &quire__attend_avx2_raw_emulated,
     &quire__rows_ref},
    {"avx2_emulated",
     0,
     {&quire__attend_avx2_emulated, &quire__attend_avx2_sealed_raw_emulated, &quire__attend_ref},
     &quire__attend_avx2_raw_emulated,
     &quire__rows_ref},
#endif
    {"ref", 0, {&quire__attend_ref}, &quire__attend_ref_raw, &quire__rows_ref},
#if defined(__aarch64__) && !defined(QUIRE_PORTABLE)
    {"neon",
     QUIRE_CPU_NEON,
     {&quire__attend_neon, &quire__attend_neon_sealed_raw},
     &quire__attend_neon_raw,
     &quire__rows_neon},
    {"neon_dotprod",
     QUIRE_CPU_NEON | QUIRE_CPU_DOTPROD | QUIRE_CPU_FP16,
     {&quire__attend_neon_dotprod},
     NULL,
     NULL},
    {"neon_i8mm",
     QUIRE_CPU_NEON | QUIRE_CPU_DOTPROD | QUIRE_CPU_I8MM | QUIRE_CPU_FP16 | QUIRE_CPU_FP16_FML,
     {&quire__attend_neon_i8mm, &quire__attend_neon_fp16_sealed_raw},
     &quire__attend_neon_fp16_raw,
     NULL},
    {"neon_bf16",
     QUIRE_CPU_NEON | QUIRE_CPU_DOTPROD | QUIRE_CPU_I8MM | QUIRE_CPU_FP16 | QUIRE_CPU_FP16_FML |
         QUIRE_CPU_BF16,
     {&quire__attend_neon_bf16_sealed_raw},
     &quire__attend_neon_bf16_raw,
     NULL},
#endif
#if defined(__x86_64__) && !defined(QUIRE_PORTABLE)
    {"avx2",
     QUIRE_CPU_AVX2,
     {&quire__attend_avx2, &quire__attend_avx2_sealed_raw},
     &quire__attend_avx2_raw,
     &quire__rows_avx2},
    {"avx2_vnni", QUIRE_CPU_AVX2 | QUIRE_CPU_AVX_VNNI, {&quire__attend_avx2_vnni}, NULL, NULL},
    {"avx512",
     QUIRE_CPU_AVX2 | QUIRE_CPU_AVX512,
     {&quire__attend_avx512, &quire__attend_avx512_sealed_raw},
     &quire__attend_avx512_raw,
     &quire__rows_avx512},
    {"avx512_vnni",
     QUIRE_CPU_AVX2 | QUIRE_CPU_AVX512 | QUIRE_CPU_AVX512_VNNI,
     {&quire__attend_avx512_vnni},
     NULL,
     NULL},
    {"amx",
     QUIRE_CPU_AVX2 | QUIRE_CPU_AVX512 | QUIRE_CPU_AVX512_VNNI | QUIRE_CPU_AMX,
     {&quire__attend_amx},
     NULL,
     NULL},
#endif
};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

const char *quire__kernel_level(int i) { return i >= 0 && i < N_LEVELS ? LEVELS[i].name : NULL; }

static quire_status find_level(const char *name, int *found) {
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(LEVELS[i].name, name) == 0) {
            *found = i;
            return QUIRE_OK;
        }
    return quire__fail(QUIRE_E_UNKNOWN, "'%.40s' is not a kernel level of this build", name);
}

quire_status quire__kernels_choose(quire_kernels *kernels, const char *wanted, unsigned features) {
    int top = N_LEVELS - 1;
    bool complete = false;
    if (wanted && *wanted) {
        QUIRE_TRY(find_level(wanted, &top));
        if ((LEVELS[top].needs & features) != LEVELS[top].needs)
            return quire__fail(QUIRE_E_UNSUPPORTED, "this machine cannot run kernel level %s",
                               wanted);
    }
    *kernels = (quire_kernels){0};
    for (int i = top; i >= 0 && !complete; i--) {
        if ((LEVELS[i].needs & features) != LEVELS[i].needs)
            continue;
        if (kernels->n_packed == 0)
            kernels->isa = LEVELS[i].name;
        if (!kernels->raw)
            kernels->raw = LEVELS[i].raw;
        if (!kernels->rows)
            kernels->rows = LEVELS[i].rows;
        for (int j = 0; j < MOST_PACKED && LEVELS[i].packed[j]; j++) {
            kernels->packed[kernels->n_packed++] = LEVELS[i].packed[j];
            complete = LEVELS[i].packed[j] == &quire__attend_ref; /* it serves everything */
        }
    }
    return QUIRE_OK;
}

quire_status quire__kernels_init(quire_kernels *kernels, const char *wanted) {
    return quire__kernels_choose(kernels, wanted ? wanted : getenv("QUIRE_CPU"),
                                 quire__cpu_features());
}

size_t quire__workspace_bytes(const quire_kernels *kernels, int n_rows, int k_dim, int v_dim) {
    size_t most = kernels->raw->workspace_bytes(n_rows, k_dim, v_dim);
    for (int i = 0; i < kernels->n_packed; i++) {
        const size_t bytes = kernels->packed[i]->workspace_bytes(n_rows, k_dim, v_dim);
        most = bytes > most ? bytes : most;
    }
    return most;
}

const quire_attend_kernel *quire__attend_kernel(const quire_kernels *kernels,
                                                const quire_format *format) {
    int i = 0;
    while (!kernels->packed[i]->serves(format))
        i++;
    return kernels->packed[i];
}
