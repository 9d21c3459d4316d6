/* A thread of a prefill team: where it stands, and what it keeps in registers. */
#ifndef QUIRE_CUDA_PREFILL_MEMBER_CUH
#define QUIRE_CUDA_PREFILL_MEMBER_CUH

#include "prefill_shape.cuh"
#include "wgmma.cuh"

namespace quire_cuda {

/* A team's sums, in registers. */
template <class S> struct Sums {
    float o[S::HALVES][S::N / 2], s[S::N / 2], l[S::N / 4], minus_m[S::N / 4];
    half2 down; /* 1 / the power of two that V's scales are divided by; 0: no page was seen yet */
};

template <class S> struct TeamMember {
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

    __device__ __forceinline__ TeamMember(const PrefillParams &p_, uint8_t *shared_, int team_)
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
};

} // namespace quire_cuda

#endif
