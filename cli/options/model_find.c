/* model_find.c: runs the helper fetch-model (tools/fetch-model) for the models it knows. */
#include "options/model_find.h"

#include "command.h"
#include "options/helper.h"
#include "output/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static bool is_name(const char *text) {
    return strcmp(text, "smollm2") == 0 || strcmp(text, "gemma3") == 0;
}

/* The first line that the program prints on stdout, without the newline; NULL if it failed. It
 * writes to our stderr. */
static char *output_of(const char *program, const char *argument) {
    int ends[2];
    if (pipe(ends) != 0)
        return NULL;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, argument, (char *)NULL);
        fprintf(stderr, "quire: cannot run '%s': %s\n", program, strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    char *line = calloc(1, PATH_BYTES);
    FILE *out = fdopen(ends[0], "r");
    bool good = child > 0 && line && out && fgets(line, PATH_BYTES, out);
    if (out)
        fclose(out);
    else
        close(ends[0]);
    int how = -1;
    if (child > 0)
        waitpid(child, &how, 0);
    if (!good || !WIFEXITED(how) || WEXITSTATUS(how) != 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

int cli_model_find(const char *name, char **path) {
    if (!is_name(name) || access(name, F_OK) == 0) {
        *path = malloc(strlen(name) + 1);
        if (!*path) {
            cli_error("out of memory");
            return CLI_FAILURE;
        }
        strcpy(*path, name);
        return CLI_OK;
    }
    char *program = cli_helper_find("fetch-model");
    if (!program)
        return CLI_FAILURE;
    *path = output_of(program, name);
    free(program);
    if (*path)
        return CLI_OK;
    cli_error("cannot download the model '%s'; check the network, or give the path of a GGUF file",
              name);
    return CLI_FAILURE;
}
