/* What a team does in prefill: its queries, and the pages and raw rows that they see. prefill.cuh
 * says how operands lie. */
#ifndef QUIRE_CUDA_PREFILL_TEAM_CUH
#define QUIRE_CUDA_PREFILL_TEAM_CUH

#include "prefill_keys.cuh"
#include "prefill_merge.cuh"

namespace quire_cuda {

/* Product of q and the scale: beyond it a query counts as not finite. */
constexpr float LARGEST_PRODUCT = 1e20f;
/* A lane's sum of weights; times less than 2 it must fit into fp16. */
constexpr float WEIGHTS_LIMIT = 16384;
/* Where all scores are looked at, the maximum moves if it is passed by 2^4. */
constexpr float RAISE_BY = 4;

/* A team's sums, in registers. */
template <class S> struct Sums {
    float o[S::HALVES][S::N / 2], s[S::N / 2], l[S::N / 4], minus_m[S::N / 4];
    half2 down; /* 1 / the power of two that V's scales are divided by; 0: no page was seen yet */
};

/* What a unit of a segment is: a packed page, or up to 64 raw rows. */
enum Kind { PACKED, OWN, SINKS };

template <class S> struct Team {
    static constexpr int D = S::D, N = S::N;
    using Product = Wgmma<N>;
    using Notes = typename S::Notes;
    using Crew = typename S::Crew;
    using State = Sums<S>;
    using Keys = uint32_t[S::SLABS][4][4];

    const PrefillParams &p;
    uint8_t *const shared;
    int team;
    unsigned thread;   /* of the team */
    unsigned n = 0;    /* packed pages so far */
    unsigned turn = 0; /* segments so far */
    bool all_careful = false;

    __device__ __forceinline__ Team(const PrefillParams &p_, uint8_t *shared_, int team_)
        : p(p_), shared(shared_), team(team_), thread(threadIdx.x % 128) {}

    /* Places in the warp, and of the warp, are computed again for each page: kept, they would be
     * spilled. */
    __device__ __forceinline__ void forget_places() { asm volatile("" : "+r"(thread), "+r"(team)); }
    __device__ __forceinline__ int lane() const { return (int)(thread % 32); }
    __device__ __forceinline__ int w() const { return (int)(thread / 32); }
    __device__ __forceinline__ int r() const { return (int)(thread % 32 / 4); }
    __device__ __forceinline__ int c() const { return (int)(thread % 4); }
    __device__ __forceinline__ void barrier() const { team_barrier(team); }
    __device__ __forceinline__ uint8_t *mine() const { return shared + team * S::TEAM_BYTES; }
    __device__ __forceinline__ uint32_t mine_at() const {
        return shared_address(shared) + team * S::TEAM_BYTES;
    }
    __device__ __forceinline__ Notes &notes() const {
        return *(Notes *)(shared + S::NOTES_AT + team * (int)sizeof(Notes));
    }
    __device__ __forceinline__ Crew &crew() const {
        return ((Crew *)(shared + S::CREWS_AT))[team / S::TEAMS];
    }
    __device__ __forceinline__ const Segment &segment() const { return crew().segments[turn & 1]; }
    __device__ __forceinline__ uint32_t weights_at() const {
        return mine_at() + S::P_AT + (n & 1) * S::P_BYTES;
    }

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

    /* -------------------------------------------------------------- scores to weights */

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

    /* -------------------------------------------------------------- packed pages */

    __device__ __forceinline__ int slot() const { return (int)(n % S::SLOTS); }
    __device__ __forceinline__ const uint8_t *page() const {
        return shared + S::RING_AT + (team / S::TEAMS * S::SLOTS + slot()) * S::RECORD.bytes;
    }

    template <int b> __device__ __forceinline__ void take_keys(Keys &k) const {
        unpack_slab<S, b>(page(), w(), lane(), k[b]);
    }

    template <int b> __device__ __forceinline__ void key_products(State &st, const Keys &k) const {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (4 * b + t >= S::STEPS)
                continue;
            const uint64_t q = operand(operand_at(mine_at()), b * N * 128 + t * 32);
            if (b == 0 && t == 0)
                Product::first_product(st.s, k[b][t], q);
            else
                Product::product(st.s, k[b][t], q);
        }
    }

    /* All of K is unpacked before its products where it fits into registers beside V's codes; else
     * the first slab, and each other one while the products before it run. */
    static constexpr int SLABS_AHEAD = S::SLABS <= 2 ? S::SLABS : 1;

    template <int b> __device__ __forceinline__ void take_slabs(Keys &k) const {
        if constexpr (b < SLABS_AHEAD) {
            take_keys<b>(k);
            take_slabs<b + 1>(k);
        }
    }
    template <int b> __device__ __forceinline__ void slab_products(State &st, Keys &k) const {
        if constexpr (b < S::SLABS) {
            if (b >= SLABS_AHEAD) {
                take_keys<b>(k);
                products_begin();
            }
            key_products<b>(st, k);
            slab_products<b + 1>(st, k);
        }
    }

