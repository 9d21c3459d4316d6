/* The integers inside the x86-64 kernels against the reference's, exactly: quantized q, K.q and
 * p.V of every codec, head size, source and number of rows. Codes and weights are random bits
 * and extremes, so that anything that saturates or wraps shows. Compiled once per PRODUCTS, over
 * SIMDe or, on x86-64, for the instructions themselves. */
#include <stdint.h>

#include "kern/x86/intrinsics.h"

/* What the kernels fetch is noted. */
static void note_fetch(const void *line);
#define __builtin_prefetch(at, ...) note_fetch(at)
#include "kern/x86/packed_tmpl.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cpu.h"

#include "kit.h"

static x86_work work;
static uint8_t record[2][256 * QUIRE_DIM_MAX];
static int8_t expanded[PAGES * T * QUIRE_DIM_MAX];

static void fill(rng *r, uint8_t *bytes, size_t n, int how) {
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(how == 0 ? rng_next(r) : how == 1 ? 0x80 : how == 2 ? 0x7f : 0xff);
}

/* ------------------------------------------------------------------ K */

/* Channels that are much smaller than the others in every page. */
static bool is_small(int d) { return d % 5 == 3; }

static void make_query(rng *r, int dim, int how, float *q) {
    rng_fill(r, q, (size_t)dim, how == 1 ? 1e-20f : 1);
    if (how == 2)
        for (int d = 0; d < dim; d++)
            q[d] = rng_next(r) & 1 ? -3.0f : 3.0f; /* every integer at its largest */
    if (how == 3)
        memset(q, 0, (size_t)dim * sizeof *q);
    for (int d = 0; d < dim && how == 4; d++)
        q[d] = is_small(d) ? q[d] : 0; /* scales of the others decide what fp16 leaves of these */
}

/* The integer scores of a page, for sets of every size. */
static void check_dots(const quire_format *f, const block *b, int page, const set_query *integers,
                       float (*q)[QUIRE_DIM_MAX]) {
    const quire_side_format *k = &f->k;
    const product kind = product_of(k);
    const int32_t twice_mid = (int32_t)(2 * k->mid);
    quire__side_expand(k, record[page], expanded);
    for (int r = 0; r < SET; r++) {
        quire_int_query wanted;
        int32_t wanted_dots[QUIRE_MAX_SCALE_GROUPS * T];
        quire__ref_quantize_query(k, record[page], q[r], &wanted);
        quire__ref_dot_page(k, &wanted, expanded, wanted_dots);
        for (int g = 0; g < k->n_groups; g++) {
            const uint32_t bias = kind == SMALL ? 0 : K_BIAS, sum = (uint32_t)wanted.sum[g];
            assert_true(integers->step[g][r] == wanted.scale[g] * (twice_mid ? 0.5f : 1));
            assert_int_equal((uint32_t)integers->centre[g][r],
                             twice_mid ? (uint32_t)wanted.centre[g] + 2 * bias * sum : bias * sum);
            for (int rows = r + 1; rows <= SET; rows++) {
                if (next_set(f, rows) != rows)
                    continue;
                DOT[b->k_source][kind][rows - 1](b->k[page], k->dim, g * k->group / 16,
                                                 k->group / 16, k->book, b->k[page], integers,
                                                 work.dots);
                for (int t = 0; t < T; t++)
                    if ((uint32_t)work.dots[r][t] - bias * sum != (uint32_t)wanted_dots[g * T + t])
                        fail_msg("%s, dim %d, source %d, page %d, row %d of %d, group %d, "
                                 "token %d: %d, not %d",
                                 quire_codec_name(k->codec), k->dim, (int)b->k_source, page, r,
                                 rows, g, t, (int)((uint32_t)work.dots[r][t] - bias * sum),
                                 (int)wanted_dots[g * T + t]);
            }
        }
    }
}

