/* Saved sequences: they go on bit for bit, and no damaged, foreign or hostile file changes
 * anything. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "saved.h"
#include "store_kit.h"

enum { N_MORE = 70 };

/* --------------------------------------------------- a restored sequence goes on like the first */

typedef enum variant { FULL, WINDOWED, MIXED } variant;

static void small_pool(fixture *f, size_t budget) {
    f->options.budget_bytes = budget;
    f->options.max_seqs = 4;
    f->options.max_batch_tokens = 64;
    f->options.max_workers = 1;
}

static void open_variant(fixture *f, const char *kv, variant v, quire_type raw) {
    fixture_init(f, 3, 4, 2, 64, 64, kv);
    f->options.raw = raw;
    small_pool(f, (size_t)8 << 20);
    for (int i = 0; i < 3; i++) {
        f->layer[i].k_dim = i == 1 ? 128 : 64;
        if (v == FULL || (v == MIXED && i == 0))
            continue;
        f->layer[i].window = v == WINDOWED ? 100 : 40;
        f->layer[i].keep = i == 2 ? 4 : 0;
        if (v == WINDOWED || i == 2) { /* windowed layers are raw unless they say otherwise */
            f->layer[i].k = f->options.policy.pair.k;
            f->layer[i].v = f->options.policy.pair.v;
        }
    }
    fixture_open(f);
}

static int trims; /* counts on from case to case, so that each has others */

static void check_goes_on(const char *kv, variant v, quire_type raw) {
    static const int lengths[] = {0, 1, 63, 64, 65, 128, 150, 331};
    const source s = source_default(7), other = source_default(8);
    fixture a, b;
    open_variant(&a, kv, v, raw);
    open_variant(&b, kv, v, raw);
    quire_seq *neighbour;
    assert_ok(quire_seq_create(b.pool, &neighbour));
    feed(&b, neighbour, &other, 90, 64, 1, 0, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        quire_seq *first, *restored, *cut;
        assert_ok(quire_seq_create(a.pool, &first));
        feed(&a, first, &s, lengths[i], 50, 1, 0, NULL);
        assert_ok(quire_seq_save(first, saved_path("goes-on"), NULL));
        for (int back = 0; back <= lengths[i] && back < 200;
             back += 23) { /* trims: exact, from packed values, refused */
            if (back > 0 && !sweep_takes(&trims, 5))
                continue;
            assert_ok(saved_load(b.pool, saved_path("goes-on"), NULL, &restored));
            assert_ok(quire_seq_fork(first, &cut));
            const quire_status trimmed = quire_seq_trim(cut, lengths[i] - back);
            assert_int_equal(trimmed, quire_seq_trim(restored, lengths[i] - back));
            if (trimmed == QUIRE_OK)
                assert_same_future(&a, cut, &b, restored, &s, N_MORE);
            assert_ok(quire_seq_free(cut));
            assert_ok(quire_seq_free(restored));
        }
        assert_ok(quire_seq_free(first));
    }
    quire_pool_stats stats;
    quire_pool_get_stats(a.pool, &stats);
    assert_int_equal(stats.free_bytes, stats.arena_bytes);
    fixture_close(&a);
    fixture_close(&b);
}

static void test_goes_on(void **state) {
    (void)state;
    static const char *const kv[] = {"none", "k8v4", "k4v4",    "tq4",
                                     "mlx4", "q8_0", "km4:vt4", "km3:vt3"};
    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++)
        check_goes_on(kv[i], i % 2 ? MIXED : FULL, QUIRE_F16);
    check_goes_on("k8v4", FULL, QUIRE_BF16);
    check_goes_on("k4v4", FULL, QUIRE_F32);
    check_goes_on("none", WINDOWED, QUIRE_F16);
    check_goes_on("k8v4", WINDOWED, QUIRE_F16);
    check_goes_on("k4v4", WINDOWED, QUIRE_BF16);
}

/* The bytes of a file are a function of the sequence: not of the pool's history, nor of what
 * pages held before. */
static void test_same_bytes(void **state) {
    (void)state;
    const source s = source_default(3), other = source_default(4);
    for (int v = FULL; v <= MIXED; v++) {
        bytes file[2];
        for (int round = 0; round < 2; round++) {
            fixture f;
            quire_seq *seq, *noise;
            open_variant(&f, "k4v4", (variant)v, QUIRE_F16);
            if (round == 1) {
                assert_ok(quire_seq_create(f.pool, &noise));
                feed(&f, noise, &other, 400, 64, 1, 0, NULL);
                assert_ok(quire_seq_free(noise));
            }
            assert_ok(quire_seq_create(f.pool, &seq));
            feed(&f, seq, &s, 300, round ? 7 : 64, 1, 0, NULL);
            assert_ok(quire_seq_save(seq, saved_path("bytes"), NULL));
            file[round] = file_read(saved_path("bytes"));
            fixture_close(&f);
        }
        assert_int_equal(file[0].n, file[1].n);
        assert_memory_equal(file[0].data, file[1].data, file[0].n);
        free(file[0].data), free(file[1].data);
    }
}

/* ------------------------------------------------------------------ damage */

typedef struct small_case {
    fixture f;
    quire_seq *live; /* must never notice */
    bytes file;
} small_case;

static const int32_t TOKENS[90] = {11, 22, 33, 44};

