/* The shape of a prefill kernel: its threads, registers and shared memory, and how its warps meet.
 */
#ifndef QUIRE_CUDA_PREFILL_SHAPE_CUH
#define QUIRE_CUDA_PREFILL_SHAPE_CUH

#include "prefill_schedule.cuh"
#include "ptx.cuh"

namespace quire_cuda {

template <quire_codec K, quire_codec V, int D_, int N_, int TEAMS_, int CREWS_, int SLOTS_,
          int IMAGES_>
struct PrefillShape {
    static constexpr int D = D_, N = N_, TEAMS = TEAMS_, CREWS = CREWS_, SLOTS = SLOTS_;
    /* Pages of which K is unpacked in shared memory at a time; 0: teams unpack it into registers.
     * Three warps unpack, a quarter of a page each time. */
    static constexpr int IMAGES = IMAGES_, UNPACKERS = IMAGES > 0 ? 3 : 0, QUARTERS = 4;
    static constexpr int ALL_TEAMS = TEAMS * CREWS, THREADS = 128 * (ALL_TEAMS + 1),
                         QUERIES = N * TEAMS;
    static constexpr int K_BITS = k_bits_of(K), V_BITS = v_bits_of(V);
    static constexpr Record RECORD = record_of(K_BITS, D, V_BITS, D);
    static constexpr bool ORDERED = is_mixed(K);
    static constexpr int MIXED = ORDERED ? D / 32 : 0;  /* blocks of 16 places */
    static constexpr int COLUMN = K_BITS == 8 ? 8 : 16; /* places in an atom of K */
    /* Columns are taken four at a time; the last group may be narrower. Steps have 16 places, slabs
     * 64 places, halves 64 channels. */
    static constexpr int COLUMNS = D / COLUMN, GROUPS = (COLUMNS + 3) / 4;
    static constexpr int EACH = COLUMN / 4, STEPS = GROUPS * EACH;
    static constexpr int SLABS = (STEPS + 3) / 4, HALVES = (D + 63) / 64;
    static constexpr float V_UNIT = v_step(V_BITS) * 512; /* codes of V come times 2^-9 */
    /* Registers of a thread: all have the same at first, then warps that fetch give up theirs. */
    static constexpr int PRODUCER_REGISTERS = IMAGES > 0 ? 40 : 24,
                         EVEN_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int REGISTERS =
        (EVEN_REGISTERS * (ALL_TEAMS + 1) - PRODUCER_REGISTERS) / ALL_TEAMS / 8 * 8;

    struct Notes {       /* of a team */
        int calm, upset; /* packed units between these are seen whole by all queries */
        int alike;       /* one factor serves all queries: q was divided by the same number */
        float factor;
        int raw_units;
        uint32_t sizes[N]; /* bits of the largest element */
        float factors[N], slope[N], maximum[N];
        alignas(8) int position[N];
        float unit[4];
        half token_scale[T];
        alignas(16) float reduced[N];
        /* Byte of a channel in row 0 of an image of Q, and of K. */
        alignas(16) uint16_t q_place[D], k_place[D];
    };
    struct Crew {
        uint64_t full[SLOTS], empty[SLOTS];                /* of pages */
        uint64_t unpacked[IMAGES + 1], scored[IMAGES + 1]; /* of images of K */
        uint64_t ready[2], free[2];                        /* of segments */
        uint64_t done; /* all have been through their segments once */
        int failed;
        Segment segments[2];
        Walker walker;
    };
    /* Shared memory. A team has Q, twice P, and a place for raw rows; results leave through all of
     * that, in rows that are 4 longer, so that banks differ. Then come the rings of pages, and
     * what is small. */
    static constexpr int Q_BYTES = SLABS * N * 128, P_BYTES = N * 128;
    static constexpr int RAW_BYTES = (SLABS > HALVES ? SLABS : HALVES) * 8192, STAGE_ROW = D + 4;
    static constexpr int P_AT = Q_BYTES, RAW_AT = P_AT + 2 * P_BYTES,
                         TEAM_BYTES = RAW_AT + RAW_BYTES;
    static constexpr int RING_AT = ALL_TEAMS * TEAM_BYTES;
    static constexpr int IMAGE_BYTES = SLABS * T * 128;
    static constexpr int IMAGES_AT = (RING_AT + CREWS * SLOTS * RECORD.bytes + 1023) / 1024 * 1024;
    static constexpr int NOTES_AT =
        IMAGES > 0 ? IMAGES_AT + IMAGES *IMAGE_BYTES : RING_AT + CREWS *SLOTS *RECORD.bytes;
    static constexpr int CREWS_AT = NOTES_AT + ALL_TEAMS * (int)sizeof(Notes);
    static constexpr int SHARED_BYTES = CREWS_AT + CREWS * (int)sizeof(Crew);
    static_assert(N * STAGE_ROW * 4 <= TEAM_BYTES && N % 8 == 0 && ALL_TEAMS <= 4 &&
                      (SLOTS & (SLOTS - 1)) == 0 && (IMAGES & (IMAGES - 1)) == 0 &&
                      (IMAGES == 0 || CREWS == 1),
                  "shape");
};

/* ------------------------------------------------------------------ barriers of teams and crews */

/* The same in all lanes, which the compiler cannot see: products in branches that it takes for
 * divergent are serialized. */
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

__device__ __forceinline__ void team_barrier(int team) {
    asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory");
}
__device__ __forceinline__ bool team_any(int team, bool x) {
    int y;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, 128, "
                 "p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(y)
                 : "r"((int)x), "r"(team + 1)
                 : "memory");
    return y;
}
/* All that work for a crew meet when they have been through its segments. Returns whether they must
 * go through them again. */
template <class Crew> __device__ __forceinline__ int meet_at_end(Crew &crew) {
    barrier_arrive(shared_address(&crew.done));
    barrier_wait(shared_address(&crew.done), 0);
    return crew.failed;
}
template <int TEAMS> __device__ __forceinline__ void take_turn(int team) {
    if (TEAMS > 1)
        asm volatile("bar.sync %0, 256;" ::"r"(team + 5) : "memory");
}
template <int TEAMS> __device__ __forceinline__ void give_turn(int team) { /* to the next one */
    if (TEAMS > 1)
        asm volatile("bar.arrive %0, 256;" ::"r"((team + 1 == TEAMS ? 0 : team + 1) + 5)
                     : "memory");
}

} // namespace quire_cuda

#endif
