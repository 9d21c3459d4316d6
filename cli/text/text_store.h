/* text_store.h: prompts of a command with --store PLACES: what the store has of them is not
 * computed, and what is new goes into it (quire_session_prompt). */
#ifndef CLI_TEXT_TEXT_STORE_H
#define CLI_TEXT_TEXT_STORE_H

#include "options/args.h"
#include "options/model_args.h"
#include "output/progress.h"
#include "quire_engine.h"

typedef struct cli_text_store {
    const char *directory; /* or other places, separated by commas; NULL: no store */
    char name[600];        /* the same, without passwords */
    size_t max_bytes;
    /* Takes lines about places that fail, from any thread; false: it does not. NULL: stderr. */
    bool (*take_line)(const char *line);
    struct quire_store *store;
    int32_t n_found;  /* tokens that came from it */
    int32_t n_pages;  /* added */
    uint64_t n_bytes; /* of these */
    /* Why pages could not be put, as the user was told; OK: they could. */
    quire_status failed;
    cli_progress progress;      /* of the prompt at hand */
    quire_prompt_result result; /* and of the last one */
} cli_text_store;

enum { CLI_STORE_OPTIONS = 2 };

/* Writes CLI_STORE_OPTIONS options, which set `ts`. */
void cli_text_store_options(cli_text_store *ts, cli_option *options);
int cli_text_store_open(cli_text_store *ts); /* exit status */
/* quire_session_prompt with a progress bar. held, n_held: the tokens of *seq, if it is not NULL.
 * What fails is in ts->result too, and not printed, except failing puts: told once. */
quire_status cli_text_store_prompt(cli_text_store *ts, quire_session *session, const int32_t *held,
                                   int32_t n_held, bool exact, const int32_t *tokens,
                                   int32_t n_tokens, quire_seq **seq);
/* Puts the pages of these tokens, which were computed as the last prompt or in exact steps. */
void cli_text_store_put(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                        const int32_t *tokens, int32_t n_tokens);
/* The same, if the last put has failed. */
void cli_text_store_put_again(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                              const int32_t *tokens, int32_t n_tokens);
void cli_text_store_close(cli_text_store *ts);

#endif
