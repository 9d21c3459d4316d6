/* Every entry of the kernel table, on every level that this machine runs, against the scalar
 * reference.
 *
 *   integers       K.q, and the code of every V: exact, and known from arithmetic done in the
 *                  test (kernel_exact.h)
 *   seal, rotate   the reference's bytes
 *   attend         what rounding allows. Logits: 2^-20 of the size of their terms. Weights that
 *                  round the other way because 2^x came out a little different: made in fp16
 *                  (rounding 3e-4), one in fifteen of u8's goes to another step, a difference as
 *                  large as u8's own noise (5e-3, relative L2 of all rows), though the error
 *                  against exact attention hardly changes (test_attend); with 16 bits 2e-5; raw
 *                  sides 2e-6. A kernel that rounds q and weights to fp16
 *                  (neon/raw_narrow_tmpl.h) is compared with the reference over q rounded so by
 *                  the test; its weights are off by at most 2^-11 each, and so is O, whose parts
 *                  have random signs. Two bf16 numbers for one of q (or a weight) leave out at
 *                  most 2^-18 of it, and that much of a logit (of O)
 *   memory         every buffer is guarded (guard.h), what is the kernel's own starts as NaN
 *
 * `test_kernels --bench [PATTERN]` times the same entries (kernel_bench.c).
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/element.h"
#include "base/real.h"
#include "codec/family.h"
#include "codec/hadamard.h"
#include "codec/tables.h"
#include "kernel_bench.h"
#include "kernel_exact.h"

enum { MOST_CODECS = 64 };

/* Under a sanitizer a sweep takes one case in so many (sweep_takes): it looks at memory, and the
 * plain build compares results. A prime that divides none of the counts here. The longest sweeps
 * are thinned in a plain build, too, by a number that shares no divisor with theirs: `integers`
 * sees every codec in every head size there, and `every_pair` every pair. */
enum { SWEEP = 13 };
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const quire_codec PAIRS[][2] = {
    {QUIRE_CODEC_KC4, QUIRE_CODEC_VT4},     {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8},
    {QUIRE_CODEC_KC3, QUIRE_CODEC_VT3},     {QUIRE_CODEC_KC2, QUIRE_CODEC_VT2},
    {QUIRE_CODEC_TQ4, QUIRE_CODEC_TQ4},     {QUIRE_CODEC_TQP4, QUIRE_CODEC_TQ3},
    {QUIRE_CODEC_TQP3, QUIRE_CODEC_VT8},    {QUIRE_CODEC_VT8, QUIRE_CODEC_TQ2},
    {QUIRE_CODEC_A4G32, QUIRE_CODEC_A8G32}, {QUIRE_CODEC_A8G32, QUIRE_CODEC_VT4},
    {QUIRE_CODEC_A2G32, QUIRE_CODEC_A4G32}, {QUIRE_CODEC_Q8_0, QUIRE_CODEC_Q4_0},
    {QUIRE_CODEC_Q4_0, QUIRE_CODEC_Q8_0},   {QUIRE_CODEC_KC4, QUIRE_CODEC_A2G32},
    {QUIRE_CODEC_F16, QUIRE_CODEC_F16},     {QUIRE_CODEC_BF16, QUIRE_CODEC_F32},
    {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW},     {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4},
    {QUIRE_CODEC_KM3, QUIRE_CODEC_VT3},
};

/* ------------------------------------------------------------------ against the reference */

/* Largest length that a row of a side can have, its parts not cancelling. */
static double largest_row(const kernel_case *c, const quire_side_format *side) {
    const double widest = side->book ? 127 : side->bits == 8 ? 128 : (double)side->mid;
    double largest = 0;
    for (int p = 0; p < c->n_pages; p++) {
        const uint8_t *record = c->record[p].data;
        for (int t = 0; t < T; t++) {
            double squares = 0;
            for (int d = 0; d < side->dim; d++) {
                const size_t at = (size_t)(d / side->group * T + t);
                const double range = side->n_mixed ? (double)quire__code_mid(side, d) : widest;
                double x;
                if (side->family == QUIRE_FAMILY_RAW) {
                    x = (double)quire__get_element(side->type, record + side->codes,
                                                   (size_t)(t * side->dim + d));
                } else if (side->family == QUIRE_FAMILY_CHANNEL) {
                    x = fabs((double)quire__side_param(side, record, (size_t)d)) * range +
                        fabs((double)quire__side_param(side, record, (size_t)(side->dim + d)));
                } else {
                    const double s = fabs((double)quire__side_param(side, record, at));
                    x = s * (double)side->unit * (range + fabs((double)side->mid_steps));
                    if (side->family == QUIRE_FAMILY_AFFINE)
                        x += fabs((double)quire__side_param(side, record,
                                                            at + (size_t)(side->n_groups * T)));
                    if (side->family == QUIRE_FAMILY_PROD)
                        x += s * fabs((double)quire__side_param(side, record, (size_t)(T + t)));
                    if (side->zeros)
                        x += fabs((double)quire__side_param(side, record, side->zeros + (size_t)d));
                }
                squares += x * x;
            }
            largest = fmax(largest, sqrt(squares));
        }
    }
    return largest;
}

static double length(const float *x, int n) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

/* How far a logit of head i may be off. */
static double logit_error(const kernel_case *c, int i, double k_length, double rounding) {
    const quire_visibility *see = &c->job.see;
    double size =
        length((const float *)c->q.data + i * c->format.k.dim, c->format.k.dim) * k_length;
    if (see->softcap_log2 > 0)
        size = (double)see->softcap_log2 * (1 + size);
    if (see->alibi)
        size += (double)see->alibi[i % c->n_group] * see->first_position;
    if (see->mask)
        size += 4;
    return rounding * size + (double)FLT_MIN;
}

static double bound_of(const quire_side_format *v) {
    return v->family == QUIRE_FAMILY_RAW ? 2e-6 : v->bits == 8 ? 2e-5 : 5e-3;
}

static const char *kernel_of(const kernel_case *c, const kernel_level *level) {
    return quire__attend_kernel(&level->kernels, &c->format)->name;
}

/* Whether the level rounds q (or weights) to fp16, or splits them into two bf16: where a layer's
 * raw rows and sealed pages are both of that type. */
static bool side_of_case_uses_fp16(const kernel_case *c, const kernel_level *level,
                                   const quire_side_format *side) {
    return kernel_uses_fp16(kernel_of(c, level)) && c->job.raw == QUIRE_F16 &&
           side->type == QUIRE_F16;
}
static bool splits_side_of(const kernel_case *c, const kernel_level *level,
                           const quire_side_format *side) {
    return strcmp(kernel_of(c, level), "neon_bf16_raw") == 0 && c->job.raw == QUIRE_BF16 &&
           side->type == QUIRE_BF16;
}

