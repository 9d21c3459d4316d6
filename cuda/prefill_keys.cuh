/* K of packed pages as operands of prefill's products: in registers, or in shared memory. */
#ifndef QUIRE_CUDA_PREFILL_KEYS_CUH
#define QUIRE_CUDA_PREFILL_KEYS_CUH

#include "prefill_shape.cuh"
#include "unpack.cuh"
#include "wgmma.cuh"

namespace quire_cuda {

/* Slab b of K's codes, tokens 16 * tile .. of a page. */
template <class S, int b>
__device__ __forceinline__ void unpack_slab(const uint8_t *page, int tile, int lane,
                                            uint32_t (&k)[4][4]) {
    const int r = lane / 4, c = lane % 4;
    const uint8_t *codes = page + tile * (2 * S::D * S::K_BITS),
                  *params = page + S::RECORD.k_params;
    if constexpr (S::K_BITS == 4) {
        constexpr int columns = S::COLUMNS - 4 * b < 4 ? S::COLUMNS - 4 * b : 4;
        const bool here = columns == 4 || c < columns;
        const int column = here ? c : 0;
        const bool mixed = 4 * b + 3 < S::MIXED || (4 * b < S::MIXED && 4 * b + column < S::MIXED);
        const uint8_t *at = params + 2 * 16 * (4 * b + column);
        unpack_k4(*(const uint4 *)(codes + (32 * b + r * columns + column) * 16), at, at + 2 * S::D,
                  mixed, k);
        if (columns < 4 && !here)
#pragma unroll
            for (int e = 0; e < 16; e++)
                k[e / 4][e % 4] = 0;
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 2 * b + half, columns = S::COLUMNS - 4 * i < 4 ? S::COLUMNS - 4 * i : 4;
            if (i >= S::GROUPS)
                continue;
            const bool here = columns == 4 || c < columns;
            const int column = here ? c : 0;
            const uint8_t *at = params + 2 * 8 * (4 * i + column);
            unpack_k8(*(const uint4 *)(codes + (32 * i + r * columns + column) * 16), at,
                      at + 2 * S::D, k[2 * half], k[2 * half + 1]);
            if (columns < 4 && !here)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    k[2 * half + e / 4][e % 4] = 0;
        }
    }
}

/* Slabs b .. of a quarter of a page, as an operand in shared memory. */
template <class S, int b = 0>
__device__ __forceinline__ void unpack_quarter(const uint8_t *page, int tile, int lane,
                                               uint32_t image) {
    if constexpr (b < S::SLABS) {
        uint32_t k[4][4];
        unpack_slab<S, b>(page, tile, lane, k);
        const int row = 16 * tile + lane % 16;
#pragma unroll
        for (int t = 0; t < 4; t++)
            if (4 * b + t < S::STEPS)
                store_blocks(image + b * T * 128 + row * 128 +
                                 (((2 * t + lane / 16) ^ (row & 7)) << 4),
                             k[t]);
        unpack_quarter<S, b + 1>(page, tile, lane, image);
    }
}

} // namespace quire_cuda

#endif
