/* model_args.h: the options that every command with a model has. What fails has printed why. */
#ifndef CLI_OPTIONS_MODEL_ARGS_H
#define CLI_OPTIONS_MODEL_ARGS_H

#include "options/args.h"
#include "quire_engine.h"

typedef struct cli_model_args {
    const char *model, *kv, *kv_layers, *kv_windowed;
    int32_t sinks, max_kv, keep, context, n_threads, raw;
    bool plain_rounding;
    size_t kv_bytes;
    int32_t weights; /* cli_weights */
} cli_model_args;

enum cli_weights { CLI_WEIGHTS_REPACKED, CLI_WEIGHTS_FILE, CLI_WEIGHTS_F32 };

enum { CLI_MODEL_OPTIONS = 13 };

void cli_model_args_default(cli_model_args *args);
/* The same with a raw cache of this type in every layer, without a bound: what others are
 * compared with. */
cli_model_args cli_model_args_raw(const cli_model_args *args, quire_type raw);
/* Whether one name of --kv means the same cache with both, one of which is of
 * cli_model_args_raw. */
bool cli_model_args_same_cache(const cli_model_args *a, const cli_model_args *b);
/* Writes CLI_MODEL_OPTIONS options, which set `args`. */
void cli_model_options(cli_model_args *args, cli_option *options);

int cli_model_open(const cli_model_args *args, quire_model **model); /* exit status */

typedef struct cli_session_request {
    const char *kv;                         /* one entry of args->kv */
    int32_t context;                        /* used where args->context is not given */
    int32_t max_seqs, max_rows, max_logits; /* 0: the engine's defaults */
    bool exact_trim;                        /* it will be cut short: hold what that needs */
    bool quiet; /* say nothing of what --kv auto chose, nor of a context beyond the model's */
    const quire_layer *order_from; /* as quire_session_options has it */
    bool (*stop)(void *user);
    void *stop_user;
} cli_session_request;

/* A session with `request->kv` on all layers but those that --kv-layers and --kv-windowed name.
 * Exit status. */
int cli_session_open(const cli_model_args *args, const quire_model *model,
                     const cli_session_request *request, quire_session **session);

/* Whether every name could be one; a misspelt last one should not cost minutes. False, with a
 * message. */
bool cli_kv_names_check(const cli_model_args *args, char **names, size_t n);

/* "none" and the entries of --kv, all of them possible names. free() the result. Exit status,
 * with a message. */
int cli_kv_names_after_none(const cli_model_args *args, char ***names, size_t *n);

/* "a,b,c" cut at its commas. free() the result: pointers and text are one piece. NULL, with a
 * message: no memory. */
char **cli_list_split(const char *text, size_t *n);

/* The whole file, or standard input for "-", with a 0 after it. NULL, with a message. */
char *cli_file_read(const char *path, size_t *n_bytes);
/* All tokens of a text. free() them. NULL, with a message. */
int32_t *cli_tokenize(const quire_model *model, const char *text, size_t n_bytes, int flags,
                      int32_t *n_tokens);

#endif