typedef struct tolerance {
    double logit; /* of the size of its terms */
    double exp2;  /* the largest error of 2^x; what u8 weights need is 9.1e-4: fixed point 3.4e-4,
                     fp16 5.7e-4 */
    double o;     /* relative L2, all rows */
} tolerance;

static tolerance tolerance_of(const kernel_case *c, const kernel_level *level, bool raw) {
    const double o = raw ? 2e-6 : bound_of(&c->format.v);
    tolerance t = {0x1p-20, o < 1e-5 ? 2e-6 : o < 1e-3 ? 1e-4 : 9.1e-4, o};
    if (side_of_case_uses_fp16(c, level, &c->format.v))
        t.o = 0x1p-11, t.exp2 = 0x1p-11 + 3e-6;
    if (splits_side_of(c, level, &c->format.k))
        t.logit += 0x1p-18, t.o += 0x1p-18;
    if (splits_side_of(c, level, &c->format.v))
        t.o += 0x1p-18;
    return t;
}

/* `least`: square of the size that outputs have when V does not cancel by chance; 0 where rows
 * and channels are many. */
static void compare(const kernel_case *c, const char *level, const case_result *wanted,
                    const case_result *got, double k_length, tolerance may, double least) {
    const int dim = c->format.v.dim;
    double error = 0, size = 0;
    for (int i = 0; i < case_heads(c); i++) {
        const double m = (double)wanted->m[i], l = (double)wanted->l[i],
                     slack = logit_error(c, i, k_length, may.logit);
        if (l == 0) {
            bool empty = got->m[i] == QUIRE_NOTHING_SEEN && got->l[i] == 0;
            for (int d = 0; d < dim; d++)
                empty = empty && got->o[i * dim + d] == 0;
            if (!empty)
                fail_msg("%s, %s: row %d sees nothing, but m %g, l %g", level, c->text, i,
                         (double)got->m[i], (double)got->l[i]);
            continue;
        }
        if (!(fabs((double)got->m[i] - m) <= slack))
            fail_msg("%s, %s: row %d: m %.9g instead of %.9g, may differ by %.1e", level, c->text,
                     i, (double)got->m[i], m, slack);
        if (!(fabs((double)got->l[i] - l) <= l * (may.exp2 + 2 * slack)))
            fail_msg("%s, %s: row %d: l %.9g instead of %.9g", level, c->text, i, (double)got->l[i],
                     l);
        for (int d = 0; d < dim; d++) {
            const double x = (double)wanted->o[i * dim + d] / l,
                         y = (double)got->o[i * dim + d] / (double)got->l[i];
            error += (y - x) * (y - x);
            size += x * x;
        }
    }
    size = fmax(size, least);
    if (!(sqrt(error) <= may.o * sqrt(size)))
        fail_msg("%s, %s: differs by %.2e, bound %.2e", level, c->text, sqrt(error / size), may.o);
}

static void queries_to_fp16(kernel_case *c) {
    const int dim = c->format.k.dim;
    for (int i = 0; i < case_heads(c); i++) {
        float *q = (float *)c->q.data + i * dim, largest = 0;
        for (int d = 0; d < dim; d++)
            largest = fmaxf(largest, fabsf(q[d]));
        const int exponent = largest > 0x1p-100f ? ilogbf(largest) : -100;
        for (int d = 0; d < dim; d++)
            q[d] = ldexpf(quire__f16_to_f32(quire__f32_to_f16(ldexpf(q[d], 12 - exponent))),
                          exponent - 12);
    }
}

typedef case_result (*attend_function)(kernel_case *c, const kernel_level *level);

/* What the reference makes of the case, over what the level makes of q. */
static case_result wanted_of(kernel_case *c, const kernel_level *level, attend_function attend) {
    const kernel_level *levels;
    kernel_levels(&levels);
    if (!side_of_case_uses_fp16(c, level, &c->format.k))
        return attend(c, &levels[0]);
    const size_t bytes = (size_t)(case_heads(c) * c->format.k.dim) * sizeof(float);
    float *q = malloc(bytes);
    memcpy(q, c->q.data, bytes);
    queries_to_fp16(c);
    case_result wanted = attend(c, &levels[0]);
    memcpy(c->q.data, q, bytes);
    free(q);
    return wanted;
}

static void against_reference(kernel_case *c, double least) {
    const kernel_level *levels;
    const int n = kernel_levels(&levels);
    const double k_length = largest_row(c, &c->format.k);
    for (int i = 1; i < n; i++) {
        if (quire__attend_kernel(&levels[i].kernels, &c->format) ==
            quire__attend_kernel(&levels[i - 1].kernels, &c->format))
            continue; /* as the level below */
        case_result wanted = wanted_of(c, &levels[i], case_attend),
                    got = case_attend(c, &levels[i]);
        compare(c, levels[i].name, &wanted, &got, k_length, tolerance_of(c, &levels[i], false),
                least);
        result_free(&wanted), result_free(&got);
    }
}

/* Sum over rows and tokens of (p |v|)^2, p in double precision: the square of an output, were the
 * signs of V random. */
static double incoherent_size(const kernel_case *c) {
    const int dk = c->format.k.dim, dv = c->format.v.dim, tokens = c->n_pages * T;
    float *k = malloc((size_t)(tokens * dk) * sizeof *k),
          *v = malloc((size_t)(tokens * dv) * sizeof *v);
    double *p = malloc((size_t)tokens * sizeof *p), size = 0;
    for (int page = 0; page < c->n_pages; page++) {
        quire__side_decode(&c->format.k, c->record[page].data, k + page * T * dk);
        quire__side_decode(&c->format.v, c->record[page].data, v + page * T * dv);
    }
    for (int i = 0; i < case_heads(c); i++) {
        double top = -INFINITY, sum = 0;
        for (int t = 0; t < tokens; t++) {
            p[t] = 0;
            for (int d = 0; d < dk; d++)
                p[t] += (double)((const float *)c->q.data)[i * dk + d] * (double)k[t * dk + d];
            top = fmax(top, p[t]);
        }
        for (int t = 0; t < tokens; t++)
            sum += p[t] = exp2(p[t] - top);
        for (int t = 0; t < tokens; t++)
            size += pow(p[t] / sum * length(v + t * dv, dv), 2);
    }
    free(k), free(v), free(p);
    return size;
}

