/* Scores of a block: integer products by tiles, logits, maxima. */
#ifndef QUIRE_KERN_X86_AMX_SCORES_H
#define QUIRE_KERN_X86_AMX_SCORES_H

#include "kern/ref/ref.h"
#include "kern/x86/half_weights.h"
#include "kern/x86/amx/amx_queries.h"
#include "kern/x86/amx/amx_work.h"

/* Tiles: 0 and 1 are B of strip 0, 2 and 3 of strip 1 (two parts each), 4 and 5 codes, 6 and 7 the
 * sums of the strips. */
#define MULTIPLY(op, two)                                                                          \
    do {                                                                                           \
        op(6, 4, 0);                                                                               \
        if (two)                                                                                   \
            op(6, 5, 1);                                                                           \
        op(7, 4, 2);                                                                               \
        if (two)                                                                                   \
            op(7, 5, 3);                                                                           \
    } while (0)

/* Parts first .. first+1, or just the first, of all tokens of a page; added to s unless `fresh`. */
INLINE void multiply_parts(const bool q_unsigned, tile8 *k, int parts, int first, const bool two,
                           const bool fresh, tile8 (*q)[STRIPS], int32_t (*s)[T][STRIP]) {
    TILE_LOAD(0, q[first][0]);
    TILE_LOAD(2, q[first][1]);
    if (two) {
        TILE_LOAD(1, q[first + 1][0]);
        TILE_LOAD(3, q[first + 1][1]);
    }
    TILE_LOAD(4, k[first]);
    if (two)
        TILE_LOAD(5, k[first + 1]);
    for (int tile = 0; tile < K_TILES; tile++) {
        int32_t(*sums[STRIPS])[STRIP] = {s[0] + tile * TILE_ROWS, s[1] + tile * TILE_ROWS};
        if (fresh) {
            TILE_ZERO(6);
            TILE_ZERO(7);
        } else {
            TILE_LOAD(6, sums[0]);
            TILE_LOAD(7, sums[1]);
        }
        if (q_unsigned)
            MULTIPLY(TILE_SU, two);
        else
            MULTIPLY(TILE_SS, two);
        if (tile + 1 < K_TILES) { /* ahead of the stores, which take long */
            tile8 *next = k + (tile + 1) * parts + first;
            TILE_LOAD(4, next[0]);
            if (two)
                TILE_LOAD(5, next[1]);
        }
        TILE_STORE(6, sums[0]);
        TILE_STORE(7, sums[1]);
    }
}

INLINE void multiply_all_parts(const bool q_unsigned, tile8 *k, int dim, tile8 (*q)[STRIPS],
                               int32_t (*s)[T][STRIP]) {
    const int parts = parts_of(dim);
    if (parts == 1)
        multiply_parts(q_unsigned, k, 1, 0, false, true, q, s);
    else
        multiply_parts(q_unsigned, k, parts, 0, true, true, q, s);
    for (int first = 2; first < parts; first += 2)
        if (first + 1 < parts)
            multiply_parts(q_unsigned, k, parts, first, true, false, q, s);
        else
            multiply_parts(q_unsigned, k, parts, first, false, false, q, s);
}

static void multiply_keys(tile8 *k, int dim, tile8 (*q)[STRIPS], int32_t (*s)[T][STRIP]) {
    multiply_all_parts(false, k, dim, q, s);
}
static void multiply_keys_low(tile8 *k, int dim, tile8 (*q)[STRIPS], int32_t (*s)[T][STRIP]) {
    multiply_all_parts(true, k, dim, q, s);
}

/* ------------------------------------------------------------------ logits */

INLINE fvec largest_number(strip_rows *x, int n, fvec most) {
    fvec m[4] = {most, most, most, most};
    for (int t = 0; t < n; t += 4)
        UNROLL for (int i = 0; i < 4; i++) m[i] = f_max(m[i], f_load(x[t + i]));
    return f_max(f_max(m[0], m[1]), f_max(m[2], m[3]));
}

INLINE ivec largest_integer(int32_t (*x)[STRIP]) {
    ivec m[4];
    UNROLL for (int i = 0; i < 4; i++) m[i] = b_load(x[i]);
    for (int t = 4; t < T; t += 4)
        UNROLL for (int i = 0; i < 4; i++) m[i] = _mm512_max_epi32(m[i], b_load(x[t + i]));
    return _mm512_max_epi32(_mm512_max_epi32(m[0], m[1]), _mm512_max_epi32(m[2], m[3]));
}

static void integers_to_floats(strip_rows *s) {
    for (int t = 0; t < T; t++)
        f_store(s[t], f_from_int(b_load(s[t])));
}

