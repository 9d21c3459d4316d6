/* machine.h: measures the limits of this machine: read bandwidth and int8 peak. */
#ifndef CLI_BENCH_MACHINE_H
#define CLI_BENCH_MACHINE_H

#include "options/workers.h"

typedef struct cli_machine {
    double read_gbps; /* all workers reading memory far larger than the caches */
    double gmacs;     /* 1e9 int8 multiply-accumulates per second, all workers, operands in L1 */
    const char *instructions; /* the instructions that multiplied */
} cli_machine;

/* Uses the best instructions of kernel level `isa`. Takes the best of several passes, in well under
 * a second. Returns an exit status. */
int cli_machine_measure(const char *isa, int32_t n_workers, cli_machine *machine);

/* ---- in machine_int8.c */

/* run(rounds) does rounds * macs_per_round int8 multiply-accumulates. */
typedef struct cli_int8_probe {
    const char *instructions;
    double macs_per_round;
    void (*run)(long rounds);
} cli_int8_probe;

cli_int8_probe cli_int8_probe_of(const char *isa);

#if defined(__aarch64__)
void cli_int8_sdot(long rounds),
    cli_int8_smmla(long rounds); /* machine_int8_arm.c, compiled for these */
#endif

#endif
