/* The rotation of docs/FORMAT.md, section 5: its passes and signs as compile-time constants. */
#ifndef QUIRE_CUDA_ROTATION_CUH
#define QUIRE_CUDA_ROTATION_CUH

#include <cstdint>

namespace quire_cuda {

/* Word w of sign stream s: splitmix64. */
__host__ __device__ constexpr uint64_t sign_word(int stream, int w) {
    uint64_t z = (uint64_t)(stream * 16 + w + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Signs of channels 16 * tile .. 16 * tile + 15. */
__host__ __device__ constexpr uint32_t sign_bits(int stream, int tile) {
    return (uint32_t)(sign_word(stream, tile / 4) >> (16 * (tile % 4)) & 0xffff);
}

/* Passes over `length` neighbouring channels; those of odd number end at the last channel. */
template <int D> struct Passes {
    static constexpr int length = D >= 512   ? 512
                                  : D >= 256 ? 256
                                  : D >= 128 ? 128
                                  : D >= 64  ? 64
                                             : 32;
    static constexpr int count = length == D ? 1 : 4;
    static constexpr int tiles = length / 16;
    __host__ __device__ static constexpr int first_tile(int pass) {
        return pass % 2 ? (D - length) / 16 : 0;
    }
};

/* E vectors of D channels that eight lanes hold together: lane 4r+c has channels 16k+2r (o[k][e])
 * and 16k+2r+1 (o[k][e + E]) of its vectors e. That is how tensor-core products leave them. */
template <int D, int E> struct Rotation {
    using P = Passes<D>;

    __device__ __forceinline__ static void butterflies(float (&o)[D / 16][2 * E], int k0) {
        const int lane = threadIdx.x % 32;
        const float sign[3] = {lane & 4 ? -1.0f : 1.0f, lane & 8 ? -1.0f : 1.0f,
                               lane & 16 ? -1.0f : 1.0f};
#pragma unroll
        for (int k = k0; k < k0 + P::tiles; k++) {
#pragma unroll
            for (int e = 0; e < E; e++) {
                const float a = o[k][e], b = o[k][e + E];
                o[k][e] = a + b;
                o[k][e + E] = a - b;
            }
#pragma unroll
            for (int h = 0; h < 3; h++) /* lanes: bits of r */
#pragma unroll
                for (int j = 0; j < 2 * E; j++)
                    o[k][j] = fmaf(o[k][j], sign[h], __shfl_xor_sync(~0u, o[k][j], 4 << h));
        }
#pragma unroll
        for (int h = 1; h < P::tiles; h *= 2)
#pragma unroll
            for (int k = 0; k < P::tiles; k++)
                if (!(k & h))
#pragma unroll
                    for (int j = 0; j < 2 * E; j++) {
                        const float a = o[k0 + k][j], b = o[k0 + k + h][j];
                        o[k0 + k][j] = a + b;
                        o[k0 + k + h][j] = a - b;
                    }
    }

    /* The factor and the signs of a pass. */
    __device__ __forceinline__ static void scale(float (&o)[D / 16][2 * E], int pass) {
        const int r = threadIdx.x % 32 / 4, k0 = P::first_tile(pass);
        const uint32_t norm = __float_as_uint(rsqrtf((float)P::length));
#pragma unroll
        for (int k = k0; k < k0 + P::tiles; k++) {
            const uint32_t signs = sign_bits(pass, k) >> (2 * r);
#pragma unroll
            for (int j = 0; j < 2 * E; j++)
                o[k][j] *= __uint_as_float(norm ^ (signs << (31 - j / E) & 0x80000000u));
        }
    }

    __device__ __forceinline__ static void rotate(float (&o)[D / 16][2 * E]) {
#pragma unroll
        for (int pass = 0; pass < P::count; pass++) {
            scale(o, pass);
            butterflies(o, P::first_tile(pass));
        }
    }

    __device__ __forceinline__ static void unrotate(float (&o)[D / 16][2 * E]) {
#pragma unroll
        for (int pass = P::count - 1; pass >= 0; pass--) {
            butterflies(o, P::first_tile(pass));
            scale(o, pass);
        }
    }
};

} // namespace quire_cuda

#endif
