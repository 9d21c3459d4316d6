/* model_fill.h: fills the cache of a model with synthetic rows instead of a prefill, which takes
 * hours at long contexts. For measurements of speed and memory only: the rows mean nothing to the
 * model. */
#ifndef CLI_BENCH_MODEL_FILL_H
#define CLI_BENCH_MODEL_FILL_H

#include "quire_engine.h"

typedef struct cli_fill {
    int32_t n_threads;
    int32_t max_rows; /* of one step, as in quire_session_options */
    uint64_t seed;    /* sequences with the same seed have the same rows */
    void (*progress)(void *user, int32_t done);
    bool (*stop)(void *user); /* asked after every step; true: E_ABORTED */
    void *user;
} cli_fill;

/* Appends synthetic rows to every layer until the sequence has n_tokens, in the steps of a prefill:
 * pages are sealed by the session's codecs and leave windows as they do in a prefill. */
quire_status cli_fill_seq(quire_session *session, quire_seq *seq, int32_t n_tokens,
                          const cli_fill *fill);

#endif
