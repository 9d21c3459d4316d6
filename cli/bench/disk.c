/* disk.c: times sequential writing and reading of a file. */
#include "bench/disk.h"

#include "output/progress.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20 };

/* Fills the buffer with bytes that do not compress. */
static void scramble(uint64_t *words, size_t n) {
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

static double move(int fd, bool writes, size_t n_bytes) {
    uint8_t *chunk = malloc(CHUNK_BYTES);
    if (fd < 0 || !chunk) {
        free(chunk);
        return -1;
    }
    if (writes)
        scramble((uint64_t *)(void *)chunk, CHUNK_BYTES / sizeof(uint64_t));
    bool good = true;
    const double start = cli_seconds();
    for (size_t done = 0; done < n_bytes && good;) {
        const size_t n = n_bytes - done < CHUNK_BYTES ? n_bytes - done : CHUNK_BYTES;
        const ssize_t moved = writes ? write(fd, chunk, n) : read(fd, chunk, n);
        good = moved > 0;
        done += good ? (size_t)moved : 0;
    }
    good = good && (!writes || fsync(fd) == 0);
    const double seconds = cli_seconds() - start;
    free(chunk);
    return good ? seconds : -1;
}

double cli_disk_write(const char *path, size_t n_bytes) {
    unlink(path); /* write a new file, as saving does */
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    const double seconds = move(fd, true, n_bytes);
    if (fd >= 0)
        close(fd);
    return seconds;
}

double cli_disk_read(const char *path, size_t n_bytes) {
    const int fd = open(path, O_RDONLY);
#ifdef POSIX_FADV_SEQUENTIAL
    if (fd >= 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
    const double seconds = move(fd, false, n_bytes);
    if (fd >= 0)
        close(fd);
    return seconds;
}

bool cli_disk_forget(const char *path) {
#ifdef POSIX_FADV_DONTNEED
    const int fd = open(path, O_RDONLY);
    const bool good =
        fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
    if (fd >= 0)
        close(fd);
    return good;
#else
    (void)path;
    return false;
#endif
}