/* Both pages of a block. `from`: as block.k_source. */
static void check_keys(const quire_format *f, source_kind from, float (*q)[QUIRE_DIM_MAX]) {
    const quire_side_format *k = &f->k;
    const bool channel = k->family == QUIRE_FAMILY_CHANNEL;
    quire_attend_job job = {.format = f};
    block b = {
        .job = &job, .work = &work, .record = {record[0], record[1]}, .n = PAGES, .k_source = from};
    static float unit[SET + ABREAST], half[SET * QUIRE_DIM_MAX], rows_of_q[SET * QUIRE_DIM_MAX];
    load_keys_of_block(&b);
    work.q_unit = unit;
    work.q_fp16 = half;
    if (channel)
        put_middles(k, work.middle);
    for (int r = 0; r < SET; r++) {
        put_query(k, q[r], r, &work);
        memcpy(rows_of_q + r * k->dim, q[r], (size_t)k->dim * sizeof **q);
        if (!channel)
            quantize_row(k, q[r], r, &work.q[0]);
    }
    static set_query all[PAGES];
    if (channel)
        quantize_set(k, rows_of_q, &work, 0, PAGES, 0, SET);
    memcpy(all, work.q, sizeof all);
    for (int p = 0; p < PAGES; p++) {
        check_dots(f, &b, p, channel ? &all[p] : &all[0], q);
        for (int r = 0; r < SET && channel; r++) { /* a row and a page alone: the same */
            quantize_set(k, rows_of_q + r * k->dim, &work, p, 1, r, 1);
            assert_memory_equal(work.q[p].plane[0][0], all[p].plane[r][0], (size_t)k->dim);
            assert_true(work.q[p].step[0][0] == all[p].step[0][r]);
            assert_true(work.q[p].offset[0][0] == all[p].offset[0][r]);
            assert_int_equal(work.q[p].centre[0][0], all[p].centre[0][r]);
        }
    }
}

/* ------------------------------------------------------------------ V */

static void check_values(rng *r, const quire_format *f, source_kind from, bool full, int negative) {
    const quire_side_format *v = &f->v;
    const product kind = product_of(v);
    const int32_t twice_mid = (int32_t)(2 * v->mid), most = kind == WIDE ? 65535 : 255;
    const uint8_t *codes_at[PAGES] = {record[0] + v->codes, record[1] + v->codes}, *at[PAGES];
    static float scale[BLOCK];
    int32_t p[SET][BLOCK];
    for (int t = 0; t < BLOCK; t++)
        scale[t] = negative && rng_next(r) & 1 ? -1.0f : 1.0f;
    for (int page = 0; page < PAGES; page++) {
        at[page] = codes_at[page];
        quire__side_expand(v, record[page], expanded + page * T * v->dim);
        uint8_t(*flip)[BLOCK] = (void *)&work.flip[0][page * T];
        for (int g = 0; g < v->n_groups; g++)
            memcpy(work.v_scale + g * BLOCK, scale, sizeof scale);
        assert_int_equal(has_negative(v, work.v_scale + page * T), negative);
        if (negative)
            put_flips(v, work.v_scale + page * T, flip);
        assert_false(has_negative(v, work.v_scale + page * T));
        if (from != UNPACKED)
            continue;
        unpack_v(v->bits, v->dim, codes_at[page], v->book, work.v8[page]);
        if (negative)
            reflect_v(v, (const uint8_t(*)[BLOCK])flip, work.v8[page]);
        at[page] = work.v8[page];
    }
    for (int row = 0; row < SET; row++) {
        int32_t total = 0;
        for (int t = 0; t < BLOCK; t++) {
            p[row][t] = full ? most : rng_below(r, most + 1);
            total += p[row][t];
            work.s[row][t] = (float)p[row][t];
        }
        uint8_t *plane0 = work.p[row][0], *plane1 = work.p[row][1];
        const ivec added =
            kind == WIDE     ? put_weights(WIDE, work.s[row], NULL, BLOCK, 1, plane0, plane1)
            : kind == SIGNED ? put_weights(SIGNED, work.s[row], NULL, BLOCK, 1, plane0, plane1)
                             : put_weights(SMALL, work.s[row], NULL, BLOCK, 1, plane0, plane1);
        assert_int_equal(total, i_sum(added));
    }
    for (int rows = 1; rows <= SET; rows++) {
        if (next_set(f, rows) != rows)
            continue;
        WEIGH[from][kind][rows - 1](at, 0, v->dim / TILE, v->book, codes_at[0], work.flip[0],
                                    (const uint8_t(*)[2][BLOCK])work.p, work.sums);
        for (int row = 0; row < rows; row++)
            for (int d = 0; d < v->dim; d++) {
                int32_t wanted = 0;
                for (int t = 0; t < BLOCK; t++) {
                    const int32_t c = expanded[t * v->dim + d];
                    wanted += p[row][t] * (scale[t] < 0 ? twice_mid - c : c);
                }
                if (work.sums[row][d] != wanted)
                    fail_msg("%s, dim %d, source %d, row %d of %d, channel %d: %d, not %d",
                             quire_codec_name(v->codec), v->dim, (int)from, row, rows, d,
                             (int)work.sums[row][d], (int)wanted);
            }
    }
}

