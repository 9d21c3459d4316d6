/* cmd_bench_seal.c: quire bench seal. Times the quantization of pages. */
#include "bench/bench_seal.h"
#include "command.h"
#include "options/args.h"
#include "options/comma_list.h"
#include "output/report.h"
#include "output/text_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seal_options {
    const char *shape, *kv;
    int32_t raw, seed;
    double min_seconds;
    bool plain, json;
} seal_options;

/* One entry of --kv. */
typedef struct seal_entry {
    const char *kv;
    cli_cache_options options;
    cli_bench_seal_result result;
} seal_entry;

/* ------------------------------------------------------------------ report */

static json_t *entry_json(const seal_entry *entry) {
    const cli_bench_seal_result *result = &entry->result;
    const cli_shape *shape = &entry->options.shape;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:i}", "kv", entry->kv, "pair",
                     cli_pair_text(entry->options.policy.pair).text, "shape",
                     cli_shape_text(shape).text, "raw", cli_raw_names[entry->options.raw], "isa",
                     result->isa, "page_bytes", (json_int_t)result->page_bytes, "us_seal",
                     cli_json_number(result->seal_us), "us_append",
                     cli_json_number(result->append_us), "mb_per_s",
                     cli_json_number(result->mb_per_s), "repeats", (int)result->n_repeat);
}

static int print_json(const seal_entry *entries, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, entry_json(&entries[i]));
    return cli_print_entries(list);
}

static int print_text(const seal_entry *entries, size_t n) {
    static const cli_column columns[] = {
        {"kv", false},     {"K:V", false},    {"page", true},
        {"us seal", true}, {"MB/s in", true}, {"us append", true},
    };
    printf("sealing: %s, %s rows, one thread, kernels %s; us per page of %d tokens and KV head\n\n",
           cli_shape_text(&entries[0].options.shape).text, cli_raw_names[entries[0].options.raw],
           entries[0].result.isa, QUIRE_PAGE_TOKENS);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n; i++) {
        const cli_bench_seal_result *result = &entries[i].result;
        cli_table_cell(&table, "%s", entries[i].kv);
        cli_table_cell(&table, "%s", cli_pair_text(entries[i].options.policy.pair).text);
        cli_table_cell(&table, "%s", cli_bytes((uint64_t)result->page_bytes).text);
        cli_table_cell(&table, "%.2f", result->seal_us);
        cli_table_cell(&table, "%.0f", result->mb_per_s);
        cli_table_cell(&table, "%.2f", result->append_us);
    }
    return cli_table_print(&table, stdout);
}

/* ------------------------------------------------------------------ run */

/* Parses an entry of --kv. An empty or overlong one is rejected by name. */
static bool prepare_entry(const seal_options *chosen, const char *name, seal_entry *entry) {
    entry->kv = name;
    cli_cache_options *options = &entry->options;
    *options = (cli_cache_options){.raw = (quire_type)chosen->raw,
                                   .by_queries = !chosen->plain,
                                   .seed = (uint64_t)chosen->seed};
    if (!cli_shape_parse(chosen->shape, &options->shape) ||
        !cli_policy_parse(entry->kv, 0, &options->policy) ||
        !cli_policy_fits(entry->kv, &options->policy, &options->shape, options->raw))
        return false;
    if (cli_codec_is_raw(options->policy.pair.k) && cli_codec_is_raw(options->policy.pair.v)) {
        cli_error(
            "--kv %s: raw pages are not quantized, so there is nothing to time; give another codec",
            entry->kv);
        return false;
    }
    return true;
}

/* Checks all entries before the first is measured: a misspelt last one should not cost minutes. */
static int run_entries(const seal_options *chosen, char **names, seal_entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!prepare_entry(chosen, names[i], &entries[i]))
            return CLI_USAGE;
    for (size_t i = 0; i < n; i++) {
        int status =
            cli_bench_seal_measure(&entries[i].options, chosen->min_seconds, &entries[i].result);
        if (status != CLI_OK)
            return status;
    }
    return chosen->json ? print_json(entries, n) : print_text(entries, n);
}

int cli_bench_seal_run(int argc, char **argv) {
    seal_options chosen = {.shape = "32x8x128",
                           .kv = "k4v4,kc4:vt4,kc8:vt8,kc4:vt3,tq4:tq4,a4:a4,q8_0:q8_0,q4_0:q4_0",
                           .raw = QUIRE_F16,
                           .seed = 1,
                           .min_seconds = 0.2};
    const cli_option options[] = {
        cli_string("shape", &chosen.shape, "HxGxD", CLI_SHAPE_HELP),
        cli_string(
            "kv", &chosen.kv, "NAME,..",
            "presets or pairs K:V, see 'quire codecs' (default: k4v4 and a pair of each family)"),
        cli_choice("raw", &chosen.raw, cli_raw_names, CLI_RAW_HELP),
        cli_flag("plain-rounding", &chosen.plain,
                 "km4, km3: round each channel of K independently, without query-aware rounding"),
        cli_float("min-time", &chosen.min_seconds, 0, 3600, "seconds to spend on each entry"),
        cli_int("seed", &chosen.seed, 0, INT32_MAX, "seed of the synthetic rows"),
        cli_flag("json", &chosen.json, CLI_JSON_LIST_HELP),
    };
    static const char *const examples[] = {
        "quire bench seal",
        "quire bench seal --shape 9x3x64 --kv k4v4,k8v4 --json",
        NULL,
    };
    const cli_usage usage = {.command = "bench seal",
                             .about = "Times sealing: turning 64 raw rows of K and V into a "
                                      "quantized page, on one thread. us seal is the quantization "
                                      "alone; us append is checking the rows and copying them into "
                                      "the open page. Both are the best of many, per page and KV "
                                      "head. km4 and km3 use query-aware rounding with synthetic "
                                      "query moments.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    size_t n;
    char **names = cli_list_split(chosen.kv, &n);
    if (!names)
        return CLI_FAILURE;
    seal_entry *entries = calloc(n, sizeof *entries);
    status = entries ? run_entries(&chosen, names, entries, n)
                     : cli_quire_error("cannot measure", QUIRE_E_NOMEM, "out of memory");
    free(entries);
    free(names);
    return status;
}