/* A case of normal data; each time the guards lie on the other side. */
static bool open_normal(kernel_case *c, const case_shape *shape, rng *r) {
    static bool at_end;
    at_end = !at_end;
    if (!case_open(c, shape, at_end))
        return false;
    case_fill(c, r);
    return true;
}

static void check_normal(const case_shape *shape, rng *r) {
    kernel_case c;
    const bool opened = open_normal(&c, shape, r),
               served = shape->k_dim % 32 == 0 && shape->v_dim % 32 == 0;
    if (opened)
        against_reference(&c, 0);
    assert_true(opened || !served); /* of the codecs here, some do not serve other sizes */
    case_close(&c);
}

/* ------------------------------------------------------------------ integers */

static bool serves(quire_codec codec, bool is_v, int dim) {
    quire_format f;
    const quire_pair pair =
        is_v ? (quire_pair){QUIRE_CODEC_F16, codec} : (quire_pair){codec, QUIRE_CODEC_F16};
    return quire__format_init(&f, pair, is_v ? 32 : dim, is_v ? dim : 32, QUIRE_F16) == QUIRE_OK &&
           !quire__codec_is_raw(codec);
}

static bool is_prod(quire_codec codec) {
    return codec == QUIRE_CODEC_TQP4 || codec == QUIRE_CODEC_TQP3;
}

static void check_exact(const case_shape *shape, exact_data data, bool taken, rng *r) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    exact_case e;
    assert_true(exact_open(&e, shape, data, r)); /* also if not taken: the others' numbers stay */
    if (!taken) {
        exact_close(&e);
        return;
    }
    for (int i = 0; i < n_levels; i++)
        exact_check(&e, &levels[i]); /* every token seen, without a mask */
    const int n = case_heads(&e.c), jump = n < 8 ? 37 : 0;
    for (int first = 0; first < e.n_tokens; first += n + jump) {
        exact_see_one(&e, first);
        for (int i = 0; i < n_levels; i++)
            exact_check(&e, &levels[i]);
    }
    e.c.job.record[shape->n_pages - 2] = NULL;
    exact_see_one(&e, e.n_tokens - n);
    for (int i = 0; i < n_levels; i++)
        exact_check(&e, &levels[i]);
    exact_close(&e);
}

/* Every codec of K with sizes, shapes and codecs of V taken in turn. */
static void integers(void **state) {
    (void)state;
    static const int DIMS[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 576};
    static const int ROWS[][2] = {{1, 1}, {1, 2}, {1, 3},  {1, 4}, {1, 5}, {1, 7},
                                  {1, 8}, {1, 9}, {1, 16}, {3, 5}, {31, 3}};
    quire_codec ks[MOST_CODECS], vs[MOST_CODECS];
    const int n_k = codecs_of_side(false, ks), n_v = codecs_of_side(true, vs);
    int turn = 0, v = 0, sweep = 0;
    for (int k = 0; k < n_k; k++) {
        rng r = {(uint64_t)ks[k]}; /* of its own: a new codec does not change the others' numbers */
        for (int d = 0; d < COUNT(DIMS); d++)
            for (int data = 0; data < EXACT_N; data++, turn++) {
                if (!serves(ks[k], false, DIMS[d]) || (data == EXACT_SIGNS && !is_prod(ks[k])))
                    continue;
                const int v_dim = DIMS[turn * 5 % COUNT(DIMS)];
                do
                    v = (v + 1) % n_v;
                while (!serves(vs[v], true, v_dim));
                check_exact(&(case_shape){.k = ks[k],
                                          .v = vs[v],
                                          .k_dim = DIMS[d],
                                          .v_dim = v_dim,
                                          .n_rows = ROWS[turn % COUNT(ROWS)][0],
                                          .n_group = ROWS[turn % COUNT(ROWS)][1],
                                          .n_pages = 2 + turn % 3,
                                          .first_page = turn % 2 * QUIRE_CHUNK_PAGES,
                                          .raw = (quire_type)(turn % 3)},
                            data, sweep_takes(&sweep, SWEEP), &r);
            }
    }
}

/* ------------------------------------------------------------------ shapes and codecs */

static void every_pair(void **state) {
    (void)state;
    quire_codec ks[MOST_CODECS], vs[MOST_CODECS];
    const int n_k = codecs_of_side(false, ks), n_v = codecs_of_side(true, vs);
    rng r = {7};
    int sweep = 0;
    for (int k = 0; k < n_k; k++)
        for (int v = 0; v < n_v; v++) {
            if (!sweep_takes(&sweep, SWEEP))
                continue;
            case_shape s = {
                .k = ks[k], .v = vs[v], .k_dim = 128, .v_dim = 128, .n_pages = 3, .raw = QUIRE_F16};
            s.n_rows = 1, s.n_group = 4;
            check_normal(&s, &r);
            s.n_rows = 3, s.n_group = 5;
            check_normal(&s, &r);
        }
}

static void parameter_types(void **state) /* affine scales and raw elements of every type */ {
    (void)state;
    rng r = {8};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int raw = 0; raw < 3; raw++)
            check_normal(&(case_shape){.k = PAIRS[p][0],
                                       .v = PAIRS[p][1],
                                       .k_dim = 64,
                                       .v_dim = 96,
                                       .n_rows = 2,
                                       .n_group = 3,
                                       .n_pages = 2,
                                       .raw = (quire_type)raw},
                         &r);
}

static void head_sizes(void **state) {
    (void)state;
    rng r = {9};
    int sweep = 0;
    for (int d = 32; d <= 576; d += 16)
        for (int p = 0; p < COUNT(PAIRS); p++)
            for (int rows = 1; rows <= 4; rows += 3)
                if (sweep_takes_of(&sweep, 3, SWEEP))
                    check_normal(&(case_shape){.k = PAIRS[p][0],
                                               .v = PAIRS[p][1],
                                               .k_dim = d,
                                               .v_dim = 608 - d,
                                               .n_rows = rows,
                                               .n_group = 3,
                                               .n_pages = 2},
                                 &r);
}

static void groups_of_heads(void **state) {
    (void)state;
    static const int ROWS[] = {1, 2, 5, 64};
    rng r = {10};
    int sweep = 0;
    for (int group = 1; group <= 17; group++)
        for (int p = 0; p < COUNT(PAIRS); p++)
            for (int i = 0; i < (group < 5 ? 4 : 3); i++)
                if (sweep_takes_of(&sweep, 5, SWEEP))
                    check_normal(&(case_shape){.k = PAIRS[p][0],
                                               .v = PAIRS[p][1],
                                               .k_dim = 64,
                                               .v_dim = 64,
                                               .n_rows = ROWS[i],
                                               .n_group = group,
                                               .n_pages = 3,
                                               .raw = QUIRE_F16},
                                 &r);
}

