/* Atomic replacement of files, and complete reads. */
#define _GNU_SOURCE /* flock, sync_file_range */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t MOST_AT_ONCE = (size_t)1 << 30; /* limit of one call on some systems */
static const uint64_t AHEAD_BYTES = (uint64_t)8 << 20;

static quire_status io_error(const char *what, const char *path) {
    return quire__fail(QUIRE_E_IO, "cannot %s '%.200s': %s", what, path, strerror(errno));
}

/* ------------------------------------------------------------------ writing */

/* The previous holder of the lock may have renamed or removed the file: then the lock is on another
 * file than the one with this name. */
static bool still_named(int fd, const char *path) {
    struct stat by_fd, by_name;
    return fstat(fd, &by_fd) == 0 && stat(path, &by_name) == 0 && by_fd.st_ino == by_name.st_ino &&
           by_fd.st_dev == by_name.st_dev;
}

/* Some file systems have no locks (Lustre by default, NFS without its lock service). What this
 * writer has `created` is its own there, too; what it has found may be in use. */
static quire_status lock_part(const quire_writer *w, bool created) {
    if (flock(w->fd, LOCK_EX | LOCK_NB) == 0)
        return QUIRE_OK;
    if (errno == EWOULDBLOCK)
        return quire__fail(
            QUIRE_E_BUSY, "'%.200s' is being written by another process; try again later", w->path);
    if (errno != ENOSYS && errno != ENOLCK && errno != EOPNOTSUPP)
        return io_error("lock", w->part);
    return created ? QUIRE_OK
                   : quire__fail(QUIRE_E_BUSY,
                                 "'%.200s' exists, and this file system has no locks to show "
                                 "whether it is in use: remove it if no process writes it",
                                 w->part);
}

/* The file that another writer left, which the lock shows not to be in use. It is not written to:
 * it may belong to someone else, be open to others, or have a second name. */
