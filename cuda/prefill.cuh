/* Prefill attention over packed pages: many query rows of each sequence.
 *
 * A row sees the pages before its own packed, its own page raw up to itself, and the sinks raw, as
 * in decode: results do not depend on how a prompt is cut into calls.
 *
 * All is transposed: S^T = K Q^T and O^T = V^T P^T. Codes are then the left operand, which Hopper's
 * tensor cores take from registers, and the order of a page's bytes is that operand's: a lane loads
 * 16 bytes and unpacks them (unpack.cuh). V is never written down as fp16. K is, where there is
 * room in shared memory: a few warps unpack it for all teams, an image for each page, while the
 * teams attend the pages before. Q (once for a tile) and P (once for a page) lie there, too.
 *
 * A team is a warpgroup: it has N queries. The teams of a crew share the tile and its pages, and
 * take turns at the tensor cores; one warp fetches pages for a crew. Crews are the schedule's
 * workers (prefill_schedule.cuh).
 *     rows of S^T: warp w has tokens 16w .. 16w+15; row r is token 2r, row r+8 token 2r+1
 *     rows of O^T: half m, warp w: channels 64m+16w ..; row r is channel 2r, row r+8 channel 2r+1
 *     columns: queries; a lane has 8j+2c and 8j+2c+1
 *
 * The running maximum is that of the first page, and moves only when sums of weights near the end
 * of fp16's range. Where that is not enough (a score 2^128 above all before), the worker does its
 * work again, looking at all scores before it takes exponentials, as it does for pages that are
 * seen in part, soft-capped or biased scores, and queries of very different size.
 */
#ifndef QUIRE_CUDA_PREFILL_CUH
#define QUIRE_CUDA_PREFILL_CUH

#include "prefill_pages.cuh"
#include "prefill_team.cuh"

namespace quire_cuda {

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) prefill(const __grid_constant__ PrefillParams p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    using Crew = typename S::Crew;
    Crew *crews = (Crew *)(shared + S::CREWS_AT);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < S::CREWS) {
        Crew &crew = crews[warp];
        start_walker(p, blockIdx.x * S::CREWS + warp, crew.walker);
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < S::SLOTS; i++) {
                barrier_init(shared_address(&crew.full[i]), 1);
                barrier_init(shared_address(&crew.empty[i]),
                             128 * S::TEAMS + (S::IMAGES > 0 ? 32 * S::QUARTERS : 0));
            }
            for (int i = 0; i < S::IMAGES; i++) {
                barrier_init(shared_address(&crew.unpacked[i]), S::QUARTERS);
                barrier_init(shared_address(&crew.scored[i]), 4 * S::TEAMS);
            }
            for (int i = 0; i < 2; i++) {
                barrier_init(shared_address(&crew.ready[i]), 1);
                barrier_init(shared_address(&crew.free[i]), 128 * S::TEAMS + S::UNPACKERS);
            }
            barrier_init(shared_address(&crew.done), 128 * S::TEAMS + 32 + 32 * S::UNPACKERS);
            barriers_publish();
            crew.failed = 0;
        }
    }
    __syncthreads();
    if (warp >= 4 * S::ALL_TEAMS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::PRODUCER_REGISTERS));
        if (warp - 4 * S::ALL_TEAMS < S::CREWS)
            fetch_pages<S>(p, shared, warp - 4 * S::ALL_TEAMS);
        else if constexpr (S::IMAGES > 0)
            unpack_pages<S>(shared, warp - 4 * S::ALL_TEAMS - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
        Team<S> team(p, shared, warp / 4);
        team.work();
    }
}

template <quire_codec K, quire_codec V, int D, int N, int TEAMS, int CREWS, int SLOTS, int IMAGES>
constexpr PrefillKernel prefill_kernel_of() {
    using S = PrefillShape<K, V, D, N, TEAMS, CREWS, SLOTS, IMAGES>;
    return {{K, V},          D,          S::QUERIES,      S::CREWS, S::THREADS,
            S::SHARED_BYTES, prefill<S>, prefill_merge<D>};
}

} // namespace quire_cuda

#endif
