/* The order of codes: every bit of a section belongs to exactly one code, for every width and
 * head size. */
#include <string.h>

#include "codec/codec.h"
#include "codec/layout.h"
#include "codec/hadamard.h"
#include "kit.h"

#include <math.h>

enum { T = 64 };
typedef void (*pack_function)(int bits, int n_mixed, int dim, const uint8_t *codes,
                              uint8_t *section);
typedef void (*unpack_function)(int bits, int n_mixed, int dim, const uint8_t *section,
                                uint8_t *codes);

static void v_pack(int bits, int n_mixed, int dim, const uint8_t *codes, uint8_t *section) {
    assert_int_equal(n_mixed, 0);
    quire__v_pack(bits, dim, codes, section);
}
static void v_unpack(int bits, int n_mixed, int dim, const uint8_t *section, uint8_t *codes) {
    assert_int_equal(n_mixed, 0);
    quire__v_unpack(bits, dim, section, codes);
}

static uint8_t codes[T * QUIRE_DIM_MAX], again[T * QUIRE_DIM_MAX], section[T * QUIRE_DIM_MAX],
    other[T * QUIRE_DIM_MAX];

/* All bits of a code at dim d: mixed blocks have a bit more in their first eight dims, a bit
 * less in the others. */
static uint8_t mask_of(int bits, int n_mixed, int d) {
    const int own = d >= 16 * n_mixed ? bits : d % 16 < 8 ? bits + 1 : bits - 1;
    return (uint8_t)((1u << own) - 1);
}

static void check_width(pack_function pack, unpack_function unpack, int bits, int n_mixed,
                        int dim) {
    const size_t n = (size_t)(T * dim), bytes = n * (size_t)bits / 8;
    rng r = {(uint64_t)(bits * 1000 + dim)};
    /* all ones fill the section: no padding bit, and nothing outside */
    for (size_t i = 0; i < n; i++)
        codes[i] = mask_of(bits, n_mixed, (int)i % dim);
    memset(section, 0, sizeof section);
    pack(bits, n_mixed, dim, codes, section);
    for (size_t i = 0; i < sizeof section; i++)
        assert_int_equal(section[i], i < bytes ? 255 : 0);
    /* random codes survive, and random sections do: the map is one to one */
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)rng_next(&r) & mask_of(bits, n_mixed, (int)i % dim);
    memset(section, 0, bytes);
    pack(bits, n_mixed, dim, codes, section);
    unpack(bits, n_mixed, dim, section, again);
    assert_memory_equal(codes, again, n);
    for (size_t i = 0; i < bytes; i++)
        section[i] = (uint8_t)rng_next(&r);
    unpack(bits, n_mixed, dim, section, codes);
    memset(other, 0, bytes);
    pack(bits, n_mixed, dim, codes, other);
    assert_memory_equal(section, other, bytes);
}

static void every_width_and_size(void **state) {
    (void)state;
    const int k_bits[] = {1, 2, 3, 4, 8}, v_bits[] = {2, 3, 4, 8};
    for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP) {
        for (int i = 0; i < 5; i++)
            check_width(quire__k_pack, quire__k_unpack, k_bits[i], 0, dim);
        for (int bits = 3; bits <= 4; bits++)
            check_width(quire__k_pack, quire__k_unpack, bits, dim / 32, dim);
        for (int i = 0; i < 4; i++)
            check_width(v_pack, v_unpack, v_bits[i], 0, dim);
    }
}

/* A few places written out by hand from docs/FORMAT.md's shapes for D = 128. */
static void known_places(void **state) {
    (void)state;
    const int dim = 128;
    for (int t = 0; t < T; t++)
        for (int d = 0; d < dim; d++) {
            const int swap[] = {0, 2, 1, 3};
            memset(codes, 0, sizeof codes);
            codes[t * dim + d] = 15;
            memset(section, 0, sizeof section);
            quire__k_pack(4, 0, dim, codes, section); /* [T/16][D/64][8][4][16 B] */
            const int k = ((t / 16 * 2 + d / 64) * 8 + t % 16 / 2) * 64 + d % 64 / 16 * 16 +
                          t % 2 * 8 + (d & 4) + swap[d % 4];
            assert_int_equal(section[k], d / 8 % 2 ? 0xf0 : 0x0f);
            codes[t * dim + d] = 255;
            memset(section, 0, sizeof section);
            quire__k_pack(4, dim / 32, dim, codes, section);
            assert_int_equal(section[k], d < 64      ? (d / 8 % 2 ? 0xe0 : 0x1f)
                                         : d / 8 % 2 ? 0xf0
                                                     : 0x0f);
            codes[t * dim + d] = 15;
            memset(section, 0, sizeof section);
            quire__v_pack(4, dim, codes, section); /* [D/16][8][4][16 B] */
            const int v = (d / 16 * 8 + d % 16 / 2) * 64 + t % 16 / 4 * 16 + d % 2 * 8 +
                          t / 16 % 2 * 4 + t % 4;
            assert_int_equal(section[v], t / 32 ? 0xf0 : 0x0f);
        }
}

