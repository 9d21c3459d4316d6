/* processors.c: CPU affinity and cgroup quotas.
 *
 * /proc/self/cgroup has a line NUMBER:CONTROLLERS:PATH for each hierarchy; in version 2 CONTROLLERS
 * is empty. PATH is relative to the mount point of the hierarchy. In a container PATH may be a path
 * of the host, which does not exist there; the mount point is then the container's own cgroup.
 * Directories that cannot be read are therefore skipped, up to the mount point. */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "options/processors.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The smaller of two limits; 0 means no limit. */
static int32_t tighter(int32_t a, int32_t b) { return b == 0 || (a > 0 && a < b) ? a : b; }

/* ------------------------------------------------------------------ affinity */

static int32_t online(void) {
    long n = 1;
#ifdef _SC_NPROCESSORS_ONLN
    n = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return n < 1 ? 1 : n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

/* Processors in the affinity mask; 0: unknown. The kernel rejects a mask that is too small, so
 * larger ones are tried. */
static int32_t allowed(void) {
    int n = 0;
#ifdef __linux__
    for (int capacity = 1024; n == 0 && capacity <= 1 << 20; capacity *= 2) {
        cpu_set_t *mask = CPU_ALLOC((size_t)capacity);
        if (!mask)
            break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)capacity), mask) == 0)
            n = CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)capacity), mask);
        CPU_FREE(mask);
    }
#endif
    return n;
}

/* ------------------------------------------------------------------ cgroups */

/* Reads up to two words and returns their number; 0 if the file cannot be read. */
static int read_words(const char *directory, const char *name, char first[32], char second[32]) {
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = n > 0 && n < PATH_BYTES ? fopen(path, "r") : NULL;
    const int words = file ? fscanf(file, "%31s %31s", first, second) : 0;
    if (file)
        fclose(file);
    return words;
}

/* The quota of one cgroup in processors; 0: none, or it cannot be read. */
static int32_t group_quota(const char *directory, bool version_2) {
    char quota[32], period[32], unused[32];
    if (version_2) {
        if (read_words(directory, "cpu.max", quota, period) != 2)
            return 0;
    } else if (read_words(directory, "cpu.cfs_quota_us", quota, unused) < 1 ||
               read_words(directory, "cpu.cfs_period_us", period, unused) < 1) {
        return 0;
    }
    const long long time = strtoll(quota, NULL, 10),
                    of = strtoll(period, NULL, 10); /* "max" is 0, -1 is none */
    if (time <= 0 || of <= 0)
        return 0;
    const long long n = time / of + (time % of > 0);
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

/* The smallest quota from `group` up to the mount point of the hierarchy. */
static int32_t path_quota(const char *mount, const char *group, bool version_2) {
    char directory[PATH_BYTES];
    const size_t n_mount = strlen(mount);
    const int n =
        snprintf(directory, sizeof directory, "%s%s", mount, strcmp(group, "/") == 0 ? "" : group);
    int32_t tightest = 0;
    for (char *end = n < PATH_BYTES ? directory + n : NULL; end;
         end = strrchr(directory + n_mount, '/')) {
        *end = '\0';
        tightest = tighter(tightest, group_quota(directory, version_2));
    }
    return tightest;
}

static bool has_controller(const char *list, const char *name) {
    const size_t n = strlen(name);
    for (; *list; list += *list == ',') {
        const size_t word = strcspn(list, ",");
        if (word == n && memcmp(list, name, n) == 0)
            return true;
        list += word;
    }
    return false;
}

int32_t cli_processors_quota(const char *root) {
    static const char *const mounts[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    int32_t tightest = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = *group++ = '\0';
        const bool version_2 = !*controllers;
        if (!version_2 && !has_controller(controllers, "cpu"))
            continue;
        for (size_t i = 0; i < (version_2 ? 1 : 2); i++) {
            snprintf(path, sizeof path, "%s%s", root, version_2 ? "/sys/fs/cgroup" : mounts[i]);
            tightest = tighter(tightest, path_quota(path, group, version_2));
        }
    }
    if (file)
        fclose(file);
    return tightest;
}

int32_t cli_processors(void) {
    const int32_t n = allowed();
    return tighter(n > 0 ? n : online(), cli_processors_quota(""));
}
