/* cmd_bench_attn.c: quire bench attn. */
#include "args.h"
#include "bench_attn.h"
#include "command.h"
#include "report.h"
#include "text_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24, ROWS_MAX = 8192, REPEAT_MAX = 100000, SINKS_MAX = QUIRE_PAGE_TOKENS };

typedef struct bench_options {
    const char *shape, *kv;
    int32_t sinks, raw, n_workers, seed;
    cli_bench_attn bench;
    bool no_check, json;
} bench_options;

/* One entry of --kv. */
typedef struct bench_entry {
    const char *kv;
    cli_cache_options options;
    cli_bench_attn_result result;
} bench_entry;

typedef struct bench_run {
    const bench_options *chosen;
    cli_shape shape;
    char *names; /* --kv, its commas replaced by ends of string */
    bench_entry *entries;
    size_t n_entries;
} bench_run;

/* ------------------------------------------------------------------ report */

static json_t *entry_json(const bench_run *run, const bench_entry *entry) {
    const bench_options *chosen = run->chosen;
    const cli_bench_attn_result *result = &entry->result;
    return json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "kv",
        entry->kv, "pair", cli_pair_text(entry->options.policy.pair).text, "shape", cli_shape_text(&run->shape).text,
        "ctx", (int)chosen->bench.depth, "rows", (int)chosen->bench.n_rows, "threads", (int)chosen->n_workers, "isa",
        result->isa, "kernel", result->kernel, "bits_per_element", cli_json_number(result->bits_per_element), "ms",
        cli_json_number(result->median_ms), "ms_best", cli_json_number(result->best_ms), "repeats",
        (int)result->n_repeat, "bytes_read", (json_int_t)result->bytes_read, "gbps", cli_json_number(result->gbps),
        "gflops", cli_json_number(result->gflops), "rows_per_s", cli_json_number(result->rows_per_s), "rel_err",
        cli_json_number(result->errors.rel_err), "codec_err", cli_json_number(result->errors.codec_err), "fallbacks",
        (json_int_t)result->fallbacks);
}

static int print_json(const bench_run *run) {
    if (run->n_entries == 1)
        return cli_print_json(entry_json(run, &run->entries[0]));
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_entries; i++)
        cli_json_append(&list, entry_json(run, &run->entries[i]));
    return cli_print_json(list);
}

static int print_text(const bench_run *run) {
    static const cli_column columns[] = {
        {"kv", false},     {"K:V", false},   {"kernel", false}, {"bits/element", true},
        {"ms", true},      {"best", true},   {"read", true},    {"GB/s", true},
        {"GFLOP/s", true}, {"rows/s", true}, {"rel_err", true}, {"codec_err", true},
    };
    const bench_options *chosen = run->chosen;
    printf("attention: %s, %d %s at depth %d, %d %s, kernels %s\n\n", cli_shape_text(&run->shape).text,
           (int)chosen->bench.n_rows, chosen->bench.n_rows == 1 ? "row" : "rows", (int)chosen->bench.depth,
           (int)chosen->n_workers, chosen->n_workers == 1 ? "thread" : "threads", run->entries[0].result.isa);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < run->n_entries; i++) {
        const bench_entry *entry = &run->entries[i];
        const cli_bench_attn_result *result = &entry->result;
        cli_table_cell(&table, "%s", entry->kv);
        cli_table_cell(&table, "%s", cli_pair_text(entry->options.policy.pair).text);
        cli_table_cell(&table, "%s", result->kernel);
        cli_table_cell(&table, "%s", cli_bits(result->bits_per_element).text);
        cli_table_cell(&table, "%.3f", result->median_ms);
        cli_table_cell(&table, "%.3f", result->best_ms);
        cli_table_cell(&table, "%s", cli_bytes(result->bytes_read).text);
        cli_table_cell(&table, "%.2f", result->gbps);
        cli_table_cell(&table, "%.2f", result->gflops);
        cli_table_cell(&table, "%.1f", result->rows_per_s);
        cli_table_cell(&table, "%s", cli_rel_error(result->errors.rel_err).text);
        cli_table_cell(&table, "%s", cli_rel_error(result->errors.codec_err).text);
    }
    return cli_table_print(&table, stdout);
}

/* Told apart from the result, which is still worth having: a fallback times the reference, not the kernel. */
static void warn_of_fallbacks(const bench_run *run) {
    for (size_t i = 0; i < run->n_entries; i++) {
        uint64_t fallbacks = run->entries[i].result.fallbacks;
        if (!fallbacks)
            continue;
        cli_error("warning: %s: the kernel declined %llu work items, which the reference ran", run->entries[i].kv,
                  (unsigned long long)fallbacks);
    }
}

