/* inspect_report.h: the report of `quire inspect` on a synthetic cache. */
#ifndef CLI_REPORTS_INSPECT_REPORT_H
#define CLI_REPORTS_INSPECT_REPORT_H

#include "bench/synth_cache.h"

#include "quire.h"

typedef struct cli_inspection {
    cli_cache_options options;
    const char *kv; /* as typed */
    const char *isa;
    int32_t attended_rows;
    quire_pool_stats pool;
    quire_layer_stats *layers; /* (options.n_layers) */
    uint64_t fallbacks;        /* of all layers */
    uint64_t kv_bytes;         /* resident, of every kind */
    uint64_t kv_bytes_bf16;    /* the same tokens in bf16 */
} cli_inspection;

int cli_inspection_print_text(const cli_inspection *inspection); /* exit status */
int cli_inspection_print_json(const cli_inspection *inspection);

#endif
