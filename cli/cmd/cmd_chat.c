/* cmd_chat.c: quire chat. A conversation; each turn computes only its new tokens. */
#include "command.h"
#include "options/args.h"
#include "options/model_args.h"
#include "options/sample_args.h"
#include "output/interrupt.h"
#include "output/report.h"
#include "output/terminal.h"
#include "reports/text_report.h"
#include "text/chat_text.h"
#include "text/continuation.h"
#include "text/text_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat_options {
    cli_model_args model;
    cli_sample_args sample;
    const char *system;
    bool quiet;
} chat_options;

typedef struct chat_state {
    const chat_options *chosen;
    quire_model *model;
    quire_session *session;
    quire_seq *seq;
    cli_chat chat;
    cli_tokens held; /* the tokens that the sequence holds */
    char *answer;    /* the text of this turn's reply, a message of the next turn's prompt */
    size_t n_answer, answer_capacity;
    cli_text_store store;
    quire_generate_result total;
} chat_state;

/* ------------------------------------------------------------------ one turn */

static bool collect_answer(void *user, const char *bytes, size_t n_bytes) {
    chat_state *state = user;
    if (state->n_answer + n_bytes + 1 > state->answer_capacity) {
        size_t capacity = 2 * (state->answer_capacity + n_bytes + 1);
        char *larger = realloc(state->answer, capacity);
        if (!larger)
            return false;
        state->answer = larger;
        state->answer_capacity = capacity;
    }
    memcpy(state->answer + state->n_answer, bytes, n_bytes);
    state->n_answer += n_bytes;
    state->answer[state->n_answer] = '\0';
    return true;
}

static void add_up(quire_generate_result *total, const quire_generate_result *turn) {
    total->n_prompt += turn->n_prompt;
    total->n_generated += turn->n_generated;
    total->n_decoded += turn->n_decoded;
    total->prefill_seconds += turn->prefill_seconds;
    total->decode_seconds += turn->decode_seconds;
    total->n_drafted += turn->n_drafted;
    total->n_accepted += turn->n_accepted;
}

/* Replies to the conversation in `prompt`, which becomes what the sequence holds. */
static int answer(chat_state *state, cli_tokens *prompt) {
    quire_sampler *sampler = NULL;
    int status = cli_sampler_open(&state->chosen->sample, state->model, &sampler);
    if (status != CLI_OK)
        return status;
    const int32_t n_prompt = prompt->n;
    const cli_continuation continuation = {.sample = &state->chosen->sample,
                                           .store = &state->store,
                                           .session = state->session,
                                           .sampler = sampler,
                                           .seq = &state->seq,
                                           .held = state->held.list,
                                           .n_held = state->held.n,
                                           .on_piece = collect_answer,
                                           .user = state};
    state->n_answer = 0;
    quire_generate_result turn;
    status = cli_continue(&continuation, prompt, &turn);
    quire_sampler_free(sampler);
    add_up(&state->total, &turn);
    if (status == CLI_OK && !cli_interrupt_seen(NULL))
        cli_text_store_put_again(&state->store, state->session, state->seq, prompt->list, n_prompt);
    cli_tokens_free(&state->held);
    state->held = *prompt;
    *prompt = (cli_tokens){0};
    /* The last token of a reply, and what Ctrl-C cut off, are not in the sequence. */
    state->held.n = state->seq ? quire_seq_length(state->seq) : 0;
    return status;
}

