/* cmd_bench.c: the commands of quire bench. */
#include "command.h"

#include <stddef.h>

const cli_command cli_bench_commands[] = {
    {"attn", "time attention over a quantized cache of synthetic tokens", cli_bench_attn_run, NULL},
#if QUIRE_ENGINE
    {"model", "time prefill and decode of a model at a depth", cli_bench_model_run, NULL},
#endif
    {"ops", "time cache operations: merge, extract, filter, trim, requantize", cli_bench_ops_run,
     NULL},
    {"save", "time saving and restoring a cache, compared with the disk", cli_bench_save_run, NULL},
    {"seal", "time the quantization of pages", cli_bench_seal_run, NULL},
    {NULL, NULL, NULL, NULL},
};
