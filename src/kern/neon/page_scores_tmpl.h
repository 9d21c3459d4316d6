/* Template, part of packed_tmpl.h: scores of one set over one page: q as integers, integer K.q, and
 * everything between a dot product and a logit. */
#ifndef QUIRE_KERN_NEON_PAGE_SCORES_TMPL_H
#define QUIRE_KERN_NEON_PAGE_SCORES_TMPL_H

#include "codec/tables.h"
#include "kern/neon/channel_query_tmpl.h"
#include "kern/neon/load_block_tmpl.h"
#include "kern/neon/query_tmpl.h"
#include "kern/neon/scores_tmpl.h"
#include "kern/ref/ref.h"

/* How the scales of K enter a score. */
typedef enum key_role {
    KEY_CHANNEL, /* scales are folded into q: one step and offset per page */
    KEY_TOKEN,   /* one scale per token, and perhaps an offset per page */
    KEY_SUM      /* a sum of parts with scales of their own: scale groups, or signs to be added */
} key_role;

static key_role key_role_of(const quire_side_format *k) {
    if (k->family == QUIRE_FAMILY_CHANNEL)
        return KEY_CHANNEL;
    return k->family == QUIRE_FAMILY_UNIFORM || k->family == QUIRE_FAMILY_BOOK ? KEY_TOKEN
                                                                               : KEY_SUM;
}

static const float *query_row(const block *b, const float *rows, int row) {
    const int n = b->job->n_rows * b->job->n_group;
    return row < n ? rows + (size_t)row * (size_t)b->job->format->k.dim : b->work->zero_row;
}

/* Integers of a set against the block's pages: one set_query per page where channel scales are
 * folded in, else one for all. */
INLINE void quantize_set(const block *b, const float *queries, const int rows, const int planes,
                         const key_role role, int set, set_query *out) {
    const int n_pairs = pairs_of(rows);
    const quire_side_format *k = &b->job->format->k;
    const bool natural = k->bits == 8;
    const float *q[SET];
    for (int r = 0; r < 2 * n_pairs; r++)
        q[r] = query_row(b, queries, set * SET + r);
    if (role == KEY_CHANNEL && planes == 1) {
        const neon_work *w = b->work;
        channel_rows in_fp16 = {.unit = w->q_unit + set * SET};
        channel_page page[PAGES];
        for (int r = 0; r < 2 * n_pairs; r++) {
            in_fp16.row[r] = q[r];
            in_fp16.fp16[r] = w->q_fp16 + (size_t)(set * SET + r) * (size_t)k->dim;
            in_fp16.magnitude[r] = w->q_magnitude + (size_t)(set * SET + r) * (size_t)k->dim;
        }
        for (int p = 0; p < b->n; p++)
            page[p] = (channel_page){w->k_scale_fp16[b->from + p], w->k_zero[b->from + p],
                                     w->k_unit[b->from + p]};
        if (b->n == PAGES)
            quantize_by_channels(&in_fp16, rows, page, PAGES, k, out);
        else
            quantize_by_channels(&in_fp16, rows, page, 1, k, out);
        return;
    }
    if (role == KEY_CHANNEL) {
        const float *scale[PAGES], *zero[PAGES];
        for (int p = 0; p < b->n; p++) {
            scale[p] = b->work->k_scale[b->from + p];
            zero[p] = b->work->k_zero[b->from + p];
        }
        if (b->n == PAGES)
            quantize_channels(q, scale, zero, PAGES, k->dim, rows, planes, natural, k->mid,
                              b->work->scaled, out);
        else
            quantize_channels(q, scale, zero, 1, k->dim, rows, planes, natural, k->mid,
                              b->work->scaled, out);
        return;
    }
    for (int pair = 0; pair < n_pairs; pair++)
        for (int g = 0; g < k->n_groups; g++)
            quantize_pair(q[2 * pair], q[2 * pair + 1], g * k->group, k->group, rows, planes,
                          natural, k->mid, pair, g, out);
}

INLINE void put_scale(set_scores *score, int pair, float32x4_t top, float32x4_t peak,
                      float32x4_t step) {
    score->top[pair] = vmaxq_f32(top, vdupq_n_f32(QUIRE_NOTHING_SEEN));
    score->peak[pair] = vmaxq_f32(peak, vdupq_n_f32(QUIRE_NOTHING_SEEN));
    score->step[pair] = step;
}

