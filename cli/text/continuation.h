/* continuation.h: a text as tokens, and its continuation by a model, printed as it is generated.
 * `run` continues one text; `chat` continues a longer one in every turn. */
#ifndef CLI_TEXT_CONTINUATION_H
#define CLI_TEXT_CONTINUATION_H

#include "options/sample_args.h"
#include "quire_engine.h"
#include "text/text_store.h"

typedef struct cli_tokens {
    int32_t *list; /* owned */
    int32_t n;
    size_t capacity;
} cli_tokens;

/* Makes room for n_more tokens after those that are there. False, with a message: out of memory. */
bool cli_tokens_reserve(cli_tokens *tokens, size_t n_more);
/* Appends a copy. False, with a message: out of memory. */
bool cli_tokens_append(cli_tokens *tokens, const int32_t *list, int32_t n);
void cli_tokens_free(cli_tokens *tokens);

typedef struct cli_continuation {
    const cli_sample_args *sample;
    cli_text_store *store;
    quire_session *session;
    quire_sampler *sampler;
    quire_seq **seq;     /* holds `held`; NULL inside: a sequence is made */
    const int32_t *held; /* (n_held) */
    int32_t n_held;
    bool exact;      /* as in quire_prompt_options */
    bool ignore_end; /* as in quire_generate_options */
    /* *seq holds all tokens of the text but the last one, which was generated: continue from it. */
    bool resume;
    /* Called with every piece of text after it was printed; NULL: nobody. False stops. */
    bool (*on_piece)(void *user, const char *bytes, size_t n_bytes);
    void *user;
} cli_continuation;

/* Whether there is room for no more tokens. */
bool cli_context_full(const quire_session *session, const quire_seq *seq);

enum { CLI_CACHE_FULL = -1 }; /* no exit status: the pool has no pages left, which was printed */

/* Computes the text as a prompt, reusing what *seq or the store already has of it, and generates
 * its continuation: each token is appended to `text`, and its bytes go to stdout. Ctrl-C ends it
 * early and is not a failure. Returns an exit status or CLI_CACHE_FULL; then what was generated
 * before is good. A failure has been printed. */
int cli_continue(const cli_continuation *c, cli_tokens *text, quire_generate_result *result);

#endif
