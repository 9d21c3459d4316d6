/* cmd_eval_agree.c: quire eval agree. Compares texts generated with quantized caches with those of
 * the raw cache: how long they agree, and how good they are. A text that diverges may be just as
 * good, so its repetitions and its perplexity for the model with the raw cache are measured. */
#include "command.h"
#include "eval/eval_stats.h"
#include "eval/text_stats.h"
#include "options/args.h"
#include "options/cache_args.h"
#include "options/model_args.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"
#include "text/chat_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREDICT_MAX = 1 << 14,
    SCORE_ROWS = 64,
    LONG_GROUP = 4,
    SHORT_GROUP = 2,
    GENERATED_DEFAULT = 200
};

/* Used without --prompts. Each works as a message and as the beginning of a text. */
static const char OWN_PROMPTS[] =
    "Bread is made from flour, water, salt and yeast. Here is how it is made, step by step.\n"
    "Write a story about a lighthouse keeper who finds a letter in a bottle.\n"
    "Explain why the sky is blue during the day and red in the evening.\n"
    "A list of ten things to take on a walk in the mountains, with a reason for each.\n"
    "The history of writing, from clay tablets to the printing press, in short.\n";

typedef struct agree_options {
    cli_model_args model;
    const char *prompts;
    int32_t n_predict;
    bool chat, json;
} agree_options;

typedef struct prompt {
    int32_t *tokens, n;
} prompt;

typedef struct agree_entry {
    const char *kv;
    int32_t *texts, *lengths; /* (n_prompts, n_predict), (n_prompts) */
    double agree_mean, repeats, repeats_short, ppl;
    double repeats_error; /* half of the 95 % interval of the difference from the raw cache, over
                             prompts */
    int32_t agree_min, n_same, n_tokens;
} agree_entry;

typedef struct agree_run {
    const agree_options *chosen;
    quire_model *model;
    int32_t n_vocab, context;
    prompt *prompts;
    int32_t n_prompts;
    quire_session *scorer;
    agree_entry *entries; /* the first is the raw cache */
    size_t n_entries;
    cli_progress progress;
    int64_t n_done;
} agree_run;

static int fail(quire_status status) {
    return status == QUIRE_E_ABORTED ? CLI_INTERRUPTED
                                     : cli_quire_error("cannot evaluate", status, NULL);
}

/* ------------------------------------------------------------------ prompts */

static bool add_prompt(agree_run *run, const char *line) {
    prompt *larger = realloc(run->prompts, (size_t)(run->n_prompts + 1) * sizeof *larger);
    if (!larger) {
        cli_error("out of memory");
        return false;
    }
    run->prompts = larger;
    prompt *p = &larger[run->n_prompts];
    p->tokens = run->chosen->chat
                    ? cli_chat_tokens_of(run->model, NULL, line, QUIRE_TOKENIZE_START, &p->n)
                    : cli_tokenize(run->model, line, strlen(line), QUIRE_TOKENIZE_START, &p->n);
    if (!p->tokens)
        return false;
    run->n_prompts++;
    const int32_t needed = p->n + run->chosen->n_predict;
    run->context = needed > run->context ? needed : run->context;
    return true;
}

/* One prompt on each line that is not empty. */
static int read_prompts(agree_run *run) {
    size_t n_bytes = sizeof OWN_PROMPTS - 1;
    char *text = run->chosen->prompts ? cli_file_read(run->chosen->prompts, &n_bytes)
                                      : malloc(sizeof OWN_PROMPTS);
    if (!text)
        return CLI_FAILURE;
    if (!run->chosen->prompts)
        memcpy(text, OWN_PROMPTS, sizeof OWN_PROMPTS);
    bool good = true;
    for (char *line = strtok(text, "\r\n"); good && line; line = strtok(NULL, "\r\n"))
        good = add_prompt(run, line);
    free(text);
    if (good && run->n_prompts == 0) {
        cli_error("'%s' has no prompts; write one per line", run->chosen->prompts);
        return CLI_USAGE;
    }
    return good ? CLI_OK : CLI_FAILURE;
}

