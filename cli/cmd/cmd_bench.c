/* cmd_bench.c: quire bench: what can be measured. */
#include "command.h"

#include <stddef.h>

const cli_command cli_bench_commands[] = {
    {"attn", "time attention over a packed cache of made-up tokens", cli_bench_attn_run, NULL},
#if QUIRE_ENGINE
    {"model", "time a model: prefill and decode at a depth", cli_bench_model_run, NULL},
#endif
    {"ops", "time what is done to caches between tokens", cli_bench_ops_run, NULL},
    {"save", "time saving and restoring beside the disk itself", cli_bench_save_run, NULL},
    {"seal", "time the packing of pages", cli_bench_seal_run, NULL},
    {NULL, NULL, NULL, NULL},
};
