/* Who does what in a prefill: decided on the device, from rows and lengths that lie there.
 *
 * Units of work are laid out in one list: sequence by sequence, KV head by KV head, tile by tile; a
 * tile has a unit for each packed page and then a tail for its raw rows, its start and its end.
 * Workers take equal pieces of the list. A tail is never divided: it belongs to the worker that has
 * its first unit. */
#ifndef QUIRE_CUDA_PREFILL_SCHEDULE_CUH
#define QUIRE_CUDA_PREFILL_SCHEDULE_CUH

#include "prefill.h"
#include "record.h"

namespace quire_cuda {

/* Of a worker: smaller pieces would cost more to merge than they save. */
constexpr int LEAST_UNITS = 8;

struct Tile {
    long long start;           /* its first unit */
    int seq, kv, index;        /* index: of the sequence's tiles */
    int rows, length, n_tiles; /* of the sequence */
    int first, last;           /* positions of its rows */
    int kept, from; /* packed pages that it needs: 0 .. kept - 1, then those from `from` on */
    int pages, units;
};

/* The row of a query: query / group. */
__device__ __forceinline__ int row_of(const PrefillParams &p, int query) {
    return quotient(query, p.group_inverse);
}

/* All that follows from the sequence and the index. */
__device__ __forceinline__ void measure_tile(const PrefillParams &p, Tile &t) {
    const int first = t.index * p.tile_queries,
              past = min(first + p.tile_queries, t.rows * p.group);
    t.first = t.length - t.rows + row_of(p, first);
    t.last = t.length - t.rows + row_of(p, past - 1);
    const int sealed = t.last / T;
    t.from = p.window > 0 ? min(max(t.first - p.window + 1, 0) / T, sealed) : 0;
    t.kept = p.keep > p.sinks ? min((p.keep + T - 1) / T, t.from) : 0;
    t.pages = t.kept + sealed - t.from;
    const bool sinks_apart = sealed > 0 && p.sinks > 0 && t.last % T + 1 + p.sinks > T;
    const int raw = t.last / T - t.first / T + 1 + sinks_apart;
    t.units = t.pages + 11 + 6 * raw; /* as long as so many pages take, about */
}

/* Lanes take sequences, and several lanes the tiles of one where there are fewer sequences than
 * lanes. */
struct Sequences {
    int each; /* lanes for a sequence */

    __device__ explicit Sequences(const PrefillParams &p) : each(32) {
        while (each > 1 && 32 / each < p.n_seqs)
            each /= 2;
    }
    __device__ int together() const { return 32 / each; }

    /* This lane's sequence, of those from `first` on; returns the units of one KV head. */
    __device__ long long measure(const PrefillParams &p, int first, Tile &t) const {
        const int lane = threadIdx.x % 32;
        t.seq = first + lane / each;
        t.rows = t.length = t.n_tiles = 0;
        if (t.seq < p.n_seqs) {
            t.rows = max(__ldg(p.starts + t.seq + 1) - __ldg(p.starts + t.seq), 0);
            t.length = max(__ldg(p.lengths + t.seq), t.rows);
            t.n_tiles = (t.rows * p.group + p.tile_queries - 1) / p.tile_queries;
        }
        long long units = 0;
        for (t.index = lane % each; t.index < t.n_tiles; t.index += each) {
            measure_tile(p, t);
            units += t.units;
        }
        for (int h = 1; h < each; h *= 2)
            units += __shfl_xor_sync(~0u, units, h);
        return units;
    }
};

/* Worker w has units first(w) .. first(w + 1) - 1. */
struct WorkList {
    long long total;
    int workers;

