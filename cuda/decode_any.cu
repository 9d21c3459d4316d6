/* Decode attention for every pair of codecs and any head sizes up to 256, in fp32 and one element
 * at a time: for pairs that have no kernel of their own. It is many times slower than those.
 *
 * A CTA has one part of an item (sequence and KV head). Parts depend on the item's length alone, as
 * in the exact mode, so that results do not depend on the batch. K stays in the codec's own space,
 * and q is brought there; sums over V are rotated back once, where the packed pages end.
 */
#include "decode_any.h"

#include "codes.cuh"
#include "decode.cuh"

namespace quire_cuda {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int MOST_HEADS = 2 * MAX_HEADS; /* of an item */
constexpr int SUMS = MOST_HEADS * 256 / THREADS;

/* Shared memory: one side of a record | tile (64, dim + 1) | q (3: natural, as packed, for signs;
 * heads, k_dim) | scores (heads, 64) | maxima, sums and factors (heads each) */
static __host__ __device__ int side_bytes(const AnySide &k, const AnySide &v) {
    return k.end - k.codes > v.end - v.codes ? k.end - k.codes : v.end - v.codes;
}
static __host__ __device__ int tile_floats(const AnySide &k, const AnySide &v) {
    return T * ((k.dim > v.dim ? k.dim : v.dim) + 1);
}

int any_shared_bytes(int heads, const AnyRecord &r) {
    return side_bytes(r.k, r.v) +
           4 * (tile_floats(r.k, r.v) + 3 * heads * r.k.dim + heads * T + 3 * heads);
}

/* n rows of `dim` channels: R, or R^T. `stream`: of the first pass's signs. All threads call it,
 * after a barrier; it ends with one. */
__device__ void rotate_rows(float *x, int n, int dim, int stream, bool back) {
    int length = 32;
    while (2 * length <= dim)
        length *= 2;
    const int passes = length == dim ? 1 : 4;
    const float norm = 1.0f / sqrtf((float)length);
    for (int i = 0; i < passes; i++) {
        const int pass = back ? passes - 1 - i : i, first = pass % 2 ? dim - length : 0;
        const auto scale = [&] {
            for (int j = threadIdx.x; j < n * length; j += THREADS) {
                const int d = first + j % length;
                const bool minus = sign_word(stream + pass, d / 64) >> (d % 64) & 1;
                x[j / length * dim + d] *= minus ? -norm : norm;
            }
            __syncthreads();
        };
        if (!back)
            scale();
        for (int h = 1; h < length; h *= 2) {
            for (int j = threadIdx.x; j < n * length / 2; j += THREADS) {
                const int k = j % (length / 2), d = first + k / h * 2 * h + k % h;
                float *at = x + j / (length / 2) * dim + d;
                const float a = at[0], b = at[h];
                at[0] = a + b;
                at[h] = a - b;
            }
            __syncthreads();
        }
        if (back)
            scale();
    }
}

struct AnyItem {
    const AnyParams &any;
    const DecodeParams &p;
    Item<true> it;
    ItemHeads heads;
    uint8_t *side;
    float *tile, *q, *q_packed, *q_signs, *scores, *m, *l, *by;
    float sums[SUMS]; /* of element threadIdx.x + i * THREADS of (heads, v_dim) */

    __device__ AnyItem(const AnyParams &any_, uint8_t *shared)
        : any(any_), p(any_.decode),
          it(make_item<true>(p, blockIdx.x / p.n_items_per_seq, blockIdx.x % p.n_items_per_seq, 0,
                             length_at(p, blockIdx.x / p.n_items_per_seq))),
          heads(heads_of_any()) {
        const int k_dim = any.k.dim, n = heads.count * k_dim;
        side = shared;
        tile = (float *)(shared + side_bytes(any.k, any.v));
        q = tile + tile_floats(any.k, any.v);
        q_packed = q + n;
        q_signs = q_packed + n;
        scores = q_signs + n;
        m = scores + heads.count * T;
        l = m + heads.count;
        by = l + heads.count;
    }
    __device__ ItemHeads heads_of_any() const { /* all of a KV head's */
        const int first = it.index * p.group;
        return {it.index, first, p.group, (size_t)it.seq * p.n_heads + first};
    }

