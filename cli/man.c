/* man.c: writes one man page per command.
 *
 * Only a command has its option table, so it prints the sections in the middle of the page itself
 * (--help=man). It prints to stdout, which therefore is each page in turn. */
#include "man.h"

#include "options/args.h"
#include "output/report.h"
#include "quire.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096, NAME_BYTES = 64 };

static int fail(const char *path) {
    cli_error("cannot write '%s': %s", path, strerror(errno));
    return CLI_FAILURE;
}

/* page: "quire-bench-attn" */
static void put_title(const char *page, const char *summary) {
    fputs(".TH ", stdout);
    for (const char *c = page; *c; c++)
        putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"quire %s\" \"Quire manual\"\n.SH NAME\n", quire_version());
    cli_man_text(page, stdout);
    fputs("\\- ", stdout);
    cli_man_text(summary, stdout);
}

/* The middle of the page of a group of commands. command: "quire bench" */
static void put_group(const char *command, const cli_command *list) {
    printf(".SH SYNOPSIS\n\\fB%s\\fR \\fICOMMAND\\fR [options]\n.SH COMMANDS\n", command);
    for (; list->name; list++) {
        printf(".TP\n\\fB%s\\fR\n", list->name);
        cli_man_text(list->summary, stdout);
    }
    printf(".PP\n\\fB%s\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR explains a command.\n", command);
}

static void put_end(bool is_program) {
    fputs(".SH EXIT STATUS\n"
          ".TP\n0\nSuccess.\n"
          ".TP\n1\nThe command failed. A message on standard error gives the reason.\n"
          ".TP\n2\nThe command line is wrong.\n"
          ".TP\n130\nThe command was interrupted with Ctrl\\-C.\n",
          stdout);
    fputs(is_program ? ".SH ENVIRONMENT\n"
                       ".TP\nQUIRE_CACHE\n"
                       "Directory for downloaded models and for measurements of models "
                       "(default: $XDG_CACHE_HOME/quire, or ~/.cache/quire).\n"
                       ".TP\nQUIRE_CPU\n"
                       "Kernel level to use instead of the best one for this processor, e.g. ref "
                       "or avx2.\n"
                       ".TP\nQUIRE_REDIS_PASSWORD\n"
                       "Password of Redis servers whose URL has none.\n"
                       ".TP\nTMPDIR\n"
                       "Where 'quire serve' puts texts while the cache is full, unless "
                       "\\-\\-swap\\-dir names a directory (default: /tmp).\n"
                     : ".SH SEE ALSO\n\\fBquire\\fR(1)\n",
          stdout);
}

/* The page of a command, and the pages of its subcommands. above: "quire bench", or "" */
static int write_pages(const cli_command *entry, const char *above, const char *directory) {
    char command[NAME_BYTES], page[NAME_BYTES], path[PATH_BYTES], option[] = "--help=man";
    snprintf(command, sizeof command, "%s%s%s", above, *above ? " " : "", entry->name);
    strcpy(page, command);
    for (char *space = page; (space = strchr(space, ' ')) != NULL;)
        *space = '-';
    const int n = snprintf(path, sizeof path, "%s/%s.1", directory, page);
    if (n < 0 || (size_t)n >= sizeof path) {
        cli_error("the path '%s' is too long; give a shorter directory", directory);
        return CLI_FAILURE;
    }
    if (!freopen(path, "w", stdout))
        return fail(path);
    put_title(page, entry->summary);
    int status = CLI_OK;
    if (entry->run) {
        char *words[] = {option, NULL};
        status = entry->run(1, words);
    } else {
        put_group(command, entry->subcommands);
    }
    put_end(!*above);
    if (status == CLI_OK && (fflush(stdout) != 0 || ferror(stdout)))
        return fail(path);
    for (const cli_command *sub = entry->subcommands; status == CLI_OK && sub && sub->name; sub++)
        if (strcmp(sub->name, "help") != 0)
            status = write_pages(sub, command, directory);
    return status;
}

int cli_man_write(const cli_command *program, const char *directory) {
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return fail(directory);
    return write_pages(program, "", directory);
}
