/* inspect_report.c: prints the report on a synthetic cache as text and as JSON. */
#include "reports/inspect_report.h"

#include "command.h"
#include "output/report.h"
#include "output/text_table.h"

#include <string.h>

enum { BAR_WIDTH = 48 };

/* ------------------------------------------------------------------ text */

static bool same_layers(const quire_layer_stats *a, const quire_layer_stats *b) {
    return a->pair.k == b->pair.k && a->pair.v == b->pair.v && strcmp(a->kernel, b->kernel) == 0 &&
           a->bits_per_element == b->bits_per_element && a->sealed_bytes == b->sealed_bytes &&
           a->raw_bytes == b->raw_bytes && a->packed_read == b->packed_read &&
           a->raw_read == b->raw_read && a->fallbacks == b->fallbacks;
}

static void print_head(const cli_inspection *inspection) {
    const cli_cache_options *options = &inspection->options;
    const cli_shape *shape = &options->shape;
    printf("shape    %s: query heads %d, KV heads %d, K size %d, V size %d\n",
           cli_shape_text(shape).text, (int)shape->n_heads, (int)shape->n_kv_heads,
           (int)shape->k_dim, (int)shape->v_dim);
    printf("layers   %d, --kv %s, %d raw sinks, raw rows %s", (int)options->n_layers,
           inspection->kv, (int)options->policy.sinks, cli_raw_names[options->raw]);
    if (options->window)
        printf(", window %d, keep %d", (int)options->window, (int)options->keep);
    printf("\ntokens   %lld, the last %d attended\n", (long long)inspection->pool.tokens,
           (int)inspection->attended_rows);
    printf("kernels  %s\n", inspection->isa);
    printf(
        "pool     %s allocated of a budget of %s; pages %s, of which free %s\n\n",
        cli_bytes(inspection->pool.total_bytes).text, cli_bytes(inspection->pool.budget_bytes).text,
        cli_bytes(inspection->pool.arena_bytes).text, cli_bytes(inspection->pool.free_bytes).text);
}

static void layer_cells(cli_table *table, const quire_layer_stats *layer, int32_t first,
                        int32_t last) {
    if (first == last) {
        cli_table_cell(table, "%d", (int)first);
    } else {
        cli_table_cell(table, "%d-%d", (int)first, (int)last);
    }
    cli_table_cell(table, "%s", cli_pair_text(layer->pair).text);
    cli_table_cell(table, "%s", layer->kernel);
    cli_table_cell(table, "%s", cli_bits(layer->bits_per_element).text);
    cli_table_cell(table, "%s", cli_bytes(layer->sealed_bytes).text);
    cli_table_cell(table, "%s", cli_bytes(layer->raw_bytes).text);
    cli_table_cell(table, "%s", cli_bytes(layer->packed_read).text);
    cli_table_cell(table, "%s", cli_bytes(layer->raw_read).text);
    cli_table_cell(table, "%llu", (unsigned long long)layer->fallbacks);
}

/* A line per run of equal layers, with the numbers of one layer. */
static int print_layers(const cli_inspection *inspection) {
    static const cli_column columns[] = {
        {"layer", false},       {"K:V", false},     {"kernel", false},
        {"bits/element", true}, {"sealed", true},   {"raw", true},
        {"packed read", true},  {"raw read", true}, {"fallbacks", true},
    };
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    int32_t n_layers = inspection->options.n_layers;
    for (int32_t first = 0, next; first < n_layers; first = next) {
        const quire_layer_stats *layer = &inspection->layers[first];
        for (next = first + 1; next < n_layers && same_layers(layer, &inspection->layers[next]);)
            next++;
        layer_cells(&table, layer, first, next - 1);
    }
    return cli_table_print(&table, stdout);
}

static int print_resident(const cli_inspection *inspection) {
    const quire_pool_stats *pool = &inspection->pool;
    const struct {
        const char *name, *meaning;
        size_t bytes;
    } kinds[] = {
        {"sealed", "packed pages", pool->sealed_bytes},
        {"open", "raw pages being filled", pool->open_bytes},
        {"last_raw", "raw rows of the page sealed last", pool->last_raw_bytes},
        {"sinks", "raw first tokens", pool->sink_bytes},
        {"shadow", "raw copies of packed pages", pool->shadow_bytes},
    };
    static const cli_column columns[] = {{"resident", false}, {"bytes", true}, {"what", false}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        cli_table_cell(&table, "%s", kinds[i].name);
        cli_table_cell(&table, "%s", cli_bytes(kinds[i].bytes).text);
        cli_table_cell(&table, "%s", kinds[i].meaning);
    }
    return cli_table_print(&table, stdout);
}

