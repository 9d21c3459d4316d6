#include "decode.cuh"

namespace quire_cuda {

/* As in decode_256.cu. */
static const DecodeKernel kernels[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 256, 4, 3, true>(),
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 256, 4, 2, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 256, 4, 3, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 256, 4, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 256, 4, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 256, 3, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 256, 4, 1, true>(),
};

extern const DecodeKernels decode_kernels_more_256 = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
