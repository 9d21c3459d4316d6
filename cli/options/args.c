/* args.c: parses argv with an option table. */
#include "options/args.h"

#include "command.h"
#include "options/suggest.h"
#include "output/report.h"

#include <string.h>

enum { SHOWN_BYTES = 64, ALLOWED_BYTES = 160 };

typedef enum word_kind {
    WORD_END,
    WORD_OPTION,
    WORD_HELP,
    WORD_MAN,      /* --help=man: the man page; `quire help --man` asks for it */
    WORD_ARGUMENT, /* not an option */
    WORD_UNKNOWN,  /* looks like an option, but is not in the table */
    WORD_VALUE_MISSING,
    WORD_VALUE_UNWANTED /* --flag=value */
} word_kind;

typedef struct word {
    word_kind kind;
    const cli_option *option;
    const char *typed; /* the whole word */
    const char *value;
} word;

typedef struct walk {
    const cli_usage *usage;
    int argc, at;
    char **argv;
    bool options_ended;
} walk;

static const cli_option *find_long(const cli_usage *usage, const char *name, size_t n_name) {
    for (size_t i = 0; i < usage->n_options; i++) {
        const cli_option *option = &usage->options[i];
        if (strlen(option->name) == n_name && memcmp(option->name, name, n_name) == 0)
            return option;
    }
    return NULL;
}

static const cli_option *find_short(const cli_usage *usage, char letter) {
    for (size_t i = 0; i < usage->n_options; i++) {
        if (letter && usage->options[i].letter == letter)
            return &usage->options[i];
    }
    return NULL;
}

/* A following "--name" is the next option, not a value: in `--ctx --json` the number is missing. A
 * value may start with a single dash. */
static const char *take_following_value(walk *w) {
    if (w->at >= w->argc || strncmp(w->argv[w->at], "--", 2) == 0)
        return NULL;
    return w->argv[w->at++];
}

static word next_word(walk *w) {
    word result = {.kind = WORD_END};
    if (w->at >= w->argc)
        return result;
    const char *typed = w->argv[w->at++];
    if (!w->options_ended && strcmp(typed, "--") == 0) {
        w->options_ended = true;
        return next_word(w);
    }
    result.typed = typed;
    if (w->options_ended || typed[0] != '-' || !typed[1]) {
        result.kind = WORD_ARGUMENT;
        return result;
    }
    if (strcmp(typed, "--help") == 0 || strcmp(typed, "-h") == 0) {
        result.kind = WORD_HELP;
        return result;
    }
    if (strcmp(typed, "--help=man") == 0) {
        result.kind = WORD_MAN;
        return result;
    }

    const char *attached = NULL;
    if (typed[1] == '-') {
        const char *equals = strchr(typed, '=');
        size_t n_name = equals ? (size_t)(equals - typed) - 2 : strlen(typed) - 2;
        result.option = find_long(w->usage, typed + 2, n_name);
        attached = equals ? equals + 1 : NULL;
    } else {
        result.option = find_short(w->usage, typed[1]);
        attached = typed[2] ? typed + 2 : NULL;
    }
    if (!result.option) {
        result.kind = WORD_UNKNOWN;
        return result;
    }

    result.kind = WORD_OPTION;
    if (result.option->kind == CLI_FLAG) {
        if (attached)
            result.kind = WORD_VALUE_UNWANTED;
        return result;
    }
    result.value = attached ? attached : take_following_value(w);
    if (!result.value)
        result.kind = WORD_VALUE_MISSING;
    return result;
}

static walk start_walk(const cli_usage *usage, int argc, char **argv) {
    return (walk){.usage = usage, .argc = argc, .argv = argv};
}

/* Prints help if any word asks for it. This must come before the first assignment, because help
 * shows the defaults in the targets. */
static bool print_help(const cli_usage *usage, int argc, char **argv) {
    walk w = start_walk(usage, argc, argv);
    for (word found = next_word(&w); found.kind != WORD_END; found = next_word(&w)) {
        if (found.kind != WORD_HELP && found.kind != WORD_MAN)
            continue;
        if (found.kind == WORD_HELP)
            cli_usage_print(usage, stdout);
        else
            cli_usage_man(usage, stdout);
        return true;
    }
    return false;
}

