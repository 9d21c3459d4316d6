/* What the warps without queries do in prefill: they fetch pages, and unpack K of them. */
#ifndef QUIRE_CUDA_PREFILL_PAGES_CUH
#define QUIRE_CUDA_PREFILL_PAGES_CUH

#include "prefill_keys.cuh"

namespace quire_cuda {

/* One warp finds the crew's segments, a turn ahead of the teams, and fetches their pages. */
template <class S>
__device__ __forceinline__ void fetch_pages(const PrefillParams &p, uint8_t *shared, int crew) {
    auto &notes = ((typename S::Crew *)(shared + S::CREWS_AT))[crew];
    const uint32_t ring = shared_address(shared) + S::RING_AT + crew * S::SLOTS * S::RECORD.bytes;
    const int lane = threadIdx.x % 32;
    /* All slots are free at first: a wait for the phase before the first one passes. */
    int slot = 0, phase = 1;
    unsigned turn = 0;
    bool again = false;
    for (;;) {
        for (bool more = true; more; turn++) {
            Segment &g = notes.segments[turn & 1];
            barrier_wait(shared_address(&notes.free[turn & 1]), turn / 2 & 1 ^ 1);
            if (lane == 0) {
                notes.walker.next(p, g);
                barrier_arrive(shared_address(&notes.ready[turn & 1]));
            }
            __syncwarp();
            more = g.more;
            if (!more)
                continue;
            const uint8_t *records = p.records + g.kv * p.head_stride;
            const int32_t *ids = p.pages + g.seq * p.pages_stride;
            int32_t mine = 0;
            for (int i = g.begin, k = 0; i < g.end; i++, k++) {
                if (k % 32 == 0 && i + lane < g.end)
                    mine = __ldg(ids + g.page(i + lane));
                const int32_t id = __shfl_sync(~0u, mine, k % 32);
                barrier_wait(shared_address(&notes.empty[slot]), phase);
                if (lane == 0)
                    copy_to_shared(ring + slot * S::RECORD.bytes, records + id * p.page_stride,
                                   S::RECORD.bytes, shared_address(&notes.full[slot]));
                if (++slot == S::SLOTS) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            __syncwarp();
        }
        if (again || !meet_at_end(notes))
            return;
        again = true;
        if (lane == 0)
            notes.walker.restart();
        __syncwarp();
    }
}

/* Some warps unpack K of the crew's pages, a quarter of a page at a time: what one of them does is
 * independent of the others. */
template <class S> __device__ __forceinline__ void unpack_pages(uint8_t *shared, int unpacker) {
    auto &notes = *(typename S::Crew *)(shared + S::CREWS_AT);
    const int lane = threadIdx.x % 32;
    unsigned n = 0, turn = 0;
    int quarter = unpacker;
    bool again = false;
    for (;;) {
        for (bool more = true; more; turn++) {
            barrier_wait(shared_address(&notes.ready[turn & 1]), turn / 2 & 1);
            const Segment &g = notes.segments[turn & 1];
            more = g.more;
            const int pages = more ? g.end - g.begin : 0;
            for (int i = 0; i < pages; i++, n++) {
                const int slot = n % S::SLOTS, image = n % S::IMAGES;
                barrier_wait(shared_address(&notes.full[slot]), n / S::SLOTS & 1);
                barrier_wait(shared_address(&notes.scored[image]), n / S::IMAGES & 1 ^ 1);
                for (; quarter < S::QUARTERS; quarter += S::UNPACKERS) {
                    unpack_quarter<S>(shared + S::RING_AT + slot * S::RECORD.bytes, quarter, lane,
                                      shared_address(shared) + S::IMAGES_AT +
                                          image * S::IMAGE_BYTES);
                    publish_shared();
                    barrier_arrive(
                        shared_address(&notes.empty[slot])); /* every lane: it has read */
                    __syncwarp();
                    if (lane == 0)
                        barrier_arrive(shared_address(&notes.unpacked[image]));
                }
                quarter -= S::QUARTERS;
            }
            __syncwarp();
            if (lane == 0)
                barrier_arrive(shared_address(&notes.free[turn & 1]));
        }
        if (again || !meet_at_end(notes))
            return;
        again = true;
    }
}

} // namespace quire_cuda

#endif
