/* probe_report.c: prints tables, bars and JSON of 'quire probe'. */
#include "reports/probe_report.h"

#include "command.h"
#include "options/cache_args.h"
#include "output/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 24 };

static bool stores(const cli_probe *probe, int32_t layer) {
    return probe->info.layers[layer].share == -1;
}

/* Bits per element over all layers with a cache of their own. */
static double bits_of(const cli_probe *probe, quire_pair pair) {
    double bits = 0, elements = 0;
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        const quire_layer *l = &probe->info.layers[i];
        const quire_page_shape shape = {
            .pair = pair, .k_dim = l->k_dim, .v_dim = l->v_dim, .raw = QUIRE_F16};
        size_t bytes;
        if (!stores(probe, i) || quire_page_bytes(&shape, &bytes) != QUIRE_OK)
            continue;
        bits += 8.0 * (double)bytes * l->n_kv_heads;
        elements += (double)QUIRE_PAGE_TOKENS * (l->k_dim + l->v_dim) * l->n_kv_heads;
    }
    return elements > 0 ? bits / elements : 0;
}

/* ------------------------------------------------------------------ text */

static int print_figures(const cli_probe *probe) {
    static const cli_column columns[] = {
        {"layer", true},     {"window", true},     {"|K|", true},        {"|V|", true},
        {"first |K|", true}, {"first |V|", true},  {"wide", true},       {"widest", true},
        {"bias", true},      {"kurtosis K", true}, {"kurtosis V", true},
    };
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        const quire_layer_sensitivity *l = &probe->report->layers[i];
        if (!stores(probe, i))
            continue;
        cli_table_cell(&table, "%d", (int)i);
        if (probe->info.layers[i].window > 0)
            cli_table_cell(&table, "%d", (int)probe->info.layers[i].window);
        else
            cli_table_cell(&table, "-");
        cli_table_cell(&table, "%.2f", l->k_norm);
        cli_table_cell(&table, "%.2f", l->v_norm);
        cli_table_cell(&table, "x%.2f", l->k_first);
        cli_table_cell(&table, "x%.2f", l->v_first);
        cli_table_cell(&table, "%d", (int)l->n_outliers);
        cli_table_cell(&table, "x%.1f", l->k_outlier);
        cli_table_cell(&table, "%.1f", l->k_bias);
        cli_table_cell(&table, "%.1f", l->k_kurtosis);
        cli_table_cell(&table, "%.1f", l->v_kurtosis);
    }
    const int status = cli_table_print(&table, stdout);
    puts("\nfirst: norm of the first four tokens' rows relative to the others; wide: number of "
         "channels of K more\n"
         "than three times as wide as the median, widest: the widest; bias: largest |mean| of a "
         "channel of K in\n"
         "standard deviations; kurtosis: 3 for a normal distribution");
    return status;
}

static void bar(char text[BAR + 1], double part) {
    const int n = (int)lround(BAR * fmin(fmax(part, 0), 1));
    memset(text, '#', (size_t)n);
    memset(text + n, '.', (size_t)(BAR - n));
    text[BAR] = '\0';
}

/* The loss of each layer, where the largest is a full bar, and its attention to the first tokens,
 * where 100 % is a full bar. */
static int print_picture(const cli_probe *probe) {
    static const cli_column columns[] = {
        {"layer", true}, {"KLD alone", true}, {"share", true},
        {"loss", false}, {"sinks", true},     {"attention", false},
    };
    double most = 0;
    for (int32_t i = 0; i < probe->info.n_layers; i++)
        most = fmax(most, probe->report->layers[i].share);
    printf("\nKL divergence if only this layer is quantized (%s), and attention to the first four "
           "tokens\n\n",
           cli_pair_text(probe->report->alone).text);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        const quire_layer_sensitivity *l = &probe->report->layers[i];
        char loss[BAR + 1], sink[BAR + 1];
        bar(loss, most > 0 ? l->share / most : 0);
        bar(sink, l->sink);
        cli_table_cell(&table, "%d", (int)i);
        cli_table_cell(&table, stores(probe, i) ? "%.6f" : "-", l->kld);
        cli_table_cell(&table, stores(probe, i) ? "%.1f %%" : "-", 100 * l->share);
        cli_table_cell(&table, "%s", loss);
        cli_table_cell(&table, "%.0f %%", 100 * l->sink);
        cli_table_cell(&table, "%s", sink);
    }
    return cli_table_print(&table, stdout);
}

static int print_rungs(const cli_probe *probe) {
    static const cli_column columns[] = {{"all layers", false}, {"bits", true}, {"KLD", true}};
    cli_table table;
    putchar('\n');
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (int32_t i = 0; i < probe->report->n_rungs; i++) {
        const quire_rung *rung = &probe->report->rungs[i];
        cli_table_cell(&table, "%s", cli_pair_text(rung->pair).text);
        cli_table_cell(&table, "%s", cli_bits(bits_of(probe, rung->pair)).text);
        cli_table_cell(&table, "%.6f", rung->kld);
    }
    return cli_table_print(&table, stdout);
}

