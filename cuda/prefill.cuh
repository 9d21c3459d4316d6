/* Prefill attention over packed pages: many query rows of each sequence.
 *
 * A row sees the pages before its own packed, its own page raw up to itself, and the sinks raw, as in decode: results do not
 * depend on how a prompt is cut into calls.
 *
 * All is transposed: S^T = K Q^T and O^T = V^T P^T. Codes are then the left operand, which Hopper's tensor cores take from
 * registers, and the order of a page's bytes is that operand's: a lane loads 16 bytes and unpacks them (unpack.cuh). Neither
 * K nor V is ever written down as fp16. Q (once for a tile) and P (once for a page) lie in shared memory.
 *
 * A team is a warpgroup: it has N queries. The teams of a crew share the tile and its pages, and take turns at the tensor
 * cores; one warp fetches pages for a crew. Crews are the schedule's workers (prefill_schedule.cuh).
 *     rows of S^T: warp w has tokens 16w .. 16w+15; row r is token 2r, row r+8 token 2r+1
 *     rows of O^T: half m, warp w: channels 64m+16w ..; row r is channel 2r, row r+8 channel 2r+1
 *     columns: queries; a lane has 8j+2c and 8j+2c+1
 *
 * The running maximum is that of the first page, and moves only when sums of weights near the end of fp16's range. Where
 * that is not enough (a score 2^128 above all before), the worker does its work again, looking at all scores before it takes
 * exponentials, as it does for pages that are seen in part, soft-capped or biased scores, and queries of very different size.
 */
#ifndef QUIRE_CUDA_PREFILL_CUH
#define QUIRE_CUDA_PREFILL_CUH

#include "prefill_schedule.cuh"
#include "rotation.cuh"
#include "unpack.cuh"
#include "values.cuh"
#include "wgmma.cuh"