static quire_status remove_left_over(const quire_writer *w) {
    struct stat info;
    if (fstat(w->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return quire__fail(QUIRE_E_IO, "'%.200s' is not a regular file", w->part);
    return unlink(w->part) == 0 || errno == ENOENT ? QUIRE_OK : io_error("remove", w->part);
}

/* Only a file that this call has created, and that still has its name once it is locked, is this
 * writer's. */
static quire_status open_part(quire_writer *w) {
    enum { FLAGS = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK }; /* a FIFO would wait */
    for (;;) {
        w->fd = open(w->part, FLAGS | O_CREAT | O_EXCL, 0600);
        const bool created = w->fd >= 0;
        if (!created && errno == EEXIST) {
            w->fd = open(w->part, FLAGS);
            if (w->fd < 0 && errno == ENOENT)
                continue; /* it has just been renamed or removed */
        }
        if (w->fd < 0)
            return io_error("create", w->part);
        quire_status status = lock_part(w, created);
        const bool named = status == QUIRE_OK && still_named(w->fd, w->part);
        if (created && named)
            return QUIRE_OK;
        if (named)
            status = remove_left_over(w);
        else if (created && status == QUIRE_E_IO)
            unlink(w->part); /* nobody else writes it either, and it would lie in the way */
        close(w->fd);
        QUIRE_TRY(status);
    }
}

quire_status quire__writer_open(quire_writer *w, const char *path) {
    w->fd = -1;
    w->bytes = w->started = 0;
    w->n_buffered = 0;
    const int n = snprintf(w->path, sizeof w->path, "%s", path);
    const int m = snprintf(w->part, sizeof w->part, "%s.part", path);
    if (n < 1 || m >= (int)sizeof w->part)
        return quire__fail(QUIRE_E_INVALID, "path is empty or longer than %d bytes",
                           QUIRE_PATH_BYTES - 6);
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return quire__fail(QUIRE_E_IO, "'%.200s' is not a regular file", path);
    const quire_status status = open_part(w);
    if (status != QUIRE_OK)
        w->fd = -1;
    return status;
}

/* Starts write-back early, so that fsync need not write everything at once. */
static void start_writing(quire_writer *w) {
#ifdef SYNC_FILE_RANGE_WRITE
    if (w->bytes - w->started < AHEAD_BYTES)
        return;
    sync_file_range(w->fd, (off_t)w->started, (off_t)(w->bytes - w->started),
                    SYNC_FILE_RANGE_WRITE);
    w->started = w->bytes;
#else
    (void)w;
    (void)AHEAD_BYTES;
#endif
}

static quire_status write_all(quire_writer *w, const uint8_t *bytes, size_t n_bytes) {
    while (n_bytes > 0) {
        const ssize_t n = write(w->fd, bytes, n_bytes < MOST_AT_ONCE ? n_bytes : MOST_AT_ONCE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return io_error("write", w->part);
        bytes += n;
        n_bytes -= (size_t)n;
    }
    start_writing(w);
    return QUIRE_OK;
}

static quire_status flush(quire_writer *w) {
    const size_t n = w->n_buffered;
    w->n_buffered = 0;
    return write_all(w, w->buffer, n);
}

quire_status quire__writer_add(quire_writer *w, const void *bytes, size_t n_bytes) {
    w->bytes += n_bytes;
    if (n_bytes > sizeof w->buffer - w->n_buffered) {
        QUIRE_TRY(flush(w));
        if (n_bytes >= sizeof w->buffer)
            return write_all(w, bytes, n_bytes);
    }
    if (n_bytes > 0)
        memcpy(w->buffer + w->n_buffered, bytes, n_bytes);
    w->n_buffered += n_bytes;
    return QUIRE_OK;
}

quire_status quire__writer_patch(quire_writer *w, uint64_t offset, const void *bytes,
                                 size_t n_bytes) {
    QUIRE_TRY(flush(w));
    for (const uint8_t *from = bytes; n_bytes > 0;) {
        const ssize_t n = pwrite(w->fd, from, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return io_error("write", w->part);
        from += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return QUIRE_OK;
}

static int sync_fd(int fd) {
#ifdef F_FULLFSYNC /* macOS: fsync does not flush the drive's cache */
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
#endif
    return fsync(fd);
}

/* A rename is durable once its directory is synced. Some file systems cannot sync a directory;
 * nothing more can be done there. */
static quire_status sync_directory(const char *path) {
    char name[QUIRE_PATH_BYTES];
    snprintf(name, sizeof name, "%s", path);
    char *slash = strrchr(name, '/');
    if (!slash)
        strcpy(name, ".");
    else
        slash[slash == name] = 0;
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) /* a directory that cannot be read cannot be synced either */
        return errno == EACCES ? QUIRE_OK : io_error("open", name);
    const quire_status status =
        sync_fd(fd) == 0 || errno == EINVAL ? QUIRE_OK : io_error("sync", name);
    close(fd);
    return status;
}

quire_status quire__writer_commit(quire_writer *w) {
    quire_status status = flush(w);
    if (status == QUIRE_OK && sync_fd(w->fd) != 0)
        status = io_error("sync", w->part);
    if (status == QUIRE_OK && rename(w->part, w->path) != 0)
        status = io_error("rename to", w->path);
    if (status != QUIRE_OK) {
        quire__writer_abort(w);
        return status;
    }
    close(w->fd);
    w->fd = -1;
    return sync_directory(w->path);
}

void quire__writer_abort(quire_writer *w) {
    if (w->fd < 0)
        return;
    unlink(w->part); /* while the lock is held, so it cannot be another writer's file */
    close(w->fd);
    w->fd = -1;
}

/* ------------------------------------------------------------------ reading */

quire_status quire__read_at(int fd, uint64_t offset, void *bytes, size_t n_bytes) {
    for (uint8_t *to = bytes; n_bytes > 0;) {
        const ssize_t n =
            pread(fd, to, n_bytes < MOST_AT_ONCE ? n_bytes : MOST_AT_ONCE, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return quire__fail(QUIRE_E_IO, "cannot read: %s", strerror(errno));
        if (n == 0)
            return quire__fail(QUIRE_E_TRUNCATED, "the file ends at byte %llu",
                               (unsigned long long)offset);
        to += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return QUIRE_OK;
}
