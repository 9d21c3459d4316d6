/* processors.h: how many processors this process may use. */
#ifndef CLI_OPTIONS_PROCESSORS_H
#define CLI_OPTIONS_PROCESSORS_H

#include <stdint.h>

/* The online processors that the affinity of this process allows (taskset, cpusets), and no more
 * than the CPU time that its control groups grant (cli_processors_quota). At least 1. */
int32_t cli_processors(void);

/* The tightest CPU quota among the control group of this process and the groups above it, in
 * whole processors, rounded up: 1.5 is 2, because one thread would leave a third of the time
 * unused. 0: there is none. Version 2 (cpu.max) and version 1 (cpu.cfs_quota_us). `root` goes in
 * front of /proc and /sys: "", but for tests. */
int32_t cli_processors_quota(const char *root);

#endif