namespace quire_cuda {

constexpr float NOTHING_SEEN = -1e30f;   /* running maximum of a query that has seen nothing: below every score */
constexpr float LARGEST_PRODUCT = 1e20f; /* of q and the scale: beyond it a query counts as not finite */
constexpr float WEIGHTS_LIMIT = 16384;   /* a lane's sum of weights; times less than 2 it must fit into fp16 */
constexpr float RAISE_BY = 4;            /* where all scores are looked at: the maximum moves if passed by 2^4 */

template <quire_codec K, quire_codec V, int D_, int N_, int TEAMS_, int CREWS_, int SLOTS_> struct PrefillShape {
    static constexpr int D = D_, N = N_, TEAMS = TEAMS_, CREWS = CREWS_, SLOTS = SLOTS_;
    static constexpr int ALL_TEAMS = TEAMS * CREWS, THREADS = 128 * (ALL_TEAMS + 1), QUERIES = N * TEAMS;
    static constexpr int K_BITS = k_bits_of(K), V_BITS = v_bits_of(V);
    static constexpr Record RECORD = record_of(K_BITS, D, V_BITS, D);
    static constexpr bool ORDERED = is_mixed(K);
    static constexpr int MIXED = ORDERED ? D / 32 : 0;  /* blocks of 16 places */
    static constexpr int COLUMN = K_BITS == 8 ? 8 : 16; /* places in an atom of K */
    static constexpr int COLUMNS = D / COLUMN;          /* taken four at a time; the last group may be narrower */
    static constexpr int GROUPS = (COLUMNS + 3) / 4, EACH = COLUMN / 4, STEPS = GROUPS * EACH; /* of 16 places */
    static constexpr int SLABS = (STEPS + 3) / 4, HALVES = (D + 63) / 64; /* 64 places; 64 channels */
    static constexpr int WORDS = (STEPS * 8 + 31) / 32;                   /* pairs of places for each lane of a warp */
    static constexpr float V_UNIT = v_step(V_BITS) * 512;                 /* codes of V come times 2^-9 */
    /* Registers of a thread: all have the same at first, then the warps that fetch give up theirs. */
    static constexpr int PRODUCER_REGISTERS = 24, EVEN_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int REGISTERS =
        (EVEN_REGISTERS * (ALL_TEAMS + 1) - PRODUCER_REGISTERS) / ALL_TEAMS / 8 * 8;

    /* Shared memory; parts of a team, then of a crew, then what is small. */
    static constexpr int Q_BYTES = SLABS * N * 128, P_BYTES = N * 128;
    static constexpr int RAW_BYTES = (SLABS > HALVES ? SLABS : HALVES) * 8192;
    static constexpr int P_AT = ALL_TEAMS * Q_BYTES, RAW_AT = P_AT + ALL_TEAMS * 2 * P_BYTES;
    static constexpr int RING_AT = RAW_AT + ALL_TEAMS * RAW_BYTES;
    static constexpr int NOTES_AT = RING_AT + CREWS * SLOTS * RECORD.bytes;
    struct Notes { /* of a team */
        float reduce[4][N];
        float power[N], slope[N], maximum[N];
        int position[N];
        float unit[4];
        half token_scale[T];
        Walker walker;
    };
    struct Crew {
        uint64_t full[SLOTS], empty[SLOTS];
        int failed;
        Walker walker; /* of the warp that fetches */
    };
    static constexpr int CREWS_AT = NOTES_AT + align_up(ALL_TEAMS * (int)sizeof(Notes), 16);
    static constexpr int SHARED_BYTES = CREWS_AT + CREWS * (int)sizeof(Crew);

    /* Results leave through the place of Q, some queries at a time; rows are 16 longer, so that banks differ. */
    static constexpr int STAGE_ROW = D + 16, STAGE_BLOCKS = Q_BYTES / (8 * STAGE_ROW * 4);
    static_assert(STAGE_BLOCKS > 0 && N % 8 == 0 && ALL_TEAMS <= 4, "shape");
};

/* ------------------------------------------------------------------ barriers of teams and crews */

/* The same in all lanes, which the compiler cannot see: products in branches that it takes for divergent are serialized. */
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

__device__ __forceinline__ void team_barrier(int team) { asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory"); }
__device__ __forceinline__ bool team_any(int team, bool x) {
    int y;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, 128, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(y)
                 : "r"((int)x), "r"(team + 1)
                 : "memory");
    return y;
}
__device__ __forceinline__ void take_turn(int team) { asm volatile("bar.sync %0, 256;" ::"r"(team + 5) : "memory"); }
__device__ __forceinline__ void give_turn(int team) {
    asm volatile("bar.arrive %0, 256;" ::"r"((team ^ 1) + 5) : "memory");
}
template <int THREADS> __device__ __forceinline__ void crew_barrier(int crew) {
    asm volatile("bar.sync %0, %1;" ::"r"(crew + 9), "n"(THREADS) : "memory");
}

/* ------------------------------------------------------------------ rows into the order of packed places */

/* A row of K or q as products want it: step s of 16 places, in it k = 8h+2c+e <-> place COLUMN * (4i+c) + 4g+2h+e with
 * s = EACH * i + g. Each lane of a warp has some pairs of places. */
template <class S> struct Placing {
    int channel[S::WORDS][2]; /* -1: no place, zero */

    __device__ Placing(const uint16_t *order, int kv) {
#pragma unroll
        for (int i = 0; i < S::WORDS; i++) {
            const int k = 2 * (32 * i + threadIdx.x % 32), step = k / 16, group = step / S::EACH;
            const int column = 4 * group + k % 8 / 2, place = S::COLUMN * column + step % S::EACH * 4 + k % 16 / 8 * 2;
            const bool here = column < S::COLUMNS && step < S::STEPS;
#pragma unroll
            for (int e = 0; e < 2; e++)
                channel[i][e] = !here          ? -1
                                : S::ORDERED ? __ldg(order + kv * S::D + place + e)
                                             : place + e;
        }
    }

    /* slab_rows: rows of the image, which has 64 places to a slab. */
    __device__ void store(uint8_t *image, int slab_rows, int row, const uint16_t *from, bool bf16, float by) const {
#pragma unroll
        for (int i = 0; i < S::WORDS; i++) {
            const int k = 2 * (32 * i + threadIdx.x % 32);
            uint32_t x = 0;
            if (channel[i][0] >= 0 && from)
                x = bits(__floats2half2_rn(raw_value(bf16, __ldg(from + channel[i][0])) * by,
                                           raw_value(bf16, __ldg(from + channel[i][1])) * by));
            if (S::STEPS % 4 == 0 || k < S::SLABS * 64)
                *(uint32_t *)(image + k / 64 * slab_rows * 128 + swizzled(row, k % 64 * 2)) = x;
        }
    }
};

/* ------------------------------------------------------------------ results */

/* A warp's four queries: lane 4r+c has channels 16k+2r, 16k+2r+1 of query c, in rotated space. */
template <int D>
__device__ __forceinline__ void finish_query(const PrefillParams &p, bool here, size_t row, int head,
                                             float (&o)[D / 16][2], float m, float l, float unit) {
    Rotation<D, 1>::unrotate(o);
    if (!here)
        return;
    if (p.sink_logits) {
        const float sink = __ldg(p.sink_logits + head) * 1.44269504088896340736f, higher = fmaxf(m, sink);
        const float by = exp2_approx(m - higher);
        l = l * by + exp2_approx(sink - higher);
        unit *= by;
        m = higher;
    }
    const float by = l == 0 ? 0.0f : unit / l;
    const int r = threadIdx.x % 32 / 4;
    const size_t at = (row * p.n_heads + head) * D + 2 * r;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        store_pair(p.out, p.out_type, at + 16 * k, o[k][0] * by, o[k][1] * by);
    if (r == 0 && p.lse)
        p.lse[row * p.n_heads + head] = l == 0 ? -INFINITY : (m + log2f(l)) * 0.69314718055994530942f;
}

/* Block x: the tile that the border between workers x and x + 1 cuts, if that is the first border in it. */
template <int D> __global__ void prefill_merge(const __grid_constant__ PrefillParams p) {
    const WorkList list(p);
    const int worker = blockIdx.x;
    if (worker + 1 >= list.workers)
        return;
    const long long border = list.first(worker + 1);
    const Tile tile = find_tile(p, border);
    const long long stop = tile.start + tile.pages + 1;
    if (border == tile.start || border >= stop || list.first(worker) > tile.start)
        return;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int x = 4 * (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) + c;
    const int query = tile.index * p.tile_queries + x;
    const bool here = x < p.tile_queries && query < tile.rows * p.group;
    float m = NOTHING_SEEN, l = 0, o[D / 16][2] = {};
    for (int part = worker; part == worker || (part < list.workers && list.first(part) < stop); part++) {
        if (!here)
            continue;
        const size_t at = (size_t)(2 * part + (part == worker ? 1 : 0)) * p.tile_queries + x;
        const float2 ml = p.part_ml[at];
        const float higher = fmaxf(m, ml.x), old = exp2_approx(m - higher), by = exp2_approx(ml.x - higher);
        l = l * old + ml.y * by;
        m = higher;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const float2 v = *(const float2 *)(p.part_o + at * D + 16 * k + 2 * r);
            o[k][0] = o[k][0] * old + v.x * by;
            o[k][1] = o[k][1] * old + v.y * by;
        }
    }
    finish_query<D>(p, here, (size_t)p.starts[tile.seq] + (here ? query / p.group : 0),
                    tile.kv * p.group + (here ? query % p.group : 0), o, m, l, 1.0f);
}

