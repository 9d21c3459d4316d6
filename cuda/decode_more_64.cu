#include "decode.cuh"

namespace quire_cuda {

/* As in decode_64.cu. */
static const DecodeKernel kernels[] = {
    kernel_of<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 64, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 64, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 64, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 64, 12, 2, true>(),
    kernel_of<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 64, 8, 2, true>(),
};

extern const DecodeKernels decode_kernels_more_64 = {kernels, sizeof kernels / sizeof *kernels};

} // namespace quire_cuda
