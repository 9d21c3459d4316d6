/* args_help.c: prints a command's --help from its option table, in 80 columns. */
#include "options/args.h"

#include <string.h>

enum { LEFT_BYTES = 64, DEFAULT_BYTES = 96, WIDTH = 80, HELP_COLUMN_MAX = 28 };

void cli_wrap(const char *text, int column, int indent, FILE *file) {
    bool line_empty = true;
    while (*text) {
        if (*text == '\n') { /* a blank line between paragraphs */
            fputs("\n\n", file);
            column = 0;
            line_empty = true;
            text++;
            continue;
        }
        const int n = (int)strcspn(text, " \n");
        if (!line_empty && column + 1 + n > WIDTH) {
            fputc('\n', file);
            column = 0;
            line_empty = true;
        }
        if (line_empty && column < indent)
            column += fprintf(file, "%*s", indent - column, "");
        else if (!line_empty)
            column += fprintf(file, " ");
        column += fprintf(file, "%.*s", n, text);
        line_empty = false;
        text += n;
        text += *text == ' ';
    }
    fputc('\n', file);
}

bool cli_option_shows_default(const cli_option *option, char *text, size_t n_bytes) {
    return !strstr(option->help, "(default:") && cli_option_default(option, text, n_bytes);
}

/* "  -t, --threads N" */
static int format_left(const cli_option *option, char *text) {
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    const bool has_value = option->kind != CLI_FLAG;
    return snprintf(text, LEFT_BYTES, "  %s--%s%s%s", letter, option->name, has_value ? " " : "",
                    has_value ? option->value : "");
}

typedef struct help_target {
    int help_column;
    FILE *file;
} help_target;

static void print_option(const cli_option *option, void *user) {
    const int help_column = ((const help_target *)user)->help_column;
    FILE *file = ((const help_target *)user)->file;
    if (option->heading)
        fprintf(file, "\n%s:\n", option->heading);
    char left[LEFT_BYTES], initial[DEFAULT_BYTES], help[1024];
    const int n = format_left(option, left);
    const bool shown = cli_option_shows_default(option, initial, sizeof initial);
    snprintf(help, sizeof help, "%s%s%s%s", option->help, shown ? " (default: " : "",
             shown ? initial : "", shown ? ")" : "");
    fputs(left, file);
    const bool fits = n + 2 <= help_column;
    if (!fits)
        fputc('\n', file);
    cli_wrap(help, fits ? n : 0, help_column, file);
}

static int find_help_column(const cli_usage *usage) {
    char left[LEFT_BYTES];
    int widest = 0;
    for (size_t i = 0; i < usage->n_options; i++) {
        const int n = format_left(&usage->options[i], left);
        widest = n > widest ? n : widest;
    }
    return widest + 2 < HELP_COLUMN_MAX ? widest + 2 : HELP_COLUMN_MAX;
}

/* --help ends the options of the command itself. */
void cli_usage_visit(const cli_usage *usage, cli_option_visitor *visit, void *user) {
    static const cli_option help = {
        .name = "help", .letter = 'h', .kind = CLI_FLAG, .help = "print this text and exit"};
    size_t i = 0;
    for (; i < usage->n_options && !usage->options[i].heading; i++)
        visit(&usage->options[i], user);
    visit(&help, user);
    for (; i < usage->n_options; i++)
        visit(&usage->options[i], user);
}

void cli_synopsis_print(const cli_usage *usage, FILE *file) {
    for (size_t i = 0; i < usage->n_arguments; i++)
        fprintf(file, usage->arguments[i].required ? " %s" : " [%s]", usage->arguments[i].name);
    if (usage->rest)
        fprintf(file, usage->rest->required ? " %s..." : " [%s...]", usage->rest->name);
    fputs(" [options]\n", file);
}

void cli_usage_print(const cli_usage *usage, FILE *file) {
    const int help_column = find_help_column(usage);
    fprintf(file, "usage: quire %s", usage->command);
    cli_synopsis_print(usage, file);
    fputc('\n', file);
    cli_wrap(usage->about, 0, 0, file);
    fputs("\noptions:\n", file);
    help_target target = {help_column, file};
    cli_usage_visit(usage, print_option, &target);

    if (usage->examples && usage->examples[0])
        fputs("\nexamples:\n", file);
    for (size_t i = 0; usage->examples && usage->examples[i]; i++)
        fprintf(file, "  %s\n", usage->examples[i]);
}
