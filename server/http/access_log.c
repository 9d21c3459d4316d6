/* access_log.c: see access_log.h. A line is one write() to a file opened for appending. */
#include "http/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct srv_log {
    char *path; /* NULL: stderr */
    int fd;
    pthread_mutex_t lock; /* of fd */
};

static int open_file(const char *path) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

srv_log *srv_log_open(const char *path, char *why, size_t n_why) {
    srv_log *log = calloc(1, sizeof *log);
    if (!log || (path && !(log->path = strdup(path)))) {
        snprintf(why, n_why, "out of memory");
        free(log);
        return NULL;
    }
    log->fd = path ? open_file(path) : STDERR_FILENO;
    if (log->fd < 0) {
        snprintf(why, n_why, "the log %s cannot be opened: %s", path, strerror(errno));
        free(log->path);
        free(log);
        return NULL;
    }
    pthread_mutex_init(&log->lock, NULL);
    return log;
}

void srv_log_close(srv_log *log) {
    if (!log)
        return;
    if (log->path)
        close(log->fd);
    pthread_mutex_destroy(&log->lock);
    free(log->path);
    free(log);
}

void srv_log_reopen(srv_log *log) {
    if (!log->path)
        return;
    const int fd = open_file(log->path);
    if (fd < 0) {
        srv_log_line(log, "the log %s cannot be opened again: %s; going on in the old file",
                     log->path, strerror(errno));
        return;
    }
    pthread_mutex_lock(&log->lock);
    close(log->fd);
    log->fd = fd;
    pthread_mutex_unlock(&log->lock);
}

/* ------------------------------------------------------------------ lines */

static void put_time(FILE *out) {
    struct timeval now;
    gettimeofday(&now, NULL);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    fprintf(out, "%s.%03dZ ", text, (int)(now.tv_usec / 1000));
}

static bool is_printable(unsigned char byte) { return byte >= 0x20 && byte < 0x7f; }

static void put_line(FILE *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        fprintf(out, is_printable(*p) ? "%c" : "\\x%02x", *p);
}

static void put_quoted(FILE *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        fprintf(out, !is_printable(*p) ? "\\x%02x" : *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
}

static void write_all(srv_log *log, const char *line, size_t n) {
    pthread_mutex_lock(&log->lock);
    while (n > 0) {
        const ssize_t written = write(log->fd, line, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            break; /* a full disk must not stop the server */
        line += written;
        n -= (size_t)written;
    }
    pthread_mutex_unlock(&log->lock);
}

typedef struct log_line {
    FILE *out; /* NULL: out of memory, and nothing is written */
    char *bytes;
    size_t n;
} log_line;

/* `line` must not move until finish_line. */
static bool begin_line(log_line *line, const char *text) {
    *line = (log_line){0};
    line->out = open_memstream(&line->bytes, &line->n);
    if (!line->out)
        return false;
    put_time(line->out);
    put_line(line->out, text);
    return true;
}

static void finish_line(srv_log *log, log_line *line) {
    fputc('\n', line->out);
    if (fclose(line->out) == 0)
        write_all(log, line->bytes, line->n);
    free(line->bytes);
}

void srv_log_vline(srv_log *log, const char *format, va_list args) {
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = 0; /* messages of libraries end with one */
    log_line line;
    if (begin_line(&line, text))
        finish_line(log, &line);
}

void srv_log_line(srv_log *log, const char *format, ...) {
    va_list args;
    va_start(args, format);
    srv_log_vline(log, format, args);
    va_end(args);
}

void srv_log_quoted(srv_log *log, const char *before, const char *text) {
    log_line line;
    if (!begin_line(&line, before))
        return;
    fputs(" \"", line.out);
    put_quoted(line.out, text);
    fputc('"', line.out);
    finish_line(log, &line);
}

void srv_log_escape(const char *text, char *out, size_t n_out) {
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && n + 5 < n_out; p++)
        n += (size_t)snprintf(out + n, n_out - n,
                              !is_printable(*p)         ? "\\x%02x"
                              : *p == '"' || *p == '\\' ? "\\%c"
                                                        : "%c",
                              *p);
    out[n] = 0;
}