/* ------------------------------------------------------------------ run */

/* The parts of --kv; an empty part stays and is refused with its name, ''. */
static int split_names(bench_run *run) {
    size_t n_bytes = strlen(run->chosen->kv) + 1;
    run->n_entries = 1;
    for (const char *at = run->chosen->kv; *at; at++)
        run->n_entries += *at == ',';
    run->names = malloc(n_bytes);
    run->entries = calloc(run->n_entries, sizeof *run->entries);
    if (!run->names || !run->entries)
        return cli_quire_error("cannot measure", QUIRE_E_NOMEM, "out of memory");
    memcpy(run->names, run->chosen->kv, n_bytes);
    char *name = run->names;
    for (size_t i = 0; i < run->n_entries; i++) {
        run->entries[i].kv = name;
        name += strcspn(name, ",");
        *name++ = '\0';
    }
    return CLI_OK;
}

/* All entries before the first is measured: a misspelt last one should not cost minutes. */
static int prepare_entries(bench_run *run) {
    const bench_options *chosen = run->chosen;
    if (!cli_shape_parse(chosen->shape, &run->shape))
        return CLI_USAGE;
    int status = split_names(run);
    if (status != CLI_OK)
        return status;
    for (size_t i = 0; i < run->n_entries; i++) {
        bench_entry *entry = &run->entries[i];
        cli_cache_options *options = &entry->options;
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

static int bench_all(const bench_options *chosen) {
    bench_run run = {.chosen = chosen};
    int status = prepare_entries(&run);
    for (size_t i = 0; status == CLI_OK && i < run.n_entries; i++) {
        status = cli_bench_attn_measure(&chosen->bench, &run.entries[i].options, &run.entries[i].result);
    }
    if (status == CLI_OK) {
        warn_of_fallbacks(&run);
        status = chosen->json ? print_json(&run) : print_text(&run);
    }
    free(run.entries);
    free(run.names);
    return status;
}

int cli_bench_attn_run(int argc, char **argv) {
    bench_options chosen = {.shape = "32x8x128",
                            .kv = "k4v4",
                            .sinks = -1,
                            .raw = QUIRE_F16,
                            .n_workers = cli_workers_default(),
                            .seed = 1,
                            .bench = {.n_rows = 1, .depth = 4096, .min_seconds = 0.5}};
    const cli_option options[] = {
        cli_string("shape", &chosen.shape, "HxGxD", "query heads x KV heads x head size, or HxGxDKxDV"),
        cli_int("ctx", &chosen.bench.depth, 0, TOKENS_MAX, "tokens in the cache before the rows"),
        cli_int("rows", &chosen.bench.n_rows, 1, ROWS_MAX, "query rows of one attend; 1 is decode"),
        cli_string("kv", &chosen.kv, "NAME,..", "presets or K:V pairs, see 'quire codecs'"),
        cli_int("sinks", &chosen.sinks, 0, SINKS_MAX, "first tokens that stay raw (default: as --kv has it)"),
        cli_choice("raw", &chosen.raw, cli_raw_names, "type of raw rows: f16, bf16 or f32"),
        cli_with_letter(cli_int("threads", &chosen.n_workers, 1, CLI_WORKERS_MAX, "workers"), 't'),
        cli_int("repeat", &chosen.bench.n_repeat, 1, REPEAT_MAX, "timed attends (default: 3 or more, see --min-time)"),
        cli_float("min-time", &chosen.bench.min_seconds, 0, 3600, "seconds to spend on repeats"),
        cli_flag("no-check", &chosen.no_check, "leave out rel_err and codec_err, which take longer than the timing"),
        cli_int("seed", &chosen.seed, 0, INT32_MAX, "of the made-up rows"),
        cli_flag("json", &chosen.json, "print JSON: an object, or an array for more than one --kv"),
    };
    static const char *const examples[] = {
        "quire bench attn --shape 32x8x128 --ctx 32768 --kv k4v4 -t 2 --json",
        "quire bench attn --rows 512 --kv none,k8v4,k4v4",
        NULL,
    };
    const cli_usage usage = {
        .command = "bench attn",
        .about = "Times attention alone: query rows over a cache of made-up tokens in one layer. ms is the median.\n"
                 "rel_err: output against fp64 attention over the values the cache holds; codec_err: over the rows as\n"
                 "they were given. Both are relative L2 errors of up to three of the rows.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    chosen.bench.check = !chosen.no_check;
    return bench_all(&chosen);
}
