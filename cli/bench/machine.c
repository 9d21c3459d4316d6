/* machine.c: measures read bandwidth and int8 peak with a given number of workers. */
#define _DEFAULT_SOURCE /* madvise, _SC_LEVEL3_CACHE_SIZE */
#include "bench/machine.h"

#include "command.h"
#include "output/progress.h"
#include "output/report.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { READ_PASSES = 5, INT8_PASSES = 8, HUGE_PAGE = 2 << 20 };
static const size_t READ_BYTES_MIN = (size_t)256 << 20, READ_BYTES_MAX = (size_t)1 << 30;
static const double INT8_SECONDS = 0.004; /* of one pass */

/* ------------------------------------------------------------------ read bandwidth */

typedef struct read_job {
    uint8_t *bytes;
    int32_t n_pieces; /* huge pages: workers take whole ones */
    size_t ahead;     /* bytes; 0: only what the processor fetches by itself */
    _Atomic uint64_t sum;
} read_job;

/* Eight times the last-level cache, if the system reports its size. */
static size_t read_bytes(void) {
    size_t bytes = READ_BYTES_MIN;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && 8 * (size_t)cache > bytes)
        bytes = 8 * (size_t)cache;
#endif
    return bytes < READ_BYTES_MAX ? bytes : READ_BYTES_MAX;
}

static void touch_part(void *user, int32_t ith, int32_t nth) {
    read_job *job = user;
    cli_part part = cli_part_of(job->n_pieces, ith, nth);
    memset(job->bytes + (size_t)part.first * HUGE_PAGE, 1,
           (size_t)(part.last - part.first) * HUGE_PAGE);
}

/* One word of every line, so that neither compiler nor registers matter, only memory. */
static void read_part(void *user, int32_t ith, int32_t nth) {
    enum { LINE = 64, LANES = 8 };
    read_job *job = user;
    cli_part part = cli_part_of(job->n_pieces, ith, nth);
    const uint8_t *at = job->bytes + (size_t)part.first * HUGE_PAGE,
                  *end = job->bytes + (size_t)part.last * HUGE_PAGE;
    uint64_t sums[LANES] = {0}, sum = 0, word;
    for (; at < end; at += LANES * LINE)
        for (size_t lane = 0; lane < LANES; lane++) {
            if (job->ahead)
                __builtin_prefetch(at + lane * LINE + job->ahead, 0, 2);
            memcpy(&word, at + lane * LINE, sizeof word);
            sums[lane] += word;
        }
    for (size_t lane = 0; lane < LANES; lane++)
        sum += sums[lane];
    atomic_fetch_add(&job->sum, sum); /* keeps the compiler from dropping the loop */
}

static double best_seconds(cli_workers *workers, cli_job *part, void *job, int passes) {
    double best = 0;
    for (int pass = 0; pass < passes; pass++) {
        double start = cli_seconds();
        cli_workers_run(workers, part, job);
        double taken = cli_seconds() - start;
        if (pass == 0 || taken < best)
            best = taken;
    }
    return best;
}

static int measure_reading(cli_workers *workers, double *gbps) {
    const size_t bytes = read_bytes();
    read_job job = {.n_pieces = (int32_t)(bytes / HUGE_PAGE)};
    void *memory = NULL;
    if (posix_memalign(&memory, HUGE_PAGE, bytes) != 0) {
        cli_error(
            "out of memory for measuring the read bandwidth (%zu MiB); --no-limits skips this",
            bytes >> 20);
        return CLI_FAILURE;
    }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(memory, bytes, MADV_HUGEPAGE); /* as the pool does */
#endif
    job.bytes = memory;
    cli_workers_run(workers, touch_part, &job);
    /* Kernels fetch their pages ahead, and some processors read faster so. */
    static const size_t AHEAD[] = {0, 1024, 4096};
    *gbps = 0;
    for (size_t i = 0; i < sizeof AHEAD / sizeof *AHEAD; i++) {
        job.ahead = AHEAD[i];
        const double seconds = best_seconds(workers, read_part, &job, READ_PASSES),
                     found = 1e-9 * (double)job.n_pieces * HUGE_PAGE / seconds;
        *gbps = found > *gbps ? found : *gbps;
    }
    free(memory);
    return CLI_OK;
}

/* ------------------------------------------------------------------ integer peak */

typedef struct int8_job {
    cli_int8_probe probe;
    long rounds;
} int8_job;

static void int8_part(void *user, int32_t ith, int32_t nth) {
    const int8_job *job = user;
    (void)ith, (void)nth;
    job->probe.run(job->rounds);
}

static void measure_int8(cli_workers *workers, int32_t n_workers, const char *isa,
                         cli_machine *machine) {
    int8_job job = {.probe = cli_int8_probe_of(isa), .rounds = 1000};
    double seconds = best_seconds(workers, int8_part, &job, INT8_PASSES);
    while (seconds < INT8_SECONDS / 2) { /* make the start of the workers negligible */
        job.rounds *= seconds < INT8_SECONDS / 16 ? 8 : 2;
        seconds = best_seconds(workers, int8_part, &job, INT8_PASSES);
    }
    machine->gmacs = 1e-9 * (double)job.rounds * job.probe.macs_per_round * n_workers / seconds;
    machine->instructions = job.probe.instructions;
}

int cli_machine_measure(const char *isa, int32_t n_workers, cli_machine *machine) {
    cli_workers *workers = cli_workers_start(n_workers);
    if (!workers)
        return CLI_FAILURE;
    int status = measure_reading(workers, &machine->read_gbps);
    if (status == CLI_OK)
        measure_int8(workers, n_workers, isa, machine);
    cli_workers_stop(workers);
    return status;
}
