/* Decode attention over packed pages: one launch, one query row per sequence.
 *
 * The work is a flat list of units. An item (sequence, KV head, up to 8 query heads) has one unit
 * for each sealed page, then one for each 16 raw rows: those of the query's own page, followed by
 * the sinks. CTA b takes units total*b/ctas .. and warp w of it every n-th: a warp owns whole units
 * and fetches them into its own ring in shared memory, so warps meet only where an item ends. An
 * item that several CTAs share is merged by the one that finishes last, in the order of CTAs, which
 * is that of positions. In exact mode an item is cut into parts by its own length, and a CTA takes
 * whole parts: results do not depend on the batch then.
 *
 * A page's codes are tensor-core operands as they lie: lane 4r+c finds its fragment at base +
 * 16*lane (docs/FORMAT.md). A code under a mask IS an fp16 number, the subnormal u * 2^-24 (the
 * upper field of a byte: times 16 or 32), so unpacking is one AND for two codes. Scales of K's
 * channels go into q, one product for a page; scales of V's tokens go into the weights.
 *
 *     S (tokens x heads) = K q        A: codes of K, rows r and r+8 are tokens 2r and 2r+1; B: q
 *     O (channels x heads) += V^T P   A: codes of V, rows r and r+8 are channels 2r and 2r+1;
 *                                     B: weights, transposed
 */
#ifndef QUIRE_CUDA_DECODE_CUH
#define QUIRE_CUDA_DECODE_CUH

#include "decode.h"
#include "ptx.cuh"
#include "record.h"
#include "rotation.cuh"
#include "values.cuh"

namespace quire_cuda {

/* Running maximum of a row that has seen nothing: below every score. */
constexpr float NOTHING = -1e30f;
/* Beyond it scores could overflow: such a query counts as not finite. */
constexpr float LARGEST_QUERY = 1e20f;
constexpr float CODE_UNIT = 16777216; /* codes enter products as u * 2^-24 */
/* The running maximum moves when a score passes it by 2^4: weights stay below 2^4, and most pages
 * move nothing. */
constexpr float SLACK = 4;
/* Weights and sums carry 2^4, so that small ones keep their bits in fp16. */
constexpr float WEIGHT_LOG2 = 4;

constexpr int RAW_ROWS = 16; /* in a unit */
/* Exact mode: a part of an item has at least so many units. */
constexpr int EXACT_UNITS = 8;

/* Shape of one kernel. MORE: with windows, soft-cap, ALiBi and learned sinks, which cost up to 5 %
 * even where they are not used. */
template <quire_codec K, quire_codec V, int D_, int WARPS_, int RING_, bool MORE_> struct Shape {
    static constexpr bool MORE = MORE_;
    static constexpr int D = D_, WARPS = WARPS_, RING = RING_, THREADS = 32 * WARPS_;
    static constexpr int K_BITS = k_bits_of(K), V_BITS = v_bits_of(V);
    static constexpr Record RECORD = record_of(K_BITS, D, V_BITS, D);
    static constexpr bool ORDERED = is_mixed(K);
    static constexpr int MIXED = ORDERED ? D / 32 : 0;
    static constexpr int COLUMN = K_BITS == 8 ? 8 : 16; /* channels in an atom of K */
    static constexpr int COLUMNS =
        D / COLUMN; /* taken four at a time; the last group may be narrower */
    static constexpr int GROUPS = (COLUMNS + 3) / 4,
                         STEPS = COLUMN / 4;           /* products for each group */
    static constexpr int RAW_GROUPS = (D / 8 + 3) / 4; /* raw rows lie as 8-bit columns do */
    static constexpr int Q_ROOM =
        K_BITS == 8 ? 32 : 1; /* scales: up to 2 * 65504 / 254, and / 7 for 3 bits of km4 */
    static constexpr float V_MID = V_BITS == 8 ? 128.0f : 7.5f; /* 8-bit codes are made unsigned */

    /* A slot of the ring holds a page record, or a tile of raw rows: K, then V. Each four rows are
     * set apart from those before, so that loads of V fall into different banks. */
    static constexpr int RAW_SIDE = RAW_ROWS * 2 * D + 96;
    __host__ __device__ static constexpr int raw_row_at(int row) {
        return row * 2 * D + row / 4 * 32;
    }
    static constexpr int SLOT =
        align_up(RECORD.bytes > 2 * RAW_SIDE ? RECORD.bytes : 2 * RAW_SIDE, 128);

    /* Shared memory: ring | q | q as packed rows have it | factors of scores | sums of warps |
     * maxima and sums of weights of warps | barriers */
    static constexpr int Q_AT = WARPS * RING * SLOT;
    __host__ __device__ static constexpr int placed_at(int heads) {
        return Q_AT + (ORDERED ? heads * D * 2 : 0);
    }
    __host__ __device__ static constexpr int up_at(int heads) {
        return placed_at(heads) + heads * D * 2;
    }
    __host__ __device__ static constexpr int sums_at(int heads) {
        return up_at(heads) + 4 * MAX_HEADS;
    }
    __host__ __device__ static constexpr int stats_at(int heads) {
        return sums_at(heads) + WARPS * heads * D * 4;
    }
    __host__ __device__ static constexpr int barriers_at(int heads) {
        return stats_at(heads) + WARPS * heads * 8;
    }
    static int shared_bytes(int heads) { return barriers_at(heads) + WARPS * RING * 8; }
};

/* ------------------------------------------------------------------ schedule */

template <bool MORE> struct Item {
    int seq, index;         /* index: of the sequence's items */
    int start, pages, stop; /* units of the flat list: pages first, then tiles of raw rows */
    int kept, from;         /* packed pages: 0 .. kept - 1, then those from `from` on */
    int length;

    __device__ __forceinline__ int page(int unit) const { /* of the sequence */
        const int i = unit - start;
        return !MORE || i < kept ? i : i - kept + from;
    }

    /* Exact mode: where an item is cut depends on its own units. */
    __device__ __forceinline__ int parts(const DecodeParams &p) const {
        return min(p.exact, max((stop - start) / EXACT_UNITS, 1));
    }
    __device__ __forceinline__ int part_start(const DecodeParams &p, int part) const {
        return start + (stop - start) * part / parts(p);
    }
    /* The first part that does not start before `unit`; as many as there are if none does. */
    __device__ __forceinline__ int part_from(const DecodeParams &p, int unit) const {
        const int units = stop - start;
        return ((unit - start) * parts(p) + units - 1) / units;
    }
};

/* The raw rows that a query sees: those of its own page, then the sinks, if they are elsewhere. */
struct RawList {
    int first, own, all; /* the first token of the own page; its rows; those with the sinks */

