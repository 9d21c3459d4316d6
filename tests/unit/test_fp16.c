/* fp16 and bf16 conversions, all values; and the small arithmetic that everything canonical
 * rests on. */
#include <math.h>
#include <string.h>

#include "base/fp16.h"
#include "base/real.h"
#include "base/size.h"
#include "kit.h"

/* Rounding to nearest even done the slow way: the candidates around x, in double. */
static double f16_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double magnitude =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void f16_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = quire__f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true((h & 0x3ff) ? isnan(x) : isinf(x));
            if (h & 0x3ff)
                continue; /* NaN payloads need not survive */
        } else {
            assert_true((double)x == f16_value((uint16_t)h));
        }
        assert_int_equal(quire__f32_to_f16(x), h);
    }
}

static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff;
         h++) { /* between each two neighbours: just below, at and just above the middle */
        const double low = f16_value((uint16_t)h), high = f16_value((uint16_t)(h + 1)),
                     middle = (low + high) / 2;
        const float m = (float)middle;
        assert_true((double)m == middle);
        assert_int_equal(quire__f32_to_f16(m), h + (h & 1));
        assert_int_equal(quire__f32_to_f16(nextafterf(m, 0)), h);
        assert_int_equal(quire__f32_to_f16(nextafterf(m, 1e9f)), h + 1);
        assert_int_equal(quire__f32_to_f16(-m), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(quire__f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(quire__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(quire__f32_to_f16(INFINITY), 0x7c00);
    assert_true((quire__f32_to_f16(NAN) & 0x7fff) > 0x7c00);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        const float low = quire__bf16_to_f32((uint16_t)h),
                    middle = quire__bits_float(h << 16 | 0x8000);
        assert_int_equal(quire__f32_to_bf16(low), h);
        assert_int_equal(quire__f32_to_bf16(middle), h + (h & 1));
        assert_int_equal(quire__f32_to_bf16(quire__bits_float(h << 16 | 0x7fff)), h);
        assert_int_equal(quire__f32_to_bf16(quire__bits_float(h << 16 | 0x8001)), h + 1);
    }
    assert_true(isnan(quire__bf16_to_f32(quire__f32_to_bf16(NAN))));
}

static void rounding(void **state) {
    (void)state;
    rng r = {1};
    for (int i = 0; i < 100000; i++) {
        const float x = (float)((rng_uniform(&r) - 0.5) * 40000), y = (float)rng_uniform(&r);
        assert_int_equal(quire__round(x), (int)rint((double)x));
        assert_int_equal(quire__round_product(x, y),
                         (int)rint((double)x * (double)y)); /* exact in double */
    }
    assert_int_equal(quire__round(2.5f), 2);
    assert_int_equal(quire__round(3.5f), 4);
    assert_int_equal(quire__round(-2.5f), -2);
}

static void powers_of_two(void **state) {
    (void)state;
    rng r = {2};
    for (int i = 0; i < 200000; i++) {
        const float x = (float)(-rng_uniform(&r) * 120);
        const double wanted = exp2((double)x);
        assert_true(fabs((double)quire__exp2(x) - wanted) <= 4e-7 * wanted);
    }
    assert_true(quire__exp2(0) == 1.0f);
    assert_true(quire__exp2(-1) == 0.5f);
    assert_true(quire__exp2(-1e30f) == 0x1p-126f);
    assert_true(quire__exp2(-INFINITY) == 0x1p-126f);
}

static void sizes(void **state) {
    (void)state;
    size_t x;
    assert_false(quire__add(SIZE_MAX, 1, &x));
    assert_true(quire__add(SIZE_MAX - 1, 1, &x) && x == SIZE_MAX);
    assert_false(quire__mul(SIZE_MAX / 2 + 1, 2, &x));
    assert_true(quire__mul(SIZE_MAX / 2, 2, &x) && x == SIZE_MAX - 1);
    assert_true(quire__mul(0, SIZE_MAX, &x) && x == 0);
    assert_int_equal(quire__align(1, 64), 64);
    assert_int_equal(quire__align(64, 64), 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(rounding),
        cmocka_unit_test(powers_of_two),
        cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
