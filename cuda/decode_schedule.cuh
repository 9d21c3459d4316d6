/* Who does what in a decode step: decided on the device, by every warp for itself. decode.cuh says
 * what items and units are. */
#ifndef QUIRE_CUDA_DECODE_SCHEDULE_CUH
#define QUIRE_CUDA_DECODE_SCHEDULE_CUH

#include "decode.h"
#include "ptx.cuh"
#include "record.h"

namespace quire_cuda {

constexpr int RAW_ROWS = 16; /* in a unit */
/* Exact mode: a part of an item has at least so many units. */
constexpr int EXACT_UNITS = 8;

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
    return quotient(it.index, p.parts_inverse);
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

} // namespace quire_cuda

#endif