    __device__ void load_query() {
        const int dim = any.k.dim, n = heads.count * dim;
        for (int h = threadIdx.x / 32; h < heads.count; h += WARPS) {
            bool bad = false;
            for (int d = threadIdx.x % 32; d < dim; d += 32) {
                const float x = raw_value(p.bf16, p.q[(heads.row + h) * dim + d]) * p.scale_log2;
                bad |= !(fabsf(x) <= LARGEST_QUERY);
                q[h * dim + d] = x;
            }
            if (__any_sync(~0u, bad))
                for (int d = threadIdx.x % 32; d < dim; d += 32)
                    q[h * dim + d] = __uint_as_float(0x7fc00000u);
            if (threadIdx.x % 32 == 0) {
                m[h] = NOTHING;
                l[h] = 0;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS)
            q_packed[i] = q[p.order ? i / dim * dim + p.order[heads.kv * dim + i % dim] : i];
        __syncthreads();
        if (any.k.is_rotated())
            rotate_rows(q_packed, heads.count, dim, 0, false);
        if (any.k.family == Family::prod) {
            for (int i = threadIdx.x; i < n; i += THREADS)
                q_signs[i] = q_packed[i];
            __syncthreads();
            rotate_rows(q_signs, heads.count, dim, 4, false);
        }
        for (int i = 0; i < SUMS; i++)
            sums[i] = 0;
    }

    /* scores (heads, 64), += or =, of the tile's n rows. */
    __device__ void multiply(const float *query, int n, bool add) {
        const int dim = any.k.dim;
        for (int i = threadIdx.x; i < heads.count * T; i += THREADS) {
            const int h = i / T, t = i % T;
            float x = add ? scores[i] : 0.0f;
            if (t < n)
                for (int d = 0; d < dim; d++)
                    x = fmaf(query[h * dim + d], tile[t * (dim + 1) + d], x);
            scores[i] = x;
        }
    }

    /* `token` gives the token of a row, or -1: not seen. n rows. */
    template <class F> __device__ void weigh(int n, F token) {
        const Sight<true> sight(p, it, heads);
        const int lane = threadIdx.x % 32;
        __syncthreads();
        for (int h = threadIdx.x / 32; h < heads.count; h += WARPS) {
            float x[2], top = m[h], sum = 0;
            for (int e = 0; e < 2; e++) {
                const int row = lane + 32 * e, t = row < n ? token(row) : -1;
                x[e] = t < 0 || sight.hides(p, t) ? -INFINITY
                                                  : sight.bend_head(p, scores[h * T + row], h, t);
                top = fmaxf(top, x[e]);
            }
            for (int i = 1; i < 32; i *= 2)
                top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
            for (int e = 0; e < 2; e++) {
                x[e] = exp2_approx(x[e] - top + WEIGHT_LOG2);
                scores[h * T + lane + 32 * e] = x[e];
                sum += x[e];
            }
            for (int i = 1; i < 32; i *= 2)
                sum += __shfl_xor_sync(~0u, sum, i);
            if (lane == 0) {
                by[h] = exp2_approx(m[h] - top);
                l[h] = l[h] * by[h] + sum;
                m[h] = top;
            }
        }
        __syncthreads();
    }

    __device__ void add_values(int n) {
        const int dim = any.v.dim;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int x = threadIdx.x + i * THREADS, h = x / dim, d = x % dim;
            if (h >= heads.count)
                continue;
            float sum = sums[i] * by[h];
            for (int t = 0; t < n; t++)
                sum = fmaf(scores[h * T + t], tile[t * (dim + 1) + d], sum);
            sums[i] = sum;
        }
        __syncthreads();
    }

    template <class F> __device__ void fill(int n, int dim, F value) {
        for (int i = threadIdx.x; i < n * dim; i += THREADS)
            tile[i / dim * (dim + 1) + i % dim] = value(i / dim, i % dim);
        __syncthreads();
    }

    /* A side of a record in shared memory; as the address of a whole record. */
    __device__ const uint8_t *take_side(const AnySide &s, const uint8_t *record) {
        for (int i = 16 * threadIdx.x; i < s.end - s.codes; i += 16 * THREADS)
            *(uint4 *)(side + i) = __ldg((const uint4 *)(record + s.codes + i));
        __syncthreads();
        return side - s.codes;
    }

    __device__ void attend_page(int page) {
        const int32_t id = p.pages[it.seq * p.pages_stride + page];
        const uint8_t *there = p.records + id * p.page_stride + heads.kv * p.head_stride;
        const uint8_t *record = take_side(any.k, there);
        fill(T, any.k.dim, [&](int t, int d) { return value_at(any.k, record, t, d); });
        multiply(q_packed, T, false);
        if (any.k.family == Family::prod) {
            __syncthreads();
            fill(T, any.k.dim, [&](int t, int d) { return sign_value(any.k, record, t, d); });
            multiply(q_signs, T, true);
        }
        if (any.k.family == Family::book) { /* the same for all tokens */
            const int dim = any.k.dim, lane = threadIdx.x % 32;
            __syncthreads();
            for (int h = threadIdx.x / 32; h < heads.count; h += WARPS) {
                float x = 0;
                for (int d = lane; d < dim; d += 32)
                    x = fmaf(q[h * dim + d], half_at(record + any.k.params, T + d), x);
                for (int i = 1; i < 32; i *= 2)
                    x += __shfl_xor_sync(~0u, x, i);
                scores[h * T + lane] += x;
                scores[h * T + lane + 32] += x;
            }
        }
        weigh(T, [&](int t) { return T * page + t < p.sinks ? -1 : T * page + t; });
        record = take_side(any.v, there);
        fill(T, any.v.dim, [&](int t, int d) { return value_at(any.v, record, t, d); });
        add_values(T);
    }

