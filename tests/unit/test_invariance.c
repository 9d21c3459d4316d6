/* What a query gets depends on positions alone. Everything here is compared bit for bit. */
#include <stdio.h>
#include <string.h>

#include "kit.h"

enum { H = 4, G = 2, D = 64, CONTEXT = 1110, ROWS = 90, N_OUT = ROWS * H * D };

static const char *const PAIRS[] = {"none", "k8v8", "k8v4",     "k4v4",    "tq3",
                                    "mlx4", "q4_0", "tqp4:vt2", "km4:vt4", "km3:vt3"};
enum { N_PAIRS = sizeof PAIRS / sizeof *PAIRS };

/* Which pairs run where a sweep is thinned out: the count goes on from test to test, so that each
 * test meets other pairs. */
static int sweep;
enum { SWEEP = 3 };

static void open_pool(fixture *f, const char *kv, int window) {
    fixture_init(f, 1, H, G, D, D, kv);
    f->layer[0].window = window;
    f->layer[0].keep = window ? 5 : 0;
    fixture_open(f);
}

/* Rows CONTEXT .. CONTEXT+ROWS-1 of a sequence filled in chunks of `fill` and continued in
 * chunks of `chunk`. */
static void outputs(fixture *f, const source *s, int fill, int chunk, int n_workers, float *out) {
    quire_seq *seq;
    assert_ok(quire_seq_create(f->pool, &seq));
    feed(f, seq, s, CONTEXT, fill, 1, 0, NULL);
    feed(f, seq, s, ROWS, chunk, n_workers, 0, out);
    assert_ok(quire_seq_free(seq));
}

static void expect_same(const float *a, const float *b, const char *kv, const char *what) {
    if (memcmp(a, b, N_OUT * sizeof *a) == 0)
        return;
    for (int i = 0; i < N_OUT; i++)
        if (a[i] != b[i])
            fail_msg("%s: %s: row %d, head %d differs: %.9g and %.9g", kv, what, i / (H * D),
                     i / D % H, (double)a[i], (double)b[i]);
}

static float wanted[N_OUT], got[N_OUT];

static void chunking(void **state) {
    (void)state;
    const source s = source_default(1);
    for (int p = 0; p < N_PAIRS; p++)
        for (int window = 0; window <= 700; window += 700) {
            if (!sweep_takes(&sweep, SWEEP))
                continue;
            fixture f;
            open_pool(&f, PAIRS[p], window);
            outputs(&f, &s, 512, ROWS, 1, wanted);
            const int chunks[] = {1, 7, 9, 64}, fills[] = {1, 37, 64, 500};
            for (int i = 0; i < 4; i++) {
                outputs(&f, &s, fills[i], chunks[i], 1, got);
                expect_same(wanted, got, PAIRS[p], "chunking");
            }
            fixture_close(&f);
        }
}

static void workers(void **state) {
    (void)state;
    const source s = source_default(2);
    for (int p = 0; p < N_PAIRS; p++) {
        if (!sweep_takes(&sweep, SWEEP))
            continue;
        fixture f;
        open_pool(&f, PAIRS[p], 0);
        outputs(&f, &s, 512, 5, 1, wanted); /* five rows: few enough to be split over chunks */
        for (int n = 2; n <= 8; n++) {
            outputs(&f, &s, 512, n % 2 ? 5 : 90, n, got);
            expect_same(wanted, got, PAIRS[p], "workers");
        }
        fixture_close(&f);
    }
}

static void neighbours(void **state) {
    (void)state;
    const source s = source_default(3);
    for (int p = 0; p < N_PAIRS; p++) {
        if (!sweep_takes(&sweep, SWEEP))
            continue;
        fixture f;
        open_pool(&f, PAIRS[p], 0);
        outputs(&f, &s, 512, 1, 1, wanted);
        quire_seq *seq[4];
        source other[3];
        for (int i = 0; i < 4; i++)
            assert_ok(quire_seq_create(f.pool, &seq[i]));
        feed(&f, seq[0], &s, CONTEXT, 512, 1, 0, NULL);
        for (int i = 0; i < 3; i++) {
            other[i] = source_default(100 + (uint64_t)i);
            feed(&f, seq[i + 1], &other[i], 50 + 700 * i, 512, 1, 0, NULL);
        }
        static float out[(ROWS + 200) * H * D];
        rng r = {4};
        for (int done = 0;
             done < ROWS;) { /* decode and prefill rows mixed, this sequence now first, now last */
            const int now = done + 13 < ROWS ? 1 + rng_below(&r, 13) : ROWS - done,
                      place = rng_below(&r, 4);
            step_item items[4];
            int before = 0;
            for (int i = 0, j = 0; i < 4; i++) {
                if (i == place)
                    items[i] = (step_item){seq[0], &s, now};
                else {
                    items[i] = (step_item){seq[j + 1], &other[j],
                                           rng_below(&r, 3) ? rng_below(&r, 40) : 1};
                    if (i < place)
                        before += items[i].n_tokens;
                    j++;
                }
            }
            assert_ok(step(&f, items, 4, &(step_options){.n_workers = 2}, out));
            memcpy(got + done * H * D, out + before * H * D, (size_t)(now * H * D) * sizeof *got);
            done += now;
        }
        expect_same(wanted, got, PAIRS[p], "neighbours");
        fixture_close(&f);
    }
}