/* Cell c of operand r: for a lone row, the lower halves of two products. */
INLINE int32x4_t cell_of(int32x4_t (*total)[OPERANDS], int c, int r, const bool lone) {
    if (!lone)
        return total[c][r];
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(total[2 * c][r]),
                                            vreinterpretq_s64_s32(total[2 * c + 1][r])));
}

/* The upper halves: the low plane of a folded row. */
INLINE int32x4_t low_cell_of(int32x4_t (*total)[OPERANDS], int c) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(total[2 * c][0]),
                                            vreinterpretq_s64_s32(total[2 * c + 1][0])));
}

INLINE void score_page(const block *b, const source_kind kind, const int rows, const int planes,
                       const key_role role, int p, const set_query *q) {
    const quire_side_format *k = &b->job->format->k;
    const int n_pairs = pairs_of(rows);
    const int operands = operands_of(rows, planes), tiles = tiles_of_k(kind),
              pairs = pairs_of_pass(tiles, rows, planes);
    const int n_groups = role == KEY_SUM ? k->n_groups : 1,
              group = role == KEY_SUM ? k->group : k->dim;
    /* codes of 5 bits times one plane of q stay far below 2^22 */
    const bool unconverted = role == KEY_CHANNEL && planes == 1,
               zeros = role == KEY_SUM && k->family != QUIRE_FAMILY_PROD;
    const int8x16_t book = is_book(kind) ? load_book(k->book, k->bits) : vdupq_n_s8(0);
    neon_work *w = b->work;
    /* Read once: the compiler must assume that the stores below may change w->score. */
    set_scores *score = &w->score[p];
    float32x4_t top[PAIRS];
    UNROLL for (int pair = 0; pair < n_pairs; pair++) top[pair] = vdupq_n_f32(QUIRE_NOTHING_SEEN);
    for (int at = 0; at < T / 2 / tiles; at += pairs)
        for (int g = 0; g < n_groups; g++) {
            sums acc[SUMS][OPERANDS];
            int32x4_t total[SUMS][OPERANDS];
            UNROLL for (int i = 0; i < tiles * pairs; i++) UNROLL for (int r = 0; r < operands; r++)
                acc[i][r] = start_of_sums(unconverted);
            if (kind == FROM_3_MIXED) {
                multiply_tiles(FROM_4_2, rows, planes, pairs, b->k[p], k->dim, at, 0, k->n_mixed,
                               q->q8, book, b->k_ahead[p], acc);
                multiply_tiles(FROM_3, rows, planes, pairs, b->k[p], k->dim, at, k->n_mixed,
                               k->dim / 16, q->q8, book, b->k_ahead[p], acc);
            } else if (is_shared(kind)) {
                multiply_tiles(kind, rows, planes, pairs, b->k[p], k->dim, at, 0,
                               k->dim / (kind >= FROM_3 ? 16 : 8), q->q8, book, b->k_ahead[p], acc);
            } else if (kind == FROM_4_MIXED &&
                       k->n_mixed % 4 == 0) { /* whole quads: a loop per width */
                multiply_octets(FROM_5_3, rows, planes, pairs, b->k[p], k->dim, at / 8, at % 8, 0,
                                k->dim / 32 * 2, q->q8, book, NULL, b->k_ahead[p], acc);
                multiply_octets(FROM_4, rows, planes, pairs, b->k[p], k->dim, at / 8, at % 8,
                                k->dim / 32 * 2, k->dim / 8 - k->dim / 32 * 2, q->q8, book, NULL,
                                b->k_ahead[p], acc);
            } else {
                multiply_octets(kind == FROM_4_MIXED ? FROM_RULES : kind, rows, planes, pairs,
                                b->k[p], k->dim, at / 8, at % 8, g * group / 8, group / 8, q->q8,
                                book, SPLIT_RULES + MOST_MIXED - k->n_mixed, b->k_ahead[p], acc);
            }
            UNROLL for (int i = 0; i < tiles * pairs; i++) UNROLL for (int r = 0; r < operands; r++)
                total[i][r] = total_of(acc[i][r], is_single(rows, planes, r));
            UNROLL for (int pair = 0; pair < n_pairs; pair++) {
                const bool lone = is_lone(rows, pair);
                const int per_cell = lone ? 2 : 1; /* products */
                const float32x4_t centre = for_cells(q->centre[g][pair], lone),
                                  scale = for_cells(q->scale[g][pair], lone),
                                  offset = for_cells(q->offset[g][pair], lone);
                UNROLL for (int i = 0; i < tiles * pairs / per_cell; i++) {
                    const int tile = i * per_cell / pairs,
                              cell = (8 * tile + at + i * per_cell % pairs) / per_cell;
                    float *s = score->s[pair][cell];
                    const int32x4_t high = cell_of(total, i, pair, lone),
                                    low = is_folded(rows, planes)
                                              ? low_cell_of(total, i)
                                              : cell_of(total, i,
                                                        planes == 2 ? n_pairs + pair : pair, lone);
                    const int32x4_t sum = planes == 1 ? high : vaddq_s32(vshlq_n_s32(high, 7), low);
                    float32x4_t y = unconverted ? as_f32(sum) : vcvtq_f32_s32(sum);
                    if (role != KEY_CHANNEL)
                        y = vmulq_f32(vsubq_f32(y, centre),
                                      tokens_of(w->k_scale[p] + g * T, cell, lone));
                    if (role == KEY_SUM) {
                        y = vmulq_f32(y, scale);
                        if (zeros)
                            y = vfmaq_f32(y, offset, tokens_of(w->k_zero[p] + g * T, cell, lone));
                        if (g > 0)
                            y = vaddq_f32(y, vld1q_f32(s));
                        if (g == n_groups - 1)
                            top[pair] = vmaxq_f32(top[pair], y);
                    } else {
                        top[pair] = vmaxq_f32(top[pair], y);
                    }
                    vst1q_f32(s, y);
                }
            }
        }
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const bool lone = is_lone(rows, pair);
        const float32x4_t best = max_of_cells(top[pair], lone),
                          scale = for_cells(q->scale[0][pair], lone);
        const float32x4_t value = unconverted ? vsubq_f32(best, vld1q_f32(MAGIC)) : best;
        const float32x4_t centre = for_cells(q->centre[0][pair], lone),
                          offset = for_cells(q->offset[0][pair], lone);
        if (role == KEY_CHANNEL)
            put_scale(score, pair, best, vfmaq_f32(offset, vsubq_f32(value, centre), scale), scale);
        else if (role == KEY_TOKEN)
            put_scale(score, pair, best, vmulq_f32(best, scale), scale);
        else
            put_scale(score, pair, best, best, vdupq_n_f32(1));
    }
}