/* ------------------------------------------------------------------ rules */

enum { WINDOW = 1, SOFTCAP = 2, ALIBI = 4, MASK = 8, SKIP = 16, MISSING = 32, N_RULES = 64 };

static void fill_mask(kernel_case *c, rng *r) {
    const size_t tokens = c->job.see.mask_head_stride;
    float *mask = c->mask.data;
    for (int i = 0; i < case_heads(c); i++)
        for (size_t t = 0; t < tokens; t++)
            mask[(size_t)i * tokens + t] =
                i % 7 == 3 || rng_below(r, 4) == 0 ? -INFINITY : rng_normal(r);
}

static void apply_rules(kernel_case *c, int rules, rng *r) {
    if (rules & WINDOW) {
        c->job.see.window = 90; /* inside a page, and its edge moves from row to row */
        c->job.see.keep = 70;
    }
    if (rules & SOFTCAP)
        c->job.see.softcap_log2 = 3 * QUIRE_LOG2E;
    if (rules & ALIBI)
        case_add_alibi(c, r);
    if (rules & MASK) {
        case_add_mask(c);
        fill_mask(c, r);
    }
    if (rules & SKIP)
        c->job.skip = 5;
    if (rules & MISSING)
        for (int p = 0; p < c->n_pages;
             p += 3) /* first of a block, then second, then both with the next */
            c->job.record[p] = NULL;
}

static void every_rule(void **state) {
    (void)state;
    rng r = {11};
    int sweep = 0;
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int rules = 0; rules < N_RULES; rules++)
            for (int decode = 0; decode < 2; decode++) {
                if (!sweep_takes_of(&sweep, 3, SWEEP))
                    continue;
                kernel_case c;
                const case_shape shape = {.k = PAIRS[p][0],
                                          .v = PAIRS[p][1],
                                          .k_dim = 64,
                                          .v_dim = 64,
                                          .n_rows = decode ? 1 : 7,
                                          .n_group = 3,
                                          .n_pages = 5,
                                          .raw = QUIRE_F16};
                assert_true(open_normal(&c, &shape, &r));
                apply_rules(&c, rules, &r);
                against_reference(&c, 0);
                case_close(&c);
            }
}

static void
window_edges(void **state) /* every place of a window's edge in a page, and of what is kept */ {
    (void)state;
    static const int FEW[] = {0, 1, 8, 14};
    rng r = {19};
    int sweep = 0;
    for (int p = 0; p < COUNT(FEW); p++)
        for (int rows = 1; rows <= 5; rows += 2) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[FEW[p]][0],
                                      .v = PAIRS[FEW[p]][1],
                                      .k_dim = 32,
                                      .v_dim = 32,
                                      .n_rows = rows,
                                      .n_group = 2,
                                      .n_pages = 3,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            for (int edge = 1; edge <= 200; edge++) {
                if (!sweep_takes(&sweep, SWEEP))
                    continue;
                c.job.see.window = edge;
                c.job.see.keep = edge % 3 ? edge * 7 % 131 : 0;
                against_reference(&c, 0);
            }
            case_close(&c);
        }
}

static void whole_chunk(void **state) /* 16 pages, also with holes, after earlier chunks */ {
    (void)state;
    rng r = {12};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int holes = 0; holes < 2; holes++) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = 96,
                                      .v_dim = 64,
                                      .n_rows = 1,
                                      .n_group = 7,
                                      .n_pages = 16,
                                      .first_page = 32,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            apply_rules(&c, holes ? MISSING : 0, &r);
            against_reference(&c, 0);
            case_close(&c);
        }
}

/* ------------------------------------------------------------------ extremes */

typedef enum code_mode { CODES_AS_SEALED, CODES_LOWEST, CODES_HIGHEST, N_CODE_MODES } code_mode;
typedef enum scale_mode {
    SCALES_AS_SEALED,
    SCALES_ZERO,
    SCALES_TINY,
    SCALES_HUGE,
    SCALES_NEGATIVE,
    N_SCALE_MODES
} scale_mode;
typedef enum query_mode {
    Q_NORMAL,
    Q_ZERO,
    Q_ONE_HOT,
    Q_HUGE,
    Q_DENORMAL,
    Q_MIXED,
    N_QUERY_MODES
} query_mode;

static void change_codes(kernel_case *c, bool is_v, code_mode mode) {
    const quire_side_format *side = is_v ? &c->format.v : &c->format.k;
    if (mode == CODES_AS_SEALED || side->family == QUIRE_FAMILY_RAW)
        return;
    const int lowest = side->bits < 8 ? 0 : side->family == QUIRE_FAMILY_AFFINE ? 0x80 : 0x81;
    uint8_t *codes = malloc((size_t)(T * side->dim));
    for (int i = 0; i < T * side->dim; i++) {
        const int highest =
            side->bits < 8 ? (1 << quire__code_bits(side, i % side->dim)) - 1 : 0x7f;
        codes[i] = (uint8_t)(mode == CODES_LOWEST ? lowest : highest);
    }
    for (int p = 0; p < c->n_pages; p++)
        case_put_codes(c, p, is_v, codes, NULL);
    free(codes);
}

/* Tiny and huge: as if the rows were, zeros and biases too; scales alone would leave huge terms
 * that cancel. */
static void change_scales(kernel_case *c, bool is_v, scale_mode mode) {
    static const float FACTORS[] = {
        1, 0, 2e-4f, 1e4f, -1}; /* tiny: where f16 still has its bits, lest every weight be a tie */
    const quire_side_format *side = is_v ? &c->format.v : &c->format.k;
    if (mode == SCALES_AS_SEALED || side->family == QUIRE_FAMILY_RAW ||
        (mode == SCALES_NEGATIVE && !case_signed_scales(side)))
        return;
    const size_t n_scales = (size_t)(side->family == QUIRE_FAMILY_CHANNEL ? side->dim
                                                                          : side->n_groups * T),
                 n_params = side->family == QUIRE_FAMILY_PROD
                                ? n_scales
                                : side->param_bytes / quire__type_bytes(side->type);
    const size_t n = mode == SCALES_TINY || mode == SCALES_HUGE ? n_params : n_scales;
    for (int p = 0; p < c->n_pages; p++)
        for (size_t i = 0; i < n; i++) {
            uint8_t *record = c->record[p].data;
            quire__put_param(side, record, i, quire__side_param(side, record, i) * FACTORS[mode]);
        }
}

