/* output.c: checks output files before long work. */
#include "output/output.h"

#include "command.h"
#include "output/report.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static int refuse(const char *path, const char *why) {
    cli_error("cannot write '%s': %s", path, why);
    return CLI_FAILURE;
}

/* Why `path` cannot become a regular file; NULL: it can. */
static const char *obstacle_at(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? NULL : strerror(errno);
    return S_ISREG(info.st_mode)   ? NULL
           : S_ISDIR(info.st_mode) ? "it is a directory"
                                   : "it is not a regular file";
}

static bool directory_fault(const char *directory, char *why, size_t n_bytes) {
    struct stat info;
    if (stat(directory, &info) != 0 && errno == ENOENT)
        snprintf(why, n_bytes, "there is no directory '%s'", directory);
    else if (stat(directory, &info) != 0)
        snprintf(why, n_bytes, "'%s': %s", directory, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        snprintf(why, n_bytes, "'%s' is not a directory", directory);
    else if (access(directory, W_OK | X_OK) != 0)
        snprintf(why, n_bytes, "no file can be created in '%s': %s", directory, strerror(errno));
    else
        return false;
    return true;
}

int cli_output_check(const char *path) {
    char part[PATH_BYTES], directory[PATH_BYTES], why[PATH_BYTES + 64];
    if (!path)
        return CLI_OK;
    const int n = snprintf(part, sizeof part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof part)
        return refuse(path, "the path is too long");
    strcpy(directory, path);
    char *slash = strrchr(directory, '/');
    if (slash && !slash[1])
        return refuse(path, "it ends in '/'; give the name of a file");
    if (slash)
        slash[slash == directory] = '\0';
    else
        strcpy(directory, ".");

    if (directory_fault(directory, why, sizeof why))
        return refuse(path, why);
    const char *obstacle = obstacle_at(path);
    if (obstacle)
        return refuse(path, obstacle);
    obstacle = obstacle_at(part);
    return obstacle ? refuse(part, obstacle) : CLI_OK;
}
