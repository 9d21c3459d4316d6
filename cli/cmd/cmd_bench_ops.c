/* cmd_bench_ops.c: quire bench ops. Times operations on lists of sequences. */
#include "bench/synth.h"
#include "command.h"
#include "options/args.h"
#include "options/cache_args.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = QUIRE_PAGE_TOKENS, DIM = 32, REPEATS = 30 };

typedef struct ops_options {
    const char *kv, *to;
    int32_t n_seqs, ctx;
    bool json;
} ops_options;

/* Best of many, in microseconds; `free` and `requantize` can be timed only once. */
typedef struct ops_times {
    double merge, extract, filter, extend, trim, free, requantize;
    int64_t pages;
} ops_times;

typedef struct ops_bench {
    const ops_options *options;
    quire_pool *pool;
    quire_list original, merged, other;
    ops_times best;
} ops_bench;

/* ------------------------------------------------------------------ a pool full of sequences */

static int failed(quire_status status) { return cli_quire_error("cannot measure", status, NULL); }

/* One small layer: all operations here treat a page of all layers as one unit, so its size does not
 * matter. */
static quire_status open_pool(ops_bench *b, const quire_policy *policy) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = layer.n_kv_heads = 1;
    layer.k_dim = layer.v_dim = DIM;
    const cli_synth rows = {.stream = CLI_STREAM_K, .n_heads = 1, .dim = DIM};
    uint16_t order[DIM];
    const quire_status status =
        cli_synth_order(&rows, order); /* any order will do: nothing attends */
    if (status != QUIRE_OK)
        return status;
    layer.k_order = order;
    quire_pool_options o;
    quire_pool_options_default(&o);
    o.layers = &layer;
    o.n_layers = 1;
    o.policy = *policy;
    o.max_seqs = 2 * b->options->n_seqs + 1;
    o.max_tokens = b->options->ctx;
    o.max_batch_tokens = b->options->n_seqs * PAGE;
    o.max_workers = 1;
    const size_t raw_page = 2 * PAGE * DIM * 2,
                 n_pages = (size_t)b->options->n_seqs * (size_t)(b->options->ctx / PAGE);
    /* Raw pages bound packed ones; each sequence has an open page and the raw rows of the last
     * sealed one; the rest is for tables and buffers. */
    o.budget_bytes = (n_pages + 4 * (size_t)o.max_seqs) * (raw_page + 256) +
                     (size_t)o.max_batch_tokens * 4096 +
                     (size_t)o.max_seqs * (size_t)b->options->ctx + ((size_t)64 << 20);
    return quire_pool_create(&b->pool, &o);
}

/* All sequences grow together, as when they are decoded in a batch, so that neighbours in memory
 * belong to different sequences. */
static quire_status fill(ops_bench *b) {
    const int32_t n = b->options->n_seqs;
    quire_batch_item *items = calloc((size_t)n, sizeof *items);
    float *rows = malloc((size_t)(n * PAGE * DIM) * sizeof *rows);
    quire_status status = items && rows ? QUIRE_OK : QUIRE_E_NOMEM;
    for (int32_t i = 0; i < n * PAGE * DIM && rows; i++)
        rows[i] = (float)(i % 17 - 8) / 8;
    for (int32_t i = 0; i < n && status == QUIRE_OK; i++) {
        status = quire_seq_create(b->pool, &b->original.seq[i]);
        items[i] = (quire_batch_item){b->original.seq[i], PAGE};
        b->original.n += status == QUIRE_OK;
    }
    for (int32_t page = 0; page < b->options->ctx / PAGE && status == QUIRE_OK; page++) {
        quire_batch *batch;
        const quire_rows k = {rows, QUIRE_F32, 0};
        status = quire_batch_begin(b->pool, items, (size_t)n, &batch);
        if (status == QUIRE_OK)
            status = quire_batch_append(batch, 0, k, k, 0, 1);
        if (status == QUIRE_OK)
            status = quire_batch_commit(batch, NULL);
    }
    free(items);
    free(rows);
    return status;
}

/* ------------------------------------------------------------------ times */

static void keep_best(double start, double *best) {
    const double us = 1e6 * (cli_seconds() - start);
    if (us < *best)
        *best = us;
}

/* The indices of every second sequence, last to first. */
static int32_t every_second(const quire_list *list, int32_t *keep) {
    int32_t n = 0;
    for (int32_t i = list->n - 1; i >= 0; i -= 2)
        keep[n++] = i;
    return n;
}

static quire_status time_lists(ops_bench *b, int32_t *keep) {
    quire_status status = QUIRE_OK;
    for (int i = 0; i < REPEATS && status == QUIRE_OK; i++) {
        quire_seq *one = NULL;
        double start = cli_seconds();
        status = quire_list_merge(&b->merged, b->original.seq, b->original.n);
        keep_best(start, &b->best.merge);
        start = cli_seconds();
        if (status == QUIRE_OK)
            status = quire_list_extract(&b->merged, 0, &one);
        keep_best(start, &b->best.extract);
        start = cli_seconds();
        if (status == QUIRE_OK)
            status = quire_seq_trim(one, b->options->ctx / 2);
        keep_best(start, &b->best.trim);
        quire_seq_free(one);
        const int32_t n = every_second(&b->merged, keep);
        start = cli_seconds();
        if (status == QUIRE_OK)
            status = quire_list_filter(&b->merged, keep, n);
        keep_best(start, &b->best.filter);
        start = cli_seconds();
        if (status == QUIRE_OK)
            status = quire_list_extend(&b->other, &b->merged);
        keep_best(start, &b->best.extend);
        if (status == QUIRE_OK)
            status = quire_list_clear(&b->other);
    }
    return status;
}

