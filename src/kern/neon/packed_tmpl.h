/* Template: attention over one chunk of packed pages with NEON. Included by one file per level,
 * which is compiled for its instructions.
 *
 * Parameters, from the compiler flags:
 *   __ARM_FEATURE_MATMUL_INT8, __ARM_FEATURE_DOTPROD  integer products (products_tmpl.h)
 *   __ARM_FEATURE_FP16_VECTOR_ARITHMETIC              weights and channel scales in fp16
 *                                                     (softmax16_tmpl.h, fp16x8_tmpl.h)
 *   __ARM_FEATURE_FP16_FML                            sums of fp16 numbers by FMLAL
 * Defines attend, workspace_bytes and serves.
 */
#ifndef QUIRE_KERN_NEON_PACKED_TMPL_H
#define QUIRE_KERN_NEON_PACKED_TMPL_H

#include <string.h>

#include "kern/neon/load_block_tmpl.h"
#include "kern/neon/page_scores_tmpl.h"
#include "kern/neon/raw_side_tmpl.h"
#include "kern/neon/softmax16_tmpl.h"
#include "kern/neon/values_tmpl.h"

/* ---------------------------------------------------------------- softmax and values of one set */

typedef enum value_role {
    VALUE_TOKEN,       /* one scale per token */
    VALUE_SCALE_GROUPS /* one per token and scale group, and a zero */
} value_role;

/* Weights of a block in fp32, and terms, for the channels of scale group g. */
INLINE void weights32(const block *b, const int rows, const int planes, const value_role role,
                      int g, const float32x4_t *factor,
                      const float32x4_t *found /* largest weights, where s holds weights */,
                      set_state *st, block_terms *terms) {
    const quire_side_format *v = &b->job->format->v;
    const float *scale = b->work->v_scale + g * BLOCK, *zero = b->work->v_zero + g * BLOCK;
    const bool grouped = role == VALUE_SCALE_GROUPS;
    const float steps = planes == 2 ? 65535 : 255;
    const int n_pairs = pairs_of(rows);
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const bool lone = is_lone(rows, pair);
        const float32x4_t largest =
            grouped ? largest_weight(b->work, scale, pair, lone, b->from, b->n) : found[pair];
        const uint32x4_t usable = vcgtq_f32(largest, vdupq_n_f32(1e-30f));
        const float32x4_t inverse = vreinterpretq_f32_u32(
            vandq_u32(vreinterpretq_u32_f32(vdivq_f32(vdupq_n_f32(steps), largest)), usable));
        uint32x4_t total = vdupq_n_u32(0);
        for (int p = b->from; p < b->from + b->n; p++)
            weights_of_page(b->work, grouped ? scale : NULL, rows, planes, pair, lone, p, inverse,
                            &total);
        const float32x4_t unit = vmulq_f32(vmulq_n_f32(largest, 1.0f / steps), factor[pair]);
        if (is_folded(rows, planes)) /* all lanes belong to r0 */
            total = vaddq_u32(total, vextq_u32(total, total, 2));
        /* total is [r0 a, r0 b, r1 a, r1 b] */
        const float32x4_t integers = for_cells(sum_of_rows(vcvtq_f32_u32(total)), lone);
        const float32x4_t shift = vmulq_f32(vmulq_n_f32(integers, v->mid), unit);
        terms->unit[pair] = unit;
        if (!grouped) {
            st->shift[pair] = vfmaq_f32(shift, st->shift[pair], terms->keep[pair]);
        } else {
            const int chains = lone ? 1 : 2; /* one lane adds tokens t, t + 4, t + 8 .. */
            float32x4_t c[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
            for (int p = b->from; p < b->from + b->n; p++)
                for (int i = 0; i < cells_of(lone); i += chains)
                    UNROLL for (int u = 0; u < chains; u++) c[u] =
                        vfmaq_f32(c[u], vld1q_f32(b->work->score[p].s[pair][i + u]),
                                  tokens_of(zero + p * T, i + u, lone));
            const float32x4_t parts = lone ? parts_of_cells(c[0], true) : vaddq_f32(c[0], c[1]);
            terms->constant[pair] = vsubq_f32(vmulq_f32(sum_of_rows(parts), factor[pair]), shift);
        }
    }
}

