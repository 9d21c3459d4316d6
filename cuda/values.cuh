/* Elements of rows: f16 and bf16 in, f32, f16 or bf16 out. */
#ifndef QUIRE_CUDA_VALUES_CUH
#define QUIRE_CUDA_VALUES_CUH

#include "ptx.cuh"
#include "quire.h"

namespace quire_cuda {

__device__ __forceinline__ float raw_value(bool bf16, uint32_t x /* low half */) {
    return bf16 ? __uint_as_float(x << 16) : __half2float(__ushort_as_half((uint16_t)x));
}

/* Two elements of a raw row. */
__device__ __forceinline__ float2 raw_pair(bool bf16, uint32_t x) {
    if (bf16)
        return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
    return __half22float2(halves(x));
}

/* Two elements of a raw row as fp16. bf16 values within fp16's normal range are exact. */
__device__ __forceinline__ uint32_t raw_halves(bool bf16, uint32_t x) {
    if (!bf16)
        return x;
    return bits(__floats2half2_rn(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)));
}

/* Not from cuda_bf16.h: that header takes longer to compile than all others. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

__device__ __forceinline__ void store_pair(void *out, quire_type type, size_t at, float a,
                                           float b) {
    if (type == QUIRE_F32)
        *(float2 *)((float *)out + at) = make_float2(a, b);
    else if (type == QUIRE_F16)
        *(half2 *)((half *)out + at) = __floats2half2_rn(a, b);
    else
        *(uint32_t *)((uint16_t *)out + at) = bf16_pair(a, b);
}

} // namespace quire_cuda

#endif
