/* sample_args.c: sampler and draft options. */
#include "options/sample_args.h"

#include "command.h"
#include "options/model_args.h"
#include "output/report.h"

#include <stdlib.h>
#include <string.h>

enum { PREDICT_MAX = 1 << 24, DRAFT_MAX = 32, BREAKERS_MAX = 64 };

static const char *const draft_names[] = {"none", "lookup", NULL};

/* The engine's, so that help shows what holds. */
void cli_sample_args_default(cli_sample_args *args) {
    quire_sampler_options o;
    quire_sampler_options_default(&o);
    *args = (cli_sample_args){.temp = 0.8,
                              .top_p = 0.95,
                              .min_p = 0.05,
                              .top_k = o.top_k,
                              .seed = (int32_t)o.seed,
                              .n_predict = 256,
                              .draft_tokens = 8,
                              .penalty_last_n = o.penalty_last_n,
                              .repeat_penalty = o.repeat_penalty,
                              .frequency_penalty = o.frequency_penalty,
                              .presence_penalty = o.presence_penalty,
                              .dry_multiplier = o.dry_multiplier,
                              .dry_base = o.dry_base,
                              .dry_allowed_length = o.dry_allowed_length,
                              .dry_last_n = o.dry_last_n};
}

void cli_sample_options(cli_sample_args *args, cli_option *options) {
    const cli_option all[CLI_SAMPLE_OPTIONS] = {
        cli_with_letter(
            cli_int("predict", &args->n_predict, 0, PREDICT_MAX, "tokens to generate at most"),
            'n'),
        cli_float("temp", &args->temp, 0, 100, "temperature; 0: always the likeliest token"),
        cli_int("top-k", &args->top_k, 0, PREDICT_MAX,
                "choose among the k likeliest tokens; 0: all"),
        cli_float("top-p", &args->top_p, 0, 1,
                  "choose among the likeliest tokens that have this probability together"),
        cli_float("min-p", &args->min_p, 0, 1,
                  "leave out tokens below this share of the likeliest one's probability"),
        cli_int("seed", &args->seed, 0, INT32_MAX, "of the choice"),
        cli_float("repeat-penalty", &args->repeat_penalty, 0.01, 100,
                  "make tokens of the last --repeat-last-n less likely; 1: off, 1.1: some"),
        cli_float("frequency-penalty", &args->frequency_penalty, -100, 100,
                  "take this off a token's logit for each time it is among them; 0: off"),
        cli_float("presence-penalty", &args->presence_penalty, -100, 100,
                  "take this off once if it is among them; 0: off"),
        cli_int("repeat-last-n", &args->penalty_last_n, 0, PREDICT_MAX,
                "tokens that these penalties look back at, the prompt's included; 0: off"),
        cli_float("dry-multiplier", &args->dry_multiplier, 0, 100,
                  "DRY, against repeated passages: how strong; 0: off, 0.8: usual"),
        cli_float("dry-base", &args->dry_base, 1, 100,
                  "DRY: how fast its penalty grows with the passage"),
        cli_int("dry-allowed-length", &args->dry_allowed_length, 0, PREDICT_MAX,
                "DRY: passages up to this many tokens may be repeated"),
        cli_int("dry-penalty-last-n", &args->dry_last_n, 0, PREDICT_MAX,
                "DRY: tokens to look back at for passages; 0: off"),
        cli_string("dry-breakers", &args->dry_breakers, "LIST",
                   "DRY: texts no passage goes beyond, with commas between; \\n, \\t, \\, and \\\\ "
                   "are one character, "
                   "'none' is none (default: \\n,:,\",*)"),
        cli_string("grammar", &args->grammar, "GBNF", "the text must follow this grammar"),
        cli_string("grammar-file", &args->grammar_file, "FILE", "the grammar in a file"),
        cli_choice("draft", &args->draft, draft_names,
                   "lookup: guess tokens from the text so far, verify them in one step"),
        cli_int("draft-tokens", &args->draft_tokens, 1, DRAFT_MAX - 1, "guesses at most in a step"),
        cli_flag("exact", &args->exact,
                 "the same bits with and without --draft, alone and in a batch (slower alone)"),
    };
    memcpy(options, all, sizeof all);
}

