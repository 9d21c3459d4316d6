/* Products of a packed page in prefill: K with the queries, V with their weights. */
#ifndef QUIRE_CUDA_PREFILL_PRODUCTS_CUH
#define QUIRE_CUDA_PREFILL_PRODUCTS_CUH

#include "prefill_keys.cuh"
#include "prefill_weights.cuh"

namespace quire_cuda {

template <class S> struct TeamProducts : TeamWeights<S> {
    using Base = TeamWeights<S>;
    using Base::Base;
    using Base::D, Base::N, Base::shared, Base::team, Base::n, Base::lane, Base::w, Base::r,
        Base::mine_at, Base::crew, Base::weights_at;
    using typename Base::Product, typename Base::State, typename Base::Keys;

    __device__ __forceinline__ int slot() const { return (int)(n % S::SLOTS); }
    __device__ __forceinline__ const uint8_t *page() const {
        return shared + S::RING_AT + (team / S::TEAMS * S::SLOTS + slot()) * S::RECORD.bytes;
    }

    template <int b> __device__ __forceinline__ void take_keys(Keys &k) const {
        unpack_slab<S, b>(page(), w(), lane(), k[b]);
    }

    template <int b> __device__ __forceinline__ void key_products(State &st, const Keys &k) const {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (4 * b + t >= S::STEPS)
                continue;
            const uint64_t q = operand(operand_at(mine_at()), b * N * 128 + t * 32);
            if (b == 0 && t == 0)
                Product::first_product(st.s, k[b][t], q);
            else
                Product::product(st.s, k[b][t], q);
        }
    }

    /* All of K is unpacked before its products where it fits into registers beside V's codes; else
     * the first slab, and each other one while the products before it run. */
    static constexpr int SLABS_AHEAD = S::SLABS <= 2 ? S::SLABS : 1;

    template <int b> __device__ __forceinline__ void take_slabs(Keys &k) const {
        if constexpr (b < SLABS_AHEAD) {
            take_keys<b>(k);
            take_slabs<b + 1>(k);
        }
    }
    template <int b> __device__ __forceinline__ void slab_products(State &st, Keys &k) const {
        if constexpr (b < S::SLABS) {
            if (b >= SLABS_AHEAD) {
                take_keys<b>(k);
                products_begin();
            }
            key_products<b>(st, k);
            slab_products<b + 1>(st, k);
        }
    }

    /* K of a page, as soon as it is there. */
    __device__ __forceinline__ void page_keys(Keys &k) const {
        barrier_wait(shared_address(&crew().full[slot()]), n / S::SLOTS & 1);
        if constexpr (S::IMAGES > 0)
            barrier_wait(shared_address(&crew().unpacked[image()]), n / S::IMAGES & 1);
        else
            take_slabs<0>(k);
    }
    __device__ __forceinline__ int image() const { return (int)(n % (S::IMAGES + !S::IMAGES)); }

    /* Scores from an image: of K's rows, or of raw rows. */
    __device__ __forceinline__ void score_image(State &st, uint32_t image) const {
        const uint32_t k = operand_at(image), q = operand_at(mine_at());
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            const uint64_t a = operand(k, step / 4 * 8192 + step % 4 * 32);
            const uint64_t b = operand(q, step / 4 * N * 128 + step % 4 * 32);
            if (step == 0)
                Product::first_by_rows(st.s, a, b);
            else
                Product::by_rows(st.s, a, b);
        }
    }

    using Values = uint4[S::HALVES][S::V_BITS / 4];
    __device__ __forceinline__ void load_values(Values &v) const {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++) {
            const int tile = D % 64 == 0 || 4 * m + w() < D / 16
                                 ? 4 * m + w()
                                 : 0; /* there is none: any will do */
#pragma unroll
            for (int h = 0; h < S::V_BITS / 4; h++)
                v[m][h] = *(const uint4 *)(page() + S::RECORD.v_codes +
                                           (tile * (S::V_BITS / 4) + h) * 512 + lane() * 16);
        }
    }

    template <int m>
    __device__ __forceinline__ void value_products(State &st, const Values &v) const {
        if constexpr (m < S::HALVES) {
            uint32_t a[4][4];
            if constexpr (S::V_BITS == 4) {
                unpack_v4(v[m][0], a);
            } else {
                unpack_v8(v[m][0], a[0], a[1]);
                unpack_v8(v[m][1], a[2], a[3]);
            }
            if (m == 0) {
                take_turn<S::TEAMS>(team);
                pin_sums(st);
            }
            products_begin();
#pragma unroll
            for (int t = 0; t < 4; t++)
                Product::product(st.o[m], a[t], operand(operand_at(weights_at()), t * 32));
            value_products<m + 1>(st, v);
        }
    }

    __device__ __forceinline__ static void pin_sums(State &st) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
            pin(st.o[m]);
    }

    /* Scores of the page whose K was taken; on the way. */
    __device__ __forceinline__ void score_page(State &st, Keys &k) const {
        products_begin();
        if constexpr (S::IMAGES > 0)
            score_image(st, shared_address(shared) + S::IMAGES_AT + image() * S::IMAGE_BYTES);
        else
            slab_products<0>(st, k);
        products_commit();
    }
    /* The scores are there. */
    __device__ __forceinline__ void await_scores(State &st) const {
        products_wait();
        pin(st.s);
        if (S::IMAGES > 0 && lane() == 0)
            barrier_arrive(shared_address(&crew().scored[image()]));
    }
    __device__ __forceinline__ uint32_t page_scales() const {
        return *(const uint32_t *)(page() + S::RECORD.v_params + (16 * w() + 2 * r()) * 2);
    }
    /* P V of the page, on the way; its slot is free again. */
    __device__ __forceinline__ void add_page(State &st, const Values &v) {
        value_products<0>(st, v);
        products_commit();
        barrier_arrive(shared_address(&crew().empty[slot()])); /* every lane: it has read, too */
        n++;
    }
};

} // namespace quire_cuda

#endif
