#include "decode.cuh"

namespace quire_cuda {

/* Warps, and pages in flight for each: 8 x 2 is best (docs/SPEED.md), or what fits. */
static const DecodeKernel kernels[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 128, 8, 2>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 128, 8, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 8, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 7, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 128, 6, 2>(),
};

extern const DecodeKernels decode_kernels_128 = {kernels, sizeof kernels / sizeof *kernels};

/* With windows and other logits: of each pair what needs the least shared memory. */
static const DecodeKernel more[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 128, 8, 2, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 128, 8, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 7, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 128, 6, 2, true>(),
};

extern const DecodeKernels decode_kernels_more_128 = {more, sizeof more / sizeof *more};

} // namespace quire_cuda