static void change_queries(kernel_case *c, query_mode mode, rng *r) {
    const int dim = c->format.k.dim;
    for (int i = 0; i < case_heads(c); i++) {
        float *q = (float *)c->q.data + i * dim;
        const query_mode chosen = mode == Q_MIXED ? (query_mode)rng_below(r, Q_MIXED) : mode;
        const int hot = rng_below(r, dim);
        for (int d = 0; d < dim; d++)
            q[d] = chosen == Q_ZERO                  ? 0
                   : chosen == Q_ONE_HOT && d != hot ? 0
                   : chosen == Q_HUGE                ? q[d] * 1e17f
                   : chosen == Q_DENORMAL            ? q[d] * 1e-40f
                                                     : q[d];
    }
    case_derive_queries(c);
}

static void extremes(void **state) {
    (void)state;
    rng r = {13};
    int sweep = 0;
    int turn = 0;
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int i = 0; i < N_CODE_MODES * N_SCALE_MODES * N_QUERY_MODES; i++)
            for (int on_v = 0; on_v < 2; on_v++, turn++) {
                if (!sweep_takes_of(&sweep, 7, SWEEP))
                    continue;
                const code_mode codes = (code_mode)(i % N_CODE_MODES);
                const scale_mode scales = (scale_mode)(i / N_CODE_MODES % N_SCALE_MODES);
                const query_mode queries = (query_mode)(i / N_CODE_MODES / N_SCALE_MODES);
                const case_shape shape = {
                    .k = PAIRS[p][0],
                    .v = PAIRS[p][1],
                    .k_dim = 64,
                    .v_dim = 32,
                    .n_rows = turn % 2 ? 1 : 5,
                    .n_group = turn % 2 ? 8 : 3, /* enough rows for bounds that are averages */
                    .n_pages = 2,
                    .raw = (quire_type)(turn % 3)};
                kernel_case c;
                assert_true(open_normal(&c, &shape, &r));
                change_codes(&c, on_v, codes);
                change_scales(&c, on_v, scales);
                change_queries(&c, queries, &r);
                const size_t used = strlen(c.text);
                snprintf(c.text + used, sizeof c.text - used, ", %s codes %d, scales %d, q %d",
                         on_v ? "V" : "K", codes, scales, queries);
                against_reference(&c, incoherent_size(&c));
                case_close(&c);
            }
}

/* -------------------------------------------------------------- a row is nobody else's business */

static void same_bits(const kernel_case *c, const char *level, const char *what,
                      const case_result *all, int i, const case_result *alone, int j) {
    const size_t dim = (size_t)c->format.v.dim;
    if (memcmp(&all->m[i], &alone->m[j], sizeof(float)) != 0 ||
        memcmp(&all->l[i], &alone->l[j], sizeof(float)) != 0 ||
        memcmp(all->o + (size_t)i * dim, alone->o + (size_t)j * dim, dim * sizeof(float)) != 0)
        fail_msg("%s, %s: row %d %s: other bits", level, c->text, i, what);
}

/* Row i of c as a case of its own, over the same records. */
static void attend_alone(kernel_case *c, int i, const kernel_level *level, case_result *out) {
    kernel_case one;
    const size_t row_bytes = (size_t)c->format.k.dim * sizeof(float);
    const case_shape shape = {.k = c->format.k.codec,
                              .v = c->format.v.codec,
                              .k_dim = c->format.k.dim,
                              .v_dim = c->format.v.dim,
                              .n_rows = 1,
                              .n_group = 1,
                              .raw = c->job.raw,
                              .first_page = c->job.first_page};
    assert_true(case_open(&one, &shape, true));
    memcpy(one.q.data, (uint8_t *)c->q.data + (size_t)i * row_bytes, row_bytes);
    case_derive_queries(&one);
    memcpy(one.job.record, c->job.record, sizeof one.job.record);
    one.job.see = c->job.see;
    one.job.skip = c->job.skip;
    one.job.see.first_position += i / c->n_group;
    if (one.job.see.alibi)
        one.job.see.alibi += i % c->n_group;
    if (one.job.see.mask)
        one.job.see.mask += (size_t)i * c->job.see.mask_head_stride;
    *out = case_attend(&one, level);
    case_close(&one);
}

/* Whether some rows of a job, or with NULL the first ones, have the bits that they have alone, with
 * every level. */
static void rows_as_alone(kernel_case *c, const int *look, int n_look, const char *what) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    for (int level = 0; level < n_levels; level++) {
        case_result all = case_attend(c, &levels[level]);
        for (int j = 0; j < n_look; j++) {
            const int row = look ? look[j] : j;
            case_result alone;
            attend_alone(c, row, &levels[level], &alone);
            same_bits(c, levels[level].name, what, &all, row, &alone, 0);
            result_free(&alone);
        }
        result_free(&all);
    }
}

static void rows_alone(void **state) {
    (void)state;
    static const int RULES[] = {0, WINDOW, SOFTCAP | ALIBI, MASK, WINDOW | MASK | SKIP | MISSING};
    rng r = {14};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int rule = 0; rule < COUNT(RULES); rule++) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = 96,
                                      .v_dim = 64,
                                      .n_rows = 4,
                                      .n_group = 3,
                                      .n_pages = 5,
                                      .raw =
                                          PAIRS[p][0] == QUIRE_CODEC_F16 ? QUIRE_F16 : QUIRE_BF16};
            assert_true(open_normal(&c, &shape, &r));
            apply_rules(&c, RULES[rule], &r);
            rows_as_alone(&c, NULL, case_heads(&c), "alone");
            case_close(&c);
        }
}

/* Levels that attend many rows in another way than few (AMX tiles) must not show it: rows of a
 * large job, at the ends of strips and sets too, have the bits of rows alone. */
