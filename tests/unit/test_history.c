/* What was done to a sequence, and from which token on it is no longer what computing it from the
 * start gives: noted exactly where that is so, carried along, and cleared by a trim that takes it
 * away. */
#include <string.h>

#include "ledger.h"
#include "saved.h"

static const quire_rope ROPE = {.n_rot = 32, .base = 1e4f};
static const source SOURCE = {.seed = 5, .k_scale = 1, .v_scale = 1, .q_scale = 1};

static void open_pool_of(fixture *f, const char *kv) {
    fixture_init(f, 2, 2, 1, 32, 32, kv);
    f->options.max_seqs = 16;
    f->options.max_tokens = 1024;
    fixture_open(f);
}

static void assert_history(const quire_seq *seq, uint32_t wanted, int exact) {
    int32_t exact_tokens;
    assert_int_equal(quire_seq_history(seq, &exact_tokens), wanted);
    assert_int_equal(exact_tokens, exact);
}

static void assert_exact(const quire_seq *seq) { assert_history(seq, 0, quire_seq_length(seq)); }

/* Only a page that is decoded leaves a mark, and only from its first token on. */
static void trims(void **state) {
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        fixture f;
        fixture_init(&f, 2, 2, 1, 32, 32, "k8v4");
        f.options.max_tokens = 1024;
        f.options.exact_trim = kept;
        fixture_open(&f);
        quire_seq *seq = fed_seq(&f, &SOURCE, 300), *fork;
        assert_exact(seq);
        for (int n = 300; n >= 0; n--) {
            assert_ok(quire_seq_fork(seq, &fork));
            assert_ok(quire_seq_trim(fork, n));
            const bool exact = n % 64 == 0 || n > 256 || (n > 192 && kept);
            assert_history(fork, exact ? 0 : QUIRE_HISTORY_TRIMMED, exact ? n : n / 64 * 64);
            drop(fork);
        }
        /* It stays while tokens are added, and goes with the tokens it is about. */
        assert_ok(quire_seq_trim(seq, 150));
        feed(&f, seq, &SOURCE, 200, 64, 1, 0, NULL);
        assert_history(seq, QUIRE_HISTORY_TRIMMED, 128);
        assert_ok(quire_seq_trim(seq, 100)); /* deeper */
        assert_history(seq, QUIRE_HISTORY_TRIMMED, 64);
        feed(&f, seq, &SOURCE, 100, 64, 1, 0, NULL);
        assert_ok(quire_seq_trim(seq, 65));
        assert_history(seq, QUIRE_HISTORY_TRIMMED, 64);
        assert_ok(quire_seq_trim(seq, 64));
        assert_exact(seq);
        drop(seq);
        fixture_close(&f);
    }
    fixture f; /* raw pages are never decoded */
    open_pool_of(&f, "none");
    quire_seq *seq = fed_seq(&f, &SOURCE, 300);
    assert_ok(quire_seq_trim(seq, 70));
    assert_exact(seq);
    drop(seq);
    fixture_close(&f);
}

static void policies(void **state) {
    (void)state;
    fixture f;
    quire_policy policy;
    open_pool_of(&f, "none");
    quire_seq *full = fed_seq(&f, &SOURCE, 64), *open = fed_seq(&f, &SOURCE, 63),
              *empty = new_seq(&f);
    assert_ok(quire_policy_parse("none", &policy));
    assert_ok(quire_pool_requantize(f.pool, &policy)); /* the one that it has */
    assert_exact(full);
    assert_ok(quire_policy_parse("k8v4", &policy));
    assert_ok(quire_pool_requantize(f.pool, &policy));
    assert_history(full, QUIRE_HISTORY_REQUANTIZED, 0);
    assert_exact(open); /* nothing of it has been packed */
    assert_exact(empty);
    assert_ok(quire_pool_requantize_step(f.pool, 10, NULL));
    feed(&f, open, &SOURCE, 100, 64, 1, 0, NULL);
    assert_exact(open);
    assert_ok(quire_seq_trim(full, 0));
    assert_exact(full);
    drop(full), drop(open), drop(empty);
    fixture_close(&f);
}

static void shifts(void **state) {
    (void)state;
    fixture f;
    open_pool_of(&f, "k8v4");
    quire_seq *seq = fed_seq(&f, &SOURCE, 300), *fork;
    static const int from[] = {0, 1, 63, 64, 130, 256, 280};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        assert_ok(quire_seq_fork(seq, &fork));
        assert_ok(quire_seq_shift(fork, from[i], from[i] + 10, &ROPE, 1));
        assert_history(fork, QUIRE_HISTORY_SHIFTED, from[i] / 64 * 64);
        drop(fork);
    }
    assert_ok(quire_seq_shift(seq, 10, 10, &ROPE, 1)); /* nothing */
    assert_exact(seq);
    assert_ok(quire_seq_shift(seq, 256, 300, &ROPE, 1)); /* a trim */
    assert_exact(seq);
    assert_ok(quire_seq_shift(seq, 200, 210, &ROPE, 1));
    assert_ok(
        quire_seq_trim(seq, 150)); /* the mark went with the trim, which left one of its own */
    assert_history(seq, QUIRE_HISTORY_TRIMMED | QUIRE_HISTORY_SHIFTED, 128);
    drop(seq);
    fixture_close(&f);
}

