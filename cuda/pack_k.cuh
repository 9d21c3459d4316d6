/* Codes of K: their order in a record (docs/FORMAT.md, sections 3 and 4). */
#ifndef QUIRE_CUDA_PACK_K_CUH
#define QUIRE_CUDA_PACK_K_CUH

#include <cstdint>

#include <cuda_fp16.h>

#include "quire.h"

namespace quire_cuda {

constexpr float MAGIC =
    12582912.0f; /* adding it leaves the nearest integer, ties to even, in the low mantissa bits */

__device__ __forceinline__ float from_f16(uint16_t x) { return __half2float(__ushort_as_half(x)); }

/* Elements of rows: f16, bf16 or f32. */
template <quire_type R> struct Rows {
    using Element = uint16_t;
    __device__ __forceinline__ static float load(uint16_t x) {
        return R == QUIRE_BF16 ? __uint_as_float((uint32_t)x << 16) : from_f16(x);
    }
};
template <> struct Rows<QUIRE_F32> {
    using Element = float;
    __device__ __forceinline__ static float load(float x) { return x; }
};
constexpr int element_bytes(quire_type type) { return type == QUIRE_F32 ? 4 : 2; }

__device__ __forceinline__ uint32_t word(const uint8_t *codes) { return *(const uint32_t *)codes; }

/* Dims 0 2 1 3 in four bytes. */
__device__ __forceinline__ uint32_t swap_dims(uint32_t x) { return __byte_perm(x, 0, 0x3120); }

/* Four bytes of K's code section: byte 8*row + 4*y .. of an atom. codes: (64, stride), one byte
 * each. */
struct KWord {
    const uint8_t *codes;
    int stride, n_mixed;
    __device__ uint32_t at(int t, int d) const { return word(codes + t * stride + d); }

    __device__ uint32_t eight(int tile, int r, int octet, int row, int y) const {
        return at(16 * tile + 2 * r + row, 8 * octet + 4 * y);
    }
    __device__ uint32_t four(int tile, int r, int block, int row, int y) const {
        const int t = 16 * tile + 2 * r + row, shift = block < n_mixed ? 5 : 4;
        return swap_dims(at(t, 16 * block + 4 * y) | at(t, 16 * block + 8 + 4 * y) << shift);
    }
    __device__ uint32_t two(int r, int octet, int row, int y) const {
        uint32_t x = 0;
        for (int tile = 0; tile < 4; tile++)
            x |= eight(tile, r, octet, row, y) << 2 * tile;
        return swap_dims(x);
    }
    /* Slab s holds tile s, and of tile 3 what the other slabs have no room for. */
    __device__ uint32_t three(int slab, int r, int block, int row, int y) const {
        const int t = 2 * r + row, low = 16 * block + 4 * y, high = low + 8;
        const bool mixed = block < n_mixed;
        const uint32_t own = at(16 * slab + t, low) | at(16 * slab + t, high) << (mixed ? 4 : 3);
        const uint32_t low3 = at(48 + t, low), high3 = at(48 + t, high);
        uint32_t rest; /* two bits of each byte */
        if (slab == 0)
            rest = low3 & 0x03030303u;
        else if (slab == 1)
            rest = high3 & 0x03030303u;
        else
            rest = mixed ? low3 >> 2 & 0x03030303u
                         : (low3 >> 2 & 0x01010101u) | (high3 >> 1 & 0x02020202u);
        return swap_dims(own | rest << 6);
    }
};

/* Over all threads of the CTA. */
template <int BITS>
__device__ void pack_k(const uint8_t *codes, int stride, int dim, int n_mixed, uint8_t *section) {
    constexpr int SLABS = BITS == 3 ? 3 : 1,
                  TILES = BITS == 8 || BITS == 4 ? 4 : 1; /* sections by tile, or shared bytes */
    const KWord w = {codes, stride, n_mixed};
    const int columns = BITS == 8 || BITS == 2 ? dim / 8 : dim / 16;
    const int n_words = 2 * dim * BITS / TILES; /* 64 * dim * bits / 8 bytes in all */
    for (int tile = 0; tile < TILES; tile++)
        for (int i = (int)threadIdx.x; i < n_words; i += (int)blockDim.x) {
            const int row = i / 2 % 2, y = i % 2, atom = i / 4;
            const int group = atom / (32 * SLABS),
                      left = atom % (32 * SLABS); /* four columns, or those that are left */
            const int n = columns - 4 * group;
            const int slab = n >= 4 ? left / 32 : left / (8 * n),
                      r = n >= 4 ? left / 4 % 8 : left / n % 8;
            const int column = 4 * group + (n >= 4 ? left % 4 : left % n);
            uint32_t x;
            if constexpr (BITS == 8)
                x = w.eight(tile, r, column, row, y);
            else if constexpr (BITS == 4)
                x = w.four(tile, r, column, row, y);
            else if constexpr (BITS == 3)
                x = w.three(slab, r, column, row, y);
            else
                x = w.two(r, column, row, y);
            *(uint32_t *)(section + 4 * (tile * n_words + i)) = x;
        }
}

__device__ __forceinline__ void pack_k(int bits, const uint8_t *codes, int stride, int dim,
                                       int n_mixed, uint8_t *section) {
    switch (bits) {
    case 8:
        return pack_k<8>(codes, stride, dim, n_mixed, section);
    case 4:
        return pack_k<4>(codes, stride, dim, n_mixed, section);
    case 3:
        return pack_k<3>(codes, stride, dim, n_mixed, section);
    default:
        return pack_k<2>(codes, stride, dim, n_mixed, section);
    }
}

} // namespace quire_cuda

#endif