    /* K of a page, as soon as it is there. */
    __device__ __forceinline__ void page_keys(Keys &k) const {
        barrier_wait(shared_address(&crew().full[slot()]), n / S::SLOTS & 1);
        if constexpr (S::IMAGES > 0)
            barrier_wait(shared_address(&crew().unpacked[image()]), n / S::IMAGES & 1);
        else
            take_slabs<0>(k);
    }
    __device__ __forceinline__ int image() const { return (int)(n % (S::IMAGES + !S::IMAGES)); }

    /* Scores from an image: of K's rows, or of raw rows. */
    __device__ __forceinline__ void score_image(State &st, uint32_t image) const {
        const uint32_t k = operand_at(image), q = operand_at(mine_at());
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            const uint64_t a = operand(k, step / 4 * 8192 + step % 4 * 32);
            const uint64_t b = operand(q, step / 4 * N * 128 + step % 4 * 32);
            if (step == 0)
                Product::first_by_rows(st.s, a, b);
            else
                Product::by_rows(st.s, a, b);
        }
    }

    using Values = uint4[S::HALVES][S::V_BITS / 4];
    __device__ __forceinline__ void load_values(Values &v) const {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++) {
            const int tile = D % 64 == 0 || 4 * m + w() < D / 16
                                 ? 4 * m + w()
                                 : 0; /* there is none: any will do */
#pragma unroll
            for (int h = 0; h < S::V_BITS / 4; h++)
                v[m][h] = *(const uint4 *)(page() + S::RECORD.v_codes +
                                           (tile * (S::V_BITS / 4) + h) * 512 + lane() * 16);
        }
    }

    template <int m>
    __device__ __forceinline__ void value_products(State &st, const Values &v) const {
        if constexpr (m < S::HALVES) {
            uint32_t a[4][4];
            if constexpr (S::V_BITS == 4) {
                unpack_v4(v[m][0], a);
            } else {
                unpack_v8(v[m][0], a[0], a[1]);
                unpack_v8(v[m][1], a[2], a[3]);
            }
            if (m == 0) {
                take_turn<S::TEAMS>(team);
                pin_sums(st);
            }
            products_begin();
#pragma unroll
            for (int t = 0; t < 4; t++)
                Product::product(st.o[m], a[t], operand(operand_at(weights_at()), t * 32));
            value_products<m + 1>(st, v);
        }
    }

    __device__ __forceinline__ static void pin_sums(State &st) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
            pin(st.o[m]);
    }

    /* -------------------------------------------------------------- raw rows */

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

    /* -------------------------------------------------------------- a segment */

    /* Scores of the page whose K was taken; on the way. */
    __device__ __forceinline__ void score_page(State &st, Keys &k) const {
        products_begin();
        if constexpr (S::IMAGES > 0)
            score_image(st, shared_address(shared) + S::IMAGES_AT + image() * S::IMAGE_BYTES);
        else
            slab_products<0>(st, k);
        products_commit();
    }
    /* The scores are there. */
    __device__ __forceinline__ void await_scores(State &st) const {
        products_wait();
        pin(st.s);
        if (S::IMAGES > 0 && lane() == 0)
            barrier_arrive(shared_address(&crew().scored[image()]));
    }
    __device__ __forceinline__ uint32_t page_scales() const {
        return *(const uint32_t *)(page() + S::RECORD.v_params + (16 * w() + 2 * r()) * 2);
    }
    /* P V of the page, on the way; its slot is free again. */
    __device__ __forceinline__ void add_page(State &st, const Values &v) {
        value_products<0>(st, v);
        products_commit();
        barrier_arrive(shared_address(&crew().empty[slot()])); /* every lane: it has read, too */
        n++;
    }

    /* Pages that all queries see whole. One page: exponentials | P V, and the next page's K
     * unpacked meanwhile | Q K of the next page. Nothing is in flight where accumulators are
     * touched: ptxas would serialize all products otherwise. */
    __device__ __forceinline__ void attend_calm_pages(State &st, int left) {
        const float times = notes().factor;
        Keys k;
        page_keys(k);
        score_page(st, k);
        for (;;) {
            const uint32_t scales = page_scales();
            await_scores(st);
            Values v;
            weigh(st, times, scales, [&] { load_values(v); });
            add_page(st, v);
            forget_places();
            const bool more = --left > 0;
            if (more)
                page_keys(k);
            if (S::IMAGES == 0 || !more) {
                products_wait();
                pin_sums(st);
            }
            if (!more)
                break;
            score_page(st, k);
            give_turn<S::TEAMS>(team);
        }
        give_turn<S::TEAMS>(team);
    }

    /* Any unit. */
    __device__ __forceinline__ void attend_unit(State &st, int i) {
        const Segment &g = segment();
        const bool packed = i < uniform(g.end);
        const uint32_t raw = operand_at(mine_at() + S::RAW_AT);
        Unit unit;
        uint32_t scales;
        if (packed) {
            Keys k;
            page_keys(k);
            score_page(st, k);
            unit = {PACKED, g.page(i) * T, T, 0};
            scales = page_scales();
            await_scores(st);
        } else {
            const Run run = run_of(i - g.end);
            unit = run.unit;
            place_keys(run);
            products_begin();
            score_image(st, mine_at() + S::RAW_AT);
            products_commit();
            scales = *(const uint32_t *)&notes().token_scale[16 * w() + 2 * r()];
            products_wait();
            pin(st.s);
        }
        const float times = look(st, unit, scales);
        weigh(st, times, scales, [] {}); /* the barrier in it: all warps have their scores */
        if (packed) {
            Values v;
            load_values(v);
            add_page(st, v);
            products_wait();
            give_turn<S::TEAMS>(team);
        } else {
            place_values(run_of(i - g.end));
            pin_sums(st);
            products_begin();
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
#pragma unroll
                for (int t = 0; t < 4; t++)
                    Product::by_columns(st.o[m], operand(raw, m * 8192 + t * 2048),
                                        operand(operand_at(weights_at()), t * 32));
            products_commit();
            products_wait();
        }
        pin_sums(st);
    }

    __device__ __forceinline__ void attend(State &st) {
        const Segment &g = segment();
        for (int i = uniform(g.begin); i < uniform(g.end + notes().raw_units);) {
            const int past = min(notes().upset, g.end);
            const int left = uniform(i >= notes().calm ? past - i : 0);
            if (left > 0) {
                attend_calm_pages(st, left);
                i += left;
            } else {
                attend_unit(st, i);
                i++;
            }
        }
    }

    /* -------------------------------------------------------------- results */

    __device__ __forceinline__ void finish(const State &st) const {
        barrier(); /* Q, P and the notes are free */
        reduce([&](int i) { return st.l[i]; }, [](float a, float b) { return a + b; });
        float *stage = (float *)mine() + 2 * c() * S::STAGE_ROW + 16 * w() + 2 * r();
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int y = i / 2 * 8 + i % 2; /* and 2c */
            if (thread < 4)
                notes().maximum[y + 2 * c()] = -st.minus_m[i];
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
                if (D % 64 == 0 || 4 * m + w() < D / 16)
                    *(float2 *)(stage + y * S::STAGE_ROW + 64 * m) =
                        make_float2(st.o[m][i / 2 * 4 + i % 2], st.o[m][i / 2 * 4 + 2 + i % 2]);
        }
        barrier();
        const float unit = unit_of(st) * S::V_UNIT;