/* ------------------------------------------------------------------ pages fetched ahead */

enum { FETCHED_PAGES = 12, PAGE_LINES = 256 * QUIRE_DIM_MAX / LINE };

static _Alignas(LINE) uint8_t pages[FETCHED_PAGES][PAGE_LINES * LINE];
static int n_fetched[FETCHED_PAGES][PAGE_LINES], n_outside;
static size_t page_bytes;

static void note_fetch(const void *line) {
    const size_t at = (uintptr_t)line - (uintptr_t)pages;
    if (at >= sizeof pages)
        return;
    if (at % sizeof pages[0] < page_bytes)
        n_fetched[at / sizeof pages[0]][at % sizeof pages[0] / LINE]++;
    else
        n_outside++;
}

/* While a chunk is attended, every line of a page two blocks on is fetched, most of them once, and
 * next to none behind it: nothing but speed would tell otherwise. */
static void check_fetches(rng *r, const quire_format *f, int n_rows) {
    static float k[T * QUIRE_DIM_MAX], v[T * QUIRE_DIM_MAX];
    enum { MOST_ROWS = 20 };
    static float q[MOST_ROWS * QUIRE_DIM_MAX], m[MOST_ROWS + 4], l[MOST_ROWS + 4],
        o[(MOST_ROWS + 4) * QUIRE_DIM_MAX], scratch[MOST_ROWS * BLOCK];
    void *workspace = NULL;
    const size_t bytes = workspace_bytes(n_rows, f->k.dim, f->v.dim);
    assert_int_equal(posix_memalign(&workspace, 64, bytes), 0);
    memset(workspace, 0, bytes);
    rng_fill(r, q, (size_t)(n_rows * f->k.dim), 0.1f);
    quire_attend_job job = {.format = f,
                            .n_rows = 1,
                            .n_group = n_rows,
                            .q = q,
                            .q_rotated = q,
                            .q_projected = q,
                            .q_is_new = true,
                            .see.first_position = FETCHED_PAGES * T,
                            .scratch = scratch,
                            .workspace = workspace};
    for (int p = 0; p < FETCHED_PAGES; p++) {
        rng_fill(r, k, (size_t)(T * f->k.dim), 1);
        rng_fill(r, v, (size_t)(T * f->v.dim), 1);
        quire__page_encode(f, k, v, 0, pages[p]);
        job.record[p] = pages[p];
    }
    memset(n_fetched, 0, sizeof n_fetched);
    n_outside = 0;
    page_bytes = f->bytes;
    attend(&job, &(quire_state){m, l, o});
    free(workspace);
    const int n_lines = (int)(f->bytes / LINE);
    int n = 0;
    for (int p = 2 * PAGES; p < FETCHED_PAGES; p++)
        for (int line = 0; line < n_lines; line++) {
            n += n_fetched[p][line];
            if (!n_fetched[p][line])
                fail_msg("%s:%s, dim %d, %d rows: line %d of the %d of page %d is not fetched",
                         quire_codec_name(f->k.codec), quire_codec_name(f->v.codec), f->k.dim,
                         n_rows, line, n_lines, p);
        }
    const int wanted = (FETCHED_PAGES - 2 * PAGES) * n_lines;
    const int n_sets = (n_rows + most_rows(f) - 1) / most_rows(f); /* whose products all fetch */
    if (n > wanted * 3 / 2 * n_sets || n_outside > wanted / 3)
        fail_msg("%s:%s, dim %d, %d rows: %d fetches of %d lines, and %d of others",
                 quire_codec_name(f->k.codec), quire_codec_name(f->v.codec), f->k.dim, n_rows, n,
                 wanted, n_outside);
}

