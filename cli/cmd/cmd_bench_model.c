/* cmd_bench_model.c: quire bench model. Times prefill and decode of a model at a depth. */
#include "bench/model_fill.h"
#include "command.h"
#include "options/args.h"
#include "options/comma_list.h"
#include "options/model_args.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"
#include "reports/cache_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum {
    TOKENS_MAX = 1 << 24,
    ROWS_DEFAULT = 512,
    ROWS_MAX = 8192,
    REPEAT_MAX = 1000,
    SEQS_MAX = 64
};

typedef struct bench_options {
    cli_model_args model;
    const char *depth;        /* as it was given */
    int32_t depths[SEQS_MAX]; /* (n_seqs) of the sequences that are decoded together */
    int32_t n_seqs, n_gen, n_prompt, n_repeat;
    bool fill, json;
} bench_options;

typedef struct bench_batch {
    quire_seq *seqs[SEQS_MAX];
    quire_step_item items[SEQS_MAX];
} bench_batch;

typedef struct bench_entry {
    const char *kv;
    double tg_tps, pp_tps;
    cli_cache_report cache;
    json_t *layers; /* with --json */
    size_t compute_bytes;
} bench_entry;

/* Any tokens will do: the time does not depend on them. */
static int32_t *make_tokens(const quire_model *model, int32_t n) {
    quire_model_info info;
    quire_model_get_info(model, &info);
    int32_t *tokens = malloc(((size_t)n + 1) * sizeof *tokens);
    uint32_t state = 1;
    for (int32_t i = 0; tokens && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((state >> 8) % (uint32_t)info.n_vocab);
    }
    return tokens;
}

