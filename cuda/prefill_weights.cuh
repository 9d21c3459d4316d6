/* Scores to weights in prefill: what a query does not see is hidden, maxima move, exponentials are
 * taken and summed. */
#ifndef QUIRE_CUDA_PREFILL_WEIGHTS_CUH
#define QUIRE_CUDA_PREFILL_WEIGHTS_CUH

#include "prefill_queries.cuh"

namespace quire_cuda {

/* A lane's sum of weights; times less than 2 it must fit into fp16. */
constexpr float WEIGHTS_LIMIT = 16384;
/* Where all scores are looked at, the maximum moves if it is passed by 2^4. */
constexpr float RAISE_BY = 4;

/* What a unit of a segment is: a packed page, or up to 64 raw rows. */
enum Kind { PACKED, OWN, SINKS };

template <class S> struct TeamWeights : TeamQueries<S> {
    using Base = TeamQueries<S>;
    using Base::Base;
    using Base::N, Base::p, Base::team, Base::thread, Base::n, Base::lane, Base::w, Base::r,
        Base::c, Base::barrier, Base::mine, Base::notes, Base::crew, Base::weights_at;
    using typename Base::State;

    /* One number for each query from those of all lanes, in notes.reduced. The room is that of the
     * next weights, which nobody reads. */
    template <class Value, class Operation>
    __device__ __forceinline__ void reduce(Value value, Operation operation) const {
        float *room = (float *)(mine() + S::P_AT + (n & 1) * S::P_BYTES);
        float *row = room + thread / 4 * N + 2 * c();
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            *(float2 *)(row + 8 * j) = make_float2(value(2 * j), value(2 * j + 1));
        barrier();
        if (thread < N) {
            float all[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[i] = room[i * N + thread];
#pragma unroll
            for (int i = 4; i < 32; i++)
                all[i % 4] = operation(all[i % 4], room[i * N + thread]);
            notes().reduced[thread] =
                operation(operation(all[0], all[1]), operation(all[2], all[3]));
        }
        barrier();
    }
    static_assert(32 * N * (int)sizeof(float) <= S::P_BYTES && N <= 128, "room for a reduction");

    /* A unit: tokens from `first` on. A raw one has n rows of an own page, then `sinks` sinks; or
     * sinks alone, n of them. Nobody sees rows beyond. */
    struct Unit {
        Kind kind;
        int first, n, sinks;

        __device__ __forceinline__ bool is_sink(int row) const { return sinks > 0 && row >= n; }
        __device__ __forceinline__ int token(int row) const {
            return is_sink(row) ? row - n : first + row;
        }
    };

    /* Hides scores of tokens that a query does not see. `row`: this lane's first. */
    __device__ __forceinline__ void hide(State &st, const Unit &unit, int row) const {
        if (p.window > 0)
            hide_outside_window(st, unit, row);
        else if (unit.kind == PACKED) /* a query sees pages before its own */
            hide_where(st, [&](int i, int h) {
                const int t = unit.first + row + h;
                return t < p.sinks || t >= (i & -T);
            });
        else { /* of its own page the tokens up to itself; sinks, if they are in another page */
            const bool sink[2] = {unit.kind == SINKS || unit.is_sink(row),
                                  unit.kind == SINKS || unit.is_sink(row + 1)};
            const int all = unit.n + unit.sinks;
            const int past = INT32_MAX; /* a token that nobody sees */
            int t[2], always[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                t[h] = row + h >= all ? past : sink[h] ? T : unit.first + row + h;
                always[h] = sink[h] ? INT32_MAX : 0;
            }
            hide_where(st, [&](int i, int h) {
                return (unsigned)(i - t[h]) > (unsigned)((i & (T - 1)) | always[h]);
            });
        }
    }
    /* `hidden`: whether the query at position i does not see the lane's token h (0 or 1). */
    template <class F> __device__ __forceinline__ void hide_where(State &st, F hidden) const {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int2 i = *(const int2 *)&notes().position[8 * j + 2 * c()];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (hidden(i.x, h))
                    st.s[4 * j + 2 * h] = -INFINITY;
                if (hidden(i.y, h))
                    st.s[4 * j + 1 + 2 * h] = -INFINITY;
            }
        }
    }
    __device__ __forceinline__ void hide_outside_window(State &st, const Unit &unit,
                                                        int row) const {
        hide_where(st, [&](int i, int h) {
            const int page = i & -T, low = i - p.window + 1;
            const Kind kind = unit.is_sink(row + h) ? SINKS : unit.kind;
            const int t = unit.token(row + h);
            const int from = kind == PACKED ? p.sinks : kind == OWN ? page : 0;
            const int to = kind == PACKED ? page : kind == OWN ? i + 1 : page > 0 ? p.sinks : 0;
            return t < from || t >= to || (t < low && t >= p.keep);
        });
    }

