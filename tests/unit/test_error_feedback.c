/* Rounding with feedback: what it leaves of a logit, that it leaves plain rounding alone where
 * it has nothing to say, and that every level gives the same bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "kern/kern.h"
#include "kernel_case.h"
#include "kit.h"

enum { T = QUIRE_PAGE_TOKENS, DIM_MAX = 256, RECORD_MAX = 4 * T * DIM_MAX };

static float k[T * DIM_MAX], v[T * DIM_MAX], decoded[T * DIM_MAX], moment[DIM_MAX * DIM_MAX],
    turned[DIM_MAX * DIM_MAX], feedback[DIM_MAX * DIM_MAX / 2];
static uint8_t plain[RECORD_MAX], shaped[RECORD_MAX], other[RECORD_MAX];

/* Half the channels turn, a quarter fast. */
static quire_rope rope_of(int dim, bool interleaved) {
    return (quire_rope){.first = 16,
                        .n_rot = dim / 32 * 16,
                        .interleaved = interleaved,
                        .base = 10000,
                        .scale = 0.5f};
}

static void shaping_of(const quire_rope *rope, int dim, const uint16_t *order, int page,
                       quire_page_feedback *shaping) {
    quire_rope_pairs turns;
    assert_ok(quire__rope_pairs_init(&turns, rope, dim));
    quire__page_feedback_init(shaping, &turns, feedback, order, page);
}

/* moment -> turned: as queries that look at page `page` have it. */
static void turn_moment(const quire_rope *rope, int dim, int page) {
    quire_rope_pairs turns;
    assert_ok(quire__rope_pairs_init(&turns, rope, dim));
    memcpy(turned, moment, sizeof turned);
    for (int transposed = 0; transposed < 2; transposed++)
        for (int i = 0; i < dim; i++)
            for (int j = 0; j < turns.n; j++) {
                const double c = cos(turns.angle[j] * T * page), s = sin(turns.angle[j] * T * page);
                float *x =
                    &turned[transposed ? turns.first[j] * dim + i : i * dim + turns.first[j]];
                float *y =
                    &turned[transposed ? turns.second[j] * dim + i : i * dim + turns.second[j]];
                const double a = (double)*x, b = (double)*y;
                *x = (float)(a * c - b * s);
                *y = (float)(a * s + b * c);
            }
}

/* Queries of `rank` directions and a little of everything. */
static void make_moment(rng *r, int dim, int rank) {
    memset(moment, 0, sizeof moment);
    for (int i = 0; i < rank; i++) {
        float q[DIM_MAX];
        for (int d = 0; d < dim; d++)
            q[d] = rng_normal(r);
        for (int a = 0; a < dim; a++)
            for (int b = 0; b < dim; b++)
                moment[a * dim + b] += q[a] * q[b] / (float)rank;
    }
    for (int d = 0; d < dim; d++)
        moment[d * dim + d] += 0.05f;
}

static void make_rows(rng *r, int dim) {
    for (int t = 0; t < T; t++)
        for (int d = 0; d < dim; d++) {
            k[t * dim + d] = rng_normal(r) * (float)(1 + d % 7) + (float)(d % 5);
            v[t * dim + d] = rng_normal(r);
        }
}

/* Mean square of the logits' errors by the turned moment, over the tokens from skip on. */
static double logit_error(const quire_format *format, int skip, const uint8_t *record) {
    const int dim = format->k.dim;
    double sum = 0;
    quire__side_decode(&format->k, record, decoded);
    for (int t = skip; t < T; t++)
        for (int a = 0; a < dim; a++)
            for (int b = 0; b < dim; b++)
                sum += (double)(decoded[t * dim + a] - k[t * dim + a]) *
                       (double)turned[a * dim + b] *
                       (double)(decoded[t * dim + b] - k[t * dim + b]);
    return sum / (T - skip);
}

static void format_of(quire_codec codec, int dim, quire_format *format) {
    assert_ok(
        quire__format_init(format, (quire_pair){codec, QUIRE_CODEC_VT4}, dim, dim, QUIRE_F16));
}

static const quire_codec CODECS[] = {QUIRE_CODEC_KC4, QUIRE_CODEC_KC3, QUIRE_CODEC_KC2,
                                     QUIRE_CODEC_KM4, QUIRE_CODEC_KM3};
enum { N_CODECS = sizeof CODECS / sizeof *CODECS };

