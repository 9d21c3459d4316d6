/* main.c: finds the command and runs it. */
#include "command.h"
#include "quire.h"
#include "output/report.h"
#include "options/suggest.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 64 };

static int run_help(int argc, char **argv);

static const cli_command commands[] = {
    {"bench", "measure speed", NULL, cli_bench_commands},
#if QUIRE_ENGINE
    {"chat", "talk with a model", cli_chat_run, NULL},
#endif
    {"codecs", "list the codecs and presets, with exact sizes", cli_codecs_run, NULL},
    {"convert", "turn a saved cache into a prompt cache of mlx-lm, or back", cli_convert_run, NULL},
#if QUIRE_ENGINE
    {"eval", "measure what a codec costs a model", NULL, cli_eval_commands},
#endif
    {"help", "explain a command", run_help, NULL},
    {"inspect", "report what a saved cache, or a made-up one, holds", cli_inspect_run, NULL},
#if QUIRE_ENGINE
    {"probe", "look at a model's K and V, and find codecs that fit a budget", cli_probe_run, NULL},
    {"run", "continue a text with a model", cli_run_run, NULL},
#endif
#if QUIRE_STORE
    {"store", "look after a directory of pages that texts share", NULL, cli_store_commands},
#endif
    {"version", "print the version, page format and kernels", cli_version_run, NULL},
    {NULL, NULL, NULL, NULL},
};

/* path: "" or "bench " */
static void print_commands(const char *path, const cli_command *list, FILE *file) {
    fprintf(file, "usage: quire %s<command> [options]\n\ncommands:\n", path);
    for (; list->name; list++)
        fprintf(file, "  %-8s  %s\n", list->name, list->summary);
    fprintf(file, "\n'quire help %s<command>' or 'quire %s<command> --help' explains one.\n", path,
            path);
}

static const cli_command *find_command(const cli_command *list, const char *name) {
    for (; list->name; list++) {
        if (strcmp(list->name, name) == 0)
            return list;
    }
    return NULL;
}

static int complain_unknown(const char *path, const cli_command *list, const char *typed) {
    cli_suggestion suggestion;
    cli_suggest_start(&suggestion, typed);
    for (; list->name; list++)
        cli_suggest_offer(&suggestion, list->name);
    if (!*path) {
        cli_suggest_offer(&suggestion, "--help");
        cli_suggest_offer(&suggestion, "--version");
    }
    const char *closest = cli_suggest_result(&suggestion);
    const char *kind = typed[0] == '-' ? "option" : "command";
    if (closest) {
        cli_error("unknown %s '%s%s'; did you mean '%s%s'?", kind, path, typed, path, closest);
    } else {
        cli_error("unknown %s '%s%s'", kind, path, typed);
    }
    fprintf(stderr, "'quire %s--help' lists the commands.\n", path);
    return CLI_USAGE;
}

static int dispatch(const char *path, const cli_command *list, int argc, char **argv) {
    if (argc == 0) {
        print_commands(path, list, stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        print_commands(path, list, stdout);
        return CLI_OK;
    }
    const cli_command *command = find_command(list, argv[0]);
    if (!command)
        return complain_unknown(path, list, argv[0]);
    if (command->run)
        return command->run(argc - 1, argv + 1);
    char deeper[PATH_BYTES];
    snprintf(deeper, sizeof deeper, "%s%s ", path, command->name);
    return dispatch(deeper, command->subcommands, argc - 1, argv + 1);
}

/* "help bench attn" is "bench attn --help". */
static int run_help(int argc, char **argv) {
    enum { DEEPEST = 2 };
    char help[] = "--help";
    char *words[DEEPEST + 1];
    int n_words = 0;
    /* Whatever else follows cannot be a command, and "help help" should not go round. */
    while (n_words < argc && n_words < DEEPEST && strcmp(argv[n_words], "help") != 0) {
        words[n_words] = argv[n_words];
        n_words++;
    }
    words[n_words++] = help;
    return dispatch("", commands, n_words, words);
}

int main(int argc, char **argv) {
    int status;
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("quire %s\n", quire_version());
        status = CLI_OK;
    } else {
        status = dispatch("", commands, argc > 0 ? argc - 1 : 0, argv + 1);
    }
    return cli_close_stdout(status);
}
