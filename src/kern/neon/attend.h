/* Attention over one chunk of packed pages with NEON. Included by one file per feature level (neon_base.c, neon_dotprod.c,
 * neon_i8mm.c), each compiled for its instructions. */
#ifndef QUIRE_KERN_NEON_ATTEND_H
#define QUIRE_KERN_NEON_ATTEND_H

#include <string.h>

#include "base/element.h"
#include "codec/tables.h"
#include "kern/neon/query.h"
#include "kern/neon/scores.h"
#include "kern/neon/softmax.h"
#include "kern/neon/unpack.h"
#include "kern/neon/values.h"
#include "kern/ref/ref.h"

/* ------------------------------------------------------------------ a block's pages */

typedef struct block {
    const quire_attend_job *job;
    neon_work *work;
    int first;                                                            /* page of the chunk */
    const uint8_t *k[PAGES], *v[PAGES], *k_ahead[PAGES], *v_ahead[PAGES]; /* codes; NULL: no such page */
    int from, n;                                                          /* first page present, number present */
} block;

static bool is_token_scaled(quire_family family) {
    return family == QUIRE_FAMILY_UNIFORM || family == QUIRE_FAMILY_BOOK || family == QUIRE_FAMILY_PROD;
}

static void load_params(const quire_side_format *side, const uint8_t *record, size_t first, int n, float *to) {
    const uint8_t *at = record + side->params + first * quire__type_bytes(side->type);
    if (side->type == QUIRE_F16)
        widen(at, to, n);
    else
        quire__load_row(side->type, at, (size_t)n, to);
}

/* value = scale * (code - mid) + zero, per group and token; `stride` between groups. */
static void load_groups(const quire_side_format *side, const uint8_t *record, int stride, float *scale, float *zero) {
    for (int g = 0; g < side->n_groups; g++) {
        float *s = scale + g * stride, *z = zero + g * stride;
        load_params(side, record, (size_t)(g * T), T, s);
        if (side->family == QUIRE_FAMILY_AFFINE)
            load_params(side, record, (size_t)((side->n_groups + g) * T), T, z);
        else
            memset(z, 0, T * sizeof *z);
        for (int t = 0; t < T; t++)
            z[t] += s[t] * side->mid_steps;
    }
}

static void load_tokens(const quire_side_format *side, const uint8_t *record, float *scale) {
    load_params(side, record, 0, T, scale);
    for (int t = 0; t < T; t++)
        scale[t] *= side->unit;
}

/* Scales are the first thing that the next block needs, and too few to be noticed by the hardware. */
static void fetch_params(const quire_format *f, const uint8_t *record) {
    const quire_side_format *sides[2] = {&f->k, &f->v};
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < sides[i]->param_bytes; at += 64)
            __builtin_prefetch(record + sides[i]->params + at, 0, 3);
}

static void load_block(block *b) {
    const quire_format *f = b->job->format;
    neon_work *w = b->work;
    b->from = b->n = 0;
    for (int p = 0; p < PAGES; p++) {
        const uint8_t *record = b->job->record[b->first + p];
        const int next = b->first + PAGES + p;
        const uint8_t *ahead = next < QUIRE_CHUNK_PAGES ? b->job->record[next] : b->job->next[next - QUIRE_CHUNK_PAGES];
        b->k[p] = b->v[p] = b->k_ahead[p] = b->v_ahead[p] = NULL;
        if (!record)
            continue;
        if (b->n++ == 0)
            b->from = p;
        if (ahead)
            fetch_params(f, ahead);
        else
            ahead = record;
        if (f->k.family == QUIRE_FAMILY_CHANNEL) {
            load_params(&f->k, record, 0, f->k.dim, w->k_scale[p]);
            load_params(&f->k, record, (size_t)f->k.dim, f->k.dim, w->k_zero[p]);
        } else if (is_token_scaled(f->k.family)) {
            load_tokens(&f->k, record, w->k_scale[p]);
            if (f->k.family == QUIRE_FAMILY_PROD)
                load_params(&f->k, record, T, T, w->residual[p]);
        } else {
            load_groups(&f->k, record, T, w->k_scale[p], w->k_zero[p]);
        }
        if (is_token_scaled(f->v.family))
            load_tokens(&f->v, record, w->v_scale + p * T);
        else
            load_groups(&f->v, record, BLOCK, w->v_scale + p * T, w->v_zero + p * T);
        b->k[p] = record + f->k.codes;
        b->v[p] = record + f->v.codes;
        b->k_ahead[p] = ahead + f->k.codes;
        b->v_ahead[p] = ahead + f->v.codes;
    }
}

