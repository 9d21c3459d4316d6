/* processors.h: how many processors this process may use. */
#ifndef CLI_OPTIONS_PROCESSORS_H
#define CLI_OPTIONS_PROCESSORS_H

#include <stdint.h>

/* Online processors that the CPU affinity of this process allows (taskset, cpusets), limited by its
 * cgroup quota (cli_processors_quota). At least 1. */
int32_t cli_processors(void);

/* The smallest CPU quota of this process's cgroup and the cgroups above it, in processors. Rounded
 * up: with a quota of 1.5, one thread would leave a third of it unused. 0: no quota. Handles
 * cgroup version 2 (cpu.max) and version 1 (cpu.cfs_quota_us). `root` is put in front of /proc and
 * /sys; it is "" except in tests. */
int32_t cli_processors_quota(const char *root);

#endif
