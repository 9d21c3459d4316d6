/* sample_args.c: the options for sampling and drafting tokens. */
#include "options/sample_args.h"

#include "command.h"
#include "options/model_args.h"
#include "output/report.h"

#include <stdlib.h>
#include <string.h>

enum { PREDICT_MAX = 1 << 24, DRAFT_MAX = 32, BREAKERS_MAX = 64 };

static const char *const draft_names[] = {"none", "lookup", NULL};

/* Takes the engine's defaults, so that help shows the values in use. */
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
        cli_with_letter(cli_int("predict", &args->n_predict, 0, PREDICT_MAX,
                                "generate at most this many tokens"),
                        'n'),
        cli_float("temp", &args->temp, 0, 100, "temperature; 0: always take the most likely token"),
        cli_int("top-k", &args->top_k, 0, PREDICT_MAX,
                "sample from the N most likely tokens; 0: from all"),
        cli_float(
            "top-p", &args->top_p, 0, 1,
            "sample from the smallest set of most likely tokens whose total probability reaches X"),
        cli_float("min-p", &args->min_p, 0, 1,
                  "drop tokens whose probability is below X times that of the most likely token"),
        cli_int("seed", &args->seed, 0, INT32_MAX, "seed of the random number generator"),
        cli_float("repeat-penalty", &args->repeat_penalty, 0.01, 100,
                  "make tokens that occur in the last --repeat-last-n tokens less likely; 1: off; "
                  "1.1 is a mild penalty"),
        cli_float("frequency-penalty", &args->frequency_penalty, -100, 100,
                  "subtract X from a token's logit for each time it occurs in the last "
                  "--repeat-last-n tokens; 0: off"),
        cli_float("presence-penalty", &args->presence_penalty, -100, 100,
                  "subtract X from a token's logit once if it occurs in the last --repeat-last-n "
                  "tokens; 0: off"),
        cli_int("repeat-last-n", &args->penalty_last_n, 0, PREDICT_MAX,
                "how many of the last tokens, including the prompt's, these three penalties "
                "consider; 0: off"),
        cli_float("dry-multiplier", &args->dry_multiplier, 0, 100,
                  "strength of DRY, a penalty on repeating longer passages; 0: off; 0.8 is usual"),
        cli_float("dry-base", &args->dry_base, 1, 100,
                  "DRY: how fast the penalty grows with the length of the passage"),
        cli_int("dry-allowed-length", &args->dry_allowed_length, 0, PREDICT_MAX,
                "DRY: passages of up to N tokens may be repeated"),
        cli_int("dry-penalty-last-n", &args->dry_last_n, 0, PREDICT_MAX,
                "DRY: how many of the last tokens to search for passages; 0: off"),
        cli_string(
            "dry-breakers", &args->dry_breakers, "LIST",
            "DRY: strings that end a passage, separated by commas; \\n, \\t, \\, and \\\\ are "
            "escapes; 'none': no such strings (default: \\n,:,\",*)"),
        cli_string("grammar", &args->grammar, "GBNF", "restrict the output to this grammar"),
        cli_string("grammar-file", &args->grammar_file, "FILE", "read the grammar from a file"),
        cli_choice("draft", &args->draft, draft_names,
                   "lookup: speculative decoding that guesses tokens from the text so far and "
                   "verifies them in one step"),
        cli_int("draft-tokens", &args->draft_tokens, 1, DRAFT_MAX - 1,
                "guess at most N tokens per step"),
        cli_flag("exact", &args->exact,
                 "compute the same bits with and without --draft, alone and in a batch (slower "
                 "when alone)"),
    };
    memcpy(options, all, sizeof all);
    options[0].heading = "sampling options";
}

/* ------------------------------------------------------------------ DRY's breakers */

/* Splits `text` at its commas and resolves escapes, in place. Returns the number of parts, or -1:
 * too many parts, an empty part, or an unknown escape. */
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

/* Sets the breakers of `options`. They are stored in `copy`, which must outlive them. */
static int use_breakers(const char *typed, char *copy, const char *parts[BREAKERS_MAX],
                        quire_sampler_options *options) {
    int n = 0;
    if (strcmp(typed, "none") != 0) {
        n = split_breakers(strcpy(copy, typed), parts);
        if (n < 0) {
            cli_error(
                "--dry-breakers '%s': give at most %d strings, none empty, separated by commas; "
                "the only escapes are \\n, \\t, \\, and \\\\",
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
        cli_error("--grammar and --grammar-file cannot be given together; give one of them");
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
