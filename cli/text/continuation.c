/* continuation.c: computes a prompt and generates text after it. */
#include "text/continuation.h"

#include "command.h"
#include "output/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_tokens_reserve(cli_tokens *tokens, size_t n_more) {
    const size_t capacity = (size_t)tokens->n + n_more;
    if (tokens->list && capacity <= tokens->capacity)
        return true;
    int32_t *list = realloc(tokens->list, (capacity + 1) * sizeof *list);
    if (!list) {
        cli_error("out of memory");
        return false;
    }
    tokens->list = list;
    tokens->capacity = capacity;
    return true;
}

bool cli_tokens_append(cli_tokens *tokens, const int32_t *list, int32_t n) {
    if (!cli_tokens_reserve(tokens, (size_t)n))
        return false;
    if (n > 0)
        memcpy(tokens->list + tokens->n, list, (size_t)n * sizeof *list);
    tokens->n += n;
    return true;
}

void cli_tokens_free(cli_tokens *tokens) {
    free(tokens->list);
    *tokens = (cli_tokens){0};
}

typedef struct writing {
    const cli_continuation *c;
    cli_tokens *text;
} writing;

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    const writing *w = user;
    w->text->list[w->text->n++] = token; /* cli_continue made room: the list does not move */
    if (fwrite(bytes, 1, n_bytes, stdout) != n_bytes || fflush(stdout) != 0)
        return false;
    return !w->c->on_piece || w->c->on_piece(w->c->user, bytes, n_bytes);
}

static const char *failure(const cli_continuation *c) {
    return *c->seq           ? "cannot generate"
           : c->store->store ? "cannot read from the store"
                             : "cannot create a sequence";
}

bool cli_context_full(const quire_session *session, const quire_seq *seq) {
    return quire_seq_length(seq) >= quire_session_context(session);
}

int cli_continue(const cli_continuation *c, cli_tokens *text, quire_generate_result *result) {
    const int32_t n_prompt = text->n;
    *result = (quire_generate_result){0};
    if (!cli_tokens_reserve(text, (size_t)c->sample->n_predict))
        return CLI_FAILURE;
    writing w = {c, text};
    quire_generate_options options;
    cli_generate_options(c->sample, &options);
    options.ignore_end = c->ignore_end;
    options.on_token = on_token;
    options.user = &w;
    options.resume = c->resume;
    options.n_cached = c->resume ? n_prompt - 1 : n_prompt;
    quire_status status = QUIRE_OK;
    if (!c->resume)
        status = cli_text_store_prompt(c->store, c->session, c->held, c->n_held, c->exact,
                                       text->list, n_prompt, c->seq);
    if (status == QUIRE_OK)
        status =
            quire_generate(c->session, *c->seq, c->sampler, text->list, n_prompt, &options, result);
    result->n_prompt = c->store->result.n_computed;
    result->prefill_seconds = c->store->result.seconds;
    if (status == QUIRE_OK || (status == QUIRE_E_ABORTED && *c->seq))
        return CLI_OK;
    const int failed = cli_quire_error(failure(c), status, NULL);
    return status == QUIRE_E_NO_PAGES && *c->seq ? CLI_CACHE_FULL : failed;
}
