/* cache_report.c: sums the statistics of layers. */
#include "reports/cache_report.h"

#include "command.h"
#include "options/cache_args.h"
#include "output/text_table.h"

#include <string.h>

static int32_t layer_count(const quire_session *session) {
    quire_model_info info;
    quire_model_get_info(quire_session_model(session), &info);
    return info.n_layers;
}

static quire_layer_stats stats_of(const quire_session *session, int32_t layer) {
    quire_layer_stats stats = {0};
    quire_layer_get_stats(quire_session_pool(session), layer, &stats);
    return stats;
}

/* A bf16 cache would drop tokens outside the window too. A layer that shares another's cache has
 * none. */
static uint64_t bf16_bytes(const quire_layer *layer, const int32_t *n_tokens, size_t n_seqs) {
    if (layer->share >= 0)
        return 0;
    uint64_t total = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        int64_t n = n_tokens[i], most = (int64_t)layer->window + layer->keep;
        total += (uint64_t)(layer->window && n > most ? most : n);
    }
    return total * (uint64_t)layer->n_kv_heads * (uint64_t)(layer->k_dim + layer->v_dim) * 2;
}

/* The mean over the layers with a sliding window of the model, or over the others. */
static double mean_bits(const quire_session *session, const quire_model_info *info, bool windowed) {
    double bits = 0, elements = 0;
    for (int32_t i = 0; i < info->n_layers; i++) {
        const quire_layer *layer = &info->layers[i];
        if (layer->share >= 0 || (layer->window > 0) != windowed)
            continue;
        double n = (double)layer->n_kv_heads * (layer->k_dim + layer->v_dim);
        bits += n * stats_of(session, i).bits_per_element;
        elements += n;
    }
    return elements > 0 ? bits / elements : 0;
}

void cli_cache_report_read(const quire_session *session, const int32_t *n_tokens, size_t n_seqs,
                           cli_cache_report *report) {
    quire_model_info info;
    quire_model_get_info(quire_session_model(session), &info);
    quire_pool_stats pool;
    quire_pool_get_stats(quire_session_pool(session), &pool);
    *report =
        (cli_cache_report){.kv_bytes = pool.sealed_bytes + pool.open_bytes + pool.last_raw_bytes +
                                       pool.sink_bytes + pool.shadow_bytes,
                           .packed_bytes = pool.sealed_bytes,
                           .open_bytes = pool.open_bytes,
                           .last_raw_bytes = pool.last_raw_bytes,
                           .sink_bytes = pool.sink_bytes,
                           .shadow_bytes = pool.shadow_bytes,
                           .bits = mean_bits(session, &info, false)};
    if (report->bits == 0)
        report->bits = mean_bits(session, &info, true);
    for (int32_t i = 0; i < info.n_layers; i++) {
        report->kv_bytes_bf16 += bf16_bytes(&quire_session_layers(session)[i], n_tokens, n_seqs);
        report->fallbacks += stats_of(session, i).fallbacks;
    }
}

json_t *cli_cache_report_json(const cli_cache_report *report) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "kv_bytes", (json_int_t)report->kv_bytes,
        "kv_bytes_bf16", (json_int_t)report->kv_bytes_bf16, "packed_bytes",
        (json_int_t)report->packed_bytes, "open_bytes", (json_int_t)report->open_bytes,
        "last_raw_bytes", (json_int_t)report->last_raw_bytes, "sink_bytes",
        (json_int_t)report->sink_bytes, "fallbacks", (json_int_t)report->fallbacks, "shadow_bytes",
        (json_int_t)report->shadow_bytes, "bits", cli_json_number(report->bits));
}

/* ------------------------------------------------------------------ layers */

static bool alike(const quire_layer_stats *a, const quire_layer_stats *b) {
    return a->pair.k == b->pair.k && a->pair.v == b->pair.v && strcmp(a->kernel, b->kernel) == 0 &&
           a->bits_per_element == b->bits_per_element;
}

static bool seen_before(const quire_session *session, int32_t layer,
                        const quire_layer_stats *stats) {
    for (int32_t i = 0; i < layer; i++) {
        quire_layer_stats earlier = stats_of(session, i);
        if (alike(&earlier, stats))
            return true;
    }
    return false;
}

int cli_cache_report_layers(const quire_session *session, FILE *file) {
    static const cli_column columns[] = {
        {"layers", true},       {"K:V", false},     {"kernel", false},
        {"bits/element", true}, {"sealed", true},   {"raw", true},
        {"packed read", true},  {"raw read", true}, {"fallbacks", true},
    };
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    int32_t n_layers = layer_count(session);
    for (int32_t i = 0; i < n_layers; i++) {
        quire_layer_stats sum = stats_of(session, i);
        if (seen_before(session, i, &sum))
            continue;
        int32_t n = 1;
        for (int32_t j = i + 1; j < n_layers; j++) {
            quire_layer_stats other = stats_of(session, j);
            if (!alike(&sum, &other))
                continue;
            n++;
            sum.sealed_bytes += other.sealed_bytes;
            sum.raw_bytes += other.raw_bytes;
            sum.packed_read += other.packed_read;
            sum.raw_read += other.raw_read;
            sum.fallbacks += other.fallbacks;
        }
        cli_table_cell(&table, "%d", (int)n);
        cli_table_cell(&table, "%s", cli_pair_text(sum.pair).text);
        cli_table_cell(&table, "%s", sum.kernel);
        cli_table_cell(&table, "%s", cli_bits(sum.bits_per_element).text);
        cli_table_cell(&table, "%s", cli_bytes(sum.sealed_bytes).text);
        cli_table_cell(&table, "%s", cli_bytes(sum.raw_bytes).text);
        cli_table_cell(&table, "%s", cli_bytes(sum.packed_read).text);
        cli_table_cell(&table, "%s", cli_bytes(sum.raw_read).text);
        cli_table_cell(&table, "%llu", (unsigned long long)sum.fallbacks);
    }
    return cli_table_print(&table, file);
}

json_t *cli_cache_layers_json(const quire_session *session) {
    json_t *list = json_array();
    const int32_t n_layers = layer_count(session);
    for (int32_t i = 0; i < n_layers; i++) {
        const quire_layer_stats s = stats_of(session, i);
        cli_json_append(&list,
                        json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:I}", "kv",
                                  cli_pair_text(s.pair).text, "window",
                                  (int)quire_session_layers(session)[i].window, "kernel", s.kernel,
                                  "sealed_bytes", (json_int_t)s.sealed_bytes, "raw_bytes",
                                  (json_int_t)s.raw_bytes, "packed_read", (json_int_t)s.packed_read,
                                  "raw_read", (json_int_t)s.raw_read));
    }
    return list;
}