/* ------------------------------------------------------------------ a team at work */

/* A team's sums, in registers. It stands apart from Team so that the compiler keeps it there. */
template <class S> struct Sums {
    float o[S::HALVES][S::N / 2], s[S::N / 2], l[S::N / 4], minus_m[S::N / 4];
    float unit; /* power of two that V's scales are divided by */
    half2 down; /* 1 / unit */
};

template <class S> struct Team {
    static constexpr int D = S::D, N = S::N;
    using Product = Wgmma<N>;
    using Notes = typename S::Notes;
    using Crew = typename S::Crew;
    using State = Sums<S>;
    using Keys = uint32_t[S::SLABS][4][4];

    const PrefillParams &p;
    uint8_t *const shared;
    const int team, lane, r, c, w; /* w: warp of the team */
    Notes &notes;
    Crew &crew;
    const uint32_t q_at, p_at, raw_at;
    const uint32_t weights_at; /* where this lane's rows of P begin */
    int slot = 0, phase = 0, buffer = 0;
    bool all_careful = false, careful = false;
    float factor = 0; /* of scores, where all queries have the same */

    __device__ __forceinline__ Team(const PrefillParams &p_, uint8_t *shared_, int team_)
        : p(p_), shared(shared_), team(team_), lane(threadIdx.x % 32), r(lane / 4), c(lane % 4),
          w(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)), notes(((Notes *)(shared_ + S::NOTES_AT))[team_]),
          crew(((Crew *)(shared_ + S::CREWS_AT))[team_ / S::TEAMS]), q_at(shared_address(shared_) + team_ * S::Q_BYTES),
          p_at(shared_address(shared_) + S::P_AT + team_ * 2 * S::P_BYTES),
          raw_at(shared_address(shared_) + S::RAW_AT + team_ * S::RAW_BYTES),
          weights_at(p_at + ((lane & 7) + (lane >> 4) * 8) * 128 + (((2 * w + (lane >> 3 & 1)) ^ (lane & 7)) << 4)) {}

    __device__ __forceinline__ void barrier() const { team_barrier(team); }

    /* -------------------------------------------------------------- queries */

    __device__ __forceinline__ const uint16_t *query_row(const Segment &g, int query) const {
        return p.q + ((size_t)(g.row + query / p.group) * p.n_heads + g.kv * p.group + query % p.group) * D;
    }

    /* q enters products divided by a power of two: the same for all queries of the team, or for each its own where they
     * differ by so much that bits would be lost. A query that is not finite becomes NaN. */
    __device__ __forceinline__ void load_queries(const Segment &g) {
        const int first = g.query + team % S::TEAMS * N;
        constexpr int CHUNKS = (D / 8 + 15) / 16; /* half a warp has a query */
#pragma unroll 4
        for (int y = 2 * w + lane / 16; y < N; y += 8) {
            const int query = min(first + y, g.n_queries - 1);
            const uint16_t *row = query_row(g, query);
            float largest = 0;
            bool bad = false;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                const int chunk = 16 * i + lane % 16;
                uint4 x = make_uint4(0, 0, 0, 0);
                if (D % 128 == 0 || chunk < D / 8)
                    x = __ldg((const uint4 *)row + chunk);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t pair = e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
                    const float a = fabsf(raw_value(p.bf16, pair & 0xffff)), b = fabsf(raw_value(p.bf16, pair >> 16));
                    largest = fmaxf(largest, fmaxf(a, b));
                    bad |= !(a * p.scale_log2 <= LARGEST_PRODUCT) || !(b * p.scale_log2 <= LARGEST_PRODUCT);
                }
            }
#pragma unroll
            for (int h = 1; h < 16; h *= 2) {
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, h));
                bad |= __shfl_xor_sync(~0u, (int)bad, h) != 0;
            }
            if (lane % 16 == 0) {
                const float power = fmaxf(__uint_as_float(__float_as_uint(largest) & 0x7f800000u), 0x1p-100f);
                notes.power[y] = bad ? __uint_as_float(0x7fc00000u) : power;
                notes.position[y] = g.position + query / p.group;
                notes.slope[y] =
                    p.alibi ? __ldg(p.alibi + g.kv * p.group + query % p.group) * 1.44269504088896340736f : 0.0f;
            }
        }
        barrier();
        float largest = 0x1p-100f, smallest = 0x1p100f;
        for (int y = lane; y < N; y += 32) {
            const float power = notes.power[y]; /* NaN passes both */
            largest = fmaxf(largest, power);
            if (power > 0x1p-100f)
                smallest = fminf(smallest, power);
        }
        largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest))); /* positive: ordered as integers */
        smallest = __uint_as_float(__reduce_min_sync(~0u, __float_as_uint(smallest)));
        careful = all_careful || p.softcap_log2 > 0 || p.alibi || smallest * 256 < largest;
        factor = largest * p.scale_log2;

        const Placing<S> placing(p.order, g.kv);
        uint8_t *image = shared + team * S::Q_BYTES;