    __device__ __forceinline__ RawList(const DecodeParams &p, int length)
        : first(length > 0 ? (length - 1) / T * T : 0), own(length - first),
          all(own + (first > 0 ? p.sinks : 0)) {}
    __device__ __forceinline__ int token(int row) const {
        return row < own ? first + row : row - own;
    }
};

__device__ __forceinline__ int length_at(const DecodeParams &p, int seq) {
    return max(__ldg(p.lengths + seq), 0);
}

/* An item of a sequence of `length` tokens, from unit `start` on. A window leaves out the pages
 * before it, but not those with tokens to keep. */
template <bool MORE>
__device__ __forceinline__ Item<MORE> make_item(const DecodeParams &p, int seq, int index,
                                                int start, int length) {
    const RawList raw(p, length);
    const int sealed = raw.first / T;
    int from = 0, kept = 0;
    if constexpr (MORE) {
        from = p.window > 0 ? min(max(length - p.window, 0) / T, sealed) : 0;
        kept = p.keep > p.sinks ? min((p.keep + T - 1) / T, from) : 0;
    }
    const int pages = kept + sealed - from;
    const int units = pages + max((raw.all + RAW_ROWS - 1) / RAW_ROWS, 1);
    return {seq, index, start, pages, start + units, kept, from, length};
}

template <bool MORE> __device__ __forceinline__ int units_of(const DecodeParams &p, int length) {
    return make_item<MORE>(p, 0, 0, 0, length).stop;
}

template <bool MORE>
__device__ __forceinline__ void next_item(Item<MORE> &it, const DecodeParams &p) {
    if (it.index + 1 < p.n_items_per_seq) {
        const int units = it.stop - it.start;
        it.index++;
        it.start = it.stop;
        it.stop += units;
    } else {
        it = make_item<MORE>(p, it.seq + 1, 0, it.stop, length_at(p, it.seq + 1));
    }
}

/* CTA c takes units first(c) .. first(c + 1) - 1, first(c) being total * c / ctas rounded down. */
struct Schedule {
    int total, ctas, share, rest;
    float inverse; /* 1 / ctas */

    __device__ Schedule(int total_, int ctas_)
        : total(total_), ctas(ctas_), share(total_ / ctas_), rest(total_ - ctas_ * share),
          inverse(reciprocal((float)ctas_)) {}
    /* rest * cta / ctas without a division: exact, for the half keeps it away from integers. */
    __device__ int first(int cta) const {
        return share * cta + (int)(((float)(rest * cta) + 0.5f) * inverse);
    }
    __device__ int cta_of(int unit) const {
        /* off by one at most */
        int cta = (int)((float)unit * reciprocal((float)total) * (float)ctas);
        cta = min(max(cta, 0), ctas - 1);
        cta -= first(cta) > unit;
        cta += first(cta + 1) <= unit;
        return cta;
    }
};

/* What a CTA works on. Every warp finds out for itself: no barrier, and no table that a host would
 * have to write. */
template <bool MORE> struct Share {
    Schedule schedule;
    int begin, past; /* units */
    Item<MORE> item; /* that `begin` belongs to */
};

__device__ __forceinline__ int inclusive_sum(int x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
        const int other = __shfl_up_sync(~0u, x, h);
        x += lane >= h ? other : 0;
    }
    return x;
}

template <bool MORE>
__device__ __forceinline__ Share<MORE> make_share(const DecodeParams &p, int warps) {
    const int lane = threadIdx.x % 32;
    const auto length_of = [&](int i) { return i < p.n_seqs ? length_at(p, i) : -1; };
    const auto units = [&](int length) {
        return length < 0 ? 0 : units_of<MORE>(p, length) * p.n_items_per_seq;
    };
    int length = length_of(lane),
        sum = inclusive_sum(units(length)); /* of the first 32 sequences */
    int total = __shfl_sync(~0u, sum, 31);
#pragma unroll 1
    for (int i = 32; i < p.n_seqs; i += 32)
        total += __reduce_add_sync(~0u, units(length_of(i + lane)));
    /* At least a unit for each warp: more CTAs would not finish earlier, and leave more parts to
     * merge. As for a full grid (choose_ctas), equal parts of items are better than a few more
     * CTAs. */
    const int items = p.n_seqs * p.n_items_per_seq;
    int ctas = (total + warps - 1) / warps;
    ctas = ctas >= (int)gridDim.x ? gridDim.x : ctas > items ? ctas - ctas % items : ctas;
    const Schedule schedule(total, ctas);
    Share<MORE> share = {schedule, 0, 0, {}};
    if ((int)blockIdx.x >= schedule.ctas)
        return share;
        /* Where this CTA's units end, and where they begin. In exact mode whole parts: those that
         * start within the CTA's units. */
#pragma unroll 1
    for (int i = p.exact > 0 ? 1 : 0; i >= 0; i--) {
        share.past = share.begin;
        share.begin = schedule.first(blockIdx.x + i);
        if (share.begin == total)
            continue;
        int before = 0, first = 0, at_length = length, at_sum = sum;
        unsigned found;
        while (!(found = __ballot_sync(~0u, before + at_sum > share.begin))) {
            before += __shfl_sync(~0u, at_sum, 31);
            first += 32;
            at_length = length_of(first + lane);
            at_sum = inclusive_sum(units(at_length));
        }
        const int at = __ffs(found) - 1;
        at_length = __shfl_sync(~0u, at_length, at);
        const int each = units_of<MORE>(p, at_length), stop = before + __shfl_sync(~0u, at_sum, at);
        const int start = stop - each * p.n_items_per_seq, index = (share.begin - start) / each;
        share.item = make_item<MORE>(p, first + at, index, start + index * each, at_length);
        if (p.exact > 0)
            share.begin = share.item.part_start(p, share.item.part_from(p, share.begin));
    }
    if (p.exact <= 0)
        share.past = schedule.first(blockIdx.x + 1);
    else if (share.begin == share.item.stop && share.begin < share.past)
        next_item(share.item, p);
    return share;
}

