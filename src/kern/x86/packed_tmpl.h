/* Template: attention over one chunk of packed pages on x86-64. Included by one file per level,
 * which is compiled for its instructions.
 *
 * Parameters:
 *   SIMD      header of the vectors: avx2_simd.h, avx512_simd.h
 *   PRODUCTS  header of the integer products: avx2_products.h, avx512_products.h,
 *             avx512_vnni_products.h
 *   HALVES    header of fp16 vectors, if the level has them: half.h
 * Defines attend, workspace_bytes and serves.
 */
#ifndef QUIRE_KERN_X86_PACKED_TMPL_H
#define QUIRE_KERN_X86_PACKED_TMPL_H

#include "base/element.h"
#include "codec/tables.h"
#include "kern/ref/ref.h"
#include "kern/x86/half_softmax_tmpl.h"
#include "kern/x86/query_tmpl.h"
#include "kern/x86/raw_side_tmpl.h"
#include "kern/x86/scores_tmpl.h"
#include "kern/x86/softmax_tmpl.h"
#include "kern/x86/unpack_tmpl.h"
#include "kern/x86/values_tmpl.h"

/* ---------------------------------------------------- instances: source and kind of codes, rows */

/* Both fetch what is ahead, and return how far they got. */
typedef const uint8_t *(*dot_function)(const uint8_t *k, int dim, int first, int n,
                                       const int8_t *book, const uint8_t *ahead, const set_query *q,
                                       int32_t (*dots)[T]);
typedef const uint8_t *(*weigh_function)(const uint8_t *const v[PAGES], int first, int n,
                                         const int8_t *book, const uint8_t *ahead,
                                         const uint8_t *flip, const uint8_t (*p)[2][BLOCK],
                                         int32_t (*total)[QUIRE_DIM_MAX]);

#define DOT_INSTANCE(from, kind, rows)                                                             \
    static const uint8_t *dot_##from##_##kind##_##rows(                                            \
        const uint8_t *k, int dim, int first, int n, const int8_t *book, const uint8_t *ahead,     \
        const set_query *q, int32_t(*dots)[T]) {                                                   \
        return multiply_page(kind, from, rows, k, dim, first, n, load_book(book), ahead, q, dots); \
    }
#define WEIGH_INSTANCE(from, kind, rows)                                                           \
    static const uint8_t *weigh_##from##_##kind##_##rows(                                          \
        const uint8_t *const v[PAGES], int first, int n, const int8_t *book, const uint8_t *ahead, \
        const uint8_t *flip, const uint8_t(*p)[2][BLOCK], int32_t(*total)[QUIRE_DIM_MAX]) {        \
        return weigh_block(kind, from, rows, v, first, n, load_book(book), ahead, flip, p, total); \
    }
/* Between four rows and a full set there is nothing: next_set. */
#if SET > 4
#define FULL_SMALL(instance, from) instance(from, SMALL, SET)
#define FULL_SIGNED(instance, from) instance(from, SIGNED, SET)
#define FULL_SMALL_NAME(what, from) , [SET - 1] = what##_##from##_SMALL_SET
#define FULL_SIGNED_NAME(what, from) , [SET - 1] = what##_##from##_SIGNED_SET
#else
#define FULL_SMALL(instance, from)
#define FULL_SIGNED(instance, from)
#define FULL_SMALL_NAME(what, from)
#define FULL_SIGNED_NAME(what, from)
#endif
#if WIDE_SET > 4
#define FULL_WIDE(instance, from) instance(from, WIDE, SET)
#define FULL_WIDE_NAME(what, from) , [SET - 1] = what##_##from##_WIDE_SET
#else
#define FULL_WIDE(instance, from)
#define FULL_WIDE_NAME(what, from)
#endif
#define BY_ROWS(instance, from, kind)                                                              \
    instance(from, kind, 1) instance(from, kind, 2) instance(from, kind, 3)                        \
        instance(from, kind, 4) FULL_##kind(instance, from)
#define INSTANCES(from, kind) BY_ROWS(DOT_INSTANCE, from, kind) BY_ROWS(WEIGH_INSTANCE, from, kind)
INSTANCES(NIBBLES, SMALL)
INSTANCES(NIBBLES, SIGNED)
INSTANCES(THREES, SMALL)
INSTANCES(THREES, SIGNED)
INSTANCES(BYTES, WIDE)
INSTANCES(UNPACKED, SMALL)
INSTANCES(UNPACKED, SIGNED)
INSTANCES(UNPACKED, WIDE)
BY_ROWS(DOT_INSTANCE, MIXED, SMALL)
BY_ROWS(DOT_INSTANCE, MIXED_3, SMALL)
BY_ROWS(WEIGH_INSTANCE, TWOS, SMALL)
BY_ROWS(WEIGH_INSTANCE, TWOS, SIGNED)
BY_ROWS(WEIGH_INSTANCE, FLIPPED_NIBBLES, SMALL)
BY_ROWS(WEIGH_INSTANCE, FLIPPED_BYTES, WIDE)

