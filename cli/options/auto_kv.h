/* auto_kv.h: --kv auto[:BYTES|:KLD], which chooses the codecs of every layer from measurements of
 * the model. Functions that fail have printed the reason. */
#ifndef CLI_OPTIONS_AUTO_KV_H
#define CLI_OPTIONS_AUTO_KV_H

#include "options/model_args.h"
#include "output/text_table.h"

#define CLI_BUDGET_ALLOWED "a KL divergence below 1, such as 0.002, or a size, such as 512M"

typedef struct cli_budget {
    size_t bytes; /* 0: the budget is kld */
    double kld;
} cli_budget;

/* A number below 1, such as "0.002", is a KL divergence; all others, such as "512M", are bytes.
 * False, without a message: it is neither. */
bool cli_budget_parse(const char *text, cli_budget *budget);

bool cli_auto_is(const char *kv); /* "auto", "auto:..." */
/* Parses "auto" or "auto:...", and checks that no other option fixes the codecs of layers. */
bool cli_auto_parse(const cli_model_args *args, const char *kv, cli_budget *budget);

/* The model's report, with a progress bar if it has to be made. Unless `quiet`, says so if it
 * cannot be kept. free() it. Exit status. */
int cli_examine(const quire_model *model, int32_t n_threads, bool again, bool quiet,
                quire_sensitivity **report);

/* Pairs (n_layers) for a sequence of `context` tokens. Exit status. */
int cli_choose(const cli_model_args *args, const quire_model *model,
               const quire_sensitivity *report, const cli_budget *budget, int32_t context,
               bool exact_trim, quire_pair *pairs, quire_choice *choice);

/* cli_auto_parse, cli_examine and cli_choose; then prints the choice on stderr, unless
 * request->quiet. */
int cli_auto_pairs(const cli_model_args *args, const quire_model *model,
                   const cli_session_request *request, quire_pair *pairs);

enum { CLI_SINKS_USUAL = 4 }; /* the default of the presets, with which reports are measured */
/* The assumptions of a report's prediction that the options do not meet, as " (with ...)"; or "".
 */
const char *cli_predicted_for(const cli_model_args *args);

/* Options that select the chosen pairs. */
typedef struct cli_chosen {
    cli_text kv, windowed; /* windowed "": not needed */
    int32_t sinks;         /* -1: not needed */
    char *layers;          /* NULL: not needed */
} cli_chosen;

/* free() chosen->layers. Exit status. */
int cli_chosen_describe(const cli_model_args *args, const quire_model *model,
                        const quire_pair *pairs, cli_chosen *chosen);
void cli_chosen_print(const cli_chosen *chosen, FILE *file); /* "--kv k4v4 --kv-layers 0-2=k8v8" */

#endif