/* Not by a division: every warp waits for that before it fetches its first page. */
template <bool MORE>
__device__ __forceinline__ int kv_of(const DecodeParams &p, const Item<MORE> &it) {
    return (int)((uint64_t)(uint32_t)it.index * p.parts_inverse >> 31);
}

/* Which of the output's rows an item has. */
struct ItemHeads {
    int kv, first, count; /* first: of all query heads */
    size_t row;
};
template <bool MORE>
__device__ __forceinline__ ItemHeads heads_of(const DecodeParams &p, const Item<MORE> &it) {
    const int kv = kv_of(p, it), part = it.index - kv * p.n_parts;
    const int first = kv * p.group + MAX_HEADS * part;
    return {kv, first, min(MAX_HEADS, p.group - MAX_HEADS * part),
            (size_t)it.seq * p.n_heads + first};
}

/* ------------------------------------------------------------------ queries */

/* q enters products divided by a power of two, so that its largest element lies in ROOM .. 2 ROOM:
 * as large as products with the largest scales of K allow in fp16. Exact for all but elements below
 * 2^-14. A query that is not finite becomes NaN. In shared memory: fp16 rows (heads, D) in natural
 * order, the same in the order of packed rows where that is another, and what scores are multiplied
 * with (heads). A warp prepares a head, from loads that it started an item earlier. */
template <class S> struct QueryLoader {
    static constexpr int D = S::D, WORDS = (D / 2 + 31) / 32,
                         HEADS = (MAX_HEADS + S::WARPS - 1) / S::WARPS;
    uint32_t x[HEADS][WORDS],
        order[S::ORDERED ? WORDS : 1]; /* two elements each: word 32 i + lane of a row */
    int n;                             /* heads of the item */

    __device__ void load(const DecodeParams &p, const Item<S::MORE> &it) {
        const ItemHeads heads = heads_of(p, it);
        const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
        n = heads.count;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int at = 32 * i + lane;
            const bool here = D % 64 == 0 || at < D / 2;
#pragma unroll
            for (int j = 0; j < HEADS; j++) {
                const int h = w + j * S::WARPS;
                x[j][i] =
                    here && h < n ? __ldg((const uint32_t *)(p.q + (heads.row + h) * D) + at) : 0u;
            }
            if (S::ORDERED)
                order[i] =
                    here && w < n ? __ldg((const uint32_t *)(p.order + heads.kv * D) + at) : 0u;
        }
    }

    __device__ void store(const DecodeParams &p, uint8_t *shared) const {
        const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < HEADS; j++) {
            const int h = w + j * S::WARPS;
            if (h >= n)
                continue;
            uint32_t *natural = (uint32_t *)(shared + S::Q_AT) + h * (D / 2);
            float largest = 0;
            bool bad = false;
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                const float a = fabsf(raw_value(p.bf16, x[j][i] & 0xffff)),
                            b = fabsf(raw_value(p.bf16, x[j][i] >> 16));
                largest = fmaxf(largest, fmaxf(a, b));
                bad |= !(a * p.scale_log2 <= LARGEST_QUERY) || !(b * p.scale_log2 <= LARGEST_QUERY);
            }
            bad = __any_sync(~0u, bad);
            const unsigned all = __reduce_max_sync(
                ~0u, __float_as_uint(largest)); /* not negative: ordered as integers */
            const float power = fmaxf(__uint_as_float(all & 0x7f800000u), 0x1p-100f) / S::Q_ROOM;
            const float down = bad ? __uint_as_float(0x7fc00000u) : 1.0f / power;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                if (D % 64 == 0 || 32 * i + lane < D / 2)
                    natural[32 * i + lane] =
                        bits(__floats2half2_rn(raw_value(p.bf16, x[j][i] & 0xffff) * down,
                                               raw_value(p.bf16, x[j][i] >> 16) * down));
            if (lane == 0)
                ((float *)(shared + S::up_at(p.item_heads)))[h] = power * p.scale_log2;
            if (S::ORDERED) { /* place p of a packed row holds channel order[p] */
                __syncwarp();
                const uint16_t *row = (const uint16_t *)natural;
                uint32_t *placed = (uint32_t *)(shared + S::placed_at(p.item_heads)) + h * (D / 2);
#pragma unroll
                for (int i = 0; i < WORDS; i++)
                    if (D % 64 == 0 || 32 * i + lane < D / 2)
                        placed[32 * i + lane] =
                            row[order[i] & 0xffff] | (uint32_t)row[order[i] >> 16] << 16;
            }
        }
    }
};

/* B fragments of head r for columns of COLUMN channels: those of column 4i+c, two registers for
 * each product. */
template <int D, int COLUMN, int N>
__device__ void load_query(uint32_t (&to)[N], const uint16_t *q, int heads) {
    constexpr int COLUMNS = D / COLUMN, EACH = COLUMN / 2;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < N / EACH; i++) {
        const bool here = r < heads && (4 * i + 3 < COLUMNS || 4 * i + c < COLUMNS);
#pragma unroll
        for (int part = 0; part < EACH / 4; part++) { /* 8 places */
            uint4 x = make_uint4(0, 0, 0, 0);
            if (here)
                x = *(const uint4 *)(q + r * D + COLUMN * (4 * i + c) + 8 * part);
            *(uint4 *)&to[i * EACH + 4 * part] = x;
        }
    }
}

/* ------------------------------------------------------------------ one warp's softmax state */