static void small_open(small_case *c) {
    const source s = source_default(1), other = source_default(2);
    quire_seq *seq;
    fixture_init(&c->f, 1, 2, 1, 32, 32, "km4:vt4");
    small_pool(&c->f, (size_t)2 << 20);
    fixture_open(&c->f);
    assert_ok(quire_seq_create(c->f.pool, &seq));
    feed(&c->f, seq, &s, 67, 64, 1, 0, NULL);
    quire_save_options o;
    quire_save_options_default(&o);
    o.identity = "a model";
    o.identity_bytes = 7;
    o.tokens = TOKENS;
    o.n_tokens = 68;
    assert_ok(quire_seq_save(seq, saved_path("small"), &o));
    assert_ok(quire_seq_free(seq));
    assert_ok(quire_seq_create(c->f.pool, &c->live));
    feed(&c->f, c->live, &other, 100, 64, 1, 0, NULL);
    c->file = file_read(saved_path("small"));
}

static void small_close(small_case *c) {
    free(c->file.data);
    fixture_close(&c->f);
}

static quire_load_options model_options(void) {
    quire_load_options o;
    quire_load_options_default(&o);
    o.identity = "a model";
    o.identity_bytes = 7;
    return o;
}

/* The live sequence's own bytes, and every number of the pool. */
static void snapshot(const small_case *c, quire_pool_stats *stats, bytes *live) {
    quire_pool_get_stats(c->f.pool, stats);
    assert_ok(quire_seq_save(c->live, saved_path("live"), NULL));
    *live = file_read(saved_path("live"));
}

static void assert_untouched(const small_case *c, const quire_pool_stats *before,
                             const bytes *live) {
    quire_pool_stats now;
    bytes file;
    snapshot(c, &now, &file);
    assert_memory_equal(&now, before, sizeof now);
    assert_int_equal(file.n, live->n);
    assert_memory_equal(file.data, live->data, file.n);
    free(file.data);
}

static quire_status try_load(const small_case *c, const uint8_t *data, size_t n) {
    const quire_load_options o = model_options();
    quire_seq *seq;
    file_write(saved_path("try"), data, n);
    const quire_status status = saved_load(c->f.pool, saved_path("try"), &o, &seq);
    if (status == QUIRE_OK)
        assert_ok(quire_seq_free(seq));
    else
        assert_null(seq);
    quire_file *file;
    quire_status alone = quire_file_open(&file, saved_path("try")); /* and without a pool */
    if (alone == QUIRE_OK)
        alone = quire_file_check(file);
    quire_file_close(file);
    assert_int_equal(alone, status);
    return status;
}

/* Bytes behind the header and the table of sections are all alike: under a sanitizer one in so
 * many. */
enum { HEAD = 1024, REPEATED = 7 };

static void test_flips(void **state) {
    (void)state;
    small_case c;
    quire_pool_stats before;
    bytes live;
    small_open(&c);
    snapshot(&c, &before, &live);
    assert_ok(try_load(&c, c.file.data, c.file.n));
    int sweep = 0;
    for (size_t i = 0; i < c.file.n; i++) {
        if (i >= HEAD && !sweep_takes(&sweep, REPEATED))
            continue;
        for (int bit = i < 512 ? 0 : (int)(i % 8); bit < (i < 512 ? 8 : (int)(i % 8) + 1); bit++) {
            c.file.data[i] ^= (uint8_t)(1 << bit);
            const quire_status status = try_load(&c, c.file.data, c.file.n);
            c.file.data[i] ^= (uint8_t)(1 << bit);
            if (status != (i < 8 ? QUIRE_E_FOREIGN : QUIRE_E_CORRUPT) &&
                !(i >= 8 && i < 12 && status == QUIRE_E_VERSION) &&
                !(i >= 12 && i < 16 && status == QUIRE_E_TRUNCATED))
                fail_msg("bit %d of byte %zu: %s", bit, i, quire_status_name(status));
        }
    }
    assert_untouched(&c, &before, &live);
    assert_ok(try_load(&c, c.file.data, c.file.n));
    free(live.data);
    small_close(&c);
}

static void test_truncations(void **state) {
    (void)state;
    small_case c;
    quire_pool_stats before;
    bytes live;
    small_open(&c);
    snapshot(&c, &before, &live);
    int sweep = 0;
    for (size_t n = 0; n < c.file.n; n++)
        if (n < HEAD || n > c.file.n - 64 || sweep_takes(&sweep, REPEATED))
            assert_int_equal(try_load(&c, c.file.data, n), QUIRE_E_TRUNCATED);
    uint8_t *longer = calloc(1, c.file.n + 1);
    memcpy(longer, c.file.data, c.file.n);
    assert_int_equal(try_load(&c, longer, c.file.n + 1), QUIRE_E_CORRUPT);
    free(longer);
    assert_untouched(&c, &before, &live);
    free(live.data);
    small_close(&c);
}

/* Someone who can compute checksums: any byte may become anything. What loads must be safe to
 * use. */
