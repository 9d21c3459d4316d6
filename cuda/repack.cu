/* Packed pages back into rows, bit for bit as src/codec decodes them. Compiled without contraction
 * (-fmad=false). Elements are unpacked one at a time: this runs once in a while, not in a step. */
#include "repack.h"

#include "codes.cuh"
#include "rotation.cuh"

namespace quire_cuda {

constexpr int THREADS = 256;

__device__ __forceinline__ float limited(float x) {
    return x > F16_MAX ? F16_MAX : x < -F16_MAX ? -F16_MAX : x;
}

/* Where a row comes from. */
struct Origin {
    int token, page; /* of the old sequence */
    bool is_raw, is_sink;

    __device__ Origin(const UnpackParams &p, int new_token) {
        token = new_token < p.from ? new_token : new_token + p.by;
        page = token / T;
        is_raw = page >= p.raw_from;
        is_sink = !is_raw && token < p.sinks;
    }
};

__device__ __forceinline__ float raw_at(const UnpackParams &p, const Origin &o, bool is_v, int head,
                                        int d) {
    const quire_cuda_rows &rows = o.is_sink ? p.sink : p.raw;
    const int64_t slot = p.slot + (o.is_sink ? 0 : o.page % 2),
                  row = o.is_sink ? o.token : o.token % T;
    const uint16_t *x = is_v ? (const uint16_t *)rows.v + slot * rows.v_slot + head * rows.v_head +
                                   row * rows.v_token
                             : (const uint16_t *)rows.k + slot * rows.k_slot + head * rows.k_head +
                                   row * rows.k_token;
    return raw_value(p.bf16, x[d]);
}

__device__ __forceinline__ const uint8_t *record_at(const UnpackParams &p, const Origin &o,
                                                    int head) {
    return p.records + p.table[o.page] * p.page_stride + head * p.head_stride;
}

/* A warp has a row of K. */
__device__ void unpack_k(const UnpackParams &p, int page, int head) {
    const int dim = p.record.k.dim, lane = threadIdx.x % 32;
    for (int t = threadIdx.x / 32; t < T; t += THREADS / 32) {
        const int token = p.numbers[page] * T + t;
        float *row = p.k + (((size_t)page * T + t) * p.n_heads + head) * dim;
        const Origin o(p, token);
        for (int place = lane; place < dim; place += 32) {
            int channel = place;
            float x = 0;
            if (token < p.length && (o.is_raw || o.is_sink)) {
                x = raw_at(p, o, false, head, place);
            } else if (token < p.length) {
                x = value_at(p.record.k, record_at(p, o, head), o.token % T, place);
                channel = p.order ? p.order[head * dim + place] : place;
            }
            row[channel] = x;
        }
        __syncwarp();
        for (int j = lane; token < p.length && j < dim / 2; j += 32) {
            float *x = &row[p.first[j]], *y = &row[p.second[j]];
            if (token >= p.from) {
                const double a = *x, b = *y;
                *x = (float)(a * p.cosine[j] - b * p.sine[j]);
                *y = (float)(a * p.sine[j] + b * p.cosine[j]);
            }
            *x = limited(*x), *y = limited(*y);
        }
    }
}

/* Half a warp has a row of V, lane j its channels j, j + 16, .. */
template <int D> __device__ void unpack_v(const UnpackParams &p, int page, int head) {
    using P = Passes<D>;
    const int j = threadIdx.x % 16;
    for (int t = threadIdx.x / 16; t < T; t += THREADS / 16) {
        const int token = p.numbers[page] * T + t;
        const Origin o(p, token);
        float y[D / 16];
#pragma unroll 1
        for (int k = 0; k < D / 16; k++)
            y[k] = token >= p.length ? 0.0f
                   : o.is_raw || o.is_sink
                       ? raw_at(p, o, true, head, 16 * k + j)
                       : value_at(p.record.v, record_at(p, o, head), o.token % T, 16 * k + j);
        const bool packed = token < p.length && !o.is_raw && !o.is_sink;
        float z[D / 16]; /* rotated back; all lanes take part */
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            z[k] = y[k];
#pragma unroll
        for (int pass = P::count - 1; pass >= 0; pass--) {
            const int k0 = P::first_tile(pass);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = k0; k < k0 + P::tiles; k++) {
                    const float other = __shfl_xor_sync(~0u, z[k], 1 << i);
                    z[k] = j >> i & 1 ? other - z[k] : z[k] + other;
                }
#pragma unroll
            for (int h = 1; h < P::tiles; h *= 2)
#pragma unroll
                for (int k = 0; k < P::tiles; k++)
                    if (!(k & h)) {
                        const float a = z[k0 + k], b = z[k0 + k + h];
                        z[k0 + k] = a + b;
                        z[k0 + k + h] = a - b;
                    }
            const float norm = 1.0f / sqrtf((float)P::length);
#pragma unroll
            for (int k = k0; k < k0 + P::tiles; k++) {
                z[k] *= norm;
                if (sign_bits(pass, k) >> j & 1)
                    z[k] = -z[k];
            }
        }
        float *row = p.v + (((size_t)page * T + t) * p.n_heads + head) * D;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            row[16 * k + j] = limited(packed ? z[k] : y[k]);
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS) unpack(const __grid_constant__ UnpackParams p) {
    const int page = blockIdx.x / p.n_heads, head = blockIdx.x % p.n_heads;
    if (blockIdx.y == 0)
        unpack_v<D>(p, page, head);
    else
        unpack_k(p, page, head);
}

cudaError_t unpack_rows(const UnpackParams &p, cudaStream_t stream) {
    const int dim = p.record.v.dim;
    const auto kernel = dim == 64    ? unpack<64>
                        : dim == 80  ? unpack<80>
                        : dim == 96  ? unpack<96>
                        : dim == 128 ? unpack<128>
                                     : unpack<256>;
    kernel<<<dim3((unsigned)(p.n_pages * p.n_heads), 2), THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) copy(const __grid_constant__ CopyParams p) {
    const int page = blockIdx.x / p.n_heads, head = blockIdx.x % p.n_heads;
    if (p.from_ids[page] < 0)
        return;
    const uint8_t *from = p.from + p.from_ids[page] * p.from_page + head * p.from_head;
    uint8_t *to = p.to + p.to_ids[page] * p.to_page + head * p.to_head;
    for (int i = p.first + 16 * threadIdx.x; i < p.past; i += 16 * THREADS)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
}

cudaError_t copy_records(const CopyParams &p, cudaStream_t stream) {
    copy<<<(unsigned)(p.n_pages * p.n_heads), THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

/* CTA: a row and a side. */
static __global__ void keep(const __grid_constant__ KeepParams p) {
    const int row = blockIdx.x, is_v = blockIdx.y, dim = is_v ? p.v_dim : p.k_dim;
    const float *from = (is_v ? p.v : p.k) + (size_t)row * p.n_heads * dim;
    for (int i = threadIdx.x; i < p.n_heads * dim; i += blockDim.x) {
        const float x = from[i];
        const uint16_t narrow =
            p.bf16 ? (uint16_t)(bf16_pair(x, 0.0f) & 0xffff) : __half_as_ushort(__float2half_rn(x));
        for (int s = 0; s < p.n_slots; s++) {
            const int64_t slot = p.slot + s;
            uint16_t *to = is_v ? (uint16_t *)p.to.v + slot * p.to.v_slot + i / dim * p.to.v_head +
                                      row * p.to.v_token
                                : (uint16_t *)p.to.k + slot * p.to.k_slot + i / dim * p.to.k_head +
                                      row * p.to.k_token;
            to[i % dim] = narrow;
        }
    }
}

cudaError_t keep_unpacked(const KeepParams &p, cudaStream_t stream) {
    if (p.n > 0)
        keep<<<dim3((unsigned)p.n, 2), 128, 0, stream>>>(p);
    return cudaGetLastError();
}

} // namespace quire_cuda
