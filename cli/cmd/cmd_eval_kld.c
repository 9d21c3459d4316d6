/* cmd_eval_kld.c: quire eval kld and quire eval ppl. Measure how much a cache changes a model's
 * predictions on a text, and how good they are. */
#include "command.h"
#include "eval/eval_stats.h"
#include "options/args.h"
#include "options/cache_args.h"
#include "options/comma_list.h"
#include "options/model_args.h"
#include "options/workers.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"
#include "reports/cache_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONTEXT_MAX = 1 << 20,
    CONTEXT_DEFAULT = 2048,
    CHUNKS_MAX = 1 << 16,
    ROWS_MAX = 512,
    OWN_OPTIONS = 4
};

typedef struct kld_options {
    cli_model_args model;
    const char *text, *base;
    int32_t n_chunks, n_rows, base_raw;
    bool json;
    bool alone; /* ppl: there is no base */
} kld_options;

/* One cache: the base, or an entry of --kv. */
typedef struct kld_entry {
    const char *kv;
    quire_session *session;
    quire_seq *seq;
    quire_divergence *rows;
    cli_divergences sum;
    cli_cache_report cache;
} kld_entry;

typedef struct kld_run {
    const kld_options *chosen;
    quire_model *model;
    int32_t n_vocab, context, first_row; /* rows from first_row on are scored */
    int32_t *tokens;                     /* (n_chunks, context) */
    kld_entry base, *entries;
    size_t n_entries, n_scored;
    cli_workers *workers;
} kld_run;

/* ------------------------------------------------------------------ text */

/* Splits the text as usual for perplexity: consecutive chunks, each starting with the model's start
 * token if it has one. */
static int cut_text(kld_run *run) {
    size_t n_bytes;
    char *text = cli_file_read(run->chosen->text, &n_bytes);
    if (!text)
        return CLI_FAILURE;
    int32_t n_tokens, n_start;
    int32_t *start = cli_tokenize(run->model, "", 0, QUIRE_TOKENIZE_START, &n_start);
    int32_t *tokens =
        start ? cli_tokenize(run->model, text, n_bytes, QUIRE_TOKENIZE_START, &n_tokens) : NULL;
    free(text);
    if (!tokens) {
        free(start);
        return CLI_FAILURE;
    }
    run->tokens = tokens;
    int32_t n_needed = run->chosen->n_chunks * run->context;
    for (int32_t i = 0; n_start > 0 && n_tokens >= n_needed && i < n_needed; i += run->context)
        tokens[i] = start[0];
    free(start);
    if (n_tokens >= n_needed)
        return CLI_OK;
    cli_error(
        "'%s' has %d tokens, but %d chunks of %d need %d; give fewer --chunks, a smaller --ctx "
        "or a longer text",
        run->chosen->text, (int)n_tokens, (int)run->chosen->n_chunks, (int)run->context,
        (int)n_needed);
    return CLI_FAILURE;
}

/* ------------------------------------------------------------------ steps */

static int fail(quire_status status) {
    if (status == QUIRE_E_ABORTED)
        return CLI_INTERRUPTED;
    return cli_quire_error("cannot evaluate", status, NULL);
}

typedef struct compare_job {
    const kld_run *run;
    const kld_entry *entry;
    const int32_t *truths; /* (n) */
    int32_t n;
} compare_job;

static void compare_rows(void *user, int32_t ith, int32_t nth) {
    const compare_job *job = user;
    const cli_part part = cli_part_of(job->n, ith, nth);
    const quire_session *base =
        job->run->chosen->alone ? job->entry->session : job->run->base.session;
    for (int32_t i = part.first; i < part.last; i++)
        job->entry->rows[job->run->n_scored + (size_t)i] = quire_logits_compare(
            quire_session_logits(base, i), quire_session_logits(job->entry->session, i),
            job->run->n_vocab, job->truths[i]);
}

/* Rows at..at+n-1 of a chunk through one cache; the last n_logits of them are scored. */
static quire_status advance(kld_entry *entry, const int32_t *tokens, int32_t n, int32_t n_logits) {
    const quire_step_item item = {
        .seq = entry->seq, .tokens = tokens, .n_tokens = n, .n_logits = n_logits};
    return quire_session_decode(entry->session, &item, 1, true);
}

/* A NaN would spoil the means without a word about the row that it came from. */
static int check_rows(const kld_run *run, size_t first) {
    for (size_t i = 0; i < run->n_entries; i++)
        for (size_t row = first; row < run->n_scored; row++) {
            const quire_divergence *d = &run->entries[i].rows[row];
            if (isfinite(d->kld) && isfinite(d->nll) && isfinite(d->nll_base))
                continue;
            cli_error("cannot evaluate: with %s, scored prediction %zu is not a number",
                      run->chosen->alone || isfinite(d->nll_base) ? run->entries[i].kv
                                                                  : run->chosen->base,
                      row + 1);
            return CLI_FAILURE;
        }
    return CLI_OK;
}

