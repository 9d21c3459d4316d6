/* A page record (docs/FORMAT.md, sections 1 and 2) of the codecs that have kernels here. */
#ifndef QUIRE_CUDA_RECORD_H
#define QUIRE_CUDA_RECORD_H

#include <cstdint>

#include "quire.h"

namespace quire_cuda {

constexpr int T = QUIRE_PAGE_TOKENS;

__host__ __device__ constexpr int align_up(int x, int to) { return (x + to - 1) / to * to; }

/* Where the sections start. K parameters: fp16 scale[DK], zero[DK]; V parameters: fp16 scale[64].
 */
struct Record {
    int k_params, v_codes, v_params, bytes;
};

__host__ __device__ constexpr Record record_of(int k_bits, int k_dim, int v_bits, int v_dim) {
    Record r = {};
    r.k_params = align_up(T * k_dim * k_bits / 8, 64);
    r.v_codes = align_up(r.k_params + 4 * k_dim, 64);
    r.v_params = align_up(r.v_codes + T * v_dim * v_bits / 8, 64);
    r.bytes = align_up(align_up(r.v_params + 2 * T, 64), 128);
    return r;
}

/* Of the codecs of K with channel scales, and of V with uniform codes; 0: another codec. */
__host__ __device__ constexpr int k_bits_of(quire_codec codec) {
    return codec == QUIRE_CODEC_KC8                               ? 8
           : codec == QUIRE_CODEC_KC4 || codec == QUIRE_CODEC_KM4 ? 4
           : codec == QUIRE_CODEC_KC3 || codec == QUIRE_CODEC_KM3 ? 3
           : codec == QUIRE_CODEC_KC2                             ? 2
                                                                  : 0;
}
__host__ __device__ constexpr int v_bits_of(quire_codec codec) {
    return codec == QUIRE_CODEC_VT8   ? 8
           : codec == QUIRE_CODEC_VT4 ? 4
           : codec == QUIRE_CODEC_VT3 ? 3
           : codec == QUIRE_CODEC_VT2 ? 2
                                      : 0;
}
__host__ __device__ constexpr bool is_mixed(quire_codec codec) {
    return codec == QUIRE_CODEC_KM4 || codec == QUIRE_CODEC_KM3;
}

/* km: in the first n_mixed blocks of 16 places, 8 codes of K have a bit more, then 8 a bit less. */
__host__ __device__ constexpr int k_code_bits(int bits, int n_mixed, int place) {
    return place / 16 >= n_mixed ? bits : place / 8 % 2 ? bits - 1 : bits + 1;
}

/* The largest value that a page can hold. */
constexpr float F16_MAX = 65504.0f;

/* Step between two values of V's uniform codes, in units of a token's scale. */
__host__ __device__ constexpr float v_step(int bits) {
    return bits == 8 ? 0.031f : bits == 4 ? 0.3350f : bits == 3 ? 0.5860f : 0.9955f;
}

} // namespace quire_cuda

#endif
