/* A prefill team's queries: made operands in shared memory, with notes of what they see. */
#ifndef QUIRE_CUDA_PREFILL_QUERIES_CUH
#define QUIRE_CUDA_PREFILL_QUERIES_CUH

#include "prefill_member.cuh"
#include "values.cuh"

namespace quire_cuda {

/* Product of q and the scale: beyond it a query counts as not finite. */
constexpr float LARGEST_PRODUCT = 1e20f;

template <class S> struct TeamQueries : TeamMember<S> {
    using Base = TeamMember<S>;
    using Base::Base;
    using Base::D, Base::N, Base::p, Base::team, Base::all_careful, Base::lane, Base::w,
        Base::barrier, Base::mine, Base::notes, Base::segment;
    using typename Base::Notes;

    /* -------------------------------------------------------------- rows as products want them */

    /* Steps of 16 places: k = 8h+2c+e of step EACH*i+g is place COLUMN * (4i+c) + 4g+2h+e. */
    __device__ __forceinline__ void find_places() const {
        const int kv = segment().kv;
        for (int place = threadIdx.x % 128; place < D; place += 128) {
            const int column = place / S::COLUMN, rest = place % S::COLUMN;
            const int k = (column / 4 * S::EACH + rest / 4) * 16 + rest % 4 / 2 * 8 +
                          column % 4 * 2 + rest % 2;
            const int channel = S::ORDERED ? __ldg(p.order + kv * D + place) : place;
            notes().q_place[channel] = (uint16_t)(k / 64 * N * 128 + k % 64 * 2);
            notes().k_place[channel] = (uint16_t)(k / 64 * T * 128 + k % 64 * 2);
        }
    }

    /* Bytes of a lane's eight channels in row `row` of an image. */
    struct Places {
        uint32_t at[8];

        __device__ __forceinline__ Places(const uint16_t *places, int row) {
            const uint4 x = *(const uint4 *)places;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const uint32_t pair = e < 2 ? x.x : e < 4 ? x.y : e < 6 ? x.z : x.w;
                at[e] = ((e % 2 ? pair >> 16 : pair & 0xffff) ^ (uint32_t)(row & 7) << 4) +
                        (uint32_t)row * 128;
            }
        }
    };
    /* Eight channels, times `by`, so many bytes further on; where rows are 4 further on, the
     * swizzle flips a bit. */
    template <bool BF16>
    __device__ __forceinline__ static void place(uint8_t *image, const Places &places, int further,
                                                 bool flip, const uint4 &x, float by) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t pair = e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
            const float2 v = raw_pair(BF16, pair);
            const half2 y = __floats2half2_rn(v.x * by, v.y * by);
            *(half *)(image + further + (places.at[2 * e] ^ (flip ? 64 : 0))) = __low2half(y);
            *(half *)(image + further + (places.at[2 * e + 1] ^ (flip ? 64 : 0))) = __high2half(y);
        }
    }

    /* Places that no channel has, where the last group of columns is narrow: zeros. */
    __device__ __forceinline__ void clear_image(uint8_t *image, int bytes) const {
        if constexpr (S::STEPS * 16 > D) {
            for (int at = threadIdx.x % 128 * 16; at < bytes; at += 128 * 16)
                *(uint4 *)(image + at) = make_uint4(0, 0, 0, 0);
            barrier();
        }
    }

    /* -------------------------------------------------------------- queries */

    static constexpr int CHUNKS =
        (D / 8 + 15) / 16; /* of eight channels, for each lane of the half warp that has a row */
    __device__ __forceinline__ static uint4 load_chunk(const uint16_t *row, int chunk, bool here) {
        return here && (D % 128 == 0 || chunk < D / 8) ? __ldg((const uint4 *)row + chunk)
                                                       : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ const uint16_t *query_row(int query) const {
        const Segment &g = segment();
        const int row = row_of(p, query), head = g.kv * p.group + query - row * p.group;
        return p.q + ((size_t)(g.row + row) * p.n_heads + head) * D;
    }

    /* Bits of the largest element of a query, as the half warp that has it finds it: without the
     * sign they are ordered as integers, and NaN comes last. */
    __device__ __forceinline__ uint32_t largest_of(const uint4 (&x)[CHUNKS]) const {
        uint32_t pair = 0;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                pair = __vmaxu2(pair, (e == 0   ? x[i].x
                                       : e == 1 ? x[i].y
                                       : e == 2 ? x[i].z
                                                : x[i].w) &
                                          0x7fff7fffu);
        uint32_t largest = max(pair & 0xffff, pair >> 16);
#pragma unroll
        for (int h = 1; h < 16; h *= 2)
            largest = max(largest, __shfl_xor_sync(~0u, largest, h));
        return largest;
    }
    /* The power of two below it; NaN where an element is not finite, or too large for scores. */
    __device__ __forceinline__ float power_of(uint32_t largest) const {
        const float x = raw_value(p.bf16, (uint16_t)largest);
        const float power = fmaxf(__uint_as_float(__float_as_uint(x) & 0x7f800000u), 0x1p-100f);
        return x * p.scale_log2 <= LARGEST_PRODUCT ? power : __uint_as_float(0x7fc00000u);
    }

    /* q enters products divided by a power of two: the same for all queries of the team, or for
     * each its own where they differ by so much that bits would be lost. A query that is not finite
     * becomes NaN. */
    __device__ __forceinline__ void load_queries() const {
        const Segment &g = segment();
        Notes &notes = this->notes();
        const int first = g.query + team % S::TEAMS * N, row = 2 * w() + lane() / 16,
                  in_half = lane() % 16;
        uint4 x[N / 8][CHUNKS]; /* all are on the way before the first is used */
#pragma unroll
        for (int k = 0; k < N / 8; k++)
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                x[k][i] = load_chunk(query_row(first + 8 * k + row), 16 * i + in_half,
                                     first + 8 * k + row < g.n_queries);
        find_places();
#pragma unroll
        for (int k = 0; k < N / 8; k++) {
            const uint32_t largest = largest_of(x[k]);
            if (in_half == 0)
                notes.sizes[8 * k + row] = largest;
        }
        clear_image(mine(), S::Q_BYTES);
        barrier();
        float largest = 0x1p-100f, smallest = 0x1p100f;
        for (int y = lane(); y < N; y += 32) {
            const float power = power_of(notes.sizes[y]); /* NaN passes both */
            largest = fmaxf(largest, power);
            if (power > 0x1p-100f)
                smallest = fminf(smallest, power);
        }
        largest = __uint_as_float(
            __reduce_max_sync(~0u, __float_as_uint(largest))); /* positive: ordered as integers */
        smallest = __uint_as_float(__reduce_min_sync(~0u, __float_as_uint(smallest)));
        const bool alike = smallest * 256 >= largest;
        if (p.bf16)
            place_queries<true>(x, alike ? largest : 0.0f);
        else
            place_queries<false>(x, alike ? largest : 0.0f);
        for (int y = threadIdx.x % 128; y < N; y += 128) {
            const int query = min(first + y, g.n_queries - 1), at = row_of(p, query);
            const float power = power_of(notes.sizes[y]);
            notes.factors[y] = (alike ? largest : power) * p.scale_log2;
            notes.position[y] = g.position + at;
            notes.slope[y] =
                p.alibi ? __ldg(p.alibi + g.kv * p.group + query - at * p.group) * LOG2_E : 0.0f;
        }
        if (threadIdx.x % 128 == 0) {
            notes.alike = alike;
            notes.factor = fmaxf(largest * p.scale_log2, 0x1p-120f);
            note_pages(alike && !all_careful && p.softcap_log2 == 0 && !p.alibi,
                       g.position + row_of(p, min(first, g.n_queries - 1)),
                       g.position + row_of(p, min(first + N - 1, g.n_queries - 1)));
        }
        publish_shared();
        barrier();
    }

    /* `power`: what all queries are divided by; 0: each by its own. */
    template <bool BF16>
    __device__ __forceinline__ void place_queries(const uint4 (&x)[N / 8][CHUNKS],
                                                  float power) const {
        const int row = 2 * w() + lane() / 16;
        const float by = 1 / power;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int chunk = 16 * i + lane() % 16;
            if (D % 128 != 0 && chunk >= D / 8)
                continue;
            const Places places(notes().q_place + 8 * chunk, row);
#pragma unroll
            for (int k = 0; k < N / 8; k++) {
                const float own = power_of(notes().sizes[8 * k + row]);
                place<BF16>(mine(), places, k * 1024, false, x[k][i],
                            own != own   ? own
                            : power == 0 ? 1 / own
                                         : by);
            }
        }
    }

    /* Whether the sinks have room beside the rows of the last query's own page: a unit less then.
     */
    __device__ __forceinline__ bool sinks_fit(int last) const {
        return last >= T && last % T + 1 + p.sinks <= T;
    }

    /* Which packed units are seen whole by all queries. The one after a page that is not needs a
     * look, too: a query may have seen nothing before it, and then it has no maximum. */
    __device__ __forceinline__ void note_pages(bool easy, int first, int last) const {
        const Segment &g = segment();
        Notes &notes = this->notes();
        int calm = g.begin + 1;
        if (g.begin == 0 && p.sinks == T)
            calm = 2;
        if (p.window > 0) /* pages that begin inside the window of the last query */
            calm = max(calm, g.kept + max(last - p.window + T, 0) / T - g.from + 1);
        notes.calm = easy ? calm : INT32_MAX;
        notes.upset = g.kept + max(first / T - g.from, 0); /* that of the first query's page */
        const bool sinks_apart = last >= T && p.sinks > 0 && !sinks_fit(last);
        notes.raw_units = g.tail ? last / T - first / T + 1 + sinks_apart : 0;
    }
};

} // namespace quire_cuda

#endif
