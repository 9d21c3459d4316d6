#include "prefill.cuh"

namespace quire_cuda {

/* Queries of a team, teams of a crew, crews, pages in flight: registers decide how many queries
 * there are. */
static const PrefillKernel kernels[] = {
    prefill_kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 64, 104, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 64, 104, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 64, 104, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 64, 104, 2, 1, 4, 2>(),
};

extern const PrefillKernels prefill_kernels_64 = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
