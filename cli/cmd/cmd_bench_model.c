/* cmd_bench_model.c: quire bench model. Times prefill and decode of a model at a depth. */
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

enum { TOKENS_MAX = 1 << 24, ROWS_DEFAULT = 512, ROWS_MAX = 8192, REPEAT_MAX = 1000 };

typedef struct bench_options {
    cli_model_args model;
    int32_t depth, n_gen, n_prompt, n_repeat;
    bool json;
} bench_options;

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

static quire_status time_decode(const bench_options *chosen, quire_session *session, quire_seq *seq,
                                const int32_t *tokens, bench_entry *entry) {
    double start = cli_seconds();
    for (int32_t i = 0; i < chosen->n_gen; i++) {
        const quire_step_item item = {
            .seq = seq, .tokens = tokens + i, .n_tokens = 1, .n_logits = 1};
        quire_status status = quire_session_decode(session, &item, 1, false);
        if (status != QUIRE_OK)
            return status;
    }
    entry->tg_tps = chosen->n_gen / (cli_seconds() - start);
    return QUIRE_OK;
}

typedef struct depth_progress {
    cli_progress bar;
    int32_t total;
} depth_progress;

static void on_prefill(void *user, int32_t done) {
    depth_progress *progress = user;
    cli_progress_update(&progress->bar, done, progress->total);
}

static quire_status measure(const bench_options *chosen, quire_session *session,
                            const int32_t *tokens, bench_entry *entry) {
    quire_seq *seq;
    quire_status status = quire_seq_create(quire_session_pool(session), &seq);
    if (status == QUIRE_OK && chosen->depth > 0) {
        depth_progress progress = {.total = chosen->depth};
        cli_progress_start(&progress.bar, entry->kv);
        status = quire_session_prefill(session, seq, tokens, chosen->depth, on_prefill, &progress);
        cli_progress_end(&progress.bar);
    }
    if (status == QUIRE_OK && chosen->n_prompt > 0)
        status = time_prefill(chosen, session, seq, tokens + chosen->depth, entry);
    if (status == QUIRE_OK && chosen->n_gen > 0)
        status = time_decode(chosen, session, seq, tokens + chosen->depth, entry);
    if (status != QUIRE_OK)
        return status;
    int32_t n_tokens = quire_seq_length(seq);
    cli_cache_report_read(session, &n_tokens, 1, &entry->cache);
    if (chosen->json)
        entry->layers = cli_cache_layers_json(session);
    entry->compute_bytes = quire_session_compute_bytes(session);
    return QUIRE_OK;
}

static int measure_entry(const bench_options *chosen, const quire_model *model,
                         const int32_t *tokens, bench_entry *entry) {
    int32_t rows = chosen->n_prompt > ROWS_DEFAULT ? chosen->n_prompt : ROWS_DEFAULT;
    rows = (rows + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
    int32_t tail = chosen->n_gen > chosen->n_prompt ? chosen->n_gen : chosen->n_prompt;
    const cli_session_request request = {.kv = entry->kv,
                                         .context = chosen->depth + tail + 1,
                                         .max_rows = rows,
                                         .max_logits = 2,
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

static json_t *entry_json(const bench_options *chosen, const bench_entry *entry) {
    json_t *root =
        json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:I, s:I}", "model",
                  cli_json_text(chosen->model.model), "kv", entry->kv, "depth", (int)chosen->depth,
                  "gen", (int)chosen->n_gen, "prompt", (int)chosen->n_prompt, "threads",
                  (int)chosen->model.n_threads, "tg_tps", cli_json_number(entry->tg_tps), "pp_tps",
                  cli_json_number(entry->pp_tps), "peak_rss", (json_int_t)peak_rss(),
                  "compute_bytes", (json_int_t)entry->compute_bytes);
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
    printf("%s at depth %d: %d tokens decoded, %d prefilled, %d threads; peak memory %s\n\n",
           chosen->model.model, (int)chosen->depth, (int)chosen->n_gen, (int)chosen->n_prompt,
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
    int32_t tail = chosen->n_gen > chosen->n_prompt ? chosen->n_gen : chosen->n_prompt;
    int32_t *tokens = make_tokens(model, chosen->depth + tail);
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

int cli_bench_model_run(int argc, char **argv) {
    bench_options chosen = {.n_gen = 32, .n_prompt = 512, .n_repeat = 1};
    cli_model_args_default(&chosen.model);
    enum { OWN = 5 };
    cli_option options[OWN + CLI_MODEL_OPTIONS] = {
        cli_int("depth", &chosen.depth, 0, TOKENS_MAX,
                "tokens in the cache before the timing starts"),
        cli_int("gen", &chosen.n_gen, 0, TOKENS_MAX, "tokens to decode"),
        cli_int("prompt", &chosen.n_prompt, 0, ROWS_MAX, "tokens to prefill, in one step"),
        cli_int("repeat", &chosen.n_repeat, 1, REPEAT_MAX,
                "how often to time the prefill; the best time counts"),
        cli_flag("json", &chosen.json, CLI_JSON_LIST_HELP),
    };
    cli_model_options(&chosen.model, options + OWN);
    static const char *const examples[] = {
        "quire bench model -m smollm2 --kv none,k8v4,k4v4 --depth 8000 --gen 32 -t 2",
        NULL,
    };
    const cli_usage usage = {.command = "bench model",
                             .about = "Times a model at a depth: decoding one token at a time, and "
                                      "prefill of a prompt. --kv may be a list. The column KV is "
                                      "the size of the cache at the end.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
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