static void test_hostile(void **state) {
    (void)state;
    small_case c;
    quire_pool_stats before;
    bytes live;
    small_open(&c);
    snapshot(&c, &before, &live);
    const quire_load_options o = {.struct_size = sizeof o, .any_identity = true, .reseal = true};
    const source s = source_default(5);
    static const uint8_t values[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    const size_t n = c.file.n;
    uint8_t *changed = malloc(n);
    int n_loaded = 0, sweep = 0;
    rng r = {9};
    for (size_t i = 8; i < n; i += i < 1024 ? 1 : 1 + (size_t)rng_below(&r, 40))
        for (size_t j = 0; j < sizeof values; j++) {
            if (i >= 448 && !sweep_takes(&sweep, REPEATED))
                continue;
            memcpy(changed, c.file.data, n);
            changed[i] = values[j];
            const bool table = i < 448; /* sections may not be where file_sign looks for them */
            if (!table || (i >= 64 && (i - 64) % 48 >= 24 && (i - 64) % 48 < 40))
                file_sign((bytes){changed, n});
            file_write(saved_path("try"), changed, n);
            quire_seq *seq;
            const quire_status status = saved_load(c.f.pool, saved_path("try"), &o, &seq);
            if (status == QUIRE_OK) {
                n_loaded++;
                feed(&c.f, seq, &s, 66, 33, 1, 0, NULL);
                assert_ok(step(&c.f, &(step_item){seq, &s, 1}, 1, NULL, NULL));
                const quire_status cut = quire_seq_trim(seq, quire_seq_length(seq) / 3);
                assert_true(cut == QUIRE_OK || cut == QUIRE_E_GONE);
                assert_ok(quire_seq_free(seq));
            }
        }
    assert_true(n_loaded > 100); /* codes, token ids, padding */
    quire_pool_stats now;
    quire_pool_get_stats(c.f.pool, &now);
    assert_int_equal(now.free_bytes, before.free_bytes);
    assert_int_equal(now.n_seqs, before.n_seqs);
    bytes after;
    snapshot(&c, &now, &after);
    assert_memory_equal(after.data, live.data, live.n);
    free(after.data), free(live.data), free(changed);
    small_close(&c);
}

static void add64(uint8_t *at, uint64_t more) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | at[i];
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)((x + more) >> 8 * i);
}

/* Sizes that do not fit, in a table whose own checksum is right. */
static void test_hostile_table(void **state) {
    (void)state;
    small_case c;
    small_open(&c);
    const size_t n_sections = 5;
    static const uint64_t sizes[] = {
        0, 1, 63, 65, 1u << 20, UINT32_MAX, INT64_MAX, UINT64_MAX - 63, UINT64_MAX};
    for (size_t section = 0; section < n_sections; section++)
        for (size_t field = 8; field <= 16; field += 8)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                if (section == 0 && field == 16 && sizes[i] < 64)
                    continue; /* only another identity, with some zeros at its end */
                uint8_t *changed = malloc(c.file.n), *at = changed + 64 + 48 * section + field;
                memcpy(changed, c.file.data, c.file.n);
                for (int b = 0; b < 8; b++)
                    at[b] = (uint8_t)(sizes[i] >> 8 * b);
                file_sign_header((bytes){changed, c.file.n});
                const quire_status status = try_load(&c, changed, c.file.n);
                const bool same = memcmp(changed + 64, c.file.data + 64, 48 * n_sections) == 0;
                assert_int_equal(status, same ? QUIRE_OK : QUIRE_E_FORMAT);
                free(changed);
            }
    small_close(&c);
}

/* A file with nothing in it that says, under a right checksum, how much its tokens or its state
 * take: not read at all. */
static void test_hostile_sizes(void **state) {
    (void)state;
    small_case c;
    small_open(&c);
    static const uint64_t much = (uint64_t)1 << 31, most = (uint64_t)1 << 40;
    for (size_t section = 1; section <= 3; section++)
        for (int is_most = 0; is_most < 2; is_most++) {
            const uint64_t more = is_most && section != 2 ? most : much;
            bytes file = {malloc(c.file.n), c.file.n};
            memcpy(file.data, c.file.data, c.file.n);
            uint8_t *table = file.data + 64;
            for (size_t i = section; i < 5; i++) /* it grows, and those behind it move */
                add64(table + 48 * i + (i == section ? 16 : 8), more);
            add64(file.data + 16, more);
            file_sign_header(file);
            file_write(saved_path("sparse"), file.data, file.n);
            free(file.data);
            quire_file *opened;
            const quire_status made =
                truncate(saved_path("sparse"), (off_t)(c.file.n + more)) ? QUIRE_E_IO : QUIRE_OK;
            if (made == QUIRE_OK) /* the file system may not have such files */
                assert_status(quire_file_open(&opened, saved_path("sparse")), QUIRE_E_TOO_BIG);
        }
    small_close(&c);
}

static quire_status try_changed(const small_case *c, size_t at, uint8_t value) {
    const uint8_t was = c->file.data[at];
    c->file.data[at] = value;
    file_sign(c->file);
    const quire_status status = try_load(c, c->file.data, c->file.n);
    c->file.data[at] = was;
    return status;
}

/* What must be zero is zero: everything that a file says is read by somebody. */
static void test_padding(void **state) {
    (void)state;
    small_case c;
    small_open(&c);
    const size_t reserved[] = {24, 47, 64 + 5 * 48, 319, 320 + 7, 320 + 63};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        assert_status(try_changed(&c, reserved[i], 1), QUIRE_E_FORMAT);
    assert_ok(try_changed(&c, 320, 'a'));
    small_close(&c);

    fixture_init(&c.f, 1, 2, 1, 48, 32, "k8v4"); /* the open page's row ends inside 64 bytes */
    fixture_open(&c.f);
    const source s = source_default(1);
    const quire_save_options o = {
        .struct_size = sizeof o, .identity = "a model", .identity_bytes = 7};
    assert_ok(quire_seq_create(c.f.pool, &c.live));
    feed(&c.f, c.live, &s, 1, 1, 1, 0, NULL);
    assert_ok(quire_seq_save(c.live, saved_path("odd"), &o));
    c.file = file_read(saved_path("odd"));
    assert_status(try_changed(&c, c.file.n - 1, 1), QUIRE_E_FORMAT);
    assert_ok(try_changed(&c, c.file.n - 1, 0));
    small_close(&c);
}