/* How many bytes are whole UTF-8 characters: a reply may be cut off inside its last one. */
static size_t whole_characters(const char *text, size_t n) {
    size_t start = n; /* of the last character */
    while (start > 0 && n - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return n;
    const unsigned char lead = (unsigned char)text[start - 1];
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return start - 1 + length > n ? start - 1 : n;
}

/* Adds the reply, or the part of it that came before Ctrl-C, to the conversation. */
static int keep_answer(chat_state *state) {
    if (state->n_answer == 0 && cli_interrupt_seen(NULL)) {
        cli_chat_clear(&state->chat, state->chat.n_messages - 1);
        fputs("stopped before the reply began; the message was discarded\n", stderr);
        return CLI_OK;
    }
    if (state->n_answer > 0)
        state->answer[whole_characters(state->answer, state->n_answer)] = '\0';
    putchar('\n');
    return cli_chat_add(&state->chat, "assistant", state->n_answer ? state->answer : "")
               ? CLI_OK
               : CLI_FAILURE;
}

static int turn(chat_state *state, const char *message) {
    if (!cli_chat_add(&state->chat, "user", message))
        return CLI_FAILURE;
    cli_tokens prompt = {0};
    prompt.list = cli_chat_tokens(state->model, &state->chat, QUIRE_TOKENIZE_START, &prompt.n);
    if (!prompt.list)
        return CLI_FAILURE;
    int status = CLI_OK;
    if (prompt.n >= quire_session_context(state->session)) {
        cli_error(
            "the conversation has %d tokens, but the context only %d; /reset starts a new one",
            (int)prompt.n, (int)quire_session_context(state->session));
        cli_chat_clear(&state->chat, state->chat.n_messages - 1);
    } else {
        status = answer(state, &prompt);
        const bool is_out_of_pages = status == CLI_CACHE_FULL;
        if (is_out_of_pages)
            status = CLI_OK;
        if (is_out_of_pages && state->n_answer == 0)
            cli_chat_clear(&state->chat, state->chat.n_messages - 1);
        else if (status == CLI_OK)
            status = keep_answer(state);
        else if (state->n_answer > 0)
            putchar('\n');
        fflush(stdout);
        if (status == CLI_OK &&
            (is_out_of_pages || (state->seq && cli_context_full(state->session, state->seq))))
            cli_error("the conversation fills the cache; /reset starts a new one");
    }
    cli_tokens_free(&prompt);
    return status;
}

/* ------------------------------------------------------------------ conversation */

static int print_report(const chat_state *state) {
    if (state->chosen->quiet || !state->seq)
        return CLI_OK;
    const cli_text_report report = {.kv = state->chosen->model.kv,
                                    .session = state->session,
                                    .seq = state->seq,
                                    .result = &state->total,
                                    .store = &state->store};
    return cli_text_report_print(&report);
}

/* Runs a line that begins with "/". False: it is a message. */
static bool command(chat_state *state, const char *line, bool *quit) {
    *quit = strcmp(line, "/quit") == 0;
    if (strcmp(line, "/reset") == 0)
        cli_chat_clear(&state->chat, state->chosen->system ? 1 : 0);
    else if (strcmp(line, "/report") == 0)
        print_report(state);
    else if (line[0] == '/' && !*quit)
        cli_error("unknown command '%s'; the commands are /reset, /report and /quit", line);
    return line[0] == '/';
}

static int talk(chat_state *state) {
    bool terminal = isatty(STDIN_FILENO) != 0, quit = false;
    char *line = NULL;
    size_t capacity = 0;
    int status = CLI_OK;
    setvbuf(stdin, NULL, _IONBF, 0); /* a wait would miss a line that lies in a buffer */
    if (terminal)
        fputs("Ctrl-C stops a reply and keeps the conversation. Keys typed during a reply are "
              "discarded.\n"
              "/reset starts a new conversation, /report shows the cache, /quit or Ctrl-D ends.\n",
              stderr);
    while (status == CLI_OK && !quit) {
        if (terminal)
            fputs("> ", stderr);
        if (!cli_interrupt_wait(STDIN_FILENO))
            break;
        if (getline(&line, &capacity, stdin) < 0)
            break;
        line[strcspn(line, "\r\n")] = '\0';
        if (!*line || command(state, line, &quit))
            continue;
        cli_terminal_mute();
        status = turn(state, line);
        cli_terminal_unmute();
        cli_interrupt_clear();
    }
    free(line);
    return status;
}

static int chat(chat_state *state) {
    const chat_options *chosen = state->chosen;
    int status = cli_text_store_open(&state->store);
    if (status == CLI_OK)
        status = cli_model_open(&chosen->model, &state->model);
    if (status != CLI_OK)
        return status;
    if (!quire_model_can_chat(state->model)) {
        cli_error("the model '%s' has no known chat template; use 'quire run'",
                  chosen->model.model);
        return CLI_FAILURE;
    }
    quire_model_info info;
    quire_model_get_info(state->model, &info);
    const cli_session_request request = {.kv = chosen->model.kv,
                                         .context = info.context,
                                         .max_logits = cli_sample_max_logits(&chosen->sample),
                                         .exact_trim = true,
                                         .quiet = chosen->quiet,
                                         .stop = cli_interrupt_seen};
    status = cli_session_open(&chosen->model, state->model, &request, &state->session);
    if (status != CLI_OK)
        return status;
    if (chosen->system && !cli_chat_add(&state->chat, "system", chosen->system))
        return CLI_FAILURE;
    quire_sampler *sampler; /* only to report wrong options before the first message */
    status = cli_sampler_open(&chosen->sample, state->model, &sampler);
    if (status != CLI_OK)
        return status;
    quire_sampler_free(sampler);
    cli_interrupt_catch();
    cli_terminal_catch();
    status = talk(state);
    return status == CLI_OK ? print_report(state) : status;
}

int cli_chat_run(int argc, char **argv) {
    chat_options chosen = {0};
    cli_model_args_default(&chosen.model);
    cli_sample_args_default(&chosen.sample);
    chosen.sample.n_predict = 1024;
    enum { OWN = 2 };
    cli_option options[OWN + CLI_STORE_OPTIONS + CLI_MODEL_OPTIONS + CLI_SAMPLE_OPTIONS] = {
        cli_string("system", &chosen.system, "TEXT", "a system message before the conversation"),
        cli_flag("quiet", &chosen.quiet, "print no report"),
    };
    chat_state state = {.chosen = &chosen};
    cli_text_store_options(&state.store, options + OWN);
    cli_model_options(&chosen.model, options + OWN + CLI_STORE_OPTIONS);
    cli_sample_options(&chosen.sample, options + OWN + CLI_STORE_OPTIONS + CLI_MODEL_OPTIONS);
    static const char *const examples[] = {
        "quire chat -m smollm2 --kv k4v4",
        "quire chat -m model.gguf --system 'Answer in one sentence.' --temp 0",
        "quire chat -m smollm2 --repeat-penalty 1.1 --dry-multiplier 0.8",
        NULL,
    };
    const cli_usage usage = {
        .command = "chat",
        .about = "Chats with a model, one message per line. Only the replies go to stdout. Each "
                 "turn computes only its new tokens.\n"
                 "Ctrl-C stops a reply and keeps the conversation; at the prompt it ends the "
                 "conversation, as Ctrl-D does. Keys typed during a reply are not shown, and are "
                 "discarded when the reply ends. /reset starts a new conversation, /report shows "
                 "the cache, /quit ends.\n"
                 "If the model repeats itself, try --repeat-penalty 1.1 or --dry-multiplier 0.8.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    status = chat(&state);
    quire_session_free(state.session);
    quire_model_free(state.model);
    cli_chat_free(&state.chat);
    cli_tokens_free(&state.held);
    free(state.answer);
    cli_text_store_close(&state.store);
    return status;
}
