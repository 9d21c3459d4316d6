#include "prefill.cuh"

namespace quire_cuda {

/* For few rows, as in verification: crews of one team, each with its own pages. */
static const PrefillKernel kernels[] = {
    prefill_kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 128, 32, 1, 3, 4, 0>(),
    prefill_kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 128, 32, 1, 3, 4, 0>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 32, 1, 3, 2, 0>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 128, 32, 1, 3, 2, 0>(),
};

extern const PrefillKernels prefill_kernels_narrow = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