/* A page before the first that has not been recycled is there only for its kept tokens. */
static void test_recycled_pages(void **state) {
    (void)state;
    for (int keep = 0; keep <= 10; keep += 10) { /* 10: more than the sinks */
        small_case c;
        fixture_init(&c.f, 1, 2, 1, 32, 32, "k8v4");
        c.f.layer[0].window = 1;
        c.f.layer[0].keep = keep;
        fixture_open(&c.f);
        const source s = source_default(1);
        const quire_save_options o = {
            .struct_size = sizeof o, .identity = "a model", .identity_bytes = 7};
        assert_ok(quire_seq_create(c.f.pool, &c.live));
        feed(&c.f, c.live, &s, 65, 65, 1, 0, NULL); /* page 0 is the one sealed last */
        assert_ok(quire_seq_save(c.live, saved_path("window"), &o));
        c.file = file_read(saved_path("window"));
        quire_file *file;
        quire_file_info info;
        assert_ok(quire_file_open(&file, saved_path("window")));
        quire_file_get_info(file, &info);
        const size_t live_from = (size_t)info.sections[3].offset + 16;
        quire_file_close(file);
        assert_int_equal(c.file.data[live_from], 0);
        assert_ok(try_changed(&c, live_from, 0));
        assert_status(try_changed(&c, live_from, 1), keep ? QUIRE_OK : QUIRE_E_FORMAT);
        small_close(&c);
    }
}

/* The path of a saved file, and where it lies until it is whole. */
typedef struct two_paths {
    char path[256], part[300];
} two_paths;

static two_paths saved_and_part(const char *name) {
    two_paths p;
    snprintf(p.path, sizeof p.path, "%s", saved_path(name));
    snprintf(p.part, sizeof p.part, "%s.part", p.path);
    return p;
}

/* What lies at PATH.part is replaced, not written to: it may be someone else's, or have another
 * name, or be open to all. */
static void test_left_over_part(void **state) {
    (void)state;
    fixture f;
    quire_seq *seq;
    fixture_init(&f, 1, 2, 1, 32, 32, "k8v4");
    fixture_open(&f);
    assert_ok(quire_seq_create(f.pool, &seq));
    const two_paths saved = saved_and_part("whole");
    const char *path = saved.path, *part = saved.part;
    for (int linked = 0; linked < 2; linked++) {
        file_write(saved_path("other"), "not ours", 8);
        assert_int_equal(chmod(saved_path("other"), 0644), 0);
        if (linked)
            assert_int_equal(link(saved_path("other"), part), 0);
        else
            assert_int_equal(rename(saved_path("other"), part), 0);
        assert_ok(quire_seq_save(seq, path, NULL));
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
        assert_int_equal(info.st_nlink, 1);
        assert_int_equal(access(part, F_OK), -1);
        if (!linked)
            continue;
        const bytes other = file_read(saved_path("other"));
        assert_int_equal(other.n, 8);
        assert_memory_equal(other.data, "not ours", 8);
        free(other.data);
    }
    assert_int_equal(mkfifo(part, 0600), 0);
    assert_status(quire_seq_save(seq, path, NULL), QUIRE_E_IO);
    assert_int_equal(unlink(part), 0);
    assert_int_equal(symlink(saved_path("other"), part), 0);
    assert_status(quire_seq_save(seq, path, NULL), QUIRE_E_IO);
    assert_int_equal(unlink(part), 0);
    fixture_close(&f);
}

/* What flock fails with, in place of the system's; 0: it locks. */
static int flock_error;

int flock(int fd, int operation) {
    int (*system_s)(int, int);
    *(void **)(void *)&system_s = dlsym(RTLD_NEXT, "flock");
    errno = flock_error;
    return flock_error ? -1 : system_s(fd, operation);
}

/* File systems without locks can be written to, but what lies at PATH.part there may be in use. */
static void test_no_locks(void **state) {
    (void)state;
    fixture f;
    quire_seq *seq;
    fixture_init(&f, 1, 2, 1, 32, 32, "k8v4");
    fixture_open(&f);
    assert_ok(quire_seq_create(f.pool, &seq));
    const two_paths saved = saved_and_part("no-locks");
    const char *path = saved.path, *part = saved.part;
    flock_error = ENOSYS;
    assert_ok(quire_seq_save(seq, path, NULL));
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(path, F_OK), 0);
    file_write(part, "not ours", 8);
    assert_status(quire_seq_save(seq, path, NULL), QUIRE_E_BUSY);
    assert_non_null(strstr(quire_last_error(), "has no locks"));
    const bytes other = file_read(part);
    assert_memory_equal(other.data, "not ours", 8);
    free(other.data);
    assert_int_equal(unlink(part), 0);
    flock_error = EIO;
    assert_status(quire_seq_save(seq, path, NULL), QUIRE_E_IO);
    assert_int_equal(access(part, F_OK), -1);
    flock_error = 0;
    fixture_close(&f);
}

/* ------------------------------------------------------------------ typed errors */

