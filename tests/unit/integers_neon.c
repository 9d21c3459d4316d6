/* The integers that the NEON kernels make of q against channel scales, exactly the reference's:
 * every codec that has them, every head size, one row to four, one page and two. Compiled once
 * per feature level, as the kernels are. */
#include "kern/neon/packed_tmpl.h"

#include <stdio.h>

#include "base/cpu.h"
#include "base/element.h"

#include "kit.h"

static uint8_t record[PAGES][256 * QUIRE_DIM_MAX];
static set_query got[PAGES];
static float q[SET][QUIRE_DIM_MAX], zero[QUIRE_DIM_MAX], q_unit[SET];
static float16_t q_fp16[SET][QUIRE_DIM_MAX], q_magnitude[SET][QUIRE_DIM_MAX],
    k_scale_fp16[PAGES][QUIRE_DIM_MAX];

/* Ordinary rows; tiny and huge ones; all channels at the largest; one channel alone; nothing. */
static void make_query(rng *r, int dim, int how, float *to) {
    rng_fill(r, to, (size_t)dim, how == 1 ? 1e-20f : how == 2 ? 1e20f : 1);
    for (int d = 0; d < dim; d++)
        to[d] = how == 3 ? (rng_next(r) & 1 ? -3.0f : 3.0f) : how == 4 ? 0 : to[d];
    if (how == 4)
        to[rng_below(r, dim)] = -1e-7f;
    if (how == 5)
        memset(to, 0, (size_t)dim * sizeof *to);
}

/* Scales of one size; spread over all of fp16; the smallest and the largest numbers; zero. */
static void make_scales(rng *r, const quire_side_format *k, int how, uint8_t *page) {
    for (int d = 0; d < k->dim; d++) {
        const float x = how == 0   ? 0.1f + (float)rng_uniform(r)
                        : how == 1 ? ldexpf(1 + (float)rng_uniform(r), rng_below(r, 39) - 24)
                        : how == 2 ? (rng_below(r, 2) ? 65504.0f : 0x1p-24f)
                        : how == 3 ? 0x1p-24f * (float)rng_below(r, 3)
                                   : 0;
        quire__put_element(k->type, page + k->params, (size_t)d, x);
    }
}

static void compare(const quire_side_format *k, int rows, int p) {
    static const int order[8] = {0, 2, 1, 3,
                                 4, 6, 5, 7}; /* where a channel lies among eight: FORMAT.md */
    for (int row = 0; row < rows; row++) {
        quire_int_query wanted;
        quire__ref_quantize_query(k, record[p], q[row], &wanted);
        const int pair = row / 2, lane = row % 2 * 2;
        float scale[4], centre[4];
        vst1q_f32(scale, got[p].scale[0][pair]);
        vst1q_f32(centre, got[p].centre[0][pair]);
        assert_true(scale[lane] == wanted.scale[0]);
        assert_true(centre[lane] == 0.5f * (float)wanted.centre[0]);
        for (int d = 0; d < k->dim; d++) {
            const int x =
                (int8_t)got[p].q8[d / 8][pair][row % 2 * OPERAND_BYTES / 2 + order[d % 8]];
            if (x != wanted.plane[0][d])
                fail_msg("%s, dim %d, %d rows, page %d, row %d, channel %d: %d, not %d",
                         quire_codec_name(k->codec), k->dim, rows, p, row, d, x,
                         wanted.plane[0][d]);
        }
    }
}

static void check(const quire_side_format *k) {
    channel_page page[PAGES];
    channel_rows rows = {.unit = q_unit};
    for (int row = 0; row < SET; row++) {
        q_unit[row] = query_to_fp16(q[row], k->dim, q_fp16[row], q_magnitude[row]);
        rows.row[row] = q[row];
        rows.fp16[row] = q_fp16[row];
        rows.magnitude[row] = q_magnitude[row];
    }
    for (int p = 0; p < PAGES; p++)
        page[p] = (channel_page){k_scale_fp16[p], zero,
                                 scales_to_fp16(record[p] + k->params, k->dim, k_scale_fp16[p])};
#define CHECK(n, pages)                                                                            \
    quantize_by_channels(&rows, n, page, pages, k, got);                                           \
    for (int p = 0; p < pages; p++)                                                                \
        compare(k, n, p);
    CHECK(1, 1) CHECK(2, 1) CHECK(3, 1) CHECK(4, 1) CHECK(1, 2) CHECK(2, 2) CHECK(3, 2) CHECK(4, 2)
}

static void channel_queries(void **state) {
    static const quire_codec codecs[] = {QUIRE_CODEC_KC4, QUIRE_CODEC_KC3, QUIRE_CODEC_KC2,
                                         QUIRE_CODEC_KM4, QUIRE_CODEC_KM3};
    static const int dims[] = {32, 48, 64, 80, 96, 112, 128, 192, 256, 576};
    rng r = {11};
    (void)state;
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (int how = 0; how < 40; how++) {
                quire_format f;
                assert_int_equal(quire__format_init(&f, (quire_pair){codecs[c], QUIRE_CODEC_VT4},
                                                    dims[i], dims[i], QUIRE_F16),
                                 QUIRE_OK);
                for (int p = 0; p < PAGES; p++)
                    make_scales(&r, &f.k, (how + p) % 5, record[p]);
                for (int row = 0; row < SET; row++)
                    make_query(&r, dims[i], how < 5 ? 0 : (how + row) % 6, q[row]);
                check(&f.k);
            }
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(channel_queries)};
    unsigned needed = QUIRE_CPU_NEON;
#if defined(__ARM_FEATURE_DOTPROD)
    needed |= QUIRE_CPU_DOTPROD | QUIRE_CPU_FP16;
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    needed |= QUIRE_CPU_I8MM | QUIRE_CPU_FP16_FML;
#endif
    if ((quire__cpu_features() & needed) != needed) {
        printf("integers: left out %s: this machine does not have the instructions\n", LEVEL_NAME);
        return LEFT_OUT;
    }
    (void)attend, (void)workspace_bytes, (void)serves;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
