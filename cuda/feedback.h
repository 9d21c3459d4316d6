/* Query-aware rounding of K (src/codec/error_feedback.c), for pages that seal.cu has packed. */
#ifndef QUIRE_CUDA_FEEDBACK_H
#define QUIRE_CUDA_FEEDBACK_H

#include "quire_cuda.h"

namespace quire_cuda {

/* Device arrays. */
struct Feedback {
    const float *weights;     /* (heads, DK*DK/2): quire_layer.k_feedback */
    const uint16_t *channels; /* (DK) in the order of rounding: pair after pair */
    const uint16_t *places;   /* (heads, DK): where these channels are in a record */
    const double *turns;      /* (pages, DK/2, 2): cosine and sine of a pair's turn */
    const int32_t *numbers;   /* (n_pages): which page of its sequence each one is */
};

inline size_t feedback_count(int dim) { return (size_t)dim * dim / 2; } /* weights of a head */

/* Whether a head of this size, with rows of this type, fits into shared memory. E_UNSUPPORTED. */
quire_status check_feedback(int dim, quire_type rows);
/* Replaces the codes of K in the records that quire_cuda_seal has just written with these
 * arguments. K must have channel scales and fewer than 8 bits. */
quire_status round_with_feedback(const quire_cuda_seal_args &args, const Feedback &feedback,
                                 cudaStream_t stream);

} // namespace quire_cuda

#endif
