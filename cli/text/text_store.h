/* text_store.h: takes the pages of a prompt from a store, and puts new ones into it. */
#ifndef CLI_TEXT_TEXT_STORE_H
#define CLI_TEXT_TEXT_STORE_H

#include "options/args.h"
#include "options/model_args.h"
#include "quire_engine.h"

typedef struct cli_text_store {
    const char *directory; /* NULL: none was asked for, and all calls do nothing */
    size_t max_bytes;
    struct quire_store *store;
    int32_t n_found;     /* tokens that came from it */
    int32_t n_pages;     /* added */
    uint64_t n_bytes;    /* of these */
    quire_status failed; /* why pages could not be put, which the user knows; OK: they could */
} cli_text_store;

enum { CLI_STORE_OPTIONS = 2 };

/* Writes CLI_STORE_OPTIONS options, which set `ts`. */
void cli_text_store_options(cli_text_store *ts, cli_option *options);
/* Rows of a step of prefill, so that pages are put before they leave the shortest window; 0: as
 * many as usual. */
int32_t cli_text_store_rows(const cli_text_store *ts, const quire_model *model,
                            const cli_model_args *args);
int cli_text_store_open(cli_text_store *ts); /* exit status */
/* A sequence with as much of the text as is there, but for its last token. Without a store: an
 * empty one. Exit status. */
int cli_text_store_get(cli_text_store *ts, quire_session *session, const int32_t *tokens,
                       int32_t n_tokens, quire_seq **seq);
/* The pages of these tokens, which were computed as a prompt or in exact steps. What fails is told
 * once. Reasons that pass (others are reading, a full disk) cost nothing but time: the next call
 * puts what is missing. */
void cli_text_store_put(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                        const int32_t *tokens, int32_t n_tokens);
/* The same, if the last call has failed for such a reason. */
void cli_text_store_put_again(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                              const int32_t *tokens, int32_t n_tokens);
void cli_text_store_close(cli_text_store *ts);

#endif
