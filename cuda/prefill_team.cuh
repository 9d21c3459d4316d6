/* What a team does in prefill: segment by segment, the pages and raw rows that its queries see.
 * prefill.cuh says how operands lie. */
#ifndef QUIRE_CUDA_PREFILL_TEAM_CUH
#define QUIRE_CUDA_PREFILL_TEAM_CUH

#include "prefill_merge.cuh"
#include "prefill_rows.cuh"

namespace quire_cuda {

template <class S> struct Team : TeamRows<S> {
    using Base = TeamRows<S>;
    using Base::Base;
    using Base::D, Base::N, Base::p, Base::team, Base::thread, Base::turn, Base::all_careful,
        Base::forget_places, Base::w, Base::r, Base::c, Base::barrier, Base::mine, Base::mine_at,
        Base::notes, Base::crew, Base::segment, Base::weights_at;
    using Base::load_queries;
    using Base::page_keys, Base::score_image, Base::load_values, Base::pin_sums, Base::score_page,
        Base::await_scores, Base::page_scales, Base::add_page;
    using Base::reduce, Base::look, Base::unit_of, Base::weigh;
    using Base::run_of, Base::place_keys, Base::place_values;
    using typename Base::Product, typename Base::State, typename Base::Keys, typename Base::Unit,
        typename Base::Values, typename Base::Run;

    /* -------------------------------------------------------------- a segment */

    /* Pages that all queries see whole. One page: exponentials | P V, and the next page's K
     * unpacked meanwhile | Q K of the next page. Nothing is in flight where accumulators are
     * touched: ptxas would serialize all products otherwise. */
    __device__ __forceinline__ void attend_calm_pages(State &st, int left) {
        const float times = notes().factor;
        Keys k;
        page_keys(k);
        score_page(st, k);
        for (;;) {
            const uint32_t scales = page_scales();
            await_scores(st);
            Values v;
            weigh(st, times, scales, [&] { load_values(v); });
            add_page(st, v);
            forget_places();
            const bool more = --left > 0;
            if (more)
                page_keys(k);
            if (S::IMAGES == 0 || !more) {
                products_wait();
                pin_sums(st);
            }
            if (!more)
                break;
            score_page(st, k);
            give_turn<S::TEAMS>(team);
        }
        give_turn<S::TEAMS>(team);
    }

    /* Any unit. */
    __device__ __forceinline__ void attend_unit(State &st, int i) {
        const Segment &g = segment();
        const bool packed = i < uniform(g.end);
        const uint32_t raw = operand_at(mine_at() + S::RAW_AT);
        Unit unit;
        uint32_t scales;
        if (packed) {
            Keys k;
            page_keys(k);
            score_page(st, k);
            unit = {PACKED, g.page(i) * T, T, 0};
            scales = page_scales();
            await_scores(st);
        } else {
            const Run run = run_of(i - g.end);
            unit = run.unit;
            place_keys(run);
            products_begin();
            score_image(st, mine_at() + S::RAW_AT);
            products_commit();
            scales = *(const uint32_t *)&notes().token_scale[16 * w() + 2 * r()];
            products_wait();
            pin(st.s);
        }
        const float times = look(st, unit, scales);
        weigh(st, times, scales, [] {}); /* the barrier in it: all warps have their scores */
        if (packed) {
            Values v;
            load_values(v);
            add_page(st, v);
            products_wait();
            give_turn<S::TEAMS>(team);
        } else {
            place_values(run_of(i - g.end));
            pin_sums(st);
            products_begin();
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
#pragma unroll
                for (int t = 0; t < 4; t++)
                    Product::by_columns(st.o[m], operand(raw, m * 8192 + t * 2048),
                                        operand(operand_at(weights_at()), t * 32));
            products_commit();
            products_wait();
        }
        pin_sums(st);
    }

    __device__ __forceinline__ void attend(State &st) {
        const Segment &g = segment();
        for (int i = uniform(g.begin); i < uniform(g.end + notes().raw_units);) {
            const int past = min(notes().upset, g.end);
            const int left = uniform(i >= notes().calm ? past - i : 0);
            if (left > 0) {
                attend_calm_pages(st, left);
                i += left;
            } else {
                attend_unit(st, i);
                i++;
            }
        }
    }

    /* -------------------------------------------------------------- results */

    __device__ __forceinline__ void finish(const State &st) const {
        barrier(); /* Q, P and the notes are free */
        reduce([&](int i) { return st.l[i]; }, [](float a, float b) { return a + b; });
        float *stage = (float *)mine() + 2 * c() * S::STAGE_ROW + 16 * w() + 2 * r();
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int y = i / 2 * 8 + i % 2; /* and 2c */
            if (thread < 4)
                notes().maximum[y + 2 * c()] = -st.minus_m[i];
#pragma unroll
            for (int m = 0; m < S::HALVES; m++)
                if (D % 64 == 0 || 4 * m + w() < D / 16)
                    *(float2 *)(stage + y * S::STAGE_ROW + 64 * m) =
                        make_float2(st.o[m][i / 2 * 4 + i % 2], st.o[m][i / 2 * 4 + 2 + i % 2]);
        }
        barrier();
        const float unit = unit_of(st) * S::V_UNIT;
#pragma unroll 1
        for (int y = 4 * w() + c(); y < N; y += 16)
            finish_four(unit, y);
        barrier();
    }

    /* Four queries of the team, y for this lane. */
    __device__ __forceinline__ void finish_four(float unit, int y) const {
        const Segment &g = segment();
        const float *stage = (const float *)mine() + y * S::STAGE_ROW + 2 * r();
        const int x = team % S::TEAMS * N + y, query = g.query + x;
        const bool here = query < g.n_queries;
        const float m = notes().maximum[y], l = notes().reduced[y];
        float v[D / 16][2];
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            *(float2 *)v[j] = *(const float2 *)(stage + 16 * j);
        if (g.slot < 0) {
            const int row = row_of(p, query), head = g.kv * p.group + query - row * p.group;
            finish_query<D>(p, here, (size_t)g.row + row, head, v, m, l, unit);
        } else if (here) {
            const size_t at = (size_t)g.slot * S::QUERIES + x;
            float *to = p.part_o + at * D + 2 * r();
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                *(float2 *)(to + 16 * j) = make_float2(v[j][0] * unit, v[j][1] * unit);
            if (r() == 0)
                p.part_ml[at] = make_float2(m, l);
        }
    }

    /* -------------------------------------------------------------- all of it */

    __device__ __forceinline__ static void clear(State &st) {
#pragma unroll
        for (int m = 0; m < S::HALVES; m++)
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                st.o[m][i] = 0;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            st.l[i] = 0;
            st.minus_m[i] = -NOTHING;
        }
        st.down = __float2half2_rn(0.0f);
    }

    __device__ __forceinline__ void work() {
        if (team + 1 == S::TEAMS)
            give_turn<S::TEAMS>(team);
        for (;;) {
            for (bool more = true; more; turn++) {
                barrier_wait(shared_address(&crew().ready[turn & 1]), turn / 2 & 1);
                more = uniform(segment().more);
                if (more) {
                    load_queries();
                    State st;
                    clear(st);
                    attend(st);
                    finish(st);
                }
                barrier_arrive(shared_address(&crew().free[turn & 1]));
            }
            if (all_careful || !uniform(meet_at_end(crew())))
                return;
            all_careful = true;
        }
    }
};

} // namespace quire_cuda

#endif