    /* All scores of a unit at once: capped, biased, and hidden where a query does not see a token;
     * then the maximum moves, and the unit of V. Returns what scores are to be multiplied with:
     * they are log2 of weights then, the maximum included. */
    __device__ __forceinline__ float look(State &st, const Unit &unit, uint32_t scales) const {
        const int row = 16 * w() + 2 * r();
        const bool bent = p.softcap_log2 > 0 || p.alibi;
        const float times = uniform(notes().alike && !bent) ? notes().factor : 1.0f;
        note_scales(scales);
        if (bent)
            bend(st, unit.token(row), unit.token(row + 1));
        else if (!uniform(notes().alike))
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                st.s[i] *= notes().factors[i / 4 * 8 + 2 * c() + i % 2];
        if (unit.kind != PACKED || p.window > 0 ||
            uniform(unit.first < p.sinks || unit.first / T >= notes().position[0] / T))
            hide(st, unit, row);
        reduce(
            [&](int i) {
                return fmaxf(st.s[i / 2 * 4 + i % 2], st.s[i / 2 * 4 + 2 + i % 2]) * times;
            },
            [](float a, float b) { return fmaxf(a, b); });
        const float ratio = raise_unit(st);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 tops = *(const float2 *)&notes().reduced[8 * j + 2 * c()];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float higher = e ? tops.y : tops.x, m = -st.minus_m[2 * j + e];
                const float moved = higher > m + RAISE_BY ? higher : m, by = exp2_approx(m - moved);
                st.minus_m[2 * j + e] = -moved;
                st.l[2 * j + e] *= by;
                rescale(st, j, e, by * ratio);
            }
        }
        return times;
    }

    /* Scores to log2 units, soft-capped and with ALiBi. */
    __device__ __forceinline__ void bend(State &st, int token, int next) const {
        const float cap = p.softcap_log2, twice = 2 * LOG2_E / cap;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int y = i / 4 * 8 + 2 * c() + i % 2;
            float x = st.s[i] * notes().factors[y];
            if (cap > 0) /* cap * tanh(x / cap) */
                x = cap * (1 - __fdividef(2.0f, 1 + exp2_approx(x * twice)));
            st.s[i] =
                x + notes().slope[y] * (float)((i % 4 < 2 ? token : next) - notes().position[y]);
        }
    }

    __device__ __forceinline__ static void rescale(State &st, int j, int e, float by) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++) {
            st.o[m][4 * j + e] *= by;
            st.o[m][4 * j + 2 + e] *= by;
        }
    }

    /* The largest scale of V among the warp's tokens. */
    __device__ __forceinline__ void note_scales(uint32_t scales) const {
        const float scale = fmaxf(__low2float(halves(scales)), __high2float(halves(scales)));
        const unsigned largest = __reduce_max_sync(~0u, __float_as_uint(scale)); /* not negative */
        if (lane() == 0)
            notes().unit[w()] = __uint_as_float(largest);
    }
    __device__ __forceinline__ static float unit_of(const State &st) {
        const float down = __low2float(st.down);
        return down > 0 ? 1 / down : 0.0f;
    }
    /* From what all warps noted. Returns what sums are multiplied with. */
    __device__ __forceinline__ float raise_unit(State &st) const {
        const float *noted = notes().unit, unit = unit_of(st);
        const float largest = fmaxf(fmaxf(noted[0], noted[1]), fmaxf(noted[2], noted[3]));
        const float power =
            fmaxf(__uint_as_float(__float_as_uint(largest) & 0x7f800000u), 0x1p-14f);
        if (!(power > unit))
            return 1;
        st.down = __float2half2_rn(1 / power);
        return unit / power;
    }

    /* P^T of queries 8j .. 8j+15, transposed: a row is a query, its 64 tokens in the order of S^T's
     * rows. */
    __device__ __forceinline__ void store_weights(uint32_t to, int j,
                                                  const uint32_t (&x)[4]) const {
        if (j + 1 < N / 8)
            store_transposed(to + j * 1024, x);
        else
            store_transposed_2(to + j * 1024, x[0], x[1]);
    }
    __device__ __forceinline__ uint32_t first_weights() const {
        return weights_at() + ((lane() & 7) + (lane() >> 4) * 8) * 128 +
               (((2 * w() + (lane() >> 3 & 1)) ^ (lane() & 7)) << 4);
    }
    __device__ __forceinline__ static void round_weights(const State &st, int j, half2 by,
                                                         uint32_t &a, uint32_t &b) {
        a = bits(__hmul2(__floats2half2_rn(st.s[4 * j], st.s[4 * j + 1]), __low2half2(by)));
        b = bits(__hmul2(__floats2half2_rn(st.s[4 * j + 2], st.s[4 * j + 3]), __high2half2(by)));
    }

    /* Exponentials of s * times, their sums, and P in shared memory, seen by all of the team.
     * `meanwhile`: what is done before the team meets. */
    template <class F>
    __device__ __forceinline__ void weigh(State &st, float times, uint32_t scales,
                                          F meanwhile) const {
        const half2 by = __hmul2(halves(scales), st.down);
        const uint32_t to = first_weights();
        float top = 0;
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t x[4];
#pragma unroll
            for (int y = 0; y < 2; y++) {
                const int i = j + y;
                if (i >= N / 8)
                    continue;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    st.s[4 * i + e] =
                        exp2_approx(fmaf(st.s[4 * i + e], times, st.minus_m[2 * i + e % 2]));
                st.l[2 * i] += st.s[4 * i] + st.s[4 * i + 2];
                st.l[2 * i + 1] += st.s[4 * i + 1] + st.s[4 * i + 3];
                top = fmaxf(top, fmaxf(st.l[2 * i], st.l[2 * i + 1]));
                round_weights(st, i, by, x[2 * y], x[2 * y + 1]);
            }
            store_weights(to, j, x);
        }
        publish_shared();
        meanwhile();
        const bool large = __low2float(by) >= 2 || __high2float(by) >= 2;
        if (team_any(team, top > WEIGHTS_LIMIT || large))
            weigh_again(st, scales);
    }

    /* Rare: the maximum and the unit of V move, and P is written again. */
    __device__ __forceinline__ void weigh_again(State &st, uint32_t scales) const {
        note_scales(scales);
        reduce([&](int i) { return st.l[i]; }, [](float a, float b) { return fmaxf(a, b); });
        const float ratio = raise_unit(st);
        bool failed = false;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 sums = *(const float2 *)&notes().reduced[8 * j + 2 * c()];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float x = e ? sums.y : sums.x;
                failed |= x > 1e38f; /* beyond fp32: scores are needed that are gone */
                const float d = x > 16 ? __log2f(x) : 0.0f, by = exp2_approx(-d);
                st.s[4 * j + e] *= by;
                st.s[4 * j + 2 + e] *= by;
                st.l[2 * j + e] *= by;
                st.minus_m[2 * j + e] -= d;
                rescale(st, j, e, by * ratio);
            }
        }
        if (failed)
            crew().failed = 1;
        const half2 by = __hmul2(halves(scales), st.down);
        const uint32_t to = first_weights();
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t x[4];
            round_weights(st, j, by, x[0], x[1]);
            if (j + 1 < N / 8)
                round_weights(st, j + 1, by, x[2], x[3]);
            store_weights(to, j, x);
        }
        publish_shared();
        barrier();
    }
};

} // namespace quire_cuda

#endif