/* Operations that change the pages come last. */
static quire_status time_pages(ops_bench *b, const quire_policy *to, int32_t *keep) {
    quire_requantize_stats stats = {0};
    double start = cli_seconds();
    quire_status status = quire_pool_requantize(b->pool, to);
    if (status == QUIRE_OK)
        status = quire_pool_requantize_step(b->pool, 256, &stats);
    if (stats.pages_done > 0)
        b->best.requantize = 1e6 * (cli_seconds() - start) / (double)stats.pages_done;
    const int32_t n = every_second(&b->original, keep);
    start = cli_seconds();
    if (status == QUIRE_OK)
        status = quire_list_filter(&b->original, keep, n);
    keep_best(start, &b->best.free);
    return status;
}

static quire_status measure(ops_bench *b, const quire_policy *policy, const quire_policy *to) {
    const size_t n = (size_t)b->options->n_seqs;
    quire_seq **lists = calloc(3 * n, sizeof *lists);
    int32_t *keep = calloc(n, sizeof *keep);
    b->best = (ops_times){INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, NAN, 0};
    b->best.pages = (int64_t)n * (b->options->ctx / PAGE);
    quire_status status = lists && keep ? open_pool(b, policy) : QUIRE_E_NOMEM;
    if (status == QUIRE_OK) {
        b->original = (quire_list){lists, 0, (int32_t)n};
        b->merged = (quire_list){lists + n, 0, (int32_t)n};
        b->other = (quire_list){lists + 2 * n, 0, (int32_t)n};
        status = fill(b);
    }
    if (status == QUIRE_OK)
        status = time_lists(b, keep);
    if (status == QUIRE_OK)
        status = time_pages(b, to, keep);
    quire_pool_free(b->pool);
    free(lists);
    free(keep);
    return status;
}

/* ------------------------------------------------------------------ report */

static int print_json(const ops_bench *b) {
    const ops_options *o = b->options;
    const ops_times *t = &b->best;
    return cli_print_json(
        json_pack("{s:s, s:s, s:i, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kv", o->kv, "to",
                  o->to, "seqs", (int)o->n_seqs, "ctx", (int)o->ctx, "pages", (json_int_t)t->pages,
                  "us_merge", cli_json_number(t->merge), "us_extract", cli_json_number(t->extract),
                  "us_filter", cli_json_number(t->filter), "us_extend", cli_json_number(t->extend),
                  "us_trim", cli_json_number(t->trim), "us_free", cli_json_number(t->free),
                  "us_requantize_page", cli_json_number(t->requantize)));
}

static int print_text(const ops_bench *b) {
    static const cli_column columns[] = {{"operation", false}, {"us", true}, {"on", false}};
    const ops_times *t = &b->best;
    const int n = (int)b->options->n_seqs, ctx = (int)b->options->ctx;
    printf("cache operations: %d sequences of %d tokens, %lld pages, %s; one thread\n\n", n, ctx,
           (long long)t->pages, b->options->kv);
    const struct {
        const char *name;
        double us;
        const char *on;
    } rows[] = {
        {"merge", t->merge, "all sequences into a list"},
        {"extract", t->extract, "one of them"},
        {"trim", t->trim, "the extracted one, to half its length"},
        {"filter", t->filter, "the list to every second one, pages stay shared"},
        {"filter, freeing", t->free, "the same, but the pages of the others are freed"},
        {"extend", t->extend, "an empty list by the filtered one"},
        {"requantize", t->requantize, "one page of one KV head of 32 channels"},
    };
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_table_cell(&table, "%s", rows[i].name);
        cli_table_cell(&table, "%.1f", rows[i].us);
        cli_table_cell(&table, "%s", rows[i].on);
    }
    return cli_table_print(&table, stdout);
}

int cli_bench_ops_run(int argc, char **argv) {
    ops_options chosen = {.kv = "k8v4", .to = "k4v4", .n_seqs = 64, .ctx = 32768};
    const cli_option options[] = {
        cli_int("seqs", &chosen.n_seqs, 1, 1024, "number of sequences"),
        cli_with_step(cli_int("ctx", &chosen.ctx, 2 * PAGE, 1 << 20, "tokens of each sequence"),
                      PAGE),
        cli_string("kv", &chosen.kv, "NAME", "a preset or a pair K:V, see 'quire codecs'"),
        cli_string("to", &chosen.to, "NAME", "codecs to requantize to"),
        cli_flag("json", &chosen.json, "print JSON"),
    };
    static const char *const examples[] = {"quire bench ops",
                                           "quire bench ops --seqs 8 --ctx 131072 --json", NULL};
    const cli_usage usage = {.command = "bench ops",
                             .about =
                                 "Times operations on caches between tokens: merging sequences "
                                 "into a list, extracting one, filtering, extending, trimming, "
                                 "and requantizing a page. Sequences have one layer with one "
                                 "small KV head, because the cost does not depend on the "
                                 "layers and heads in a page. Times are the best of many; "
                                 "freeing and requantizing are timed once.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    const cli_shape shape = {1, 1, DIM, DIM};
    quire_policy policy, to;
    if (!cli_policy_parse(chosen.kv, -1, &policy) ||
        !cli_policy_fits(chosen.kv, &policy, &shape, QUIRE_F16) ||
        !cli_policy_parse(chosen.to, -1, &to) ||
        !cli_policy_fits(chosen.to, &to, &shape, QUIRE_F16))
        return CLI_USAGE;
    ops_bench bench = {.options = &chosen};
    const quire_status measured = measure(&bench, &policy, &to);
    if (measured != QUIRE_OK)
        return failed(measured);
    return chosen.json ? print_json(&bench) : print_text(&bench);
}