static void unpack_keys(block *b) {
    const quire_side_format *k = &b->job->format->k;
    for (int p = 0; p < PAGES; p++) {
        if (!b->k[p])
            continue;
        unpack_k(k->bits, k->dim, b->k[p], k->book, b->work->k8[p]);
        if (k->family == QUIRE_FAMILY_PROD)
            unpack_k(1, k->dim, b->job->record[b->first + p] + k->signs, NULL, b->work->sign8[p]);
        b->k[p] = (const uint8_t *)b->work->k8[p];
    }
}

static void unpack_values(block *b) {
    const quire_side_format *v = &b->job->format->v;
    for (int p = 0; p < PAGES; p++) {
        if (!b->v[p])
            continue;
        unpack_v(v->bits, v->dim, b->v[p], v->book, b->work->v8[p]);
        if (!is_token_scaled(v->family))
            reflect_v(v, b->work->v_scale + p * T, b->work->v8[p]);
        b->v[p] = (const uint8_t *)b->work->v8[p];
    }
    for (int i = 0; i < v->n_groups * BLOCK; i++) /* from here on only their size counts */
        if (!is_token_scaled(v->family))
            b->work->v_scale[i] = fabsf(b->work->v_scale[i]);
}

/* ------------------------------------------------------------------ scores of one set */

static const float *query_row(const block *b, const float *rows, int row) {
    const int n = b->job->n_rows * b->job->n_group;
    return row < n ? rows + (size_t)row * (size_t)b->job->format->k.dim : b->work->zero_row;
}

INLINE void quantize_set(const block *b, const float *rows, const int n_pairs, const int planes, int set, int p,
                         set_query *out) {
    const quire_side_format *k = &b->job->format->k;
    const float *q[SET];
    for (int r = 0; r < 2 * n_pairs; r++)
        q[r] = query_row(b, rows, set * SET + r);
    if (k->family == QUIRE_FAMILY_CHANNEL) {
        quantize_channels(q, b->work->k_scale[p], b->work->k_zero[p], k->dim, n_pairs, planes, k->bits == 8, k->mid,
                          b->work->scaled, out);
        return;
    }
    for (int pair = 0; pair < n_pairs; pair++)
        for (int g = 0; g < k->n_groups; g++)
            quantize_pair(q[2 * pair], q[2 * pair + 1], g * k->group, k->group, n_pairs, planes, k->bits == 8, k->mid,
                          pair, g, out);
}

