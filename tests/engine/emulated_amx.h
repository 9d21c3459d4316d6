/* emulated_amx.h: ggml's AMX products on an x86-64 machine with AVX-512 but without AMX or VNNI.
 * Included before every source of ggml (-include). Claims the two features and computes their
 * instructions in plain C, so that the code behind them can be compared with itself for
 * different numbers of rows. Slow; results are exact, since all of these are integer sums. */
#if defined(__AVX512F__) && !defined(__AMX_INT8__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_BYTES = 64 };

struct emulated_amx {
    uint8_t rows[EMULATED_TILES];
    uint16_t bytes[EMULATED_TILES];
    int32_t tile[EMULATED_TILES][EMULATED_ROWS][EMULATED_BYTES / 4];
};

/* One for each thread and each object file, which is how ggml uses them: configured where they
 * are used. */
static __thread struct emulated_amx emulated_state;

static inline void emulated_configure(const void *config) {
    const uint8_t *bytes =
        (const uint8_t *)config; /* bytes a row from byte 16, rows from byte 48 */
    memcpy(emulated_state.bytes, bytes + 16, sizeof emulated_state.bytes);
    memcpy(emulated_state.rows, bytes + 48, sizeof emulated_state.rows);
}

static inline void emulated_load(int t, const void *base, long stride) {
    memset(emulated_state.tile[t], 0, sizeof emulated_state.tile[t]);
    for (int r = 0; r < emulated_state.rows[t]; r++)
        memcpy(emulated_state.tile[t][r], (const char *)base + r * stride, emulated_state.bytes[t]);
}

static inline void emulated_store(int t, void *base, long stride) {
    for (int r = 0; r < emulated_state.rows[t]; r++)
        memcpy((char *)base + r * stride, emulated_state.tile[t][r], emulated_state.bytes[t]);
}

static inline void emulated_dpbssd(int c, int a, int b) {
    for (int m = 0; m < emulated_state.rows[c]; m++)
        for (int k = 0; k < emulated_state.bytes[a] / 4; k++)
            for (int n = 0; n < emulated_state.bytes[c] / 4; n++) {
                int8_t x[4], y[4];
                memcpy(x, &emulated_state.tile[a][m][k], 4);
                memcpy(y, &emulated_state.tile[b][k][n], 4);
                emulated_state.tile[c][m][n] +=
                    x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
            }
}

#define _tile_loadconfig(config) emulated_configure(config)
#define _tile_zero(t) ((void)memset(emulated_state.tile[t], 0, sizeof emulated_state.tile[t]))
#define _tile_loadd(t, base, stride) emulated_load(t, base, stride)
#define _tile_stored(t, base, stride) emulated_store(t, base, stride)
#define _tile_dpbssd(c, a, b) emulated_dpbssd(c, a, b)

/* VNNI: sums of four products, u8 by s8, without saturation. */
static inline __m512i emulated_dpbusd(__m512i sum, __m512i u, __m512i s) {
    uint8_t x[64];
    int8_t y[64];
    int32_t z[16];
    memcpy(x, &u, 64);
    memcpy(y, &s, 64);
    memcpy(z, &sum, 64);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++)
            z[i] += x[4 * i + j] * y[4 * i + j];
    memcpy(&sum, z, 64);
    return sum;
}
static inline __m512i emulated_dpwssds(__m512i sum, __m512i a, __m512i b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); /* ggml's sums are far from saturating */
}
static inline __m256i emulated_dpbusd256(__m256i sum, __m256i u, __m256i s) {
    return _mm512_castsi512_si256(emulated_dpbusd(
        _mm512_castsi256_si512(sum), _mm512_castsi256_si512(u), _mm512_castsi256_si512(s)));
}
#define _mm512_dpbusd_epi32 emulated_dpbusd
#define _mm512_dpwssds_epi32 emulated_dpwssds
#define _mm256_dpbusd_epi32 emulated_dpbusd256

#define __AVX512VNNI__ 1
#define __AMX_TILE__ 1
#define __AMX_INT8__ 1

#ifdef __cplusplus /* amx.cpp alone: the kernel need not permit what is not used */
#include <sys/syscall.h>
#include <unistd.h>
#define syscall(number, ...) ((number) == SYS_arch_prctl ? 0L : (syscall)(number, __VA_ARGS__))
#endif
#endif