static void errors_fall_where_nobody_looks(void **state) {
    (void)state;
    rng r = {5};
    const int dims[] = {32, 64, 80, 128, 256}, pages[] = {0, 1, 7, 400, 5};
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < N_CODECS; c++) {
            quire_format format;
            quire_page_feedback shaping;
            const int dim = dims[i], skip = c == 1 ? 4 : 0, page = pages[(i + c) % 5];
            const quire_rope rope = rope_of(dim, i % 2);
            format_of(CODECS[c], dim, &format);
            make_rows(&r, dim);
            make_moment(&r, dim, dim / 8);
            turn_moment(&rope, dim, page);
            assert_ok(quire_channel_feedback(moment, &rope, dim, feedback));
            shaping_of(&rope, dim, NULL, page, &shaping);
            quire__page_encode(&format, k, v, skip, plain);
            memcpy(shaped, plain, format.bytes);
            quire__side_round_with_feedback(&format.k, k, skip, &shaping, shaped);
            const double before = logit_error(&format, skip, plain),
                         after = logit_error(&format, skip, shaped);
            /* Two bits clip more of what is passed on. */
            if (!(after < (CODECS[c] == QUIRE_CODEC_KC2 ? 0.75 : 0.5) * before))
                fail_msg("%s, D %d, page %d: %g after %g", quire_codec_name(CODECS[c]), dim, page,
                         after, before);
            /* Only codes differ: parameters, V and gaps do not. */
            for (size_t b = 0; b < format.bytes; b++)
                if (b < format.k.codes || b >= format.k.codes + format.k.code_bytes)
                    assert_int_equal(shaped[b], plain[b]);
        }
}

/* U and D of M = (I + U) D (I + U)^T in the upper triangle and on the diagonal, channels in the
 * order of `at`. */
static void factor(const float *m, const int *at, int n, double *u) {
    double mean = 0;
    for (int d = 0; d < n; d++)
        mean += (double)m[d * n + d] / n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            u[i * n + j] = (double)m[at[i] * n + at[j]] + (i == j ? 0.03 * mean : 0);
    for (int j = n - 1; j >= 0; j--)
        for (int i = j; i >= 0; i--) {
            double sum = u[i * n + j];
            for (int l = j + 1; l < n; l++)
                sum -= (i == j ? u[j * n + l] : u[i * n + l]) * u[l * n + l] * u[j * n + l];
            u[i * n + j] = i == j ? sum : sum / u[j * n + j];
        }
}

/* One U, turned with the page, rounds as channel after channel with a U of the page's own moment
 * does, in fp64. */
static void one_matrix_serves_all_pages(void **state) {
    (void)state;
    enum { DIM = 64 };
    rng r = {11};
    static double u[DIM * DIM];
    static float shaped_rows[T * DIM];
    const int pages[] = {0, 1, 2, 63, 1000};
    for (int i = 0; i < 5; i++)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            const quire_rope rope = rope_of(DIM, interleaved);
            quire_format format;
            quire_page_feedback shaping;
            quire_rope_pairs turns;
            int at[DIM], different = 0;
            format_of(QUIRE_CODEC_KC4, DIM, &format);
            make_rows(&r, DIM);
            make_moment(&r, DIM, 9);
            turn_moment(&rope, DIM, pages[i]);
            assert_ok(quire__rope_pairs_init(&turns, &rope, DIM));
            for (int j = 0; j < DIM / 2; j++)
                at[2 * j] = turns.first[j], at[2 * j + 1] = turns.second[j];
            factor(turned, at, DIM, u);
            assert_ok(quire_channel_feedback(moment, &rope, DIM, feedback));
            shaping_of(&rope, DIM, NULL, pages[i], &shaping);
            quire__page_encode(&format, k, v, 0, shaped);
            quire__side_round_with_feedback(&format.k, k, 0, &shaping, shaped);
            quire__side_decode(&format.k, shaped, shaped_rows);
            for (int t = 0; t < T; t++) {
                double error[DIM];
                bool same = true;
                for (int j = 0; j < DIM; j++) {
                    const double scale =
                        (double)quire__side_param(&format.k, shaped, (size_t)at[j]);
                    const double zero = (double)quire__side_param(&format.k, shaped,
                                                                  format.k.zeros + (size_t)at[j]);
                    double x = (double)k[t * DIM + at[j]], carried = 0;
                    for (int l = 0; l < j; l++)
                        carried += error[l] * u[l * DIM + j];
                    double code = rint((x + carried - zero) / scale + 7.5);
                    code = code < 0 ? 0 : code > 15 ? 15 : code;
                    const double value = zero + scale * (code - 7.5);
                    error[j] = x - value;
                    same = same && fabs(value - (double)shaped_rows[t * DIM + at[j]]) < 0.5 * scale;
                }
                different += !same; /* near a tie, and then all that follows */
            }
            if (different > 2)
                fail_msg("page %d: %d of %d tokens are rounded otherwise", pages[i], different, T);
        }
}

