/* sample_args.c: sampler and draft options. */
#include "sample_args.h"

#include "command.h"
#include "model_args.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { PREDICT_MAX = 1 << 24, DRAFT_MAX = 32 };

static const char *const draft_names[] = {"none", "lookup", NULL};

void cli_sample_args_default(cli_sample_args *args) {
    *args = (cli_sample_args){
        .temp = 0.8, .top_p = 0.95, .min_p = 0.05, .top_k = 40, .seed = 1, .n_predict = 256, .draft_tokens = 8};
}

void cli_sample_options(cli_sample_args *args, cli_option *options) {
    const cli_option all[CLI_SAMPLE_OPTIONS] = {
        cli_with_letter(cli_int("predict", &args->n_predict, 0, PREDICT_MAX, "tokens to generate at most"), 'n'),
        cli_float("temp", &args->temp, 0, 100, "temperature; 0: always the likeliest token"),
        cli_int("top-k", &args->top_k, 0, PREDICT_MAX, "choose among the k likeliest tokens; 0: all"),
        cli_float("top-p", &args->top_p, 0, 1, "choose among the likeliest tokens that have this probability together"),
        cli_float("min-p", &args->min_p, 0, 1, "leave out tokens below this share of the likeliest one's probability"),
        cli_int("seed", &args->seed, 0, INT32_MAX, "of the choice"),
        cli_string("grammar", &args->grammar, "GBNF", "the text must follow this grammar"),
        cli_string("grammar-file", &args->grammar_file, "FILE", "the grammar in a file"),
        cli_choice("draft", &args->draft, draft_names,
                   "lookup: guess tokens from the text so far, verify them in one step"),
        cli_int("draft-tokens", &args->draft_tokens, 1, DRAFT_MAX - 1, "guesses at most in a step"),
        cli_flag("exact", &args->exact, "the same bits with and without --draft, alone and in a batch (slower alone)"),
    };
    memcpy(options, all, sizeof all);
}

int cli_sampler_open(const cli_sample_args *args, const quire_model *model, quire_sampler **sampler) {
    if (args->grammar && args->grammar_file) {
        cli_error("--grammar and --grammar-file cannot be given together");
        return CLI_USAGE;
    }
    size_t unused;
    char *text = args->grammar_file ? cli_file_read(args->grammar_file, &unused) : NULL;
    if (args->grammar_file && !text)
        return CLI_FAILURE;
    quire_sampler_options options;
    quire_sampler_options_default(&options);
    options.temp = (float)args->temp;
    options.top_k = args->top_k;
    options.top_p = (float)args->top_p;
    options.min_p = (float)args->min_p;
    options.seed = (uint32_t)args->seed;
    options.grammar = text ? text : args->grammar;
    quire_status status = quire_sampler_create(sampler, model, &options);
    free(text);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot set up sampling", status, NULL);
}

void cli_generate_options(const cli_sample_args *args, quire_generate_options *options) {
    quire_generate_options_default(options);
    options->max_tokens = args->n_predict;
    options->exact = args->exact;
    options->draft = args->draft ? args->draft_tokens : 0;
}

int32_t cli_sample_max_logits(const cli_sample_args *args) { return 1 + (args->draft ? args->draft_tokens : 0); }
