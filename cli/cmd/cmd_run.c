/* cmd_run.c: quire run. Generates text for a prompt on stdout, and a report on stderr. */
#include "command.h"
#include "options/args.h"
#include "options/model_args.h"
#include "options/sample_args.h"
#include "output/interrupt.h"
#include "output/output.h"
#include "output/report.h"
#include "reports/text_report.h"
#include "text/chat_text.h"
#include "text/continuation.h"
#include "text/text_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_options {
    cli_model_args model;
    cli_sample_args sample;
    const char *prompt, *file, *system, *save, *load;
    bool chat, quiet, json, ignore_end, append, reseal;
} run_options;

typedef struct run_state {
    const run_options *chosen;
    quire_model *model;
    quire_session *session;
    quire_sampler *sampler;
    quire_seq *seq;
    quire_file *saved; /* --load */
    cli_tokens text;   /* the prompt, followed by the generated tokens */
    int32_t n_prompt;  /* tokens of the prompt */
    int32_t n_reused;  /* of these, how many were not computed again */
    cli_text_store store;
    quire_generate_result result;
} run_state;

/* ------------------------------------------------------------------ prompt */

/* The tokens of -p or -f. free() them. NULL, with a message: no tokens, *status says why. */
static int32_t *tokenize_prompt(const run_state *run, int32_t *n_tokens, int *status) {
    const run_options *chosen = run->chosen;
    *status = CLI_FAILURE;
    size_t n_bytes = chosen->prompt ? strlen(chosen->prompt) : 0;
    char *from_file = chosen->file ? cli_file_read(chosen->file, &n_bytes) : NULL;
    const char *text = chosen->file ? from_file : chosen->prompt;
    if (!text)
        return NULL;
    if (chosen->chat && strlen(text) < n_bytes) {
        cli_error("'%s' has a zero byte, which a chat message cannot have", chosen->file);
        free(from_file);
        return NULL;
    }
    const int flags = chosen->append ? QUIRE_TOKENIZE_PLAIN : QUIRE_TOKENIZE_START;
    int32_t *tokens = chosen->chat
                          ? cli_chat_tokens_of(run->model, chosen->system, text, flags, n_tokens)
                          : cli_tokenize(run->model, text, n_bytes, flags, n_tokens);
    free(from_file);
    if (tokens && *n_tokens == 0) {
        cli_error("the prompt is empty; give some text");
        *status = CLI_USAGE;
        free(tokens);
        return NULL;
    }
    return tokens;
}

/* Appends the tokens of -p or -f to the text. */
static int append_prompt(run_state *run) {
    int32_t n_tokens;
    int status;
    int32_t *tokens = tokenize_prompt(run, &n_tokens, &status);
    if (!tokens)
        return status;
    const bool appended = cli_tokens_append(&run->text, tokens, n_tokens);
    free(tokens);
    return appended ? CLI_OK : CLI_FAILURE;
}

static int read_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    const bool given = chosen->prompt || chosen->file;
    if ((chosen->prompt && chosen->file) || (!given && !chosen->load) ||
        (chosen->append && !(given && chosen->load))) {
        cli_error(chosen->append ? "--append needs a prompt and --load FILE"
                  : given        ? "-p and -f cannot be given together; give one of them"
                          : "no prompt was given; give -p TEXT, -f FILE ('-': standard input) or "
                            "--load FILE");
        return CLI_USAGE;
    }
    const char *alone = chosen->system && !chosen->chat   ? "--system needs --chat"
                        : chosen->reseal && !chosen->load ? "--reseal needs --load FILE"
                                                          : NULL;
    if (alone) {
        cli_error("%s", alone);
        return CLI_USAGE;
    }
    if (chosen->load) {
        const quire_status opened = quire_file_open(&run->saved, chosen->load);
        if (opened != QUIRE_OK)
            return cli_quire_error("cannot load the saved text", opened, NULL);
    }
    if (chosen->load && (!given || chosen->append)) { /* otherwise the prompt is the whole text */
        quire_file_info info;
        quire_file_get_info(run->saved, &info);
        if (!cli_tokens_append(&run->text, info.tokens, info.n_tokens))
            return CLI_FAILURE;
    }
    const int status = given ? append_prompt(run) : CLI_OK;
    run->n_prompt = run->text.n;
    return status;
}

/* ------------------------------------------------------------------ restoring */

static int restore(run_state *run) {
    const run_options *chosen = run->chosen;
    quire_file_info info;
    quire_file_get_info(run->saved, &info);
    const quire_status status =
        quire_session_load(run->session, run->saved, chosen->reseal, &run->seq);
    if (status != QUIRE_OK) {
        cli_quire_error("cannot restore the cache", status, NULL);
        if (status == QUIRE_E_CODEC)
            fprintf(
                stderr,
                "Give the --kv, --sinks and --raw that it was saved with, or --reseal to convert "
                "it.\n");
        return CLI_FAILURE;
    }
    if (info.n_tokens == 0) {
        cli_error("'%s' has a cache, but not the text that it is of, so it cannot be continued",
                  chosen->load);
        return CLI_FAILURE;
    }
    if (run->n_prompt == 0 || run->text.list[0] != info.tokens[0]) {
        cli_error(
            "the prompt and the text in '%s' do not begin alike; to put the prompt after that "
            "text, give --append",
            chosen->load);
        return CLI_FAILURE;
    }
    return CLI_OK;
}