/* Logits of a page from its integers: one group. */
INLINE void score_page(const block *b, const source_kind kind, const int n_pairs, const int planes, int p,
                       const set_query *q) {
    const quire_side_format *k = &b->job->format->k;
    const int operands = n_pairs * planes, pairs = operands <= 2 ? 8 : 4;
    const bool channel = k->family == QUIRE_FAMILY_CHANNEL, grouped = !channel && !is_token_scaled(k->family);
    const int8x16_t book = load_book(k->book, k->bits);
    neon_work *w = b->work;
    for (int tile = 0; tile < T / 16; tile++)
        for (int row = 0; row < 8; row += pairs) {
            float(*s)[PAIRS][T / 2][4] = &w->s[p];
            for (int g = 0; g < k->n_groups; g++) {
                int32x4_t acc[8][OPERANDS];
                UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int r = 0; r < operands; r++) acc[i][r] =
                    vdupq_n_s32(0);
                multiply_octets(kind, operands, pairs, b->k[p], k->dim, tile, row, g * k->group / 8, k->group / 8,
                                q->q8, book, b->k_ahead[p], acc);
                UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int pair = 0; pair < n_pairs; pair++) {
                    const int at = tile * 8 + row + i;
                    const float32x4_t x = vsubq_f32(joined(planes, n_pairs, acc[i], pair), q->centre[g][pair]);
                    float32x4_t y;
                    if (channel) {
                        y = vfmaq_f32(q->offset[0][pair], x, q->scale[0][pair]);
                    } else {
                        y = vmulq_f32(vmulq_f32(x, q->scale[g][pair]), tokens2(w->k_scale[p] + g * T + 2 * at));
                        if (grouped)
                            y = vfmaq_f32(y, q->offset[g][pair], tokens2(w->k_zero[p] + g * T + 2 * at));
                        if (g > 0)
                            y = vaddq_f32(y, vld1q_f32((*s)[pair][at]));
                    }
                    vst1q_f32((*s)[pair][at], y);
                }
            }
        }
}

/* The sign plane of prod: adds scale * residual * sqrt(pi/2) * (2 dot - sum). */
INLINE void add_signs(const block *b, const int n_pairs, int p, const set_query *q) {
    const quire_side_format *k = &b->job->format->k;
    neon_work *w = b->work;
    for (int tile = 0; tile < T / 16; tile++) {
        int32x4_t acc[8][OPERANDS];
        UNROLL for (int i = 0; i < 8; i++) UNROLL for (int r = 0; r < n_pairs; r++) acc[i][r] = vdupq_n_s32(0);
        multiply_octets(UNPACKED, n_pairs, 8, (const uint8_t *)w->sign8[p], k->dim, tile, 0, 0, k->dim / 8, q->q8,
                        vdupq_n_s8(0), (const uint8_t *)w->sign8[p], acc);
        UNROLL for (int i = 0; i < 8; i++) UNROLL for (int pair = 0; pair < n_pairs; pair++) {
            const int at = tile * 8 + i;
            /* centre was made with mid = 1/2: 2 (dot - sum/2) */
            const float32x4_t x = vsubq_f32(vcvtq_f32_s32(acc[i][pair]), q->centre[0][pair]);
            const float32x4_t scale = vmulq_f32(tokens2(w->k_scale[p] + 2 * at), tokens2(w->residual[p] + 2 * at));
            const float32x4_t step = vmulq_n_f32(q->scale[0][pair], 2 * QUIRE_SQRT_HALF_PI / k->unit);
            float *s = w->s[p][pair][at];
            vst1q_f32(s, vfmaq_f32(vld1q_f32(s), vmulq_f32(x, step), scale));
        }
    }
}

/* Soft-cap, ALiBi, masks, window edges and raw sinks, one score at a time: pages that need none of it skip this. */
static bool needs_rules(const block *b, int p) {
    const quire_attend_job *job = b->job;
    const quire_visibility *see = &job->see;
    const int32_t t0 = (job->first_page + b->first + p) * T, last = see->first_position + job->n_rows - 1;
    if (see->softcap_log2 > 0 || see->alibi || see->mask || t0 < job->skip)
        return true;
    return see->window != 0 && last - t0 >= see->window && t0 + T > see->keep;
}

static void apply_rules(const block *b, int n_pairs, int set, int p) {
    const quire_attend_job *job = b->job;
    const int32_t t0 = (job->first_page + b->first + p) * T;
    const int n = job->n_rows * job->n_group;
    for (int pair = 0; pair < n_pairs; pair++)
        for (int t = 0; t < T; t++)
            for (int r = 0; r < 2; r++) {
                const int i = set * SET + 2 * pair + r;
                float *s = &b->work->s[p][pair][t / 2][2 * r + t % 2];
                if (t0 + t < job->skip || i >= n)
                    *s = -INFINITY;
                else
                    *s = quire__ref_logit(&job->see, i / job->n_group, i % job->n_group, t0 + t, *s);
            }
}

