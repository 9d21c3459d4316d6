/* model_args.h: the options of every command that runs a model. Functions that fail have printed
 * the reason. */
#ifndef CLI_OPTIONS_MODEL_ARGS_H
#define CLI_OPTIONS_MODEL_ARGS_H

#include "options/args.h"
#include "quire_engine.h"

typedef struct cli_model_args {
    const char *model, *kv, *kv_layers, *kv_windowed;
    int32_t sinks, max_kv, context, n_threads, raw;
    int32_t keep; /* -1: not given */
    bool plain_rounding;
    size_t kv_bytes;
    int32_t weights; /* cli_weights */
} cli_model_args;

enum cli_weights { CLI_WEIGHTS_REPACKED, CLI_WEIGHTS_FILE, CLI_WEIGHTS_F32 };

enum { CLI_MODEL_OPTIONS = 13 };

void cli_model_args_default(cli_model_args *args);
/* A copy with a raw cache of type `raw` in every layer and without limits: the baseline of
 * comparisons. */
cli_model_args cli_model_args_raw(const cli_model_args *args, quire_type raw);
/* Whether the same --kv name gives the same cache with both; one is made by cli_model_args_raw. */
bool cli_model_args_same_cache(const cli_model_args *a, const cli_model_args *b);
/* The first tokens that a bounded cache keeps; 0 if it is not bounded. */
int32_t cli_model_args_keep(const cli_model_args *args);
/* Writes CLI_MODEL_OPTIONS options, which set `args`. */
void cli_model_options(cli_model_args *args, cli_option *options);

/* Exit status. Options that contradict each other are refused before the model is read. */
int cli_model_open(const cli_model_args *args, quire_model **model);

/* After `what` was measured: says so if the engine could not keep it for the next time. */
void cli_say_if_lost(const char *what);

typedef struct cli_session_request {
    const char *kv;                         /* one entry of args->kv */
    int32_t context;                        /* used where args->context is not given */
    int32_t max_seqs, max_rows, max_logits; /* 0: the engine's defaults */
    int32_t full_seqs;                      /* as in quire_session_options */
    bool exact_trim;                        /* keep what exact trims of the sequence need */
    bool quiet; /* do not print what --kv auto chose, nor warn of a context beyond the model's */
    const quire_layer *order_from; /* as in quire_session_options */
    bool (*stop)(void *user);
    void *stop_user;
} cli_session_request;

/* Opens a session with request->kv in all layers except those that --kv-layers and --kv-windowed
 * name. Exit status. */
int cli_session_open(const cli_model_args *args, const quire_model *model,
                     const cli_session_request *request, quire_session **session);

/* Calibrates a model and writes the result to a file. Returns an exit status. */
int cli_calibration_write(const cli_model_args *args, const quire_model *model, const char *path);

/* Whether every name is valid, so that a misspelt last one is found before minutes of work. False,
 * with a message. */
bool cli_kv_names_check(const cli_model_args *args, char **names, size_t n);

/* "none" and then the entries of --kv, checked as above. free() the result. Exit status, with a
 * message. */
int cli_kv_names_after_none(const cli_model_args *args, char ***names, size_t *n);

/* The whole file, or standard input for "-", with a terminating 0. NULL, with a message. */
char *cli_file_read(const char *path, size_t *n_bytes);
/* The tokens of a text. free() them. NULL, with a message. */
int32_t *cli_tokenize(const quire_model *model, const char *text, size_t n_bytes, int flags,
                      int32_t *n_tokens);

#endif
