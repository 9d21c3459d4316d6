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
    static constexpr int length = D >= 512 ? 512 : D >= 256 ? 256 : D >= 128 ? 128 : D >= 64 ? 64 : 32;
    static constexpr int count = length == D ? 1 : 4;
    static constexpr int tiles = length / 16;
    __host__ __device__ static constexpr int first_tile(int pass) { return pass % 2 ? (D - length) / 16 : 0; }
};

} // namespace quire_cuda

#endif