static void test_errors(void **state) {
    (void)state;
    small_case c;
    quire_seq *seq, *more[4];
    small_open(&c);
    quire_load_options o = model_options();
    char path[512];
    snprintf(path, sizeof path, "%s", saved_path("small"));
    file_write(saved_path("foreign"),
               "GGUF\3\0\0\0 and then some more bytes that are not ours at all, really, at all",
               72);
    assert_status(saved_load(c.f.pool, saved_path("foreign"), &o, &seq), QUIRE_E_FOREIGN);
    assert_status(saved_load(c.f.pool, saved_path("nothing"), &o, &seq), QUIRE_E_IO);
    assert_status(saved_load(c.f.pool, "/tmp", &o, &seq), QUIRE_E_IO);
    bytes newer = file_read(path);
    for (int version = 1; version <= 4; version += version == 2 ? 2 : 1) { /* before, and after */
        newer.data[8] = (uint8_t)version;
        file_sign(newer);
        file_write(saved_path("newer"), newer.data, newer.n);
        assert_status(saved_load(c.f.pool, saved_path("newer"), &o, &seq), QUIRE_E_VERSION);
        assert_non_null(strstr(quire_last_error(), version < 3 ? ", which is older than any release"
                                                               : "format 4, which is newer"));
    }
    newer.data[8] = 3;
    quire_file *file;
    quire_file_info info;
    assert_ok(quire_file_open(&file, path));
    quire_file_get_info(file, &info);
    for (int other = QUIRE_PAGE_FORMAT - 1; other <= QUIRE_PAGE_FORMAT + 1; other += 2) {
        newer.data[info.sections[1].offset] =
            (uint8_t)other; /* pages of another format in a file of this one */
        file_sign(newer);
        file_write(saved_path("newer"), newer.data, newer.n);
        assert_status(saved_load(c.f.pool, saved_path("newer"), &o, &seq), QUIRE_E_VERSION);
    }
    free(newer.data);

    assert_int_equal(info.length, 67);
    assert_int_equal(info.n_tokens, 68);
    assert_memory_equal(info.tokens, TOKENS, 68 * sizeof *TOKENS);
    assert_int_equal(info.identity_bytes, 7);
    assert_memory_equal(info.identity, "a model", 7);
    assert_int_equal(info.n_layers, 1);
    assert_int_equal(info.layers[0].k, QUIRE_CODEC_KM4);
    assert_memory_equal(info.layers[0].k_order, random_order(1, 32), 32 * sizeof(uint16_t));
    assert_int_equal(info.sinks, 4);
    assert_int_equal(info.bytes, c.file.n);

    o.identity = "b model";
    assert_status(quire_seq_load(c.f.pool, file, &o, &seq), QUIRE_E_IDENTITY);
    o.identity = NULL;
    assert_status(quire_seq_load(c.f.pool, file, &o, &seq), QUIRE_E_INVALID);
    o.identity = "b model";
    assert_status(quire_seq_load(c.f.pool, file, NULL, &seq), QUIRE_E_IDENTITY);
    o.any_identity = true;
    assert_ok(quire_seq_load(c.f.pool, file, &o, &seq));
    assert_ok(quire_seq_free(seq));

    typedef struct other {
        int n_layers, h, g, dk, window;
        float scale;
        const char *kv;
        int sinks;
        quire_type raw;
        quire_status wanted;
    } other;
    static const other others[] = {
        {2, 2, 1, 32, 0, 0, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 2, 2, 32, 0, 0, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 2, 1, 64, 0, 0, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 2, 1, 32, 99, 0, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 4, 1, 32, 0, 0, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 2, 1, 32, 0, 0.5f, "km4:vt4", 4, QUIRE_F16, QUIRE_E_IDENTITY},
        {1, 2, 1, 32, 0, 0, "k8v4", 4, QUIRE_F16, QUIRE_E_CODEC},
        {1, 2, 1, 32, 0, 0, "kc4:vt4", 4, QUIRE_F16, QUIRE_E_CODEC},
        {1, 2, 1, 32, 0, 0, "none", 0, QUIRE_F16, QUIRE_E_CODEC},
        {1, 2, 1, 32, 0, 0, "km4:vt4", 0, QUIRE_F16, QUIRE_E_CODEC},
        {1, 2, 1, 32, 0, 0, "km4:vt4", 4, QUIRE_BF16, QUIRE_E_CODEC},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const other *x = &others[i];
        fixture f;
        fixture_init(&f, x->n_layers, x->h, x->g, x->dk, 32, x->kv);
        f.options.policy.sinks = x->sinks;
        f.options.raw = x->raw;
        f.layer[0].window = x->window;
        f.layer[0].scale = x->scale;
        fixture_open(&f);
        assert_status(quire_seq_load(f.pool, file, &o, &seq), x->wanted);
        o.reseal = true;
        assert_status(quire_seq_load(f.pool, file, &o, &seq),
                      x->wanted == QUIRE_E_CODEC ? QUIRE_OK : x->wanted);
        o.reseal = false;
        fixture_close(&f);
    }

    fixture own, sharing; /* the same layers, but for where their rows are */
    fixture_init(&own, 2, 2, 1, 32, 32, "k8v4");
    fixture_open(&own);
    assert_ok(quire_seq_create(own.pool, &seq));
    assert_ok(quire_seq_save(seq, saved_path("own"), NULL));
    fixture_init(&sharing, 2, 2, 1, 32, 32, "k8v4");
    sharing.layer[1].share = 0;
    fixture_open(&sharing);
    assert_status(saved_load(sharing.pool, saved_path("own"), NULL, &seq), QUIRE_E_IDENTITY);
    assert_non_null(strstr(quire_last_error(), "layer 1: the file has its own cache for it"));
    fixture_close(&own), fixture_close(&sharing);

    static uint8_t record[1];
    float k[64 * 32], v[64 * 32];
    int32_t n_rows;
    assert_status(quire_file_page(NULL, 0, 0, 0, record, 1), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "file is NULL"));
    assert_status(quire_file_rows(NULL, 0, 0, 0, k, v, &n_rows), QUIRE_E_INVALID);
    assert_non_null(strstr(quire_last_error(), "file is NULL"));

    for (int i = 0; i < 3; i++)
        assert_ok(quire_seq_create(c.f.pool, &more[i]));
    assert_status(quire_seq_load(c.f.pool, file, &o, &seq), QUIRE_E_NO_SLOT);
    assert_ok(quire_seq_free(more[0]));
    const source s = source_default(6);
    while (step(&c.f, &(step_item){more[1], &s, 64}, 1, &(step_options){.store_only = true},
                NULL) == QUIRE_OK)
        ;
    quire_pool_stats before, after;
    quire_pool_get_stats(c.f.pool, &before);
    assert_status(quire_seq_load(c.f.pool, file, &o, &seq), QUIRE_E_NO_PAGES);
    quire_pool_get_stats(c.f.pool, &after);
    assert_memory_equal(&before, &after, sizeof before);
    fixture shorter;
    fixture_init(&shorter, 1, 2, 1, 32, 32, "k4v4");
    shorter.options.max_tokens = 64;
    fixture_open(&shorter);
    assert_status(quire_seq_load(shorter.pool, file, &o, &seq), QUIRE_E_TOO_BIG);
    fixture_close(&shorter);
    quire_file_close(file);

    quire_batch *batch;
    assert_ok(quire_batch_begin(c.f.pool, &(quire_batch_item){c.live, 0}, 1, &batch));
    assert_status(quire_seq_save(c.live, saved_path("busy"), NULL), QUIRE_E_BUSY);
    quire_batch_abort(batch);
    quire_save_options save;
    quire_save_options_default(&save);
    save.tokens = TOKENS;
    save.n_tokens = 3;
    assert_status(quire_seq_save(c.live, saved_path("busy"), &save), QUIRE_E_INVALID);
    assert_status(quire_seq_save(c.live, saved_path("no/such/place"), NULL), QUIRE_E_IO);
    assert_status(quire_seq_save(c.live, "/tmp", NULL), QUIRE_E_IO);
    assert_status(quire_seq_save(c.live, "", NULL), QUIRE_E_INVALID);
    assert_int_equal(access(saved_path("busy"), F_OK), -1);
    small_close(&c);
}

