#include "decode.cuh"

namespace quire_cuda {

/* Warps times ring: as many pages in flight as 227 KiB hold beside the sums of 8 heads. */
const DecodeKernel decode_kernels_128[4] = {
    kernel_of<Shape<QUIRE_CODEC_KM4, QUIRE_CODEC_VT4, 128, 8, 2>>(QUIRE_CODEC_KM4, QUIRE_CODEC_VT4),
    kernel_of<Shape<QUIRE_CODEC_KC4, QUIRE_CODEC_VT4, 128, 8, 2>>(QUIRE_CODEC_KC4, QUIRE_CODEC_VT4),
    kernel_of<Shape<QUIRE_CODEC_KC8, QUIRE_CODEC_VT4, 128, 7, 2>>(QUIRE_CODEC_KC8, QUIRE_CODEC_VT4),
    kernel_of<Shape<QUIRE_CODEC_KC8, QUIRE_CODEC_VT8, 128, 6, 2>>(QUIRE_CODEC_KC8, QUIRE_CODEC_VT8),
};

} // namespace quire_cuda
