/* cmd_bench_attn.c: quire bench attn. Times attention over a quantized cache. */
#include "bench/bench_attn.h"
#include "bench/machine.h"
#include "command.h"
#include "options/args.h"
#include "options/comma_list.h"
#include "output/report.h"
#include "output/text_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS_MAX = 1 << 24,
    ROWS_MAX = 8192,
    LAYERS_MAX = 1024,
    REPEAT_MAX = 100000,
    SINKS_MAX = QUIRE_PAGE_TOKENS
};

typedef struct bench_options {
    const char *shape, *kv, *ctx;
    int32_t sinks, raw, n_workers, seed;
    cli_bench_attn bench;
    bool no_check, no_limits, json;
} bench_options;

/* One entry of --kv. */
typedef struct bench_entry {
    const char *kv;
    cli_cache_options options;
    cli_bench_attn_result *results; /* (n_depths) */
} bench_entry;

typedef struct name_list {
    char **names; /* cli_list_split */
    size_t n;
} name_list;

typedef struct bench_run {
    const bench_options *chosen;
    cli_shape shape;
    name_list kvs, ctxs;
    int32_t *depths;
    bench_entry *entries; /* (kvs.n) */
    cli_bench_attn_result *results;
    cli_machine machine; /* NaN: left out */
} bench_run;

/* ------------------------------------------------------------------ report */

/* Shares compare best with best: the limits are also the best of several passes. */
static double share_of_bandwidth(const bench_run *run, const cli_bench_attn_result *result) {
    return result->best_gbps / run->machine.read_gbps;
}

/* Raw pages are multiplied as floats, which the integer peak does not limit. */
static double share_of_peak(const bench_run *run, const bench_entry *entry,
                            const cli_bench_attn_result *result) {
    const quire_pair pair = entry->options.policy.pair;
    return cli_codec_is_raw(pair.k) || cli_codec_is_raw(pair.v)
               ? NAN
               : result->best_gmacs / run->machine.gmacs;
}

static json_t *result_json(const bench_run *run, const bench_entry *entry,
                           const cli_bench_attn_result *result) {
    const bench_options *chosen = run->chosen;
    const cli_machine *machine = &run->machine;
    json_t *work = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:o, s:i, s:I}", "kv", entry->kv, "pair",
        cli_pair_text(entry->options.policy.pair).text, "shape", cli_shape_text(&run->shape).text,
        "ctx", (int)result->depth, "rows", (int)chosen->bench.n_rows, "layers",
        (int)chosen->bench.n_layers, "threads", (int)chosen->n_workers, "isa", result->isa,
        "kernel", result->kernel, "bits_per_element", cli_json_number(result->bits_per_element),
        "repeats", (int)result->n_repeat, "fallbacks", (json_int_t)result->fallbacks);
    json_t *speed = json_pack(
        "{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "ms", cli_json_number(result->median_ms),
        "ms_best", cli_json_number(result->best_ms), "ns_per_token",
        cli_json_number(result->ns_per_token), "bytes_read", (json_int_t)result->bytes_read, "gbps",
        cli_json_number(result->gbps), "gmacs", cli_json_number(result->gmacs), "rows_per_s",
        cli_json_number(result->rows_per_s), "rel_err", cli_json_number(result->errors.rel_err),
        "codec_err", cli_json_number(result->errors.codec_err));
    json_t *limits =
        json_pack("{s:o, s:o, s:s?, s:o, s:o}", "machine_gbps", cli_json_number(machine->read_gbps),
                  "machine_gmacs", cli_json_number(machine->gmacs), "machine_instructions",
                  machine->instructions, "share_of_bandwidth",
                  cli_json_number(share_of_bandwidth(run, result)), "share_of_peak",
                  cli_json_number(share_of_peak(run, entry, result)));
    if (json_object_update(work, speed) != 0 || json_object_update(work, limits) != 0) {
        json_decref(work);
        work = NULL;
    }
    json_decref(speed);
    json_decref(limits);
    return work;
}

static int print_json(const bench_run *run) {
    const size_t n_depths = run->chosen->bench.n_depths;
    json_t *list = json_array();
    for (size_t i = 0; i < run->kvs.n; i++)
        for (size_t j = 0; j < n_depths; j++)
            cli_json_append(&list, result_json(run, &run->entries[i], &run->entries[i].results[j]));
    return cli_print_entries(list);
}

static void percent_cell(cli_table *table, double share) {
    if (isnan(share))
        cli_table_cell(table, "-");
    else
        cli_table_cell(table, "%.1f", 100 * share);
}

static void print_heading(const bench_run *run) {
    const bench_options *chosen = run->chosen;
    printf("attention: %s, %d %s, %d %s, %d %s, kernels %s\n", cli_shape_text(&run->shape).text,
           (int)chosen->bench.n_rows, chosen->bench.n_rows == 1 ? "row" : "rows",
           (int)chosen->bench.n_layers, chosen->bench.n_layers == 1 ? "layer" : "layers",
           (int)chosen->n_workers, chosen->n_workers == 1 ? "thread" : "threads",
           run->results[0].isa);
    if (!chosen->no_limits)
        printf("machine:   reads %.1f GB/s, %.0f int8 GMAC/s (%s), with the same threads\n",
               run->machine.read_gbps, run->machine.gmacs, run->machine.instructions);
    printf("\n");
}