/* ------------------------------------------------------------------ other codecs */

/* `again` has the history `wanted`, from its first token on, and is else the same as `first`, which
 * has none. */
static void assert_same_file_but_for(const char *first, const char *again, uint32_t wanted) {
    bytes x = file_read(saved_path(first)), y = file_read(saved_path(again));
    quire_file *file;
    quire_file_info info;
    assert_ok(quire_file_open(&file, saved_path(again)));
    quire_file_get_info(file, &info);
    assert_int_equal(info.history, wanted);
    assert_int_equal(info.exact_tokens, wanted ? 0 : info.length);
    const size_t at =
        (size_t)info.sections[3].offset + 8; /* history and exact tokens, in the section "state" */
    quire_file_close(file);
    assert_int_equal(x.n, y.n);
    memcpy(y.data + at, x.data + at, 8);
    file_sign(y);
    assert_memory_equal(x.data, y.data, x.n);
    free(x.data), free(y.data);
}

/* Rows are functions of position here: raw pages sealed while loading must be what a pool of
 * that codec has itself. */
static void test_reseal_raw(void **state) {
    (void)state;
    static const char *const kv[] = {"k8v4", "k4v4", "tq3", "mlx8", "q4_0", "kc2:vt2", "km4:vt4"};
    const source s = source_default(12);
    int sweep = 0;
    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++)
        for (int v = FULL; v <= MIXED; v++)
            for (int length = 50; length < 400; length += 110) {
                if (!sweep_takes(&sweep, 5))
                    continue;
                fixture raw, native, pool;
                quire_seq *a, *b, *restored;
                open_variant(&raw, "none", (variant)v, QUIRE_F16);
                open_variant(&native, kv[i], (variant)v, QUIRE_F16);
                open_variant(&pool, kv[i], (variant)v, QUIRE_F16);
                assert_ok(quire_seq_create(raw.pool, &a));
                assert_ok(quire_seq_create(native.pool, &b));
                feed(&raw, a, &s, length, 64, 1, 0, NULL);
                feed(&native, b, &s, length, 64, 1, 0, NULL);
                assert_ok(quire_seq_save(a, saved_path("raw"), NULL));
                assert_status(saved_load(pool.pool, saved_path("raw"), NULL, &restored),
                              QUIRE_E_CODEC);
                const quire_load_options o = {.struct_size = sizeof o, .reseal = true};
                assert_ok(saved_load(pool.pool, saved_path("raw"), &o, &restored));
                quire_pool_stats stats;
                quire_pool_get_stats(pool.pool, &stats);
                assert_true(stats.resealed_pages > 0 || length < 64);
                /* The same file, to the last byte but for its history. */
                assert_ok(quire_seq_save(b, saved_path("native"), NULL));
                assert_ok(quire_seq_save(restored, saved_path("again"), NULL));
                assert_same_file_but_for("native", "again",
                                         length < 64 ? 0 : QUIRE_HISTORY_RESEALED);
                assert_same_future(&native, b, &pool, restored, &s, N_MORE);
                fixture_close(&raw);
                fixture_close(&native);
                fixture_close(&pool);
            }
}

/* From one codec into another: what is sealed again is what the first one decodes to, sinks and
 * raw rows excepted. */
