/* Kernels that take packed pages apart and move rows: for context shift and other codecs
 * (pool_repack.cu). */
#ifndef QUIRE_CUDA_REPACK_H
#define QUIRE_CUDA_REPACK_H

#include <cstdint>

#include <cuda_runtime.h>

#include "quire_cuda.h"
#include "record_any.h"

namespace quire_cuda {

constexpr int MOST_PAIRS = 128;

/* Rows of new pages of one sequence and layer, as the CPU library has them: packed ones are
 * decoded, raw ones widened. New token t is old token t, or t + by from `from` on; those are turned
 * back by as many positions. */
struct UnpackParams {
    /* The old sequence. */
    const int32_t *table;
    const uint8_t *records; /* the layer's, of page 0 and head 0 */
    size_t page_stride, head_stride;
    AnyRecord record;
    const uint16_t *order;     /* (G, DK) or NULL: where the places of K belong */
    quire_cuda_rows raw, sink; /* slots of the layer */
    int slot;                  /* of even pages */
    int raw_from;              /* pages from this one on are raw there */
    int sinks;                 /* raw beside page 0, if that is packed */
    bool bf16;
    /* The new pages. */
    const int32_t *numbers; /* (n_pages) */
    int n_pages, n_heads, length, from, by;
    /* (n_pages, 64, G, D) f32; rows from `length` on are zeros. */
    float *k, *v;
    uint16_t first[MOST_PAIRS], second[MOST_PAIRS]; /* channels that turn together */
    double cosine[MOST_PAIRS], sine[MOST_PAIRS];
};
/* V's head size 64, 80, 96, 128 or 256, K and V with channel scales and uniform codes. */
cudaError_t unpack_rows(const UnpackParams &params, cudaStream_t stream);

/* Copies bytes first .. past-1 (multiples of 16) of records, all heads of a layer. */
struct CopyParams {
    const uint8_t *from;
    uint8_t *to; /* records of page 0 and head 0 */
    size_t from_page, from_head, to_page, to_head;
    const int32_t *from_ids, *to_ids; /* (n_pages); a negative one: nothing to copy */
    int n_pages, n_heads, first, past;
};
cudaError_t copy_records(const CopyParams &params, cudaStream_t stream);

/* The first n rows of a page of unpack_rows' result into n_slots slots from `slot` on, in the raw
 * type. */
struct KeepParams {
    const float *k, *v;
    quire_cuda_rows to;
    int slot, n_slots, n, n_heads, k_dim, v_dim;
    bool bf16;
};
cudaError_t keep_unpacked(const KeepParams &params, cudaStream_t stream);

} // namespace quire_cuda

#endif