static int print_text(const bench_run *run) {
    static const cli_column columns[] = {
        {"kv", false},
        {"K:V", false},
        {"kernel", false},
        {"ctx", true},
        {"bits", true},
        {"ms", true},
        {"best", true},
        {"ns/token", true},
        {"read", true},
        {"GB/s", true},
        {"% of read", true},
        {"GMAC/s", true},
        {"% of int8 peak", true},
        {"rows/s", true},
        {"rel_err", true},
        {"codec_err", true},
    };
    print_heading(run);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < run->kvs.n * run->chosen->bench.n_depths; i++) {
        const bench_entry *entry = &run->entries[i / run->chosen->bench.n_depths];
        const cli_bench_attn_result *result = &run->results[i];
        cli_table_cell(&table, "%s", entry->kv);
        cli_table_cell(&table, "%s", cli_pair_text(entry->options.policy.pair).text);
        cli_table_cell(&table, "%s", result->kernel);
        cli_table_cell(&table, "%d", (int)result->depth);
        cli_table_cell(&table, "%s", cli_bits(result->bits_per_element).text);
        cli_table_cell(&table, "%.3f", result->median_ms);
        cli_table_cell(&table, "%.3f", result->best_ms);
        cli_table_cell(&table, "%.1f", result->ns_per_token);
        cli_table_cell(&table, "%s", cli_bytes(result->bytes_read).text);
        cli_table_cell(&table, "%.2f", result->gbps);
        percent_cell(&table, share_of_bandwidth(run, result));
        cli_table_cell(&table, "%.2f", result->gmacs);
        percent_cell(&table, share_of_peak(run, entry, result));
        cli_table_cell(&table, "%.1f", result->rows_per_s);
        cli_table_cell(&table, "%s", cli_rel_error(result->errors.rel_err).text);
        cli_table_cell(&table, "%s", cli_rel_error(result->errors.codec_err).text);
    }
    return cli_table_print(&table, stdout);
}

/* A warning on stderr, so that the result is still printed: it times the reference, not the
 * kernel. */
static void warn_of_fallbacks(const bench_run *run) {
    for (size_t i = 0; i < run->kvs.n * run->chosen->bench.n_depths; i++) {
        uint64_t fallbacks = run->results[i].fallbacks;
        if (!fallbacks)
            continue;
        cli_error(
            "warning: %s: the kernel does not support %llu work items; the slow reference ran them",
            run->entries[i / run->chosen->bench.n_depths].kv, (unsigned long long)fallbacks);
    }
}

/* ------------------------------------------------------------------ run */

static bool parse_depths(const bench_run *run) {
    for (size_t i = 0; i < run->ctxs.n; i++) {
        char allowed[64];
        const cli_option option = cli_int("ctx", &run->depths[i], 0, TOKENS_MAX, "");
        if (!cli_option_assign(&option, run->ctxs.names[i])) {
            cli_option_allowed(&option, allowed, sizeof allowed);
            cli_error("--ctx: '%s' is not %s", run->ctxs.names[i], allowed);
            return false;
        }
        if (i > 0 && run->depths[i] <= run->depths[i - 1]) {
            cli_error("--ctx: %s does not follow %s; give the numbers in ascending order",
                      run->ctxs.names[i], run->ctxs.names[i - 1]);
            return false;
        }
    }
    return true;
}

/* Checks all entries before the first is measured: a misspelt last one should not cost minutes. */
static int prepare(bench_run *run) {
    const bench_options *chosen = run->chosen;
    if (!cli_shape_parse(chosen->shape, &run->shape))
        return CLI_USAGE;
    if (chosen->bench.n_layers > 1 && chosen->bench.n_rows > 1) {
        cli_error("--layers %d needs --rows 1: only decode can be timed in several layers",
                  (int)chosen->bench.n_layers);
        return CLI_USAGE;
    }
    run->kvs.names = cli_list_split(chosen->kv, &run->kvs.n);
    run->ctxs.names = cli_list_split(chosen->ctx, &run->ctxs.n);
    if (!run->kvs.names || !run->ctxs.names)
        return CLI_FAILURE;
    run->depths = calloc(run->ctxs.n, sizeof *run->depths);
    run->entries = calloc(run->kvs.n, sizeof *run->entries);
    run->results = calloc(run->kvs.n * run->ctxs.n, sizeof *run->results);
    if (!run->depths || !run->entries || !run->results)
        return cli_quire_error("cannot measure", QUIRE_E_NOMEM, "out of memory");
    if (!parse_depths(run))
        return CLI_USAGE;
    for (size_t i = 0; i < run->kvs.n; i++) {
        bench_entry *entry = &run->entries[i];
        cli_cache_options *options = &entry->options;
        entry->kv = run->kvs.names[i];
        entry->results = run->results + i * run->ctxs.n;
        *options = (cli_cache_options){.shape = run->shape,
                                       .raw = (quire_type)chosen->raw,
                                       .n_workers = chosen->n_workers,
                                       .seed = (uint64_t)chosen->seed};
        if (!cli_policy_parse(entry->kv, chosen->sinks, &options->policy) ||
            !cli_policy_fits(entry->kv, &options->policy, &options->shape, options->raw)) {
            return CLI_USAGE;
        }
    }
    return CLI_OK;
}

