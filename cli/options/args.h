/* args.h: options of a command as a table, from which both the parser and --help work.
 *
 * Accepted: --name value, --name=value, -t value, -tvalue; "--" ends the options. The last of a
 * repeated option wins. Targets hold the defaults before the parse. A default outside an
 * option's own limits means "not given". */
#ifndef CLI_OPTIONS_ARGS_H
#define CLI_OPTIONS_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cli_kind {
    CLI_FLAG,   /* target: bool */
    CLI_INT,    /* target: int32_t */
    CLI_FLOAT,  /* target: double */
    CLI_SIZE,   /* target: size_t; bytes, with K, M, G or T (powers of 1024) */
    CLI_STRING, /* target: const char *, borrowed from argv */
    CLI_CHOICE  /* target: int32_t, the place of the value in `choices` */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without dashes */
    char letter;      /* 0: no short form */
    cli_kind kind;
    void *target;
    double min, max;            /* int, float, size: both included */
    int32_t step;               /* int: multiples of it alone; 0 and 1: any */
    const char *const *choices; /* ends with NULL */
    const char *value;          /* what help calls the value: "N" */
    const char *help;
} cli_option;

cli_option cli_flag(const char *name, bool *target, const char *help);
cli_option cli_int(const char *name, int32_t *target, int32_t min, int32_t max, const char *help);
cli_option cli_float(const char *name, double *target, double min, double max, const char *help);
cli_option cli_size(const char *name, size_t *target, double min, double max, const char *help);
cli_option cli_string(const char *name, const char **target, const char *value, const char *help);
cli_option cli_choice(const char *name, int32_t *target, const char *const *choices,
                      const char *help);
cli_option cli_with_letter(cli_option option, char letter);
cli_option cli_with_step(cli_option option, int32_t step);

typedef struct cli_argument {
    const char *name; /* "FILE" */
    const char **target;
    bool required;
} cli_argument;

/* Words after the arguments, as many as there are. */
typedef struct cli_rest {
    const char *name;   /* "FILE" */
    const char **words; /* room for argc of them */
    size_t n;
    bool required; /* one at least */
} cli_rest;

typedef struct cli_usage {
    const char *command; /* "bench attn" */
    const char *about;   /* what it does, lines of at most 100 columns */
    const cli_option *options;
    size_t n_options;
    const cli_argument *arguments; /* (n_arguments) words that are no options, in their order */
    size_t n_arguments;
    cli_rest *rest;              /* NULL: none */
    const char *const *examples; /* ends with NULL */
} cli_usage;

/* True: run the command. False: *status is the exit status (help was printed, or a message on
 * stderr). */
bool cli_args_parse(const cli_usage *usage, int argc, char **argv, int *status);

/* ---- pieces, in args_value.c and args_help.c */

/* What an option accepts, in words: "32 to 576 in steps of 16". */
void cli_option_allowed(const cli_option *option, char *text, size_t n_bytes);
/* The default, or false if there is none to show. */
bool cli_option_default(const cli_option *option, char *text, size_t n_bytes);
/* Sets the target. False if the text is not an allowed value; the target is then unchanged. */
bool cli_option_assign(const cli_option *option, const char *text);
void cli_usage_print(const cli_usage *usage, FILE *file);

#endif
