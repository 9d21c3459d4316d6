/* machine_int8.c: int8 multiply-accumulates with the best instructions of each kernel level.
 *
 * A round is a block of independent 32-bit sums over operands in registers or in L1, whichever is
 * faster. */
#include "bench/machine.h"

#include <string.h>

static const int8_t OPERANDS[1024];

/* Plain C; the barrier keeps the compiler from reusing results of earlier rounds. */
static void run_plain(long rounds) {
    int32_t sum = 0;
    const int8_t *a = OPERANDS, *b = OPERANDS + 512;
    for (; rounds > 0; rounds--) {
        __asm__ volatile("" : "+r"(a), "+r"(b) : : "memory");
        for (int i = 0; i < 512; i++)
            sum += a[i] * b[i];
        __asm__ volatile("" : "+r"(sum));
    }
}

static const cli_int8_probe PLAIN = {"plain C", 512, run_plain};

#if defined(__aarch64__)

/* 16 products each: two halves are summed in 16 bits, which is enough for codes, then in 32. Four
 * are interleaved, so that none waits. */
#define FOUR(step, a, b, c, d) step(a) step(b) step(c) step(d)
#define LOW(n) "smull v1" #n ".8h, v28.8b, v29.8b\n"
#define HIGH(n) "smlal2 v1" #n ".8h, v28.16b, v29.16b\n"
#define WIDEN(n) "sadalp v" #n ".4s, v1" #n ".8h\n"
#define SUMS_OF(a, b, c, d) FOUR(LOW, a, b, c, d) FOUR(HIGH, a, b, c, d) FOUR(WIDEN, a, b, c, d)

static void run_smlal(long rounds) {
    for (; rounds > 0; rounds--)
        __asm__ volatile(SUMS_OF(0, 1, 2, 3) SUMS_OF(4, 5, 6, 7)
                         :
                         :
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v10", "v11", "v12",
                           "v13", "v14", "v15", "v16", "v17");
}

cli_int8_probe cli_int8_probe_of(const char *isa) {
    if (strstr(isa, "i8mm") || strstr(isa, "bf16")) /* the level above it */
        return (cli_int8_probe){"SMMLA", 24 * 32, cli_int8_smmla};
    if (strstr(isa, "dotprod"))
        return (cli_int8_probe){"SDOT", 24 * 16, cli_int8_sdot};
    if (strstr(isa, "neon"))
        return (cli_int8_probe){"SMULL, SMLAL, SADALP", 8 * 16, run_smlal};
    return PLAIN;
}

#elif defined(__x86_64__)

#define PAIRS_OF(v, n)                                                                             \
    "vpmaddubsw %%" v "12, %%" v "13, %%" v #n "\n vpmaddwd %%" v #n ", %%" v "14, %%" v #n "\n"
#define ADD(v, n, to) "vpaddd %%" v #n ", %%" v #to ", %%" v #to "\n"
#define SIX_SUMS(v)                                                                                \
    PAIRS_OF(v, 6)                                                                                 \
    PAIRS_OF(v, 7) PAIRS_OF(v, 8) PAIRS_OF(v, 9) PAIRS_OF(v, 10) PAIRS_OF(v, 11) ADD(v, 6, 0)      \
        ADD(v, 7, 1) ADD(v, 8, 2) ADD(v, 9, 3) ADD(v, 10, 4) ADD(v, 11, 5)
#define DOT(form, v, n) form "vpdpbusd %%" v "12, %%" v "13, %%" v #n "\n"
#define SIX_DOTS(form, v, a, b, c, d, e, f)                                                        \
    DOT(form, v, a) DOT(form, v, b) DOT(form, v, c) DOT(form, v, d) DOT(form, v, e) DOT(form, v, f)
#define TWELVE_DOTS(form, v)                                                                       \
    SIX_DOTS(form, v, 0, 1, 2, 3, 4, 5) SIX_DOTS(form, v, 6, 7, 8, 9, 10, 11)
#define REGISTERS                                                                                  \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14"

static void run_avx2(long rounds) {
    for (; rounds > 0; rounds--)
        __asm__ volatile(SIX_SUMS("ymm") : : : REGISTERS);
    __asm__ volatile("vzeroupper" : : : REGISTERS);
}

static void run_avx512(long rounds) {
    for (; rounds > 0; rounds--)
        __asm__ volatile(SIX_SUMS("zmm") : : : REGISTERS);
    __asm__ volatile("vzeroupper" : : : REGISTERS);
}

static void run_vnni(long rounds) {
    for (; rounds > 0; rounds--)
        __asm__ volatile(TWELVE_DOTS("", "zmm") : : : REGISTERS);
    __asm__ volatile("vzeroupper" : : : REGISTERS);
}

static void run_avx_vnni(long rounds) {
    for (; rounds > 0; rounds--)
        __asm__ volatile(TWELVE_DOTS("%{vex%} ", "ymm") : : : REGISTERS);
    __asm__ volatile("vzeroupper" : : : REGISTERS);
}

/* Four products of 16 x 64 by 64 x 16 bytes. The library has asked for the permission to use tiles
 * if this level is in use. */
static void run_amx(long rounds) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    for (; rounds > 0; rounds--)
        __asm__ volatile("tdpbssd %tmm4, %tmm5, %tmm0\n tdpbssd %tmm4, %tmm5, %tmm1\n"
                         "tdpbssd %tmm4, %tmm5, %tmm2\n tdpbssd %tmm4, %tmm5, %tmm3\n");
    __asm__ volatile("tilerelease");
}

cli_int8_probe cli_int8_probe_of(const char *isa) {
    if (strcmp(isa, "amx") == 0)
        return (cli_int8_probe){"TDPBSSD", 4 * 16 * 16 * 64, run_amx};
    if (strcmp(isa, "avx2_vnni") == 0)
        return (cli_int8_probe){"VPDPBUSD, 256 bits", 12 * 32, run_avx_vnni};
    if (strstr(isa, "vnni") && __builtin_cpu_supports("avx512vnni"))
        return (cli_int8_probe){"VPDPBUSD", 12 * 64, run_vnni};
    if (strstr(isa, "avx512") && __builtin_cpu_supports("avx512bw"))
        return (cli_int8_probe){"VPMADDUBSW, VPMADDWD, VPADDD", 6 * 64, run_avx512};
    if (strstr(isa, "avx") && __builtin_cpu_supports("avx2"))
        return (cli_int8_probe){"VPMADDUBSW, VPMADDWD, VPADDD", 6 * 32, run_avx2};
    return PLAIN;
}

#else

cli_int8_probe cli_int8_probe_of(const char *isa) {
    (void)isa;
    return PLAIN;
}

#endif
