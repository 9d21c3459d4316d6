/* Sealing: 64 raw rows of K and V -> one page record, byte for byte what src/codec makes of the
 * same rows.
 *
 * Compiled without contraction (-fmad=false): a byte must not depend on where a compiler fuses
 * a*b+c. Divisions, square roots and conversions are IEEE's, as on the CPU. One CTA seals one side
 * of one page and KV head; both sides go in one launch, for a page that fills while tokens are
 * generated is a launch of a few CTAs, and all latency.
 */
#include <algorithm>

#include <cuda_fp16.h>

#include "args.h"
#include "fail.h"
#include "pack_k.cuh"
#include "record.h"
#include "rotation.cuh"

namespace quire_cuda {

constexpr int THREADS = 256;

/* One side of a call. */
struct Side {
    const void *rows;
    int64_t slot, head, token;
    const int32_t *slots, *ids, *skip;
    uint8_t *records;
    size_t page_stride, head_stride;
    uint32_t *n_bad;
    int n_kv_heads, dim, bits;
    int n_mixed; /* km: blocks of 16 places with codes of a bit more and a bit less */
    const uint16_t *order;
    /* In the record: where sections start, where the side ends, and its zeros end. */
    int codes, params, end, padded;
};

__device__ __forceinline__ bool storable(float x) { return fabsf(x) <= F16_MAX; }
__device__ __forceinline__ uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

/* The integer nearest to x within lowest .. highest, as a byte: the sum's low mantissa bits. */
__device__ __forceinline__ uint8_t nearest_code(float x, float lowest, float highest) {
    return (uint8_t)__float_as_uint(fminf(fmaxf(x, lowest), highest) + MAGIC);
}

/* ------------------------------------------------------------------ the order of V's codes
 * (section 4) */

/* codes: (D, stride) bytes, channel by channel, so that four tokens are one word. */
template <int BITS, int D>
__device__ void pack_v(const uint8_t *codes, int stride, uint8_t *section) {
    constexpr int N_WORDS = 2 * D * BITS, TILES = D / 16;
    constexpr int SHARE = BITS == 3 ? 4 : BITS == 2 ? 2 : 1; /* tiles whose codes share bytes */
    for (int i = threadIdx.x; i < N_WORDS; i += THREADS) {
        const int row = i / 2 % 2, y = i % 2;
        /* The run of tiles that the word lies in: SHARE tiles, fewer at the end. */
        int run = SHARE, first = i / (32 * BITS) / SHARE * SHARE;
        while (first + run > TILES || i >= (first + run) * 32 * BITS) {
            if (first + run <= TILES)
                first += run;
            run /= 2;
        }
        const int atom = (i - first * 32 * BITS) / 4, columns = 4 * run / SHARE;
        const int slab = atom / (8 * columns), r = atom / columns % 8, column = atom % columns;
        /* Tokens 32h + 16y + 4c .. of slot z */
        const auto at = [&](int z, int h) {
            const int channel = 16 * (first + z % run) + 2 * r + row,
                      c = column + columns * (z / run);
            return word(codes + channel * stride + 32 * h + 16 * y + 4 * c);
        };
        uint32_t x;
        if constexpr (BITS == 8)
            x = at(0, slab);
        else if constexpr (BITS == 4)
            x = at(0, 0) | at(0, 1) << 4;
        else if constexpr (BITS == 3)
            x = at(slab, 0) | at(slab, 1) << 3 |
                (slab < 2
                     ? (at(3, slab) & 0x03030303u) << 6
                     : (at(3, 0) >> 2 & 0x01010101u) << 6 | (at(3, 1) >> 2 & 0x01010101u) << 7);
        else
            x = at(0, 0) | at(0, 1) << 2 | at(1, 0) << 4 | at(1, 1) << 6;
        *(uint32_t *)(section + 4 * i) = x;
    }
}

/* ------------------------------------------------------------------ K: channel scales (section 7)
 */

__device__ void put_zeros(const Side &s, uint8_t *record, int from) {
    for (int i = from + 4 * threadIdx.x; i < s.padded; i += 4 * THREADS)
        *(uint32_t *)(record + i) = 0;
}

__device__ void note_bad(const Side &s, bool bad) {
    if (__syncthreads_or(bad) && threadIdx.x == 0 && s.n_bad)
        atomicAdd(s.n_bad, 1u);
}

/* Shared memory: rows (64, dim + 8) as they came, then codes (64, dim + 4). */
static int k_shared_bytes(int dim, quire_type raw) {
    return T * (dim + 8) * element_bytes(raw) + T * (dim + 4);
}

/* dim <= THREADS: one thread computes a channel, or two threads share it. */
template <quire_type R> __device__ void seal_k(const Side &s, int page, int head, uint8_t *shared) {
    using Element = typename Rows<R>::Element;
    constexpr int WIDE = 16 / sizeof(Element); /* elements of one load */
    __shared__ float lowest[2][THREADS], highest[2][THREADS];
    const int stride = s.dim + 4, raw_stride = s.dim + 8;
    Element *raw = (Element *)shared;
    uint8_t *codes = shared + T * raw_stride * sizeof(Element);
    const Element *rows =
        (const Element *)s.rows + (s.slots ? s.slots[page] : page) * s.slot + head * s.head;
    uint8_t *record =
        s.records + (s.ids ? s.ids[page] : page) * s.page_stride + head * s.head_stride;
    const int skip = s.skip ? s.skip[page] : 0;
    for (int t = threadIdx.x / 16; t < T; t += THREADS / 16)
        for (int d = WIDE * (threadIdx.x % 16); d < s.dim; d += 16 * WIDE)
            *(uint4 *)(raw + t * raw_stride + d) = __ldcs((const uint4 *)(rows + t * s.token + d));
    const int parts = s.dim <= THREADS / 2 ? 2 : 1, part = threadIdx.x / (THREADS / parts);
    const int place = threadIdx.x % (THREADS / parts), first = part * (T / parts),
              past = first + T / parts;
    const bool mine = place < s.dim;
    const int channel = !mine ? 0 : s.order ? s.order[head * s.dim + place] : place;
    const auto value = [&](int t) { return Rows<R>::load(raw[t * raw_stride + channel]); };
    __syncthreads();

    float lo = INFINITY, hi = -INFINITY;
    bool bad = false;
    if (mine) {
#pragma unroll 8
        for (int t = max(first, skip); t < past; t++) {
            const float x = value(t);
            bad |= !storable(x);
            lo = fminf(lo, x);
            hi = fmaxf(hi, x);
        }
        lowest[part][place] = lo;
        highest[part][place] = hi;
    }
    note_bad(s, bad); /* a barrier, too */
    if (mine) {
        for (int i = 0; i < parts; i++) {
            lo = fminf(lo, lowest[i][place]);
            hi = fmaxf(hi, highest[i][place]);
        }
        if (skip >= T)
            lo = hi = 0;
        const int width = k_code_bits(s.bits, s.n_mixed, place);
        const float top = s.bits == 8 ? 127.0f : (float)((1 << width) - 1),
                    bottom = s.bits == 8 ? -127.0f : 0.0f;
        const float mid = s.bits == 8 ? 0.0f : top * 0.5f;
        const uint16_t scale16 = to_f16((hi - lo) / (top - bottom)),
                       zero16 = to_f16((hi + lo) * 0.5f + 0.0f);
        const float scale = from_f16(scale16), zero = from_f16(zero16),
                    inverse = scale > 0 ? 1.0f / scale : 0.0f;
        if (part == 0) {
            ((uint16_t *)(record + s.params))[place] = scale16;
            ((uint16_t *)(record + s.params))[s.dim + place] = zero16;
        }
#pragma unroll 8
        for (int t = first; t < past; t++) {
            const uint8_t code = nearest_code((value(t) - zero) * inverse + mid, bottom, top);
            codes[t * stride + place] = t < skip ? 0 : code;
        }
    }
    __syncthreads();
    pack_k(s.bits, codes, stride, s.dim, s.n_mixed, record + s.codes);
    put_zeros(s, record, s.end);
}

/* ------------------------------------------------------------------ V: rotated, uniform codes
 * (sections 5 and 7) */

/* Half a warp has a row, lane j its channels j, j + 16, ..: the sums of squares then add up in the
 * canonical order. */
template <int D> struct Row {
    static constexpr int N = D / 16;
    float y[N];

    /* What lane j needs of the rotation: sign bits of its channels, and +-1 for the butterflies
     * between lanes. */
    struct Lane {
        uint32_t flip[Passes<D>::count][Passes<D>::tiles];
        float sign[4];

        __device__ explicit Lane(int j) {
#pragma unroll
            for (int pass = 0; pass < Passes<D>::count; pass++)
#pragma unroll
                for (int k = 0; k < Passes<D>::tiles; k++)
                    flip[pass][k] = sign_bits(pass, Passes<D>::first_tile(pass) + k) >> j << 31;
#pragma unroll
            for (int i = 0; i < 4; i++)
                sign[i] = j >> i & 1 ? -1.0f : 1.0f;
        }
    };

    __device__ void rotate(const Lane &lane) {
        using P = Passes<D>;
#pragma unroll
        for (int pass = 0; pass < P::count; pass++) {
            const int k0 = P::first_tile(pass);
#pragma unroll
            for (int k = 0; k < P::tiles; k++)
                y[k0 + k] = __uint_as_float(__float_as_uint(y[k0 + k]) ^ lane.flip[pass][k]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = k0; k < k0 + P::tiles;
                     k++) /* a sum or a difference: the product is exact */
                    y[k] = fmaf(y[k], lane.sign[i], __shfl_xor_sync(~0u, y[k], 1 << i));
#pragma unroll
            for (int h = 1; h < P::tiles; h *= 2)
#pragma unroll
                for (int k = 0; k < P::tiles; k++)
                    if (!(k & h)) {
                        const float a = y[k0 + k], b = y[k0 + k + h];
                        y[k0 + k] = a + b;
                        y[k0 + k + h] = a - b;
                    }
            const float norm = 1.0f / sqrtf((float)P::length);
#pragma unroll
            for (int k = k0; k < k0 + P::tiles; k++)
                y[k] *= norm;
        }
    }

    template <class F> __device__ static float sum_of_squares(F value) {
        float sum = value(0);
        sum *= sum;
#pragma unroll
        for (int k = 1; k < N; k++) {
            const float x = value(k);
            sum += x * x;
        }
#pragma unroll
        for (int h = 8; h > 0; h /= 2)
            sum += __shfl_xor_sync(~0u, sum, h);
        return sum;
    }

    __device__ float largest() const {
        float x = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            x = fmaxf(x, fabsf(y[k]));
#pragma unroll
        for (int h = 8; h > 0; h /= 2)
            x = fmaxf(x, __shfl_xor_sync(~0u, x, h));
        return x;
    }
};

__constant__ const float FITS[] = {0.85f, 0.90f, 0.95f, 1.0f, 1.05f, 1.10f, 1.15f};

/* A step this small stands for zero: 1 / x would not be finite. */
__device__ __forceinline__ float step_inverse(float x) { return x > 1e-30f ? 1.0f / x : 0.0f; }
__device__ __forceinline__ uint16_t scale_of(float x) { return to_f16(x < F16_MAX ? x : F16_MAX); }

/* The scale that leaves the least error; of equal errors the first counts. Each of seven lanes
 * computes one candidate. Codes are computed in units of 1 / (top + 1), a power of two: that
 * changes no bit, and an addition that saturates at 0 and 1 then does one of the two comparisons.
 */
template <int D>
__device__ uint16_t fitting_scale(const Row<D> &row, int j, float unit, float mid, float top) {
    const float rms = sqrtf(Row<D>::sum_of_squares([&](int k) { return row.y[k]; }) / (float)D);
    const uint16_t candidate = scale_of(rms * FITS[min(j, 6)]);
    const float candidate_step = from_f16(candidate) * unit, part = 1 / (top + 1);
    const float small_inverse = step_inverse(candidate_step) * part,
                large_step = candidate_step * (top + 1);
    const float magic = MAGIC * part, small_mid = mid * part, small_top = top * part;
    float least = INFINITY;
    int best = 0;
#pragma unroll 1
    for (int i = 0; i < 7; i++) {
        const float step = __shfl_sync(~0u, large_step, i, 16),
                    inverse = __shfl_sync(~0u, small_inverse, i, 16);
        const float error = Row<D>::sum_of_squares([&](int k) {
            const float x = __saturatef(row.y[k] * inverse + small_mid);
            return row.y[k] - step * (fminf((x + magic) - magic, small_top) - small_mid);
        });
        if (error < least) {
            least = error;
            best = i;
        }
    }
    const unsigned scale = __shfl_sync(~0u, (unsigned)candidate, best, 16);
    return (uint16_t)(least < INFINITY ? scale : 0);
}

constexpr int V_STRIDE = T + 4; /* codes in shared memory: (D, V_STRIDE), channel by channel */

template <int D, quire_type R>
__device__ void seal_v(const Side &s, int page, int head, uint8_t *codes) {
    using Element = typename Rows<R>::Element;
    const int j = threadIdx.x % 16;
    const Element *rows =
        (const Element *)s.rows + (s.slots ? s.slots[page] : page) * s.slot + head * s.head;
    uint8_t *record =
        s.records + (s.ids ? s.ids[page] : page) * s.page_stride + head * s.head_stride;
    const int skip = s.skip ? s.skip[page] : 0;
    const float unit = v_step(s.bits), top = s.bits == 8 ? 127.0f : (float)((1 << s.bits) - 1);
    const float bottom = s.bits == 8 ? -127.0f : 0.0f, mid = s.bits == 8 ? 0.0f : top * 0.5f;
    const typename Row<D>::Lane lane(j);
    bool bad = false;
    Element raw[D / 16]; /* the row after this one, on its way */
    const auto fetch = [&](int t) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            raw[k] = __ldg(rows + t * s.token + 16 * k + j);
    };
    fetch(threadIdx.x / 16);
#pragma unroll 1
    for (int t = threadIdx.x / 16; t < T; t += THREADS / 16) {
        Row<D> row;
        bool row_bad = false;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            row.y[k] = Rows<R>::load(raw[k]);
            row_bad |= !storable(row.y[k]);
        }
        bad |= row_bad && t >= skip;
        if (t + THREADS / 16 < T)
            fetch(t + THREADS / 16);
        row.rotate(lane);
        const uint16_t scale = s.bits == 8 ? scale_of(row.largest() / (127 * unit))
                                           : fitting_scale<D>(row, j, unit, mid, top);
        const float inverse = step_inverse(from_f16(scale) * unit);
        if (j == 0)
            ((uint16_t *)(record + s.params))[t] = t < skip ? 0 : scale;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const uint8_t code = nearest_code(row.y[k] * inverse + mid, bottom, top);
            codes[(16 * k + j) * V_STRIDE + t] = t < skip ? 0 : code;
        }
    }
    note_bad(s, bad); /* a barrier, too */
    uint8_t *section = record + s.codes;
    switch (s.bits) {
    case 8:
        pack_v<8, D>(codes, V_STRIDE, section);
        break;
    case 4:
        pack_v<4, D>(codes, V_STRIDE, section);
        break;
    case 3:
        pack_v<3, D>(codes, V_STRIDE, section);
        break;
    default:
        pack_v<2, D>(codes, V_STRIDE, section);
    }
    put_zeros(s, record, s.end);
}

