/* What a warp does with a unit of a decode step: a packed page, or sixteen raw rows. */
#ifndef QUIRE_CUDA_DECODE_PAGE_CUH
#define QUIRE_CUDA_DECODE_PAGE_CUH

#include "decode_query.cuh"
#include "rotation.cuh"

namespace quire_cuda {

constexpr float CODE_UNIT = 16777216; /* codes enter products as u * 2^-24 */
/* The running maximum moves when a score passes it by 2^4: weights stay below 2^4, and most pages
 * move nothing. */
constexpr float SLACK = 4;
/* Weights and sums carry 2^4, so that small ones keep their bits in fp16. */
constexpr float WEIGHT_LOG2 = 4;

/* ------------------------------------------------------------------ one warp's softmax state */

template <int D> struct State {
    /* o[k]: channels 16k+2r (0, 1) and 16k+2r+1 (2, 3) of heads 2c (0, 2) and 2c+1 (1, 3). */
    float o[D / 16][4];
    float
        weight[4]; /* sums of weights times V's scales: what the codes' offset is subtracted with */
    float m[2], l[2];
    float unit; /* power of two that V's scales are divided by */
    half2 down; /* 1 / unit */

    __device__ void clear() {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[k][j] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            weight[j] = 0;
        m[0] = m[1] = NOTHING;
        l[0] = l[1] = 0;
        unit = 0;
        down = __float2half2_rn(0.0f);
    }

    __device__ void rescale(int e, float by) {
        weight[e] *= by;
        weight[e + 2] *= by;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            o[k][e] *= by;
            o[k][e + 2] *= by;
        }
    }

    /* top: this lane's largest scores (log2) of the next tokens. A head's maximum does not depend
     * on other heads. */
    __device__ void raise_maximum(const float (&top)[2]) {
        if (!__any_sync(~0u, top[0] > m[0] + SLACK || top[1] > m[1] + SLACK))
            return;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = top[e];
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
            const float higher = x > m[e] + SLACK ? x : m[e], by = exp2_approx(m[e] - higher);
            m[e] = higher;
            l[e] *= by;
            rescale(e, by);
        }
    }

    /* The largest of a page's scales of V decides what all are divided by: weights then fit fp16
     * for any V. */
    __device__ void raise_unit(const uint32_t (&scale)[4]) {
        const half2 pair = __hmax2(__hmax2(halves(scale[0]), halves(scale[1])),
                                   __hmax2(halves(scale[2]), halves(scale[3])));
        const float larger = fmaxf(__low2float(pair), __high2float(pair));
        if (!__any_sync(~0u, larger >= 2 * unit))
            return;
        const unsigned all =
            __reduce_max_sync(~0u, __float_as_uint(larger)); /* not negative: ordered as integers */
        const float power = fmaxf(__uint_as_float(all & 0x7f800000u),
                                  0x1p-14f); /* so that 1 / power is an fp16 number */
        if (power > unit) {
            rescale(0, unit / power);
            rescale(1, unit / power);
            unit = power;
            down = __float2half2_rn(1 / power);
        }
    }

    /* From sums over codes to sums over values, in the channels' own space. */
    template <class S> __device__ void leave_packed() {
        const float step = v_step(S::V_BITS) * unit;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[k][j] = (o[k][j] * CODE_UNIT - S::V_MID * weight[j % 2]) * step;
        Rotation<D, 2>::unrotate(o);
    }
};

/* ------------------------------------------------------------------ a packed page */

