#include "decode.cuh"

namespace quire_cuda {

/* Warps, and pages in flight for each: what shared memory holds beside the sums of up to 4 heads,
 * or of 8. */
static const DecodeKernel kernels[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 256, 4, 3>(),
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 256, 4, 2>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 256, 4, 3>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 256, 4, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 256, 4, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 256, 3, 2>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 256, 4, 1>(),
};

extern const DecodeKernels decode_kernels_256 = {kernels, sizeof kernels / sizeof *kernels};

/* With windows and other logits: of each pair what needs the least shared memory. */
static const DecodeKernel more[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 256, 4, 2, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 256, 4, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 256, 3, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 256, 4, 1, true>(),
};

extern const DecodeKernels decode_kernels_more_256 = {more, sizeof more / sizeof *more};

} // namespace quire_cuda