template <int D> struct State {
    /* o[k]: channels 16k+2r (0, 1) and 16k+2r+1 (2, 3) of heads 2c (0, 2) and 2c+1 (1, 3). */
    float o[D / 16][4];
    float
        weight[4]; /* sums of weights times V's scales: what the codes' offset is subtracted with */
    float m[2], l[2];
    float unit; /* power of two that V's scales are divided by */
    half2 down; /* 1 / unit */

    __device__ void clear() {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[k][j] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            weight[j] = 0;
        m[0] = m[1] = NOTHING;
        l[0] = l[1] = 0;
        unit = 0;
        down = __float2half2_rn(0.0f);
    }

    __device__ void rescale(int e, float by) {
        weight[e] *= by;
        weight[e + 2] *= by;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            o[k][e] *= by;
            o[k][e + 2] *= by;
        }
    }

    /* top: this lane's largest scores (log2) of the next tokens. A head's maximum does not depend
     * on other heads. */
    __device__ void raise_maximum(const float (&top)[2]) {
        if (!__any_sync(~0u, top[0] > m[0] + SLACK || top[1] > m[1] + SLACK))
            return;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = top[e];
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
            const float higher = x > m[e] + SLACK ? x : m[e], by = exp2_approx(m[e] - higher);
            m[e] = higher;
            l[e] *= by;
            rescale(e, by);
        }
    }

    /* The largest of a page's scales of V decides what all are divided by: weights then fit fp16
     * for any V. */
    __device__ void raise_unit(const uint32_t (&scale)[4]) {
        const half2 pair = __hmax2(__hmax2(halves(scale[0]), halves(scale[1])),
                                   __hmax2(halves(scale[2]), halves(scale[3])));
        const float larger = fmaxf(__low2float(pair), __high2float(pair));
        if (!__any_sync(~0u, larger >= 2 * unit))
            return;
        const unsigned all =
            __reduce_max_sync(~0u, __float_as_uint(larger)); /* not negative: ordered as integers */
        const float power = fmaxf(__uint_as_float(all & 0x7f800000u),
                                  0x1p-14f); /* so that 1 / power is an fp16 number */
        if (power > unit) {
            rescale(0, unit / power);
            rescale(1, unit / power);
            unit = power;
            down = __float2half2_rn(1 / power);
        }
    }

    /* From sums over codes to sums over values, in the channels' own space. */
    template <class S> __device__ void leave_packed() {
        const float step = v_step(S::V_BITS) * unit;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[k][j] = (o[k][j] * CODE_UNIT - S::V_MID * weight[j % 2]) * step;
        Rotation<D, 2>::unrotate(o);
    }
};

/* ------------------------------------------------------------------ a packed page */

/* s[tile]: scores in units of 2^-24; z: what all tokens share, q.zero less the codes' middle. */
template <class S>
__device__ __forceinline__ void score_page(const uint8_t *page, const uint32_t *q, float (&s)[4][4],
                                           float (&z)[4]) {
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const uint8_t *params = page + S::RECORD.k_params;
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[t][j] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        z[j] = 0;
#pragma unroll
    for (int i = 0; i < S::GROUPS; i++) {
        const int columns = S::COLUMNS - 4 * i < 4 ? S::COLUMNS - 4 * i : 4;
        const bool here = columns == 4 || c < columns;
        uint32_t scale[2 * S::STEPS], zero[2 * S::STEPS], scaled[2 * S::STEPS];
#pragma unroll
        for (int part = 0; part < S::STEPS / 2; part++) {
            const int at = 2 * (S::COLUMN * (4 * i + (here ? c : 0)) + 8 * part);
            *(uint4 *)&scale[4 * part] = *(const uint4 *)(params + at);
            *(uint4 *)&zero[4 * part] = *(const uint4 *)(params + 2 * S::D + at);
        }
        /* Lanes beyond a narrow group's columns read the first one, and have zeros for q. A byte of
         * a mixed block of km4 is lo5 | hi3 << 5 where others are lo4 | hi4 << 4. */
        const bool mixed = 4 * i + 3 < S::MIXED || (4 * i < S::MIXED && 4 * i + c < S::MIXED);
        const uint32_t low = mixed ? 0x001f001f : 0x000f000f,
                       high = mixed ? 0x00e000e0 : 0x00f000f0;
        const uint32_t fold = mixed ? 0x28002800 : 0x2c002c00;     /* 1/32, 1/16 */
        const uint32_t mid_low = mixed ? 0xcbc0cbc0 : 0xc780c780;  /* -15.5, -7.5 */
        const uint32_t mid_high = mixed ? 0xd700d700 : 0xd780d780; /* -3.5 * 32, -7.5 * 16 */
        const uint32_t mid_byte = 0xd800d800;                      /* -128 */
#pragma unroll
        for (int g = 0; g < S::STEPS; g++) {
            const uint32_t *qf = q + 2 * (i * S::STEPS + g);
            const bool upper = S::K_BITS == 4 && g >= 2; /* the byte's upper field */
#pragma unroll
            for (int e = 0; e < 2; e++) {
                half2 x = __hmul2(halves(qf[e]), halves(scale[2 * g + e]));
                if (upper)
                    x = __hmul2(x, halves(fold));
                scaled[2 * g + e] = bits(x);
            }
            mma(z, zero[2 * g], zero[2 * g], zero[2 * g + 1], zero[2 * g + 1], qf[0], qf[1]);
            const uint32_t mid = S::K_BITS == 8 ? mid_byte : upper ? mid_high : mid_low;
            mma(z, mid, mid, mid, mid, scaled[2 * g], scaled[2 * g + 1]);
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint8_t *tile = page + t * (2 * S::D * S::K_BITS);
            uint4 w = *(const uint4 *)(tile + (i * 32 + r * columns + (here ? c : 0)) * 16);
            if constexpr (S::K_BITS == 4) {
                uint32_t x = w.x >> 8, y = w.z >> 8;
                mma(s[t], w.x & low, w.z & low, x & low, y & low, scaled[0], scaled[1]);
                mma(s[t], w.x & high, w.z & high, x & high, y & high, scaled[4], scaled[5]);
                x = w.y >> 8;
                y = w.w >> 8;
                mma(s[t], w.y & low, w.w & low, x & low, y & low, scaled[2], scaled[3]);
                mma(s[t], w.y & high, w.w & high, x & high, y & high, scaled[6], scaled[7]);
            } else { /* signed bytes: made unsigned, 128 is subtracted above */
                const uint32_t flip = 0x80808080u;
                w = make_uint4(w.x ^ flip, w.y ^ flip, w.z ^ flip, w.w ^ flip);
                mma(s[t], __byte_perm(w.x, 0, 0x4140), __byte_perm(w.z, 0, 0x4140),
                    __byte_perm(w.x, 0, 0x4342), __byte_perm(w.z, 0, 0x4342), scaled[0], scaled[1]);
                mma(s[t], __byte_perm(w.y, 0, 0x4140), __byte_perm(w.w, 0, 0x4140),
                    __byte_perm(w.y, 0, 0x4342), __byte_perm(w.w, 0, 0x4342), scaled[2], scaled[3]);
            }
        }
    }
}