/* ------------------------------------------------------------------ DRY's breakers */

/* Cuts `text` at its commas and resolves escapes, in place. The number of parts, or -1: too many,
 * an empty one, or an escape that is none. */
static int split_breakers(char *text, const char *parts[BREAKERS_MAX]) {
    int n = 0;
    for (char *in = text, *out = text;;) {
        if (n == BREAKERS_MAX)
            return -1;
        char *start = out;
        for (; *in && *in != ','; in++) {
            if (*in != '\\') {
                *out++ = *in;
                continue;
            }
            const char *escape = *++in ? strchr("nt,\\", *in) : NULL;
            if (!escape)
                return -1;
            *out++ = *in == 'n' ? '\n' : *in == 't' ? '\t' : *in;
        }
        if (out == start)
            return -1;
        parts[n++] = start;
        const bool last = !*in++;
        *out++ = '\0';
        if (last)
            return n;
    }
}

/* Sets the breakers of `options`. `copy` is written to, and must live as long as they are used. */
static int use_breakers(const char *typed, char *copy, const char *parts[BREAKERS_MAX],
                        quire_sampler_options *options) {
    int n = 0;
    if (strcmp(typed, "none") != 0) {
        n = split_breakers(strcpy(copy, typed), parts);
        if (n < 0) {
            cli_error("--dry-breakers '%s': give texts with commas between, at most %d and none "
                      "empty; the only escapes "
                      "are \\n, \\t, \\, and \\\\",
                      typed, (int)BREAKERS_MAX);
            return CLI_USAGE;
        }
    }
    options->dry_breakers = parts;
    options->n_dry_breakers = (size_t)n;
    return CLI_OK;
}

/* ------------------------------------------------------------------ sampler */

static void set_options(const cli_sample_args *args, const char *grammar,
                        quire_sampler_options *options) {
    quire_sampler_options_default(options);
    options->temp = (float)args->temp;
    options->top_k = args->top_k;
    options->top_p = (float)args->top_p;
    options->min_p = (float)args->min_p;
    options->seed = (uint32_t)args->seed;
    options->grammar = grammar;
    options->penalty_last_n = args->penalty_last_n;
    options->repeat_penalty = (float)args->repeat_penalty;
    options->frequency_penalty = (float)args->frequency_penalty;
    options->presence_penalty = (float)args->presence_penalty;
    options->dry_multiplier = (float)args->dry_multiplier;
    options->dry_base = (float)args->dry_base;
    options->dry_allowed_length = args->dry_allowed_length;
    options->dry_last_n = args->dry_last_n;
}

int cli_sampler_open(const cli_sample_args *args, const quire_model *model,
                     quire_sampler **sampler) {
    if (args->grammar && args->grammar_file) {
        cli_error("--grammar and --grammar-file cannot be given together");
        return CLI_USAGE;
    }
    size_t unused;
    char *text = args->grammar_file ? cli_file_read(args->grammar_file, &unused) : NULL;
    if (args->grammar_file && !text)
        return CLI_FAILURE;
    quire_sampler_options options;
    set_options(args, text ? text : args->grammar, &options);
    const char *parts[BREAKERS_MAX];
    char *copy = args->dry_breakers ? malloc(strlen(args->dry_breakers) + 1) : NULL;
    int result = CLI_OK;
    if (args->dry_breakers)
        result = copy ? use_breakers(args->dry_breakers, copy, parts, &options)
                      : cli_quire_error("cannot set up sampling", QUIRE_E_NOMEM, "out of memory");
    if (result == CLI_OK) {
        quire_status status = quire_sampler_create(sampler, model, &options);
        result =
            status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot set up sampling", status, NULL);
    }
    free(text);
    free(copy);
    return result;
}

void cli_generate_options(const cli_sample_args *args, quire_generate_options *options) {
    quire_generate_options_default(options);
    options->max_tokens = args->n_predict;
    options->exact = args->exact;
    options->draft = args->draft ? args->draft_tokens : 0;
}

int32_t cli_sample_max_logits(const cli_sample_args *args) {
    return 1 + (args->draft ? args->draft_tokens : 0);
}