/* s[tile]: scores in units of 2^-24; z: what all tokens share, q.zero less the codes' middle. */
template <class S>
__device__ __forceinline__ void score_page(const uint8_t *page, const uint32_t *q, float (&s)[4][4],
                                           float (&z)[4]) {
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const uint8_t *params = page + S::RECORD.k_params;
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[t][j] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        z[j] = 0;
    float middle[4] = {0, 0, 0, 0}; /* apart from z: half as many products wait for one another */
#pragma unroll
    for (int i = 0; i < S::GROUPS; i++) {
        const int columns = S::COLUMNS - 4 * i < 4 ? S::COLUMNS - 4 * i : 4;
        const bool here = columns == 4 || c < columns;
        uint32_t scale[2 * S::STEPS], zero[2 * S::STEPS], scaled[2 * S::STEPS];
#pragma unroll
        for (int part = 0; part < S::STEPS / 2; part++) {
            const int at = 2 * (S::COLUMN * (4 * i + (here ? c : 0)) + 8 * part);
            *(uint4 *)&scale[4 * part] = *(const uint4 *)(params + at);
            *(uint4 *)&zero[4 * part] = *(const uint4 *)(params + 2 * S::D + at);
        }
        /* Lanes beyond a narrow group's columns read the first one, and have zeros for q. A byte of
         * a mixed block of km4 is lo5 | hi3 << 5 where others are lo4 | hi4 << 4. */
        const bool mixed = 4 * i + 3 < S::MIXED || (4 * i < S::MIXED && 4 * i + c < S::MIXED);
        const uint32_t low = mixed ? 0x001f001f : 0x000f000f,
                       high = mixed ? 0x00e000e0 : 0x00f000f0;
        const uint32_t fold = mixed ? 0x28002800 : 0x2c002c00;     /* 1/32, 1/16 */
        const uint32_t mid_low = mixed ? 0xcbc0cbc0 : 0xc780c780;  /* -15.5, -7.5 */
        const uint32_t mid_high = mixed ? 0xd700d700 : 0xd780d780; /* -3.5 * 32, -7.5 * 16 */
        const uint32_t mid_byte = 0xd800d800;                      /* -128 */
#pragma unroll
        for (int g = 0; g < S::STEPS; g++) {
            const uint32_t *qf = q + 2 * (i * S::STEPS + g);
            const bool upper = S::K_BITS == 4 && g >= 2; /* the byte's upper field */
#pragma unroll
            for (int e = 0; e < 2; e++) {
                half2 x = __hmul2(halves(qf[e]), halves(scale[2 * g + e]));
                if (upper)
                    x = __hmul2(x, halves(fold));
                scaled[2 * g + e] = bits(x);
            }
            mma(z, zero[2 * g], zero[2 * g], zero[2 * g + 1], zero[2 * g + 1], qf[0], qf[1]);
            const uint32_t mid = S::K_BITS == 8 ? mid_byte : upper ? mid_high : mid_low;
            mma(middle, mid, mid, mid, mid, scaled[2 * g], scaled[2 * g + 1]);
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint8_t *tile = page + t * (2 * S::D * S::K_BITS);
            uint4 w = *(const uint4 *)(tile + (i * 32 + r * columns + (here ? c : 0)) * 16);
            if constexpr (S::K_BITS == 4) {
                uint32_t x = w.x >> 8, y = w.z >> 8;
                mma(s[t], w.x & low, w.z & low, x & low, y & low, scaled[0], scaled[1]);
                mma(s[t], w.x & high, w.z & high, x & high, y & high, scaled[4], scaled[5]);
                x = w.y >> 8;
                y = w.w >> 8;
                mma(s[t], w.y & low, w.w & low, x & low, y & low, scaled[2], scaled[3]);
                mma(s[t], w.y & high, w.w & high, x & high, y & high, scaled[6], scaled[7]);
            } else { /* signed bytes: made unsigned, 128 is subtracted above */
                const uint32_t flip = 0x80808080u;
                w = make_uint4(w.x ^ flip, w.y ^ flip, w.z ^ flip, w.w ^ flip);
                mma(s[t], __byte_perm(w.x, 0, 0x4140), __byte_perm(w.z, 0, 0x4140),
                    __byte_perm(w.x, 0, 0x4342), __byte_perm(w.z, 0, 0x4342), scaled[0], scaled[1]);
                mma(s[t], __byte_perm(w.y, 0, 0x4140), __byte_perm(w.w, 0, 0x4140),
                    __byte_perm(w.y, 0, 0x4342), __byte_perm(w.w, 0, 0x4342), scaled[2], scaled[3]);
            }
        }
    }
    z[0] += middle[0];
    z[1] += middle[1];
}

/* What an item's query sees, and how its logits are changed. */
template <bool MORE> struct Sight {
    int position, low; /* of the query; tokens before `low` are hidden, but those to keep */
    int head, heads;   /* the first head, and how many there are */

    __device__ __forceinline__ Sight(const DecodeParams &p, const Item<MORE> &it,
                                     const ItemHeads &h)
        : position(it.length - 1), low(MORE && p.window > 0 ? it.length - p.window : 0),
          head(h.first), heads(h.count) {}
    __device__ __forceinline__ bool hides(const DecodeParams &p, int token) const {
        return MORE && token < low && token >= p.keep;
    }
    /* A logit (log2 units) of head 2c+e, soft-capped and with ALiBi. */
    __device__ __forceinline__ float bend(const DecodeParams &p, float x, int e, int token) const {
        return bend_head(p, x, threadIdx.x % 4 * 2 + e, token);
    }
    __device__ __forceinline__ float bend_head(const DecodeParams &p, float x, int h,
                                               int token) const {
        const float cap = p.softcap_log2;
        if (cap > 0) /* cap * tanh(x / cap) */
            x = cap * (1 - __fdividef(2.0f, 1 + exp2_approx(x * (2 * LOG2_E / cap))));
        if (p.alibi && h < heads)
            x += __ldg(p.alibi + head + h) * LOG2_E * (float)(token - position);
        return x;
    }
};