/* Whether the saved text ends in a generated token that is not in the cache yet: generation then
 * continues exactly as if it had not stopped. */
static bool is_resumed(const run_state *run) {
    if (!run->saved || run->chosen->prompt || run->chosen->file)
        return false;
    quire_file_info info;
    quire_file_get_info(run->saved, &info);
    return run->n_prompt - info.length == 1;
}

/* What a grammar has allowed so far is not in the file. */
static int check_grammar(const run_state *run) {
    if (!is_resumed(run) || (!run->chosen->sample.grammar && !run->chosen->sample.grammar_file))
        return CLI_OK;
    cli_error("a grammar would begin again in the middle of the text in '%s'; give --append with a "
              "prompt, or no grammar",
              run->chosen->load);
    return CLI_USAGE;
}

static int save(const run_state *run) {
    quire_status status =
        quire_session_save(run->session, run->seq, run->chosen->save, run->text.list, run->text.n);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot save the cache", status, NULL);
}

/* ------------------------------------------------------------------ generation */

static int generate(run_state *run) {
    quire_file_info saved = {0};
    if (run->saved)
        quire_file_get_info(run->saved, &saved);
    const cli_continuation continuation = {.sample = &run->chosen->sample,
                                           .store = &run->store,
                                           .session = run->session,
                                           .sampler = run->sampler,
                                           .seq = &run->seq,
                                           .held = saved.tokens,
                                           .n_held = saved.length,
                                           .exact = true,
                                           .ignore_end = run->chosen->ignore_end,
                                           .resume = is_resumed(run)};
    const int status = cli_continue(&continuation, &run->text, &run->result);
    run->n_reused = continuation.resume ? run->n_prompt - 1 : run->store.result.n_reused;
    return status;
}

/* ------------------------------------------------------------------ report */

/* --json asks for the report by name; --quiet is for what nobody asked for. */
static int report(const run_state *run) {
    if (run->chosen->quiet && !run->chosen->json)
        return CLI_OK;
    const cli_text_report text = {.kv = run->chosen->model.kv,
                                  .session = run->session,
                                  .seq = run->seq,
                                  .result = &run->result,
                                  .n_restored = run->n_reused,
                                  .saved = run->chosen->save,
                                  .store = &run->store};
    return run->chosen->json ? cli_text_report_json(&text) : cli_text_report_print(&text);
}

/* ------------------------------------------------------------------ command */

/* The prompt and the generated tokens, limited to the context that the model was trained with. */
static int32_t needed_context(const run_state *run) {
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    int64_t needed = (int64_t)run->n_prompt + run->chosen->sample.n_predict;
    if (run->saved) { /* all of it is restored, even if the prompt shares only its start */
        quire_file_info saved;
        quire_file_get_info(run->saved, &saved);
        needed = needed > saved.length ? needed : saved.length;
    }
    return needed < info.context ? (int32_t)needed : info.context;
}

/* The channel orders of the saved text, so that its pages can be used unchanged. NULL: no saved
 * text, or one of another model. */
static const quire_layer *saved_order(const run_state *run) {
    if (!run->saved)
        return NULL;
    quire_model_info model;
    quire_file_info saved;
    quire_model_get_info(run->model, &model);
    quire_file_get_info(run->saved, &saved);
    return saved.n_layers == model.n_layers ? saved.layers : NULL;
}

/* Whether the text ends where it does because the context is full. */
static bool was_cut_off(const run_state *run) {
    return !run->result.ended && run->result.n_generated < run->chosen->sample.n_predict &&
           !cli_interrupt_seen(NULL) && cli_context_full(run->session, run->seq);
}

