/* cmd_run.c: quire run. A prompt in, generated text on stdout, a report on stderr. */
#include "args.h"
#include "chat_text.h"
#include "command.h"
#include "interrupt.h"
#include "model_args.h"
#include "progress.h"
#include "report.h"
#include "sample_args.h"
#include "text_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_options {
    cli_model_args model;
    cli_sample_args sample;
    const char *prompt, *file, *system;
    bool chat, quiet, json, ignore_end;
} run_options;

typedef struct run_state {
    const run_options *chosen;
    quire_model *model;
    quire_session *session;
    quire_sampler *sampler;
    quire_seq *seq;
    int32_t *tokens, n_tokens;
    cli_progress progress;
    quire_generate_result result;
} run_state;

/* ------------------------------------------------------------------ prompt */

/* The text as a user's message. free() it. NULL, with a message. */
static char *wrap(const quire_model *model, const char *system, const char *text, size_t *n_bytes) {
    cli_chat chat = {0};
    bool good = (!system || cli_chat_add(&chat, "system", system)) && cli_chat_add(&chat, "user", text);
    char *wrapped = good ? cli_chat_text(model, &chat, n_bytes) : NULL;
    cli_chat_free(&chat);
    return wrapped;
}

static int read_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    if (!chosen->prompt == !chosen->file) {
        cli_error("give a prompt with -p TEXT or with -f FILE ('-': standard input)");
        return CLI_USAGE;
    }
    size_t n_bytes = chosen->prompt ? strlen(chosen->prompt) : 0;
    char *text = chosen->file ? cli_file_read(chosen->file, &n_bytes) : malloc(n_bytes + 1);
    if (!text)
        return CLI_FAILURE;
    if (chosen->prompt)
        memcpy(text, chosen->prompt, n_bytes + 1);
    int flags = QUIRE_TOKENIZE_START;
    if (chosen->chat) {
        char *wrapped = wrap(run->model, chosen->system, text, &n_bytes);
        free(text);
        text = wrapped;
        flags |= QUIRE_TOKENIZE_SPECIAL;
        if (!text)
            return CLI_FAILURE;
    }
    run->tokens = cli_tokenize(run->model, text, n_bytes, flags, &run->n_tokens);
    free(text);
    if (run->tokens && run->n_tokens == 0) {
        cli_error("the prompt is empty");
        return CLI_USAGE;
    }
    return run->tokens ? CLI_OK : CLI_FAILURE;
}

/* ------------------------------------------------------------------ generation */

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    (void)user;
    (void)token;
    return fwrite(bytes, 1, n_bytes, stdout) == n_bytes && fflush(stdout) == 0;
}

static void on_prefill(void *user, int32_t done) {
    run_state *run = user;
    cli_progress_update(&run->progress, done, run->n_tokens);
    if (done == run->n_tokens)
        cli_progress_end(&run->progress);
}

static int generate(run_state *run) {
    quire_generate_options options;
    cli_generate_options(&run->chosen->sample, &options);
    options.ignore_end = run->chosen->ignore_end;
    options.on_token = on_token;
    options.on_prefill = on_prefill;
    options.user = run;
    cli_progress_start(&run->progress, "prefill");
    quire_status status =
        quire_generate(run->session, run->seq, run->sampler, run->tokens, run->n_tokens, &options, &run->result);
    cli_progress_end(&run->progress);
    if (status == QUIRE_E_ABORTED) /* Ctrl-C: what there is was printed, and is reported on */
        return CLI_OK;
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot generate", status, NULL);
}

/* ------------------------------------------------------------------ report */

static int report(const run_state *run) {
    if (run->chosen->quiet)
        return CLI_OK;
    const cli_text_report text = {
        .kv = run->chosen->model.kv, .session = run->session, .seq = run->seq, .result = &run->result};
    return run->chosen->json ? cli_text_report_json(&text) : cli_text_report_print(&text);
}

/* ------------------------------------------------------------------ command */

/* Room for the prompt and the answer, but not beyond what the model was trained on. */
static int32_t needed_context(const run_state *run) {
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    int64_t needed = (int64_t)run->n_tokens + run->chosen->sample.n_predict;
    return needed < info.context ? (int32_t)needed : info.context;
}

static int run_prompt(run_state *run) {
    const run_options *chosen = run->chosen;
    int status = cli_model_open(&chosen->model, &run->model);
    if (status == CLI_OK)
        status = read_prompt(run);
    if (status == CLI_OK)
        status = cli_sampler_open(&chosen->sample, run->model, &run->sampler);
    if (status != CLI_OK)
        return status;
    const cli_session_wish wish = {.kv = chosen->model.kv,
                                   .context = needed_context(run),
                                   .max_logits = cli_sample_max_logits(&chosen->sample),
                                   .stop = cli_interrupt_seen};
    status = cli_session_open(&chosen->model, run->model, &wish, &run->session);
    if (status != CLI_OK)
        return status;
    quire_status made = quire_seq_create(quire_session_pool(run->session), &run->seq);
    if (made != QUIRE_OK)
        return cli_quire_error("cannot make a sequence", made, NULL);
    cli_interrupt_catch();
    status = generate(run);
    if (run->result.n_generated > 0 && isatty(STDOUT_FILENO)) /* a file or pipe gets the text alone */
        putchar('\n');
    fflush(stdout);
    if (status == CLI_OK)
        status = report(run);
    return status == CLI_OK && cli_interrupt_seen(NULL) ? CLI_INTERRUPTED : status;
}

int cli_run_run(int argc, char **argv) {
    run_options chosen = {0};
    cli_model_args_default(&chosen.model);
    cli_sample_args_default(&chosen.sample);
    enum { OWN = 7 };
    cli_option options[OWN + CLI_MODEL_OPTIONS + CLI_SAMPLE_OPTIONS] = {
        cli_with_letter(cli_string("prompt", &chosen.prompt, "TEXT", "the text to continue"), 'p'),
        cli_with_letter(cli_string("file", &chosen.file, "FILE", "the prompt in a file; '-': standard input"), 'f'),
        cli_flag("chat", &chosen.chat, "send the prompt as a message, through the model's chat template"),
        cli_string("system", &chosen.system, "TEXT", "with --chat: a system message before it"),
        cli_flag("ignore-end", &chosen.ignore_end, "go on when the model ends its text"),
        cli_flag("quiet", &chosen.quiet, "no report"),
        cli_flag("json", &chosen.json, "the report as JSON, on stderr like the other"),
    };
    cli_model_options(&chosen.model, options + OWN);
    cli_sample_options(&chosen.sample, options + OWN + CLI_MODEL_OPTIONS);
    static const char *const examples[] = {
        "quire run -m smollm2 --chat -p 'Why is the sky blue?' --kv k8v4",
        "quire run -m model.gguf -f book.txt -n 200 --temp 0 --kv k4v4 -t 4",
        "quire run -m smollm2 -p 'Once upon a time' -n 2000 --max-kv-size 512 --keep 4 --ignore-end",
        NULL,
    };
    const cli_usage usage = {
        .command = "run",
        .about = "Continues a text. stdout gets the generated text alone; a report on speed and on the cache follows\n"
                 "on stderr. Ctrl-C stops the text and still reports.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    run_state run = {.chosen = &chosen};
    status = run_prompt(&run);
    quire_session_free(run.session);
    quire_sampler_free(run.sampler);
    free(run.tokens);
    quire_model_free(run.model);
    return status;
}