/* The sign plane of prod: adds scale * residual * sqrt(pi/2) * (2 dot - sum). */
INLINE void add_signs(const block *b, const int rows, int p, const set_query *q) {
    const quire_side_format *k = &b->job->format->k;
    const int n_pairs = pairs_of(rows);
    neon_work *w = b->work;
    float32x4_t top[PAIRS];
    UNROLL for (int pair = 0; pair < n_pairs; pair++) top[pair] = vdupq_n_f32(QUIRE_NOTHING_SEEN);
    for (int tile = 0; tile < T / 16; tile++) {
        sums acc[SUMS][OPERANDS];
        int32x4_t total[SUMS][OPERANDS];
        UNROLL for (int i = 0; i < 8; i++) UNROLL for (int r = 0; r < n_pairs; r++) acc[i][r] =
            start_of_sums(false);
        multiply_octets(UNPACKED, rows, 1, 8, (const uint8_t *)w->sign8[p], k->dim, tile, 0, 0,
                        k->dim / 8, q->q8, vdupq_n_s8(0), NULL, (const uint8_t *)w->sign8[p], acc);
        UNROLL for (int i = 0; i < 8; i++) UNROLL for (int r = 0; r < n_pairs; r++) total[i][r] =
            total_of(acc[i][r], is_lone(rows, r));
        UNROLL for (int pair = 0; pair < n_pairs; pair++) {
            const bool lone = is_lone(rows, pair);
            const float32x4_t centre = for_cells(q->centre[0][pair], lone),
                              step = vmulq_n_f32(for_cells(q->scale[0][pair], lone),
                                                 2 * QUIRE_SQRT_HALF_PI / k->unit);
            const int cells = cells_of(lone) / 4; /* of a tile */
            UNROLL for (int i = 0; i < cells; i++) {
                const int cell = tile * cells + i;
                /* centre was computed with mid = 1/2: 2 (dot - sum/2) */
                const float32x4_t x =
                    vsubq_f32(vcvtq_f32_s32(cell_of(total, i, pair, lone)), centre);
                const float32x4_t scale = vmulq_f32(tokens_of(w->k_scale[p], cell, lone),
                                                    tokens_of(w->residual[p], cell, lone));
                float *s = w->score[p].s[pair][cell];
                const float32x4_t y = vfmaq_f32(vld1q_f32(s), vmulq_f32(x, step), scale);
                top[pair] = vmaxq_f32(top[pair], y);
                vst1q_f32(s, y);
            }
        }
    }
    UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const float32x4_t best = max_of_cells(top[pair], is_lone(rows, pair));
        put_scale(&w->score[p], pair, best, best, vdupq_n_f32(1));
    }
}