/* Scores to weights; weights: B fragments of the weights times V's scales. first: the page's first
 * token. */
template <class S>
__device__ __forceinline__ void
weigh_page(State<S::D> &st, const DecodeParams &p, const Sight<S::MORE> &sight,
           const float (&qs)[2], float (&s)[4][4], const float (&z)[4], const uint8_t *page,
           int first, uint32_t (&weights)[4][2]) {
    const int lane = threadIdx.x % 32, r = lane / 4;
    const uint8_t *scales = page + S::RECORD.v_params;
    uint32_t scale[4]; /* of tokens 16t+2r and 16t+2r+1 */
#pragma unroll
    for (int t = 0; t < 4; t++)
        scale[t] = *(const uint32_t *)(scales + (16 * t + 2 * r) * 2);
    float unit[2] = {qs[0] * CODE_UNIT, qs[1] * CODE_UNIT};
    float shared[2] = {z[0] * qs[0], z[1] * qs[1]};
    if (S::MORE && (p.softcap_log2 > 0 || p.alibi)) {
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[t][j] = sight.bend(p, fmaf(s[t][j], unit[j % 2], shared[j % 2]), j % 2,
                                     first + 16 * t + 2 * r + j / 2);
        unit[0] = unit[1] = 1;
        shared[0] = shared[1] = 0;
    }
    if (first < (S::MORE ? max(p.sinks, sight.low) : p.sinks)) { /* sinks are seen raw */
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int token = first + 16 * t + 2 * r + j / 2;
                if (token < p.sinks || sight.hides(p, token))
                    s[t][j] = -INFINITY;
            }
    }
    float top[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float x = fmaxf(s[0][e], s[0][e + 2]);
#pragma unroll
        for (int t = 1; t < 4; t++)
            x = fmaxf(x, fmaxf(s[t][e], s[t][e + 2]));
        top[e] = fmaf(x, unit[e], shared[e]);
    }
    st.raise_unit(scale);
    st.raise_maximum(top);
    float low[2] = {0, 0}, high[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < 4; t++) {
        /* 4 bits: codes of tiles 2 and 3 come times 16, their weights without the 2^4. */
        const bool upper = S::V_BITS == 4 && t >= 2;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int e = j % 2;
            const float x = exp2_approx(
                fmaf(s[t][j], unit[e], shared[e] - st.m[e] + (upper ? 0.0f : WEIGHT_LOG2)));
            s[t][j] = x;
            if (upper)
                high[e] += x;
            else
                low[e] += x;
        }
        const half2 by = __hmul2(halves(scale[t]), st.down);
        weights[t][0] =
            transpose_8x8(bits(__hmul2(__floats2half2_rn(s[t][0], s[t][1]), __low2half2(by))));
        weights[t][1] =
            transpose_8x8(bits(__hmul2(__floats2half2_rn(s[t][2], s[t][3]), __high2half2(by))));
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        st.l[e] += low[e] + 16 * high[e];
}

template <class S>
__device__ __forceinline__ void add_values(State<S::D> &st, const uint8_t *page,
                                           const uint32_t (&p)[4][2]) {
    constexpr uint32_t ONE = 0x3c003c00, SIXTEEN = 0x4c004c00, LOW = 0x000f000f, HIGH = 0x00f000f0,
                       BYTE = 0x00ff00ff;
    const int lane = threadIdx.x % 32;
    const uint8_t *codes = page + S::RECORD.v_codes + lane * 16;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const uint32_t a = S::V_BITS == 4 && t >= 2 ? SIXTEEN : ONE;
        mma(st.weight, a, a, a, a, p[t][0], p[t][1]);
    }