static void independent_channels_are_rounded_plainly(void **state) {
    (void)state;
    rng r = {6};
    for (int c = 0; c < N_CODECS; c++) {
        quire_format format;
        quire_page_feedback shaping;
        const quire_rope rope = rope_of(64, true);
        format_of(CODECS[c], 64, &format);
        make_rows(&r, 64);
        for (int i = 0; i < 64 * 64;
             i++) /* what is turned must be round, lest a pair has a direction */
            moment[i] = i % 65 == 0 ? 1 + (float)(i / 130 % 7) : 0;
        for (int zero = 0; zero < 2; zero++) { /* the second time: no query seen at all */
            assert_ok(quire_channel_feedback(moment, &rope, 64, feedback));
            for (int i = 0; i < 64 * 64 / 2; i++)
                assert_true(feedback[i] == 0);
            shaping_of(&rope, 64, NULL, 3, &shaping);
            quire__page_encode(&format, k, v, 2, plain);
            memcpy(shaped, plain, format.bytes);
            quire__side_round_with_feedback(&format.k, k, 2, &shaping, shaped);
            assert_memory_equal(shaped, plain, format.bytes);
            memset(moment, 0, sizeof moment);
        }
    }
}

/* The record's order is only a naming of places: channels get the same codes wherever they lie. */
static void orders(void **state) {
    (void)state;
    enum { DIM = 64 };
    rng r = {7};
    quire_format format;
    quire_page_feedback shaping;
    const quire_rope rope = rope_of(DIM, false);
    uint16_t order[DIM];
    static float placed[T * DIM], natural[T * DIM];
    format_of(QUIRE_CODEC_KC4, DIM, &format);
    make_rows(&r, DIM);
    make_moment(&r, DIM, 9);
    assert_ok(quire_channel_feedback(moment, &rope, DIM, feedback));
    for (int p = 0; p < DIM; p++)
        order[p] = (uint16_t)(p * 29 % DIM);
    quire__page_encode(&format, k, v, 0, shaped);
    shaping_of(&rope, DIM, NULL, 9, &shaping);
    quire__side_round_with_feedback(&format.k, k, 0, &shaping, shaped);
    quire__side_decode(&format.k, shaped, natural);
    for (int t = 0; t < T; t++)
        quire__into_order(order, DIM, k + t * DIM, placed + t * DIM);
    quire__page_encode(&format, placed, v, 0, shaped);
    shaping_of(&rope, DIM, order, 9, &shaping);
    quire__side_round_with_feedback(&format.k, placed, 0, &shaping, shaped);
    quire__side_decode(&format.k, shaped, decoded);
    for (int t = 0; t < T; t++)
        for (int p = 0; p < DIM; p++)
            assert_true(decoded[t * DIM + p] == natural[t * DIM + order[p]]);
}

extern const quire_row_kernels test_rows_8_lanes,
    test_rows_16_lanes; /* rows_*_lanes.c: widths of other machines */

