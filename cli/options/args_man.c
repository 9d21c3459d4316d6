/* args_man.c: writes a command's man page from its option table, in roff with the man macros. */
#include "options/args.h"

#include <string.h>

enum { DEFAULT_BYTES = 96 };

/* One line. A line that starts with a dot or a quote would be a request. */
static void put_line(const char *text, size_t n, FILE *file) {
    if (n > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", file);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\')
            fputs("\\e", file);
        else if (text[i] == '-')
            fputs("\\-", file);
        else if (text[i] == '\'')
            fputs("\\(aq", file);
        else
            fputc(text[i], file);
    }
}

void cli_man_text(const char *text, FILE *file) {
    for (bool first = true; *text; first = false) {
        const size_t n = strcspn(text, "\n");
        if (!first)
            fputs(".PP\n", file);
        put_line(text, n, file);
        fputc('\n', file);
        text += n;
        text += *text == '\n';
    }
}

static void put_option(const cli_option *option, void *user) {
    FILE *file = user;
    char initial[DEFAULT_BYTES];
    if (option->heading)
        fprintf(file, ".SS %s\n", option->heading);
    fputs(".TP\n", file);
    if (option->letter)
        fprintf(file, "\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB\\-\\-", file);
    put_line(option->name, strlen(option->name), file);
    fputs("\\fR", file);
    if (option->kind != CLI_FLAG) {
        fputs(" \\fI", file);
        put_line(option->value, strlen(option->value), file);
        fputs("\\fR", file);
    }
    fputc('\n', file);
    put_line(option->help, strlen(option->help), file);
    if (cli_option_shows_default(option, initial, sizeof initial)) {
        fputs(" (default: ", file);
        put_line(initial, strlen(initial), file);
        fputc(')', file);
    }
    fputc('\n', file);
}

void cli_usage_man(const cli_usage *usage, FILE *file) {
    fprintf(file, ".SH SYNOPSIS\n\\fBquire %s\\fR", usage->command);
    cli_synopsis_print(usage, file);
    fputs(".SH DESCRIPTION\n", file);
    cli_man_text(usage->about, file);
    fputs(".SH OPTIONS\n", file);
    cli_usage_visit(usage, put_option, file);
    if (!usage->examples || !usage->examples[0])
        return;
    fputs(".SH EXAMPLES\n.EX\n", file);
    for (size_t i = 0; usage->examples[i]; i++) {
        put_line(usage->examples[i], strlen(usage->examples[i]), file);
        fputc('\n', file);
    }
    fputs(".EE\n", file);
}
