#include "decode.cuh"

namespace quire_cuda {

/* Warps, and pages in flight for each: pages are small, so it takes more warps to keep enough of
 * them in work. */
static const DecodeKernel kernels[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 80, 12, 2>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 80, 12, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 80, 12, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 80, 8, 2>(),
};

extern const DecodeKernels decode_kernels_80 = {kernels, sizeof kernels / sizeof *kernels};

/* With windows and other logits: of each pair what needs the least shared memory. */
static const DecodeKernel more[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 80, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 80, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 80, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 80, 8, 2, true>(),
};

extern const DecodeKernels decode_kernels_more_80 = {more, sizeof more / sizeof *more};

} // namespace quire_cuda
