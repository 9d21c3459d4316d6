/* Between decode.cu (plans, launches) and the kernels. */
#ifndef QUIRE_CUDA_DECODE_H
#define QUIRE_CUDA_DECODE_H

#include <cstdint>

#include "args.h"

namespace quire_cuda {

/* What a launch gets. An item is a sequence, a KV head, and up to 8 of its query heads. */
struct DecodeParams {
    int n_seqs, n_items_per_seq;
    int n_heads;            /* H */
    int group, n_parts;     /* query heads per KV head, and into how many items these are divided */
    uint32_t parts_inverse; /* inverse_of(n_parts) */
    int item_heads;         /* of the largest item */
    int sinks, window, keep;
    int exact; /* parts that an item has at most, whatever the batch; 0: as the batch wants it */
    bool bf16; /* q and raw rows; else f16 */
    quire_type out_type;
    float scale_log2, softcap_log2; /* times log2(e); softcap 0: none */
    const uint16_t *q;
    void *out;
    float *lse;
    const int32_t *lengths, *pages, *slots;
    int64_t pages_stride;
    const uint8_t *records;
    size_t page_stride, head_stride;
    bool split_pages; /* a record is fetched by Shape::COPIES copies, else by one */
    RawRows own, sink;
    const uint16_t *order;
    const float *alibi, *sink_logits; /* (H) or NULL */
    /* Workspace: partial results of items that several CTAs share, two slots for each CTA (exact:
     * `exact` slots for each item), and how many are done. */
    float *part_o;     /* (slots, item_heads, D) */
    float2 *part_ml;   /* (slots, item_heads): running maximum (log2) and sum */
    unsigned *tickets; /* (items) zero between launches */
};

struct DecodeKernel {
    quire_pair pair;
    int dim;
    bool more;       /* windows, soft-cap, ALiBi, learned sinks */
    int warps, ring; /* pages in flight for each warp */
    void (*run)(const DecodeParams);
    int (*shared_bytes)(int item_heads);
};

/* Two tables for each head size, the second of kernels with `more`. Of several kernels for a pair,
 * the first that fits into shared memory is taken. */
struct DecodeKernels {
    const DecodeKernel *first;
    int n;
};
extern const DecodeKernels decode_kernels_64, decode_kernels_80, decode_kernels_96,
    decode_kernels_128, decode_kernels_256;
extern const DecodeKernels decode_kernels_more_64, decode_kernels_more_80, decode_kernels_more_96,
    decode_kernels_more_128, decode_kernels_more_256;

} // namespace quire_cuda

#endif