static void fetches(void **state) {
    (void)state;
    static const struct {
        const char *kv;
        int dim;
    } cases[] = {{"kc4:vt4", 128},  {"kc4:vt4", 64}, {"kc8:vt8", 128}, {"kc8:vt4", 96},
                 {"kc3:vt3", 128},  {"kc2:vt2", 64}, {"tq4:tq4", 256}, {"a4g32:a4g32", 128},
                 {"q8_0:q8_0", 64}, {"kc8:vt2", 128}};
    rng r = {13};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        quire_policy policy;
        quire_format f;
        assert_int_equal(quire_policy_parse(cases[i].kv, &policy), QUIRE_OK);
        assert_int_equal(quire__format_init(&f, policy.pair, cases[i].dim, cases[i].dim, QUIRE_F16),
                         QUIRE_OK);
        for (int rows = 1; rows <= 20; rows += rows < 4 ? 3 : rows < 8 ? 4 : 12)
            check_fetches(&r, &f, rows);
    }
}

/* ------------------------------------------------------------------ every codec and size */

static const int DIMS[] = {32, 48, 64, 80, 96, 112, 128, 192, 256, 576};

static void for_each_format(bool values, void (*check)(rng *, const quire_format *)) {
    rng r = {7};
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        if (!(values ? info.for_v : info.for_k) || strcmp(info.family, "raw") == 0)
            continue;
        for (size_t j = 0; j < sizeof DIMS / sizeof *DIMS; j++) {
            quire_format f;
            const quire_pair pair = values ? (quire_pair){QUIRE_CODEC_KC4, info.codec}
                                           : (quire_pair){info.codec, QUIRE_CODEC_VT4};
            if (quire__format_init(&f, pair, DIMS[j], DIMS[j], QUIRE_F16) == QUIRE_OK)
                check(&r, &f);
        }
    }
}

/* A page with the parameters of `rows`, and codes of any pattern. */
static void put_page(rng *r, const quire_side_format *side, int how, const float *rows,
                     uint8_t *to) {
    memset(to, 0, sizeof record[0]);
    quire__side_encode(side, rows, 0, to);
    fill(r, to + side->codes, side->code_bytes, how);
}

/* The same of random rows up to `size`. */
static void make_page(rng *r, const quire_side_format *side, int how, float size, uint8_t *to) {
    static float rows[T * QUIRE_DIM_MAX];
    rng_fill(r, rows, (size_t)T * (size_t)side->dim, size);
    for (int i = 0; i < T * side->dim; i++)
        if (is_small(i % side->dim))
            rows[i] *= 1e-6f;
    put_page(r, side, how, rows, to);
}

/* A page whose channels have equal steps, so that q can be at its largest in all of them, and the
 * largest codes. */
static void make_largest_page(rng *r, const quire_side_format *side, uint8_t *to) {
    static float rows[T * QUIRE_DIM_MAX];
    for (int t = 0; t < T; t++)
        for (int d = 0; d < side->dim; d++) {
            const float most = side->family == QUIRE_FAMILY_CHANNEL ? quire__code_mid(side, d) : 1;
            rows[t * side->dim + d] = t % 2 ? most : -most;
        }
    put_page(r, side, 3, rows, to);
}

static void keys_of(rng *r, const quire_format *f) {
    float q[SET][QUIRE_DIM_MAX];
    for (int how = 0; how < 4; how++) {
        make_page(r, &f->k, how, how == 2 ? 1e-5f : 1, record[0]);
        make_page(r, &f->k, 3 - how, how == 3 ? 1e4f : 1, record[1]);
        for (int row = 0; row < SET; row++)
            make_query(r, f->k.dim, how == 0 ? row : how == 3 ? 4 : 2, q[row]);
        check_keys(f, UNPACKED, q);
        if (direct_keys(&f->k) != UNPACKED)
            check_keys(f, direct_keys(&f->k), q);
    }
}

/* Every product as large as it can be, and of one sign. */
static void largest_keys_of(rng *r, const quire_format *f) {
    float q[SET][QUIRE_DIM_MAX];
    for (int page = 0; page < PAGES; page++)
        make_largest_page(r, &f->k, record[page]);
    for (int row = 0; row < SET; row++)
        for (int d = 0; d < f->k.dim; d++)
            q[row][d] = row % 2 ? -3.0f : 3.0f;
    check_keys(f, UNPACKED, q);
    if (direct_keys(&f->k) != UNPACKED)
        check_keys(f, direct_keys(&f->k), q);
}