static void name_option(const cli_option *option, char *text) {
    if (option->letter) {
        snprintf(text, SHOWN_BYTES, "--%s (-%c)", option->name, option->letter);
    } else {
        snprintf(text, SHOWN_BYTES, "--%s", option->name);
    }
}

static void complain_unknown(const cli_usage *usage, const char *typed) {
    char name[SHOWN_BYTES];
    snprintf(name, sizeof name, "%s", typed);
    name[strcspn(name, "=")] = '\0';
    cli_suggestion suggestion;
    cli_suggest_start(&suggestion, name + strspn(name, "-"));
    for (size_t i = 0; i < usage->n_options; i++)
        cli_suggest_offer(&suggestion, usage->options[i].name);
    cli_suggest_offer(&suggestion, "help");

    const char *closest = typed[1] == '-' ? cli_suggest_result(&suggestion) : NULL;
    if (closest) {
        cli_error("%s: unknown option '%s'; did you mean '--%s'?", usage->command, name, closest);
    } else {
        cli_error("%s: unknown option '%s'", usage->command, name);
    }
}

static void complain_value(const cli_usage *usage, const cli_option *option, const char *value) {
    char name[SHOWN_BYTES], allowed[ALLOWED_BYTES];
    name_option(option, name);
    cli_option_allowed(option, allowed, sizeof allowed);
    if (!value) {
        cli_error("%s: %s needs a value: %s", usage->command, name, allowed);
        return;
    }
    cli_suggestion suggestion;
    cli_suggest_start(&suggestion, value);
    for (size_t i = 0; option->kind == CLI_CHOICE && option->choices[i]; i++) {
        cli_suggest_offer(&suggestion, option->choices[i]);
    }
    const char *closest = cli_suggest_result(&suggestion);
    if (closest) {
        cli_error("%s: %s cannot be '%s'; allowed: %s; did you mean '%s'?", usage->command, name,
                  value, allowed, closest);
    } else {
        cli_error("%s: %s cannot be '%s'; allowed: %s", usage->command, name, value, allowed);
    }
}

/* False, with a message, if the word is wrong. */
static bool take_word(const cli_usage *usage, const word *w, size_t *n_arguments) {
    char name[SHOWN_BYTES];
    switch (w->kind) {
    case WORD_OPTION:
        if (cli_option_assign(w->option, w->value))
            return true;
        complain_value(usage, w->option, w->value);
        return false;
    case WORD_VALUE_MISSING:
        complain_value(usage, w->option, NULL);
        return false;
    case WORD_VALUE_UNWANTED:
        name_option(w->option, name);
        cli_error("%s: %s takes no value, but '%s' gives one", usage->command, name, w->typed);
        return false;
    case WORD_UNKNOWN:
        complain_unknown(usage, w->typed);
        return false;
    case WORD_ARGUMENT:
        if (*n_arguments < usage->n_arguments) {
            *usage->arguments[(*n_arguments)++].target = w->typed;
            return true;
        }
        if (usage->rest) {
            usage->rest->words[usage->rest->n++] = w->typed;
            return true;
        }
        cli_error("%s: unexpected argument '%s'", usage->command, w->typed);
        return false;
    case WORD_HELP:
    case WORD_MAN:
    case WORD_END:
        break;
    }
    return true;
}

bool cli_args_parse(const cli_usage *usage, int argc, char **argv, int *status) {
    if (print_help(usage, argc, argv)) {
        *status = CLI_OK;
        return false;
    }
    walk w = start_walk(usage, argc, argv);
    size_t n_arguments = 0;
    bool good = true;
    for (word found = next_word(&w); good && found.kind != WORD_END; found = next_word(&w))
        good = take_word(usage, &found, &n_arguments);
    if (good && n_arguments < usage->n_arguments && usage->arguments[n_arguments].required) {
        cli_error("%s: the argument %s is missing", usage->command,
                  usage->arguments[n_arguments].name);
        good = false;
    }
    if (good && usage->rest && usage->rest->required && usage->rest->n == 0) {
        cli_error("%s: the argument %s is missing", usage->command, usage->rest->name);
        good = false;
    }
    if (!good)
        fprintf(stderr, "Run 'quire %s --help' for the options.\n", usage->command);
    *status = good ? CLI_OK : CLI_USAGE;
    return good;
}
