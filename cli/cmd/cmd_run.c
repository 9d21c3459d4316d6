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
    int32_t *tokens;   /* the prompt, and what is generated after it */
    int32_t n_tokens;  /* of the prompt */
    int32_t n_text;    /* of both */
    int32_t n_cached;  /* of the prompt: restored */
    cli_text_store store;
    quire_generate_result result;
} run_state;

/* ------------------------------------------------------------------ prompt */

static int tokenize_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    size_t n_bytes = chosen->prompt ? strlen(chosen->prompt) : 0;
    char *text = chosen->file ? cli_file_read(chosen->file, &n_bytes) : malloc(n_bytes + 1);
    if (!text)
        return CLI_FAILURE;
    if (chosen->prompt)
        memcpy(text, chosen->prompt, n_bytes + 1);
    const int flags = chosen->append ? QUIRE_TOKENIZE_PLAIN : QUIRE_TOKENIZE_START;
    run->tokens = chosen->chat
                      ? cli_chat_tokens_of(run->model, chosen->system, text, flags, &run->n_tokens)
                      : cli_tokenize(run->model, text, n_bytes, flags, &run->n_tokens);
    free(text);
    if (run->tokens && run->n_tokens == 0) {
        cli_error("the prompt is empty; give some text");
        return CLI_USAGE;
    }
    return run->tokens ? CLI_OK : CLI_FAILURE;
}

/* Puts `n_before` tokens before the prompt, and reserves room for the generated ones. */
static int make_room(run_state *run, const int32_t *before, int32_t n_before) {
    size_t n = (size_t)n_before + (size_t)run->n_tokens + (size_t)run->chosen->sample.n_predict;
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens)
        return cli_quire_error("cannot read the prompt", QUIRE_E_NOMEM, "out of memory");
    if (n_before > 0)
        memcpy(tokens, before, (size_t)n_before * sizeof *tokens);
    if (run->n_tokens > 0)
        memcpy(tokens + n_before, run->tokens, (size_t)run->n_tokens * sizeof *tokens);
    free(run->tokens);
    run->tokens = tokens;
    run->n_tokens += n_before;
    run->n_text = run->n_tokens;
    return CLI_OK;
}

static int read_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    const bool given = chosen->prompt || chosen->file;
    if ((chosen->prompt && chosen->file) || (!given && !chosen->load) ||
        (chosen->append && !(given && chosen->load))) {
        cli_error(chosen->append
                      ? "--append needs a prompt and --load FILE"
                      : "give a prompt with -p TEXT or with -f FILE ('-': standard input)");
        return CLI_USAGE;
    }
    const char *alone = chosen->system && !chosen->chat   ? "--system needs --chat"
                        : chosen->reseal && !chosen->load ? "--reseal needs --load FILE"
                                                          : NULL;
    if (alone) {
        cli_error("%s", alone);
        return CLI_USAGE;
    }
    int status = given ? tokenize_prompt(run) : CLI_OK;
    if (status != CLI_OK || !chosen->load)
        return status == CLI_OK ? make_room(run, NULL, 0) : status;
    quire_status opened = quire_file_open(&run->saved, chosen->load);
    if (opened != QUIRE_OK)
        return cli_quire_error("cannot load the saved text", opened, NULL);
    quire_file_info info;
    quire_file_get_info(run->saved, &info);
    const bool whole = given && !chosen->append; /* the prompt is the whole text */
    return make_room(run, info.tokens, whole ? 0 : info.n_tokens);
}

/* ------------------------------------------------------------------ restoring */

static int restore(run_state *run) {
    const run_options *chosen = run->chosen;
    quire_file_info info;
    quire_file_get_info(run->saved, &info);
    if (run->n_tokens == 0 || info.n_tokens == 0 || run->tokens[0] != info.tokens[0]) {
        cli_error("the prompt does not start with the text in '%s'; --append adds it to that text",
                  chosen->load);
        return CLI_FAILURE;
    }
    quire_status status = quire_session_load(run->session, run->saved, chosen->reseal, &run->seq);
    if (status != QUIRE_OK) {
        cli_quire_error("cannot restore the cache", status, NULL);
        if (status == QUIRE_E_CODEC)
            fprintf(
                stderr,
                "Give the --kv, --sinks and --raw that it was saved with, or --reseal to convert "
                "it.\n");
        return CLI_FAILURE;
    }
    return CLI_OK;
}

/* The last token saved was generated, and not computed further: it goes on as it would have. */
static bool is_resumed(const run_state *run) {
    if (!run->saved || run->chosen->prompt || run->chosen->file)
        return false;
    quire_file_info info;
    quire_file_get_info(run->saved, &info);
    return run->n_tokens - info.length == 1;
}

