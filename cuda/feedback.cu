/* Query-aware rounding of K, as src/codec/error_feedback.c computes it, bit for bit; that file says
 * what it is for. Compiled without contraction (-fmad=false).
 *
 * Tokens do not depend on each other, channels of a token do. Two threads have a token: each adds
 * up what one channel of a pair gets of the errors before it, in their order, and both then round
 * the pair. One CTA has a page and KV head. */
#include "feedback.h"

#include "args.h"
#include "fail.h"
#include "pack_k.cuh"
#include "record.h"

namespace quire_cuda {

constexpr int THREADS = 2 * T;
constexpr int MOST_STAGED = 128; /* head size up to which the weights fit into shared memory */

struct FeedbackParams {
    const void *rows;
    int64_t slot, head, token;
    const int32_t *slots, *ids, *skip;
    uint8_t *records;
    size_t page_stride, head_stride;
    int n_kv_heads, dim, bits, n_mixed, params;
    Feedback f;
};

/* Of pair j: 2j weights for its first channel, 2j for its second, and the direction of an ellipse.
 */
__device__ __forceinline__ int feedback_at(int j) { return 2 * j * j; }

/* What rounding a channel takes. */
struct Channel {
    float scale, zero, inverse, mid, top;
    int place, channel;

    __device__ __forceinline__ Channel(const FeedbackParams &p, const uint8_t *record, int place_,
                                       int channel_)
        : place(place_), channel(channel_) {
        const uint16_t *params = (const uint16_t *)(record + p.params);
        scale = from_f16(params[place]);
        zero = from_f16(params[p.dim + place]);
        inverse = scale > 0 ? 1.0f / scale : 0.0f;
        top = (float)((1 << k_code_bits(p.bits, p.n_mixed, place)) - 1);
        mid = top * 0.5f;
    }
    /* The code of x. */
    __device__ __forceinline__ float round(float x, float carried) const {
        float code = (x + carried - zero) * inverse + mid;
        code = code < 0 ? 0 : code > top ? top : code;
        return (code + MAGIC) - MAGIC;
    }
    /* The error that a code leaves. */
    __device__ __forceinline__ float error(float x, float code) const {
        return x - (zero + scale * (code - mid));
    }
};

/* How a pair has turned since page 0, and what its second channel takes of the first one's error.
 */
struct Turn {
    float c, i, within;

    __device__ __forceinline__ Turn(const double *turn, const float *ellipse) {
        const double cosine = turn[0], sine = turn[1], a = ellipse[0], b = ellipse[1];
        const double cc = cosine * cosine - sine * sine, ii = 2 * cosine * sine;
        c = (float)cosine;
        i = (float)sine;
        within = (float)((a * ii + b * cc) / (1 - (a * cc - b * ii)));
    }
};

/* Shared memory: errors (dim, 64), weights where they fit, channels, turns, rows (64, dim + 8),
 * codes (64, dim + 4). */
static int shared_bytes(int dim, quire_type raw) {
    return T * dim * 4 + (dim <= MOST_STAGED ? dim * dim / 2 * 4 : 0) + dim * (int)sizeof(Channel) +
           dim / 2 * (int)sizeof(Turn) + T * (dim + 8) * element_bytes(raw) + T * (dim + 4);
}

/* What the errors before add up to, in their order. */
__device__ __forceinline__ float weighted(const float2 *weights, const float *errors, int n) {
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < n; k += 2) {
        const float2 w = weights[k / 2];
        sum += w.x * errors[k * T];
        sum += w.y * errors[(k + 1) * T];
    }
    return sum;
}

