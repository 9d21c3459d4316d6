/* main.c: finds the command and runs it. */
#include "command.h"
#include "man.h"
#include "options/args.h"
#include "options/suggest.h"
#include "output/report.h"
#include "quire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 64 };

static int run_help(int argc, char **argv);

static const cli_command commands[] = {
#if QUIRE_ENGINE
    {"run", "generate text with a model", cli_run_run, NULL},
    {"chat", "chat with a model", cli_chat_run, NULL},
#endif
#if QUIRE_SERVER
    {"serve", "serve a model over HTTP, as OpenAI's clients expect it", cli_serve_run, NULL},
#endif
    {"codecs", "list the codecs and presets with their exact sizes", cli_codecs_run, NULL},
#if QUIRE_ENGINE
    {"probe", "measure a model's K and V, and choose codecs for a budget", cli_probe_run, NULL},
    {"eval", "measure what quantization costs a model in quality", NULL, cli_eval_commands},
#endif
    {"bench", "measure speed", NULL, cli_bench_commands},
    {"inspect", "show what a saved cache, or a synthetic one, contains", cli_inspect_run, NULL},
    {"convert", "convert a saved cache to a prompt cache of mlx-lm, or back", cli_convert_run,
     NULL},
#if QUIRE_STORE
    {"store", "manage a store of cache pages that prompts share", NULL, cli_store_commands},
#endif
    {"version", "print the version, the page format and the kernels in use", cli_version_run, NULL},
    {"help", "explain a command", run_help, NULL},
    {NULL, NULL, NULL, NULL},
};

static const cli_command program = {
    "quire", "run language models on a quantized KV cache, and measure, save and share such caches",
    NULL, commands};

/* path: "" or "bench " */
static void print_commands(const char *path, const cli_command *list, FILE *file) {
    fprintf(file, "usage: quire %s<command> [options]\n\n", path);
    if (!*path)
        fputs("Runs language models on a quantized KV cache, and measures, saves and shares\n"
              "such caches.\n\n",
              file);
    fputs("commands:\n", file);
    for (; list->name; list++) {
        const int n = fprintf(file, "  %-8s", list->name);
        cli_wrap(list->summary, n, n + 2, file);
    }
    fprintf(file, "\nRun 'quire help %s<command>' for the options of a command.\n", path);
}

static const cli_command *find_command(const cli_command *list, const char *name) {
    for (; list->name; list++) {
        if (strcmp(list->name, name) == 0)
            return list;
    }
    return NULL;
}

static int report_unknown(const char *path, const cli_command *list, const char *typed) {
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
    fprintf(stderr, "Run 'quire %s--help' for the commands.\n", path);
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
        return report_unknown(path, list, argv[0]);
    if (command->run)
        return command->run(argc - 1, argv + 1);
    char deeper[PATH_BYTES];
    snprintf(deeper, sizeof deeper, "%s%s ", path, command->name);
    return dispatch(deeper, command->subcommands, argc - 1, argv + 1);
}

/* "help bench attn" is "bench attn --help". "help --man DIR", for the build, writes man pages. */
static int run_help(int argc, char **argv) {
    enum { DEEPEST = 2 };
    if (argc == 2 && strcmp(argv[0], "--man") == 0)
        return cli_man_write(&program, argv[1]);
    char help[] = "--help";
    char *words[DEEPEST + 1];
    int n_words = 0;
    /* No command has more words, and "help help" must not call itself. */
    while (n_words < argc && n_words < DEEPEST && strcmp(argv[n_words], "help") != 0) {
        words[n_words] = argv[n_words];
        n_words++;
    }
    words[n_words++] = help;
    return dispatch("", commands, n_words, words);
}

/* A descriptor that is closed at the start would be given to the next file that is opened, a store,
 * say, and messages would be written over it. Opened the wrong way round, reading and writing still
 * fail as they do when it is closed. */
static void fill_standard_descriptors(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv) {
    fill_standard_descriptors();
    int status;
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("quire %s\n", quire_version());
        status = CLI_OK;
    } else {
        status = dispatch("", commands, argc > 0 ? argc - 1 : 0, argv + 1);
    }
    return cli_close_stdout(status);
}