static int save(const run_state *run) {
    quire_status status =
        quire_session_save(run->session, run->seq, run->chosen->save, run->tokens, run->n_text);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot save the cache", status, NULL);
}

/* ------------------------------------------------------------------ generation */

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    run_state *run = user;
    run->tokens[run->n_text++] = token;
    return fwrite(bytes, 1, n_bytes, stdout) == n_bytes && fflush(stdout) == 0;
}

/* The prompt as a sequence: in front of what is new lies what a store or a saved text has. */
static quire_status compute_prompt(run_state *run) {
    quire_file_info saved = {0};
    if (run->saved)
        quire_file_get_info(run->saved, &saved);
    const quire_status status =
        cli_text_store_prompt(&run->store, run->session, saved.tokens, saved.length, true,
                              run->tokens, run->n_tokens, &run->seq);
    run->n_cached = run->store.result.n_reused;
    return status;
}

static int generate(run_state *run) {
    quire_generate_options options;
    cli_generate_options(&run->chosen->sample, &options);
    options.ignore_end = run->chosen->ignore_end;
    options.on_token = on_token;
    options.user = run;
    options.resume = is_resumed(run);
    quire_status status = QUIRE_OK;
    if (options.resume)
        run->n_cached = run->n_tokens - 1;
    else
        status = compute_prompt(run);
    if (!run->seq)
        return cli_quire_error(run->store.store ? "cannot look into the store"
                                                : "cannot make a sequence",
                               status, NULL);
    if (status == QUIRE_OK) {
        options.n_cached = options.resume ? run->n_cached : run->n_tokens;
        status = quire_generate(run->session, run->seq, run->sampler, run->tokens, run->n_tokens,
                                &options, &run->result);
    }
    run->result.n_prompt = run->store.result.n_computed;
    run->result.prefill_seconds = run->store.result.seconds;
    if (status == QUIRE_E_ABORTED) /* Ctrl-C: what there is was printed, and is reported on */
        return CLI_OK;
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot generate", status, NULL);
}

/* ------------------------------------------------------------------ report */

static int report(const run_state *run) {
    if (run->chosen->quiet)
        return CLI_OK;
    const cli_text_report text = {.kv = run->chosen->model.kv,
                                  .session = run->session,
                                  .seq = run->seq,
                                  .result = &run->result,
                                  .n_restored = run->n_cached,
                                  .saved = run->chosen->save,
                                  .store = &run->store};
    return run->chosen->json ? cli_text_report_json(&text) : cli_text_report_print(&text);
}

/* ------------------------------------------------------------------ command */

/* Room for the prompt and the answer, but not beyond what the model was trained on. */
static int32_t needed_context(const run_state *run) {
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    int64_t needed = (int64_t)run->n_tokens + run->chosen->sample.n_predict;
    if (run->saved) { /* all of it is restored, also where the prompt leaves it soon */
        quire_file_info saved;
        quire_file_get_info(run->saved, &saved);
        needed = needed > saved.length ? needed : saved.length;
    }
    return needed < info.context ? (int32_t)needed : info.context;
}

/* The orders of channels of a saved text, so that its pages can be taken as they are; NULL: it
 * is not of this model. */
static const quire_layer *saved_order(const run_state *run) {
    if (!run->saved)
        return NULL;
    quire_model_info model;
    quire_file_info saved;
    quire_model_get_info(run->model, &model);
    quire_file_get_info(run->saved, &saved);
    return saved.n_layers == model.n_layers ? saved.layers : NULL;
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
    if (run->result.n_generated > 0 &&
        isatty(STDOUT_FILENO)) /* a file or pipe gets the text alone */
        putchar('\n');
    fflush(stdout);
    if (status == CLI_OK &&
        chosen->sample.exact) /* only these are what a prompt of the same tokens would give */
        cli_text_store_put(&run->store, run->session, run->seq, run->tokens, run->n_text);
    else if (status == CLI_OK)
        cli_text_store_put_again(&run->store, run->session, run->seq, run->tokens, run->n_tokens);
    if (status == CLI_OK && chosen->save)
        status = save(run);
    if (status == CLI_OK)
        status = report(run);
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
        cli_flag("quiet", &chosen.quiet, "print no report"),
        cli_flag("json", &chosen.json, "print the report as JSON, also on stderr"),
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
    free(run.tokens);
    quire_file_close(run.saved);
    quire_model_free(run.model);
    cli_text_store_close(&run.store);
    return status;
}