static int run_step(kld_run *run, const int32_t *chunk, int32_t at, int32_t n) {
    int32_t n_logits = at < run->first_row ? 0 : n; /* a step does not cross first_row */
    quire_status status =
        run->chosen->alone ? QUIRE_OK : advance(&run->base, chunk + at, n, n_logits);
    for (size_t i = 0; status == QUIRE_OK && i < run->n_entries; i++) {
        kld_entry *entry = &run->entries[i];
        status = advance(entry, chunk + at, n, n_logits);
        if (status == QUIRE_OK && n_logits > 0) {
            compare_job job = {.run = run, .entry = entry, .truths = chunk + at + 1, .n = n_logits};
            cli_workers_run(run->workers, compare_rows, &job);
        }
    }
    const size_t first = run->n_scored;
    run->n_scored += (size_t)n_logits;
    return status == QUIRE_OK ? check_rows(run, first) : fail(status);
}

static quire_status start_chunk(kld_entry *entry) {
    quire_status status = quire_seq_free(entry->seq);
    entry->seq = NULL;
    return status == QUIRE_OK ? quire_seq_create(quire_session_pool(entry->session), &entry->seq)
                              : status;
}

static int run_chunk(kld_run *run, int32_t index, cli_progress *progress) {
    quire_status status = run->chosen->alone ? QUIRE_OK : start_chunk(&run->base);
    for (size_t i = 0; status == QUIRE_OK && i < run->n_entries; i++)
        status = start_chunk(&run->entries[i]);
    int result = status == QUIRE_OK ? CLI_OK : fail(status);
    const int32_t *chunk = run->tokens + (size_t)index * (size_t)run->context;
    const int32_t last = run->context - 1; /* its next token is in no chunk */
    for (int32_t at = 0; result == CLI_OK && at < last;) {
        int32_t end = at < run->first_row ? run->first_row : last;
        int32_t n = end - at < run->chosen->n_rows ? end - at : run->chosen->n_rows;
        result = run_step(run, chunk, at, n);
        at += n;
        cli_progress_update(progress, (int64_t)index * run->context + at,
                            (int64_t)run->chosen->n_chunks * run->context);
    }
    return result;
}

/* ------------------------------------------------------------------ report */

static json_t *ppl_json(const kld_run *run, const kld_entry *entry) {
    const cli_divergences *s = &entry->sum;
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:I}", "kv", entry->kv, "ctx",
                     (int)run->context, "chunks", (int)run->chosen->n_chunks, "tokens", (int)s->n,
                     "ppl", cli_json_number(s->ppl), "ppl_error", cli_json_number(s->ppl_error),
                     "bits", cli_json_number(entry->cache.bits), "fallbacks",
                     (json_int_t)entry->cache.fallbacks);
}

static json_t *entry_json(const kld_run *run, const kld_entry *entry) {
    const cli_divergences *s = &entry->sum;
    if (run->chosen->alone)
        return ppl_json(run, entry);
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kv", entry->kv, "ctx",
        (int)run->context, "chunks", (int)run->chosen->n_chunks, "tokens", (int)s->n, "ppl",
        cli_json_number(s->ppl), "ppl_base", cli_json_number(s->ppl_base), "kld_mean",
        cli_json_number(s->kld_mean), "kld_error", cli_json_number(s->kld_error), "kld_median",
        cli_json_number(s->kld_median), "kld_p999", cli_json_number(s->kld_p999), "kld_max",
        cli_json_number(s->kld_max), "same_top", cli_json_number(s->same_top), "bits",
        cli_json_number(entry->cache.bits));
    if (root)
        json_object_set_new(root, "fallbacks", json_integer((json_int_t)entry->cache.fallbacks));
    return root;
}

static int print_json(const kld_run *run) {
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_entries; i++)
        cli_json_append(&list, entry_json(run, &run->entries[i]));
    return cli_print_entries(list);
}

static int print_ppl(const kld_run *run) {
    static const cli_column columns[] = {
        {"kv", false}, {"bits", true}, {"perplexity", true}, {"+-", true}};
    printf("%s, %d chunks of %d tokens of %s, the second half of each\n\n",
           run->chosen->model.model, (int)run->chosen->n_chunks, (int)run->context,
           run->chosen->text);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < run->n_entries; i++) {
        cli_table_cell(&table, "%s", run->entries[i].kv);
        cli_table_cell(&table, "%s", cli_bits(run->entries[i].cache.bits).text);
        cli_table_cell(&table, "%.4f", run->entries[i].sum.ppl);
        cli_table_cell(&table, "%s", cli_half(run->entries[i].sum.ppl_error, 4).text);
    }
    return cli_table_print(&table, stdout);
}