INLINE void value_set(const block *b, const source_kind kind, const int rows, const int planes,
                      const value_role role, int set, float *o) {
    const int n_pairs = pairs_of(rows);
    const quire_side_format *v = &b->job->format->v;
    const int8x16_t book = is_book(kind) ? as_value(load_book(v->book, v->bits)) : vdupq_n_s8(0);
    set_state *st = &b->work->set[set];
    block_terms terms;
    float32x4_t m[PAIRS], factor[PAIRS], largest[PAIRS], sum[PAIRS], integers[PAIRS];
    if (!enter_block(b, n_pairs, st, m, factor, terms.keep))
        return;
    if (HAVE_SOFTMAX16 && planes == 1 && role == VALUE_TOKEN) {
        block_weights16(b->work, v->unit, rows, b->from, b->n, m, sum, terms.unit, integers);
        for (int pair = 0; pair < n_pairs; pair++) {
            terms.unit[pair] = vmulq_f32(terms.unit[pair], factor[pair]);
            const float32x4_t shift =
                vmulq_f32(vmulq_n_f32(integers[pair], v->mid), terms.unit[pair]);
            st->shift[pair] = vfmaq_f32(shift, st->shift[pair], terms.keep[pair]);
            st->l[pair] = vfmaq_f32(st->l[pair], sum[pair], factor[pair]);
        }
        weigh_block(kind, rows, planes, b->v, b->v_ahead, b->from, b->n, b->work, 0, v->dim / 16,
                    book, -1, &terms, o);
        return;
    }
    const float *scale = role == VALUE_TOKEN ? b->work->v_scale : NULL;
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        sum[pair] =
            exponentials(b->work, scale, planes == 1 ? 3 : 5, pair, is_lone(rows, pair), b->from,
                         b->n, m[pair], &largest[pair], set == 0 && pair == 0 ? b->ahead : NULL);
        st->l[pair] = vfmaq_f32(st->l[pair], sum[pair], factor[pair]);
    }
    for (int g = 0; g < v->n_groups; g++) {
        weights32(b, rows, planes, role, g, factor, largest, st, &terms);
        weigh_block(kind, rows, planes, b->v, b->v_ahead, b->from, b->n, b->work, g * v->group / 16,
                    v->group / 16, book, role == VALUE_SCALE_GROUPS ? g : -1, &terms, o);
    }
}

/* ------------------------------------------------------------------ instances */

/* One function per way to read codes, number of planes, role of the scales, and number of rows in a
 * set. */
#define KEYS(X)                                                                                    \
    X(FROM_2, 1, KEY_CHANNEL)                                                                      \
    X(FROM_2_BOOK, 1, KEY_TOKEN)                                                                   \
    X(FROM_3, 1, KEY_CHANNEL)                                                                      \
    X(FROM_3_MIXED, 1, KEY_CHANNEL)                                                                \
    X(FROM_3_BOOK, 1, KEY_TOKEN)                                                                   \
    X(FROM_4, 1, KEY_CHANNEL)                                                                      \
    X(FROM_4, 1, KEY_SUM)                                                                          \
    X(FROM_4_MIXED, 1, KEY_CHANNEL)                                                                \
    X(FROM_4_BOOK, 1, KEY_TOKEN)                                                                   \
    X(FROM_8, 2, KEY_CHANNEL)                                                                      \
    X(FROM_8, 2, KEY_TOKEN)                                                                        \
    X(FROM_8, 2, KEY_SUM)                                                                          \
    X(UNPACKED, 1, KEY_CHANNEL)                                                                    \
    X(UNPACKED, 1, KEY_TOKEN)                                                                      \
    X(UNPACKED, 1, KEY_SUM)                                                                        \
    X(UNPACKED, 2, KEY_CHANNEL)                                                                    \
    X(UNPACKED, 2, KEY_TOKEN)                                                                      \
    X(UNPACKED, 2, KEY_SUM)