    __device__ void attend_rows(int first) { /* of the list of raw rows */
        const RawList rows(p, it.length);
        const int n = min(rows.all - first, RAW_ROWS);
        if (n <= 0)
            return;
        const int64_t slot = p.slots ? p.slots[it.seq] : it.seq;
        const auto element = [&](bool v, int i, int d) {
            const int row = first + i;
            const RawRows &from = row < rows.own ? p.own : p.sink;
            const int64_t at = row < rows.own ? row : row - rows.own;
            return raw_value(
                p.bf16,
                v ? from.v[slot * from.v_slot + heads.kv * from.v_head + at * from.v_token + d]
                  : from.k[slot * from.k_slot + heads.kv * from.k_head + at * from.k_token + d]);
        };
        fill(n, any.k.dim, [&](int i, int d) { return element(false, i, d); });
        multiply(q, n, false);
        weigh(n, [&](int i) { return rows.token(first + i); });
        fill(n, any.v.dim, [&](int i, int d) { return element(true, i, d); });
        add_values(n);
    }

    __device__ void leave_packed() {
        if (!any.v.is_rotated())
            return;
        const int n = heads.count * any.v.dim;
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (threadIdx.x + i * THREADS < n)
                tile[threadIdx.x + i * THREADS] = sums[i];
        __syncthreads();
        rotate_rows(tile, heads.count, any.v.dim, 0, true);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (threadIdx.x + i * THREADS < n)
                sums[i] = tile[threadIdx.x + i * THREADS];
        __syncthreads();
    }

    __device__ void run(int part) {
        const int begin = it.part_start(p, part), end = it.part_start(p, part + 1);
        load_query();
        int unit = begin;
        for (; unit < min(end, it.pages); unit++)
            attend_page(it.page(unit));
        leave_packed();
        for (; unit < end; unit++)
            attend_rows(RAW_ROWS * (unit - it.pages));
        const size_t row = ((size_t)ticket_of(p, it) * p.exact + part) * p.item_heads;
        const int dim = any.v.dim;
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int x = threadIdx.x + i * THREADS;
            if (x < heads.count * dim)
                __stcg(p.part_o + row * dim + x, sums[i]);
        }
        if ((int)threadIdx.x < heads.count)
            __stcg(p.part_ml + row + threadIdx.x, make_float2(m[threadIdx.x], l[threadIdx.x]));
    }

    __device__ void merge() {
        const int n = it.parts(p), dim = any.v.dim;
        const size_t row = (size_t)ticket_of(p, it) * p.exact * p.item_heads;
        for (int x = threadIdx.x; x < heads.count * dim / 2; x += THREADS) {
            const int h = x / (dim / 2), d = x % (dim / 2) * 2;
            float top = NOTHING, sum = 0, a = 0, b = 0;
            for (int i = 0; i < n; i++)
                top = fmaxf(top, __ldcg(p.part_ml + row + i * p.item_heads + h).x);
            for (int i = 0; i < n; i++) {
                const size_t at = row + i * p.item_heads + h;
                const float2 ml = __ldcg(p.part_ml + at),
                             v = __ldcg((const float2 *)(p.part_o + at * dim + d));
                const float factor = exp2_approx(ml.x - top);
                sum += factor * ml.y;
                a += factor * v.x;
                b += factor * v.y;
            }
            finish<true>(p, heads, h, dim, d, top, sum, a, b);
        }
    }
};

__global__ void __launch_bounds__(THREADS) decode_any(const __grid_constant__ AnyParams any) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ bool last;
    AnyItem item(any, shared);
    const int parts = item.it.parts(any.decode), part = blockIdx.y;
    if (part >= parts)
        return;
    item.run(part);
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *ticket = any.decode.tickets + ticket_of(any.decode, item.it);
        last = draw_ticket(ticket, 1) == (unsigned)parts - 1;
        if (last)
            *ticket = 0; /* ready for the next launch */
    }
    __syncthreads();
    if (last)
        item.merge();
}

cudaError_t any_prepare(int limit) {
    return cudaFuncSetAttribute(decode_any, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
}

cudaError_t any_launch(const AnyParams &params, int shared_bytes, cudaStream_t stream) {
    const DecodeParams &p = params.decode;
    decode_any<<<dim3((unsigned)(p.n_seqs * p.n_items_per_seq), (unsigned)p.exact), THREADS,
                 (size_t)shared_bytes, stream>>>(params);
    return cudaGetLastError();
}

} // namespace quire_cuda
