/* sample_args.h: the options for sampling and drafting tokens. */
#ifndef CLI_OPTIONS_SAMPLE_ARGS_H
#define CLI_OPTIONS_SAMPLE_ARGS_H

#include "options/args.h"
#include "quire_engine.h"

typedef struct cli_sample_args {
    double temp, top_p, min_p;
    int32_t top_k, seed, n_predict, draft, draft_tokens;
    const char *grammar, *grammar_file;
    double repeat_penalty, frequency_penalty, presence_penalty;
    double dry_multiplier, dry_base;
    int32_t penalty_last_n, dry_allowed_length, dry_last_n;
    const char *dry_breakers; /* NULL: the engine's default */
    bool exact;
} cli_sample_args;

enum { CLI_SAMPLE_OPTIONS = 20 };

void cli_sample_args_default(cli_sample_args *args);
/* Writes CLI_SAMPLE_OPTIONS options, which set `args`. */
void cli_sample_options(cli_sample_args *args, cli_option *options);
int cli_sampler_open(const cli_sample_args *args, const quire_model *model,
                     quire_sampler **sampler); /* exit status */
/* Sets max_tokens, exact and draft; the rest are defaults. */
void cli_generate_options(const cli_sample_args *args, quire_generate_options *options);
/* The largest number of rows with logits in a step. */
int32_t cli_sample_max_logits(const cli_sample_args *args);

#endif