static int run_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    int status = cli_output_check(chosen->save); /* before anything that takes long */
    if (status == CLI_OK)
        status = cli_text_store_open(&run->store);
    if (status == CLI_OK)
        status = cli_model_open(&chosen->model, &run->model);
    if (status == CLI_OK)
        status = read_prompt(run);
    if (status == CLI_OK)
        status = check_grammar(run);
    if (status == CLI_OK)
        status = cli_sampler_open(&chosen->sample, run->model, &run->sampler);
    if (status != CLI_OK)
        return status;
    const cli_session_request request = {.kv = chosen->model.kv,
                                         .context = needed_context(run),
                                         .max_logits = cli_sample_max_logits(&chosen->sample),
                                         .order_from = saved_order(run),
                                         .quiet = chosen->quiet || chosen->json,
                                         .stop = cli_interrupt_seen};
    status = cli_session_open(&chosen->model, run->model, &request, &run->session);
    if (status != CLI_OK)
        return status;
    if (chosen->load)
        status = restore(run);
    if (status != CLI_OK)
        return status;
    cli_interrupt_catch();
    status = generate(run);
    /* A text that fills the cache is kept as far as it came. */
    const bool was_full = status == CLI_CACHE_FULL;
    if (was_full)
        status = run->result.n_generated > 0 ? CLI_OK : CLI_FAILURE;
    /* Ends the line on a terminal; a file or pipe gets nothing but the text. */
    if (run->result.n_generated > 0 && isatty(STDOUT_FILENO))
        putchar('\n');
    fflush(stdout);
    /* Only exact steps give the pages that a prompt of the same tokens would give. */
    if (status == CLI_OK && chosen->sample.exact)
        cli_text_store_put(&run->store, run->session, run->seq, run->text.list, run->text.n);
    else if (status == CLI_OK)
        cli_text_store_put_again(&run->store, run->session, run->seq, run->text.list,
                                 run->n_prompt);
    if (status == CLI_OK && chosen->save)
        status = save(run);
    if (status == CLI_OK && was_cut_off(run) && !request.quiet)
        cli_error("stopped, because the context of %d tokens is full; --ctx gives a longer one",
                  (int)quire_session_context(run->session));
    if (status == CLI_OK)
        status = report(run);
    if (status == CLI_OK && was_full)
        return CLI_FAILURE;
    return status == CLI_OK && cli_interrupt_seen(NULL) ? CLI_INTERRUPTED : status;
}

int cli_run_run(int argc, char **argv) {
    run_options chosen = {0};
    cli_model_args_default(&chosen.model);
    cli_sample_args_default(&chosen.sample);
    enum { OWN = 11 };
    cli_option options[OWN + CLI_STORE_OPTIONS + CLI_MODEL_OPTIONS + CLI_SAMPLE_OPTIONS] = {
        cli_with_letter(cli_string("prompt", &chosen.prompt, "TEXT", "the text to continue"), 'p'),
        cli_with_letter(cli_string("file", &chosen.file, "FILE",
                                   "read the prompt from a file; '-': standard input"),
                        'f'),
        cli_flag("chat", &chosen.chat,
                 "send the prompt as a chat message, using the model's chat template"),
        cli_string("system", &chosen.system, "TEXT",
                   "with --chat: a system message before the prompt"),
        cli_string("save", &chosen.save, "FILE", "save the text and its cache to a file"),
        cli_string("load", &chosen.load, "FILE",
                   "start from a saved text: the prefix that the prompt shares with it is not "
                   "computed again; without a prompt, continue the saved text"),
        cli_flag("append", &chosen.append, "with --load: append the prompt to the saved text"),
        cli_flag("reseal", &chosen.reseal,
                 "with --load: convert the saved cache if its codecs differ from --kv"),
        cli_flag("ignore-end", &chosen.ignore_end, "do not stop when the model ends its text"),
        cli_flag("quiet", &chosen.quiet, "print no report, unless --json asks for it"),
        cli_flag("json", &chosen.json, "print the report, which goes to stderr, as JSON"),
    };
    run_state run = {.chosen = &chosen};
    cli_text_store_options(&run.store, options + OWN);
    cli_model_options(&chosen.model, options + OWN + CLI_STORE_OPTIONS);
    cli_sample_options(&chosen.sample, options + OWN + CLI_STORE_OPTIONS + CLI_MODEL_OPTIONS);
    static const char *const examples[] = {
        "quire run -m smollm2 --chat -p 'Why is the sky blue?' --kv k8v4",
        "quire run -m model.gguf -f book.txt -n 200 --temp 0 --kv k4v4 -t 4",
        "quire run -m smollm2 -f book.txt -n 0 --save book.quire",
        "quire run -m smollm2 --load book.quire --append -p 'In short:' -n 50",
        "quire run -m smollm2 --store pages -f book.txt -n 50",
        "quire run -m smollm2 -p 'Once upon' -n 2000 --max-kv-size 512 --ignore-end",
        NULL,
    };
    const cli_usage usage = {.command = "run",
                             .about = "Continues a text. Only the generated text goes to stdout; a "
                                      "report on speed and on the cache follows on stderr. Ctrl-C "
                                      "stops generating and still prints the report.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    if (run.store.directory && chosen.load) {
        cli_error("--store and --load cannot be given together; 'quire store import' adds a saved "
                  "text to a store");
        return CLI_USAGE;
    }
    status = run_prompt(&run);
    quire_session_free(run.session);
    quire_sampler_free(run.sampler);
    cli_tokens_free(&run.text);
    quire_file_close(run.saved);
    quire_model_free(run.model);
    cli_text_store_close(&run.store);
    return status;
}