static int print_text(const kld_run *run) {
    if (run->chosen->alone)
        return print_ppl(run);
    static const cli_column columns[] = {
        {"kv", false},      {"bits", true},       {"KLD", true},
        {"+-", true},       {"99.9 %", true},     {"largest", true},
        {"same top", true}, {"perplexity", true}, {"base", true},
    };
    printf("%s, %d chunks of %d tokens of %s, the second half of each; base: %s in %s\n\n",
           run->chosen->model.model, (int)run->chosen->n_chunks, (int)run->context,
           run->chosen->text, run->chosen->base, cli_raw_names[run->chosen->base_raw]);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < run->n_entries; i++) {
        const cli_divergences *s = &run->entries[i].sum;
        cli_table_cell(&table, "%s", run->entries[i].kv);
        cli_table_cell(&table, "%s", cli_bits(run->entries[i].cache.bits).text);
        cli_table_cell(&table, "%.6f", s->kld_mean);
        cli_table_cell(&table, "%s", cli_half(s->kld_error, 6).text);
        cli_table_cell(&table, "%.4f", s->kld_p999);
        cli_table_cell(&table, "%.4f", s->kld_max);
        cli_table_cell(&table, "%.2f %%", 100 * s->same_top);
        cli_table_cell(&table, "%.4f", s->ppl);
        cli_table_cell(&table, "%.4f", s->ppl_base);
    }
    return cli_table_print(&table, stdout);
}

/* ------------------------------------------------------------------ command */

static int open_entry(kld_run *run, kld_entry *entry, const cli_model_args *args, const char *kv) {
    const cli_session_request request = {.kv = kv,
                                         .context = run->context,
                                         .max_rows = ROWS_MAX,
                                         .max_logits = run->chosen->n_rows,
                                         .stop = cli_interrupt_seen};
    entry->kv = kv;
    return cli_session_open(args, run->model, &request, &entry->session);
}

/* Opens all caches before the first step: a misspelt last one should not cost minutes. */
static int open_all(kld_run *run, char **names) {
    const kld_options *chosen = run->chosen;
    const cli_model_args base = cli_model_args_raw(&chosen->model, (quire_type)chosen->base_raw);
    run->entries = calloc(run->n_entries, sizeof *run->entries);
    if (!run->entries)
        return cli_quire_error("cannot evaluate", QUIRE_E_NOMEM, "out of memory");
    int status = chosen->alone ? CLI_OK : open_entry(run, &run->base, &base, chosen->base);
    const size_t n_rows = (size_t)chosen->n_chunks * (size_t)run->context;
    for (size_t i = 0; status == CLI_OK && i < run->n_entries; i++) {
        status = open_entry(run, &run->entries[i], &chosen->model, names[i]);
        run->entries[i].rows = malloc(n_rows * sizeof(quire_divergence));
        if (!run->entries[i].rows)
            status = cli_quire_error("cannot evaluate", QUIRE_E_NOMEM, "out of memory");
    }
    if (status != CLI_OK)
        return status;
    run->workers = cli_workers_start(chosen->model.n_threads);
    return run->workers ? CLI_OK : CLI_FAILURE;
}

static int choose_context(kld_run *run, const quire_model_info *info) {
    const int32_t given = run->chosen->model.context, n_chunks = run->chosen->n_chunks;
    run->context = given                             ? given
                   : info->context < CONTEXT_DEFAULT ? info->context
                                                     : CONTEXT_DEFAULT;
    run->first_row = run->context / 2;
    if (run->context >= 4 && run->context <= CONTEXT_MAX &&
        (int64_t)run->context * n_chunks <= INT32_MAX)
        return CLI_OK;
    cli_error("cannot evaluate %d chunks of %d tokens; --ctx must be 4 to %d, and --chunks times "
              "--ctx at most %d",
              (int)n_chunks, (int)run->context, (int)CONTEXT_MAX, (int)INT32_MAX);
    return CLI_USAGE;
}

