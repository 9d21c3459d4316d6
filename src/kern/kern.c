/* Choosing kernels: the reference first, then every level that the machine has and the caller allows. */
#include "kern/kern.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kern/ref/ref.h"

typedef struct level {
    const char *name;
    unsigned needs;                       /* CPU features */
    const quire_attend_kernel *packed[2]; /* the second, if any, serves what the first does not */
    const quire_raw_kernel *raw;          /* NULL: as the level below */
    const quire_row_kernels *rows;        /* the same */
} level;

#if defined(__aarch64__) && !defined(QUIRE_PORTABLE)
extern const quire_attend_kernel quire__attend_neon, quire__attend_neon_dotprod, quire__attend_neon_i8mm,
    quire__attend_neon_sealed_raw;
extern const quire_raw_kernel quire__attend_neon_raw;
#endif

/* From the bottom of the ladder upwards. */
static const level LEVELS[] = {
    {"ref", 0, {&quire__attend_ref}, &quire__attend_ref_raw, &quire__rows_ref},
#if defined(__aarch64__) && !defined(QUIRE_PORTABLE)
    {"neon",
     QUIRE_CPU_NEON,
     {&quire__attend_neon, &quire__attend_neon_sealed_raw},
     &quire__attend_neon_raw,
     &quire__rows_neon},
    {"neon_dotprod", QUIRE_CPU_NEON | QUIRE_CPU_DOTPROD, {&quire__attend_neon_dotprod}, NULL, NULL},
    {"neon_i8mm",
     QUIRE_CPU_NEON | QUIRE_CPU_DOTPROD | QUIRE_CPU_I8MM | QUIRE_CPU_FP16,
     {&quire__attend_neon_i8mm},
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

quire_status quire__kernels_init(quire_kernels *kernels, const char *wanted) {
    const unsigned features = quire__cpu_features();
    int top = N_LEVELS - 1;
    if (!wanted)
        wanted = getenv("QUIRE_CPU");
    if (wanted && *wanted) {
        QUIRE_TRY(find_level(wanted, &top));
        if ((LEVELS[top].needs & features) != LEVELS[top].needs)
            return quire__fail(QUIRE_E_UNSUPPORTED, "this machine cannot run kernel level %s", wanted);
    }
    *kernels = (quire_kernels){0};
    for (int i = top; i >= 0; i--) {
        if ((LEVELS[i].needs & features) != LEVELS[i].needs)
            continue;
        if (kernels->n_packed == 0)
            kernels->isa = LEVELS[i].name;
        for (int j = 0; j < 2 && LEVELS[i].packed[j]; j++)
            kernels->packed[kernels->n_packed++] = LEVELS[i].packed[j];
        if (!kernels->raw)
            kernels->raw = LEVELS[i].raw;
        if (!kernels->rows)
            kernels->rows = LEVELS[i].rows;
    }
    return QUIRE_OK;
}

const quire_attend_kernel *quire__attend_kernel(const quire_kernels *kernels, const quire_format *format) {
    int i = 0;
    while (!kernels->packed[i]->serves(format))
        i++;
    return kernels->packed[i];
}