typedef void (*score_function)(const block *b, int set, bool requantize);

INLINE void score_set(const block *b, const source_kind kind, const int n_pairs, const int planes, int set,
                      bool requantize) {
    const quire_attend_job *job = b->job;
    const quire_side_format *k = &job->format->k;
    const float *rows = k->rotated ? job->q_rotated : job->q;
    for (int p = 0; p < PAGES; p++) {
        if (!b->k[p])
            continue;
        /* Where no channel scales are folded in, the integers are the same for every page. */
        set_query *q = &b->work->q[k->family == QUIRE_FAMILY_CHANNEL ? p : 0];
        if (k->family == QUIRE_FAMILY_CHANNEL || (requantize && p == b->from))
            quantize_set(b, rows, n_pairs, planes, set, p, q);
        score_page(b, kind, n_pairs, planes, p, q);
        if (k->family == QUIRE_FAMILY_PROD) {
            for (int pair = 0; pair < n_pairs && p == b->from && requantize; pair++)
                quantize_pair(query_row(b, job->q_projected, set * SET + 2 * pair),
                              query_row(b, job->q_projected, set * SET + 2 * pair + 1), 0, k->dim, n_pairs, 1, false,
                              0.5f, pair, 0, &b->work->q[1]);
            add_signs(b, n_pairs, p, &b->work->q[1]);
        }
        if (needs_rules(b, p))
            apply_rules(b, n_pairs, set, p);
    }
}

/* ------------------------------------------------------------------ softmax and values of one set */

typedef void (*value_function)(const block *b, int set, float *o);

/* Channels of group g: weights, then integer p.V. */
INLINE void weigh_group(const block *b, const source_kind kind, const int n_pairs, const int planes, int g,
                        const float32x4_t *factor, const float32x4_t *keep,
                        const float32x4_t *found /* largest weights, if s holds weights */, set_state *st, float *o) {
    const quire_side_format *v = &b->job->format->v;
    const float *scale = b->work->v_scale + g * BLOCK, *zero = b->work->v_zero + g * BLOCK;
    const bool grouped = !is_token_scaled(v->family);
    const float steps = planes == 2 ? 65535 : 255;
    float32x4_t unit[PAIRS], constant[PAIRS];
    for (int pair = 0; pair < n_pairs; pair++) {
        const float32x4_t largest = grouped ? largest_weight(b->work, scale, pair, b->from, b->n) : found[pair];
        const uint32x4_t usable = vcgtq_f32(largest, vdupq_n_f32(1e-30f));
        const float32x4_t inverse =
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(vdivq_f32(vdupq_n_f32(steps), largest)), usable));
        uint32x4_t total = vdupq_n_u32(0);
        for (int p = b->from; p < b->from + b->n; p++)
            weights_of_page(b->work, grouped ? scale : NULL, n_pairs, planes, pair, p, inverse, &total);
        unit[pair] = vmulq_f32(vmulq_n_f32(largest, 1.0f / steps), factor[pair]);
        /* total is [r0 a, r0 b, r1 a, r1 b] */
        const float32x4_t sum = sum_of_rows(vcvtq_f32_u32(total));
        const float32x4_t shift = vmulq_f32(vmulq_n_f32(sum, v->mid), unit[pair]);
        if (!grouped) {
            st->shift[pair] = vfmaq_f32(shift, st->shift[pair], keep[pair]);
        } else {
            float32x4_t c[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
            for (int p = b->from; p < b->from + b->n; p++)
                for (int i = 0; i < T / 2; i += 2)
                    UNROLL for (int u = 0; u < 2; u++) c[u] =
                        vfmaq_f32(c[u], vld1q_f32(b->work->s[p][pair][i + u]), tokens2(zero + p * T + 2 * (i + u)));
            constant[pair] = vsubq_f32(vmulq_f32(sum_of_rows(vaddq_f32(c[0], c[1])), factor[pair]), shift);
        }
    }
    weigh_block(kind, n_pairs, planes, b->v, b->v_ahead, b->work, g * v->group / 16, v->group / 16,
                load_book(v->book, v->bits), unit, keep, grouped ? constant : NULL, o);
}

