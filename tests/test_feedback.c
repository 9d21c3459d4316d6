/* Rounding with feedback: what it leaves of a logit, that it leaves plain rounding alone where it has nothing to say, and
 * that every level gives the same bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "kern/kern.h"
#include "kit.h"

enum { T = QUIRE_PAGE_TOKENS, DIM_MAX = 256, RECORD_MAX = 4 * T * DIM_MAX };

static float k[T * DIM_MAX], v[T * DIM_MAX], decoded[T * DIM_MAX], moment[DIM_MAX * DIM_MAX],
    feedback[DIM_MAX * (DIM_MAX - 1) / 2];
static uint8_t plain[RECORD_MAX], shaped[RECORD_MAX], other[RECORD_MAX];

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

/* Mean square of the logits' errors, over the tokens from skip on. */
static double logit_error(const quire_format *format, int skip, const uint8_t *record) {
    const int dim = format->k.dim;
    double sum = 0;
    quire__side_decode(&format->k, record, decoded);
    for (int t = skip; t < T; t++)
        for (int a = 0; a < dim; a++)
            for (int b = 0; b < dim; b++)
                sum += (double)(decoded[t * dim + a] - k[t * dim + a]) * (double)moment[a * dim + b] *
                       (double)(decoded[t * dim + b] - k[t * dim + b]);
    return sum / (T - skip);
}

static void format_of(quire_codec codec, int dim, quire_format *format) {
    assert_ok(quire__format_init(format, (quire_pair){codec, QUIRE_CODEC_VT4}, dim, dim, QUIRE_F16));
}

static const quire_codec CODECS[] = {QUIRE_CODEC_KC4, QUIRE_CODEC_KC3, QUIRE_CODEC_KC2, QUIRE_CODEC_KM4,
                                     QUIRE_CODEC_KM3};
enum { N_CODECS = sizeof CODECS / sizeof *CODECS };

static void errors_fall_where_nobody_looks(void **state) {
    (void)state;
    rng r = {5};
    const int dims[] = {32, 64, 80, 128, 256};
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < N_CODECS; c++) {
            quire_format format;
            const int dim = dims[i], skip = c == 1 ? 4 : 0;
            format_of(CODECS[c], dim, &format);
            make_rows(&r, dim);
            make_moment(&r, dim, dim / 8);
            assert_ok(quire_channel_feedback(moment, NULL, dim, feedback));
            quire__page_encode(&format, k, v, skip, plain);
            memcpy(shaped, plain, format.bytes);
            quire__side_shape(&format.k, k, skip, feedback, shaped);
            const double before = logit_error(&format, skip, plain), after = logit_error(&format, skip, shaped);
            /* Two bits clip more of what is passed on. */
            if (!(after < (CODECS[c] == QUIRE_CODEC_KC2 ? 0.75 : 0.5) * before))
                fail_msg("%s, D %d: %g after %g", quire_codec_name(CODECS[c]), dim, after, before);
            /* Only codes differ: parameters, V and gaps do not. */
            for (size_t b = 0; b < format.bytes; b++)
                if (b < format.k.codes || b >= format.k.codes + format.k.code_bytes)
                    assert_int_equal(shaped[b], plain[b]);
        }
}

static void independent_channels_are_rounded_plainly(void **state) {
    (void)state;
    rng r = {6};
    for (int c = 0; c < N_CODECS; c++) {
        quire_format format;
        format_of(CODECS[c], 64, &format);
        make_rows(&r, 64);
        for (int i = 0; i < 64 * 64; i++)
            moment[i] = i % 65 == 0 ? 1 + (float)(i % 7) : 0;
        for (int zero = 0; zero < 2; zero++) { /* the second time: no query seen at all */
            assert_ok(quire_channel_feedback(moment, NULL, 64, feedback));
            for (int i = 0; i < 64 * 63 / 2; i++)
                assert_true(feedback[i] == 0);
            quire__page_encode(&format, k, v, 2, plain);
            memcpy(shaped, plain, format.bytes);
            quire__side_shape(&format.k, k, 2, feedback, shaped);
            assert_memory_equal(shaped, plain, format.bytes);
            memset(moment, 0, sizeof moment);
        }
    }
}

/* The record's order is only a naming of channels: feedback in an order equals feedback of moments named that way. */
static void orders(void **state) {
    (void)state;
    enum { DIM = 64 };
    rng r = {7};
    uint16_t order[DIM];
    static float renamed[DIM * DIM], again[DIM * (DIM - 1) / 2];
    make_moment(&r, DIM, 9);
    for (int p = 0; p < DIM; p++)
        order[p] = (uint16_t)(p * 29 % DIM);
    for (int a = 0; a < DIM; a++)
        for (int b = 0; b < DIM; b++)
            renamed[a * DIM + b] = moment[order[a] * DIM + order[b]];
    assert_ok(quire_channel_feedback(moment, order, DIM, feedback));
    assert_ok(quire_channel_feedback(renamed, NULL, DIM, again));
    assert_memory_equal(feedback, again, sizeof again);
    order[3] = order[4];
    assert_status(quire_channel_feedback(moment, order, DIM, feedback), QUIRE_E_INVALID);
}

extern const quire_row_kernels test_rows_8_lanes, test_rows_16_lanes; /* rows_*_lanes.c: widths of other machines */

static void every_level_the_same(void **state) {
    (void)state;
    rng r = {8};
    const quire_row_kernels *best[8] = {&test_rows_8_lanes, &test_rows_16_lanes};
    int n = 2;
    for (int i = 0; quire__kernel_level(i) && n < 8; i++) {
        quire_kernels kernels;
        if (quire__kernels_init(&kernels, quire__kernel_level(i)) == QUIRE_OK)
            best[n++] = kernels.rows;
    }
    assert_true(n >= 3);
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
                assert_ok(quire_channel_feedback(moment, NULL, dim, feedback));
                quire__page_encode(&format, k, v, skip, shaped);
                quire__side_shape(&format.k, k, skip, feedback, shaped);
                for (int i = 0; i < n; i++) {
                    memset(other, 0xa5, format.bytes);
                    best[i]->seal(&format, k, v, skip, other);
                    best[i]->shape(&format.k, k, skip, feedback, other);
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_fall_where_nobody_looks),
        cmocka_unit_test(independent_channels_are_rounded_plainly),
        cmocka_unit_test(orders),
        cmocka_unit_test(every_level_the_same),
        cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