static void allocation_order(void **state) {
    (void)state;
    const source s = source_default(5);
    for (int p = 0; p < N_PAIRS; p++) {
        if (!sweep_takes(&sweep, SWEEP))
            continue;
        fixture f;
        open_pool(&f, PAIRS[p], 0);
        outputs(&f, &s, 512, ROWS, 1, wanted);
        quire_seq *seq[6]; /* leave holes of all sizes behind */
        for (int i = 0; i < 6; i++) {
            assert_ok(quire_seq_create(f.pool, &seq[i]));
            feed(&f, seq[i], &s, 100 + 70 * i, 64, 1, 0, NULL);
        }
        for (int i = 0; i < 6; i += 2)
            assert_ok(quire_seq_free(seq[i]));
        outputs(&f, &s, 100, 30, 1, got);
        expect_same(wanted, got, PAIRS[p], "allocation order");
        fixture_close(&f);
    }
}

static void fork_and_continue(void **state) {
    (void)state;
    const source s = source_default(6), other = source_default(7);
    for (int p = 0; p < N_PAIRS; p++) {
        if (!sweep_takes(&sweep, SWEEP))
            continue;
        fixture f;
        open_pool(&f, PAIRS[p], 0);
        outputs(&f, &s, 512, ROWS, 1, wanted);
        const int at[] = {CONTEXT, CONTEXT - 1, 1088, 1089, 64};
        for (int i = 0; i < 5; i++) {
            quire_seq *parent, *child;
            assert_ok(quire_seq_create(f.pool, &parent));
            feed(&f, parent, &s, at[i], 512, 1, 0, NULL);
            assert_ok(quire_seq_fork(parent, &child));
            feed(&f, parent, &other, 150, 50, 1, 0,
                 NULL); /* another continuation over the same prefix */
            feed(&f, child, &s, CONTEXT - at[i], 512, 1, 0, NULL);
            feed(&f, child, &s, ROWS, 11, 1, 0, got);
            expect_same(wanted, got, PAIRS[p], "fork");
            assert_ok(quire_seq_free(parent));
            assert_ok(quire_seq_free(child));
        }
        fixture_close(&f);
    }
}

static void saved_pages(
    void **state) /* sealed pages copied to another pool serve like the ones that were computed */
{
    (void)state;
    const source s = source_default(8);
    for (int p = 0; p < N_PAIRS; p++) {
        if (!sweep_takes(&sweep, SWEEP))
            continue;
        fixture f, g;
        open_pool(&f, PAIRS[p], 0);
        open_pool(&g, PAIRS[p], 0);
        outputs(&f, &s, 512, ROWS, 1, wanted);
        quire_seq *from, *to;
        assert_ok(quire_seq_create(f.pool, &from));
        assert_ok(quire_seq_create(g.pool, &to));
        feed(&f, from, &s, CONTEXT, 512, 1, 0, NULL);
        for (int page = 0; page < CONTEXT / 64; page++) {
            const size_t n = quire_seq_page_bytes(f.pool, page);
            void *bytes = malloc(n);
            assert_ok(quire_seq_page_save(from, page, bytes, n));
            assert_ok(quire_seq_page_load(to, bytes, n));
            free(bytes);
        }
        assert_int_equal(quire_seq_length(to), CONTEXT / 64 * 64);
        feed(&g, to, &s, CONTEXT % 64, 512, 1, 0, NULL);
        feed(&g, to, &s, ROWS, ROWS, 1, 0, got);
        expect_same(wanted, got, PAIRS[p], "saved pages");
        fixture_close(&f);
        fixture_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunking),          cmocka_unit_test(workers),
        cmocka_unit_test(neighbours),        cmocka_unit_test(allocation_order),
        cmocka_unit_test(fork_and_continue), cmocka_unit_test(saved_pages),
    };
    if (level_is_missing())
        return LEFT_OUT;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