#pragma unroll 2
        for (int y = w; y < N; y += 4) {
            const int query = first + y;
            const float power = notes.power[y], by = power == power ? 1 / (careful ? power : largest) : power;
            placing.store(image, N, y, query < g.n_queries ? query_row(g, query) : nullptr, p.bf16, by);
        }
        publish_shared();
        barrier();
    }

    /* -------------------------------------------------------------- scores to weights */

    /* All scores at once: scaled, capped, biased, and hidden where a query does not see a token; then the maximum moves, and
     * the unit of V. `first`: the page's first token. Queries see tokens from..to-1 of what kind says, if the window has
     * them. Afterwards s holds log2 of the weights before the maximum is subtracted. */
    enum Kind { PACKED, OWN, SINKS };
    __device__ __forceinline__ void look(State &st, Kind kind, int first, uint32_t scales) {
        const int token = first + 16 * w + 2 * r;
        const float scale = fmaxf(__low2float(halves(scales)), __high2float(halves(scales)));
        const unsigned largest = __reduce_max_sync(~0u, __float_as_uint(scale)); /* not negative */
        if (lane == 0)
            notes.unit[w] = __uint_as_float(largest);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int y = 8 * j + 2 * c + e, i = notes.position[y];
                const float by = careful ? notes.power[y] * p.scale_log2 : factor;
                const int from = kind == PACKED ? p.sinks : kind == OWN ? i / T * T : 0;
                const int to = kind == PACKED ? i / T * T : kind == OWN ? i + 1 : i >= T ? p.sinks : 0;
                float top = -INFINITY;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float x = st.s[4 * j + e + 2 * h] * by;
                    const int t = token + h;
                    if (p.softcap_log2 > 0) { /* cap * tanh(x / cap) */
                        const float z = exp2_approx(x / p.softcap_log2 * 2.88539008177792681472f);
                        x = p.softcap_log2 * (1 - __fdividef(2.0f, 1 + z));
                    }
                    if (p.alibi)
                        x += notes.slope[y] * (float)(t - i);
                    if (t < from || t >= to || (p.window > 0 && i - t >= p.window && t >= p.keep))
                        x = -INFINITY;
                    st.s[4 * j + e + 2 * h] = x;
                    top = fmaxf(top, x);
                }
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 4));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
                if (r == 0)
                    notes.reduce[w][y] = top;
            }
        barrier();
        const float ratio = raise_unit(st);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int y = 8 * j + 2 * c + e;
                const float top = fmaxf(fmaxf(notes.reduce[0][y], notes.reduce[1][y]),
                                        fmaxf(notes.reduce[2][y], notes.reduce[3][y]));
                const float m = -st.minus_m[2 * j + e], higher = top > m + RAISE_BY ? top : m;
                const float by = exp2_approx(m - higher);
                st.minus_m[2 * j + e] = -higher;
                st.l[2 * j + e] *= by;
                rescale(st, j, e, by * ratio);
            }
    }

    __device__ __forceinline__ void rescale(State &st, int j, int e, float by) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++) {
            st.o[m][4 * j + e] *= by;
            st.o[m][4 * j + 2 + e] *= by;
        }
    }

    /* From the warps' largest scales of V. Returns what sums are multiplied with. */
    __device__ __forceinline__ float raise_unit(State &st) {
        const float largest = fmaxf(fmaxf(notes.unit[0], notes.unit[1]), fmaxf(notes.unit[2], notes.unit[3]));
        const float power = fmaxf(__uint_as_float(__float_as_uint(largest) & 0x7f800000u), 0x1p-14f);
        if (!(power > st.unit))
            return 1;
        const float ratio = st.unit / power;
        st.unit = power;
        st.down = __float2half2_rn(1 / power);
        return ratio;
    }

    /* P^T of queries 8j .. 8j+15, transposed: a row is a query, its 64 tokens in the order of S^T's rows. */
    __device__ __forceinline__ void store_weights(int j, const uint32_t (&x)[4]) const {
        const uint32_t to = weights_at + buffer * S::P_BYTES + j * 1024;
        if (j + 1 < N / 8)
            store_transposed(to, x);
        else
            store_transposed_2(to, x[0], x[1]);
    }
    __device__ __forceinline__ void round_weights(const State &st, int j, half2 by, uint32_t &a, uint32_t &b) const {
        a = bits(__hmul2(__floats2half2_rn(st.s[4 * j], st.s[4 * j + 1]), __low2half2(by)));
        b = bits(__hmul2(__floats2half2_rn(st.s[4 * j + 2], st.s[4 * j + 3]), __high2half2(by)));
    }

    /* Exponentials of s * times, their sums, and P in shared memory, seen by all of the team. */
    __device__ __forceinline__ void weigh(State &st, float times, uint32_t scales) {
        const half2 by = __hmul2(halves(scales), st.down);
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
                    st.s[4 * i + e] = exp2_approx(fmaf(st.s[4 * i + e], times, st.minus_m[2 * i + e % 2]));
                st.l[2 * i] += st.s[4 * i] + st.s[4 * i + 2];
                st.l[2 * i + 1] += st.s[4 * i + 1] + st.s[4 * i + 3];
                top = fmaxf(top, fmaxf(st.l[2 * i], st.l[2 * i + 1]));
                round_weights(st, i, by, x[2 * y], x[2 * y + 1]);
            }
            store_weights(j, x);
        }
        publish_shared();
        const bool large = __low2float(by) >= 2 || __high2float(by) >= 2;
        if (uniform(team_any(team, top > WEIGHTS_LIMIT || large)))
            weigh_again(st, scales);
    }

    /* Rare: the maximum and the unit of V move, and P is written again. */
    __device__ __forceinline__ void weigh_again(State &st, uint32_t scales) {
        const float scale = fmaxf(__low2float(halves(scales)), __high2float(halves(scales)));
        const unsigned largest = __reduce_max_sync(~0u, __float_as_uint(scale)); /* not negative */
        if (lane == 0)
            notes.unit[w] = __uint_as_float(largest);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float x = st.l[i];
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
            if (r == 0)
                notes.reduce[w][i / 2 * 8 + 2 * c + i % 2] = x;
        }
        barrier();
        const float ratio = raise_unit(st);
        bool failed = false;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int y = 8 * j + 2 * c + e;
                const float x = fmaxf(fmaxf(notes.reduce[0][y], notes.reduce[1][y]),
                                      fmaxf(notes.reduce[2][y], notes.reduce[3][y]));
                failed |= x > 1e38f; /* beyond fp32: scores are needed that are gone */
                const float d = x > 16 ? __log2f(x) : 0.0f, by = exp2_approx(-d);
                st.s[4 * j + e] *= by;
                st.s[4 * j + 2 + e] *= by;
                st.l[2 * j + e] *= by;
                st.minus_m[2 * j + e] -= d;
                rescale(st, j, e, by * ratio);
            }
        if (failed)
            crew.failed = 1;
        const half2 by = __hmul2(halves(scales), st.down);
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t x[4];
            round_weights(st, j, by, x[0], x[1]);
            if (j + 1 < N / 8)
                round_weights(st, j + 1, by, x[2], x[3]);
            store_weights(j, x);
        }
        publish_shared();
        barrier();
    }

    /* -------------------------------------------------------------- packed pages */

    __device__ __forceinline__ const uint8_t *page_at(int at) const {
        return shared + S::RING_AT + (team / S::TEAMS * S::SLOTS + at) * S::RECORD.bytes;
    }

    /* Slab b of K's codes. */
    template <int b> __device__ __forceinline__ void take_keys(Keys &k) {
        const uint8_t *page = page_at(slot), *tile = page + w * (2 * D * S::K_BITS);
        const uint8_t *params = page + S::RECORD.k_params;
        if constexpr (S::K_BITS == 4) {
            constexpr int columns = S::COLUMNS - 4 * b < 4 ? S::COLUMNS - 4 * b : 4;
            const bool here = columns == 4 || c < columns;
            const int column = columns == 4 || here ? c : 0;
            const bool mixed = 4 * b + 3 < S::MIXED || (4 * b < S::MIXED && 4 * b + column < S::MIXED);
            const uint8_t *at = params + 2 * 16 * (4 * b + column);
            unpack_k4(*(const uint4 *)(tile + (32 * b + r * columns + column) * 16), at, at + 2 * D, mixed, k[b]);
            hide<columns == 4>(here, k[b]);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 2 * b + half;
                if (i >= S::GROUPS)
                    continue;
                const int columns = S::COLUMNS - 4 * i < 4 ? S::COLUMNS - 4 * i : 4;
                const bool here = columns == 4 || c < columns;
                const int column = here ? c : 0;
                const uint8_t *at = params + 2 * 8 * (4 * i + column);
                unpack_k8(*(const uint4 *)(tile + (32 * i + r * columns + column) * 16), at, at + 2 * D, k[b][2 * half],
                          k[b][2 * half + 1]);
                if (!here)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        k[b][2 * half + e / 4][e % 4] = 0;
            }
        }
    }
    template <bool WHOLE> __device__ __forceinline__ static void hide(bool here, uint32_t (&a)[4][4]) {
        if (!WHOLE && !here)
#pragma unroll
            for (int e = 0; e < 16; e++)
                a[e / 4][e % 4] = 0;
    }

    template <int b> __device__ __forceinline__ void key_products(State &st, const Keys &k) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (4 * b + t >= S::STEPS)
                continue;
            const uint64_t q = operand(q_at + b * N * 128 + t * 32);
            if (b == 0 && t == 0)
                Product::first_product(st.s, k[b][t], q);
            else
                Product::product(st.s, k[b][t], q);
        }
    }

    template <int b> __device__ __forceinline__ void other_keys(State &st, Keys &k) {
        if constexpr (b < S::SLABS) {
            take_keys<b>(k);
            products_begin();
            key_products<b>(st, k);
            other_keys<b + 1>(st, k);
        }
    }

    /* The first slab of the next page, as soon as it is there. */
    __device__ __forceinline__ void first_keys(Keys &k) {
        barrier_wait(shared_address(&crew.full[slot]), phase);
        take_keys<0>(k);
    }
    /* Its scores, on the way: the first slab was taken before. */
    __device__ __forceinline__ void score(State &st, Keys &k) {
        products_begin();
        key_products<0>(st, k);
        other_keys<1>(st, k);
        products_commit();
    }

    __device__ __forceinline__ void load_values(const uint8_t *page, uint4 (&v)[S::HALVES][S::V_BITS / 4]) const {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++) {
            const int tile = D % 64 == 0 || 4 * m + w < D / 16 ? 4 * m + w : 0; /* there is none: any will do */
#pragma unroll
            for (int h = 0; h < S::V_BITS / 4; h++)
                v[m][h] = *(const uint4 *)(page + S::RECORD.v_codes + (tile * (S::V_BITS / 4) + h) * 512 + lane * 16);
        }
    }

    template <int m> __device__ __forceinline__ void value_products(State &st, const uint4 (&v)[S::HALVES][S::V_BITS / 4]) {
        if constexpr (m < S::HALVES) {
            uint32_t a[4][4];
            if constexpr (S::V_BITS == 4) {
                unpack_v4(v[m][0], a);
            } else {
                unpack_v8(v[m][0], a[0], a[1]);
                unpack_v8(v[m][1], a[2], a[3]);
            }
            if (m == 0) {
                if (S::TEAMS == 2)
                    take_turn(team);
#pragma unroll
                for (int i = 0; i < S::HALVES; i++)
                    pin(st.o[i]);
            }
            products_begin();
#pragma unroll
            for (int t = 0; t < 4; t++)
                Product::product(st.o[m], a[t], operand(p_at + buffer * S::P_BYTES + t * 32));
            value_products<m + 1>(st, v);
        }
    }

    /* One page: exponentials | P V, and the next page's first K meanwhile | Q K of the next page. Nothing is in flight where
     * accumulators are touched: ptxas would serialize all products otherwise. */
    __device__ __forceinline__ void attend_pages(State &st, const Segment &g) {
        if (uniform(g.begin) == uniform(g.end))
            return;
        const int first = uniform(notes.position[0]), last = uniform(notes.position[N - 1]), end = uniform(g.end);
        bool before = true; /* something may have been hidden: maxima are not to be relied on */
        int i = uniform(g.begin);
        Keys k;
        first_keys(k);
        score(st, k);
        products_wait();
        pin(st.s);
        for (;;) {
            const int page = uniform(g.page(i));
            const uint32_t scales = *(const uint32_t *)(page_at(slot) + S::RECORD.v_params + (16 * w + 2 * r) * 2);
            const bool hidden = page >= first / T || (page == 0 && p.sinks > 0) ||
                                (p.window > 0 && last - page * T >= p.window);
            float times = factor;
            if (careful || hidden || before) {
                look(st, PACKED, page * T, scales);
                times = 1;
            }
            before = hidden;
            weigh(st, times, scales);
            uint4 v[S::HALVES][S::V_BITS / 4];
            load_values(page_at(slot), v);
            value_products<0>(st, v);
            products_commit();
            __syncwarp();
            if (lane == 0)
                barrier_arrive(shared_address(&crew.empty[slot]));
            if (++slot == S::SLOTS) {
                slot = 0;
                phase ^= 1;
            }
            const bool more = ++i < end;
            if (more)
                first_keys(k);
            products_wait();
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
                pin(st.o[m]);
            buffer ^= 1;
            if (!more)
                break;
            score(st, k);
            if (S::TEAMS == 2)
                give_turn(team);
            products_wait();
            pin(st.s);
        }
        if (S::TEAMS == 2)
            give_turn(team);
    }

    /* -------------------------------------------------------------- raw rows */

    /* Up to 64 rows: token first + i at row i; there are n. K and V go one after the other through the same place. */
    __device__ __forceinline__ void attend_raw(State &st, const Segment &g, Kind kind, const RawRows &rows, int first,
                                               int row, int n) {
        const int64_t at = p.slots ? __ldg(p.slots + g.seq) : g.seq;
        const uint16_t *keys = rows.k + at * rows.k_slot + g.kv * rows.k_head + row * rows.k_token;
        const uint16_t *values = rows.v + at * rows.v_slot + g.kv * rows.v_head + row * rows.v_token;
        uint8_t *image = shared + S::RAW_AT + team * S::RAW_BYTES;
        barrier(); /* the place is free */
        {
            const Placing<S> placing(p.order, g.kv);
#pragma unroll 2
            for (int t = w; t < T; t += 4)
                placing.store(image, T, row_of_token(t), keys + min(t, n - 1) * rows.k_token, p.bf16, 1.0f);
        }
        measure_values(values, rows.v_token, n);
        publish_shared();
        barrier();
        products_begin();
#pragma unroll
        for (int i = 0; i < S::STEPS; i++) {
            const uint64_t a = operand(raw_at + i / 4 * 8192 + i % 4 * 32), b = operand(q_at + i / 4 * N * 128 + i % 4 * 32);
            if (i == 0)
                Product::first_by_rows(st.s, a, b);
            else
                Product::by_rows(st.s, a, b);
        }
        products_commit();
        products_wait();
        pin(st.s);
        const uint32_t scales = *(const uint32_t *)&notes.token_scale[16 * w + 2 * r];
        look(st, kind, first, scales);
        weigh(st, 1.0f, scales); /* the barrier in it: all warps have their scores */
        place_values(image, values, rows.v_token, n);
        publish_shared();
        barrier();
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
            pin(st.o[m]);
        products_begin();
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
#pragma unroll
            for (int t = 0; t < 4; t++)
                Product::by_columns(st.o[m], operand(raw_at + m * 8192 + t * 2048),
                                    operand(p_at + buffer * S::P_BYTES + t * 32));
        products_commit();
        products_wait();
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
            pin(st.o[m]);
        buffer ^= 1;
    }

    __device__ __forceinline__ static int row_of_token(int t) { return t / 16 * 16 + t % 16 / 2 + t % 2 * 8; }

    /* A raw row of V gets a power of two in the place of a packed row's scale, from its norm, which the rotation keeps.
     * Elements divided by it are about 1/256, and at most sqrt(D)/128. A warp has the tokens of its own rows of S^T, four
     * at a time. */
    __device__ __forceinline__ void measure_values(const uint16_t *from, int64_t stride, int n) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int t = 16 * w + 4 * i + c;
            const uint16_t *x = from + min(t, n - 1) * stride;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                const uint32_t pair = __ldg((const uint32_t *)x + 8 * j + r);
                const float a = raw_value(p.bf16, pair & 0xffff), b = raw_value(p.bf16, pair >> 16);
                sum += a * a + b * b;
            }
            sum += __shfl_xor_sync(~0u, sum, 4);
            sum += __shfl_xor_sync(~0u, sum, 8);
            sum += __shfl_xor_sync(~0u, sum, 16);
            const float size = sqrtf(sum / D) * (256 / S::V_UNIT);
            const float power = __uint_as_float(__float_as_uint(size) & 0x7f800000u);
            if (r == 0)
                notes.token_scale[t] = __float2half(fminf(fmaxf(power, 0x1p-14f), 0x1p15f));
        }
    }
    __device__ __forceinline__ void place_values(uint8_t *image, const uint16_t *from, int64_t stride, int n) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int t = 16 * w + 4 * i + c, row = row_of_token(t);
            const uint16_t *x = from + min(t, n - 1) * stride;
            float y[D / 16][2];
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                const uint32_t pair = __ldg((const uint32_t *)x + 8 * j + r);
                y[j][0] = raw_value(p.bf16, pair & 0xffff);
                y[j][1] = raw_value(p.bf16, pair >> 16);
            }
            Rotation<D, 1>::rotate(y);
            const float by = 1 / (__half2float(notes.token_scale[t]) * S::V_UNIT);
