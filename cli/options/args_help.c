/* args_help.c: a command's --help, made from its option table. */
#include "options/args.h"

#include <string.h>

enum { LEFT_BYTES = 64, DEFAULT_BYTES = 64 };

/* "  -t, --threads N" */
static int format_left(const cli_option *option, char *text) {
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    bool has_value = option->kind != CLI_FLAG;
    return snprintf(text, LEFT_BYTES, "  %s--%s%s%s", letter, option->name, has_value ? " " : "",
                    has_value ? option->value : "");
}

static void print_line(FILE *file, int width, const char *left, const char *help,
                       const char *initial) {
    fprintf(file, "%-*s  %s", width, left, help);
    if (initial)
        fprintf(file, " (default %s)", initial);
    fputc('\n', file);
}

void cli_usage_print(const cli_usage *usage, FILE *file) {
    static const cli_option help_option = {.name = "help", .letter = 'h', .kind = CLI_FLAG};
    char left[LEFT_BYTES], initial[DEFAULT_BYTES];

    int width = format_left(&help_option, left);
    for (size_t i = 0; i < usage->n_options; i++) {
        int n = format_left(&usage->options[i], left);
        if (n > width)
            width = n;
    }

    fprintf(file, "usage: quire %s", usage->command);
    for (size_t i = 0; i < usage->n_arguments; i++)
        fprintf(file, usage->arguments[i].required ? " %s" : " [%s]", usage->arguments[i].name);
    if (usage->rest)
        fprintf(file, usage->rest->required ? " %s..." : " [%s...]", usage->rest->name);
    fprintf(file, " [options]\n\n%s\n\noptions:\n", usage->about);
    for (size_t i = 0; i < usage->n_options; i++) {
        const cli_option *option = &usage->options[i];
        format_left(option, left);
        bool shown = cli_option_default(option, initial, sizeof initial);
        print_line(file, width, left, option->help, shown ? initial : NULL);
    }
    format_left(&help_option, left);
    print_line(file, width, left, "this text", NULL);

    if (usage->examples && usage->examples[0])
        fputs("\nexamples:\n", file);
    for (size_t i = 0; usage->examples && usage->examples[i]; i++)
        fprintf(file, "  %s\n", usage->examples[i]);
}