template <quire_type R>
static __global__ void __launch_bounds__(THREADS)
    round_page(const __grid_constant__ FeedbackParams p) {
    using Element = typename Rows<R>::Element;
    constexpr int WIDE = 16 / sizeof(Element); /* elements of one load */
    extern __shared__ __align__(16) uint8_t shared[];
    const int page = blockIdx.x / p.n_kv_heads, head = blockIdx.x % p.n_kv_heads, dim = p.dim;
    const int skip = p.skip ? p.skip[page] : 0;
    if (skip >= T)
        return;
    const bool staged = dim <= MOST_STAGED;
    float *errors = (float *)shared, *weights = errors + T * dim;
    Channel *channels = (Channel *)(weights + (staged ? dim * dim / 2 : 0));
    Turn *turns = (Turn *)(channels + dim);
    Element *raw = (Element *)(turns + dim / 2);
    const int raw_stride = dim + 8, stride = dim + 4;
    uint8_t *codes = (uint8_t *)(raw + T * raw_stride);
    const Element *rows =
        (const Element *)p.rows + (p.slots ? p.slots[page] : page) * p.slot + head * p.head;
    uint8_t *record =
        p.records + (p.ids ? p.ids[page] : page) * p.page_stride + head * p.head_stride;
    const float *given = p.f.weights + (size_t)head * (dim * dim / 2);
    for (int i = threadIdx.x; i < T * dim / WIDE; i += THREADS) {
        const int t = i / (dim / WIDE), d = i % (dim / WIDE) * WIDE;
        *(uint4 *)(raw + t * raw_stride + d) = *(const uint4 *)(rows + t * p.token + d);
    }
    for (int i = threadIdx.x; staged && i < dim * dim / 8; i += THREADS)
        ((float4 *)weights)[i] = ((const float4 *)given)[i];
    for (int i = threadIdx.x; i < dim; i += THREADS)
        channels[i] = Channel(p, record, p.f.places[head * dim + i], p.f.channels[i]);
    for (int j = threadIdx.x; j < dim / 2; j += THREADS)
        turns[j] = Turn(p.f.turns + (size_t)p.f.numbers[page] * dim + 2 * j,
                        given + feedback_at(j) + 4 * j);
    __syncthreads();

    const int t = threadIdx.x / 2, second = threadIdx.x % 2;
    const float *from = staged ? weights : given;
    float *mine = errors + t;
    uint8_t *to = codes + t * stride;
    const auto value = [&](const Channel &channel) {
        return t < skip ? channel.zero : Rows<R>::load(raw[t * raw_stride + channel.channel]);
    };
#pragma unroll 1
    for (int j = 0; j < dim / 2; j++) {
        const Channel &first = channels[2 * j], &next = channels[2 * j + 1];
        const float c = turns[j].c, i = turns[j].i;
        const float own = weighted((const float2 *)(from + feedback_at(j) + second * 2 * j), mine,
                                   2 * j),
                    other = __shfl_xor_sync(~0u, own, 1);
        const float still0 = second ? other : own, still1 = second ? own : other;
        const float carried = c * still0 - i * still1;
        float later = i * still0 + c * still1;
        const float x0 = value(first), code0 = first.round(x0, carried),
                    e0 = first.error(x0, code0);
        later += turns[j].within * (e0 + carried);
        const float x1 = value(next), code1 = next.round(x1, later), e1 = next.error(x1, code1);
        mine[(2 * j + second) * T] = second ? c * e1 - i * e0 : c * e0 + i * e1;
        /* Both threads know both codes; each stores one. Skipped tokens have zeros. */
        to[second ? next.place : first.place] = t < skip ? 0 : (uint8_t)(second ? code1 : code0);
        __syncwarp(); /* a token's two threads are neighbours */
    }
    __syncthreads();
    pack_k(p.bits, codes, stride, dim, p.n_mixed, record);
}

/* *limit: what a launch may have at most. */
static quire_status check_shared(int dim, quire_type rows, int *limit) {
    QUIRE_CUDA_TRY(shared_limit(limit));
    if (shared_bytes(dim, rows) > *limit)
        return fail(QUIRE_E_UNSUPPORTED,
                    "query-aware rounding of K with head size %d takes %d bytes of shared memory: "
                    "this GPU has %d",
                    dim, shared_bytes(dim, rows), *limit);
    return QUIRE_OK;
}

quire_status check_feedback(int dim, quire_type rows) {
    int limit;
    return check_shared(dim, rows, &limit);
}

quire_status round_with_feedback(const quire_cuda_seal_args &a, const Feedback &feedback,
                                 cudaStream_t stream) {
    if (a.n_pages == 0)
        return QUIRE_OK;
    const quire_page_shape &shape = a.shape;
    FeedbackParams p = {};
    p.rows = a.rows.k;
    p.slot = a.rows.k_slot, p.head = a.rows.k_head, p.token = a.rows.k_token;
    p.slots = a.slots, p.ids = a.ids, p.skip = a.skip;
    p.records = (uint8_t *)a.records.base;
    p.page_stride = a.records.page_stride, p.head_stride = a.records.head_stride;
    p.n_kv_heads = a.n_kv_heads, p.dim = shape.k_dim, p.bits = k_bits_of(shape.pair.k);
    p.n_mixed = is_mixed(shape.pair.k) ? shape.k_dim / 32 : 0;
    p.params = record_of(p.bits, shape.k_dim, v_bits_of(shape.pair.v), shape.v_dim).k_params;
    p.f = feedback;
    const auto kernel = shape.raw == QUIRE_F32    ? round_page<QUIRE_F32>
                        : shape.raw == QUIRE_BF16 ? round_page<QUIRE_BF16>
                                                  : round_page<QUIRE_F16>;
    int limit;
    QUIRE_CUDA_TRY(check_shared(p.dim, shape.raw, &limit));
    /* All that there is (the kernel has none of its own), not what this launch takes: another
     * thread could set less before it. */
    QUIRE_CUDA_TRY(
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
              "reserving shared memory"));
    kernel<<<(unsigned)(a.n_pages * a.n_kv_heads), THREADS, shared_bytes(p.dim, shape.raw),
             stream>>>(p);
    return check(cudaGetLastError(), "launching query-aware rounding");
}

} // namespace quire_cuda
