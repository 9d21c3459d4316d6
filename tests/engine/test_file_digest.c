/* Digests of files that are kept: when they are used, and when not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/file_digest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 100, NAME_BYTES = 512 };

static char root[64], model[96], directory[96];
static int fd;
static const int64_t LATER = 100; /* seconds from now: every file here has settled by then */

/* A job that counts its calls, and does something to the file while it runs. */
typedef struct job {
    int n_calls;
    bool writes, fails;
} job;

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static size_t read_file(const char *path, uint8_t *bytes, size_t capacity) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    const size_t n = fread(bytes, 1, capacity, file);
    fclose(file);
    return n;
}

static quire_status compute(void *user, quire_digest *digest) {
    job *j = user;
    uint8_t bytes[BYTES];
    j->n_calls++;
    assert_int_equal(pread(fd, bytes, BYTES, 0), BYTES);
    *digest = quire__hash_of(bytes, BYTES);
    if (j->writes)
        assert_int_equal(pwrite(fd, "x", 1, 5), 1);
    return j->fails ? QUIRE_E_IO : QUIRE_OK;
}

static int64_t now(void) { return (int64_t)time(NULL) + LATER; }

/* The digest of what is in the file, from wherever it came. Returns how often it was computed. */
static int digest_at(int64_t time, quire_digest *digest) {
    job j = {0};
    assert_int_equal(quire__file_digest(directory, fd, time, compute, &j, digest), QUIRE_OK);
    return j.n_calls;
}

static void right(const quire_digest *digest) {
    uint8_t bytes[BYTES];
    assert_int_equal(pread(fd, bytes, BYTES, 0), BYTES);
    const quire_digest wanted = quire__hash_of(bytes, BYTES);
    assert_memory_equal(digest->byte, wanted.byte, sizeof wanted.byte);
}

static void entry_path(char path[NAME_BYTES]) {
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    snprintf(path, NAME_BYTES, "%s/file-%llx-%llx", directory, (unsigned long long)info.st_dev,
             (unsigned long long)info.st_ino);
}

