/* Raw rows in prefill, those of a query's own page and the sinks: made operands in shared memory.
 */
#ifndef QUIRE_CUDA_PREFILL_ROWS_CUH
#define QUIRE_CUDA_PREFILL_ROWS_CUH

#include "prefill_products.cuh"
#include "rotation.cuh"

namespace quire_cuda {

template <class S> struct TeamRows : TeamProducts<S> {
    using Base = TeamProducts<S>;
    using Base::Base;
    using Base::CHUNKS, Base::place, Base::clear_image, Base::load_chunk, Base::sinks_fit;
    using Base::D, Base::N, Base::p, Base::thread, Base::lane, Base::w, Base::r, Base::c,
        Base::barrier, Base::mine, Base::notes, Base::segment;
    using typename Base::Places, typename Base::Unit;

    /* Rows that follow each other in memory. */
    struct Rows {
        const uint16_t *k, *v;
        int64_t k_token, v_token;
    };
    /* Where the rows of a raw unit lie. */
    struct Run {
        Unit unit;
        Rows rows, sinks;

        __device__ __forceinline__ int all() const { return unit.n + unit.sinks; }
        __device__ __forceinline__ const uint16_t *key(int row) const {
            return unit.is_sink(row) ? sinks.k + (row - unit.n) * sinks.k_token
                                     : rows.k + row * rows.k_token;
        }
        __device__ __forceinline__ const uint16_t *value(int row) const {
            return unit.is_sink(row) ? sinks.v + (row - unit.n) * sinks.v_token
                                     : rows.v + row * rows.v_token;
        }
    };

    __device__ __forceinline__ Rows rows_at(const RawRows &rows, int row) const {
        const Segment &g = segment();
        const int64_t at = p.slots ? __ldg(p.slots + g.seq) : g.seq;
        return {rows.k + at * rows.k_slot + g.kv * rows.k_head + row * rows.k_token,
                rows.v + at * rows.v_slot + g.kv * rows.v_head + row * rows.v_token, rows.k_token,
                rows.v_token};
    }

    /* Own pages first, then the sinks, unless they are beside the last one. */
    __device__ __forceinline__ Run run_of(int index) const {
        const int page = notes().position[0] / T + index, last = notes().position[N - 1];
        const Rows sinks = rows_at(p.sink, 0);
        if (page > last / T)
            return {{SINKS, 0, p.sinks, 0}, sinks, sinks};
        return {{OWN, page * T, min(T, last + 1 - page * T),
                 page == last / T && sinks_fit(last) ? p.sinks : 0},
                rows_at(p.own, (page - segment().position / T) * T),
                sinks};
    }

    __device__ __forceinline__ static int row_of_token(int t) {
        return t / 16 * 16 + t % 16 / 2 + t % 2 * 8;
    }

    /* K, and what takes the place of V's scales: a power of two for each token, from the norm of
     * its row, which the rotation keeps. Elements divided by it are about 1/256, and at most
     * sqrt(D)/128. Half a warp has a row, and several of them are on the way at once. Rows beyond
     * the last are hidden: anything may be in their place. */
    __device__ __forceinline__ void place_keys(const Run &run) const {
        barrier(); /* the place is free */
        clear_image(mine() + S::RAW_AT, S::SLABS * 8192);
        if ((int)thread >= run.all() && thread < T)
            notes().token_scale[thread] = __float2half(0x1p-14f);
        if (p.bf16)
            place_rows<true>(run);
        else
            place_rows<false>(run);
        publish_shared();
        barrier();
    }

    template <bool BF16> __device__ __forceinline__ void place_rows(const Run &run) const {
        constexpr int TOGETHER = CHUNKS > 1 ? 2 : 4;
        const int all = run.all(), first = 2 * w() + lane() / 16;
        uint8_t *image = mine() + S::RAW_AT;
#pragma unroll 1
        for (int begin = 0; begin < all; begin += 8 * TOGETHER) {
            uint4 k[TOGETHER][CHUNKS], v[TOGETHER][CHUNKS];
#pragma unroll
            for (int i = 0; i < TOGETHER * CHUNKS; i++) {
                const int row = min(begin + first + i / CHUNKS * 8, all - 1);
                const int chunk = 16 * (i % CHUNKS) + lane() % 16;
                k[i / CHUNKS][i % CHUNKS] = load_chunk(run.key(row), chunk, true);
                v[i / CHUNKS][i % CHUNKS] = load_chunk(run.value(row), chunk, true);
            }
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
                const int chunk = 16 * j + lane() % 16;
                if (D % 128 != 0 && chunk >= D / 8)
                    continue;
                const Places places(notes().k_place + 8 * chunk, row_of_token(first));
#pragma unroll
                for (int i = 0; i < TOGETHER; i++)
                    place<BF16>(image, places, begin * 128 + i / 2 * 2048 + i % 2 * 512, i % 2,
                                k[i][j], 1.0f);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < CHUNKS; j++) {
                    const uint4 x = v[i][j];
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float2 y = raw_pair(BF16, e == 0   ? x.x
                                                        : e == 1 ? x.y
                                                        : e == 2 ? x.z
                                                                 : x.w);
                        sum += y.x * y.x + y.y * y.y;
                    }
                }
#pragma unroll
                for (int h = 1; h < 16; h *= 2)
                    sum += __shfl_xor_sync(~0u, sum, h);
                const int t = begin + first + 8 * i;
                const float size = sqrtf(sum / D) * (256 / S::V_UNIT);
                const float power = __uint_as_float(__float_as_uint(size) & 0x7f800000u);
                if (lane() % 16 == 0 && t < all)
                    notes().token_scale[t] = __float2half(fminf(fmaxf(power, 0x1p-14f), 0x1p15f));
            }
        }
    }

    /* V's rows, rotated, in the same place: 16 tokens at a time, four of them a warp's. The next
     * ones are on the way meanwhile. */
    __device__ __forceinline__ void place_values(const Run &run) const {
        const int all = run.all();
        uint32_t x[D / 16], next[D / 16];
        const auto load = [&](int t) {
            const uint32_t *row = (const uint32_t *)run.value(min(t, all - 1)) + r();
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                next[j] = t < all ? __ldg(row + 8 * j) : 0;
        };
        load(4 * w() + c());
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int t = 16 * i + 4 * w() + c(), row = row_of_token(t);
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                x[j] = next[j];
            if (i < 3)
                load(t + 16);
            float y[D / 16][2] = {}; /* rows beyond have no weight, but must be finite: zeros */
            if (t - c() < all) {
#pragma unroll
                for (int j = 0; j < D / 16; j++)
                    *(float2 *)y[j] = raw_pair(p.bf16, x[j]);
                Rotation<D, 1>::rotate(y);
            }
            const float by = 1 / (__half2float(notes().token_scale[t]) * S::V_UNIT);
            uint8_t *to = mine() + S::RAW_AT + row * 128 + 2 * r();
#pragma unroll
            for (int j = 0; j < D / 16; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    *(half *)(to + j / 4 * 8192 + ((j % 4 * 32 + 16 * e) ^ (row & 7) << 4)) =
                        __float2half(y[j][e] * by);
        }
        publish_shared();
        barrier();
    }
};

} // namespace quire_cuda

#endif