/* The mean of K's pages: adds q.mean to the logits of a set, which moves only `peak`. All rows and
 * both pages side by side, so that q is loaded once and no chain waits for another. */
INLINE void add_means_of(const block *b, const int rows, const int pages, int set) {
    const int dim = b->job->format->k.dim, n_pairs = pairs_of(rows);
    const float *q[SET];
    float32x4_t dot[PAGES][SET];
    for (int r = 0; r < rows; r++)
        q[r] = query_row(b, b->job->q, set * SET + r);
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int r = 0; r < 2 * n_pairs; r++) dot[p][r] =
        vdupq_n_f32(0);
    for (int d = 0; d < dim; d += 4) {
        float32x4_t mean[PAGES];
        UNROLL for (int p = 0; p < pages; p++) mean[p] =
            vld1q_f32(b->work->k_zero[b->from + p] + d);
        UNROLL for (int r = 0; r < rows; r++) {
            const float32x4_t x = vld1q_f32(q[r] + d);
            UNROLL for (int p = 0; p < pages; p++) dot[p][r] = vfmaq_f32(dot[p][r], x, mean[p]);
        }
    }
    UNROLL for (int p = 0; p < pages; p++) UNROLL for (int pair = 0; pair < n_pairs; pair++) {
        const float32x4_t offset = sum_of_rows(vpaddq_f32(dot[p][2 * pair], dot[p][2 * pair + 1]));
        float32x4_t *peak = &b->work->score[b->from + p].peak[pair];
        *peak = vaddq_f32(*peak, for_cells(offset, is_lone(rows, pair)));
    }
}

INLINE void add_means(const block *b, const int rows, int set) {
    if (b->n == PAGES)
        add_means_of(b, rows, PAGES, set);
    else
        add_means_of(b, rows, 1, set);
}

/* The row of the job and the token of the page in lane j of a cell. */
INLINE int row_of_lane(int set, int pair, int j, bool lone) {
    return set * SET + 2 * pair + (lone ? 0 : j / 2);
}
INLINE int token_of_lane(int cell, int j, bool lone) {
    return lone ? 4 * cell + j : 2 * cell + j % 2;
}

/* Hides what a row does not see: window edges and raw sinks. The other scores stay unchanged, so
 * that a row gets the same bits whether or not another row of its tile needs this. */
static void hide_tokens(const block *b, int rows, int set, int p) {
    const quire_attend_job *job = b->job;
    const int32_t t0 = first_token(job, b->first + p);
    set_scores *score = &b->work->score[p];
    for (int pair = 0; pair < pairs_of(rows); pair++) {
        const bool lone = is_lone(rows, pair);
        float32x4_t best = vdupq_n_f32(QUIRE_NOTHING_SEEN);
        for (int cell = 0; cell < cells_of(lone); cell++) {
            float *s = score->s[pair][cell];
            for (int j = 0; j < 4; j++) {
                const int32_t row = row_of_lane(set, pair, j, lone) / job->n_group,
                              t = t0 + token_of_lane(cell, j, lone);
                if (t < job->skip || !quire__sees(&job->see, row, t))
                    s[j] = -INFINITY;
            }
            best = vmaxq_f32(best, vld1q_f32(s));
        }
        best = max_of_cells(best, lone);
        const float32x4_t moved = vmulq_f32(vsubq_f32(best, score->top[pair]), score->step[pair]);
        const uint32x4_t any = vcgtq_f32(best, vdupq_n_f32(QUIRE_NOTHING_SEEN));
        put_scale(
            score, pair, best,
            vbslq_f32(any, vaddq_f32(score->peak[pair], moved), vdupq_n_f32(QUIRE_NOTHING_SEEN)),
            score->step[pair]);
    }
}

