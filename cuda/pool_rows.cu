#include "pool_rows.h"

#include <algorithm>

#include "record.h"

namespace quire_cuda {

/* ------------------------------------------------------------------ words */

constexpr int MOST_WORDS = 480; /* 4 KB of arguments, which every driver takes */

struct Words {
    int32_t n;
    Word word[MOST_WORDS];
};

static __global__ void put(int32_t *words, const __grid_constant__ Words w) {
    for (int i = threadIdx.x; i < w.n; i += blockDim.x)
        words[w.word[i].at] = w.word[i].value;
}

cudaError_t put_words(int32_t *words, const Word *changed, size_t n, cudaStream_t stream) {
    for (size_t first = 0; first < n; first += MOST_WORDS) {
        Words w;
        w.n = (int32_t)std::min(n - first, (size_t)MOST_WORDS);
        std::copy(changed + first, changed + first + w.n, w.word);
        put<<<1, 128, 0, stream>>>(words, w);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

/* ------------------------------------------------------------------ rows */

/* Row `row` of slot `slot`, all heads of one side. */
struct Place {
    uint16_t *first;
    int64_t head; /* elements from head to head */
};

__device__ __forceinline__ Place place(const quire_cuda_rows &rows, bool is_v, int64_t slot,
                                       int64_t row) {
    return is_v ? Place{(uint16_t *)rows.v + slot * rows.v_slot + row * rows.v_token, rows.v_head}
                : Place{(uint16_t *)rows.k + slot * rows.k_slot + row * rows.k_token, rows.k_head};
}

__device__ __forceinline__ Place new_row(const AppendParams &p, bool is_v, int64_t row) {
    const int dim = is_v ? p.v_dim : p.k_dim;
    return {(uint16_t *)(is_v ? p.v : p.k) + row * p.n_heads * dim, dim};
}

/* By all threads of the CTA. */
__device__ __forceinline__ void copy_row(const AppendParams &p, bool is_v, Place from, Place to) {
    const int dim = is_v ? p.v_dim : p.k_dim, chunks = dim / 8;
    for (int i = threadIdx.x; i < p.n_heads * chunks; i += blockDim.x) {
        const int head = i / chunks, at = 8 * (i % chunks);
        *(uint4 *)(to.first + head * to.head + at) =
            *(const uint4 *)(from.first + head * from.head + at);
    }
}

/* CTA: an item and a side. */
static __global__ void append_one(const __grid_constant__ AppendParams p) {
    const int item = blockIdx.x, position = p.lengths[item] - 1;
    const bool is_v = blockIdx.y;
    if (position < 0)
        return; /* an empty place */
    const Place from = new_row(p, is_v, item);
    const int64_t slot = p.slots[item];
    copy_row(p, is_v, from, place(p.own, is_v, slot, position % T));
    if (position < p.sinks)
        for (int i = 0; i < 2; i++)
            copy_row(p, is_v, from, place(p.sink, is_v, slot - slot % 2 + i, position));
}

/* What a CTA of the kernels below is about: a row of a block of the scratch. */
struct ScratchRow {
    int item, block, row;
    int before, length; /* of the item's sequence: tokens before the step, and after it */
    int token;

    __device__ __forceinline__ ScratchRow(const AppendParams &p)
        : item(p.block_items[blockIdx.x / T]), block(p.blocks[item]), row(blockIdx.x - block * T) {
        length = p.lengths[item];
        before = length - (p.starts[item + 1] - p.starts[item]);
        token = before / T * T + row;
    }
};

/* Rows of the open page, then the new ones, into the scratch; beside its first rows the sinks. */
static __global__ void fill_scratch(const __grid_constant__ AppendParams p) {
    const ScratchRow r(p);
    const bool is_v = blockIdx.y;
    const int64_t slot = p.first_slots[r.item];
    const int start = p.starts[r.item];
    if (r.token < r.length)
        copy_row(p, is_v,
                 r.token < r.before ? place(p.own, is_v, slot + r.token / T % 2, r.token % T)
                                    : new_row(p, is_v, start + r.token - r.before),
                 place(p.scratch, is_v, r.block, r.row));
    if (r.row < p.sinks && r.row < r.length)
        copy_row(p, is_v,
                 r.row < r.before ? place(p.sink, is_v, slot, r.row)
                                  : new_row(p, is_v, start + r.row - r.before),
                 place(p.scratch_sink, is_v, r.block, r.row));
}

/* The rows of the last two pages, and the sinks, from the scratch into the sequence's slots. */
static __global__ void keep_rows(const __grid_constant__ AppendParams p) {
    const ScratchRow r(p);
    const bool is_v = blockIdx.y;
    const int64_t slot = p.first_slots[r.item];
    if (r.token >= r.before && r.token < r.length && r.token / T + 1 >= (r.length - 1) / T)
        copy_row(p, is_v, place(p.scratch, is_v, r.block, r.row),
                 place(p.own, is_v, slot + r.token / T % 2, r.token % T));
    if (r.row < p.sinks && r.row >= r.before && r.row < r.length)
        for (int i = 0; i < 2; i++)
            copy_row(p, is_v, place(p.scratch_sink, is_v, r.block, r.row),
                     place(p.sink, is_v, slot + i, r.row));
}

cudaError_t append_row(const AppendParams &params, cudaStream_t stream) {
    append_one<<<dim3((unsigned)params.n_items, 2), 128, 0, stream>>>(params);
    return cudaGetLastError();
}

cudaError_t append_rows(const AppendParams &params, cudaStream_t stream) {
    const dim3 grid((unsigned)(params.n_blocks * T), 2);
    fill_scratch<<<grid, 128, 0, stream>>>(params);
    keep_rows<<<grid, 128, 0, stream>>>(params);
    return cudaGetLastError();
}

} // namespace quire_cuda