/* ------------------------------------------------------------------ texts */

typedef struct writer {
    agree_run *run;
    int32_t *text, n;
} writer;

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    (void)bytes;
    (void)n_bytes;
    writer *w = user;
    w->text[w->n++] = token;
    cli_progress_update(&w->run->progress, ++w->run->n_done,
                        (int64_t)w->run->n_entries * w->run->n_prompts * w->run->chosen->n_predict);
    return true;
}

static quire_status write_text(agree_run *run, quire_session *session, quire_sampler *sampler,
                               agree_entry *entry, int32_t i) {
    quire_seq *seq;
    quire_status status = quire_seq_create(quire_session_pool(session), &seq);
    if (status != QUIRE_OK)
        return status;
    writer w = {.run = run, .text = entry->texts + (size_t)i * (size_t)run->chosen->n_predict};
    quire_generate_options options;
    quire_generate_options_default(&options);
    options.max_tokens = run->chosen->n_predict;
    options.on_token = on_token;
    options.user = &w;
    quire_generate_result unused;
    status = quire_generate(session, seq, sampler, run->prompts[i].tokens, run->prompts[i].n,
                            &options, &unused);
    entry->lengths[i] = w.n;
    quire_seq_free(seq);
    return status;
}

static int write_texts(agree_run *run, const cli_model_args *args, agree_entry *entry) {
    entry->texts =
        calloc((size_t)run->n_prompts * (size_t)run->chosen->n_predict, sizeof *entry->texts);
    entry->lengths = calloc((size_t)run->n_prompts, sizeof *entry->lengths);
    if (!entry->texts || !entry->lengths)
        return cli_quire_error("cannot evaluate", QUIRE_E_NOMEM, "out of memory");
    const cli_session_request request = {
        .kv = entry->kv, .context = run->context, .max_logits = 1, .stop = cli_interrupt_seen};
    quire_sampler_options greedy;
    quire_sampler_options_default(&greedy);
    greedy.temp = 0;
    quire_session *session = NULL;
    quire_sampler *sampler = NULL;
    int result = cli_session_open(args, run->model, &request, &session);
    if (result == CLI_OK) {
        quire_status status = quire_sampler_create(&sampler, run->model, &greedy);
        for (int32_t i = 0; status == QUIRE_OK && i < run->n_prompts; i++)
            status = write_text(run, session, sampler, entry, i);
        result = status == QUIRE_OK ? CLI_OK : fail(status);
    }
    quire_sampler_free(sampler);
    quire_session_free(session);
    return result;
}

/* ------------------------------------------------------------------ scores */

/* Adds -ln of the probability of a text after its prompt, for the model with the raw cache. */
static quire_status score(agree_run *run, const prompt *p, const int32_t *text, int32_t n,
                          double *nll) {
    quire_seq *seq;
    quire_status status = quire_seq_create(quire_session_pool(run->scorer), &seq);
    if (status != QUIRE_OK)
        return status;
    status = quire_session_prefill(run->scorer, seq, p->tokens, p->n, NULL, NULL);
    if (status == QUIRE_OK)
        *nll += quire_logits_nll(quire_session_logits(run->scorer, 0), run->n_vocab, text[0]);
    for (int32_t at = 0; status == QUIRE_OK && at < n - 1;) {
        const int32_t rows = n - 1 - at < SCORE_ROWS ? n - 1 - at : SCORE_ROWS;
        const quire_step_item item = {
            .seq = seq, .tokens = text + at, .n_tokens = rows, .n_logits = rows};
        status = quire_session_decode(run->scorer, &item, 1, true);
        for (int32_t i = 0; status == QUIRE_OK && i < rows; i++)
            *nll += quire_logits_nll(quire_session_logits(run->scorer, i), run->n_vocab,
                                     text[at + i + 1]);
        at += rows;
    }
    quire_seq_free(seq);
    return status;
}

