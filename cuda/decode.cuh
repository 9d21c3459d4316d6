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

#include "decode_page.cuh"

namespace quire_cuda {

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

/* Slot of the part of an item that CTA `cta` computes, whose units start at `first_unit`: its first
 * piece of work has the even one. */
template <bool MORE>
__device__ __forceinline__ int slot_of(const Item<MORE> &it, int cta, int first_unit) {
    return 2 * cta + (first_unit >= it.start ? 0 : 1);
}

/* The parts of an item that several CTAs share, found while its pages are on the way: at the end
 * every CTA waits for the last. */
struct Parts {
    int n, mine;             /* all; those of this CTA */
    int first, second, step; /* their slots: of part i from 1 on second + (i - 1) * step */

    template <bool MORE>
    __device__ __forceinline__ Parts(const DecodeParams &p, const Share<MORE> &share,
                                     const Item<MORE> &it) {
        if (p.exact > 0) {
            n = it.parts(p);
            mine = it.part_from(p, min(share.past, it.stop)) -
                   it.part_from(p, max(share.begin, it.start));
            first = ticket_of(p, it) * p.exact;
            second = first + 1;
            step = 1;
        } else {
            const int cta = share.schedule.cta_of(it.start);
            n = share.schedule.cta_of(it.stop - 1) - cta + 1;
            mine = 1;
            first = slot_of(it, cta, share.schedule.first(cta));
            second = 2 * cta + 2;
            step = 2;
        }
    }
};

template <class S>
__device__ void merge_item(const DecodeParams &p, const Item<S::MORE> &it, const Parts &parts) {
    constexpr int D = S::D, TOGETHER = 16; /* loads in flight */
    const ItemHeads heads = heads_of(p, it);
    const int n = parts.n;
    for (int x = threadIdx.x; x < heads.count * D / 2; x += S::THREADS) {
        const int h = x / (D / 2), d = x % (D / 2) * 2;
        float m = NOTHING, l = 0, a = 0, b = 0;
        for (int start = 0; start < n; start += TOGETHER) {
            float2 ml[TOGETHER], v[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) { /* beyond the last part: that one again */
                const int part = min(start + i, n - 1);
                const int slot = part ? parts.second + (part - 1) * parts.step : parts.first;
                const size_t row = (size_t)slot * p.item_heads + h;
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

    __device__ __forceinline__ void fetch_page(uint32_t to, uint32_t barrier, const uint8_t *from) {
        const int lane = threadIdx.x % 32, copies = p.split_pages ? S::COPIES : 1;
        if (lane == 0)
            barrier_expect(barrier, S::RECORD.bytes);
        if (lane < copies) {
            const int bytes = p.split_pages ? S::RECORD.bytes / S::COPIES : S::RECORD.bytes;
            copy_bytes(to + lane * bytes, from + lane * bytes, bytes, barrier, policy);
        }
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
        else
            fetch_page(to, barrier, p.records + id * p.page_stride + kv * p.head_stride);
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
    Parts parts(p, share, it);
    /* An item that this CTA has finished its part of, and others share. */
    Item<S::MORE> waiting = it;
    Parts waiting_parts = parts;
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
        const int to = p.exact > 0 ? parts.first + part : slot_of(it, (int)blockIdx.x, first_unit);
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
                const auto is_last = [&](const Item<S::MORE> &item, const Parts &of) {
                    unsigned *ticket = p.tickets + ticket_of(p, item);
                    const bool last =
                        draw_ticket(ticket, (unsigned)of.mine) == (unsigned)(of.n - of.mine);
                    if (last)
                        *ticket = 0; /* ready for the next launch */
                    return last;
                };
                s_due = own_parts ? 2 : 0;
                if (draws && has_waiting && is_last(waiting, waiting_parts))
                    s_due |= 1;
                if (draws && is_shared(it) && is_last(it, parts))
                    s_due |= 2;
            }
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < 2; i++) {
                Item<S::MORE> item = it;
                Parts of = parts;
                if (i == 0) {
                    item = waiting;
                    of = waiting_parts;
                }
                if (s_due >> i & 1)
                    merge_item<S>(p, item, of);
            }
        }
        if (!more)
            return;
        if (ends && is_shared(it)) {
            waiting = it;
            waiting_parts = parts;
            has_waiting = true;
        }
        begin = end;
        part++;
        if (ends) {
            part = 0;
            it = following;
            parts = Parts(p, share, it);
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