/* A character per layer: bits of its codes; '-': raw; '.': shares another layer's cache. */
static void print_digits(const cli_probe *probe, const quire_pair *pairs, quire_side side) {
    printf("  %c bits by layer  ", side == QUIRE_SIDE_K ? 'K' : 'V');
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        const quire_codec codec = side == QUIRE_SIDE_K ? pairs[i].k : pairs[i].v;
        quire_codec_info info = {0};
        for (size_t c = 0; c < quire_codec_count() && info.codec != codec; c++)
            quire_codec_at(c, &info);
        putchar(!stores(probe, i) ? '.' : codec == QUIRE_CODEC_RAW ? '-' : (char)('0' + info.bits));
    }
    putchar('\n');
}

static void print_choice(const cli_probe *probe, const cli_probe_choice *choice) {
    printf("\nauto:%s at %d tokens: %s instead of %s, KLD %.2g predicted%s\n", choice->budget,
           (int)probe->context, cli_bytes(choice->choice.bytes).text,
           cli_bytes(choice->choice.raw_bytes).text, choice->choice.kld, probe->predicted_for);
    print_digits(probe, choice->pairs, QUIRE_SIDE_K);
    print_digits(probe, choice->pairs, QUIRE_SIDE_V);
    fputs("  ", stdout);
    cli_chosen_print(&choice->chosen, stdout);
    putchar('\n');
}

int cli_probe_print(const cli_probe *probe) {
    printf("%s: %s, %d layers; %d tokens of a built-in text, the last %d compared\n\n", probe->path,
           probe->info.architecture, (int)probe->info.n_layers, (int)probe->report->n_tokens,
           (int)probe->report->n_scored);
    json_t *words = cli_probe_words(probe);
    if (print_figures(probe) != CLI_OK || print_picture(probe) != CLI_OK ||
        print_rungs(probe) != CLI_OK) {
        json_decref(words);
        return CLI_FAILURE;
    }
    for (size_t i = 0; i < json_array_size(words); i++)
        printf("%s- %s\n", i ? "" : "\n", json_string_value(json_array_get(words, i)));
    json_decref(words);
    for (size_t i = 0; i < probe->n_choices; i++)
        print_choice(probe, &probe->choices[i]);
    return CLI_OK;
}

/* ------------------------------------------------------------------ JSON */

static json_t *layers_json(const cli_probe *probe) {
    json_t *list = json_array();
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        const quire_layer_sensitivity *l = &probe->report->layers[i];
        json_t *item = json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f}", "layer",
                                 (int)i, "window", (int)probe->info.layers[i].window, "shares",
                                 (int)probe->info.layers[i].share, "k_norm", l->k_norm, "v_norm",
                                 l->v_norm, "kv_ratio", l->v_norm > 0 ? l->k_norm / l->v_norm : 0,
                                 "k_first", l->k_first, "v_first", l->v_first, "k_outlier",
                                 l->k_outlier, "outliers", (int)l->n_outliers, "k_bias", l->k_bias);
        json_t *rest =
            json_pack("{s:f, s:f, s:f, s:f, s:f}", "k_kurtosis", l->k_kurtosis, "v_kurtosis",
                      l->v_kurtosis, "sink", l->sink, "kld", l->kld, "share", l->share);
        if (!item || !rest || json_object_update(item, rest) != 0) {
            json_decref(item);
            item = NULL;
        }
        json_decref(rest);
        cli_json_append(&list, item);
    }
    return list;
}

static json_t *rungs_json(const cli_probe *probe) {
    json_t *list = json_array();
    for (int32_t i = 0; i < probe->report->n_rungs; i++) {
        const quire_rung *rung = &probe->report->rungs[i];
        cli_json_append(&list, json_pack("{s:s, s:f, s:f}", "kv", cli_pair_text(rung->pair).text,
                                         "bits", bits_of(probe, rung->pair), "kld", rung->kld));
    }
    return list;
}

static json_t *choice_json(const cli_probe *probe, const cli_probe_choice *c) {
    json_t *pairs = json_array();
    for (int32_t i = 0; i < probe->info.n_layers; i++)
        cli_json_append(&pairs, stores(probe, i) ? json_string(cli_pair_text(c->pairs[i]).text)
                                                 : json_null());
    const cli_chosen *chosen = &c->chosen;
    json_t *sinks = chosen->sinks >= 0 ? json_integer(chosen->sinks) : json_null();
    return json_pack("{s:s, s:i, s:I, s:I, s:f, s:s, s:s?, s:s?, s:o, s:o}", "budget", c->budget,
                     "ctx", (int)probe->context, "bytes", (json_int_t)c->choice.bytes, "raw_bytes",
                     (json_int_t)c->choice.raw_bytes, "kld", c->choice.kld, "kv", chosen->kv.text,
                     "kv_windowed", chosen->windowed.text[0] ? chosen->windowed.text : NULL,
                     "kv_layers", chosen->layers, "sinks", sinks, "layers", pairs);
}

int cli_probe_print_json(const cli_probe *probe) {
    json_t *choices = json_array();
    for (size_t i = 0; i < probe->n_choices; i++)
        cli_json_append(&choices, choice_json(probe, &probe->choices[i]));
    return cli_print_json(json_pack(
        "{s:o, s:o, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "model", cli_json_text(probe->path),
        "architecture", cli_json_text(probe->info.architecture), "n_layers",
        (int)probe->info.n_layers, "tokens", (int)probe->report->n_tokens, "scored",
        (int)probe->report->n_scored, "alone", cli_pair_text(probe->report->alone).text, "rungs",
        rungs_json(probe), "layers", layers_json(probe), "words", cli_probe_words(probe), "choices",
        choices));
}
