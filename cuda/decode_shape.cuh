/* The shape of a decode kernel: its warps, and its shared memory. */
#ifndef QUIRE_CUDA_DECODE_SHAPE_CUH
#define QUIRE_CUDA_DECODE_SHAPE_CUH

#include "decode_schedule.cuh"

namespace quire_cuda {

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

    /* Copies that fetch a record where few items share the GPU. Parts of this one arrive earlier;
     * smaller and larger records do not gain (docs/SPEED.md). */
    static constexpr int COPIES = D == 128 && K_BITS == 4 && V_BITS == 4 ? 8 : 1;

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

} // namespace quire_cuda

#endif
