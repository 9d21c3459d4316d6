/* machine_int8_arm.c: rounds of SDOT and SMMLA. Compiled for both (CMakeLists.txt), called only if
 * the processor has them. */
#include "bench/machine.h"

#if defined(__aarch64__)

static const int8_t OPERANDS[160];

/* 6 x 4 sums from 10 loads: v0-v23 the sums, v24-v27 the columns, v28 the row. Operands are
 * loaded in every round, because registers written long ago are slower to read on some cores
 * (Neoverse-V1: 2 products per cycle instead of 3.8). */
#define COLUMN(n, to) "ldr q" #to ", [%0, #16*" #n "]\n"
#define PRODUCT(op, sum, column) op " v" #sum ".4s, v" #column ".16b, v28.16b\n"
#define ROW(op, n, a, b, c, d)                                                                     \
    COLUMN(n, 28) PRODUCT(op, a, 24) PRODUCT(op, b, 25) PRODUCT(op, c, 26) PRODUCT(op, d, 27)
#define ROUND(op)                                                                                  \
    __asm__ volatile(COLUMN(0, 24) COLUMN(1, 25) COLUMN(2, 26) COLUMN(3, 27)                       \
                         ROW(op, 4, 0, 1, 2, 3) ROW(op, 5, 4, 5, 6, 7) ROW(op, 6, 8, 9, 10, 11)    \
                             ROW(op, 7, 12, 13, 14, 15) ROW(op, 8, 16, 17, 18, 19)                 \
                                 ROW(op, 9, 20, 21, 22, 23)                                        \
                     :                                                                             \
                     : "r"(OPERANDS)                                                               \
                     : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",       \
                       "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19",       \
                       "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28")

void cli_int8_sdot(long rounds) {
    for (; rounds > 0; rounds--)
        ROUND("sdot");
}

void cli_int8_smmla(long rounds) {
    for (; rounds > 0; rounds--)
        ROUND("smmla");
}

#endif