static void values_of(rng *r, const quire_format *f) {
    for (int how = 0; how < 4; how++)
        for (int full = 0; full < 2; full++) {
            for (int page = 0; page < PAGES; page++)
                make_page(r, &f->v, how, 1, record[page]);
            check_values(r, f, UNPACKED, full, 0);
            if (direct_values(&f->v, false) != UNPACKED)
                check_values(r, f, direct_values(&f->v, false), full, 0);
        }
}

/* Reflection serves the codecs whose scales can be negative; -128, which q8_0 never writes, has
 * no mirror image in int8. */
static void reflected_of(rng *r, const quire_format *f) {
    if (is_token_scaled(f->v.family))
        return;
    for (int page = 0; page < PAGES; page++) {
        make_page(r, &f->v, 0, 1, record[page]);
        for (size_t i = 0; i < f->v.code_bytes && f->v.bits == 8 && f->v.mid == 0; i++)
            if (record[page][f->v.codes + i] == 0x80)
                record[page][f->v.codes + i] = 0x81;
    }
    check_values(r, f, UNPACKED, false, 1);
    if (direct_values(&f->v, true) != UNPACKED)
        check_values(r, f, direct_values(&f->v, true), false, 1);
}

/* ------------------------------------------------------------------ four rows at a time */

/* Sums and maxima of four rows have the bits of each row's own: rows of prefill are added up alone.
 */
static void four_rows(void **state) {
    (void)state;
    rng r = {11};
    for (int round = 0; round < 1000; round++) {
        float x[ABREAST][W], sum[ABREAST], most[ABREAST], y[ABREAST], power[ABREAST];
        int32_t n[ABREAST][W], total[ABREAST];
        fvec rows[ABREAST];
        ivec integers[ABREAST];
        for (int i = 0; i < ABREAST; i++) {
            rng_fill(&r, x[i], W, round % 2 ? 1 : 1e30f);
            x[i][rng_below(&r, W)] *= 1e-6f;
            for (int j = 0; j < W; j++)
                n[i][j] = (int32_t)rng_next(&r);
            rows[i] = f_load(x[i]);
            integers[i] = i_load(n[i]);
            y[i] = round == 0 ? 0 : -(float)rng_below(&r, 1 << 20) / (float)(1 << round % 16);
        }
        r_store(sum, f_sum_rows(rows));
        r_store(most, f_largest_rows(rows));
        r_store(power, r_exp2(r_load(y)));
        _mm_storeu_si128((__m128i *)(void *)total, i_sum_rows(integers));
        for (int i = 0; i < ABREAST; i++) {
            assert_true(sum[i] == f_sum(rows[i]));
            assert_true(most[i] == f_largest(rows[i]));
            assert_true(power[i] == quire__exp2(y[i]));
            assert_int_equal(total[i], i_sum(integers[i]));
        }
    }
}

/* ------------------------------------------------------------------ weights by way of fp16 */

#ifdef HALVES
/* The fp16 number nearest to x, ties to even: with doubles, which hold every sum and product of the
 * test exactly. */
static double to_half(double x) {
    int exponent;
    frexp(x, &exponent);
    const double last = ldexp(1, exponent < -13 ? -24 : exponent - 11);
    return nearbyint(x / last) * last;
}

/* e of half_weights.h for n, operation by operation. */
static double wanted_e(double u) {
    if (!(u > 0))
        return 0;
    const double g = 1 + fmod(u, 1024) / 1024;
    double p = to_half(0.07861328125 * g - 0.01090240478515625);
    p = to_half(p * g + 0.482421875);
    p = to_half(p * g + 0.44970703125);
    const int exponent = (int)(u / 1024);
    return exponent > 0 ? ldexp(p, exponent - 15) : ldexp(p - 1, -14);
}

/* 2^x for every n that leaves a finite number. */
static void half_powers(void **state) {
    (void)state;
    double worst = 0;
    for (int n = 0; n < 31 * 1024; n += 32) {
        uint16_t bits[32];
        for (int i = 0; i < 32; i++)
            bits[i] = (uint16_t)(n + i);
        ivec x = b_load(bits);
        h_exp2_each(1, &x);
        b_store(bits, x);
        for (int i = 0; i < 32; i++) {
            const double e = (double)quire__f16_to_f32(bits[i]);
            assert_true(e == wanted_e(n + i));
            if (n + i >= 1024)
                worst = fmax(worst, fabs(e / exp2((n + i) / 1024.0 - 15) - 1));
        }
    }
    assert_true(worst < 6.8e-4);
}

