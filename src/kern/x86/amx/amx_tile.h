/* AMX tiles, all of 16 rows of 64 bytes, and the instructions that the kernel needs. Registers are
 * named by numbers that the preprocessor sees.
 *
 *   TILE_SS(c, a, b)   c[i][j] += sum over k of a[i][k] * b[k / 4][j][k % 4], int8 by int8
 *   TILE_SU(c, a, b)   the same, int8 by uint8
 *
 * gcc 12's intrinsics name 8 bytes of the configuration as read, and no memory at all in loads and
 * stores, so that stores before them get lost; hence our own assembly. */
#ifndef QUIRE_KERN_X86_AMX_TILE_H
#define QUIRE_KERN_X86_AMX_TILE_H

#include "kern/x86/intrinsics.h"

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES };
typedef char tile_bytes[TILE_BYTES];

#ifndef QUIRE_EMULATED

#define TILE_LOAD(t, at)                                                                           \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(at), "r"((long)TILE_ROW_BYTES),         \
                     "m"(*(const tile_bytes *)(const void *)(at)))
#define TILE_STORE(t, at)                                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%1,%2,1)"                                           \
                     : "=m"(*(tile_bytes *)(void *)(at))                                           \
                     : "r"(at), "r"((long)TILE_ROW_BYTES))
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_SU(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tiles are a thread's own, and the thread is the caller's: ggml configures them once per thread
 * and takes for granted that they stay so. Returns the configuration that was, for tiles_off. */
static tile_config tiles_on(void) {
    tile_config config = {.palette = 1}, before;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_ROW_BYTES;
        config.rows[i] = TILE_ROWS;
    }
    __asm__ volatile("sttilecfg %0" : "=m"(before));
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
    return before;
}
/* If there was none, tiles are released: a thread that holds some carries 8 KB through every
 * context switch, and its core cannot sleep deeply. */
static void tiles_off(const tile_config *before) {
    if (before->palette)
        __asm__ volatile("ldtilecfg %0" ::"m"(*before));
    else
        __asm__ volatile("tilerelease" ::);
}

#else /* plain loops, for tests on any machine */

static _Thread_local union {
    int8_t s8[TILE_ROWS][16][4];
    uint8_t u8[TILE_ROWS][16][4];
    int32_t s32[TILE_ROWS][16];
} emulated_tile[8];
static _Thread_local int emulated_tiles_on; /* 0: an instruction would fault */

static void emulated_tile_multiply(int c, int a, int b, int b_unsigned) {
    if (!emulated_tiles_on)
        __builtin_trap();
    for (int i = 0; i < TILE_ROWS; i++)
        for (int j = 0; j < 16; j++) {
            int32_t sum = emulated_tile[c].s32[i][j];
            for (int k = 0; k < 64; k++)
                sum += emulated_tile[a].s8[i][k / 4][k % 4] *
                       (b_unsigned ? (int32_t)emulated_tile[b].u8[k / 4][j][k % 4]
                                   : (int32_t)emulated_tile[b].s8[k / 4][j][k % 4]);
            emulated_tile[c].s32[i][j] = sum;
        }
}
#define TILE_LOAD(t, at) memcpy(&emulated_tile[t], at, TILE_BYTES)
#define TILE_STORE(t, at) memcpy(at, &emulated_tile[t], TILE_BYTES)
#define TILE_ZERO(t) memset(&emulated_tile[t], 0, TILE_BYTES)
#define TILE_SS(c, a, b) emulated_tile_multiply(c, a, b, 0)
#define TILE_SU(c, a, b) emulated_tile_multiply(c, a, b, 1)
typedef int tile_config;
static tile_config tiles_on(void) {
    const tile_config before = emulated_tiles_on;
    emulated_tiles_on = 1;
    return before;
}
static void tiles_off(const tile_config *before) { emulated_tiles_on = *before; }

#endif
#endif