static uint64_t peak_rss(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#if defined(__APPLE__)
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

static double smallest(double a, double b) { return a == 0 || b < a ? b : a; }

static int32_t deepest(const bench_options *chosen) {
    int32_t most = 0;
    for (int32_t i = 0; i < chosen->n_seqs; i++)
        most = chosen->depths[i] > most ? chosen->depths[i] : most;
    return most;
}

/* The most tokens that follow the depth. */
static int32_t tail_tokens(const bench_options *chosen) {
    return chosen->n_gen > chosen->n_prompt ? chosen->n_gen : chosen->n_prompt;
}

/* A multiple of a page: rows of one step. */
static int32_t step_rows(const bench_options *chosen) {
    int32_t rows = chosen->n_prompt > ROWS_DEFAULT ? chosen->n_prompt : ROWS_DEFAULT;
    return (rows + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
}

/* Computes the prompt in one step and rolls it back. */
static quire_status time_prefill(const bench_options *chosen, quire_session *session,
                                 quire_seq *seq, const int32_t *tokens, bench_entry *entry) {
    const quire_step_item item = {
        .seq = seq, .tokens = tokens, .n_tokens = chosen->n_prompt, .n_logits = 1};
    double best = 0;
    for (int32_t i = 0; i < chosen->n_repeat; i++) {
        double start = cli_seconds();
        quire_status status = quire_session_eval(session, &item, 1, true);
        if (status != QUIRE_OK)
            return status;
        best = smallest(best, cli_seconds() - start);
        quire_session_abort(session);
    }
    entry->pp_tps = chosen->n_prompt / best;
    return QUIRE_OK;
}

/* Decodes one token of every sequence at a time. */
static quire_status time_decode(const bench_options *chosen, quire_session *session,
                                bench_batch *batch, const int32_t *tokens, bench_entry *entry) {
    double start = cli_seconds();
    for (int32_t i = 0; i < chosen->n_gen; i++) {
        for (int32_t j = 0; j < chosen->n_seqs; j++)
            batch->items[j] = (quire_step_item){
                .seq = batch->seqs[j], .tokens = tokens + i, .n_tokens = 1, .n_logits = 1};
        quire_status status =
            quire_session_decode(session, batch->items, (size_t)chosen->n_seqs, false);
        if (status != QUIRE_OK)
            return status;
    }
    entry->tg_tps = (double)chosen->n_gen * chosen->n_seqs / (cli_seconds() - start);
    return QUIRE_OK;
}

typedef struct depth_progress {
    cli_progress bar;
    int32_t total;
} depth_progress;

static void on_depth(void *user, int32_t done) {
    depth_progress *progress = user;
    cli_progress_update(&progress->bar, done, progress->total);
}

static quire_status reach_depth(const bench_options *chosen, quire_session *session,
                                const int32_t *tokens, int32_t index, quire_seq *seq,
                                const char *label) {
    const int32_t depth = chosen->depths[index];
    depth_progress progress = {.total = depth};
    if (depth == 0)
        return QUIRE_OK;
    cli_progress_start(&progress.bar, label);
    const cli_fill fill = {.n_threads = chosen->model.n_threads,
                           .max_rows = step_rows(chosen),
                           .seed = (uint64_t)index + 1,
                           .progress = on_depth,
                           .stop = cli_interrupt_seen,
                           .user = &progress};
    const quire_status status =
        chosen->fill ? cli_fill_seq(session, seq, depth, &fill)
                     : quire_session_prefill(session, seq, tokens, depth, on_depth, &progress);
    cli_progress_end(&progress.bar);
    return status;
}

static quire_status measure(const bench_options *chosen, quire_session *session,
                            const int32_t *tokens, bench_entry *entry) {
    bench_batch batch = {.seqs = {NULL}};
    quire_status status = QUIRE_OK;
    for (int32_t i = 0; status == QUIRE_OK && i < chosen->n_seqs; i++) {
        status = quire_seq_create(quire_session_pool(session), &batch.seqs[i]);
        if (status == QUIRE_OK)
            status = reach_depth(chosen, session, tokens, i, batch.seqs[i], entry->kv);
    }
    const int32_t *next = tokens + deepest(chosen);
    if (status == QUIRE_OK && chosen->n_prompt > 0)
        status = time_prefill(chosen, session, batch.seqs[0], next, entry);
    if (status == QUIRE_OK && chosen->n_gen > 0)
        status = time_decode(chosen, session, &batch, next, entry);
    if (status != QUIRE_OK)
        return status;
    int32_t lengths[SEQS_MAX];
    for (int32_t i = 0; i < chosen->n_seqs; i++)
        lengths[i] = quire_seq_length(batch.seqs[i]);
    cli_cache_report_read(session, lengths, (size_t)chosen->n_seqs, &entry->cache);
    if (chosen->json)
        entry->layers = cli_cache_layers_json(session);
    entry->compute_bytes = quire_session_compute_bytes(session);
    return QUIRE_OK;
}

static int measure_entry(const bench_options *chosen, const quire_model *model,
                         const int32_t *tokens, bench_entry *entry) {
    const cli_session_request request = {.kv = entry->kv,
                                         .context = deepest(chosen) + tail_tokens(chosen) + 1,
                                         .max_seqs = chosen->n_seqs,
                                         .max_rows = step_rows(chosen),
                                         .max_logits = chosen->n_seqs > 2 ? chosen->n_seqs : 2,
                                         .stop = cli_interrupt_seen};
    quire_session *session;
    int result = cli_session_open(&chosen->model, model, &request, &session);
    if (result != CLI_OK)
        return result;
    quire_status status = measure(chosen, session, tokens, entry);
    if (status == QUIRE_E_ABORTED)
        result = CLI_INTERRUPTED;
    else if (status != QUIRE_OK)
        result = cli_quire_error("cannot measure", status, NULL);
    quire_session_free(session);
    return result;
}

/* ------------------------------------------------------------------ report */

/* A number, or an array for a batch. */
static json_t *depth_json(const bench_options *chosen) {
    if (chosen->n_seqs == 1)
        return json_integer(chosen->depths[0]);
    json_t *list = json_array();
    for (int32_t i = 0; i < chosen->n_seqs; i++)
        cli_json_append(&list, json_integer(chosen->depths[i]));
    return list;
}

static json_t *entry_json(const bench_options *chosen, const bench_entry *entry) {
    json_t *root = json_pack(
        "{s:o, s:s, s:o, s:b, s:i, s:i, s:i, s:o, s:o, s:I, s:I}", "model",
        cli_json_text(chosen->model.model), "kv", entry->kv, "depth", depth_json(chosen), "filled",
        (int)chosen->fill, "gen", (int)chosen->n_gen, "prompt", (int)chosen->n_prompt, "threads",
        (int)chosen->model.n_threads, "tg_tps", cli_json_number(entry->tg_tps), "pp_tps",
        cli_json_number(entry->pp_tps), "peak_rss", (json_int_t)peak_rss(), "compute_bytes",
        (json_int_t)entry->compute_bytes);
    json_t *cache = cli_cache_report_json(&entry->cache);
    if (root && cache && json_object_update(root, cache) == 0 &&
        json_object_set(root, "layers", entry->layers) == 0) {
        json_decref(cache);
        return root;
    }
    json_decref(cache);
    json_decref(root);
    return NULL;
}

static int print_json(const bench_options *chosen, const bench_entry *entries, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, entry_json(chosen, &entries[i]));
    return cli_print_entries(list);
}

static int print_text(const bench_options *chosen, const bench_entry *entries, size_t n) {
    static const cli_column columns[] = {
        {"kv", false},     {"bits", true},       {"decode t/s", true}, {"prefill t/s", true},
        {"KV", true},      {"full pages", true}, {"raw rows", true},   {"KV in bf16", true},
        {"compute", true}, {"fallbacks", true},
    };
    printf("%s at depth %s%s: %d tokens decoded, %d prefilled, %d threads; peak memory %s\n\n",
           chosen->model.model, chosen->depth, chosen->fill ? " (synthetic rows)" : "",
           (int)(chosen->n_gen * chosen->n_seqs), (int)chosen->n_prompt,
           (int)chosen->model.n_threads, cli_bytes(peak_rss()).text);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n; i++) {
        const bench_entry *entry = &entries[i];
        cli_table_cell(&table, "%s", entry->kv);
        cli_table_cell(&table, "%s", cli_bits(entry->cache.bits).text);
        cli_table_cell(&table, "%.1f", entry->tg_tps);
        cli_table_cell(&table, "%.1f", entry->pp_tps);
        cli_table_cell(&table, "%s", cli_bytes(entry->cache.kv_bytes).text);
        cli_table_cell(&table, "%s", cli_bytes(entry->cache.packed_bytes).text);
        cli_table_cell(&table, "%s",
                       cli_bytes(entry->cache.kv_bytes - entry->cache.packed_bytes).text);
        cli_table_cell(&table, "%s", cli_bytes(entry->cache.kv_bytes_bf16).text);
        cli_table_cell(&table, "%s", cli_bytes(entry->compute_bytes).text);
        cli_table_cell(&table, "%llu", (unsigned long long)entry->cache.fallbacks);
    }
    return cli_table_print(&table, stdout);
}

