#include "prefill.cuh"

namespace quire_cuda {

/* Queries of a team, teams of a crew, crews, pages in flight: 88 is best (docs/SPEED.md). */
static const PrefillKernel kernels[] = {
    prefill_kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 128, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 128, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 128, 88, 2, 1, 4, 2>(),
};

extern const PrefillKernels prefill_kernels_128 = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
