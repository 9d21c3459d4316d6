/* One code or value of a page record at a time: every codec, any head size (docs/FORMAT.md,
 * sections 3, 4 and 6). */
#ifndef QUIRE_CUDA_CODES_CUH
#define QUIRE_CUDA_CODES_CUH

#include "record_any.h"
#include "values.cuh"

namespace quire_cuda {

__device__ __forceinline__ float half_at(const uint8_t *params, int i) {
    return __half2float(*(const half *)(params + 2 * i));
}

/* The order of dims inside four bytes of codes of less than 8 bits: 0 2 1 3. */
__device__ __forceinline__ int swapped_dim(int d) { return (d & 4) | (d & 1) << 1 | (d >> 1 & 1); }

/* Byte of token t in an atom of column x: n columns of `slabs` slabs; j: which of its 8 bytes. */
__device__ __forceinline__ int atom_at(int t, int n, int slabs, int x, int slab, int j) {
    const int columns = min(4, n - x / 4 * 4), r = t % 16 / 2;
    return (x / 4 * 32 * slabs + slab * 8 * columns + r * columns + x % 4) * 16 + 8 * (t % 2) + j;
}

__device__ inline int k_code(const AnySide &s, const uint8_t *codes, int t, int d) {
    const int tile = t / 16, octet = d / 8, block = d / 16, high = octet % 2;
    if (s.bits == 8)
        return (int8_t)codes[tile * 16 * s.dim + atom_at(t, s.dim / 8, 1, octet, 0, d % 8)];
    const int j = swapped_dim(d % 8), blocks = s.dim / 16;
    const bool mixed = block < s.mixed;
    if (s.bits == 4) {
        const int x = codes[tile * 8 * s.dim + atom_at(t, blocks, 1, block, 0, j)];
        return mixed ? (high ? x >> 5 : x & 31) : x >> 4 * high & 15;
    }
    if (s.bits == 2)
        return codes[atom_at(t, s.dim / 8, 1, octet, 0, j)] >> 2 * tile & 3;
    const auto slab = [&](int i) { return (int)codes[atom_at(t, blocks, 3, block, i, j)]; };
    if (tile < 3)
        return mixed ? (high ? slab(tile) >> 4 & 3 : slab(tile) & 15) : slab(tile) >> 3 * high & 7;
    if (mixed)
        return high ? slab(1) >> 6 : slab(0) >> 6 | slab(2) >> 6 << 2;
    return slab(high) >> 6 | (slab(2) >> (6 + high) & 1) << 2;
}

__device__ inline float k_sign(const AnySide &s, const uint8_t *signs, int t, int d) {
    const int at = atom_at(t, s.dim / 16, 1, d / 16, 0, swapped_dim(d % 8));
    return signs[at] >> (t / 16 + 4 * (d / 8 % 2)) & 1 ? 1.0f : -1.0f;
}

__device__ inline int v_code(const AnySide &s, const uint8_t *codes, int t, int d) {
    const int tile = d / 16, share = s.bits == 3 ? 4 : s.bits == 2 ? 2 : 1;
    int run = share, first = tile / run * run; /* tiles that share bytes, and the first of them */
    while (first + run > s.dim / 16) {         /* what is left at the end, in shorter runs */
        run /= 2;
        if (tile >= first + run && first + run <= s.dim / 16)
            first += run;
    }
    const int columns = 4 * run / share, c = t % 16 / 4, h = t / 32;
    const int z = tile - first + run * (c / columns), slab = 128 * columns;
    const int at = first * 128 * s.bits + (d % 16 / 2 * columns + c % columns) * 16 + 8 * (d % 2) +
                   4 * (t / 16 % 2) + t % 4;
    if (s.bits == 8)
        return (int8_t)codes[h * slab + at];
    if (s.bits == 4)
        return codes[at] >> 4 * h & 15;
    if (s.bits == 2)
        return codes[at] >> (4 * z + 2 * h) & 3;
    if (z < 3)
        return codes[z * slab + at] >> 3 * h & 7;
    return codes[h * slab + at] >> 6 | (codes[2 * slab + at] >> (6 + h) & 1) << 2;
}

/* Levels of the Lloyd-Max books: 2, 3 and 4 bits. */
__device__ __forceinline__ float book_level(int bits, int code) {
    constexpr int8_t levels[16] = {5, 15, 25, 36, 48, 62, 79, 104, 10, 31, 55, 88, 12, 40, 0, 0};
    const int half = 1 << (bits - 1), place = code < half ? half - 1 - code : code - half;
    const float level = levels[(bits == 4 ? 0 : bits == 3 ? 8 : 12) + place];
    const float unit = bits == 4 ? 0.02622447f : bits == 3 ? 0.02445393f : 0.03776044f;
    return (code < half ? -level : level) * unit;
}

/* Element (t, d) in the side's own space: of rotated codecs before the rotation back, of `book`
 * without the mean, of `prod` without the part of the signs. */
__device__ inline float value_at(const AnySide &s, const uint8_t *record, int t, int d) {
    const uint8_t *codes = record + s.codes, *params = record + s.params;
    if (s.family == Family::raw) {
        const int at = t * s.dim + d;
        if (s.type == QUIRE_F32)
            return ((const float *)codes)[at];
        return raw_value(s.type == QUIRE_BF16, ((const uint16_t *)codes)[at]);
    }
    const int u = s.is_k ? k_code(s, codes, t, d) : v_code(s, codes, t, d);
    switch (s.family) {
    case Family::channel: {
        const float mid = s.bits == 8 ? 0.0f : ((1 << k_code_bits(s.bits, s.mixed, d)) - 1) * 0.5f;
        return half_at(params, s.dim + d) + half_at(params, d) * ((float)u - mid);
    }
    case Family::uniform: {
        const float mid = s.bits == 8 ? 0.0f : ((1 << s.bits) - 1) * 0.5f;
        return half_at(params, t) * v_step(s.bits) * ((float)u - mid);
    }
    case Family::affine: {
        const int at = d / s.group * T + t, zeros = s.dim / s.group * T;
        const uint16_t *x = (const uint16_t *)params;
        const bool bf16 = s.type == QUIRE_BF16;
        return raw_value(bf16, x[at]) * (float)(s.bits == 8 ? u + 128 : u) +
               raw_value(bf16, x[zeros + at]);
    }
    case Family::block:
        return half_at(params, d / s.group * T + t) * (float)(s.bits == 8 ? u : u - 8);
    default: /* book, prod */
        return half_at(params, t) * book_level(s.bits, u);
    }
}

/* What the signs of `prod` add, in the space of their projection. */
__device__ inline float sign_value(const AnySide &s, const uint8_t *record, int t, int d) {
    const uint8_t *params = record + s.params;
    return half_at(params, t) * half_at(params, T + t) * 1.25331413731550025f *
           k_sign(s, record + s.signs, t, d);
}

} // namespace quire_cuda

#endif