/* What an item's query sees, and how its logits are changed. */
template <bool MORE> struct Sight {
    int position, low; /* of the query; tokens before `low` are hidden, but those to keep */
    int head, heads;   /* the first head, and how many there are */

    __device__ __forceinline__ Sight(const DecodeParams &p, const Item<MORE> &it,
                                     const ItemHeads &h)
        : position(it.length - 1), low(MORE && p.window > 0 ? it.length - p.window : 0),
          head(h.first), heads(h.count) {}
    __device__ __forceinline__ bool hides(const DecodeParams &p, int token) const {
        return MORE && token < low && token >= p.keep;
    }
    /* A logit (log2 units) of head 2c+e, soft-capped and with ALiBi. */
    __device__ __forceinline__ float bend(const DecodeParams &p, float x, int e, int token) const {
        return bend_head(p, x, threadIdx.x % 4 * 2 + e, token);
    }
    __device__ __forceinline__ float bend_head(const DecodeParams &p, float x, int h,
                                               int token) const {
        const float cap = p.softcap_log2;
        if (cap > 0) /* cap * tanh(x / cap) */
            x = cap * (1 - __fdividef(2.0f, 1 + exp2_approx(x * (2 * LOG2_E / cap))));
        if (p.alibi && h < heads)
            x += __ldg(p.alibi + head + h) * LOG2_E * (float)(token - position);
        return x;
    }
};

/* Scores to weights; weights: B fragments of the weights times V's scales. first: the page's first
 * token. */
template <class S>
__device__ __forceinline__ void
weigh_page(State<S::D> &st, const DecodeParams &p, const Sight<S::MORE> &sight,
           const float (&qs)[2], float (&s)[4][4], const float (&z)[4], const uint8_t *page,
           int first, uint32_t (&weights)[4][2]) {
    const int lane = threadIdx.x % 32, r = lane / 4;
    const uint8_t *scales = page + S::RECORD.v_params;
    uint32_t scale[4]; /* of tokens 16t+2r and 16t+2r+1 */
#pragma unroll
    for (int t = 0; t < 4; t++)
        scale[t] = *(const uint32_t *)(scales + (16 * t + 2 * r) * 2);
    float unit[2] = {qs[0] * CODE_UNIT, qs[1] * CODE_UNIT};
    float shared[2] = {z[0] * qs[0], z[1] * qs[1]};
    if (S::MORE && (p.softcap_log2 > 0 || p.alibi)) {
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[t][j] = sight.bend(p, fmaf(s[t][j], unit[j % 2], shared[j % 2]), j % 2,
                                     first + 16 * t + 2 * r + j / 2);
        unit[0] = unit[1] = 1;
        shared[0] = shared[1] = 0;
    }
    if (first < (S::MORE ? max(p.sinks, sight.low) : p.sinks)) { /* sinks are seen raw */
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int token = first + 16 * t + 2 * r + j / 2;
                if (token < p.sinks || sight.hides(p, token))
                    s[t][j] = -INFINITY;
            }
    }
    float top[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float x = fmaxf(s[0][e], s[0][e + 2]);
#pragma unroll
        for (int t = 1; t < 4; t++)
            x = fmaxf(x, fmaxf(s[t][e], s[t][e + 2]));
        top[e] = fmaf(x, unit[e], shared[e]);
    }
    st.raise_unit(scale);
    st.raise_maximum(top);
    float low[2] = {0, 0}, high[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < 4; t++) {
        /* 4 bits: codes of tiles 2 and 3 come times 16, their weights without the 2^4. */
        const bool upper = S::V_BITS == 4 && t >= 2;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int e = j % 2;
            const float x = exp2_approx(
                fmaf(s[t][j], unit[e], shared[e] - st.m[e] + (upper ? 0.0f : WEIGHT_LOG2)));
            s[t][j] = x;
            if (upper)
                high[e] += x;
            else
                low[e] += x;
        }
        const half2 by = __hmul2(halves(scale[t]), st.down);
        weights[t][0] =
            transpose_8x8(bits(__hmul2(__floats2half2_rn(s[t][0], s[t][1]), __low2half2(by))));
        weights[t][1] =
            transpose_8x8(bits(__hmul2(__floats2half2_rn(s[t][2], s[t][3]), __high2half2(by))));
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        st.l[e] += low[e] + 16 * high[e];
}

template <class S>
__device__ __forceinline__ void add_values(State<S::D> &st, const uint8_t *page,
                                           const uint32_t (&p)[4][2]) {
    constexpr uint32_t ONE = 0x3c003c00, SIXTEEN = 0x4c004c00, LOW = 0x000f000f, HIGH = 0x00f000f0,
                       BYTE = 0x00ff00ff;
    const int lane = threadIdx.x % 32;
    const uint8_t *codes = page + S::RECORD.v_codes + lane * 16;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const uint32_t a = S::V_BITS == 4 && t >= 2 ? SIXTEEN : ONE;
        mma(st.weight, a, a, a, a, p[t][0], p[t][1]);
    }
#pragma unroll
    for (int k = 0; k < S::D / 16; k++) {
        if constexpr (S::V_BITS == 4) {
            const uint4 w = *(const uint4 *)(codes + k * 512);
            uint32_t x = w.x >> 8, y = w.z >> 8;
            mma(st.o[k], w.x & LOW, w.z & LOW, x & LOW, y & LOW, p[0][0], p[0][1]);
            mma(st.o[k], w.x & HIGH, w.z & HIGH, x & HIGH, y & HIGH, p[2][0], p[2][1]);
            x = w.y >> 8;
            y = w.w >> 8;
            mma(st.o[k], w.y & LOW, w.w & LOW, x & LOW, y & LOW, p[1][0], p[1][1]);
            mma(st.o[k], w.y & HIGH, w.w & HIGH, x & HIGH, y & HIGH, p[3][0], p[3][1]);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t flip = 0x80808080u;
                uint4 w = *(const uint4 *)(codes + (2 * k + h) * 512);
                w = make_uint4(w.x ^ flip, w.y ^ flip, w.z ^ flip, w.w ^ flip);
                mma(st.o[k], w.x & BYTE, w.z & BYTE, w.x >> 8 & BYTE, w.z >> 8 & BYTE, p[2 * h][0],
                    p[2 * h][1]);
                mma(st.o[k], w.y & BYTE, w.w & BYTE, w.y >> 8 & BYTE, w.w >> 8 & BYTE,
                    p[2 * h + 1][0], p[2 * h + 1][1]);
            }
        }
    }
}

/* ------------------------------------------------------------------ sixteen raw rows */

