/* Kernels that move rows and words of a pool. */
#ifndef QUIRE_CUDA_POOL_ROWS_H
#define QUIRE_CUDA_POOL_ROWS_H

#include <cstdint>

#include <cuda_runtime.h>

#include "quire_cuda.h"

namespace quire_cuda {

struct Word {
    int32_t at, value;
};

/* words[at] = value, for n of them. */
cudaError_t put_words(int32_t *words, const Word *changed, size_t n, cudaStream_t stream);

/* One layer's raw rows in a pool, and where the step's rows go. */
struct AppendParams {
    const uint8_t *k, *v;                    /* (rows, G, D): new rows */
    quire_cuda_rows own, sink;               /* slots */
    quire_cuda_rows scratch, scratch_sink;   /* blocks of 64 rows; sinks at an item's first */
    const int32_t *lengths, *slots, *starts; /* of items */
    const int32_t *blocks, *first_slots;     /* first block; slot of even pages */
    const int32_t *block_items;              /* whose block it is */
    int n_items, n_blocks, n_heads, k_dim, v_dim, sinks;
};

/* One new row for each item. */
cudaError_t append_row(const AppendParams &params, cudaStream_t stream);
/* Any number of them, through the scratch. */
cudaError_t append_rows(const AppendParams &params, cudaStream_t stream);

} // namespace quire_cuda

#endif