/* Soft-cap, ALiBi and masks act on logits, one at a time; a mask alone needs no other rule. */
static void change_logits(const block *b, int rows, int set, int p) {
    const quire_attend_job *job = b->job;
    const int32_t t0 = first_token(job, b->first + p);
    const int n = job->n_rows * job->n_group;
    const bool mask_alone = is_mask_alone(job, b->first + p);
    set_scores *score = &b->work->score[p];
    for (int pair = 0; pair < pairs_of(rows); pair++) {
        const bool lone = is_lone(rows, pair);
        float32x4_t best = vdupq_n_f32(QUIRE_NOTHING_SEEN);
        const float *mask[4] = {NULL};
        for (int j = 0; mask_alone && j < 4; j++)
            if (row_of_lane(set, pair, j, lone) < n)
                mask[j] = mask_of(job, row_of_lane(set, pair, j, lone)) + t0;
        for (int cell = 0; cell < cells_of(lone); cell++) {
            float *s = score->s[pair][cell];
            vst1q_f32(s, vfmaq_f32(score->peak[pair], vsubq_f32(vld1q_f32(s), score->top[pair]),
                                   score->step[pair]));
            for (int j = 0; j < 4; j++) {
                if (mask[j]) {
                    s[j] += QUIRE_LOG2E * mask[j][token_of_lane(cell, j, lone)];
                    continue;
                }
                const int i = row_of_lane(set, pair, j, lone),
                          t = t0 + token_of_lane(cell, j, lone);
                s[j] = t < job->skip || i >= n ? -INFINITY
                                               : quire__ref_logit(&job->see, i / job->n_group,
                                                                  i % job->n_group, t, s[j]);
            }
            best = vmaxq_f32(best, vld1q_f32(s));
        }
        best = max_of_cells(best, lone);
        put_scale(score, pair, best, best, vdupq_n_f32(1));
    }
}

/* Not inline: gcc would copy the rules into every instance of score_set. */
static bool needs_other_logits(const block *b) { return changes_logits(&b->job->see); }
static bool needs_hiding(const block *b, int p) { return hides_tokens(b->job, b->first + p); }

static void apply_rules(const block *b, int rows, int set, int p) {
    if (needs_other_logits(b))
        change_logits(b, rows, set, p);
    else if (needs_hiding(b, p))
        hide_tokens(b, rows, set, p);
}

INLINE void score_set(const block *b, const source_kind kind, const int rows, const int planes,
                      const key_role role, int set, bool requantize) {
    const int n_pairs = pairs_of(rows);
    const quire_attend_job *job = b->job;
    const quire_side_format *k = &job->format->k;
    const float *queries = k->rotated ? job->q_rotated : job->q;
    set_query *q = b->work->q;
    if (role == KEY_CHANNEL || requantize) /* else the integers are the same for every page */
        quantize_set(b, queries, rows, planes, role, set, q);
    for (int p = b->from; p < b->from + b->n; p++) {
        score_page(b, kind, rows, planes, role, p, role == KEY_CHANNEL ? &q[p - b->from] : q);
        if (k->family == QUIRE_FAMILY_PROD) {
            for (int pair = 0; pair < n_pairs && p == b->from && requantize; pair++)
                quantize_pair(query_row(b, job->q_projected, set * SET + 2 * pair),
                              query_row(b, job->q_projected, set * SET + 2 * pair + 1), 0, k->dim,
                              rows, 1, false, 0.5f, pair, 0, &b->work->q[1]);
            add_signs(b, rows, p, &b->work->q[1]);
        }
    }
    if (role == KEY_TOKEN && k->zeros)
        add_means(b, rows, set);
    for (int p = b->from; p < b->from + b->n; p++)
        apply_rules(b, rows, set, p);
}

#endif