/* ------------------------------------------------------------------ command */

static int bench_all(const bench_options *chosen, const quire_model *model, char **names,
                     size_t n) {
    int32_t *tokens = make_tokens(model, deepest(chosen) + tail_tokens(chosen));
    bench_entry *entries = calloc(n, sizeof *entries);
    int status = CLI_OK;
    if (!tokens || !entries)
        status = cli_quire_error("cannot measure", QUIRE_E_NOMEM, "out of memory");
    for (size_t i = 0; status == CLI_OK && i < n; i++) {
        entries[i].kv = names[i];
        status = measure_entry(chosen, model, tokens, &entries[i]);
    }
    if (status == CLI_OK)
        status = chosen->json ? print_json(chosen, entries, n) : print_text(chosen, entries, n);
    for (size_t i = 0; entries && i < n; i++)
        json_decref(entries[i].layers);
    free(entries);
    free(tokens);
    return status;
}

/* False, with a message. */
static bool parse_depths(bench_options *chosen) {
    size_t n;
    char **parts = cli_list_split(chosen->depth, &n);
    if (!parts)
        return false;
    bool ok = n <= SEQS_MAX;
    if (!ok)
        cli_error("--depth has %zu numbers; a batch has at most %d sequences", n, SEQS_MAX);
    for (size_t i = 0; ok && i < n; i++) {
        const cli_option option = cli_int("depth", &chosen->depths[i], 0, TOKENS_MAX, "");
        ok = cli_option_assign(&option, parts[i]);
        if (!ok)
            cli_error("--depth: '%s' is not a number from 0 to %d", parts[i], TOKENS_MAX);
    }
    chosen->n_seqs = (int32_t)n;
    free(parts);
    return ok;
}

int cli_bench_model_run(int argc, char **argv) {
    bench_options chosen = {.depth = "0", .n_gen = 32, .n_prompt = 512, .n_repeat = 1};
    cli_model_args_default(&chosen.model);
    enum { OWN = 6 };
    cli_option options[OWN + CLI_MODEL_OPTIONS] = {
        cli_string("depth", &chosen.depth, "N,..",
                   "tokens in the cache before the timing starts; a list is a batch of sequences "
                   "that are decoded together"),
        cli_flag("fill", &chosen.fill,
                 "reach the depth with synthetic rows instead of a prefill: as many pages, sealed "
                 "by the same codecs, in a fraction of the time"),
        cli_int("gen", &chosen.n_gen, 0, TOKENS_MAX, "tokens to decode, of each sequence"),
        cli_int("prompt", &chosen.n_prompt, 0, ROWS_MAX,
                "tokens to prefill, in one step, after the first sequence"),
        cli_int("repeat", &chosen.n_repeat, 1, REPEAT_MAX,
                "how often to time the prefill; the best time counts"),
        cli_flag("json", &chosen.json, CLI_JSON_LIST_HELP),
    };
    cli_model_options(&chosen.model, options + OWN);
    static const char *const examples[] = {
        "quire bench model -m smollm2 --kv none,k8v4,k4v4 --depth 8000 --gen 32 -t 2",
        "quire bench model -m gemma3 --kv none,k4v4 --depth 30000 --fill --prompt 0",
        "quire bench model -m smollm2 --depth 4000,3900,200 --fill --prompt 0",
        NULL,
    };
    const cli_usage usage = {.command = "bench model",
                             .about = "Times a model at a depth: decoding one token at a time, and "
                                      "prefill of a prompt. --kv may be a list. The column KV is "
                                      "the size of the cache at the end.\n"
                                      "--fill is for speed and memory at long contexts, where a "
                                      "prefill takes hours. The synthetic rows are the same in "
                                      "every run; they mean nothing to the model.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    if (!parse_depths(&chosen))
        return CLI_USAGE;
    size_t n;
    char **names = cli_list_split(chosen.model.kv, &n);
    quire_model *model = NULL;
    status = !names                                         ? CLI_FAILURE
             : !cli_kv_names_check(&chosen.model, names, n) ? CLI_USAGE
                                                            : cli_model_open(&chosen.model, &model);
    cli_interrupt_catch();
    if (status == CLI_OK)
        status = bench_all(&chosen, model, names, n);
    quire_model_free(model);
    free(names);
    return status;
}