static int set_up(void **state) {
    (void)state;
    strcpy(root, "/tmp/quire_file_digest_XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(model, sizeof model, "%s/model", root);
    snprintf(directory, sizeof directory, "%s/cache/orders", root); /* made when it is needed */
    uint8_t bytes[BYTES];
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(7 * i);
    write_file(model, bytes, sizeof bytes);
    fd = open(model, O_RDWR);
    return fd < 0 ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    close(fd);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* Set the time of the last change apart from those before: clocks of file systems may be coarse. */
static void touch(int64_t seconds) {
    const struct timespec times[2] = {{.tv_sec = (time_t)seconds}, {.tv_sec = (time_t)seconds}};
    assert_int_equal(futimens(fd, times), 0);
}

static void is_computed_once(void **state) {
    (void)state;
    quire_digest first, second;
    assert_int_equal(digest_at(now(), &first), 1);
    right(&first);
    assert_int_equal(digest_at(now(), &second), 0);
    right(&second);
    const int before = fd; /* another descriptor, as in another process */
    fd = open(model, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(digest_at(now(), &second), 0);
    right(&second);
    close(fd);
    fd = before;
}

static void nothing_is_kept_without_a_directory(void **state) {
    (void)state;
    job j = {0};
    quire_digest digest;
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(quire__file_digest(NULL, fd, now(), compute, &j, &digest), QUIRE_OK);
        assert_int_equal(j.n_calls, i);
        right(&digest);
    }
}

/* A file of this moment may change again without its times telling. */
static void a_recent_file_is_not_kept(void **state) {
    (void)state;
    quire_digest digest;
    const int64_t today = (int64_t)time(NULL);
    touch(1000); /* mtime long ago; ctime is of this moment */
    for (int i = 0; i < 3; i++)
        assert_int_equal(digest_at(today + i - 2, &digest), 1);
    assert_int_equal(digest_at(today + LATER, &digest), 1);
    assert_int_equal(digest_at(today, &digest), 0); /* once it is kept, it stays */
    touch(today + 1000);                            /* mtime in the future */
    assert_int_equal(digest_at(today + LATER, &digest), 1);
    assert_int_equal(digest_at(today + LATER, &digest), 1);
    assert_int_equal(digest_at(today + 1003, &digest), 1);
    assert_int_equal(digest_at(today + 1003, &digest), 0);
}

static void a_file_that_changes_meanwhile_is_not_kept(void **state) {
    (void)state;
    touch(1000);
    job j = {.writes = true};
    quire_digest digest;
    char path[NAME_BYTES];
    entry_path(path);
    assert_int_equal(quire__file_digest(directory, fd, now(), compute, &j, &digest), QUIRE_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(digest_at(now(), &digest), 1);
    assert_int_equal(access(path, F_OK), 0);
    right(&digest);
}

static void a_failure_is_passed_on_and_not_kept(void **state) {
    (void)state;
    job j = {.fails = true};
    quire_digest digest;
    assert_int_equal(quire__file_digest(directory, fd, now(), compute, &j, &digest), QUIRE_E_IO);
    assert_int_equal(digest_at(now(), &digest), 1);
}

/* Other content, other size, other times: each makes another file of it. */
static void a_changed_file_is_computed_again(void **state) {
    (void)state;
    quire_digest digest;
    touch(1000);
    assert_int_equal(digest_at(now(), &digest), 1);
    touch(2000);
    assert_int_equal(digest_at(now(), &digest), 1);
    assert_int_equal(ftruncate(fd, BYTES + 1), 0);
    touch(2000);
    assert_int_equal(digest_at(now(), &digest), 1);
    assert_int_equal(digest_at(now(), &digest), 0);
    const struct timespec a_little = {
        .tv_nsec = 20000000}; /* longer than a tick of the kernel's clock for files */
    nanosleep(&a_little, NULL);
    assert_int_equal(pwrite(fd, "other", 5, 50), 5);
    touch(2000); /* only the ctime tells */
    assert_int_equal(digest_at(now(), &digest), 1);
    right(&digest);
    /* Another file under the same name. */
    char part[NAME_BYTES];
    snprintf(part, sizeof part, "%s/part", root);
    uint8_t bytes[BYTES] = {1, 2, 3};
    write_file(part, bytes, sizeof bytes);
    assert_int_equal(rename(part, model), 0);
    close(fd);
    fd = open(model, O_RDWR);
    assert_int_equal(digest_at(now(), &digest), 1);
    right(&digest);
}

/* Every way to damage what is kept: it is not used, and is put right. */
static void damage_is_mended(void **state) {
    (void)state;
    quire_digest digest;
    char path[NAME_BYTES];
    uint8_t good[256], bad[256], again[256];
    entry_path(path);
    assert_int_equal(digest_at(now(), &digest), 1);
    const size_t n = read_file(path, good, sizeof good);
    assert_int_equal(n, 16 + 7 * 8 + 16 + 16); /* kind, key, digest, checksum */
    for (size_t i = 0; i <= 2 * n; i++) {
        memcpy(bad, good, n);
        bad[n] = 0;
        if (i < n)
            bad[i] ^= 1u << i % 8;
        write_file(path, bad, i < n ? n : i == 2 * n ? n + 1 : i - n);
        assert_int_equal(digest_at(now(), &digest), 1);
        right(&digest);
        assert_int_equal(read_file(path, again, sizeof again), n);
        assert_memory_equal(again, good, n);
    }
    /* Sound, but of another file: as if an inode had been used again. */
    memcpy(bad, good, n);
    bad[16 + 2 * 8] ^= 1; /* its size */
    const quire_digest sum = quire__hash_of(bad, n - 16);
    memcpy(bad + n - 16, sum.byte, 16);
    write_file(path, bad, n);
    assert_int_equal(digest_at(now(), &digest), 1);
    right(&digest);
    /* That what is kept is what is used: a digest of the test's own. */
    memcpy(bad, good, n);
    memset(bad + 16 + 7 * 8, 0xab, 16);
    const quire_digest own = quire__hash_of(bad, n - 16);
    memcpy(bad + n - 16, own.byte, 16);
    write_file(path, bad, n);
    assert_int_equal(digest_at(now(), &digest), 0);
    assert_memory_equal(digest.byte, bad + 16 + 7 * 8, 16);
    /* A directory in its place cannot be put right, and does no harm. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(digest_at(now(), &digest), 1);
    right(&digest);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(is_computed_once),
                                       TEST(nothing_is_kept_without_a_directory),
                                       TEST(a_recent_file_is_not_kept),
                                       TEST(a_file_that_changes_meanwhile_is_not_kept),
                                       TEST(a_failure_is_passed_on_and_not_kept),
                                       TEST(a_changed_file_is_computed_again),
                                       TEST(damage_is_mended)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