#pragma unroll
            for (int j = 0; j < D / 16; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    *(half *)(image + j / 4 * 8192 + swizzled(row, 2 * (j % 4 * 16 + r + 8 * e))) =
                        __float2half(y[j][e] * by);
        }
    }

    __device__ __forceinline__ void attend_own_rows(State &st, const Segment &g) {
        const int first = uniform(notes.position[0]) / T, last = uniform(notes.position[N - 1]) / T;
        const int base = g.position / T;
        for (int page = first; page <= last; page++)
            attend_raw(st, g, OWN, p.own, page * T, (page - base) * T, min(T, g.length - page * T));
        if (last > 0 && p.sinks > 0)
            attend_raw(st, g, SINKS, p.sink, 0, 0, p.sinks);
    }

    /* -------------------------------------------------------------- results */

    __device__ __forceinline__ void finish(const State &st, const Segment &g) {
        barrier(); /* Q and the notes are free */
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int y = i / 2 * 8 + 2 * c + i % 2;
            float x = st.l[i];
            x += __shfl_xor_sync(~0u, x, 4);
            x += __shfl_xor_sync(~0u, x, 8);
            x += __shfl_xor_sync(~0u, x, 16);
            if (r == 0)
                notes.reduce[w][y] = x;
            if (r == 0 && w == 0)
                notes.maximum[y] = -st.minus_m[i];
        }
        finish_from<0>(st, g);
    }

    /* Queries from BEGIN on: as many as there is room for, then the others. */
    template <int BEGIN> __device__ __forceinline__ void finish_from(const State &st, const Segment &g) {
        constexpr int AT_ONCE = 8 * S::STAGE_BLOCKS, END = BEGIN + AT_ONCE < N ? BEGIN + AT_ONCE : N;
        float *stage = (float *)(shared + team * S::Q_BYTES);
#pragma unroll
        for (int j = BEGIN / 8; j < END / 8; j++)
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (D % 64 == 0 || 4 * m + w < D / 16)
                        *(float2 *)(stage + (8 * j - BEGIN + 2 * c + e) * S::STAGE_ROW + 64 * m + 16 * w + 2 * r) =
                            make_float2(st.o[m][4 * j + e], st.o[m][4 * j + 2 + e]);
        barrier();
#pragma unroll 1
        for (int x = 4 * w; x < END - BEGIN; x += 16)
            finish_four(st.unit, g, stage, BEGIN, x + c);
        barrier();
        if constexpr (END < N)
            finish_from<END>(st, g);
    }

    /* Query `begin + x` of the team, from row x of the stage; four of them, one for each c. */
    __device__ __forceinline__ void finish_four(float unit, const Segment &g, const float *stage, int begin, int x) {
        const int y = begin + x, query = g.query + team % S::TEAMS * N + y;
        const bool here = query < g.n_queries;
        const float sum = (notes.reduce[0][y] + notes.reduce[1][y]) + (notes.reduce[2][y] + notes.reduce[3][y]);
        float v[D / 16][2];
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            *(float2 *)v[j] = *(const float2 *)(stage + x * S::STAGE_ROW + 16 * j + 2 * r);
        if (g.slot < 0) {
            finish_query<D>(p, here, (size_t)g.row + query / p.group, g.kv * p.group + query % p.group, v,
                            notes.maximum[y], sum, unit * S::V_UNIT);
        } else if (here) {
            const size_t at = (size_t)g.slot * S::QUERIES + team % S::TEAMS * N + y;
            const float by = unit * S::V_UNIT;
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                *(float2 *)(p.part_o + at * D + 16 * j + 2 * r) = make_float2(v[j][0] * by, v[j][1] * by);
            if (r == 0)
                p.part_ml[at] = make_float2(notes.maximum[y], sum);
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
        st.unit = 0;
        st.down = __float2half2_rn(0.0f);
    }

    __device__ __forceinline__ void work() {
        if (S::TEAMS == 2 && team % 2 == 1)
            give_turn(team);
        for (;;) {
            for (;;) {
                if (threadIdx.x % 128 == 0)
                    notes.walker.next(p);
                barrier();
                const Segment &g = notes.walker.segment;
                if (!uniform(g.more))
                    break;
                load_queries(g);
                State st;
                clear(st);
                attend_pages(st, g);
                if (uniform(g.tail))
                    attend_own_rows(st, g);
                finish(st, g);
            }
            crew_barrier<S::TEAMS * 128 + 32>(team / S::TEAMS);
            if (all_careful || !uniform(crew.failed))
                return;
            all_careful = true;
            if (threadIdx.x % 128 == 0)
                notes.walker.restart();
            barrier();
        }
    }
};