static void every_level_the_same(void **state) {
    (void)state;
    rng r = {8};
    const kernel_level *levels;
    const int n_levels = kernel_levels(&levels), n = 2 + n_levels;
    const quire_row_kernels *best[32] = {&test_rows_8_lanes, &test_rows_16_lanes};
    assert_true(n <= 32);
    for (int i = 0; i < n_levels; i++)
        best[2 + i] = levels[i].kernels.rows;
    for (int dim = 32; dim <= DIM_MAX; dim += 16)
        for (int c = 0; c < N_CODECS; c++)
            for (int huge = 0; huge < 2; huge++) {
                quire_format format;
                const int skip = dim % 48 == 0 ? 4 : 0;
                format_of(CODECS[c], dim, &format);
                make_rows(&r, dim);
                for (int i = 0; i < T * dim && huge; i++)
                    k[i] = i % 3 == 0 ? 65504 : i % 3 == 1 ? -65504 : 0;
                for (int i = 0; i < skip * dim; i++) /* nobody looks at skipped rows */
                    k[i] = v[i] = NAN;
                make_moment(&r, dim, 5);
                uint16_t order[DIM_MAX];
                for (int p = 0; p < dim; p++)
                    order[p] = (uint16_t)((p + 5) % dim);
                const quire_rope rope = rope_of(dim, dim % 32);
                quire_page_feedback shaping;
                assert_ok(quire_channel_feedback(moment, &rope, dim, feedback));
                shaping_of(&rope, dim, format.k.n_mixed ? order : NULL, dim, &shaping);
                quire__page_encode(&format, k, v, skip, shaped);
                quire__side_round_with_feedback(&format.k, k, skip, &shaping, shaped);
                for (int i = 0; i < n; i++) {
                    memset(other, 0xa5, format.bytes);
                    quire__seal_page(best[i], &format, k, v, skip, other);
                    best[i]->round_with_feedback(&format.k, k, skip, &shaping, other);
                    assert_memory_equal(other, shaped, format.bytes);
                }
            }
}

static void bad_arguments(void **state) {
    (void)state;
    rng r = {9};
    make_moment(&r, 64, 9);
    assert_status(quire_channel_feedback(NULL, NULL, 64, feedback), QUIRE_E_INVALID);
    assert_status(quire_channel_feedback(moment, NULL, 64, NULL), QUIRE_E_INVALID);
    assert_status(quire_channel_feedback(moment, NULL, 40, feedback), QUIRE_E_INVALID);
    moment[7] = INFINITY;
    assert_status(quire_channel_feedback(moment, NULL, 64, feedback), QUIRE_E_VALUE);
    assert_non_null(strstr(quire_last_error(), "channels 0 and 7"));
    make_moment(&r, 64, 9);
    moment[65] = -1;
    assert_status(quire_channel_feedback(moment, NULL, 64, feedback), QUIRE_E_VALUE);
    make_moment(&r, 64, 9);
    moment[1] = moment[64] = 100; /* more than its channels have */
    assert_status(quire_channel_feedback(moment, NULL, 64, feedback), QUIRE_E_VALUE);
    assert_non_null(strstr(quire_last_error(), "positive definite"));
    make_moment(&r, 64, 9);
    assert_status(
        quire_channel_feedback(moment, &(quire_rope){.n_rot = 66, .base = 10000}, 64, feedback),
        QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "66 channels"));
    assert_status(quire_channel_feedback(moment, &(quire_rope){.n_rot = 64}, 64, feedback),
                  QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "base 0"));
}

/* A pool takes no feedback that would make codes of nothing. */
static void bad_feedback(void **state) {
    (void)state;
    rng r = {10};
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = layer.n_kv_heads = 1;
    layer.k_dim = layer.v_dim = 64;
    layer.k_feedback = feedback;
    quire_pool_options options;
    quire_pool_options_default(&options);
    options.layers = &layer;
    options.n_layers = 1;
    options.budget_bytes = 1 << 24;
    assert_ok(quire_policy_parse("kc4:vt4", &options.policy));
    make_moment(&r, 64, 9);
    assert_ok(quire_channel_feedback(moment, NULL, 64, feedback));
    quire_pool *pool;
    assert_ok(quire_pool_create(&pool, &options));
    quire_pool_free(pool);
    feedback[2 * 3 * 3 + 12] = 1; /* the ellipse of pair 3 */
    assert_status(quire_pool_create(&pool, &options), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(),
                           "layer 0: k_feedback[30] and the next element are not the direction"));
    feedback[5] = NAN;
    assert_status(quire_pool_create(&pool, &options), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "layer 0: k_feedback[5] is not finite"));
    layer.k_rope = &(quire_rope){.first = 60, .n_rot = 8, .base = 10000};
    assert_status(quire_pool_create(&pool, &options), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "layer 0: 8 channels from 60 on"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_fall_where_nobody_looks),
        cmocka_unit_test(one_matrix_serves_all_pages),
        cmocka_unit_test(independent_channels_are_rounded_plainly),
        cmocka_unit_test(orders),
        cmocka_unit_test(every_level_the_same),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(bad_feedback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
