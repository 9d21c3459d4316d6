/* args.h: option tables, which drive the parser, --help and the man pages.
 *
 * Accepted: --name value, --name=value, -t value, -tvalue; "--" ends the options. If an option is
 * repeated, the last one wins. Targets hold the defaults before parsing; a default outside the
 * option's limits means "not given". */
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
    CLI_CHOICE  /* target: int32_t, an index into `choices` */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without dashes */
    char letter;      /* 0: no short form */
    cli_kind kind;
    void *target;
    double min, max;            /* int, float, size: both included */
    int32_t step;               /* int: must be a multiple of it; 0 and 1: any */
    const char *const *choices; /* ends with NULL */
    const char *value;          /* what help calls the value: "N" */
    const char *help;           /* the default is added, unless it says "(default:" itself */
    const char *heading;        /* a group of options starts here; NULL: the group continues */
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

/* Any number of words after the arguments. */
typedef struct cli_rest {
    const char *name;   /* "FILE" */
    const char **words; /* room for argc of them */
    size_t n;
    bool required; /* at least one */
} cli_rest;

typedef struct cli_usage {
    const char *command; /* "bench attn" */
    const char *about;   /* what it does; help wraps it, '\n' starts a new paragraph */
    const cli_option *options;
    size_t n_options;
    const cli_argument *arguments; /* (n_arguments) positional arguments, in order */
    size_t n_arguments;
    cli_rest *rest;              /* NULL: none */
    const char *const *examples; /* ends with NULL */
} cli_usage;

#define CLI_JSON_LIST_HELP "print JSON: an object, or an array for more than one --kv"

/* True: run the command. False: exit with *status; help was printed, or an error message. */
bool cli_args_parse(const cli_usage *usage, int argc, char **argv, int *status);

/* ---- in args_value.c */

/* Describes the values that an option accepts: "32 to 576 in steps of 16". */
void cli_option_allowed(const cli_option *option, char *text, size_t n_bytes);
/* Writes the default. False: there is none. */
bool cli_option_default(const cli_option *option, char *text, size_t n_bytes);
/* Parses `text` into the target. False: the value is not allowed, and the target is unchanged. */
bool cli_option_assign(const cli_option *option, const char *text);

/* ---- in args_help.c and args_man.c */

typedef void cli_option_visitor(const cli_option *option, void *user);
/* Every option in the order in which help and man page show them, --help among them. */
void cli_usage_visit(const cli_usage *usage, cli_option_visitor *visit, void *user);
/* cli_option_default, but false if the option's help text states the default itself. */
bool cli_option_shows_default(const cli_option *option, char *text, size_t n_bytes);
/* Prints `text` and a newline in lines of at most 80 columns. The first line starts at `column`;
 * every line is indented to `indent`. */
void cli_wrap(const char *text, int column, int indent, FILE *file);
void cli_synopsis_print(const cli_usage *usage, FILE *file); /* " DIR FILE... [options]\n" */
void cli_usage_print(const cli_usage *usage, FILE *file);
/* The sections of a man page from SYNOPSIS to EXAMPLES. */
void cli_usage_man(const cli_usage *usage, FILE *file);
/* Prints `text` for roff: escaped, and one paragraph per line of it. */
void cli_man_text(const char *text, FILE *file);

#endif