    __device__ explicit WorkList(const PrefillParams &p) : total(0) { /* by a whole warp */
        const Sequences sequences(p);
        Tile t;
        for (int first = 0; first < p.n_seqs; first += sequences.together()) {
            long long units = sequences.measure(p, first, t);
            for (int h = sequences.each; h < 32; h *= 2)
                units += __shfl_xor_sync(~0u, units, h);
            total += units * p.n_kv;
        }
        const long long useful = total / LEAST_UNITS;
        workers = useful < 1 ? 1 : useful < p.max_workers ? (int)useful : p.max_workers;
    }
    __device__ long long first(int worker) const { return total * worker / workers; }
};

/* The tile that has a unit; by a whole warp. */
__device__ __forceinline__ Tile find_tile(const PrefillParams &p, long long unit) {
    const int lane = threadIdx.x % 32;
    const Sequences sequences(p);
    Tile t;
    long long before = 0, units, past;
    unsigned found;
    for (int first = 0;; first += sequences.together()) {
        units = sequences.measure(p, first, t);
        past = units * p.n_kv;
        for (int h = sequences.each; h < 32; h *= 2) {
            const long long other = __shfl_up_sync(~0u, past, h);
            past += lane >= h ? other : 0;
        }
        past += before;
        found = __ballot_sync(~0u, past > unit);
        if (found)
            break;
        before = __shfl_sync(~0u, past, 31);
    }
    const int at = __ffs(found) - 1;
    t.seq = __shfl_sync(~0u, t.seq, at);
    t.rows = __shfl_sync(~0u, t.rows, at);
    t.length = __shfl_sync(~0u, t.length, at);
    t.n_tiles = __shfl_sync(~0u, t.n_tiles, at);
    units = __shfl_sync(~0u, units, at);
    t.start = __shfl_sync(~0u, past, at) - units * p.n_kv;
    t.kv = (int)((unit - t.start) / units);
    t.start += t.kv * units;
    for (int first = 0;; first += 32) {
        t.index = first + lane;
        t.units = 0;
        if (t.index < t.n_tiles)
            measure_tile(p, t);
        int sum = t.units;
        for (int h = 1; h < 32; h *= 2) {
            const int other = __shfl_up_sync(~0u, sum, h);
            sum += lane >= h ? other : 0;
        }
        found = __ballot_sync(~0u, t.start + sum > unit);
        if (found) {
            const int k = __ffs(found) - 1;
            t.index = first + k;
            t.start += __shfl_sync(~0u, sum - t.units, k);
            measure_tile(p, t);
            return t;
        }
        t.start += __shfl_sync(~0u, sum, 31);
    }
}

/* A worker's piece of one tile. */
struct Segment {
    int seq, kv, query; /* the tile's first query */
    int n_queries;      /* of the sequence */
    int position, row;  /* of the sequence's first row: among its tokens, and in q */
    int kept, from;     /* as in Tile */
    int begin, end;     /* of the tile's packed pages */
    int tail;           /* whether raw rows belong to it */
    int slot;           /* of the partial result; -1: the segment is the whole tile */
    int more;           /* 0: there was no segment left */
    __device__ int page(int unit) const { return unit < kept ? unit : unit - kept + from; }
};

/* A worker's segments, one after the other. It lies in shared memory, and one thread moves it. */
struct Walker {
    long long begin, past;
    int worker, started;
    Tile tile, origin;

    __device__ void restart() {
        tile = origin;
        started = 0;
    }

    __device__ void next(const PrefillParams &p, Segment &segment) {
        segment.more = 0;
        for (; begin < past;) {
            if (started) {
                if (tile.start + tile.units >= past)
                    return;
                tile.start += tile.units;
                next_tile(p);
            }
            started = 1;
            const int from = begin > tile.start ? (int)(begin - tile.start) : 0;
            const int end =
                past - tile.start > tile.pages ? tile.pages + 1 : (int)(past - tile.start);
            if (from >= end) /* the piece begins in the tail, which is the worker's before */
                continue;
            segment.seq = tile.seq;
            segment.kv = tile.kv;
            segment.query = tile.index * p.tile_queries;
            segment.n_queries = tile.rows * p.group;
            segment.position = tile.length - tile.rows;
            segment.row = p.starts[tile.seq];
            segment.kept = tile.kept;
            segment.from = tile.from;
            segment.begin = from;
            segment.tail = end == tile.pages + 1;
            segment.end = min(end, tile.pages);
            segment.slot = from == 0 && segment.tail ? -1 : 2 * worker + (from == 0 ? 1 : 0);
            segment.more = 1;
            return;
        }
    }

    __device__ void next_tile(const PrefillParams &p) {
        if (++tile.index == tile.n_tiles) {
            tile.index = 0;
            if (++tile.kv == p.n_kv) {
                tile.kv = 0;
                do {
                    tile.seq++;
                    tile.rows = max(p.starts[tile.seq + 1] - p.starts[tile.seq], 0);
                } while (tile.rows == 0);
                tile.length = max(p.lengths[tile.seq], tile.rows);
                tile.n_tiles = (tile.rows * p.group + p.tile_queries - 1) / p.tile_queries;
            }
        }
        measure_tile(p, tile);
    }
};

/* By a whole warp; lane 0 writes. */
__device__ __forceinline__ void start_walker(const PrefillParams &p, int worker, Walker &to) {
    const WorkList list(p);
    const bool busy = worker < list.workers && list.total > 0;
    const long long begin = busy ? list.first(worker) : 0, past = busy ? list.first(worker + 1) : 0;
    Tile tile = {};
    if (busy)
        tile = find_tile(p, begin);
    if (threadIdx.x % 32 == 0) {
        to.begin = begin;
        to.past = past;
        to.worker = worker;
        to.origin = tile;
        to.restart();
    }
}

} // namespace quire_cuda

#endif
