/* file_digest.c: what a file is known by, and when that may be trusted. */
#include "model/file_digest.h"

#include "base/file.h"
#include "model/model_cache_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const char KIND[QUIRE__KIND_BYTES] = "quire digest 1\n";

/* Fields of one type, so that there is no padding between them: keys are compared as bytes. */
typedef struct file_key {
    int64_t device, inode, size, written, written_ns, changed, changed_ns;
} file_key;

static bool key_of(int fd, file_key *key) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return false;
#ifdef __APPLE__
    const struct timespec written = info.st_mtimespec, changed = info.st_ctimespec;
#else
    const struct timespec written = info.st_mtim, changed = info.st_ctim;
#endif
    *key = (file_key){(int64_t)info.st_dev,    (int64_t)info.st_ino,     (int64_t)info.st_size,
                      (int64_t)written.tv_sec, (int64_t)written.tv_nsec, (int64_t)changed.tv_sec,
                      (int64_t)changed.tv_nsec};
    return true;
}

static bool same_key(const file_key *a, const file_key *b) { return memcmp(a, b, sizeof *a) == 0; }

/* Times of files advance in steps, of two seconds at most (FAT). */
static bool is_settled(const file_key *key, int64_t now) {
    return key->written < now - 2 && key->changed < now - 2;
}

static bool path_of(const char *directory, const file_key *key, char path[QUIRE_PATH_BYTES]) {
    const int n = directory
                      ? snprintf(path, QUIRE_PATH_BYTES, "%s/file-%llx-%llx", directory,
                                 (unsigned long long)key->device, (unsigned long long)key->inode)
                      : 0;
    return n > 0 && n < QUIRE_PATH_BYTES;
}

quire_status quire__file_digest(const char *directory, int fd, int64_t now,
                                quire__digest_job *compute, void *user, quire_digest *digest) {
    char path[QUIRE_PATH_BYTES];
    file_key key, kept, after;
    if (!key_of(fd, &key) || !path_of(directory, &key, path))
        return compute(user, digest);
    const quire__cache_part found[] = {{&kept, sizeof kept}, {digest, sizeof *digest}};
    if (quire__model_cache_read_file(path, KIND, found, 2) && same_key(&kept, &key))
        return QUIRE_OK;
    QUIRE_TRY(compute(user, digest));
    if (is_settled(&key, now) && key_of(fd, &after) && same_key(&after, &key)) {
        const quire__cache_part parts[] = {{&key, sizeof key}, {digest, sizeof *digest}};
        quire__model_cache_write_file(path, KIND, parts, 2);
    }
    return QUIRE_OK;
}
