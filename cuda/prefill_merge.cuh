/* The end of prefill attention: results from sums, also of tiles that several workers share. */
#ifndef QUIRE_CUDA_PREFILL_MERGE_CUH
#define QUIRE_CUDA_PREFILL_MERGE_CUH

#include "prefill_schedule.cuh"
#include "rotation.cuh"
#include "values.cuh"

namespace quire_cuda {

/* A warp's four queries: lane 4r+c has channels 16k+2r, 16k+2r+1 of query c, in rotated space. */
template <int D>
__device__ __forceinline__ void finish_query(const PrefillParams &p, bool here, size_t row,
                                             int head, float (&o)[D / 16][2], float m, float l,
                                             float unit) {
    Rotation<D, 1>::unrotate(o);
    if (!here)
        return;
    if (p.sink_logits) {
        const float sink = __ldg(p.sink_logits + head) * LOG2_E, higher = fmaxf(m, sink);
        const float by = exp2_approx(m - higher);
        l = l * by + exp2_approx(sink - higher);
        unit *= by;
        m = higher;
    }
    const float by = l == 0 ? 0.0f : unit / l;
    const int r = threadIdx.x % 32 / 4;
    const size_t at = (row * p.n_heads + head) * D + 2 * r;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        store_pair(p.out, p.out_type, at + 16 * k, o[k][0] * by, o[k][1] * by);
    if (r == 0 && p.lse)
        p.lse[row * p.n_heads + head] =
            l == 0 ? -INFINITY : (m + log2f(l)) * 0.69314718055994530942f;
}

/* Block x: the tile that the border between workers x and x + 1 cuts, if that is the first border
 * in it. */
template <int D> __global__ void prefill_merge(const __grid_constant__ PrefillParams p) {
    const WorkList list(p);
    const int worker = blockIdx.x;
    if (worker + 1 >= list.workers)
        return;
    const long long border = list.first(worker + 1);
    const Tile tile = find_tile(p, border);
    const long long stop = tile.start + tile.pages + 1;
    if (border == tile.start || border >= stop || list.first(worker) > tile.start)
        return;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int x = 4 * (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) + c;
    const int query = tile.index * p.tile_queries + x;
    const bool here = x < p.tile_queries && query < tile.rows * p.group;
    float m = NOTHING, l = 0, o[D / 16][2] = {};
    for (int part = worker; part == worker || (part < list.workers && list.first(part) < stop);
         part++) {
        if (!here)
            continue;
        const size_t at = (size_t)(2 * part + (part == worker ? 1 : 0)) * p.tile_queries + x;
        const float2 ml = p.part_ml[at];
        const float higher = fmaxf(m, ml.x), old = exp2_approx(m - higher),
                    by = exp2_approx(ml.x - higher);
        l = l * old + ml.y * by;
        m = higher;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const float2 v = *(const float2 *)(p.part_o + at * D + 16 * k + 2 * r);
            o[k][0] = o[k][0] * old + v.x * by;
            o[k][1] = o[k][1] * old + v.y * by;
        }
    }
    const int row = here ? row_of(p, query) : 0, head = here ? query - row * p.group : 0;
    finish_query<D>(p, here, (size_t)p.starts[tile.seq] + row, tile.kv * p.group + head, o, m, l,
                    1.0f);
}

} // namespace quire_cuda

#endif