#pragma unroll 1
        for (int y = 4 * w() + c(); y < N; y += 16)
            finish_four(unit, y);
        barrier();
    }

    /* Four queries of the team, y for this lane. */
    __device__ __forceinline__ void finish_four(float unit, int y) const {
        const Segment &g = segment();
        const float *stage = (const float *)mine() + y * S::STAGE_ROW + 2 * r();
        const int x = team % S::TEAMS * N + y, query = g.query + x;
        const bool here = query < g.n_queries;
        const float m = notes().maximum[y], l = notes().reduced[y];
        float v[D / 16][2];
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            *(float2 *)v[j] = *(const float2 *)(stage + 16 * j);
        if (g.slot < 0) {
            const int row = row_of(p, query), head = g.kv * p.group + query - row * p.group;
            finish_query<D>(p, here, (size_t)g.row + row, head, v, m, l, unit);
        } else if (here) {
            const size_t at = (size_t)g.slot * S::QUERIES + x;
            float *to = p.part_o + at * D + 2 * r();
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                *(float2 *)(to + 16 * j) = make_float2(v[j][0] * unit, v[j][1] * unit);
            if (r() == 0)
                p.part_ml[at] = make_float2(m, l);
        }
    }

    /* -------------------------------------------------------------- all of it */

    __device__ __forceinline__ static void clear(State &st) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                st.o[m][i] = 0;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            st.l[i] = 0;
            st.minus_m[i] = -NOTHING_SEEN;
        }
        st.down = __float2half2_rn(0.0f);
    }

    __device__ __forceinline__ void work() {
        if (team + 1 == S::TEAMS)
            give_turn<S::TEAMS>(team);
        for (;;) {
            for (bool more = true; more; turn++) {
                barrier_wait(shared_address(&crew().ready[turn & 1]), turn / 2 & 1);
                more = uniform(segment().more);
                if (more) {
                    load_queries();
                    State st;
                    clear(st);
                    attend(st);
                    finish(st);
                }
                barrier_arrive(shared_address(&crew().free[turn & 1]));
            }
            if (all_careful || !uniform(meet_at_end(crew())))
                return;
            all_careful = true;
        }
    }
};

} // namespace quire_cuda

#endif
