/* auto_kv.h: --kv auto[:BYTES|:KLD]: codecs of every layer, by what the model itself shows. What
 * fails has printed why. */
#ifndef CLI_OPTIONS_AUTO_KV_H
#define CLI_OPTIONS_AUTO_KV_H

#include "options/model_args.h"
#include "output/text_table.h"

#define CLI_BUDGET_ALLOWED "KLD, a number below 1 as 0.002, or BYTES, as 512M"

typedef struct cli_budget {
    size_t bytes; /* 0: kld counts */
    double kld;
} cli_budget;

/* "0.002" is a KLD: a number below 1; "512M" and all other numbers are bytes. False, without a
 * message. */
bool cli_budget_parse(const char *text, cli_budget *budget);

bool cli_auto_is(const char *kv); /* "auto", "auto:..." */
/* The budget of "auto" or "auto:...", and whether the other options let all layers be chosen. */
bool cli_auto_parse(const cli_model_args *args, const char *kv, cli_budget *budget);

/* The model's report, with a progress bar if it has to be made. free() it. Exit status. */
int cli_examine(const quire_model *model, int32_t n_threads, bool anew, quire_sensitivity **report);

/* Pairs (n_layers) for a sequence of `context` tokens. Exit status. */
int cli_choose(const cli_model_args *args, const quire_model *model,
               const quire_sensitivity *report, const cli_budget *budget, int32_t context,
               bool exact_trim, quire_pair *pairs, quire_choice *choice);

/* cli_auto_parse, cli_examine and cli_choose; then says on stderr what was chosen, unless the
 * wish is quiet. */
int cli_auto_pairs(const cli_model_args *args, const quire_model *model,
                   const cli_session_request *request, quire_pair *pairs);

enum { CLI_SINKS_USUAL = 4 }; /* as presets have them, and reports are made with */
/* What a report's prediction takes for granted, where the options say otherwise: " (with ..)",
 * or "". */
const char *cli_predicted_for(const cli_model_args *args);

/* The options that name these pairs. */
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