static void many_rows(void **state) {
    (void)state;
    static const int DIMS[] = {128, 64, 80, 256, 32, 96, 192, 48, 160};
    static const int RULES[] = {0, 0, WINDOW, MISSING, SOFTCAP | ALIBI, MASK, SKIP | MISSING};
    static const int LOOK[] = {0, 7, 15, 16, 31, 32, 38};
    quire_codec ks[MOST_CODECS], vs[MOST_CODECS];
    const int n_k = codecs_of_side(false, ks), n_v = codecs_of_side(true, vs);
    rng r = {21};
    int sweep = 0, turn = 0;
    for (int k = 0; k < n_k; k++)
        for (int v = 0; v < n_v; v++)
            for (int i = 0; i < 3; i++, turn++) {
                const case_shape shape = {.k = ks[k],
                                          .v = vs[v],
                                          .k_dim = DIMS[turn % COUNT(DIMS)],
                                          .v_dim = DIMS[turn / 2 % COUNT(DIMS)],
                                          .n_rows = 13,
                                          .n_group = 3,
                                          .n_pages = 2 + turn % 4,
                                          .raw = QUIRE_F16};
                kernel_case c;
                if (!sweep_takes_of(&sweep, 5, SWEEP))
                    continue;
                if (!open_normal(&c, &shape, &r)) {
                    case_close(&c);
                    continue;
                }
                if (i == 2) { /* extremes; else rules */
                    change_codes(&c, turn % 2, (code_mode)(turn % N_CODE_MODES));
                    change_scales(&c, turn / 2 % 2, (scale_mode)(turn / 3 % N_SCALE_MODES));
                    change_queries(&c, (query_mode)(turn % N_QUERY_MODES), &r);
                } else {
                    apply_rules(&c, RULES[turn % COUNT(RULES)], &r);
                    against_reference(&c, 0);
                }
                rows_as_alone(&c, LOOK, COUNT(LOOK), "of many");
                case_close(&c);
            }
}

/* Logits that grow along a chunk by 6 to 180 octaves a block: however often O is rescaled, many
 * rows have the bits of rows alone. */
static void growing_logits(void **state) {
    (void)state;
    static const int LOOK[] = {0, 16, 37};
    rng r = {22};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (float slope = 0.05f; slope < 2; slope *= 1.7f) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = 64,
                                      .v_dim = 64,
                                      .n_rows = 13,
                                      .n_group = 3,
                                      .n_pages = QUIRE_CHUNK_PAGES,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            case_add_alibi(&c, &r);
            for (int h = 0; h < shape.n_group; h++)
                ((float *)c.alibi.data)[h] = slope * (float)(h + 1) / 3;
            against_reference(&c, 0);
            rows_as_alone(&c, LOOK, COUNT(LOOK), "of growing logits");
            case_close(&c);
        }
}

/* A kernel that merges chunks itself does so with the bits of quire__states_merge, also where rows
 * or chunks see nothing. */
static void gathered_chunks(void **state) {
    (void)state;
    enum { CHUNKS = 5 };
    static const int RULES[] = {0, WINDOW, MASK, SKIP | MISSING};
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {23};
    int turn = 0;
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int rule = 0; rule < COUNT(RULES); rule++, turn++) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = turn % 2 ? 128 : 64,
                                      .v_dim = turn % 3 ? 128 : 32,
                                      .n_rows = turn % 4 ? 13 : 5,
                                      .n_group = 3,
                                      .n_pages = 5,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            apply_rules(&c, RULES[rule], &r);
            const uint8_t *records[CHUNKS][QUIRE_CHUNK_PAGES];
            for (int i = 0; i < CHUNKS; i++) {
                memcpy(records[i], c.job.record, sizeof records[i]);
                for (int page = 0; page < shape.n_pages; page++)
                    if (i == turn % CHUNKS || rng_below(&r, 3) == 0)
                        records[i][page] = NULL;
            }
            for (int level = 0; level < n_levels; level++) {
                case_result wanted = case_attend_chunks(&c, &levels[level], records, CHUNKS, false);
                case_result got = case_attend_chunks(&c, &levels[level], records, CHUNKS, true);
                for (int i = 0; i < case_heads(&c); i++)
                    if (wanted.l[i] != 0)
                        same_bits(&c, levels[level].name, "of gathered chunks", &wanted, i, &got,
                                  i);
                    else
                        assert_true(got.l[i] == 0);
                result_free(&wanted), result_free(&got);
            }
            case_close(&c);
        }
}

static void
pages_unseen(void **state) /* outside every row's window: there or not, the same bits */ {
    (void)state;
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {15};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int level = 0; level < n_levels; level++) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = 64,
                                      .v_dim = 64,
                                      .n_rows = 3,
                                      .n_group = 3,
                                      .n_pages = 6,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            c.job.see.window = 130; /* pages 4 and 5, and the end of 3 for row 0 */
            case_result with = case_attend(&c, &levels[level]);
            for (int page = 0; page < 3; page++)
                c.job.record[page] = NULL;
            case_result without = case_attend(&c, &levels[level]);
            for (int i = 0; i < case_heads(&c); i++)
                same_bits(&c, levels[level].name, "without pages it does not see", &with, i,
                          &without, i);
            result_free(&with), result_free(&without);
            case_close(&c);
        }
}