static int score_texts(agree_run *run, agree_entry *entry) {
    double nll = 0, sum = 0, squares = 0;
    entry->agree_min = run->chosen->n_predict;
    for (int32_t i = 0; i < run->n_prompts; i++) {
        const size_t first = (size_t)i * (size_t)run->chosen->n_predict;
        const int32_t *text = entry->texts + first, n = entry->lengths[i],
                      n_raw = run->entries[0].lengths[i];
        const int32_t agree = cli_text_agreement(text, n, run->entries[0].texts + first, n_raw);
        entry->agree_mean += (double)agree / run->n_prompts;
        entry->agree_min = agree < entry->agree_min ? agree : entry->agree_min;
        entry->n_same += agree == n && agree == n_raw;
        entry->n_tokens += n;
        const double repeats = cli_text_repeats(text, n, LONG_GROUP);
        const double more =
            repeats - cli_text_repeats(run->entries[0].texts + first, n_raw, LONG_GROUP);
        entry->repeats += repeats / run->n_prompts;
        sum += more;
        squares += more * more;
        entry->repeats_short += cli_text_repeats(text, n, SHORT_GROUP) / run->n_prompts;
        quire_status status = n > 0 ? score(run, &run->prompts[i], text, n, &nll) : QUIRE_OK;
        if (status != QUIRE_OK)
            return fail(status);
    }
    entry->repeats_error = cli_half_interval(sum, squares, (size_t)run->n_prompts);
    entry->ppl = entry->n_tokens ? exp(nll / entry->n_tokens) : 0;
    return CLI_OK;
}

/* ------------------------------------------------------------------ report */

static json_t *entry_json(const agree_run *run, const agree_entry *entry) {
    const agree_entry *raw = &run->entries[0];
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kv",
                     entry->kv, "prompts", (int)run->n_prompts, "n", (int)run->chosen->n_predict,
                     "tokens", (int)entry->n_tokens, "agree", cli_json_number(entry->agree_mean),
                     "agree_min", (int)entry->agree_min, "same", (int)entry->n_same, "repeat",
                     cli_json_number(entry->repeats), "repeat_error",
                     cli_json_number(entry->repeats_error), "repeat_raw",
                     cli_json_number(raw->repeats), "distinct2",
                     cli_json_number(1 - entry->repeats_short), "distinct2_raw",
                     cli_json_number(1 - raw->repeats_short), "ppl", cli_json_number(entry->ppl),
                     "ppl_raw", cli_json_number(raw->ppl));
}

static int print_json(const agree_run *run) {
    json_t *list = json_array();
    for (size_t i = 1; i < run->n_entries; i++)
        cli_json_append(&list, entry_json(run, &run->entries[i]));
    return cli_print_entries(list);
}

static int print_text(const agree_run *run) {
    static const cli_column columns[] = {
        {"kv", false},   {"tokens", true},     {"agree", true},
        {"least", true}, {"same", true},       {"repeat", true},
        {"+-", true},    {"distinct-2", true}, {"perplexity", true},
    };
    printf(
        "%s, %d prompts, up to %d tokens each, greedy; the first line is the raw cache in %s\n\n",
        run->chosen->model.model, (int)run->n_prompts, (int)run->chosen->n_predict,
        cli_raw_names[run->chosen->model.raw]);
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < run->n_entries; i++) {
        const agree_entry *e = &run->entries[i];
        cli_table_cell(&table, "%s", i == 0 ? "raw" : e->kv);
        cli_table_cell(&table, "%d", (int)e->n_tokens);
        cli_table_cell(&table, "%.1f", e->agree_mean);
        cli_table_cell(&table, "%d", (int)e->agree_min);
        cli_table_cell(&table, "%d of %d", (int)e->n_same, (int)run->n_prompts);
        cli_table_cell(&table, "%.3f", e->repeats);
        cli_table_cell(&table, "%s", cli_half(e->repeats_error, 3).text);
        cli_table_cell(&table, "%.3f", 1 - e->repeats_short);
        cli_table_cell(&table, "%.3f", e->ppl);
    }
    return cli_table_print(&table, stdout);
}

