/* cmd_codecs.c: quire codecs. Lists codecs and presets with their sizes. */
#include "command.h"
#include "options/args.h"
#include "options/cache_args.h"
#include "output/report.h"
#include "output/text_table.h"

#include <stdio.h>

static const double UNSUPPORTED = -1; /* cli_bits prints it as "-" */

typedef struct codec_options {
    int32_t dim;
    int32_t raw; /* a quire_type */
    bool json;
} codec_options;

static double record_bits(const codec_options *options, quire_pair pair) {
    quire_page_shape shape = {.pair = pair,
                              .k_dim = options->dim,
                              .v_dim = options->dim,
                              .raw = (quire_type)options->raw};
    size_t bytes;
    return quire_page_bytes(&shape, &bytes) == QUIRE_OK ? 8.0 * (double)bytes : UNSUPPORTED;
}

/* Bits per element of a record, including scales and padding. */
static double pair_bits(const codec_options *options, quire_pair pair) {
    double bits = record_bits(options, pair);
    return bits < 0 ? UNSUPPORTED : bits / (2.0 * QUIRE_PAGE_TOKENS * options->dim);
}

/* A record holds K and V. A codec for only one of them is paired with raw rows, whose size is known
 * and subtracted. */
static double codec_bits(const codec_options *options, const quire_codec_info *info) {
    if (info->for_k && info->for_v)
        return pair_bits(options, (quire_pair){info->codec, info->codec});
    quire_pair pair = {info->for_k ? info->codec : QUIRE_CODEC_RAW,
                       info->for_v ? info->codec : QUIRE_CODEC_RAW};
    double bits = record_bits(options, pair);
    double raw_bits = record_bits(options, (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}) / 2;
    return bits < 0 ? UNSUPPORTED : (bits - raw_bits) / ((double)QUIRE_PAGE_TOKENS * options->dim);
}

static const char *sides_text(const quire_codec_info *info) {
    return info->for_k && info->for_v ? "kv" : info->for_k ? "k" : "v";
}

/* ------------------------------------------------------------------ JSON */

static json_t *json_bits(double bits) { return bits < 0 ? json_null() : json_real(bits); }

static json_t *presets_json(const codec_options *options) {
    json_t *list = json_array();
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info info;
        if (quire_preset_at(i, &info) != QUIRE_OK)
            continue;
        json_t *preset =
            json_pack("{s:s, s:s, s:s, s:s, s:i, s:o}", "name", info.name, "pair",
                      cli_pair_text(info.pair).text, "k", quire_codec_name(info.pair.k), "v",
                      quire_codec_name(info.pair.v), "sinks", (int)info.sinks, "bits_per_element",
                      json_bits(pair_bits(options, info.pair)));
        cli_json_append(&list, preset);
    }
    return list;
}

static json_t *codecs_json(const codec_options *options) {
    json_t *list = json_array();
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        if (quire_codec_at(i, &info) != QUIRE_OK)
            continue;
        json_t *codec = json_pack("{s:s, s:s, s:i, s:i, s:s, s:o, s:s}", "name", info.name,
                                  "family", info.family, "bits", (int)info.bits, "group",
                                  (int)info.group, "sides", sides_text(&info), "bits_per_element",
                                  json_bits(codec_bits(options, &info)), "summary", info.summary);
        cli_json_append(&list, codec);
    }
    return list;
}

/* ------------------------------------------------------------------ text */

static int print_presets(const codec_options *options) {
    static const cli_column columns[] = {
        {"preset", false}, {"pair", false}, {"sinks", true}, {"bits/element", true}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info info;
        if (quire_preset_at(i, &info) != QUIRE_OK)
            continue;
        cli_table_cell(&table, "%s", info.name);
        cli_table_cell(&table, "%s", cli_pair_text(info.pair).text);
        cli_table_cell(&table, "%d", (int)info.sinks);
        cli_table_cell(&table, "%s", cli_bits(pair_bits(options, info.pair)).text);
    }
    return cli_table_print(&table, stdout);
}

/* 0 is printed as "-". */
static void count_cell(cli_table *table, int32_t count) {
    if (count) {
        cli_table_cell(table, "%d", (int)count);
    } else {
        cli_table_cell(table, "-");
    }
}

static int print_codecs(const codec_options *options) {
    static const cli_column columns[] = {
        {"codec", false}, {"family", false},      {"bits", true},    {"group", true},
        {"sides", false}, {"bits/element", true}, {"summary", false}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        if (quire_codec_at(i, &info) != QUIRE_OK)
            continue;
        cli_table_cell(&table, "%s", info.name);
        cli_table_cell(&table, "%s", info.family);
        count_cell(&table, info.bits);
        count_cell(&table, info.group);
        cli_table_cell(&table, "%s", sides_text(&info));
        cli_table_cell(&table, "%s", cli_bits(codec_bits(options, &info)).text);
        cli_table_cell(&table, "%s", info.summary);
    }
    return cli_table_print(&table, stdout);
}

static int print_all(const codec_options *options) {
    if (options->json) {
        return cli_print_json(json_pack("{s:o, s:o}", "presets", presets_json(options), "codecs",
                                        codecs_json(options)));
    }
    int status = print_presets(options);
    putchar('\n');
    return status == CLI_OK ? print_codecs(options) : status;
}

int cli_codecs_run(int argc, char **argv) {
    codec_options chosen = {.dim = 128, .raw = QUIRE_F16};
    const cli_option options[] = {
        cli_with_step(cli_int("dim", &chosen.dim, QUIRE_DIM_MIN, QUIRE_DIM_MAX, "head size"),
                      QUIRE_DIM_STEP),
        cli_choice("raw", &chosen.raw, cli_raw_names,
                   "type of rows that are not quantized, and of the scales of a8, a4 and a2"),
        cli_flag("json", &chosen.json, "print JSON"),
    };
    static const char *const examples[] = {"quire codecs", "quire codecs --dim 80",
                                           "quire codecs --json", NULL};
    const cli_usage usage = {
        .command = "codecs",
        .about =
            "Lists the presets and codecs for --kv. A pair is written K:V, e.g. kc8:vt4.\n"
            "bits/element is the size of a whole page record, including scales and padding; '-' "
            "means that the codec does not support this head size.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    return print_all(&chosen);
}
