/* Queries of a decode step, as products want them. */
#ifndef QUIRE_CUDA_DECODE_QUERY_CUH
#define QUIRE_CUDA_DECODE_QUERY_CUH

#include "decode_shape.cuh"
#include "values.cuh"

namespace quire_cuda {

/* Beyond it scores could overflow: such a query counts as not finite. */
constexpr float LARGEST_QUERY = 1e20f;

/* q enters products divided by a power of two, so that its largest element lies in ROOM .. 2 ROOM:
 * as large as products with the largest scales of K allow in fp16. Exact for all but elements below
 * 2^-14. A query that is not finite becomes NaN. In shared memory: fp16 rows (heads, D) in natural
 * order, the same in the order of packed rows where that is another, and what scores are multiplied
 * with (heads). A warp prepares a head, from loads that it started an item earlier. */
template <class S> struct QueryLoader {
    static constexpr int D = S::D, WORDS = (D / 2 + 31) / 32,
                         HEADS = (MAX_HEADS + S::WARPS - 1) / S::WARPS;
    uint32_t x[HEADS][WORDS],
        order[S::ORDERED ? WORDS : 1]; /* two elements each: word 32 i + lane of a row */
    int n;                             /* heads of the item */

    __device__ void load(const DecodeParams &p, const Item<S::MORE> &it) {
        const ItemHeads heads = heads_of(p, it);
        const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
        n = heads.count;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int at = 32 * i + lane;
            const bool here = D % 64 == 0 || at < D / 2;
#pragma unroll
            for (int j = 0; j < HEADS; j++) {
                const int h = w + j * S::WARPS;
                x[j][i] =
                    here && h < n ? __ldg((const uint32_t *)(p.q + (heads.row + h) * D) + at) : 0u;
            }
            if (S::ORDERED)
                order[i] =
                    here && w < n ? __ldg((const uint32_t *)(p.order + heads.kv * D) + at) : 0u;
        }
    }

    __device__ void store(const DecodeParams &p, uint8_t *shared) const {
        const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < HEADS; j++) {
            const int h = w + j * S::WARPS;
            if (h >= n)
                continue;
            uint32_t *natural = (uint32_t *)(shared + S::Q_AT) + h * (D / 2);
            float largest = 0;
            bool bad = false;
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                const float a = fabsf(raw_value(p.bf16, x[j][i] & 0xffff)),
                            b = fabsf(raw_value(p.bf16, x[j][i] >> 16));
                largest = fmaxf(largest, fmaxf(a, b));
                bad |= !(a * p.scale_log2 <= LARGEST_QUERY) || !(b * p.scale_log2 <= LARGEST_QUERY);
            }
            bad = __any_sync(~0u, bad);
            const unsigned all = __reduce_max_sync(
                ~0u, __float_as_uint(largest)); /* not negative: ordered as integers */
            const float power = fmaxf(__uint_as_float(all & 0x7f800000u), 0x1p-100f) / S::Q_ROOM;
            const float down = bad ? __uint_as_float(0x7fc00000u) : 1.0f / power;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                if (D % 64 == 0 || 32 * i + lane < D / 2)
                    natural[32 * i + lane] =
                        bits(__floats2half2_rn(raw_value(p.bf16, x[j][i] & 0xffff) * down,
                                               raw_value(p.bf16, x[j][i] >> 16) * down));
            if (lane == 0)
                ((float *)(shared + S::up_at(p.item_heads)))[h] = power * p.scale_log2;
            if (S::ORDERED) { /* place p of a packed row holds channel order[p] */
                __syncwarp();
                const uint16_t *row = (const uint16_t *)natural;
                uint32_t *placed = (uint32_t *)(shared + S::placed_at(p.item_heads)) + h * (D / 2);
#pragma unroll
                for (int i = 0; i < WORDS; i++)
                    if (D % 64 == 0 || 32 * i + lane < D / 2)
                        placed[32 * i + lane] =
                            row[order[i] & 0xffff] | (uint32_t)row[order[i] >> 16] << 16;
            }
        }
    }
};

/* B fragments of head r for columns of COLUMN channels: those of column 4i+c, two registers for
 * each product. */
template <int D, int COLUMN, int N>
__device__ void load_query(uint32_t (&to)[N], const uint16_t *q, int heads) {
    constexpr int COLUMNS = D / COLUMN, EACH = COLUMN / 2;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < N / EACH; i++) {
        const bool here = r < heads && (4 * i + 3 < COLUMNS || 4 * i + c < COLUMNS);
#pragma unroll
        for (int part = 0; part < EACH / 4; part++) { /* 8 places */
            uint4 x = make_uint4(0, 0, 0, 0);
            if (here)
                x = *(const uint4 *)(q + r * D + COLUMN * (4 * i + c) + 8 * part);
            *(uint4 *)&to[i * EACH + 4 * part] = x;
        }
    }
}

} // namespace quire_cuda

#endif
