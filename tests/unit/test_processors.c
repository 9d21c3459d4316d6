/* CPU quotas of control groups, in trees made for the test: cli/options/processors.c. */
#include "kit.h"
#include "options/processors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

/* Writes ROOT/path, and the directories above it. */
static void put(const char *path, const char *text) {
    char all[512];
    const int n = snprintf(all, sizeof all, "%s%s", root, path);
    assert_in_range(n, 1, sizeof all - 1);
    for (char *at = strchr(all + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(all, 0755);
        *at = '/';
    }
    FILE *file = fopen(all, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/quire_processors_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void none_without_groups(void **state) {
    (void)state;
    assert_int_equal(cli_processors_quota(root), 0);
    assert_int_equal(cli_processors_quota("/no such directory"), 0);
}

static void version_2(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t wanted;
    } cases[] = {{"max 100000\n", 0},
                 {"200000 100000\n", 2},
                 {"150000 100000\n", 2},
                 {"100000 100000\n", 1},
                 {"1000 100000\n", 1},
                 {"50000 20000\n", 3},
                 {"", 0},
                 {"100000\n", 0},
                 {"100000 0\n", 0},
                 {"-5 100000\n", 0},
                 {"many few\n", 0},
                 {"400000 100000", 4},
                 {"9000000000000 1\n", INT32_MAX}};
    put("/proc/self/cgroup", "0::/pods/job\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put("/sys/fs/cgroup/pods/job/cpu.max", cases[i].text);
        assert_int_equal(cli_processors_quota(root), cases[i].wanted);
    }
}

/* The tightest group on the way up counts, wherever it is; groups beside it do not. */
static void nested(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
    assert_int_equal(cli_processors_quota(root), 8);
    put("/sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
    assert_int_equal(cli_processors_quota(root), 3);
    put("/sys/fs/cgroup/a/cpu.max", "500000 100000\n");
    assert_int_equal(cli_processors_quota(root), 3);
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(cli_processors_quota(root), 2);
    put("/sys/fs/cgroup/a/b/c/d/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/a/other/cpu.max", "100000 100000\n");
    assert_int_equal(cli_processors_quota(root), 2);
}

/* A container whose group has the host's path: the mount itself is the group. */
static void container(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/../../system.slice/docker-12ab.scope\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(cli_processors_quota(root), 4);
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(cli_processors_quota(root), 4);
}

static void version_1(void **state) {
    (void)state;
    put("/proc/self/cgroup",
        "12:cpuset:/x\n11:memory:/x\n4:cpu,cpuacct:/docker/12ab\n1:name=systemd:/x\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/12ab/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/12ab/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cli_processors_quota(root), 0);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/12ab/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(cli_processors_quota(root), 3);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cli_processors_quota(root), 2);
    /* "cpuset" and "cpuacct" are not "cpu". */
    put("/proc/self/cgroup", "12:cpuset:/docker/12ab\n4:cpuacct:/docker/12ab\n");
    assert_int_equal(cli_processors_quota(root), 0);
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/12ab\n");
    assert_int_equal(cli_processors_quota(root), 2);
}

/* Both versions at once, as systemd's hybrid layout has them: the tighter one. */
static void hybrid(void **state) {
    (void)state;
    put("/proc/self/cgroup", "3:cpu:/one\n0::/two\n");
    put("/sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", "300000\n");
    put("/sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cli_processors_quota(root), 3);
    put("/sys/fs/cgroup/two/cpu.max", "200000 100000\n");
    assert_int_equal(cli_processors_quota(root), 2);
}

static void odd_lines(void **state) {
    (void)state;
    put("/proc/self/cgroup", "\nno colon\n:\n0:\n0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "200000 100000\n");
    assert_int_equal(cli_processors_quota(root), 2);
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    put("/proc/self/cgroup", longest);
    assert_int_equal(cli_processors_quota(root), 0);
}

static void at_least_one(void **state) {
    (void)state;
    assert_in_range(cli_processors(), 1, sysconf(_SC_NPROCESSORS_ONLN));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
    const struct CMUnitTest tests[] = {TEST(none_without_groups), TEST(version_2),   TEST(nested),
                                       TEST(container),           TEST(version_1),   TEST(hybrid),
                                       TEST(odd_lines),           TEST(at_least_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