/* ------------------------------------------------------------------ command */

static int evaluate(agree_run *run) {
    const agree_options *chosen = run->chosen;
    int status = cli_model_open(&chosen->model, &run->model);
    if (status == CLI_OK)
        status = read_prompts(run);
    if (status != CLI_OK)
        return status;
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    run->n_vocab = info.n_vocab;
    const cli_model_args raw = cli_model_args_raw(&chosen->model, (quire_type)chosen->model.raw);
    const cli_session_request request = {.kv = "none",
                                         .context = run->context,
                                         .max_logits = SCORE_ROWS,
                                         .stop = cli_interrupt_seen};
    status = cli_session_open(&raw, run->model, &request, &run->scorer);
    cli_interrupt_catch();
    for (size_t i = 0; status == CLI_OK && i < run->n_entries; i++) {
        agree_entry *entry = &run->entries[i];
        cli_progress_start(&run->progress, entry->kv);
        status = write_texts(run, i == 0 ? &raw : &chosen->model, entry);
        if (status == CLI_OK)
            status = score_texts(run, entry);
        cli_progress_end(&run->progress);
    }
    if (status == CLI_OK)
        status = chosen->json ? print_json(run) : print_text(run);
    return status;
}

static void close_run(agree_run *run) {
    for (size_t i = 0; run->entries && i < run->n_entries; i++) {
        free(run->entries[i].texts);
        free(run->entries[i].lengths);
    }
    for (int32_t i = 0; i < run->n_prompts; i++)
        free(run->prompts[i].tokens);
    free(run->prompts);
    free(run->entries);
    quire_session_free(run->scorer);
    quire_model_free(run->model);
}

int cli_eval_agree_run(int argc, char **argv) {
    agree_options chosen = {.n_predict = GENERATED_DEFAULT};
    cli_model_args_default(&chosen.model);
    enum { OWN = 4 };
    cli_option options[OWN + CLI_MODEL_OPTIONS] = {
        cli_string("prompts", &chosen.prompts, "FILE",
                   "prompts, one per line (default: five built-in ones)"),
        cli_with_letter(cli_int("predict", &chosen.n_predict, 1, PREDICT_MAX,
                                "generate at most this many tokens per prompt"),
                        'n'),
        cli_flag("chat", &chosen.chat,
                 "send prompts as chat messages, using the model's chat template"),
        cli_flag("json", &chosen.json, CLI_JSON_LIST_HELP),
    };
    cli_model_options(&chosen.model, options + OWN);
    static const char *const examples[] = {
        "quire eval agree -m smollm2 --chat -n 200 --kv k8v8,k8v4,k4v4",
        NULL,
    };
    const cli_usage usage = {
        .command = "eval agree",
        .about =
            "Generates greedy texts with quantized caches and with a raw cache (--raw), and "
            "compares them: the number of tokens until they differ (mean and least), the share of "
            "4-grams "
            "that repeat earlier ones, the share of distinct bigrams, and the perplexity of the "
            "text for the model with the raw cache. --kv may be a list.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    char **names = NULL;
    agree_run run = {.chosen = &chosen};
    status = cli_kv_names_after_none(&chosen.model, &names, &run.n_entries);
    if (status == CLI_OK)
        run.entries = calloc(run.n_entries, sizeof *run.entries);
    for (size_t i = 0; run.entries && i < run.n_entries; i++)
        run.entries[i].kv = names[i];
    if (status == CLI_OK)
        status = run.entries ? evaluate(&run) : CLI_FAILURE;
    close_run(&run);
    free(names);
    return status;
}