#define ROWS(what, from, kind)                                                                     \
    [from][kind] = {what##_##from##_##kind##_1, what##_##from##_##kind##_2,                        \
                    what##_##from##_##kind##_3,                                                    \
                    what##_##from##_##kind##_4 FULL_##kind##_NAME(what, from)}
#define TABLE(what)                                                                                \
    ROWS(what, NIBBLES, SMALL), ROWS(what, NIBBLES, SIGNED), ROWS(what, BYTES, WIDE),              \
        ROWS(what, THREES, SMALL), ROWS(what, THREES, SIGNED), ROWS(what, UNPACKED, SMALL),        \
        ROWS(what, UNPACKED, SIGNED), ROWS(what, UNPACKED, WIDE)
static const dot_function DOT[MIXED_3 + 1][3][SET] = {TABLE(dot), ROWS(dot, MIXED, SMALL),
                                                      ROWS(dot, MIXED_3, SMALL)};
static const weigh_function WEIGH[FLIPPED_BYTES + 1][3][SET] = {
    TABLE(weigh), ROWS(weigh, TWOS, SMALL), ROWS(weigh, TWOS, SIGNED),
    ROWS(weigh, FLIPPED_NIBBLES, SMALL), ROWS(weigh, FLIPPED_BYTES, WIDE)};

INLINE int most_rows(const quire_format *f) {
    return product_of(&f->k) == WIDE || product_of(&f->v) == WIDE ? WIDE_SET : SET;
}

/* How many of the `left` rows the next set takes. */
INLINE int next_set(const quire_format *f, int left) {
    const int most = most_rows(f);
    return left >= most ? most : left > 4 ? 4 : left;
}

/* ------------------------------------------------------------------ a block's pages */

static void load_keys_of_page(block *b, int p) {
    const quire_side_format *k = &b->job->format->k;
    x86_work *w = b->work;
    const uint8_t *record = b->record[p];
    if (k->family == QUIRE_FAMILY_CHANNEL && !in_halves(k)) {
        load_params(k, record, 0, k->dim, w->k_scale[p]);
    } else if (is_token_scaled(k->family)) {
        load_token_scales(k, record, w->k_scale[p]);
        if (k->family == QUIRE_FAMILY_PROD)
            load_params(k, record, T, T, w->residual[p]);
    } else if (k->family != QUIRE_FAMILY_RAW && k->family != QUIRE_FAMILY_CHANNEL) {
        load_scale_groups(k, record, T, w->k_scale[p], w->k_zero[p]);
    }
    if (k->zeros)
        load_params(k, record, k->zeros, k->dim, w->k_zero[p]);
    b->k[p] = record + k->codes;
    if (k->family == QUIRE_FAMILY_RAW) {
        b->job->bytes_read += b->job->format->v.codes;
        return;
    }
    if (b->k_source == UNPACKED) {
        unpack_k(k->bits, k->n_mixed, k->dim, b->k[p], k->book, product_of(k), w->k8[p]);
        b->k[p] = w->k8[p];
    }
    if (k->family == QUIRE_FAMILY_PROD)
        unpack_k(1, 0, k->dim, record + k->signs, NULL, SMALL, w->sign8[p]);
    b->job->bytes_read += b->job->format->v.codes;
}

static void load_keys_of_block(block *b) {
    for (int p = b->from; p < b->from + b->n; p++)
        load_keys_of_page(b, p);
    const quire_side_format *k = &b->job->format->k;
    if (in_halves(k))
        load_half_scales(b);
    else if (k->family == QUIRE_FAMILY_CHANNEL && k->bits < 8)
        scales_to_fp16(b);
}

/* Where products take K and V from if they take them from the page; UNPACKED: they cannot. */
static source_kind direct_keys(const quire_side_format *k) {
    const bool mixed = k->n_mixed > 0;
    return k->bits == 8   ? BYTES
           : k->bits == 4 ? (mixed ? MIXED : NIBBLES)
           : k->bits == 3 ? (mixed ? MIXED_3 : THREES)
                          : UNPACKED;
}
static source_kind direct_values(const quire_side_format *v, bool negative_scales) {
    return v->bits == 8                       ? (!negative_scales ? BYTES
                                                 : v->mid != 0    ? FLIPPED_BYTES
                                                                  : UNPACKED)
           : v->bits == 4                     ? (negative_scales ? FLIPPED_NIBBLES : NIBBLES)
           : negative_scales                  ? UNPACKED
           : v->bits == 3 && v->dim % 64 == 0 ? THREES
           : v->bits == 2 && v->dim % 32 == 0 ? TWOS
                                              : UNPACKED;
}

/* Finds the pages of the next block that has any, from page `first` of the chunk on, and loads K; n
 * is 0 where there is none. With few rows, codes are multiplied straight from the page where their
 * width allows. */
static block load_block(quire_attend_job *job, int first, bool few) {
    const quire_format *f = job->format;
    block b = {.job = job, .work = job->workspace};
    b.k_source = few ? direct_keys(&f->k) : UNPACKED;
    b.v_source = few ? direct_values(&f->v, false) : UNPACKED;
    for (b.first = first; b.first < QUIRE_CHUNK_PAGES && b.n == 0; b.first += PAGES)
        for (int p = 0; p < PAGES; p++) {
            b.record[p] = job->record[b.first + p];
            if (b.record[p] && b.n++ == 0)
                b.from = p;
        }
    b.first -= b.n > 0 ? PAGES : 0;
    load_keys_of_block(&b);
    fetch_step(&b.work->ahead);
    return b;
}

/* Whether a scale group of the page has a negative scale. */
static bool has_negative(const quire_side_format *v, const float *scale /* (n_groups, 128) */) {
    fvec most = f_all(0);
    for (int g = 0; g < v->n_groups; g++)
        for (int t = 0; t < T; t += W)
            most = f_max(most, f_sub(f_all(0), f_load(scale + g * BLOCK + t)));
    return f_largest(most) > 0;
}

/* The scales of a page become magnitudes; codes of tokens whose scale was negative have to be
 * reflected, c -> 2 mid - c, which flips all their bits. */
static void put_flips(const quire_side_format *v, float *scale /* (n_groups, 128) */,
                      uint8_t (*flip)[BLOCK] /* of the page's first token */) {
    const ivec bits = i_all((1 << v->bits) - 1);
    for (int g = 0; g < v->n_groups; g++)
        for (int t = 0; t < T; t += 4 * W) {
            float *s = scale + g * BLOCK + t;
            ivec x[4];
            EACH {
                const fvec y = f_load(s + u * W);
                x[u] = b_and(i_sign(f_bits(y)), bits);
                f_store(s + u * W, f_abs(y));
            }
            v_store(SMALL, x, &flip[g][t], NULL);
        }
}

/* Loads V. Weights are unsigned: codes under a negative scale are reflected, as they are read or,
 * if that cannot be, in their unpacked form. */
static void load_values_of_block(block *b) {
    const quire_side_format *v = &b->job->format->v;
    if (v->family == QUIRE_FAMILY_RAW) {
        for (int p = b->from; p < b->from + b->n; p++) {
            b->v[p] = b->record[p] + v->codes;
            b->job->bytes_read += b->job->format->bytes - v->codes;
        }
        b->v_loaded = true;
        return;
    }
    const bool grouped = !is_token_scaled(v->family);
    float *scale = b->work->v_scale;
    bool negative = false;
    for (int p = b->from; p < b->from + b->n; p++) {
        if (!grouped && !weighs_in_halves(v))
            load_token_scales(v, b->record[p], scale + p * T);
        else if (grouped)
            load_scale_groups(v, b->record[p], BLOCK, scale + p * T, b->work->v_zero + p * T);
        negative = negative || (grouped && has_negative(v, scale + p * T));
        b->job->bytes_read += b->job->format->bytes - b->job->format->v.codes;
    }
    if (weighs_in_halves(v))
        load_half_value_scales(b);
    if (negative && b->v_source != UNPACKED)
        b->v_source = direct_values(v, true);
    for (int p = b->from; p < b->from + b->n; p++) {
        uint8_t(*flip)[BLOCK] = (void *)&b->work->flip[0][p * T];
        b->v[p] = b->record[p] + v->codes;
        if (negative)
            put_flips(v, scale + p * T, flip);
        if (b->v_source != UNPACKED)
            continue;
        unpack_v(v->bits, v->dim, b->v[p], v->book, b->work->v8[p]);
        b->v[p] = b->work->v8[p];
        if (negative)
            reflect_v(v, (const uint8_t(*)[BLOCK])flip, b->work->v8[p]);
    }
    b->v_loaded = true;
}

/* ------------------------------------------------------------------ scores of one set */

/* How K's scales enter the logits. LATER: with the weights (half_softmax_tmpl.h). CENTRED: token
 * scales and an offset, q.mean. */
typedef enum key_scales { LATER, BY_CHANNEL, BY_TOKEN, CENTRED, BY_GROUP } key_scales;

INLINE key_scales scales_of(const quire_attend_job *job) {
    const quire_side_format *k = &job->format->k;
    return keeps_integers(job)                 ? LATER
           : k->family == QUIRE_FAMILY_CHANNEL ? BY_CHANNEL
           : k->zeros                          ? CENTRED
           : is_token_scaled(k->family)        ? BY_TOKEN
                                               : BY_GROUP;
}

/* Logits of a row from the integers of one scale group. `doubled`: the middle is a half. */
INLINE void put_scores(const key_scales how, const bool doubled, const set_query *q, int r, int g,
                       const int32_t *dots, const float *scale, const float *zero, float *s) {
    const ivec centre = i_all(q->centre[g][r]);
    const fvec step = f_all(q->step[g][r]), offset = f_all(q->offset[g][r]);
    for (int t = 0; t < T; t += W) {
        const ivec dot = i_load(dots + t);
        const fvec x = f_from_int(i_sub(doubled ? i_add(dot, dot) : dot, centre));
        fvec y;
        if (how == LATER) {
            y = x;
        } else if (how == BY_CHANNEL) {
            y = f_fma(x, step, offset);
        } else if (how == CENTRED) {
            y = f_fma(f_mul(x, step), f_load(scale + t), offset);
        } else {
            y = f_mul(f_mul(x, step), f_load(scale + g * T + t));
            if (how == BY_GROUP)
                y = f_fma(offset, f_load(zero + g * T + t), y);
            if (g > 0)
                y = f_add(y, f_load(s + t));
        }
        f_store(s + t, y);
    }
}

static void add_scores(const quire_attend_job *job, const set_query *q, int rows, int g,
                       const int32_t (*dots)[T], const float *scale, const float *zero,
                       float *s /* (SET, BLOCK) */) {
    const quire_side_format *k = &job->format->k;
    const key_scales how = scales_of(job);
    for (int r = 0; r < rows; r++, s += BLOCK) {
        if (how == LATER)
            put_scores(LATER, true, q, r, g, dots[r], scale, zero, s);
        else if (how == BY_CHANNEL && k->mid != 0)
            put_scores(BY_CHANNEL, true, q, r, g, dots[r], scale, zero, s);
        else if (how == BY_CHANNEL)
            put_scores(BY_CHANNEL, false, q, r, g, dots[r], scale, zero, s);
        else if (how == CENTRED)
            put_scores(CENTRED, k->mid != 0, q, r, g, dots[r], scale, zero, s);
        else if (how == BY_TOKEN)
            put_scores(BY_TOKEN, k->mid != 0, q, r, g, dots[r], scale, zero, s);
        else
            put_scores(BY_GROUP, k->mid != 0, q, r, g, dots[r], scale, zero, s);
    }
}

/* The sign plane of prod: adds scale * residual * sqrt(pi/2) * (2 dot - sum). */
static void add_signs(const block *b, const set_query *q, int r, int p, const int32_t *dots,
                      float *s) {
    const float *scale = b->work->k_scale[p], *residual = b->work->residual[p];
    const ivec centre = i_all(q->centre[0][r]); /* computed with a middle of 1/2 */
    const fvec step = f_all(q->step[0][r] * (2 * QUIRE_SQRT_HALF_PI / b->job->format->k.unit));
    for (int t = 0; t < T; t += W) {
        const ivec dot = i_load(dots + t);
        const fvec x = f_mul(f_from_int(i_sub(i_add(dot, dot), centre)), step);
        f_store(s + t, f_fma(x, f_mul(f_load(scale + t), f_load(residual + t)), f_load(s + t)));
    }
}

/* Soft-cap, ALiBi, window edges and raw sinks, one score at a time; a mask alone by vectors. Most
 * pages need none of it. */
static bool needs_rules(const block *b, int p) {
    return changes_logits(&b->job->see) || hides_tokens(b->job, b->first + p);
}

static void apply_rules(const block *b, int row, int p, float *s) {
    const quire_attend_job *job = b->job;
    const int32_t t0 = first_token(job, b->first + p);
    if (is_mask_alone(job, b->first + p)) {
        const float *mask = mask_of(job, row) + t0;
        for (int t = 0; t < T; t += W)
            f_store(s + t, f_add(f_load(s + t), f_mul(f_all(QUIRE_LOG2E), f_load(mask + t))));
        return;
    }
    if (hides_sinks_alone(job, b->first + p)) {
        for (int t = 0; t < T && t0 + t < job->skip; t++)
            s[t] = -INFINITY;
        return;
    }
    for (int t = 0; t < T; t++)
        s[t] = t0 + t < job->skip ? -INFINITY
                                  : quire__ref_logit(&job->see, row / job->n_group,
                                                     row % job->n_group, t0 + t, s[t]);
}

/* The integers of a set's q with the channel scales of the block's pages. */
static void quantize_block(const block *b, int first, int rows) {
    const quire_side_format *k = &b->job->format->k;
    if (k->family != QUIRE_FAMILY_CHANNEL)
        return;
    quantize_set(k, b->job->q + (size_t)first * (size_t)k->dim, b->work, b->from, b->n, first,
                 rows);
}

/* `of_set`: the integers of q where they hold for every page. `requantize`: w->q[1] does not hold
 * those of this set's projected q yet. */
static void score_set(const block *b, int first, int rows, set_query *of_set, bool requantize) {
    const quire_attend_job *job = b->job;
    const quire_side_format *k = &job->format->k;
    const product kind = product_of(k);
    const bool channel = k->family == QUIRE_FAMILY_CHANNEL;
    const float *q = (k->rotated ? job->q_rotated : job->q) + (size_t)first * (size_t)k->dim;
    x86_work *w = b->work;
    for (int p = b->from; p < b->from + b->n; p++) {
        if (k->family == QUIRE_FAMILY_RAW) {
            score_raw(k, b->k[p], q, rows, w->s, p);
            for (int r = 0; r < rows && needs_rules(b, p); r++)
                apply_rules(b, first + r, p, w->s[r] + p * T);
            continue;
        }
        set_query *integers = channel ? &w->q[p] : of_set;
        for (int r = 0; r < rows && k->zeros && !channel; r++)
            integers->offset[0][r] =
                dot_of(job->q + (size_t)(first + r) * (size_t)k->dim, w->k_zero[p], k->dim);
        for (int g = 0; g < k->n_groups; g++) {
            const int at = g * k->group / 16, n = k->group / 16;
            const bool fetches = first == 0; /* once for all sets */
            const uint8_t *ahead = DOT[b->k_source][kind][rows - 1](
                b->k[p], k->dim, at, n, k->book, ahead_or(&w->ahead, fetches, b->record[p]),
                integers, w->dots);
            if (fetches)
                fetched(&w->ahead, ahead);
            add_scores(job, integers, rows, g, (const int32_t(*)[T])w->dots, w->k_scale[p],
                       w->k_zero[p], w->s[0] + p * T);
        }
        if (k->family == QUIRE_FAMILY_PROD) {
            for (int r = 0; r < rows && requantize && p == b->from; r++)
                quantize_scale_group(SMALL, job->q_projected + (size_t)(first + r) * (size_t)k->dim,
                                     0, k->dim, 0.5f, r, 0, &w->q[1]);
            DOT[UNPACKED][SMALL][rows - 1](w->sign8[p], k->dim, 0, k->dim / 16, NULL, NULL,
                                           &w->q[1], w->dots);
            for (int r = 0; r < rows; r++)
                add_signs(b, &w->q[1], r, p, w->dots[r], w->s[r] + p * T);
        }
        for (int r = 0; r < rows && needs_rules(b, p); r++)
            apply_rules(b, first + r, p, w->s[r] + p * T);
    }
}

/* ---------------------------------------------------------------- softmax and values of one set */

/* What a block does to the states of a set's rows. */
typedef struct set_update {
    int alive; /* bits; 0: nothing of the block is visible, or it is too small to matter */
    float m[SET], keep[SET], factor[SET];
    float largest[SET]; /* weight, where a token has one scale */
    half_lines lines;
} set_update;

INLINE bool is_alive(const set_update *u, int row) { return u->alive >> row & 1; }

/* Calls `function` with the number of rows that are left, at most four, as a constant. */
#define FOUR_ROWS(left, rows, statement)                                                           \
    UNROLL for (int rows = 1; rows <= ABREAST; rows++) if (rows == ((left) < 4 ? (left) : 4)) {    \
        statement;                                                                                 \
    }

static void find_updates(const block *b, int first, int rows, const quire_state *state,
                         set_update *u) {
    const int t0 = b->from * T, n = b->n * T;
    const bool halves = weighs_in_halves(&b->job->format->v);
    u->alive = 0;
    for (int r = 0; r < rows; r += ABREAST) {
        rvec m = r_all(0);
        FOUR_ROWS(rows - r, n_rows,
                  m = halves ? find_half_lines(n_rows, b, r, &u->lines)
                             : maxima(n_rows, (const float(*)[BLOCK])(b->work->s[r] + t0), n));
        fetch_step(&b->work->ahead);
        const rvec largest = r_load(state->m + first + r), old = r_ceil(largest),
                   top = r_max(r_ceil(m), old);
        const rvec alive = r_and(r_above(m, r_all(QUIRE_NOTHING_SEEN)),
                                 r_at_least(m, r_sub(largest, r_all(QUIRE_DROP_BELOW))));
        r_store(u->m + r, m);
        r_store(u->keep + r, r_keep(old, top));
        r_store(u->factor + r, r_exp2(r_sub(m, top)));
        u->alive |= r_bits(alive) << r;
    }
    u->alive &= (1 << rows) - 1;
}

/* l and m of four rows are brought up to date; `sum` of 2^(s - m). */
static void update_states(const set_update *u, int row, rvec sum, int first,
                          const quire_state *state) {
    float *m = state->m + first + row, *l = state->l + first + row, new_m[ABREAST], new_l[ABREAST];
    r_store(new_m, r_max(r_load(u->m + row), r_load(m)));
    r_store(new_l,
            r_add(r_mul(r_load(l), r_load(u->keep + row)), r_mul(sum, r_load(u->factor + row))));
    for (int i = 0; i < ABREAST; i++)
        if (is_alive(u, row + i)) {
            m[i] = new_m[i];
            l[i] = new_l[i];
        }
}

/* Logits become weights. */
static void weigh_tokens(const block *b, int first, int rows, const quire_state *state,
                         set_update *u) {
    const quire_side_format *v = &b->job->format->v;
    const int t0 = b->from * T, n = b->n * T;
    const float *scale = is_token_scaled(v->family) ? b->work->v_scale + t0 : NULL;
    for (int r = 0; r < rows; r += ABREAST) {
        fvec sum[ABREAST], top[ABREAST];
        UNROLL for (int i = 0; i < ABREAST; i++) {
            sum[i] = top[i] = f_all(0);
            if (!is_alive(u, r + i))
                continue;
            float *s = b->work->s[r + i] + t0;
            sum[i] = v->bits >= 8 ? exponentials(s, scale, 5, n, u->m[r + i], &top[i])
                                  : exponentials(s, scale, 3, n, u->m[r + i], &top[i]);
        }
        r_store(u->largest + r, f_largest_rows(top));
        update_states(u, r, f_sum_rows(sum), first, state);
    }
}

/* Operands of the weights of four rows; returns the sums of their integers. */
INLINE __m128i put_four(const product kind, const set_update *u, int r, const float *scale, int n,
                        rvec inverses, int t0, x86_work *w) {
    float inverse[ABREAST];
    ivec total[ABREAST];
    r_store(inverse, inverses);
    UNROLL for (int i = 0; i < ABREAST; i++) total[i] =
        is_alive(u, r + i) ? put_weights(kind, w->s[r + i] + t0, scale, n, inverse[i],
                                         w->p[r + i][0] + t0, w->p[r + i][1] + t0)
                           : i_all(0);
    return i_sum_rows(total);
}

/* How the integer sums of a set's rows enter O: O * keep + sum * unit + constant. */
typedef struct set_values {
    float unit[SET], constant[SET];
} set_values;

/* Where a token has one scale, the constant is the same for all channels: it enters O with those of
 * the other blocks, when the chunk ends. */
INLINE bool adds_constants_later(const quire_side_format *v) { return is_token_scaled(v->family); }

/* `step`: what a step of the weights of four rows is worth; zeros: their sums of e * zero. */
INLINE void put_units(const quire_side_format *v, const set_update *u, int row, rvec step,
                      __m128i total, rvec zeros, set_values *out) {
    const rvec by = r_load(u->factor + row), one = r_mul(step, by);
    r_store(out->unit + row, one);
    r_store(out->constant + row,
            r_sub(r_mul(zeros, by), r_mul(r_mul(r_all(v->mid), r_from_int(total)), one)));
}

/* Integer weights for the channels of scale group g. */
static void put_scale_group_weights(const block *b, const set_update *u, int g, int rows,
                                    set_values *out) {
    const quire_side_format *v = &b->job->format->v;
    const product kind = product_of(v);
    const bool grouped = !is_token_scaled(v->family);
    const rvec steps = r_all(kind == WIDE ? 65535 : 255);
    const int t0 = b->from * T, n = b->n * T;
    const float *scale = b->work->v_scale + g * BLOCK + t0,
                *zero = b->work->v_zero + g * BLOCK + t0, *factor = grouped ? scale : NULL;
    x86_work *w = b->work;
    for (int r = 0; r < rows; r += ABREAST) {
        rvec largest = r_load(u->largest + r), sum = r_all(0);
        if (grouped)
            FOUR_ROWS(rows - r, n_rows,
                      largest = largest_weights(n_rows, (const float(*)[BLOCK])(w->s[r] + t0),
                                                scale, zero, n, &sum));
        fetch_step(&w->ahead);
        const rvec inverse = r_and(r_above(largest, r_all(1e-30f)), r_div(steps, largest));
        const __m128i total = kind == WIDE     ? put_four(WIDE, u, r, factor, n, inverse, t0, w)
                              : kind == SIGNED ? put_four(SIGNED, u, r, factor, n, inverse, t0, w)
                                               : put_four(SMALL, u, r, factor, n, inverse, t0, w);
        put_units(v, u, r, r_div(largest, steps), total, sum, out);
    }
}

/* Channels of scale group g: integer p.V, and what enters O. */
static void add_values(const block *b, const set_update *u, int g, int first, int rows,
                       const set_values *by, const quire_state *state) {
    const quire_side_format *v = &b->job->format->v;
    x86_work *w = b->work;
    const bool fetches = first + rows == b->job->n_rows * b->job->n_group; /* the last set */
    if (fetches && g == 0)
        fetch_until_values(&w->ahead);
    const uint8_t *ahead = WEIGH[b->v_source][product_of(v)][rows - 1](
        b->v, g * v->group / TILE, v->group / TILE, v->book,
        ahead_or(&w->ahead, fetches, b->record[b->from]), w->flip[g],
        (const uint8_t(*)[2][BLOCK])w->p, w->sums);
    if (fetches)
        fetched(&w->ahead, ahead);
    for (int r = 0; r < rows; r++) {
        if (!is_alive(u, r))
            continue;
        float *o = state->o + (size_t)(first + r) * (size_t)v->dim + (size_t)(g * v->group);
        const fvec keep = f_all(u->keep[r]), one = f_all(by->unit[r]), c = f_all(by->constant[r]);
        if (adds_constants_later(v)) {
            float *sum = b->job->scratch + first + r;
            *sum = *sum * u->keep[r] + by->constant[r];
            for (int d = 0; d < v->group; d += W)
                f_store(o + d,
                        f_fma(f_from_int(i_load(w->sums[r] + d)), one, f_mul(f_load(o + d), keep)));
            continue;
        }
        for (int d = 0; d < v->group; d += W)
            f_store(o + d,
                    f_fma(f_from_int(i_load(w->sums[r] + d)), one, f_fma(f_load(o + d), keep, c)));
    }
}

/* O and l become relative to m instead of the integer above it, and O gets the constants of all
 * blocks. */
static void end_chunk(const quire_attend_job *job, const quire_state *state) {
    const quire_side_format *v = &job->format->v;
    const int n = job->n_rows * job->n_group;
    const bool constants = adds_constants_later(v);
    for (int i = 0; i < n; i += ABREAST) {
        float factor[ABREAST];
        const rvec m = r_load(state->m + i), by = r_exp2(r_sub(r_ceil(m), m));
        r_store(state->l + i, r_mul(r_load(state->l + i), by));
        r_store(factor, by);
        for (int j = 0; j < ABREAST && i + j < n; j++) {
            const fvec constant = f_all(constants ? job->scratch[i + j] : 0),
                       factors = f_all(factor[j]);
            float *o = state->o + (size_t)(i + j) * (size_t)v->dim;
            for (int d = 0; d < v->dim; d += W)
                f_store(o + d, f_mul(f_add(f_load(o + d), constant), factors));
        }
    }
}

static void value_set(block *b, int first, int rows, const quire_state *state, set_update *u) {
    const quire_side_format *v = &b->job->format->v;
    if (!u->alive)
        return;
    if (!b->v_loaded)
        load_values_of_block(b);
    set_values by;
    if (weighs_in_halves(v)) {
        for (int r = 0; r < rows; r += ABREAST) {
            fetch_step(&b->work->ahead);
            const row_weights x = put_half_weights(b, u->alive >> r, r, &u->lines);
            update_states(u, r, x.sum, first, state);
            put_units(v, u, r, x.step, x.total, r_all(0), &by);
        }
        add_values(b, u, 0, first, rows, &by, state);
        return;
    }
    weigh_tokens(b, first, rows, state, u);
    for (int r = 0; r < rows && v->family == QUIRE_FAMILY_RAW; r++)
        if (is_alive(u, r))
            weigh_raw(b, b->work->s[r], u->keep[r], u->factor[r],
                      state->o + (size_t)(first + r) * (size_t)v->dim);
    for (int g = 0; g < v->n_groups && v->family != QUIRE_FAMILY_RAW; g++) {
        put_scale_group_weights(b, u, g, rows, &by);
        add_values(b, u, g, first, rows, &by, state);
    }
}

/* ------------------------------------------------------------------ the chunk */

/* Numbers of the cache lines that n of them take. */
INLINE int whole_lines(int n) { return (n + 15) & ~15; }

static void queries_to_fp16(const quire_attend_job *job, x86_work *w) {
    const int n = job->n_rows * job->n_group, dim = job->format->k.dim;
    w->q_unit = (float *)(void *)(w + 1);
    w->q_fp16 = w->q_unit + whole_lines(n);
    put_middles(&job->format->k, w->middle);
    memset(w->scaled.y, 0, sizeof w->scaled.y); /* behind the last channel */
    for (int i = 0; i < n; i++)
        put_query(&job->format->k, job->q + (size_t)i * (size_t)dim, i, w);
}

/* The integers of all sets, where they are the same for every page. */
static void queries_to_integers(const quire_attend_job *job, x86_work *w) {
    const quire_side_format *k = &job->format->k;
    const int n = job->n_rows * job->n_group;
    const float *q = k->rotated ? job->q_rotated : job->q;
    for (int first = 0, rows, set = 0; first < n; first += rows, set++) {
        rows = next_set(job->format, n - first);
        for (int r = 0; r < rows; r++)
            quantize_row(k, q + (size_t)(first + r) * (size_t)k->dim, r,
                         set_at(w, most_rows(job->format), set));
    }
}

/* How the lines of two pages are shared out among the products and the steps of a block. */
static void plan_ahead(const quire_format *f, int n, bool few, pages_ahead *a) {
    const source_kind keys = few ? direct_keys(&f->k) : UNPACKED,
                      values = few ? direct_values(&f->v, false) : UNPACKED;
    const ptrdiff_t by_keys = PAGES * bytes_beside_keys(product_of(&f->k), keys, f->k.dim),
                    by_values = bytes_beside_values(product_of(&f->v), values, f->v.dim),
                    rest = PAGES * (ptrdiff_t)f->bytes - by_keys - by_values,
                    grain = ahead_steps(n) * LINES_AT_ONCE * LINE;
    a->bytes = (ptrdiff_t)f->bytes;
    a->by_values = by_values;
    a->step = rest > 0 ? (int)((rest + grain - 1) / grain) * LINES_AT_ONCE : 0;
}

static void attend(quire_attend_job *job, const quire_state *state) {
    enum { FEW = 8 }; /* with more rows than this, unpacking once pays off */
    const int n = job->n_rows * job->n_group;
    const quire_side_format *k = &job->format->k;
    x86_work *work = job->workspace;
    bool started = false;
    quire__ref_empty_state(job, state);
    memset(job->scratch, 0, (size_t)n * sizeof *job->scratch); /* of add_values */
    if (job->q_is_new && k->family == QUIRE_FAMILY_CHANNEL && k->bits < 8)
        queries_to_fp16(job, work);
    else if (job->q_is_new && k->family != QUIRE_FAMILY_CHANNEL && k->family != QUIRE_FAMILY_RAW)
        queries_to_integers(job, work);
    plan_ahead(job->format, n, n <= FEW, &work->ahead);
    start_ahead(&work->ahead, job, PAGES); /* the first block comes too late to be fetched ahead */
    block b, next = load_block(job, 0, n <= FEW);
    /* one set: its q meets the next block's scales early */
    const bool alone = next_set(job->format, n) == n;
    if (alone)
        quantize_block(&next, 0, n);
    while (next.n > 0) {
        b = next;
        start_ahead(&work->ahead, job, b.first + QUIRE_AHEAD_PAGES);
        for (int row = 0, rows, set = 0; row < n; row += rows, set++) {
            rows = next_set(job->format, n - row);
            if (!alone)
                quantize_block(&b, row, rows);
            score_set(&b, row, rows, set_at(work, most_rows(job->format), set),
                      n > rows || !started);
            set_update u; /* a chain of steps that ends while the next block is loaded */
            find_updates(&b, row, rows, state, &u);
            if (row + rows == n) /* what K leaves behind is not needed any more */
                next = load_block(job, b.first + PAGES, n <= FEW);
            if (alone)
                quantize_block(&next, 0, n);
            value_set(&b, row, rows, state, &u);
        }
        started = true;
    }
    end_chunk(job, state);
}

static size_t workspace_bytes(int n_rows, int k_dim, int v_dim) {
    (void)k_dim, (void)v_dim; /* of any size */
    const size_t fp16 =
                     ((size_t)whole_lines(n_rows) + (size_t)n_rows * QUIRE_DIM_MAX) * sizeof(float),
                 full = (size_t)(n_rows / SET + 2) * set_bytes(SET),
                 wide = (size_t)(n_rows / WIDE_SET + 2) * set_bytes(WIDE_SET),
                 sets = full > wide ? full : wide;
    return sizeof(x86_work) + (fp16 > sets ? fp16 : sets);
}

static bool serves(const quire_format *format) { return !is_raw_pair(format); }

#endif