/* ------------------------------------------------------------------ the warp that fetches a crew's pages */

template <class S> __device__ __forceinline__ void fetch_pages(const PrefillParams &p, uint8_t *shared, int crew) {
    auto &notes = ((typename S::Crew *)(shared + S::CREWS_AT))[crew];
    const uint32_t ring = shared_address(shared) + S::RING_AT + crew * S::SLOTS * S::RECORD.bytes;
    const int lane = threadIdx.x % 32;
    int slot = 0, phase = 1; /* every slot is free at first: a wait for the phase before passes */
    bool again = false;
    for (;;) {
        for (;;) {
            if (lane == 0)
                notes.walker.next(p);
            __syncwarp();
            const Segment &g = notes.walker.segment;
            if (!g.more)
                break;
            const uint8_t *records = p.records + g.kv * p.head_stride;
            const int32_t *ids = p.pages + g.seq * p.pages_stride;
            int32_t mine = 0;
            for (int i = g.begin, k = 0; i < g.end; i++, k++) {
                if (k % 32 == 0 && i + lane < g.end)
                    mine = __ldg(ids + g.page(i + lane));
                const int32_t id = __shfl_sync(~0u, mine, k % 32);
                barrier_wait(shared_address(&notes.empty[slot]), phase);
                if (lane == 0)
                    copy_to_shared(ring + slot * S::RECORD.bytes, records + id * p.page_stride, S::RECORD.bytes,
                                   shared_address(&notes.full[slot]));
                if (++slot == S::SLOTS) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            __syncwarp();
        }
        crew_barrier<S::TEAMS * 128 + 32>(crew);
        if (again || !notes.failed)
            return;
        again = true;
        if (lane == 0)
            notes.walker.restart();
        __syncwarp();
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) prefill(const __grid_constant__ PrefillParams p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    using Crew = typename S::Crew;
    using Notes = typename S::Notes;
    Crew *crews = (Crew *)(shared + S::CREWS_AT);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < S::CREWS) {
        Crew &crew = crews[warp];
        start_walker(p, blockIdx.x * S::CREWS + warp, crew.walker);
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < S::SLOTS; i++) {
                barrier_init(shared_address(&crew.full[i]), 1);
                barrier_init(shared_address(&crew.empty[i]), 4 * S::TEAMS);
            }
            barriers_publish();
            crew.failed = 0;
            for (int i = 0; i < S::TEAMS; i++)
                ((Notes *)(shared + S::NOTES_AT))[warp * S::TEAMS + i].walker = crew.walker;
        }
    }
    __syncthreads();
    if (warp >= 4 * S::ALL_TEAMS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::PRODUCER_REGISTERS));
        if (warp - 4 * S::ALL_TEAMS < S::CREWS)
            fetch_pages<S>(p, shared, warp - 4 * S::ALL_TEAMS);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
        Team<S> team(p, shared, warp / 4);
        team.work();
    }
}

template <quire_codec K, quire_codec V, int D, int N, int TEAMS, int CREWS, int SLOTS>
constexpr PrefillKernel prefill_kernel_of() {
    using S = PrefillShape<K, V, D, N, TEAMS, CREWS, SLOTS>;
    return {{K, V}, D, S::QUERIES, S::CREWS, S::THREADS, S::SHARED_BYTES, prefill<S>, prefill_merge<D>};
}

} // namespace quire_cuda

#endif
