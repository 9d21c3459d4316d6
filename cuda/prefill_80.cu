#include "prefill.cuh"

namespace quire_cuda {

/* Queries of a team, teams of a crew, crews, pages in flight: what registers and shared memory have
 * room for. */
static const PrefillKernel kernels[] = {
    prefill_kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 80, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 80, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 80, 88, 2, 1, 4, 2>(),
    prefill_kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 80, 88, 2, 1, 4, 2>(),
};

extern const PrefillKernels prefill_kernels_80 = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