/* V, which takes longer, first. */
template <int D, quire_type R>
__global__ void __launch_bounds__(THREADS, D > 128 ? 3 : 4)
    seal_sides(const __grid_constant__ Side k, const __grid_constant__ Side v) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int page = blockIdx.x / k.n_kv_heads, head = blockIdx.x % k.n_kv_heads;
    if (blockIdx.y == 0)
        seal_v<D, R>(v, page, head, shared);
    else
        seal_k<R>(k, page, head, shared);
}

/* ------------------------------------------------------------------ host */

static quire_status check_args(const quire_cuda_seal_args &a) {
    const quire_page_shape &s = a.shape;
    if (s.raw != QUIRE_F16 && s.raw != QUIRE_BF16 && s.raw != QUIRE_F32)
        return fail(QUIRE_E_UNSUPPORTED, "rows of type %d: the GPU seals f16, bf16 and f32",
                    (int)s.raw);
    if (!k_bits_of(s.pair.k))
        return fail(QUIRE_E_UNSUPPORTED,
                    "K codec %d has no GPU kernel: use kc8 kc4 kc3 kc2 km4 km3", (int)s.pair.k);
    if (!v_bits_of(s.pair.v))
        return fail(QUIRE_E_UNSUPPORTED, "V codec %d has no GPU kernel: use vt8 vt4 vt3 vt2",
                    (int)s.pair.v);
    if (s.k_dim < QUIRE_DIM_MIN || s.k_dim > THREADS || s.k_dim % QUIRE_DIM_STEP)
        return fail(QUIRE_E_UNSUPPORTED, "K head size %d: must be a multiple of 16 from 32 to 256",
                    (int)s.k_dim);
    if (is_mixed(s.pair.k) && !a.k_order)
        return fail(QUIRE_E_INVALID, "km4 and km3 need k_order");
    if (a.n_kv_heads < 1 || a.n_pages < 0 || (int64_t)a.n_pages * a.n_kv_heads > INT32_MAX)
        return fail(QUIRE_E_INVALID, "%d pages of %d KV heads", (int)a.n_pages, (int)a.n_kv_heads);
    if (!a.records.base)
        return fail(QUIRE_E_INVALID, "records are NULL");
    return check_rows(a.rows, "the pages to seal");
}

