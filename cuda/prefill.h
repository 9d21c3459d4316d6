/* Between prefill.cu (plans, launches) and the kernels. */
#ifndef QUIRE_CUDA_PREFILL_H
#define QUIRE_CUDA_PREFILL_H

#include <cstdint>

#include "args.h"

namespace quire_cuda {

/* What a launch gets. A query is a row and one of the query heads that share a KV head, row * group
 * + head. A tile is a sequence, a KV head, and `tile_queries` neighbouring queries. */
struct PrefillParams {
    int n_seqs, n_heads, n_kv, group;
    uint32_t group_inverse; /* inverse_of(group) */
    int tile_queries;
    int sinks, window, keep;
    int max_workers; /* that share the work of a launch */
    bool bf16;       /* q and raw rows; else f16 */
    quire_type out_type;
    float scale_log2, softcap_log2; /* times log2(e); softcap 0: none */
    const uint16_t *q;
    void *out;
    float *lse;
    const int32_t *starts, *lengths, *pages, *slots;
    int64_t pages_stride;
    const uint8_t *records;
    size_t page_stride, head_stride;
    RawRows own, sink;
    const uint16_t *order;
    const float *alibi, *sink_logits; /* (H) or NULL */
    /* Workspace: partial results of tiles that several workers share, two slots for each worker. */
    float *part_o;   /* (slots, tile_queries, D) */
    float2 *part_ml; /* (slots, tile_queries): running maximum (log2) and sum */
};

struct PrefillKernel {
    quire_pair pair;
    int dim, tile_queries, workers; /* of a CTA */
    int threads, shared_bytes;
    void (*run)(const PrefillParams);
    void (*merge)(const PrefillParams);
};

/* One table for each head size, and one of narrow tiles for head size 128. */
struct PrefillKernels {
    const PrefillKernel *first;
    int n;
};
extern const PrefillKernels prefill_kernels_64, prefill_kernels_80, prefill_kernels_96,
    prefill_kernels_128, prefill_kernels_256, prefill_kernels_narrow;

} // namespace quire_cuda

#endif