/* Scores of row i. Integers, if they stay so: their steps and offsets are made with them. Sees
 * nothing of page `hidden`, if that is one. */
static void make_scores(rng *r, bool integers, int how, int hidden, int i) {
    static const float SPREAD[4] = {1, 8, 1e7f, 0};
    for (int p = 0; p < PAGES; p++) {
        work.q[p].step[0][i] = SPREAD[how] * (p ? 1e-4f : 3e-4f);
        work.q[p].offset[0][i] = SPREAD[how] * rng_normal(r);
        for (int t = p * T; t < (p + 1) * T; t++) {
            const float x = how == 3 ? 0 : rng_normal(r);
            work.s[i][t] = integers ? roundf(5000 * x) : SPREAD[how] * x;
            if (p == hidden || (how == 1 && rng_below(r, 3) == 0))
                work.s[i][t] = -INFINITY;
        }
    }
    work.s[i][hidden == 0 ? T : 5] = integers ? 17000 : how == 2 ? 3e7f : 9.0f;
}

/* n of half_weights.h for the tokens of row i, operation by operation; and how far that is from the
 * logits, of which the largest is *m. */
static void wanted_exponents(bool integers, int i, int from, int n_pages, double *n) {
    const float octave = 1024;
    float largest[PAGES], top[PAGES], m = QUIRE_NOTHING_SEEN;
    double logit[BLOCK], most = -INFINITY;
    for (int p = from; p < from + n_pages; p++) {
        const float step = work.q[p].step[0][i], offset = work.q[p].offset[0][i];
        largest[p] = QUIRE_NOTHING_SEEN;
        for (int t = p * T; t < (p + 1) * T; t++) {
            largest[p] = fmaxf(largest[p], work.s[i][t]);
            logit[t] = integers ? (double)work.s[i][t] * (double)step + (double)offset
                                : (double)work.s[i][t];
            most = fmax(most, logit[t]);
        }
        top[p] = integers && largest[p] > QUIRE_NOTHING_SEEN ? fmaf(largest[p], step, offset)
                                                             : largest[p];
        m = fmaxf(m, top[p]);
    }
    for (int p = from; p < from + n_pages; p++) {
        const float step = integers ? work.q[p].step[0][i] : 1,
                    limit = ldexpf(1, 33 - ilogbf(fmaxf(fabsf(largest[p]), 2))),
                    slope = fminf(octave * step, limit),
                    start = fmaf(-slope, largest[p], fmaf(top[p] - m, octave, 26 * octave));
        for (int t = p * T; t < (p + 1) * T; t++) {
            const double x = nearbyint((double)fmaf(work.s[i][t], slope, start));
            n[t] = x > 0 ? x : 0;
            /* what fp32 logits lose */
            if (n[t] > 0 && octave * step <= limit)
                assert_true(fabs(x / 1024 - 26 - (logit[t] - most)) <
                            0.6 / 1024 + 3e-7 * fabs(most));
        }
    }
}

