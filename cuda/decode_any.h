/* Between decode.cu and the kernel for all pairs of codecs. */
#ifndef QUIRE_CUDA_DECODE_ANY_H
#define QUIRE_CUDA_DECODE_ANY_H

#include <cuda_runtime_api.h>

#include "decode.h"
#include "record_any.h"

namespace quire_cuda {

/* An item has all query heads of its KV head, and at most decode.exact parts. */
struct AnyParams {
    DecodeParams decode;
    AnySide k, v;
};

constexpr int ANY_PARTS = 16;

int any_shared_bytes(int heads, const AnyRecord &record);
cudaError_t any_prepare(int shared_limit); /* before the first launch on a device */
cudaError_t any_launch(const AnyParams &params, int shared_bytes, cudaStream_t stream);

} // namespace quire_cuda

#endif