static void half_a_block_unseen(
    void **state) /* the same where sinks shorten a page beside one that is seen */ {
    (void)state;
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {20};
    for (int p = 0; p < COUNT(PAIRS); p++)
        for (int level = 0; level < n_levels; level++) {
            kernel_case c;
            const case_shape shape = {.k = PAIRS[p][0],
                                      .v = PAIRS[p][1],
                                      .k_dim = 64,
                                      .v_dim = 64,
                                      .n_rows = 2,
                                      .n_group = 3,
                                      .n_pages = 2,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            c.job.see.window = T;
            for (c.job.skip = 1; c.job.skip < T; c.job.skip += 9) {
                c.job.record[0] = c.record[0].data;
                case_result with = case_attend(&c, &levels[level]);
                c.job.record[0] = NULL;
                case_result without = case_attend(&c, &levels[level]);
                for (int i = 0; i < case_heads(&c); i++)
                    same_bits(&c, levels[level].name, "without the page before", &with, i, &without,
                              i);
                result_free(&with), result_free(&without);
            }
            case_close(&c);
        }
}

static void sinks_unseen(void **state) /* raw rows, with sinks outside every window and without */ {
    (void)state;
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {21};
    for (int sinks = 1; sinks <= T; sinks += 7)
        for (int type = 0; type < 3; type++)
            for (int level = 0; level < n_levels; level++) {
                kernel_case c;
                const case_shape shape = {.k = QUIRE_CODEC_RAW,
                                          .v = QUIRE_CODEC_RAW,
                                          .k_dim = 64,
                                          .v_dim = 48,
                                          .n_rows = 20,
                                          .n_group = 2,
                                          .raw = (quire_type)type};
                assert_true(case_open(&c, &shape, true));
                rng_fill(&r, c.q.data, (size_t)(case_heads(&c) * c.format.k.dim), 0.2f);
                case_add_runs(&c, &r, shape.raw, sinks, 30);
                c.job.see.window = 60;
                case_result with = case_attend_raw(&c, &levels[level]);
                c.job.run[0] = c.job.run[1];
                c.job.n_runs = 1;
                case_result without = case_attend_raw(&c, &levels[level]);
                for (int i = 0; i < case_heads(&c); i++)
                    same_bits(&c, levels[level].name, "without sinks", &with, i, &without, i);
                result_free(&with), result_free(&without);
                case_close(&c);
            }
}

/* ------------------------------------------------------------------ raw rows */

static double longest_raw_row(const kernel_case *c) {
    double longest = 0;
    float row[QUIRE_DIM_MAX];
    for (int i = 0; i < c->job.n_runs; i++)
        for (int t = 0; t < c->job.run[i].count; t++) {
            const size_t dim = (size_t)c->format.k.dim;
            quire__row_from_raw(c->job.raw,
                                c->job.run[i].k + (size_t)t * dim * quire__type_bytes(c->job.raw),
                                dim, row);
            longest = fmax(longest, length(row, (int)dim));
        }
    return longest;
}

static void check_raw(const case_shape *shape, int sinks, int offset, int rules, float q_scale,
                      rng *r) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    kernel_case c;
    assert_true(case_open(&c, shape, true));
    const size_t used = strlen(c.text);
    snprintf(c.text + used, sizeof c.text - used, ", type %d, %d sinks, offset %d, rules %d",
             shape->raw, sinks, offset, rules);
    rng_fill(r, c.q.data, (size_t)(case_heads(&c) * c.format.k.dim),
             q_scale / sqrtf((float)c.format.k.dim));
    case_add_runs(&c, r, shape->raw, sinks, offset);
    apply_rules(&c, rules, r);
    for (int i = 1; i < n_levels; i++) {
        if (levels[i].kernels.raw == levels[i - 1].kernels.raw)
            continue;
        case_result wanted = wanted_of(&c, &levels[i], case_attend_raw),
                    got = case_attend_raw(&c, &levels[i]);
        compare(&c, levels[i].name, &wanted, &got, longest_raw_row(&c),
                tolerance_of(&c, &levels[i], true), 0);
        result_free(&wanted), result_free(&got);
    }
    case_close(&c);
}

static void raw_rows(void **state) {
    (void)state;
    static const int ROWS[] = {1, 2, 5, 64}, SINKS[] = {0, 1, 4, 64}, OFFSETS[] = {0, 1, 30, 63};
    rng r = {16};
    int sweep = 0;
    int turn = 0;
    for (int type = 0; type < 3; type++)
        for (int group = 1; group <= 16; group += group < 5 ? 1 : 4)
            for (int i = 0; i < 4; i++)
                for (int sinks = 0; sinks < 4; sinks++)
                    for (int offset = 0; offset < 4; offset++, turn++) {
                        if (!sweep_takes(&sweep, SWEEP))
                            continue;
                        if (ROWS[i] + OFFSETS[offset] > T || (ROWS[i] == 64 && group > 4))
                            continue;
                        const bool quantized =
                            turn % 3 == 2; /* what the layer's sealed pages would be */
                        check_raw(&(case_shape){.k = quantized ? QUIRE_CODEC_KC8 : QUIRE_CODEC_F16,
                                                .v = quantized ? QUIRE_CODEC_VT8 : QUIRE_CODEC_F16,
                                                .k_dim = 32 + 16 * (turn % 35),
                                                .v_dim = 32 + 16 * (turn * 11 % 35),
                                                .n_rows = ROWS[i],
                                                .n_group = group,
                                                .raw = (quire_type)type},
                                  SINKS[sinks], OFFSETS[offset], turn % 16,
                                  turn % 5 == 4 ? 1e-20f : 1.4f, &r);
                    }
}

static void largest_halves(void **state) /* f16 at its limits, under small and large q */ {
    (void)state;
    static const float SCALES[] = {1e-30f, 1e-6f, 1, 1e18f};
    rng r = {17};
    for (int i = 0; i < COUNT(SCALES); i++)
        for (int rows = 1; rows <= 5; rows += 4) {
            kernel_case c;
            const case_shape shape = {.k = QUIRE_CODEC_F16,
                                      .v = QUIRE_CODEC_F16,
                                      .k_dim = 64,
                                      .v_dim = 64,
                                      .n_rows = rows,
                                      .n_group = 4,
                                      .n_pages = 3,
                                      .raw = QUIRE_F16};
            assert_true(open_normal(&c, &shape, &r));
            for (int p = 0; p < c.n_pages; p++)
                for (size_t at = 0; at < (size_t)(T * 64); at++) {
                    uint8_t *record = c.record[p].data;
                    quire__put_element(QUIRE_F16, record + c.format.k.codes, at,
                                       rng_below(&r, 2) ? 65504 : -65504);
                    quire__put_element(QUIRE_F16, record + c.format.v.codes, at,
                                       rng_below(&r, 2) ? 65504 : -65504);
                }
            for (int d = 0; d < case_heads(&c) * 64; d++)
                ((float *)c.q.data)[d] *= SCALES[i];
            against_reference(&c, incoherent_size(&c));
            case_close(&c);
        }
}

/* ----------------------------------------------------------- seal and rotations: the same bytes */

typedef enum row_mode {
    ROWS_NORMAL,
    ROWS_ZERO,
    ROWS_CONSTANT,
    ROWS_SPIKE,
    ROWS_TINY,
    ROWS_LARGEST,
    ROWS_HALVES,
    N_ROW_MODES
} row_mode;

static void fill_rows(const quire_side_format *side, row_mode mode, rng *r, float *rows) {
    const int n = T * side->dim;
    for (int i = 0; i < n; i++) {
        const float x = rng_normal(r);
        rows[i] = mode == ROWS_NORMAL     ? x
                  : mode == ROWS_ZERO     ? (i % 3 ? 0.0f : -0.0f)
                  : mode == ROWS_CONSTANT ? 0.1f * (float)(i % side->dim)
                  : mode == ROWS_SPIKE    ? (i % 97 == 5 ? 1000 * x : 0.01f * x)
                  : mode == ROWS_TINY     ? x * (i % 2 ? 1e-38f : 1e-30f)
                  : mode == ROWS_LARGEST  ? (x < 0 ? -side->max_abs : side->max_abs)
                                          : 0.5f * (float)rng_below(r, 31) - 7.5f; /* many ties */
    }
}

