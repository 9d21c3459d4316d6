/* machine.h: what this machine could do at best, measured in the same run as what it did. */
#ifndef CLI_BENCH_MACHINE_H
#define CLI_BENCH_MACHINE_H

#include "options/workers.h"

typedef struct cli_machine {
    double read_gbps; /* all workers streaming through memory far larger than the caches */
    double gmacs; /* 1e9 products of int8 summed in int32 per second, all workers, operands in L1 */
    const char *instructions; /* what multiplied */
} cli_machine;

/* isa: the kernel level in use, whose best instructions are taken. Best of several passes; well
 * under a second. Returns an exit status. */
int cli_machine_measure(const char *isa, int32_t n_workers, cli_machine *machine);

/* ---- in machine_int8.c */

/* Multiplies and accumulates int8, `rounds` times `macs_per_round`. */
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