INLINE void value_set(const block *b, const source_kind kind, const int n_pairs, const int planes, int set, float *o) {
    set_state *st = &b->work->set[set];
    const float *scale = is_token_scaled(b->job->format->v.family) ? b->work->v_scale : NULL;
    float32x4_t factor[PAIRS], keep[PAIRS], largest[PAIRS] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    bool any = false;
    for (int pair = 0; pair < n_pairs; pair++) {
        const float32x4_t m = block_maximum(b->work, pair, b->from, b->n), old = st->m[pair], top = vmaxq_f32(m, old);
        /* dropped: nothing visible, or too small to matter */
        const uint32x4_t alive = vandq_u32(vcgtq_f32(m, vdupq_n_f32(QUIRE_NOTHING_SEEN)),
                                           vcgeq_f32(m, vsubq_f32(old, vdupq_n_f32(QUIRE_DROP_BELOW))));
        factor[pair] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(exp2_exact(vsubq_f32(m, top))), alive));
        keep[pair] = exp2_exact(vsubq_f32(old, top));
        any = any || vmaxvq_u32(alive) != 0;
        const float32x4_t sum =
            exponentials(b->work, scale, planes == 1 ? 3 : 5, pair, b->from, b->n, m, &largest[pair]);
        st->m[pair] = top;
        st->l[pair] = vfmaq_f32(vmulq_f32(st->l[pair], keep[pair]), sum, factor[pair]);
    }
    if (!any)
        return;
    for (int g = 0; g < b->job->format->v.n_groups; g++)
        weigh_group(b, kind, n_pairs, planes, g, factor, keep, largest, st, o);
}

/* ------------------------------------------------------------------ instances */

#define SCORE(kind, planes, pairs)                                                                                     \
    static void score_##kind##_##planes##_##pairs(const block *b, int set, bool requantize) {                          \
        score_set(b, kind, pairs, planes, set, requantize);                                                            \
    }
#define VALUE(kind, planes, pairs)                                                                                     \
    static void value_##kind##_##planes##_##pairs(const block *b, int set, float *o) {                                 \
        value_set(b, kind, pairs, planes, set, o);                                                                     \
    }
#define INSTANCES(X)                                                                                                   \
    X(FROM_4, 1, 1)                                                                                                    \
    X(FROM_4, 1, 2)                                                                                                    \
    X(FROM_4_BOOK, 1, 1)                                                                                               \
    X(FROM_4_BOOK, 1, 2)                                                                                               \
    X(FROM_8, 2, 1) X(FROM_8, 2, 2) X(UNPACKED, 1, 1) X(UNPACKED, 1, 2) X(UNPACKED, 2, 1) X(UNPACKED, 2, 2)
INSTANCES(SCORE)
INSTANCES(VALUE)