static void test_reseal_packed(void **state) {
    (void)state;
    const source s = source_default(13);
    for (int v = FULL; v <= MIXED; v++) {
        fixture from, to;
        quire_seq *a, *b;
        quire_file *x, *y;
        open_variant(&from, v == WINDOWED ? "k8v4" : "km4:vt4", (variant)v, QUIRE_F16);
        open_variant(&to, "none", (variant)v, QUIRE_F32);
        assert_ok(quire_seq_create(from.pool, &a));
        feed(&from, a, &s, 300, 64, 1, 0, NULL);
        assert_ok(quire_seq_save(a, saved_path("packed"), NULL));
        const quire_load_options o = {.struct_size = sizeof o, .reseal = true};
        assert_ok(saved_load(to.pool, saved_path("packed"), &o, &b));
        assert_ok(quire_seq_save(b, saved_path("raw"), NULL));
        assert_ok(quire_file_open(&x, saved_path("packed")));
        assert_ok(quire_file_open(&y, saved_path("raw")));
        int n_pages = 0;
        for (int layer = 0; layer < 3; layer++)
            for (int head = 0; head < 2; head++)
                for (int page = 0; page < 5; page++) {
                    float k[2][64 * 128], w[2][64 * 64];
                    int32_t n[2];
                    const quire_status status =
                        quire_file_rows(x, layer, head, page, k[0], w[0], &n[0]);
                    if (quire_file_rows(y, layer, head, page, k[1], w[1], &n[1]) == QUIRE_E_GONE) {
                        assert_true(status == QUIRE_E_GONE || n[0] < 64 ||
                                    page == 3); /* sinks, kept rows */
                        continue;
                    }
                    assert_int_equal(status, QUIRE_OK);
                    assert_memory_equal(k[0], k[1], (size_t)(n[0] * from.layer[layer].k_dim) * 4);
                    assert_memory_equal(w[0], w[1], (size_t)(n[0] * from.layer[layer].v_dim) * 4);
                    n_pages++;
                }
        assert_true(n_pages >= 10);
        quire_file_close(x);
        quire_file_close(y);
        fixture_close(&from);
        fixture_close(&to);
    }
}

/* A file has the order of its km layers: rows come out in natural order, other orders are other
 * codecs, and no order that is none is believed. */
static void test_orders(void **state) {
    (void)state;
    const source s = source_default(14);
    fixture f, natural;
    quire_seq *seq, *other;
    quire_file *file;
    quire_file_info info;
    float k[64 * 64], v[64 * 64], row[2 * 64];
    uint16_t straight[2 * 64];
    int32_t n_rows;
    for (int i = 0; i < 2 * 64; i++)
        straight[i] = (uint16_t)(i % 64);
    fixture_init(&f, 2, 4, 2, 64, 64, "km4:vt4");
    fixture_init(&natural, 2, 4, 2, 64, 64, "km4:vt4");
    f.layer[0].k = QUIRE_CODEC_KC8; /* its order is nobody's business */
    natural.layer[0].k = QUIRE_CODEC_KC8;
    natural.layer[0].k_order = natural.layer[1].k_order = straight;
    fixture_open(&f);
    fixture_open(&natural);
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, 200, 64, 1, 0, NULL);
    assert_ok(quire_seq_save(seq, saved_path("orders"), NULL));
    assert_ok(quire_file_open(&file, saved_path("orders")));
    quire_file_get_info(file, &info);
    assert_null(info.layers[0].k_order);
    assert_memory_equal(info.layers[1].k_order, random_order(2, 64), sizeof straight);
    for (int head = 0; head < 2; head++) {
        assert_ok(quire_file_rows(file, 1, head, 1, k, v, &n_rows));
        double error = 0, spread = 0;
        for (int t = 0; t < 64; t++) {
            source_k(&s, &f.layer[1], 1, 64 + t, row);
            for (int d = 0; d < 64; d++) {
                error += pow((double)(k[t * 64 + d] - row[head * 64 + d]), 2);
                spread += 1; /* rows are of unit variance around each channel's own constant */
            }
        }
        /* Steps of a 3-bit channel are 4.8 / 7, of others less: error below that of 3 bits
         * throughout. */
        assert_true(sqrt(error / spread) < 4.8 / 7 / sqrt(12));
    }
    const quire_load_options reseal = {.struct_size = sizeof reseal, .reseal = true};
    assert_status(quire_seq_load(natural.pool, file, NULL, &other), QUIRE_E_CODEC);
    assert_non_null(strstr(quire_last_error(), "layer 1"));
    assert_non_null(strstr(quire_last_error(), "another channel order"));
    assert_ok(quire_seq_load(natural.pool, file, &reseal, &other));
    assert_ok(quire_seq_free(other));
    assert_ok(quire_seq_load(f.pool, file, NULL, &other));
    assert_same_future(&f, seq, &f, other, &s, N_MORE);

    bytes bad = file_read(saved_path("orders"));
    const size_t at = (size_t)info.sections[1].offset + 32 + 2 * 48;
    bad.data[at] = bad.data[at + 2]; /* a channel twice */
    bad.data[at + 1] = bad.data[at + 3];
    file_sign(bad);
    quire_file_close(file);
    file_write(saved_path("orders"), bad.data, bad.n);
    assert_status(quire_file_open(&file, saved_path("orders")), QUIRE_E_FORMAT);
    assert_non_null(strstr(quire_last_error(), "channel order"));
    free(bad.data);
    fixture_close(&f);
    fixture_close(&natural);
}

/* A pool that is given other codecs: refused until its pages have them; then the file is the one
 * that a pool which had them from the start can load. */