static void check_seal(const case_shape *shape, row_mode mode, int skip, rng *r) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    quire_format f;
    guarded k = {0}, v = {0}, record = {0};
    if (quire__format_init(&f, (quire_pair){shape->k, shape->v}, shape->k_dim, shape->v_dim,
                           shape->raw) != QUIRE_OK)
        return;
    guarded_open(&k, (size_t)(T * shape->k_dim) * sizeof(float), 64, true);
    guarded_open(&v, (size_t)(T * shape->v_dim) * sizeof(float), 64, true);
    guarded_open(&record, f.bytes, QUIRE_RECORD_ALIGN, true);
    fill_rows(&f.k, mode, r, k.data);
    fill_rows(&f.v, mode, r, v.data);
    guarded_writable(&k, false);
    guarded_writable(&v, false);
    uint8_t *wanted = malloc(f.bytes);
    quire__page_encode(&f, k.data, v.data, skip, wanted);
    for (int i = 0; i < n_levels; i++) {
        if (i > 0 && levels[i].kernels.rows->seal_side == levels[i - 1].kernels.rows->seal_side)
            continue;
        char what[96];
        snprintf(what, sizeof what, "%s, seal %s:%s %d/%d, rows %d, skip %d", levels[i].name,
                 quire_codec_name(shape->k), quire_codec_name(shape->v), shape->k_dim, shape->v_dim,
                 mode, skip);
        guarded_reset(&record);
        quire__seal_page(levels[i].kernels.rows, &f, k.data, v.data, skip, record.data);
        guarded_check(&record, what);
        for (size_t at = 0; at < f.bytes; at++)
            if (((uint8_t *)record.data)[at] != wanted[at])
                fail_msg("%s: byte %zu of %zu is %02x instead of %02x", what, at, f.bytes,
                         ((uint8_t *)record.data)[at], wanted[at]);
    }
    free(wanted);
    guarded_close(&k), guarded_close(&v), guarded_close(&record);
}

static void seal(void **state) {
    (void)state;
    static const int SKIPS[] = {0, 1, 4, 33, 63, 64},
                     DIMS[] = {32, 48, 64, 80, 96, 112, 128, 192, 256, 272, 512, 576};
    quire_codec ks[MOST_CODECS], vs[MOST_CODECS];
    const int n_k = codecs_of_side(false, ks), n_v = codecs_of_side(true, vs);
    rng r = {17};
    int sweep = 0;
    int turn = 0;
    for (int i = 0; i < (n_k > n_v ? n_k : n_v); i++)
        for (int d = 0; d < COUNT(DIMS); d++)
            for (int mode = 0; mode < N_ROW_MODES; mode++, turn++)
                if (sweep_takes(&sweep, SWEEP))
                    check_seal(&(case_shape){.k = ks[i % n_k],
                                             .v = vs[i % n_v],
                                             .k_dim = DIMS[d],
                                             .v_dim = DIMS[d],
                                             .raw = (quire_type)(turn % 3)},
                               (row_mode)mode, SKIPS[turn % COUNT(SKIPS)], &r);
}

static void check_rotation(const char *name, size_t entry, void (*reference)(float *, int)) {
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {18};
    for (int dim = 32; dim <= 576; dim += 16)
        for (int mode = 0; mode < N_ROW_MODES; mode++) {
            const quire_side_format side = {.dim = dim, .max_abs = 1e30f};
            float rows[T * QUIRE_DIM_MAX], wanted[QUIRE_DIM_MAX];
            guarded x = {0};
            fill_rows(&side, (row_mode)mode, &r, rows);
            memcpy(wanted, rows, (size_t)dim * sizeof *wanted);
            reference(wanted, dim);
            guarded_open(&x, (size_t)dim * sizeof(float), 64, true);
            for (int i = 0; i < n_levels; i++) {
                void (*rotate)(float *, int);
                memcpy(&rotate, (const char *)levels[i].kernels.rows + entry, sizeof rotate);
                memcpy(x.data, rows, x.bytes);
                rotate(x.data, dim);
                guarded_check(&x, name);
                if (memcmp(x.data, wanted, x.bytes) != 0)
                    fail_msg("%s, %s: other bits at size %d, rows %d", levels[i].name, name, dim,
                             mode);
            }
            guarded_close(&x);
        }
}

static void rotations(void **state) {
    (void)state;
    check_rotation("rotate", offsetof(quire_row_kernels, rotate), quire__rotate);
    check_rotation("unrotate", offsetof(quire_row_kernels, unrotate), quire__unrotate);
    check_rotation("project", offsetof(quire_row_kernels, project), quire__project);
}

/* States are merged with the same bits everywhere, and nothing beyond the row is touched. */
static void blends(void **state) {
    (void)state;
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels);
    rng r = {19};
    for (int dim = 16; dim <= QUIRE_DIM_MAX; dim += 16) {
        const float keep = (float)rng_uniform(&r), add = dim % 32 ? 1 : 0x1p-120f;
        float x[QUIRE_DIM_MAX], y[QUIRE_DIM_MAX], wanted[QUIRE_DIM_MAX];
        guarded to = {0};
        for (int d = 0; d < dim; d++) {
            x[d] = rng_normal(&r);
            y[d] = rng_normal(&r) * (d % 5 ? 1 : 1e30f);
            const volatile float a = x[d] * keep, b = y[d] * add;
            wanted[d] = a + b;
        }
        guarded_open(&to, (size_t)dim * sizeof(float), 64, true);
        for (int i = 0; i < n_levels; i++) {
            memcpy(to.data, x, to.bytes);
            levels[i].kernels.rows->blend(to.data, keep, y, add, dim);
            guarded_check(&to, "blend");
            if (memcmp(to.data, wanted, to.bytes) != 0)
                fail_msg("%s: other bits at size %d", levels[i].name, dim);
        }
        guarded_close(&to);
    }
}

/* ------------------------------------------------------------------ */

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return kernel_bench(argc > 2 ? argv[2] : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),        cmocka_unit_test(every_pair),
        cmocka_unit_test(parameter_types), cmocka_unit_test(head_sizes),
        cmocka_unit_test(groups_of_heads), cmocka_unit_test(every_rule),
        cmocka_unit_test(window_edges),    cmocka_unit_test(whole_chunk),
        cmocka_unit_test(extremes),        cmocka_unit_test(rows_alone),
        cmocka_unit_test(many_rows),       cmocka_unit_test(pages_unseen),
        cmocka_unit_test(raw_rows),        cmocka_unit_test(seal),
        cmocka_unit_test(rotations),       cmocka_unit_test(blends),
        cmocka_unit_test(largest_halves),  cmocka_unit_test(half_a_block_unseen),
        cmocka_unit_test(sinks_unseen),    cmocka_unit_test(growing_logits),
        cmocka_unit_test(gathered_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