#pragma unroll
    for (int k = 0; k < S::D / 16; k++) {
        if constexpr (S::V_BITS == 4) {
            const uint4 w = *(const uint4 *)(codes + k * 512);
            uint32_t x = w.x >> 8, y = w.z >> 8;
            mma(st.o[k], w.x & LOW, w.z & LOW, x & LOW, y & LOW, p[0][0], p[0][1]);
            mma(st.o[k], w.x & HIGH, w.z & HIGH, x & HIGH, y & HIGH, p[2][0], p[2][1]);
            x = w.y >> 8;
            y = w.w >> 8;
            mma(st.o[k], w.y & LOW, w.w & LOW, x & LOW, y & LOW, p[1][0], p[1][1]);
            mma(st.o[k], w.y & HIGH, w.w & HIGH, x & HIGH, y & HIGH, p[3][0], p[3][1]);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t flip = 0x80808080u;
                uint4 w = *(const uint4 *)(codes + (2 * k + h) * 512);
                w = make_uint4(w.x ^ flip, w.y ^ flip, w.z ^ flip, w.w ^ flip);
                mma(st.o[k], w.x & BYTE, w.z & BYTE, w.x >> 8 & BYTE, w.z >> 8 & BYTE, p[2 * h][0],
                    p[2 * h][1]);
                mma(st.o[k], w.y & BYTE, w.w & BYTE, w.y >> 8 & BYTE, w.w >> 8 & BYTE,
                    p[2 * h + 1][0], p[2 * h + 1][1]);
            }
        }
    }
}

/* ------------------------------------------------------------------ sixteen raw rows */

/* Rows 16 * tile .. of the list, in a slot of the ring. Places beyond the last row repeat it. */
template <class S>
__device__ __forceinline__ void attend_raw(State<S::D> &st, const DecodeParams &p,
                                           const Sight<S::MORE> &sight, const float (&qs)[2],
                                           const uint16_t *q, const RawList &rows, int tile,
                                           const uint8_t *slot) {
    constexpr int D = S::D;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    uint32_t qf[4 * S::RAW_GROUPS];
    load_query<D, 8>(qf, q, sight.heads);
    float s[4] = {0, 0, 0, 0};
    const uint8_t *k0 = slot + S::raw_row_at(2 * r), *k1 = slot + S::raw_row_at(2 * r + 1);
#pragma unroll
    for (int i = 0; i < S::RAW_GROUPS; i++) {
        const bool here = 4 * i + 3 < D / 8 || 4 * i + c < D / 8;
        uint32_t a[4] = {0, 0, 0, 0}, b[4] = {0, 0, 0, 0};
        if (here) {
            *(uint4 *)a = *(const uint4 *)(k0 + 16 * (4 * i + c));
            *(uint4 *)b = *(const uint4 *)(k1 + 16 * (4 * i + c));
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            a[e] = raw_halves(p.bf16, a[e]);
            b[e] = raw_halves(p.bf16, b[e]);
        }
        mma(s, a[0], b[0], a[1], b[1], qf[4 * i], qf[4 * i + 1]);
        mma(s, a[2], b[2], a[3], b[3], qf[4 * i + 2], qf[4 * i + 3]);
    }
    float top[2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int row = RAW_ROWS * tile + 2 * r + j / 2, token = rows.token(row);
        s[j] *= qs[j % 2];
        if (S::MORE && (p.softcap_log2 > 0 || p.alibi))
            s[j] = sight.bend(p, s[j], j % 2, token);
        if (row >= rows.all || sight.hides(p, token))
            s[j] = -INFINITY;
    }
    top[0] = fmaxf(s[0], s[2]);
    top[1] = fmaxf(s[1], s[3]);
    st.raise_maximum(top);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s[j] = exp2_approx(s[j] - st.m[j % 2] + WEIGHT_LOG2);
        st.l[j % 2] += s[j];
    }
    const uint32_t p0 = transpose_8x8(bits(__floats2half2_rn(s[0], s[1])));
    const uint32_t p1 = transpose_8x8(bits(__floats2half2_rn(s[2], s[3])));
    const uint8_t *row[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        row[j] = slot + S::RAW_SIDE + S::raw_row_at(4 * c + j) + 4 * r;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t v[4]; /* channels 16k+2r and 16k+2r+1 of tokens 4c .. 4c+3 */
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = raw_halves(p.bf16, *(const uint32_t *)(row[j] + 32 * k));
        mma(st.o[k], __byte_perm(v[0], v[2], 0x5410), __byte_perm(v[0], v[2], 0x7632),
            __byte_perm(v[1], v[3], 0x5410), __byte_perm(v[1], v[3], 0x7632), p0, p1);
    }
}

} // namespace quire_cuda

#endif
