/* cmd_inspect.c: quire inspect. Reports on a saved cache, or on one filled with synthetic tokens.
 */
#include "bench/synth_cache.h"
#include "command.h"
#include "options/args.h"
#include "output/report.h"
#include "reports/inspect_file.h"
#include "reports/inspect_report.h"

#include <stdlib.h>

enum { ATTENDED_ROWS = 16, LAYERS_MAX = 1024, TOKENS_MAX = 1 << 24, SINKS_MAX = QUIRE_PAGE_TOKENS };

typedef struct inspect_options {
    const char *shape, *kv;
    int32_t n_layers, n_tokens, sinks, window, keep, raw, n_workers, seed;
    size_t budget_bytes;
    bool json;
} inspect_options;

/* The last few tokens attend, so that the counters of bytes read are not zero. */
static int fill_and_attend(cli_cache *cache, int32_t n_tokens) {
    int32_t n_rows = cache->options.attend_rows;
    int status = cli_cache_fill(cache, n_tokens - n_rows);
    if (status == CLI_OK)
        status = cli_cache_begin(cache, n_rows);
    for (int32_t layer = 0; status == CLI_OK && layer < cache->options.n_layers; layer++) {
        status = cli_cache_append(cache, layer);
        if (status != CLI_OK)
            break;
        cli_cache_make_queries(cache, layer);
        status = cli_cache_attend(cache, layer);
    }
    return status == CLI_OK ? cli_cache_commit(cache) : status;
}

/* A bf16 cache would drop the tokens outside the window too. */
static uint64_t bf16_bytes(const cli_cache_options *options) {
    int64_t n_tokens = options->max_tokens;
    if (options->window && n_tokens > (int64_t)options->window + options->keep) {
        n_tokens = (int64_t)options->window + options->keep;
    }
    const cli_shape *shape = &options->shape;
    return (uint64_t)n_tokens * (uint64_t)options->n_layers * (uint64_t)shape->n_kv_heads *
           (uint64_t)(shape->k_dim + shape->v_dim) * 2;
}

static int report(const cli_cache *cache, const inspect_options *chosen) {
    cli_inspection inspection = {.options = cache->options,
                                 .kv = chosen->kv,
                                 .isa = quire_pool_isa(cache->pool),
                                 .attended_rows = cache->options.attend_rows,
                                 .kv_bytes_bf16 = bf16_bytes(&cache->options)};
    int32_t n_layers = cache->options.n_layers;
    inspection.layers = calloc((size_t)n_layers, sizeof *inspection.layers);
    if (!inspection.layers)
        return cli_quire_error("cannot print the report", QUIRE_E_NOMEM, "out of memory");

    quire_status status = QUIRE_OK;
    for (int32_t i = 0; status == QUIRE_OK && i < n_layers; i++) {
        status = quire_layer_get_stats(cache->pool, i, &inspection.layers[i]);
        inspection.fallbacks += inspection.layers[i].fallbacks;
    }
    quire_pool_get_stats(cache->pool, &inspection.pool);
    const quire_pool_stats *pool = &inspection.pool;
    inspection.kv_bytes = pool->sealed_bytes + pool->open_bytes + pool->last_raw_bytes +
                          pool->sink_bytes + pool->shadow_bytes;

    int result;
    if (status != QUIRE_OK) {
        result = cli_quire_error("cannot read the statistics of a layer", status, NULL);
    } else {
        result = chosen->json ? cli_inspection_print_json(&inspection)
                              : cli_inspection_print_text(&inspection);
    }
    free(inspection.layers);
    return result;
}

static int inspect(const inspect_options *chosen) {
    cli_cache_options options = {
        .n_layers = chosen->n_layers,
        .max_tokens = chosen->n_tokens,
        .attend_rows = chosen->n_tokens < ATTENDED_ROWS ? chosen->n_tokens : ATTENDED_ROWS,
        .window = chosen->window,
        .keep = chosen->keep,
        .raw = (quire_type)chosen->raw,
        .budget_bytes = chosen->budget_bytes,
        .n_workers = chosen->n_workers,
        .seed = (uint64_t)chosen->seed,
    };
    if (!cli_shape_parse(chosen->shape, &options.shape) ||
        !cli_policy_parse(chosen->kv, chosen->sinks, &options.policy) ||
        !cli_policy_fits(chosen->kv, &options.policy, &options.shape, options.raw)) {
        return CLI_USAGE;
    }
    cli_cache cache;
    int status = cli_cache_open(&cache, &options);
    if (status == CLI_OK)
        status = fill_and_attend(&cache, chosen->n_tokens);
    if (status == CLI_OK)
        status = report(&cache, chosen);
    cli_cache_close(&cache);
    return status;
}

int cli_inspect_run(int argc, char **argv) {
    inspect_options chosen = {.shape = "32x8x128",
                              .kv = "k4v4",
                              .n_layers = 4,
                              .n_tokens = 4096,
                              .sinks = -1,
                              .raw = QUIRE_F16,
                              .n_workers = cli_workers_default(),
                              .seed = 1};
    const cli_option options[] = {
        cli_string("shape", &chosen.shape, "HxGxD", CLI_SHAPE_HELP),
        cli_int("layers", &chosen.n_layers, 1, LAYERS_MAX, "number of layers"),
        cli_int("ctx", &chosen.n_tokens, 1, TOKENS_MAX, "number of tokens"),
        cli_string("kv", &chosen.kv, "NAME", "a preset or a pair K:V, see 'quire codecs'"),
        cli_int("sinks", &chosen.sinks, 0, SINKS_MAX, CLI_SINKS_HELP),
        cli_int("window", &chosen.window, 1, TOKENS_MAX,
                "every layer attends to the last N tokens only (default: to all)"),
        cli_int("keep", &chosen.keep, 0, TOKENS_MAX,
                "first tokens that stay visible outside the window"),
        cli_choice("raw", &chosen.raw, cli_raw_names, CLI_RAW_HELP),
        cli_size("budget", &chosen.budget_bytes, 1, 0x1p50,
                 "size of the pool, e.g. 64M (default: as much as the tokens need)"),
        cli_with_letter(cli_int("threads", &chosen.n_workers, 1, CLI_WORKERS_MAX, CLI_WORKERS_HELP),
                        't'),
        cli_int("seed", &chosen.seed, 0, INT32_MAX, "seed of the synthetic rows"),
        cli_flag("json", &chosen.json, "print JSON"),
    };
    const char *path = NULL;
    const cli_argument arguments[] = {{"FILE", &path, false}};
    static const char *const examples[] = {
        "quire inspect book.quire",
        "quire inspect --kv k8v4 --ctx 8192",
        "quire inspect --shape 16x2x64 --layers 28 --ctx 2000 --kv kc4:vt4 --sinks 0",
        "quire inspect --window 1024 --keep 4 --ctx 10000 --json",
        NULL,
    };
    const cli_usage usage = {.command = "inspect",
                             .about =
                                 "With FILE, a cache that 'quire run --save' wrote: checks every "
                                 "byte of it and prints what "
                                 "it contains. The exit status is 1 if the file is damaged. Only "
                                 "--json applies.\n"
                                 "Without FILE: fills a cache with synthetic tokens and prints how "
                                 "its bytes are used, which kernels read it, and its size compared "
                                 "with a bf16 cache.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .arguments = arguments,
                             .n_arguments = 1,
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    return path ? cli_inspect_file(path, chosen.json) : inspect(&chosen);
}