/* Rows 16 * tile .. of the list, in a slot of the ring. Places beyond the last row repeat it. */
template <class S>
__device__ __forceinline__ void attend_raw(State<S::D> &st, const DecodeParams &p,
                                           const Sight<S::MORE> &sight, const float (&qs)[2],
                                           const uint16_t *q, const RawList &rows, int tile,
                                           const uint8_t *slot) {
    constexpr int D = S::D;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    uint32_t qf[4 * S::RAW_GROUPS];
    load_query<D, 8>(qf, q, sight.heads);
    float s[4] = {0, 0, 0, 0};
    const uint8_t *k0 = slot + S::raw_row_at(2 * r), *k1 = slot + S::raw_row_at(2 * r + 1);
#pragma unroll
    for (int i = 0; i < S::RAW_GROUPS; i++) {
        const bool here = 4 * i + 3 < D / 8 || 4 * i + c < D / 8;
        uint32_t a[4] = {0, 0, 0, 0}, b[4] = {0, 0, 0, 0};
        if (here) {
            *(uint4 *)a = *(const uint4 *)(k0 + 16 * (4 * i + c));
            *(uint4 *)b = *(const uint4 *)(k1 + 16 * (4 * i + c));
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            a[e] = raw_halves(p.bf16, a[e]);
            b[e] = raw_halves(p.bf16, b[e]);
        }
        mma(s, a[0], b[0], a[1], b[1], qf[4 * i], qf[4 * i + 1]);
        mma(s, a[2], b[2], a[3], b[3], qf[4 * i + 2], qf[4 * i + 3]);
    }
    float top[2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int row = RAW_ROWS * tile + 2 * r + j / 2, token = rows.token(row);
        s[j] *= qs[j % 2];
        if (S::MORE && (p.softcap_log2 > 0 || p.alibi))
            s[j] = sight.bend(p, s[j], j % 2, token);
        if (row >= rows.all || sight.hides(p, token))
            s[j] = -INFINITY;
    }
    top[0] = fmaxf(s[0], s[2]);
    top[1] = fmaxf(s[1], s[3]);
    st.raise_maximum(top);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s[j] = exp2_approx(s[j] - st.m[j % 2] + WEIGHT_LOG2);
        st.l[j % 2] += s[j];
    }
    const uint32_t p0 = transpose_8x8(bits(__floats2half2_rn(s[0], s[1])));
    const uint32_t p1 = transpose_8x8(bits(__floats2half2_rn(s[2], s[3])));
    const uint8_t *row[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        row[j] = slot + S::RAW_SIDE + S::raw_row_at(4 * c + j) + 4 * r;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t v[4]; /* channels 16k+2r and 16k+2r+1 of tokens 4c .. 4c+3 */
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = raw_halves(p.bf16, *(const uint32_t *)(row[j] + 32 * k));
        mma(st.o[k], __byte_perm(v[0], v[2], 0x5410), __byte_perm(v[0], v[2], 0x7632),
            __byte_perm(v[1], v[3], 0x5410), __byte_perm(v[1], v[3], 0x7632), p0, p1);
    }
}

/* ------------------------------------------------------------------ results */

/* Channels d and d+1 of head h of an item, from its sums. */
template <bool MORE>
__device__ __forceinline__ void finish(const DecodeParams &p, const ItemHeads &heads, int h,
                                       int dim, int d, float m, float l, float a, float b) {
    const size_t row = heads.row + h;
    if (MORE && p.sink_logits) {
        const float sink = __ldg(p.sink_logits + heads.first + h) * LOG2_E, higher = fmaxf(m, sink);
        const float by = exp2_approx(m - higher);
        l = l * by + exp2_approx(sink - higher + WEIGHT_LOG2);
        a *= by;
        b *= by;
        m = higher;
    }
    const float inverse = l == 0 ? 0.0f : 1 / l;
    store_pair(p.out, p.out_type, row * dim + d, a * inverse, b * inverse);
    if (d == 0 && p.lse)
        p.lse[row] = l == 0 ? -INFINITY : (m + log2f(l) - WEIGHT_LOG2) * 0.69314718055994530942f;
}

template <bool MORE>
__device__ __forceinline__ int ticket_of(const DecodeParams &p, const Item<MORE> &it) {
    return it.seq * p.n_items_per_seq + it.index;
}

/* Slot of the part of an item that CTA `cta` computes: its first piece of work has the even one. */
template <bool MORE>
__device__ __forceinline__ int slot_of(const Schedule &schedule, const Item<MORE> &it, int cta) {
    return 2 * cta + (schedule.first(cta) >= it.start ? 0 : 1);
}

template <class S>
__device__ void merge_item(const DecodeParams &p, const Schedule &schedule,
                           const Item<S::MORE> &it) {
    constexpr int D = S::D, TOGETHER = 16; /* loads in flight */
    const ItemHeads heads = heads_of(p, it);
    const int cta = schedule.cta_of(it.start);
    const int n = p.exact > 0 ? it.parts(p) : schedule.cta_of(it.stop - 1) - cta + 1;
    /* Slots of the first part, of the second, and how far they are apart from there on. */
    const int first = p.exact > 0 ? ticket_of(p, it) * p.exact : slot_of(schedule, it, cta);
    const int step = p.exact > 0 ? 1 : 2, second = p.exact > 0 ? first + 1 : 2 * cta + 2;
    for (int x = threadIdx.x; x < heads.count * D / 2; x += S::THREADS) {
        const int h = x / (D / 2), d = x % (D / 2) * 2;
        float m = NOTHING, l = 0, a = 0, b = 0;
        for (int start = 0; start < n; start += TOGETHER) {
            float2 ml[TOGETHER], v[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) { /* beyond the last part: that one again */
                const int part = min(start + i, n - 1);
                const size_t row =
                    (size_t)(part ? second + (part - 1) * step : first) * p.item_heads + h;
                ml[i] = __ldcg(p.part_ml + row);
                v[i] = __ldcg((const float2 *)(p.part_o + row * D + d));
            }
            float higher = m;
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                higher = fmaxf(higher, ml[i].x);
            float by = exp2_approx(m - higher);
            l *= by;
            a *= by;
            b *= by;
            m = higher;
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                by = start + i < n ? exp2_approx(ml[i].x - m) : 0.0f;
                l += by * ml[i].y;
                a += by * v[i].x;
                b += by * v[i].y;
            }
        }
        finish<S::MORE>(p, heads, h, D, d, m, l, a, b);
    }
}