static void print_bar(const char *label, uint64_t bytes, uint64_t longest) {
    static const char marks[] = "################################################";
    _Static_assert(sizeof marks == BAR_WIDTH + 1, "one mark per column");
    int filled = longest ? (int)((double)BAR_WIDTH * (double)bytes / (double)longest + 0.5) : 0;
    printf("%-5s  %-*.*s  %s\n", label, BAR_WIDTH, filled, marks, cli_bytes(bytes).text);
}

static void print_size(const cli_inspection *inspection) {
    uint64_t bytes = inspection->kv_bytes, bf16 = inspection->kv_bytes_bf16;
    uint64_t longest = bytes > bf16 ? bytes : bf16;
    print_bar("quire", bytes, longest);
    print_bar("bf16", bf16, longest);
    if (!bytes || !bf16)
        return;
    bool smaller = bytes <= bf16;
    double times = smaller ? (double)bf16 / (double)bytes : (double)bytes / (double)bf16;
    printf("\n%s, %.2fx %s than bf16 (%s)\n", cli_bytes(bytes).text, times,
           smaller ? "smaller" : "larger", cli_bytes(bf16).text);
}

int cli_inspection_print_text(const cli_inspection *inspection) {
    print_head(inspection);
    int status = print_layers(inspection);
    putchar('\n');
    if (status == CLI_OK)
        status = print_resident(inspection);
    printf("\nfallbacks %llu, shadow bytes %zu\n\n", (unsigned long long)inspection->fallbacks,
           inspection->pool.shadow_bytes);
    print_size(inspection);
    return status;
}

/* ------------------------------------------------------------------ JSON */

static json_t *layer_json(const quire_layer_stats *layer, int32_t index) {
    return json_pack(
        "{s:i, s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layer", (int)index, "k",
        quire_codec_name(layer->pair.k), "v", quire_codec_name(layer->pair.v), "kernel",
        layer->kernel, "bits_per_element", cli_json_number(layer->bits_per_element), "record_bytes",
        (json_int_t)layer->record_bytes, "sealed_bytes", (json_int_t)layer->sealed_bytes,
        "raw_bytes", (json_int_t)layer->raw_bytes, "packed_read", (json_int_t)layer->packed_read,
        "raw_read", (json_int_t)layer->raw_read, "attended_rows", (json_int_t)layer->attended_rows,
        "fallbacks", (json_int_t)layer->fallbacks);
}

static json_t *layers_json(const cli_inspection *inspection) {
    json_t *list = json_array();
    for (int32_t i = 0; i < inspection->options.n_layers; i++) {
        cli_json_append(&list, layer_json(&inspection->layers[i], i));
    }
    return list;
}

static json_t *pool_json(const quire_pool_stats *pool) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I}",
        "budget_bytes", (json_int_t)pool->budget_bytes, "total_bytes",
        (json_int_t)pool->total_bytes, "arena_bytes", (json_int_t)pool->arena_bytes, "sealed_bytes",
        (json_int_t)pool->sealed_bytes, "open_bytes", (json_int_t)pool->open_bytes,
        "last_raw_bytes", (json_int_t)pool->last_raw_bytes, "sink_bytes",
        (json_int_t)pool->sink_bytes, "free_bytes", (json_int_t)pool->free_bytes,
        "largest_free_bytes", (json_int_t)pool->largest_free_bytes, "shadow_bytes",
        (json_int_t)pool->shadow_bytes, "tokens", (json_int_t)pool->tokens, "n_seqs",
        (int)pool->n_seqs, "n_batches", (int)pool->n_batches, "sealed_pages",
        (json_int_t)pool->sealed_pages, "reopened_pages", (json_int_t)pool->reopened_pages);
}

int cli_inspection_print_json(const cli_inspection *inspection) {
    const cli_cache_options *options = &inspection->options;
    json_t *root = json_pack("{s:s, s:i, s:s, s:i, s:i, s:i, s:s, s:i, s:s}", "shape",
                             cli_shape_text(&options->shape).text, "n_layers",
                             (int)options->n_layers, "kv", inspection->kv, "sinks",
                             (int)options->policy.sinks, "window", (int)options->window, "keep",
                             (int)options->keep, "raw", cli_raw_names[options->raw], "threads",
                             (int)options->n_workers, "isa", inspection->isa);
    json_t *sizes = json_pack("{s:I, s:I, s:I}", "kv_bytes", (json_int_t)inspection->kv_bytes,
                              "kv_bytes_bf16", (json_int_t)inspection->kv_bytes_bf16, "fallbacks",
                              (json_int_t)inspection->fallbacks);
    json_t *pool = pool_json(&inspection->pool);
    bool built = root && sizes && pool && json_object_update(root, sizes) == 0 &&
                 json_object_update(root, pool) == 0 &&
                 json_object_set_new(root, "layers", layers_json(inspection)) == 0;
    json_decref(sizes);
    json_decref(pool);
    if (!built) {
        json_decref(root);
        root = NULL;
    }
    return cli_print_json(root);
}