static void rotation_is_orthogonal(void **state) {
    (void)state;
    rng r = {3};
    for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP) {
        float x[QUIRE_DIM_MAX], y[QUIRE_DIM_MAX];
        rng_fill(&r, x, (size_t)dim, 1);
        memcpy(y, x, sizeof y);
        double before = 0, after = 0, back = 0;
        quire__rotate(y, dim);
        for (int d = 0; d < dim; d++) {
            before += (double)x[d] * x[d];
            after += (double)y[d] * y[d];
        }
        assert_true(fabs(after / before - 1) < 1e-5);
        quire__unrotate(y, dim);
        for (int d = 0; d < dim; d++)
            back += ((double)x[d] - y[d]) * ((double)x[d] - y[d]);
        assert_true(sqrt(back / before) < 1e-6);
        quire__project(y, dim);
        quire__unproject(y, dim);
        back = 0;
        for (int d = 0; d < dim; d++)
            back += ((double)x[d] - y[d]) * ((double)x[d] - y[d]);
        assert_true(sqrt(back / before) < 2e-6);
    }
}

/* One large coordinate, wherever it is, must not stay large: even for powers of two, else like
 * normal samples, whose largest of 64 x 576 is about 5. */
static void rotation_spreads_spikes(void **state) {
    (void)state;
    for (int dim = QUIRE_DIM_MIN; dim <= QUIRE_DIM_MAX; dim += QUIRE_DIM_STEP)
        for (int at = 0; at < dim; at += 5) {
            float x[QUIRE_DIM_MAX] = {0}, largest = 0;
            x[at] = 1;
            quire__rotate(x, dim);
            for (int d = 0; d < dim; d++)
                largest = fmaxf(largest, fabsf(x[d]));
            const int power_of_two = (dim & (dim - 1)) == 0;
            assert_true(largest <= (power_of_two ? 1.0001 : 5.5) / sqrt(dim));
        }
}

/* Records of foreign origin: what kernels rely on is refused when it does not hold. */
static void parameters_are_checked(void **state) {
    (void)state;
    const struct {
        const char *kv;
        bool may_be_negative; /* the first parameter of V */
    } cases[] = {{"kc4:vt4", false},   {"kc4:vt8", false},  {"kc4:tq3", false},
                 {"q8_0:q8_0", false}, {"q4_0:q4_0", true}, {"a4:a4", true}};
    static const uint16_t minus_one = 0xBC00, nan = 0x7E00, minus_zero = 0x8000;
    for (int i = 0; i < 6; i++) {
        quire_policy policy;
        quire_format f;
        assert_ok(quire_policy_parse(cases[i].kv, &policy));
        assert_ok(quire__format_init(&f, policy.pair, 128, 128, QUIRE_F16));
        uint8_t *record = calloc(1, f.bytes);
        assert_true(quire__side_valid(&f.k, record) && quire__side_valid(&f.v, record));
        memcpy(record + f.v.params, &minus_zero, sizeof minus_zero);
        assert_true(quire__side_valid(&f.v, record));
        memcpy(record + f.v.params, &minus_one, sizeof minus_one);
        assert_int_equal(quire__side_valid(&f.v, record), cases[i].may_be_negative);
        memcpy(record + f.v.params, &nan, sizeof nan);
        assert_false(quire__side_valid(&f.v, record));
        free(record);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_checked),
        cmocka_unit_test(every_width_and_size),
        cmocka_unit_test(known_places),
        cmocka_unit_test(rotation_is_orthogonal),
        cmocka_unit_test(rotation_spreads_spikes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