/* ------------------------------------------------------------------ the kernel */

/* The units of one warp, in order, fetched into its ring RING units ahead. The warp looks for 32
 * units at once, one for each lane, and 32 units before they are fetched: numbers of pages are then
 * there in time, also when the memory is busy with pages. */
template <class S> struct Fetcher {
    static constexpr int NONE = -1, RAW = -2; /* RAW - i: tile i of raw rows */
    struct Unit {
        int32_t id; /* of a page, or one of these */
        int kv;
        int slot, length; /* of the sequence; only for raw rows */
    };
    const DecodeParams &p;
    uint32_t ring, barriers; /* shared addresses */
    uint64_t policy;
    Item<S::MORE> it; /* it, `unit`, `now` and `later` differ between lanes */
    int unit, past;   /* the next unit to look for; where those of the CTA end */
    int taken;        /* units of `now` */
    Unit now, later;

    __device__ Fetcher(const DecodeParams &p_, uint32_t ring_, uint32_t barriers_,
                       const Item<S::MORE> &first, int unit_, int past_)
        : p(p_), ring(ring_), barriers(barriers_), policy(evict_first()), it(first),
          unit(unit_ + (int)threadIdx.x % 32 * S::WARPS), past(past_), taken(0) {
        now = look_ahead();
        later = look_ahead();
    }

    __device__ __forceinline__ Unit look_ahead() {
        Unit found = {NONE, 0, 0, 0};
        if (unit < past) {
            while (unit >= it.stop)
                next_item(it, p);
            const int i = unit - it.start - it.pages;
            found = {RAW - i, kv_of(p, it), 0, it.length};
            if (i < 0)
                found.id = __ldg(p.pages + it.seq * p.pages_stride + it.page(unit));
            else
                found.slot = p.slots ? __ldg(p.slots + it.seq) : it.seq;
        }
        unit += 32 * S::WARPS;
        return found;
    }

    /* A row for each lane: 16 of K, and 16 of V. */
    __device__ __forceinline__ void fetch_rows(uint32_t to, uint32_t barrier, int tile, int kv) {
        const int lane = threadIdx.x % 32, i = lane % RAW_ROWS;
        const bool is_v = lane >= RAW_ROWS;
        const int64_t slot = __shfl_sync(~0u, now.slot, taken);
        const RawList list(p, __shfl_sync(~0u, now.length, taken));
        if (lane == 0)
            barrier_expect(barrier, list.all > 0 ? 32 * 2 * S::D : 0);
        __syncwarp();
        if (list.all == 0)
            return;
        const int row = min(RAW_ROWS * tile + i, list.all - 1);
        const RawRows &rows = row < list.own ? p.own : p.sink;
        const int64_t at = row < list.own ? row : row - list.own;
        const uint16_t *from =
            is_v ? rows.v + slot * rows.v_slot + kv * rows.v_head + at * rows.v_token
                 : rows.k + slot * rows.k_slot + kv * rows.k_head + at * rows.k_token;
        copy_bytes(to + (is_v ? S::RAW_SIDE : 0) + S::raw_row_at(i), from, 2 * S::D, barrier);
    }

    __device__ __forceinline__ bool page_is_next() const { /* of the first 32 units */
        return __shfl_sync(~0u, now.id, taken) >= 0;
    }

    __device__ __forceinline__ void fetch(int place) {
        if (taken == 32) {
            now = later;
            later = look_ahead();
            taken = 0;
        }
        const int id = __shfl_sync(~0u, now.id, taken), kv = __shfl_sync(~0u, now.kv, taken);
        if (id == NONE)
            return;
        const uint32_t to = ring + place * S::SLOT, barrier = barriers + place * 8;
        if (id <= RAW)
            fetch_rows(to, barrier, RAW - id, kv);
        else if (threadIdx.x % 32 == 0)
            copy_to_shared(to, p.records + id * p.page_stride + kv * p.head_stride, S::RECORD.bytes,
                           barrier, policy);
        taken++;
    }
};

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) decode(const __grid_constant__ DecodeParams p) {
    constexpr int D = S::D, WARPS = S::WARPS;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ unsigned s_due;
    const uint16_t *q_natural = (const uint16_t *)(shared + S::Q_AT);
    const uint16_t *q_packed = (const uint16_t *)(shared + S::placed_at(p.item_heads));
    const float *up = (const float *)(shared + S::up_at(p.item_heads));
    float *sums = (float *)(shared + S::sums_at(p.item_heads));     /* (warps, item_heads, D) */
    float2 *stats = (float2 *)(shared + S::stats_at(p.item_heads)); /* (warps, item_heads) */
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;

    /* Page tables come from memory while the CTAs find out what they need of them: all of a small
     * batch's. */
    if (threadIdx.x == 0 && blockIdx.x * 32 < p.n_seqs * p.pages_stride)
        prefetch(p.pages + blockIdx.x * 32);
    const uint8_t *ring = shared + w * S::RING * S::SLOT;
    const uint32_t barriers =
        shared_address(shared + S::barriers_at(p.item_heads)) + w * S::RING * 8;
    if (lane == 0) { /* first of all: the fence waits for loads that are on the way */
        for (int i = 0; i < S::RING; i++)
            barrier_init(barriers + i * 8);
        barriers_publish();
    }
    const Share<S::MORE> share = make_share<S::MORE>(p, WARPS);
    const Schedule &schedule = share.schedule;
    const int first_unit = share.begin, past = share.past;
    if (first_unit == past)
        return;
    Item<S::MORE> it = share.item;
    Fetcher<S> fetcher(p, shared_address(ring), barriers, it, first_unit + w, past);
    QueryLoader<S> query;
    query.load(p, it);
    __syncwarp();
    int fetched = 0;
    for (; fetched < S::RING && fetcher.page_is_next(); fetched++)
        fetcher.fetch(fetched);
    query.store(p, shared);
    __syncthreads();
    for (; fetched < S::RING; fetched++) /* raw rows: that takes longer, and q must not wait */
        fetcher.fetch(fetched);

    int slot = 0, parity = 0, unit = first_unit + w, begin = first_unit;
    int part = p.exact > 0 ? it.part_from(p, begin) : 0;
    /* An item that this CTA has finished its part of, and others share. */
    Item<S::MORE> waiting = it;
    bool has_waiting = false;
    const auto is_shared = [&](const Item<S::MORE> &item) {
        return item.start < first_unit || item.stop > past;
    };
    for (;;) { /* what this CTA has of an item; in exact mode a part of it */
        const int end = p.exact > 0 ? it.part_start(p, part + 1) : min(it.stop, past);
        const bool more = end < past, ends = end == it.stop;
        const ItemHeads heads = heads_of(p, it);
        Item<S::MORE> following = it;
        if (more && ends) {
            next_item(following, p);
            query.load(p, following);
        }
        State<D> st;
        st.clear();
        /* What scores of heads 2c and 2c+1 are multiplied with; columns without a head are all
         * zeros. */
        const float qs[2] = {2 * c < heads.count ? up[2 * c] : 1.0f,
                             2 * c + 1 < heads.count ? up[2 * c + 1] : 1.0f};
        const Sight<S::MORE> sight(p, it, heads);
        const int past_packed = min(end, it.start + it.pages);
        const auto free_slot = [&] { /* every lane is done with it */
                                     __syncwarp();
                                     fetcher.fetch(slot);
                                     if (++slot == S::RING) {
                                         slot = 0;
                                         parity ^= 1;
                                     }
        };
        if (unit < past_packed) {
            uint32_t q[2 * S::STEPS * S::GROUPS];
            load_query<D, S::COLUMN>(q, q_packed, heads.count);
            for (; unit < past_packed; unit += WARPS) {
                float s[4][4], z[4];
                uint32_t weights[4][2];
                barrier_wait(barriers + slot * 8, parity);
                const uint8_t *page = ring + slot * S::SLOT;
                score_page<S>(page, q, s, z);
                weigh_page<S>(st, p, sight, qs, s, z, page, T * it.page(unit), weights);
                add_values<S>(st, page, weights);
                free_slot();
            }
            st.template leave_packed<S>();
        }
        for (; unit < end; unit += WARPS) {
            const RawList rows(p, it.length);
            barrier_wait(barriers + slot * 8, parity);
            if (rows.all > 0)
                attend_raw<S>(st, p, sight, qs, q_natural, rows, unit - it.start - it.pages,
                              ring + slot * S::SLOT);
            free_slot();
        }

        /* The warps' sums, merged. */
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float l = st.l[e];
            l += __shfl_xor_sync(~0u, l, 4);
            l += __shfl_xor_sync(~0u, l, 8);
            l += __shfl_xor_sync(~0u, l, 16);
            const int h = 2 * c + e;
            if (h < heads.count) {
                if (r == 0)
                    stats[w * p.item_heads + h] = make_float2(st.m[e], l);
#pragma unroll
                for (int k = 0; k < D / 16; k++)
                    *(float2 *)&sums[(w * p.item_heads + h) * D + 16 * k + 2 * r] =
                        make_float2(st.o[k][e], st.o[k][e + 2]);
            }
        }
        __syncthreads();
        const bool whole = begin <= it.start && ends;
        const int to =
            p.exact > 0 ? ticket_of(p, it) * p.exact + part : slot_of(schedule, it, blockIdx.x);
        /* Which warp has the first unit: sums are merged in the order of units. */
        const int turn = p.exact > 0 ? (begin - first_unit) % WARPS : 0;
        for (int x = threadIdx.x; x < heads.count * D / 2; x += S::THREADS) {
            const int h = x / (D / 2), d = x % (D / 2) * 2;
            float m = NOTHING, l = 0, a = 0, b = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                m = fmaxf(m, stats[i * p.item_heads + h].x);
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                const int from = i + turn - (i + turn >= WARPS ? WARPS : 0);
                const float2 ml = stats[from * p.item_heads + h];
                const float2 v = *(const float2 *)&sums[(from * p.item_heads + h) * D + d];
                const float by = exp2_approx(ml.x - m);
                l += by * ml.y;
                a += by * v.x;
                b += by * v.y;
            }
            if (whole) {
                finish<S::MORE>(p, heads, h, D, d, m, l, a, b);
            } else {
                __stcg((float2 *)(p.part_o + ((size_t)to * p.item_heads + h) * D + d),
                       make_float2(a, b));
                if (d == 0)
                    __stcg(p.part_ml + to * p.item_heads + h, make_float2(m, l));
            }
        }
        /* Items to merge: bit 0 the one that waits, bit 1 this one. In exact mode all parts of an
         * item may be this CTA's own; where others have parts, the last CTA merges. Tickets are
         * drawn once, at the end. */
        const bool own_parts = p.exact > 0 && ends && !whole && !is_shared(it);
        const bool draws = !more && (is_shared(it) || has_waiting);
        if (draws || own_parts) {
            __syncthreads();
            if (threadIdx.x == 0) {
                const auto is_last = [&](const Item<S::MORE> &item) {
                    int n = schedule.cta_of(item.stop - 1) - schedule.cta_of(item.start) + 1,
                        done = 1;
                    if (p.exact > 0) {
                        n = item.parts(p);
                        done = item.part_from(p, min(past, item.stop)) -
                               item.part_from(p, max(first_unit, item.start));
                    }
                    unsigned *ticket = p.tickets + ticket_of(p, item);
                    const bool last = draw_ticket(ticket, (unsigned)done) == (unsigned)(n - done);
                    if (last)
                        *ticket = 0; /* ready for the next launch */
                    return last;
                };
                s_due = own_parts ? 2 : 0;
                if (draws && has_waiting && is_last(waiting))
                    s_due |= 1;
                if (draws && is_shared(it) && is_last(it))
                    s_due |= 2;
            }
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < 2; i++) {
                Item<S::MORE> item = it;
                if (i == 0)
                    item = waiting;
                if (s_due >> i & 1)
                    merge_item<S>(p, schedule, item);
            }
        }
        if (!more)
            return;
        if (ends && is_shared(it)) {
            waiting = it;
            has_waiting = true;
        }
        begin = end;
        part++;
        if (ends) {
            part = 0;
            it = following;
            query.store(p, shared);
        }
        __syncthreads(); /* sums are free again, q is there */
    }
}

template <quire_codec K, quire_codec V, int D, int WARPS, int RING, bool MORE = false>
constexpr DecodeKernel kernel_of() {
    using S = Shape<K, V, D, WARPS, RING, MORE>;
    return {{K, V}, D, MORE, WARPS, RING, decode<S>, S::shared_bytes};
}

} // namespace quire_cuda

#endif