/* Forks, lists and files carry it along. */
static void carried(void **state) {
    (void)state;
    fixture f, other, wide;
    open_pool_of(&f, "k8v4");
    open_pool_of(&other, "k8v8");
    fixture_init(&wide, 2, 2, 1, 32, 32, "k8v4");
    wide.options.raw = QUIRE_F32;
    wide.options.max_tokens = 1024;
    fixture_open(&wide);
    quire_seq *seq = fed_seq(&f, &SOURCE, 300), *copy, *place[2];
    const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};
    assert_ok(quire_seq_trim(seq, 150));
    assert_ok(quire_seq_fork(seq, &copy));
    assert_history(copy, QUIRE_HISTORY_TRIMMED, 128);
    drop(copy);
    quire_list list = {place, 0, 2};
    assert_ok(quire_list_merge(&list, &seq, 1));
    assert_ok(quire_list_extract(&list, 0, &copy));
    assert_history(list.seq[0], QUIRE_HISTORY_TRIMMED, 128);
    assert_history(copy, QUIRE_HISTORY_TRIMMED, 128);
    drop(copy);
    assert_ok(quire_list_clear(&list));

    quire_file *file;
    quire_file_info info;
    assert_ok(quire_seq_save(seq, saved_path("history"), NULL));
    assert_ok(quire_file_open(&file, saved_path("history")));
    quire_file_get_info(file, &info);
    assert_int_equal(info.history, QUIRE_HISTORY_TRIMMED);
    assert_int_equal(info.exact_tokens, 128);
    assert_ok(quire_seq_load(f.pool, file, NULL, &copy));
    assert_history(copy, QUIRE_HISTORY_TRIMMED, 128);
    drop(copy);
    assert_ok(quire_seq_load(f.pool, file, &reseal, &copy)); /* nothing had to be sealed again */
    assert_history(copy, QUIRE_HISTORY_TRIMMED, 128);
    drop(copy);
    assert_ok(quire_seq_load(other.pool, file, &reseal, &copy));
    assert_history(copy, QUIRE_HISTORY_TRIMMED | QUIRE_HISTORY_RESEALED, 0);
    drop(copy);
    quire_file_close(file);

    assert_ok(quire_seq_trim(seq, 60)); /* decoded, and all of it in the open page */
    assert_history(seq, QUIRE_HISTORY_TRIMMED, 0);
    drop(seq);
    seq = fed_seq(&f, &SOURCE, 60);
    assert_ok(quire_seq_save(seq, saved_path("open"), NULL));
    assert_ok(saved_load(other.pool, saved_path("open"), &reseal,
                         &copy)); /* no page to seal, the same raw type */
    assert_exact(copy);
    assert_ok(saved_load(wide.pool, saved_path("open"), &reseal, &copy));
    assert_history(copy, QUIRE_HISTORY_RESEALED, 0);
    drop(seq);
    fixture_close(&f);
    fixture_close(&other);
    fixture_close(&wide);
}

/* A file that says what cannot be. */
static void files_that_lie(void **state) {
    (void)state;
    fixture f;
    open_pool_of(&f, "k8v4");
    quire_seq *seq = fed_seq(&f, &SOURCE, 200), *copy;
    quire_file *file;
    quire_file_info info;
    assert_ok(quire_seq_save(seq, saved_path("lies"), NULL));
    assert_ok(quire_file_open(&file, saved_path("lies")));
    quire_file_get_info(file, &info);
    const size_t state_at = (size_t)info.sections[3].offset;
    quire_file_close(file);
    static const struct {
        uint8_t history, exact;
        bool possible;
    } cases[] = {{0, 200, true}, {0, 199, false}, {1, 200, false}, {1, 199, true},
                 {16, 0, false}, {15, 0, true},   {4, 201, false}};
    bytes all = file_read(saved_path("lies"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        all.data[state_at + 8] = cases[i].history;
        all.data[state_at + 12] = cases[i].exact;
        file_sign(all);
        file_write(saved_path("lies"), all.data, all.n);
        assert_status(saved_load(f.pool, saved_path("lies"), NULL, &copy),
                      cases[i].possible ? QUIRE_OK : QUIRE_E_FORMAT);
        if (cases[i].possible) {
            assert_history(copy, cases[i].history, cases[i].exact);
            drop(copy);
        }
    }
    free(all.data);
    drop(seq);
    fixture_close(&f);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(quire_history_name(QUIRE_HISTORY_TRIMMED), "trimmed");
    assert_string_equal(quire_history_name(QUIRE_HISTORY_REQUANTIZED), "requantized");
    assert_string_equal(quire_history_name(QUIRE_HISTORY_RESEALED), "resealed");
    assert_string_equal(quire_history_name(QUIRE_HISTORY_SHIFTED), "shifted");
    assert_null(quire_history_name(QUIRE_HISTORY_ALL));
    assert_int_equal(quire_seq_history(NULL, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trims),   cmocka_unit_test(policies),       cmocka_unit_test(shifts),
        cmocka_unit_test(carried), cmocka_unit_test(files_that_lie), cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, saved_teardown);
}