#define VALUES(X)                                                                                  \
    X(FROM_2, 1, VALUE_TOKEN)                                                                      \
    X(FROM_2_BOOK, 1, VALUE_TOKEN)                                                                 \
    X(FROM_3, 1, VALUE_TOKEN)                                                                      \
    X(FROM_3_BOOK, 1, VALUE_TOKEN)                                                                 \
    X(FROM_4, 1, VALUE_TOKEN)                                                                      \
    X(FROM_4, 1, VALUE_SCALE_GROUPS)                                                               \
    X(FROM_4_BOOK, 1, VALUE_TOKEN)                                                                 \
    X(FROM_8, 2, VALUE_TOKEN)                                                                      \
    X(FROM_8, 2, VALUE_SCALE_GROUPS)                                                               \
    X(UNPACKED, 1, VALUE_TOKEN)                                                                    \
    X(UNPACKED, 1, VALUE_SCALE_GROUPS)                                                             \
    X(UNPACKED, 2, VALUE_TOKEN)                                                                    \
    X(UNPACKED, 2, VALUE_SCALE_GROUPS)

typedef void (*score_function)(const block *b, int set, bool requantize);
typedef void (*value_function)(const block *b, int set, float *o);

#define SCORE(kind, planes, role, rows)                                                            \
    static void score_##kind##_##planes##_##role##_##rows(const block *b, int set,                 \
                                                          bool requantize) {                       \
        score_set(b, kind, rows, planes, role, set, requantize);                                   \
    }
#define VALUE(kind, planes, role, rows)                                                            \
    static void value_##kind##_##planes##_##role##_##rows(const block *b, int set, float *o) {     \
        value_set(b, kind, rows, planes, role, set, o);                                            \
    }
#define BY_ROWS(X, kind, planes, role)                                                             \
    X(kind, planes, role, 1)                                                                       \
    X(kind, planes, role, 2) X(kind, planes, role, 3) X(kind, planes, role, 4)
#define SCORES(kind, planes, role) BY_ROWS(SCORE, kind, planes, role)
#define VALUES_(kind, planes, role) BY_ROWS(VALUE, kind, planes, role)
KEYS(SCORES)
VALUES(VALUES_)

#define SCORE_RAW(rows)                                                                            \
    static void score_raw_##rows(const block *b, int set, bool requantize) {                       \
        (void)requantize, score_raw_set(b, rows, set);                                             \
    }
#define VALUE_RAW(rows)                                                                            \
    static void value_raw_##rows(const block *b, int set, float *o) {                              \
        value_raw_set(b, rows, set, o);                                                            \
    }
SCORE_RAW(1)
SCORE_RAW(2)
SCORE_RAW(3)
SCORE_RAW(4)
VALUE_RAW(1)
VALUE_RAW(2)
VALUE_RAW(3)
VALUE_RAW(4)
static const score_function RAW_SCORES[SET] = {score_raw_1, score_raw_2, score_raw_3, score_raw_4};
static const value_function RAW_VALUES[SET] = {value_raw_1, value_raw_2, value_raw_3, value_raw_4};