static int evaluate(kld_run *run, char **names) {
    const kld_options *chosen = run->chosen;
    int status = cli_model_open(&chosen->model, &run->model);
    if (status != CLI_OK)
        return status;
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    run->n_vocab = info.n_vocab;
    status = choose_context(run, &info);
    if (status == CLI_OK)
        status = cut_text(run);
    if (status == CLI_OK)
        status = open_all(run, names);
    cli_interrupt_catch();
    cli_progress progress;
    cli_progress_start(&progress, chosen->alone ? "ppl" : "kld");
    for (int32_t i = 0; status == CLI_OK && i < chosen->n_chunks; i++)
        status = run_chunk(run, i, &progress);
    cli_progress_end(&progress);
    for (size_t i = 0; status == CLI_OK && i < run->n_entries; i++) {
        kld_entry *entry = &run->entries[i];
        int32_t n_tokens = quire_seq_length(entry->seq);
        cli_cache_report_read(entry->session, &n_tokens, 1, &entry->cache);
        entry->sum = cli_divergences_sum(entry->rows, run->n_scored);
    }
    if (status == CLI_OK)
        status = chosen->json ? print_json(run) : print_text(run);
    return status;
}

static void own_options(kld_options *chosen, cli_option *options) {
    const cli_option all[OWN_OPTIONS] = {
        cli_string("text", &chosen->text, "FILE", "the text (required); '-': standard input"),
        cli_int("chunks", &chosen->n_chunks, 1, CHUNKS_MAX,
                "number of chunks of --ctx tokens to evaluate"),
        cli_int("rows", &chosen->n_rows, 1, ROWS_MAX, "tokens per step; 1: as in decoding"),
        cli_flag("json", &chosen->json, CLI_JSON_LIST_HELP),
    };
    memcpy(options, all, sizeof all);
    cli_model_options(&chosen->model, options + OWN_OPTIONS);
}

static int run_command(kld_options *chosen, const cli_usage *usage, int argc, char **argv) {
    int status;
    if (!cli_args_parse(usage, argc, argv, &status))
        return status;
    if (!chosen->text) {
        cli_error("no text was given; give --text FILE");
        return CLI_USAGE;
    }
    kld_run run = {.chosen = chosen};
    char **names = cli_list_split(chosen->model.kv, &run.n_entries);
    status = names ? evaluate(&run, names) : CLI_FAILURE;
    for (size_t i = 0; run.entries && i < run.n_entries; i++) {
        quire_session_free(run.entries[i].session);
        free(run.entries[i].rows);
    }
    quire_session_free(run.base.session);
    cli_workers_stop(run.workers);
    free(run.entries);
    free(run.tokens);
    free(names);
    quire_model_free(run.model);
    return status;
}

int cli_eval_ppl_run(int argc, char **argv) {
    kld_options chosen = {.n_chunks = 4, .n_rows = 64, .alone = true};
    cli_model_args_default(&chosen.model);
    cli_option options[OWN_OPTIONS + CLI_MODEL_OPTIONS];
    own_options(&chosen, options);
    static const char *const examples[] = {
        "quire eval ppl -m smollm2 --text wiki.test.raw --kv none,k8v4", NULL};
    const cli_usage usage = {
        .command = "eval ppl",
        .about = "Computes the perplexity of a text: how well a model predicts it with a cache. "
                 "Only the second half of each chunk is scored. --kv may be a list. 'quire eval "
                 "kld' is much more sensitive to small differences.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    return run_command(&chosen, &usage, argc, argv);
}

int cli_eval_kld_run(int argc, char **argv) {
    kld_options chosen = {.n_chunks = 4, .n_rows = 64, .base = "none", .base_raw = QUIRE_BF16};
    cli_model_args_default(&chosen.model);
    enum { BASE_OPTIONS = 2 };
    cli_option options[BASE_OPTIONS + OWN_OPTIONS + CLI_MODEL_OPTIONS] = {
        cli_string("base", &chosen.base, "NAME", "codecs of the cache to compare with"),
        cli_choice("base-raw", &chosen.base_raw, cli_raw_names,
                   "type of the base's rows that are not quantized: f16, bf16 or f32"),
    };
    own_options(&chosen, options + BASE_OPTIONS);
    static const char *const examples[] = {
        "quire eval kld -m smollm2 --text wiki.test.raw --kv k8v8,k4v4 --weights f32",
        NULL,
    };
    const cli_usage usage = {.command = "eval kld",
                             .about = "Measures how much a quantized cache changes a model's "
                                      "predictions: the KL divergence from the same model with a "
                                      "raw cache, on the tokens of a text. Only the second half of "
                                      "each chunk is scored. --kv may be a list.\n"
                                      "With weights of less than 16 bits, activations are rounded "
                                      "to int8, which alone costs a KL divergence of about 0.003; "
                                      "--weights f32 avoids that.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    return run_command(&chosen, &usage, argc, argv);
}
