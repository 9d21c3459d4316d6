/* completion_body.c: the body of /v1/completions. */
#include "api/request.h"
#include "api/response_format.h"
#include "base/piece.h"

#include <stdlib.h>

enum { COMPLETION_TOKENS = 16 /* OpenAI's default of max_tokens */ };

/* ------------------------------------------------------------------ prompt */

/* SentencePiece may put a control token together from the parts of plain text; control tokens are
 * the ones without bytes. */
static bool check_plain(api_parser *p, const int32_t *tokens, int32_t n, int32_t n_start) {
    for (int32_t i = n_start; i < n; i++) {
        char piece[SRV_PIECE];
        size_t n_bytes;
        if (quire_model_piece(p->limits->model, tokens[i], piece, sizeof piece, &n_bytes) ==
                QUIRE_OK &&
            n_bytes == 0)
            return api_fail(p->error, 400, "prompt",
                            "The text of 'prompt' spells a control token of this model (%d). Send "
                            "the prompt as a list of tokens if that is intended.",
                            (int)tokens[i]);
    }
    return true;
}

static bool prompt_of_text(api_parser *p, const json_t *prompt) {
    const char *text = json_string_value(prompt);
    const size_t n_bytes = json_string_length(prompt);
    srv_work *work = &p->request->work;
    int32_t n_start = 0, *start;
    if (!api_tokens_of(p->limits->model, "", 0, QUIRE_TOKENIZE_START, "prompt", &start, &n_start,
                       p->error))
        return false;
    free(start);
    if (!api_tokens_of(p->limits->model, text, n_bytes, QUIRE_TOKENIZE_START, "prompt",
                       &p->owned->tokens, &work->n_tokens, p->error) ||
        !check_plain(p, p->owned->tokens, work->n_tokens, n_start))
        return false;
    srv_text copy = {0};
    srv_text_add(&copy, text, n_bytes);
    p->request->prompt_text = srv_text_take(&copy);
    return p->request->prompt_text || api_no_memory(p->error);
}

static bool text_of_tokens(api_parser *p) {
    srv_text text = {0};
    for (int32_t i = 0; i < p->request->work.n_tokens; i++)
        srv_piece_add(p->limits->model, p->owned->tokens[i], &text);
    p->request->prompt_text = srv_text_take(&text);
    return p->request->prompt_text || api_no_memory(p->error);
}

static bool prompt_of_tokens(api_parser *p, const json_t *list) {
    const size_t n = json_array_size(list);
    if (n > INT32_MAX)
        return api_fail(p->error, 413, "prompt", "'prompt' is too long.");
    int32_t *tokens = p->owned->tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens)
        return api_no_memory(p->error);
    for (size_t i = 0; i < n; i++) {
        const json_t *token = json_array_get(list, i);
        const json_int_t value = json_is_integer(token) ? json_integer_value(token) : -1;
        if (value < 0 || value >= p->n_vocab)
            return api_fail(p->error, 400, "prompt",
                            "Entry %zu of 'prompt' must be a token, an integer from 0 to %d.", i,
                            (int)p->n_vocab - 1);
        tokens[i] = (int32_t)value;
    }
    p->request->work.n_tokens = (int32_t)n;
    return text_of_tokens(p);
}

static bool read_prompt(api_parser *p) {
    const json_t *prompt = api_field(p->body, "prompt");
    if (!prompt)
        return api_fail(p->error, 400, "prompt", "'prompt' is missing.");
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(prompt) > 1)
            return api_fail(p->error, 400, "prompt",
                            "'prompt' has %zu prompts; this server takes one per request.",
                            json_array_size(prompt));
        prompt = first;
    }
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return api_wrong_type(p->error, "prompt", "a string or a list of tokens");
    if (!(json_is_string(prompt) ? prompt_of_text(p, prompt) : prompt_of_tokens(p, prompt)))
        return false;
    return p->request->work.n_tokens > 0 || api_fail(p->error, 400, "prompt", "'prompt' is empty.");
}

/* ------------------------------------------------------------------ the rest */

static bool read_options(api_parser *p) {
    srv_work *work = &p->request->work;
    const char *suffix = NULL;
    int64_t logprobs = -1, best_of = work->n_choices;
    if (!api_read_bool(p->body, "echo", &p->request->echo, p->error) ||
        !api_read_int(p->body, "logprobs", 0, SRV_TOP_LOGPROBS, &logprobs, p->error) ||
        !api_read_int(p->body, "best_of", 1, p->limits->max_choices, &best_of, p->error) ||
        !api_read_string(p->body, "suffix", &suffix, p->error))
        return false;
    if (suffix && *suffix)
        return api_fail(p->error, 400, "suffix", "'suffix' is not supported.");
    if (best_of != work->n_choices)
        return api_fail(p->error, 400, "best_of",
                        "'best_of' is supported only if it equals 'n' (%d).", (int)work->n_choices);
    if (p->request->echo && logprobs >= 0)
        return api_fail(p->error, 400, "echo",
                        "'echo' cannot be combined with 'logprobs': the probabilities of the "
                        "prompt are not computed.");
    work->n_logprobs = (int32_t)logprobs;
    if (!api_field(p->body, "max_tokens"))
        work->max_tokens = COMPLETION_TOKENS;
    return true;
}

bool api_read_completion(api_parser *p) {
    return read_options(p) && api_read_format(p, NULL) && read_prompt(p);
}