static void test_requantized(void **state) {
    (void)state;
    const source s = source_default(14);
    for (int more = 0; more <= 90; more += 90) { /* also with a page sealed since */
        fixture f, other;
        quire_seq *a, *b;
        quire_policy policy;
        open_variant(&f, "none", FULL, QUIRE_F16);
        open_variant(&other, "k4v4", FULL, QUIRE_F16);
        assert_ok(quire_seq_create(f.pool, &a));
        feed(&f, a, &s, 300, 64, 1, 0, NULL);
        assert_ok(quire_policy_parse("k4v4", &policy));
        assert_ok(quire_pool_requantize(f.pool, &policy));
        assert_ok(quire_pool_requantize_step(f.pool, 1, NULL));
        assert_status(quire_seq_save(a, saved_path("requantized"), NULL), QUIRE_E_STATE);
        assert_ok(quire_pool_requantize_step(f.pool, 100, NULL));
        feed(&f, a, &s, more, 64, 1, 0, NULL);
        assert_ok(quire_seq_save(a, saved_path("requantized"), NULL));
        assert_ok(saved_load(other.pool, saved_path("requantized"), NULL, &b));
        f.options.policy = policy;
        assert_same_future(&f, a, &other, b, &s, N_MORE);
        fixture_close(&f);
        fixture_close(&other);
    }
}

/* A policy with raw layers at its edges, in a pool that was given it and in one that was made with
 * it: the same files. */
static void test_requantized_edges(void **state) {
    (void)state;
    const source s = source_default(15);
    fixture made, given;
    quire_seq *seq[2], *loaded;
    const quire_policy policy = fixture_open_edges(&made, &given, 32);
    assert_ok(quire_seq_create(made.pool, &seq[0]));
    assert_ok(quire_seq_create(given.pool, &seq[1]));
    feed(&made, seq[0], &s, 200, 64, 1, 0, NULL);
    feed(&given, seq[1], &s, 200, 64, 1, 0, NULL);
    assert_ok(quire_pool_requantize(given.pool, &policy));
    assert_ok(quire_pool_requantize_step(given.pool, 1000, NULL));
    assert_ok(quire_seq_save(seq[0], saved_path("made"), NULL));
    assert_ok(quire_seq_save(seq[1], saved_path("given"), NULL));
    assert_ok(saved_load(given.pool, saved_path("made"), NULL, &loaded));
    assert_ok(saved_load(made.pool, saved_path("given"), NULL, &loaded));
    given.options.policy = policy;
    assert_same_future(&given, seq[1], &made, loaded, &s, N_MORE);
    assert_same_file_but_for("made", "given", QUIRE_HISTORY_REQUANTIZED);
    fixture_close(&made);
    fixture_close(&given);
}

/* ------------------------------------------------------------------ kill -9 */

static int64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* A child saves one of two sequences, again and again, until it is killed. Whatever the moment:
 * one of the two is there. */
static void test_killed(void **state) {
    (void)state;
    const int n_kills = sweep_is_full() ? 200 : 60; /* most of the time is the disk's */
    fixture f;
    quire_seq *seq[2];
    fixture_init(&f, 2, 4, 2, 64, 64, "k8v8");
    fixture_open(&f);
    int32_t tokens[2][1500];
    bytes whole[2];
    quire_save_options o[2];
    int64_t save_time = 0;
    for (int i = 0; i < 2; i++) {
        const source s = source_default((uint64_t)i);
        assert_ok(quire_seq_create(f.pool, &seq[i]));
        feed(&f, seq[i], &s, 700 + 700 * i, 512, 1, 0, NULL);
        for (int t = 0; t < 1500; t++)
            tokens[i][t] = 2 * t + i;
        quire_save_options_default(&o[i]);
        o[i].tokens = tokens[i];
        o[i].n_tokens = quire_seq_length(seq[i]);
        save_time -= microseconds();
        assert_ok(quire_seq_save(seq[i], saved_path("killed"), &o[i]));
        save_time += microseconds();
        whole[i] = file_read(saved_path("killed"));
    }
    const two_paths saved = saved_and_part("killed");
    const char *path = saved.path, *part = saved.part;
    rng r = {77};
    int seen[2] = {0, 0}, cut_short = 0;
    /* Time for a few saves, also where they are slow (under an emulator); a second at most. */
    const int longest = save_time < 3000     ? 6000
                        : save_time < 500000 ? (int)(2 * save_time)
                                             : 999999;
    for (int i = 0; i < n_kills; i++) {
        fflush(NULL);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            for (int j = i; quire_seq_save(seq[j % 2], path, &o[j % 2]) == QUIRE_OK; j++)
                ;
        const struct timespec pause = {0, rng_below(&r, longest) * 1000};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(
            WIFSIGNALED(status)); /* no save failed before, what the one before left included */
        cut_short += access(part, F_OK) == 0;
        const bytes now = file_read(path);
        const int which = now.n == whole[1].n;
        assert_int_equal(now.n, whole[which].n);
        assert_memory_equal(now.data, whole[which].data, now.n);
        seen[which]++;
        free(now.data);
    }
    assert_true(seen[0] > 0 && seen[1] > 0);
    assert_true(cut_short > 0); /* some moment was in the middle of a save */
    print_message("killed: %d old or new files, %d times in the middle of a save\n", n_kills,
                  cut_short);
    assert_ok(
        quire_seq_save(seq[0], path, &o[0])); /* and what was left does not stand in the way */
    assert_int_equal(access(part, F_OK), -1);
    free(whole[0].data), free(whole[1].data);
    fixture_close(&f);
}

static int remove_files(void **state) {
    (void)state;
    saved_remove_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_hostile_table),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_reseal_raw),
        cmocka_unit_test(test_reseal_packed),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_requantized),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_requantized_edges),
        cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_recycled_pages),
        cmocka_unit_test(test_left_over_part),
        cmocka_unit_test(test_no_locks),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