static void check_half_weights(rng *r, const quire_format *f, bool integers, int from, int n,
                               int how, float size) {
    const quire_side_format *v = &f->v;
    quire_attend_job job = {.format = f, .workspace = &work};
    job.see.softcap_log2 = integers ? 0 : 1;
    block b = {.job = &job, .work = &work, .from = from, .n = n};
    assert_true(keeps_integers(&job) == integers);
    double scale[BLOCK] = {0}, unit[PAGES] = {0};
    half_lines lines;
    float sum[ABREAST], step[ABREAST];
    int32_t total[ABREAST];
    for (int p = from; p < from + n; p++) {
        float largest = 0;
        b.record[p] = record[p];
        memset(record[p], 0, sizeof record[p]);
        for (int t = 0; t < T; t++) {
            const float x = rng_below(r, 7)   ? (float)rng_uniform(r) * (p ? size : 1)
                            : rng_below(r, 2) ? 0.0f
                                              : -0.0f;
            quire__put_element(v->type, record[p] + v->params, (size_t)t, x);
            scale[p * T + t] = (double)quire__side_param(v, record[p], (size_t)t);
            largest = fmaxf(largest, (float)scale[p * T + t]);
        }
        unit[p] = ldexp(1, quire__scale_exponent(quire__f32_to_f16(largest)));
    }
    for (int i = 0; i < ABREAST; i++)
        make_scores(r, integers, how, n == 2 ? i - 2 : -1, i);
    load_half_value_scales(&b);
    find_half_lines(ABREAST, &b, 0, &lines);
    const row_weights got = put_half_weights(&b, 15, 0, &lines);
    r_store(sum, got.sum);
    r_store(step, got.step);
    _mm_storeu_si128((__m128i *)(void *)total, got.total);
    for (int i = 0; i < ABREAST; i++) {
        double w[BLOCK], top[PAGES] = {0}, all = 0, most = 0x1p-15, largest = 255.0 / 32768;
        double exponent[BLOCK];
        float wanted[BLOCK] = {0};
        uint8_t plane[BLOCK];
        int32_t wanted_total = 0;
        wanted_exponents(integers, i, from, n, exponent);
        for (int t = from * T; t < (from + n) * T; t++) {
            const double e = wanted_e(exponent[t]);
            w[t] = to_half(e * to_half(scale[t] / unit[t / T]));
            top[t / T] = fmax(top[t / T], w[t]);
            all += e / 2048;
        }
        for (int p = from; p < from + n; p++)
            most = top[p] > 0 ? fmax(most, unit[p]) : most;
        for (int p = from; p < from + n; p++)
            largest = fmax(largest, top[p] > 0 ? top[p] * unit[p] / most : 0);
        for (int t = from * T; t < (from + n) * T; t++) {
            const double share = top[t / T] > 0 ? unit[t / T] / most : 0,
                         inverse = to_half((double)(float)((double)(255 / (float)largest) * share));
            wanted[t] = (float)(to_half(w[t] * inverse + 1024) - 1024);
            wanted_total += (int32_t)wanted[t];
        }
        put_weights(SMALL, wanted + from * T, NULL, n * T, 1, plane, plane);
        assert_memory_equal(plane, work.p[i][0] + from * T, (size_t)(n * T));
        assert_int_equal(wanted_total, total[i]);
        assert_true(fabs((double)sum[i] / all - 1) < 4 * 0x1p-11); /* four additions in fp16 */
        assert_true(fabs((double)step[i] / (largest / 255 * most * (double)v->unit / 2048) - 1) <
                    1e-6);
    }
}

static void half_weights_of(rng *r, const quire_format *f) {
    if (!weighs_in_halves(&f->v))
        return;
    for (int how = 0; how < 4; how++)
        for (int size = -24; size <= 12; size += 12) {
            for (int integers = 0; integers < 2; integers++) {
                check_half_weights(r, f, integers, 0, 2, how, ldexpf(1, size));
                check_half_weights(r, f, integers, how % 2, 1, how, ldexpf(1, size));
            }
        }
}
static void half_weights(void **state) { (void)state, for_each_format(true, half_weights_of); }
#endif

static void keys(void **state) { (void)state, for_each_format(false, keys_of); }
static void largest_keys(void **state) { (void)state, for_each_format(false, largest_keys_of); }
static void values(void **state) { (void)state, for_each_format(true, values_of); }
static void reflected(void **state) { (void)state, for_each_format(true, reflected_of); }

int main(void) {
    /* static: clang would fill it by instructions that this machine may not have. */
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys),        cmocka_unit_test(largest_keys), cmocka_unit_test(values),
#ifdef HALVES
        cmocka_unit_test(half_powers), cmocka_unit_test(half_weights),
#endif
        cmocka_unit_test(reflected),   cmocka_unit_test(four_rows),    cmocka_unit_test(fetches)};
#ifndef QUIRE_EMULATED
    unsigned needed = QUIRE_CPU_AVX2;
#if defined(__AVXVNNI__)
    needed |= QUIRE_CPU_AVX_VNNI;
#endif
#if defined(__AVX512BW__)
    needed |= QUIRE_CPU_AVX512;
#endif
#if defined(__AVX512VNNI__)
    needed |= QUIRE_CPU_AVX512_VNNI;
#endif
#ifdef HALVES
    needed |= QUIRE_CPU_AMX; /* which AVX512_FP16 is a part of */
#endif
    if ((quire__cpu_features() & needed) != needed) {
        printf("integers: left out %s: this machine does not have the instructions\n", LEVEL_NAME);
        return 77;
    }
#endif
    (void)attend, (void)queries_to_fp16, (void)queries_to_integers, (void)workspace_bytes,
        (void)serves;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