static const struct {
    source_kind kind;
    int planes;
    key_role role;
    score_function score[SET]; /* one row to four */
} KEY_INSTANCE[] = {
#define ROW(kind, planes, role)                                                                    \
    {kind,                                                                                         \
     planes,                                                                                       \
     role,                                                                                         \
     {score_##kind##_##planes##_##role##_1, score_##kind##_##planes##_##role##_2,                  \
      score_##kind##_##planes##_##role##_3, score_##kind##_##planes##_##role##_4}},
    KEYS(ROW)
#undef ROW
};
static const struct {
    source_kind kind;
    int planes;
    value_role role;
    value_function value[SET];
} VALUE_INSTANCE[] = {
#define ROW(kind, planes, role)                                                                    \
    {kind,                                                                                         \
     planes,                                                                                       \
     role,                                                                                         \
     {value_##kind##_##planes##_##role##_1, value_##kind##_##planes##_##role##_2,                  \
      value_##kind##_##planes##_##role##_3, value_##kind##_##planes##_##role##_4}},
    VALUES(ROW)
#undef ROW
};

static const score_function *score_functions(const quire_side_format *k, source_kind kind) {
    const int planes = k->bits == 8 ? 2 : 1;
    const key_role role = key_role_of(k);
    int i = 0;
    if (k->family == QUIRE_FAMILY_RAW)
        return RAW_SCORES;
    while (KEY_INSTANCE[i].kind != kind || KEY_INSTANCE[i].planes != planes ||
           KEY_INSTANCE[i].role != role)
        i++;
    return KEY_INSTANCE[i].score;
}

static const value_function *value_functions(const quire_side_format *v, source_kind kind) {
    const int planes = v->bits == 8 ? 2 : 1;
    const value_role role = is_token_scaled(v->family) ? VALUE_TOKEN : VALUE_SCALE_GROUPS;
    int i = 0;
    if (v->family == QUIRE_FAMILY_RAW)
        return RAW_VALUES;
    while (VALUE_INSTANCE[i].kind != kind || VALUE_INSTANCE[i].planes != planes ||
           VALUE_INSTANCE[i].role != role)
        i++;
    return VALUE_INSTANCE[i].value;
}

static source_kind kind_of(const quire_side_format *side) {
    const bool book = side->family == QUIRE_FAMILY_BOOK, mixed = side->n_mixed > 0;
    if (side->family == QUIRE_FAMILY_PROD ||
        (side->family == QUIRE_FAMILY_AFFINE && side->bits < 4))
        return UNPACKED;
    switch (side->bits) {
    case 2:
        return book ? FROM_2_BOOK : FROM_2;
    case 3:
        return book ? FROM_3_BOOK : mixed ? FROM_3_MIXED : FROM_3;
    case 4:
        return book ? FROM_4_BOOK : mixed ? FROM_4_MIXED : FROM_4;
    case 8:
        return FROM_8;
    default:
        return UNPACKED; /* raw */
    }
}

/* The last tiles of an odd number share bytes in another way, which only unpack_tmpl.h handles. */
static source_kind kind_of_values(const quire_side_format *v) {
    return v->dim / 16 % quire__v_share(v->bits) == 0 ? kind_of(v) : UNPACKED;
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

/* Turns a set's O into rows, in place. */
static void finish_set(const quire_attend_job *job, neon_work *w, int set,
                       const quire_state *state) {
    const int n = job->n_rows * job->n_group, dim = job->format->v.dim;
    float *o = state->o + (size_t)set * SET * (size_t)dim, *copy = w->scaled[0][0];
    memcpy(copy, o, (size_t)(SET * dim) * sizeof *o);
    for (int pair = 0; pair < PAIRS && set * SET + 2 * pair < n; pair++) {
        const set_state *st = &w->set[set];
        const float32x4_t shift = st->shift[pair], l = sum_of_rows(st->l[pair]);
        const float32x4_t shift0 = vdupq_laneq_f32(shift, 0), shift1 = vdupq_laneq_f32(shift, 2);
        const int row = set * SET + 2 * pair;
        float *to = o + (size_t)(2 * pair) * (size_t)dim;
        for (int c = 0; c < dim; c += 4) {
            const float64x2_t a = vreinterpretq_f64_f32(
                                  vld1q_f32(copy + (c / 2 * PAIRS + pair) * 4)),
                              b = vreinterpretq_f64_f32(
                                  vld1q_f32(copy + ((c / 2 + 1) * PAIRS + pair) * 4));
            vst1q_f32(to + c, vsubq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), shift0));
            vst1q_f32(to + dim + c, vsubq_f32(vreinterpretq_f32_f64(vzip2q_f64(a, b)), shift1));
        }
        vst1q_lane_f32(state->m + row, st->m[pair], 0);
        vst1q_lane_f32(state->l + row, l, 0);
        vst1q_lane_f32(state->m + row + 1, st->m[pair], 2); /* beyond n: see kern.h */
        vst1q_lane_f32(state->l + row + 1, l, 2);
    }
}

/* Rows in fp16 lie behind the sets; rows that the last set lacks are zero. */
static void queries_to_fp16(const quire_attend_job *job, neon_work *w, int n_sets) {
    const int n = job->n_rows * job->n_group, dim = job->format->k.dim;
    w->q_unit = (float *)(void *)(w->set + n_sets);
    w->q_fp16 = (float16_t *)(void *)(w->q_unit + n_sets * SET);
    w->q_magnitude = w->q_fp16 + (size_t)(n_sets * SET) * (size_t)dim;
    for (int i = 0; i < n_sets * SET && job->q_is_new; i++)
        w->q_unit[i] = query_to_fp16(i < n ? job->q + (size_t)i * (size_t)dim : w->zero_row, dim,
                                     w->q_fp16 + (size_t)i * (size_t)dim,
                                     w->q_magnitude + (size_t)i * (size_t)dim);
}

static void attend(quire_attend_job *job, const quire_state *state) {
    enum { MOST_DIRECT_SETS = 2 }; /* with more rows than this, unpacking once pays off */
    const quire_format *f = job->format;
    neon_work *w = job->workspace;
    const int n = job->n_rows * job->n_group, n_sets = (n + SET - 1) / SET,
              last_rows = n - (n_sets - 1) * SET;
    const bool many = n_sets > MOST_DIRECT_SETS;
    const source_kind kk = many ? UNPACKED : kind_of(&f->k),
                      vk = many ? UNPACKED : kind_of_values(&f->v);
    const score_function *score = score_functions(&f->k, kk);
    const value_function *value = value_functions(&f->v, vk);
    const size_t set_floats = (size_t)SET * (size_t)f->v.dim;
    start_sets(w, n_sets, state->o, (size_t)n_sets * set_floats);
    if (n % SET != 0)
        memset(w->zero_row, 0, sizeof w->zero_row);
    if (f->k.family == QUIRE_FAMILY_CHANNEL && f->k.bits < 8)
        queries_to_fp16(job, w, n_sets);
    bool started = false;
    for (int first = 0; first < QUIRE_CHUNK_PAGES; first += PAGES) {
        block b = {.job = job, .work = w, .first = first};
        load_block(&b);
        if (b.n == 0)
            continue;
        if (kk == UNPACKED && f->k.family != QUIRE_FAMILY_RAW)
            unpack_keys(&b);
        if (vk == UNPACKED && f->v.family != QUIRE_FAMILY_RAW)
            unpack_values(&b);
        for (int set = 0; set < n_sets; set += TOGETHER) {
            const int end = set + TOGETHER < n_sets ? set + TOGETHER : n_sets;
            for (int i = set; i < end; i++) {
                w->score = w->scores[i - set];
                score[i == n_sets - 1 ? last_rows - 1 : SET - 1](&b, i, n_sets > 1 || !started);
            }
            for (int i = set; i < end; i++) {
                w->score = w->scores[i - set];
                value[i == n_sets - 1 ? last_rows - 1 : SET - 1](&b, i,
                                                                 state->o + (size_t)i * set_floats);
            }
        }
        started = true;
        job->bytes_read += (uint64_t)b.n * f->bytes;
    }
    for (int set = 0; set < n_sets; set++)
        finish_set(job, w, set, state);
}

static size_t workspace_bytes(int n_rows, int k_dim, int v_dim) {
    (void)k_dim, (void)v_dim; /* of any size */
    const size_t set_bytes =
        sizeof(set_state) + SET * (sizeof(float) + 2 * QUIRE_DIM_MAX * sizeof(float16_t));
    return sizeof(neon_work) + (size_t)((n_rows + SET - 1) / SET) * set_bytes;
}

static bool serves(const quire_format *format) { return !is_raw_pair(format); }

#endif