/* The integers of page p of the block become logits, as add_scores of packed_tmpl.h has them. */
static void integers_to_logits(const quire_side_format *k, int page, int p, amx_work *w) {
    const float *token_scale = (const float *)(const void *)w->pages.k_scale[page];
    STRIPS_EACH {
        const fvec step = f_load(w->step[p][strip]), offset = f_load(w->offset[page][strip]);
        for (int t = 0; t < T; t++) {
            ivec x = b_load(w->s.i[p][strip][t]);
            if (kind_of(k) == WIDE)
                x = i_add(x, i_shl(b_load(w->s_high[strip][t]), 8));
            const fvec y = f_from_int(x);
            f_store(w->s.f[p][strip][t], kind_of(k) != TOKEN ? f_fma(y, step, offset)
                                         : k->zeros
                                             ? f_fma(f_mul(y, step), f_all(token_scale[t]), offset)
                                             : f_mul(f_mul(y, step), f_all(token_scale[t])));
        }
    }
}

/* Soft-cap, ALiBi, masks, window edges and raw sinks. Most pages need none of it. */
static bool needs_rules(const quire_attend_job *job, int page) {
    return changes_logits(&job->see) || hides_tokens(job, page);
}

/* What weights are made from. Where logits grow with integers, these are enough, and only the
 * largest of a page becomes a logit; as floats they can be hidden. */
typedef enum score_kind { INTEGERS, INTEGERS_AS_FLOATS, LOGITS } score_kind;

static score_kind scores_of_block(const quire_attend_job *job, const bool *present, int page) {
    if (kind_of(&job->format->k) != CHANNEL || changes_logits(&job->see))
        return LOGITS;
    for (int p = 0; p < PAGES; p++)
        if (present[p] && hides_tokens(job, page + p))
            return job->format->v.bits == 8 ? LOGITS : INTEGERS_AS_FLOATS;
    return INTEGERS;
}

static void apply_rules(const quire_attend_job *job, int page, int row, strip_rows *s, int n) {
    const int32_t t0 = first_token(job, page);
    const bool mask_alone = is_mask_alone(job, page);
    if (hides_sinks_alone(job, page)) {
        for (int t = 0; t < T && t0 + t < job->skip; t++)
            f_store(s[t], f_all(-INFINITY));
        return;
    }
    for (int i = 0; i < n; i++) {
        const float *mask = mask_alone ? mask_of(job, row + i) + t0 : NULL;
        for (int t = 0; t < T; t++)
            s[t][i] = mask_alone ? s[t][i] + QUIRE_LOG2E * mask[t]
                      : t0 + t < job->skip
                          ? -INFINITY
                          : quire__ref_logit(&job->see, (row + i) / job->n_group,
                                             (row + i) % job->n_group, t0 + t, s[t][i]);
    }
}

/* Scores of page p of the block, the largest of each row, and its logit. */
static void score_page(const quire_attend_job *job, int page, int p, int first, score_kind as,
                       set_queries *set, amx_work *w) {
    const quire_side_format *k = &job->format->k;
    const k_kind kind = kind_of(k);
    tile8 *codes = k_tiles(&w->pages, parts_of(k->dim), page);
    if (kind == CHANNEL)
        quantize_channel(set, k->dim, page, p, w);
    else if (kind == WIDE)
        quantize_wide(set, k->dim, page, p, w);
    else
        STRIPS_EACH f_store(w->step[p][strip], f_load(set->unit[strip]));
    if (kind == WIDE) {
        multiply_keys_low(codes, k->dim, w->q8[0], w->s.i[p]);
        multiply_keys(codes, k->dim, w->q8[1], w->s_high);
    } else {
        multiply_keys(codes, k->dim, kind == TOKEN ? set->q8 : w->q8[0], w->s.i[p]);
    }
    if (as == LOGITS) {
        integers_to_logits(k, page, p, w);
        stay_awake(w);
    }
    STRIPS_EACH {
        strip_rows *s = w->s.f[p][strip];
        const int row = first + strip * STRIP;
        if (as == INTEGERS_AS_FLOATS)
            integers_to_floats(s);
        if (needs_rules(job, page))
            apply_rules(job, page, row, s, strip_size(job, row));
        const fvec score = as == INTEGERS ? f_from_int(largest_integer(w->s.i[p][strip]))
                                          : largest_number(s, T, f_all(QUIRE_NOTHING_SEEN));
        f_store(w->largest_score[p][strip], score);
        f_store(w->largest[p][strip], as == LOGITS ? score
                                                   : score_logit(score, f_load(w->step[p][strip]),
                                                                 f_load(w->offset[page][strip])));
    }
}

#endif
