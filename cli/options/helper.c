/* helper.c: bin/quire runs bin/QUIRE_HELPERS/NAME, where CMake sets QUIRE_HELPERS, by default to
 * "../libexec/quire". No absolute path is compiled in, so an installed tree can be moved, and the
 * program never runs a file from a directory that only once held its sources. */
#define _XOPEN_SOURCE 700 /* realpath, S_ISVTX */
#include "options/helper.h"

#include "output/report.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

enum { PATH_BYTES = 4096 };

/* The real path of this program, with links resolved. */
static char *program_path(void) {
    char path[PATH_BYTES];
#ifdef __APPLE__
    uint32_t n_bytes = sizeof path;
    if (_NSGetExecutablePath(path, &n_bytes) != 0)
        return NULL;
#else
    snprintf(path, sizeof path, "/proc/self/exe");
#endif
    return realpath(path, NULL);
}

static bool writable_by_all(const struct stat *info) {
    return (info->st_mode & S_IWOTH) && !(info->st_mode & S_ISVTX);
}

/* Why another user could have written this file, or something in this directory; NULL: none could.
 * The owner of the program is trusted, and so is a group that may write to a directory above the
 * program (`shared`): both could replace the program itself. On some systems administrators are
 * such a group. */
static const char *danger_of(const struct stat *info, const struct stat *program, bool shared) {
    if (info->st_uid != 0 && info->st_uid != geteuid() && info->st_uid != program->st_uid)
        return "belongs to another user";
    if (writable_by_all(info) || (!shared && (info->st_mode & S_IWOTH)))
        return "is writable by every user";
    return !shared && (info->st_mode & S_IWGRP) ? "is writable by a group" : NULL;
}

/* The helper, its directory, and every directory above it. Both paths are real paths. */
static bool is_trusted(const char *helper, const char *program) {
    struct stat by_program, info;
    char path[PATH_BYTES];
    if (stat(program, &by_program) != 0) {
        cli_error("cannot read the permissions of '%s': %s", program, strerror(errno));
        return false;
    }
    snprintf(path, sizeof path, "%s", helper);
    for (size_t n = strlen(path); n > 0; n = (size_t)(strrchr(path, '/') - path)) {
        path[n] = '\0';
        const bool shared = strncmp(program, path, n) == 0 && program[n] == '/';
        const char *danger =
            stat(path, &info) != 0 ? strerror(errno) : danger_of(&info, &by_program, shared);
        if (danger) {
            cli_error(
                "the helper '%s' is not safe to run: '%s' %s; correct its owner or permissions, "
                "or give the path of a GGUF file",
                helper, path, danger);
            return false;
        }
    }
    return true; /* "/" need not be checked: whoever can change it can change every program */
}

char *cli_helper_find(const char *name) {
    char *program = program_path(), *helper = NULL;
    char path[PATH_BYTES];
    if (!program) {
        cli_error("cannot find the path of this program, which is needed to find its helper '%s'",
                  name);
        return NULL;
    }
    const int n_directory = (int)(strrchr(program, '/') - program);
    const int n =
        snprintf(path, sizeof path, "%.*s/%s/%s", n_directory, program, QUIRE_HELPERS, name);
    if (n > 0 && (size_t)n < sizeof path)
        helper = realpath(path, NULL);
    if (!helper) {
        cli_error(
            "the helper '%s' is missing; was the program copied without it? Install the program "
            "again, or give the path of a GGUF file",
            path);
    } else if (!is_trusted(helper, program)) {
        free(helper);
        helper = NULL;
    }
    free(program);
    return helper;
}
