/* workers.h: a thread pool that runs one job at a time; the caller is worker 0. */
#ifndef CLI_OPTIONS_WORKERS_H
#define CLI_OPTIONS_WORKERS_H

#include <stdint.h>

enum { CLI_WORKERS_MAX = 256 };

typedef struct cli_workers cli_workers;
typedef void cli_job(void *user, int32_t ith, int32_t nth);

#define CLI_WORKERS_HELP                                                                           \
    "number of threads (default: one per processor that CPU affinity and cgroup quotas allow)"

/* The number of processors that this process may use (processors.h), at most CLI_WORKERS_MAX. */
int32_t cli_workers_default(void);

/* NULL, with a message: out of memory or threads. */
cli_workers *cli_workers_start(int32_t n_workers);
/* Calls job(user, ith, nth) once for every worker; returns when all have returned. */
void cli_workers_run(cli_workers *workers, cli_job *job, void *user);
void cli_workers_stop(cli_workers *workers); /* NULL is fine */

/* The part first..last-1 of 0..n-1 that worker `ith` of `nth` takes. */
typedef struct cli_part {
    int32_t first, last;
} cli_part;

cli_part cli_part_of(int32_t n, int32_t ith, int32_t nth);

#endif
