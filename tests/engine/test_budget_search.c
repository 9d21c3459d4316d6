/* test_budget_search.c: choosing rungs under a budget, on ladders small enough to try every way. */
#include "calibrate/budget_search.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { LAYERS = 4, RUNGS = 4 };

typedef struct fixture {
    double bytes[LAYERS * RUNGS], loss[LAYERS * RUNGS];
    int32_t n_allowed[LAYERS];
    quire__ladders ladders;
} fixture;

/* Every layer has the same rungs; losses are `share` of these. */
static void make(fixture *f, const double share[LAYERS], const double loss[RUNGS]) {
    static const double bytes[RUNGS] = {1600, 800, 400, 200};
    for (int i = 0; i < LAYERS; i++) {
        f->n_allowed[i] = RUNGS;
        for (int r = 0; r < RUNGS; r++) {
            f->bytes[i * RUNGS + r] = bytes[r];
            f->loss[i * RUNGS + r] = share[i] * loss[r];
        }
    }
    f->ladders = (quire__ladders){LAYERS, RUNGS, f->bytes, f->loss, f->n_allowed};
}

static const double EVEN[LAYERS] = {.25, .25, .25, .25}, ONE_MATTERS[LAYERS] = {.01, .01, .97, .01};
static const double LOSS[RUNGS] = {0, .001, .01, .1};

static void test_no_limit_that_binds_leaves_all_raw(void **state) {
    (void)state;
    fixture f;
    int32_t rung[LAYERS];
    make(&f, EVEN, LOSS);
    const quire__place place = quire__budget_search(&f.ladders, 6400, INFINITY, rung);
    assert_true(place.bytes == 6400 && place.loss == 0);
    for (int i = 0; i < LAYERS; i++)
        assert_int_equal(rung[i], 0);
}

static void test_the_layer_that_matters_keeps_its_bits(void **state) {
    (void)state;
    fixture f;
    int32_t rung[LAYERS];
    make(&f, ONE_MATTERS, LOSS);
    const quire__place place = quire__budget_search(&f.ladders, 2300, INFINITY, rung);
    assert_true(place.bytes <= 2300);
    assert_true(rung[2] < rung[0] && rung[2] < rung[1] && rung[2] < rung[3]);
}

static void test_loss_is_a_bound(void **state) {
    (void)state;
    fixture f;
    int32_t rung[LAYERS];
    make(&f, ONE_MATTERS, LOSS);
    for (double most = 0; most < .2; most += .003) {
        const quire__place place = quire__budget_search(&f.ladders, 0, most, rung);
        assert_true(place.loss <= most);
        double bytes = 0, loss = 0;
        for (int i = 0; i < LAYERS; i++) {
            bytes += f.bytes[i * RUNGS + rung[i]];
            loss += f.loss[i * RUNGS + rung[i]];
        }
        assert_true(place.bytes == bytes && place.loss == loss);
    }
    assert_true(quire__budget_search(&f.ladders, 0, 0, rung).bytes == 6400);
    assert_true(quire__budget_search(&f.ladders, 0, 1, rung).bytes == 800);
}

static void test_layers_that_may_not_stay_where_they_are(void **state) {
    (void)state;
    fixture f;
    int32_t rung[LAYERS];
    make(&f, EVEN, LOSS);
    f.n_allowed[1] = 1;
    f.n_allowed[3] = 2;
    const quire__place place = quire__budget_search(&f.ladders, 0, INFINITY, rung);
    assert_int_equal(rung[1], 0);
    assert_int_equal(rung[3], 1);
    assert_true(place.bytes == 200 + 1600 + 200 + 800);
}

/* 100 bytes too few: the place returned is the least there is. */
static void test_what_cannot_be_is_told_by_the_bytes(void **state) {
    (void)state;
    fixture f;
    int32_t rung[LAYERS];
    make(&f, EVEN, LOSS);
    assert_true(quire__budget_search(&f.ladders, 700, INFINITY, rung).bytes == 800);
}

/* The first rung down costs nearly as much as the second and saves less: short steps alone would
 * stop before it. */
static void test_a_bad_rung_is_passed_over(void **state) {
    (void)state;
    static const double bumpy[RUNGS] = {0, .009, .010, .1};
    fixture f;
    int32_t rung[LAYERS];
    make(&f, EVEN, bumpy);
    quire__budget_search(&f.ladders, 0, .0101, rung);
    for (int i = 0; i < LAYERS; i++)
        assert_int_equal(rung[i], 2);
}

/* A long step overshoots; what is left over buys something back. */
static void test_no_room_is_left_unused(void **state) {
    (void)state;
    static const double bumpy[RUNGS] = {0, .009, .010, .1};
    fixture f;
    int32_t rung[LAYERS];
    make(&f, EVEN, bumpy);
    const quire__place place = quire__budget_search(&f.ladders, 5600, INFINITY, rung);
    assert_true(place.bytes == 5600);
}

/* Against every combination: no more than one layer's largest step away from the best in bytes. */
static void test_close_to_the_best(void **state) {
    (void)state;
    static const double share[LAYERS] = {.5, .05, .15, .3};
    fixture f;
    make(&f, share, LOSS);
    for (double most = .0005; most < .1; most *= 1.3) {
        int32_t rung[LAYERS];
        const quire__place place = quire__budget_search(&f.ladders, 0, most, rung);
        double best = INFINITY;
        for (int c = 0; c < RUNGS * RUNGS * RUNGS * RUNGS; c++) {
            double bytes = 0, loss = 0;
            for (int i = 0, left = c; i < LAYERS; i++, left /= RUNGS) {
                bytes += f.bytes[i * RUNGS + left % RUNGS];
                loss += f.loss[i * RUNGS + left % RUNGS];
            }
            best = loss <= most ? fmin(best, bytes) : best;
        }
        assert_true(place.bytes <= best + 800);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_limit_that_binds_leaves_all_raw),
        cmocka_unit_test(test_the_layer_that_matters_keeps_its_bits),
        cmocka_unit_test(test_loss_is_a_bound),
        cmocka_unit_test(test_layers_that_may_not_stay_where_they_are),
        cmocka_unit_test(test_what_cannot_be_is_told_by_the_bytes),
        cmocka_unit_test(test_a_bad_rung_is_passed_over),
        cmocka_unit_test(test_no_room_is_left_unused),
        cmocka_unit_test(test_close_to_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