static const struct {
    source_kind kind;
    int planes, pairs;
    score_function score;
    value_function value;
} INSTANCE[] = {
#define ROW(kind, planes, pairs)                                                                                       \
    {kind, planes, pairs, score_##kind##_##planes##_##pairs, value_##kind##_##planes##_##pairs},
    INSTANCES(ROW)
#undef ROW
};

static int instance_of(source_kind kind, int planes, int pairs) {
    int i = 0;
    while (INSTANCE[i].kind != kind || INSTANCE[i].planes != planes || INSTANCE[i].pairs != pairs)
        i++;
    return i;
}

static source_kind kind_of(const quire_side_format *side) {
    if (side->bits == 8 && side->family != QUIRE_FAMILY_AFFINE)
        return FROM_8;
    if (side->bits == 4 && (side->family == QUIRE_FAMILY_CHANNEL || side->family == QUIRE_FAMILY_UNIFORM))
        return FROM_4;
    if (side->bits == 4 && side->family == QUIRE_FAMILY_BOOK)
        return FROM_4_BOOK;
    return UNPACKED;
}

/* ------------------------------------------------------------------ the chunk */

static void start_sets(neon_work *w, int n_sets, float *o, size_t n_floats) {
    for (int i = 0; i < n_sets; i++)
        for (int pair = 0; pair < PAIRS; pair++) {
            w->set[i].m[pair] = vdupq_n_f32(QUIRE_NOTHING_SEEN);
            w->set[i].l[pair] = w->set[i].shift[pair] = vdupq_n_f32(0);
        }
    memset(o, 0, n_floats * sizeof *o);
}

/* A set's O becomes rows, in place. */
static void finish_set(const quire_attend_job *job, const neon_work *w, int set, const quire_state *state) {
    const int n = job->n_rows * job->n_group, dim = job->format->v.dim;
    float copy[SET * QUIRE_DIM_MAX], *o = state->o + (size_t)set * SET * (size_t)dim;
    memcpy(copy, o, (size_t)(SET * dim) * sizeof *o);
    for (int r = 0; r < SET && set * SET + r < n; r++) {
        const int pair = r / 2, lane = r % 2 * 2;
        float m[4], l[4], shift[4];
        vst1q_f32(m, w->set[set].m[pair]);
        vst1q_f32(l, w->set[set].l[pair]);
        vst1q_f32(shift, w->set[set].shift[pair]);
        state->m[set * SET + r] = m[lane];
        state->l[set * SET + r] = l[lane] + l[lane + 1];
        const float32x2_t moved = vdup_n_f32(shift[lane]);
        for (int c = 0; c < dim; c += 2)
            vst1_f32(o + r * dim + c, vsub_f32(vld1_f32(copy + (c / 2 * PAIRS + pair) * 4 + lane), moved));
    }
}

static bool attend(quire_attend_job *job, const quire_state *state) {
    enum { MOST_DIRECT_SETS = 2 }; /* with more rows than this, unpacking once pays */
    const quire_format *f = job->format;
    neon_work *w = job->workspace;
    const int n = job->n_rows * job->n_group, n_sets = (n + SET - 1) / SET,
              last_pairs = (n - (n_sets - 1) * SET + 1) / 2;
    const bool many = n_sets > MOST_DIRECT_SETS;
    const source_kind kk = many ? UNPACKED : kind_of(&f->k), vk = many ? UNPACKED : kind_of(&f->v);
    const int kp = f->k.bits == 8 ? 2 : 1, vp = f->v.bits == 8 ? 2 : 1;
    const int full_k = instance_of(kk, kp, 2), last_k = instance_of(kk, kp, last_pairs);
    const int full_v = instance_of(vk, vp, 2), last_v = instance_of(vk, vp, last_pairs);
    const size_t set_floats = (size_t)SET * (size_t)f->v.dim;
    start_sets(w, n_sets, state->o, (size_t)n_sets * set_floats);
    memset(w->zero_row, 0, sizeof w->zero_row);
    bool started = false;
    for (int first = 0; first < QUIRE_CHUNK_PAGES; first += PAGES) {
        block b = {.job = job, .work = w, .first = first};
        load_block(&b);
        if (b.n == 0)
            continue;
        if (kk == UNPACKED)
            unpack_keys(&b);
        if (vk == UNPACKED)
            unpack_values(&b);
        for (int set = 0; set < n_sets; set++) {
            const bool last = set == n_sets - 1;
            INSTANCE[last ? last_k : full_k].score(&b, set, n_sets > 1 || !started);
            INSTANCE[last ? last_v : full_v].value(&b, set, state->o + (size_t)set * set_floats);
        }
        started = true;
        job->bytes_read += (uint64_t)b.n * f->bytes;
    }
    for (int set = 0; set < n_sets; set++)
        finish_set(job, w, set, state);
    return true;
}

static size_t workspace_bytes(int n_rows) {
    return sizeof(neon_work) + (size_t)((n_rows + SET - 1) / SET) * sizeof(set_state);
}

static bool serves(const quire_format *format) {
    return format->k.family != QUIRE_FAMILY_RAW && format->v.family != QUIRE_FAMILY_RAW;
}

#endif
