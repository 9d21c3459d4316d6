/* Codes of a page as fp16 values, in the registers where a tensor-core product wants them
 * (docs/FORMAT.md: lane 4r+c of a warp finds its 16 bytes at base + 16 * lane). One fragment a[4]
 * is a step of 16 places: rows r (a[0], a[2]) and r+8 (a[1], a[3]), places 2c, 2c+1 (a[0], a[1])
 * and 2c+8, 2c+9. */
#ifndef QUIRE_CUDA_UNPACK_CUH
#define QUIRE_CUDA_UNPACK_CUH

#include "ptx.cuh"

namespace quire_cuda {

/* A code next to the exponent of 1024 is an fp16 number, 1024 + code * unit; a fused multiply-add
 * makes it code - middle, exactly, and another one scale * (code - middle) + zero, rounded once.
 * The bytes are shifted by one bit so that halves of a code can be told from a whole one. */
struct Field {
    uint32_t mask;
    half2 unit, offset;
};
__device__ __forceinline__ Field low_field(bool mixed) { /* four bits; of km4's mixed blocks five */
    return {mixed ? 0x003e003eu : 0x001e001eu, __float2half2_rn(0.5f),
            __float2half2_rn(mixed ? -527.5f : -519.5f)};
}
__device__ __forceinline__ Field high_field(bool mixed) { /* four bits; three */
    return {mixed ? 0x01c001c0u : 0x01e001e0u, __float2half2_rn(mixed ? 0.015625f : 0.03125f),
            __float2half2_rn(mixed ? -19.5f : -39.5f)};
}
__device__ __forceinline__ uint32_t value_of(uint32_t shifted, const Field &field, uint32_t scale,
                                             uint32_t zero) {
    /* (shifted & mask) | 0x64006400, which the compiler does not make one instruction of */
    uint32_t x;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(x)
        : "r"(shifted), "r"(field.mask), "r"(0x64006400u));
    const half2 code = __hfma2(halves(x), field.unit, field.offset);
    return bits(__hfma2(code, halves(scale), halves(zero)));
}

/* K of four bits: 16 bytes are tokens 2r and 2r+1, 16 places each. params: fp16 scales of these
 * places; zeros: zeros. */
__device__ __forceinline__ void unpack_k4(uint4 w, const uint8_t *scales, const uint8_t *zeros,
                                          bool mixed, uint32_t (&a)[4][4]) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        uint32_t scale[4], zero[4];
        *(uint4 *)scale = *(const uint4 *)(scales + upper * 16);
        *(uint4 *)zero = *(const uint4 *)(zeros + upper * 16);
        const Field field = upper ? high_field(mixed) : low_field(mixed);
#pragma unroll
        for (int y = 0; y < 2; y++) {
            const uint32_t first = y ? w.y : w.x, second = y ? w.w : w.z;
            uint32_t(&to)[4] = a[2 * upper + y];
            to[0] = value_of(first << 1, field, scale[2 * y], zero[2 * y]);
            to[1] = value_of(second << 1, field, scale[2 * y], zero[2 * y]);
            to[2] = value_of(first >> 7, field, scale[2 * y + 1], zero[2 * y + 1]);
            to[3] = value_of(second >> 7, field, scale[2 * y + 1], zero[2 * y + 1]);
        }
    }
}

/* K of eight bits: 8 places each; two steps. */
__device__ __forceinline__ void unpack_k8(uint4 w, const uint8_t *scales, const uint8_t *zeros,
                                          uint32_t (&a)[4], uint32_t (&b)[4]) {
    const half2 middle = __float2half2_rn(-1152.0f);
    uint32_t scale[4], zero[4];
    *(uint4 *)scale = *(const uint4 *)scales;
    *(uint4 *)zero = *(const uint4 *)zeros;
    const auto value = [&](uint32_t x, uint32_t select, int i) {
        const half2 code =
            __hadd2(halves(__byte_perm(x ^ 0x80808080u, 0x64646464u, select)), middle);
        return bits(__hfma2(code, halves(scale[i]), halves(zero[i])));
    };
    a[0] = value(w.x, 0x4140, 0);
    a[1] = value(w.z, 0x4140, 0);
    a[2] = value(w.x, 0x4342, 1);
    a[3] = value(w.z, 0x4342, 1);
    b[0] = value(w.y, 0x4140, 2);
    b[1] = value(w.w, 0x4140, 2);
    b[2] = value(w.y, 0x4342, 3);
    b[3] = value(w.w, 0x4342, 3);
}

/* V's codes less their middle, times 2^-9: a code under a mask is the subnormal u * 2^-24. Exact.
 */
__device__ __forceinline__ uint32_t v_code(uint32_t x, uint32_t mask, float up, float middle) {
    return bits(
        __hfma2(halves(x & mask), __float2half2_rn(up), __float2half2_rn(middle / -512.0f)));
}

/* V of four bits: channels 2r and 2r+1 of all 64 tokens; four steps. */
__device__ __forceinline__ void unpack_v4(uint4 w, uint32_t (&a)[4][4]) {
#pragma unroll
    for (int y = 0; y < 2; y++) {
        const uint32_t first = y ? w.y : w.x, second = y ? w.w : w.z;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const uint32_t mask = upper ? 0x00f000f0u : 0x000f000fu;
            const float up = upper ? 2048.0f : 32768.0f;
            uint32_t(&to)[4] = a[2 * upper + y];
            to[0] = v_code(first, mask, up, 7.5f);
            to[1] = v_code(second, mask, up, 7.5f);
            to[2] = v_code(first >> 8, mask, up, 7.5f);
            to[3] = v_code(second >> 8, mask, up, 7.5f);
        }
    }
}

/* V of eight bits: 32 tokens; two steps. */
__device__ __forceinline__ void unpack_v8(uint4 w, uint32_t (&a)[4], uint32_t (&b)[4]) {
    constexpr uint32_t FLIP = 0x80808080u, BYTE = 0x00ff00ffu;
#pragma unroll
    for (int y = 0; y < 2; y++) {
        const uint32_t first = (y ? w.y : w.x) ^ FLIP, second = (y ? w.w : w.z) ^ FLIP;
        uint32_t(&to)[4] = y ? b : a;
        to[0] = v_code(first, BYTE, 32768.0f, 128.0f);
        to[1] = v_code(second, BYTE, 32768.0f, 128.0f);
        to[2] = v_code(first >> 8, BYTE, 32768.0f, 128.0f);
        to[3] = v_code(second >> 8, BYTE, 32768.0f, 128.0f);
    }
}

} // namespace quire_cuda

#endif