/* Records that overlapped would be written by several CTAs at once. */
static quire_status check_places(const quire_cuda_seal_args &a, const Record &record) {
    QUIRE_CUDA_TRY(check_records(a.records, a.n_kv_heads, (size_t)record.bytes));
    if (a.n_pages > 1 && a.records.page_stride < (size_t)record.bytes)
        return fail(QUIRE_E_INVALID, "records of pages must be %d bytes apart or more",
                    record.bytes);
    return QUIRE_OK;
}

using Kernel = void (*)(const Side, const Side);

template <quire_type R> static Kernel kernel_of(int v_dim) {
    switch (v_dim) {
    case 64:
        return seal_sides<64, R>;
    case 80:
        return seal_sides<80, R>;
    case 96:
        return seal_sides<96, R>;
    case 128:
        return seal_sides<128, R>;
    case 256:
        return seal_sides<256, R>;
    default:
        return nullptr;
    }
}

static quire_status seal(const quire_cuda_seal_args &a, cudaStream_t stream) {
    QUIRE_CUDA_TRY(check_args(a));
    const quire_page_shape &shape = a.shape;
    const Kernel kernel = shape.raw == QUIRE_F32    ? kernel_of<QUIRE_F32>(shape.v_dim)
                          : shape.raw == QUIRE_BF16 ? kernel_of<QUIRE_BF16>(shape.v_dim)
                                                    : kernel_of<QUIRE_F16>(shape.v_dim);
    if (!kernel)
        return fail(QUIRE_E_UNSUPPORTED, "V head size %d: the GPU seals 64, 80, 96, 128 and 256",
                    (int)shape.v_dim);
    const int k_bits = k_bits_of(shape.pair.k), v_bits = v_bits_of(shape.pair.v);
    const Record record = record_of(k_bits, shape.k_dim, v_bits, shape.v_dim);
    QUIRE_CUDA_TRY(check_places(a, record));
    if (a.n_pages == 0)
        return QUIRE_OK;

    Side k = {};
    k.rows = a.rows.k;
    k.slot = a.rows.k_slot, k.head = a.rows.k_head, k.token = a.rows.k_token;
    k.slots = a.slots, k.ids = a.ids, k.skip = a.skip;
    k.records = (uint8_t *)a.records.base;
    k.page_stride = a.records.page_stride, k.head_stride = a.records.head_stride;
    k.n_bad = a.n_bad;
    k.n_kv_heads = a.n_kv_heads;
    Side v = k;

    k.dim = shape.k_dim, k.bits = k_bits;
    k.n_mixed = is_mixed(shape.pair.k) ? shape.k_dim / 32 : 0;
    k.order = k.n_mixed ? a.k_order : nullptr;
    k.params = record.k_params;
    k.end = k.params + 4 * shape.k_dim, k.padded = record.v_codes;

    v.rows = a.rows.v;
    v.slot = a.rows.v_slot, v.head = a.rows.v_head, v.token = a.rows.v_token;
    v.dim = shape.v_dim, v.bits = v_bits;
    v.codes = record.v_codes, v.params = record.v_params;
    v.end = v.params + 2 * T, v.padded = record.bytes;

    const int v_bytes = shape.v_dim * V_STRIDE,
              shared_bytes = std::max(k_shared_bytes(shape.k_dim, shape.raw), v_bytes),
              most = std::max(k_shared_bytes(THREADS, shape.raw), v_bytes); /* of any K */
    /* With the kernel's own, more than the 48 KiB that need no permission? Every call sets the same
     * number, because another thread could set less between this and the launch. */
    if (shared_bytes > 40 * 1024)
        QUIRE_CUDA_TRY(
            check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                  "reserving shared memory"));
    kernel<<<dim3((unsigned)(a.n_pages * a.n_kv_heads), 2), THREADS, shared_bytes, stream>>>(k, v);
    return check(cudaGetLastError(), "launching the seal kernel");
}

} // namespace quire_cuda

extern "C" quire_status quire_cuda_seal(const quire_cuda_seal_args *args,
                                        struct CUstream_st *stream) {
    if (!args)
        return quire_cuda::fail(QUIRE_E_INVALID, "args is NULL");
    return quire_cuda::seal(*args, stream);
}