static int bench_all(bench_options *chosen) {
    bench_run run = {.chosen = chosen, .machine = {.read_gbps = NAN, .gmacs = NAN}};
    int status = prepare(&run);
    chosen->bench.depths = run.depths;
    chosen->bench.n_depths = run.ctxs.n;
    for (size_t i = 0; status == CLI_OK && i < run.kvs.n; i++)
        status =
            cli_bench_attn_measure(&chosen->bench, &run.entries[i].options, run.entries[i].results);
    if (status == CLI_OK && !chosen->no_limits)
        status = cli_machine_measure(run.results[0].isa, chosen->n_workers, &run.machine);
    if (status == CLI_OK) {
        warn_of_fallbacks(&run);
        status = chosen->json ? print_json(&run) : print_text(&run);
    }
    free(run.depths);
    free(run.entries);
    free(run.results);
    free(run.kvs.names);
    free(run.ctxs.names);
    return status;
}

int cli_bench_attn_run(int argc, char **argv) {
    bench_options chosen = {.shape = "32x8x128",
                            .kv = "k4v4",
                            .ctx = "4096",
                            .sinks = -1,
                            .raw = QUIRE_F16,
                            .n_workers = cli_workers_default(),
                            .seed = 1,
                            .bench = {.n_rows = 1, .n_layers = 1, .min_seconds = 0.5}};
    const cli_option options[] = {
        cli_string("shape", &chosen.shape, "HxGxD", CLI_SHAPE_HELP),
        cli_string("ctx", &chosen.ctx, "N,..",
                   "tokens in the cache before the query rows; a list must be ascending"),
        cli_int("rows", &chosen.bench.n_rows, 1, ROWS_MAX, "query rows per call; 1 is decode"),
        cli_int("layers", &chosen.bench.n_layers, 1, LAYERS_MAX,
                "layers that a call attends in turn, each with a cache of its own; results are "
                "the mean of one layer. As many as a model has keep the processor's caches as "
                "cold as they are in a model; needs --rows 1"),
        cli_string("kv", &chosen.kv, "NAME,..", "presets or pairs K:V, see 'quire codecs'"),
        cli_int("sinks", &chosen.sinks, 0, SINKS_MAX, CLI_SINKS_HELP),
        cli_choice("raw", &chosen.raw, cli_raw_names, CLI_RAW_HELP),
        cli_with_letter(cli_int("threads", &chosen.n_workers, 1, CLI_WORKERS_MAX, CLI_WORKERS_HELP),
                        't'),
        cli_int("repeat", &chosen.bench.n_repeat, 1, REPEAT_MAX,
                "number of timed calls (default: 3 to 1000, as --min-time allows; 1 if a call "
                "takes over 5 s)"),
        cli_float("min-time", &chosen.bench.min_seconds, 0, 3600,
                  "seconds to spend on timed calls"),
        cli_flag("no-check", &chosen.no_check,
                 "do not compute rel_err and codec_err, which takes longer than the timing"),
        cli_flag("no-limits", &chosen.no_limits,
                 "do not measure the limits of the machine, which takes half a second"),
        cli_int("seed", &chosen.seed, 0, INT32_MAX, "seed of the synthetic rows"),
        cli_flag("json", &chosen.json,
                 "print JSON: an object, or an array for more than one --kv or --ctx"),
    };
    static const char *const examples[] = {
        "quire bench attn --shape 32x8x128 --ctx 32768 --kv k4v4 -t 2 --json",
        "quire bench attn --rows 512 --kv none,k8v4,k4v4",
        "quire bench attn --ctx 1024,4096,16384,65536,262144 --no-check",
        "quire bench attn --layers 32 --ctx 1024 --kv none,k8v4",
        NULL,
    };
    const cli_usage usage = {
        .command = "bench attn",
        .about =
            "Times attention alone: query rows over a cache of synthetic tokens, in one layer or "
            "in --layers.\n"
            "ms is the median time of a call; ns/token is the best time divided by rows and "
            "tokens, which stays constant if the cost is linear in the context. rel_err is the "
            "relative L2 error against fp64 attention over the values in the cache, codec_err "
            "against fp64 attention over the original rows; both use up to three rows.\n"
            "The limits of the machine are measured in the same run with the same threads: the "
            "bandwidth of reading memory, and int8 multiply-accumulates per second with the "
            "best instructions of the kernels in use. GMAC/s counts the products of K.q and "
            "p.V once, although 8-bit codes need two passes. Percentages use the best time.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    chosen.bench.check = !chosen.no_check;
    return bench_all(&chosen);
}
