/* What calls of seal, decode and prefill have in common. */
#ifndef QUIRE_CUDA_ARGS_H
#define QUIRE_CUDA_ARGS_H

#include <cstdint>

#include "quire_cuda.h"

namespace quire_cuda {

struct RawRows {
    const uint16_t *k, *v;
    int64_t k_slot, k_head, k_token, v_slot, v_head, v_token;
};

/* Query heads that one pass over the pages serves in decode: the columns of a tensor-core product.
 */
constexpr int MAX_HEADS = 8;
constexpr float LOG2_E = 1.44269504088896340736f;
/* Running maximum of a query that has seen nothing: below every score. */
constexpr float NOTHING = -1e30f;

/* Kernels divide by numbers that the host knows: x / n is quotient(x, inverse_of(n)). */
inline uint32_t inverse_of(int n) { /* 2^31 / n, rounded up */
    return (0x80000000u + (uint32_t)n - 1) / (uint32_t)n;
}
__device__ __forceinline__ int quotient(int x, uint32_t inverse) {
    return (int)((uint64_t)(uint32_t)x * inverse >> 31);
}

const char *codec_name(quire_codec codec);
/* `what` the rows are of, for the message. */
quire_status check_rows(const quire_cuda_rows &rows, const char *what);
quire_status check_records(const quire_cuda_records &records, int n_kv_heads, size_t record_bytes);
quire_status check_heads(int n_heads, int n_kv_heads);
quire_status check_types(quire_type raw, quire_type out);
quire_status check_logits(float scale, float softcap);
quire_status check_sight(int sinks, int window, int keep);
RawRows raw_rows(const quire_cuda_rows &rows);
/* Bytes of shared memory that a CTA can have on the current device. */
quire_status shared_limit(int *bytes);

} // namespace quire_cuda

#endif
