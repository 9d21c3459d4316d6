/* model_cache_file.c: reads files that are whole, writes them whole. */
#include "model/model_cache_file.h"

#include "base/file.h"
#include "base/hash.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool path_of(const quire_model *model, const char *name, char path[QUIRE_PATH_BYTES]) {
    const char *identity;
    if (!model->cache_dir || quire_model_identity(model, &identity) != QUIRE_OK)
        return false;
    char digits[33];
    quire__digest_text(quire__hash_of(identity, strlen(identity)), digits);
    const int n = snprintf(path, QUIRE_PATH_BYTES, "%s/%s-%s", model->cache_dir, digits, name);
    return n > 0 && n < QUIRE_PATH_BYTES;
}

static quire_digest digest_of(const char *kind, const quire__cache_part *parts, size_t n_parts) {
    quire_hash hash;
    quire__hash_start(&hash);
    quire__hash_add(&hash, kind, QUIRE__KIND_BYTES);
    for (size_t i = 0; i < n_parts; i++)
        quire__hash_add(&hash, parts[i].data, parts[i].bytes);
    return quire__hash_end(&hash);
}

static bool read_parts(int fd, const char *kind, const quire__cache_part *parts, size_t n_parts) {
    char found[QUIRE__KIND_BYTES];
    quire_digest digest;
    struct stat info;
    uint64_t at = sizeof found;
    if (fstat(fd, &info) != 0 || quire__read_at(fd, 0, found, sizeof found) != QUIRE_OK)
        return false;
    for (size_t i = 0; i < n_parts; at += parts[i].bytes, i++)
        if (quire__read_at(fd, at, parts[i].data, parts[i].bytes) != QUIRE_OK)
            return false;
    if ((uint64_t)info.st_size != at + sizeof digest.byte ||
        quire__read_at(fd, at, digest.byte, sizeof digest.byte) != QUIRE_OK)
        return false;
    const quire_digest right = digest_of(kind, parts, n_parts);
    return memcmp(found, kind, sizeof found) == 0 &&
           memcmp(right.byte, digest.byte, sizeof digest.byte) == 0;
}

bool quire__model_cache_read(const quire_model *model, const char *name,
                             const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                             size_t n_parts) {
    char path[QUIRE_PATH_BYTES];
    return path_of(model, name, path) && quire__model_cache_read_file(path, kind, parts, n_parts);
}

bool quire__model_cache_read_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                  const quire__cache_part *parts, size_t n_parts) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool good = read_parts(fd, kind, parts, n_parts);
    close(fd);
    return good;
}

/* Creates the missing directories of a path; failures show when the file is written. */
static void make_directories(const char *to) {
    char path[QUIRE_PATH_BYTES];
    snprintf(path, sizeof path, "%s", to);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
}

void quire__model_cache_write(const quire_model *model, const char *name,
                              const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                              size_t n_parts) {
    char path[QUIRE_PATH_BYTES];
    if (path_of(model, name, path))
        quire__model_cache_write_file(path, kind, parts, n_parts);
}

void quire__model_cache_write_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                   const quire__cache_part *parts, size_t n_parts) {
    make_directories(path);
    const quire_digest digest = digest_of(kind, parts, n_parts);
    quire_writer *w = malloc(sizeof *w);
    if (w && quire__writer_open(w, path) == QUIRE_OK) {
        quire_status status = quire__writer_add(w, kind, QUIRE__KIND_BYTES);
        for (size_t i = 0; i < n_parts && status == QUIRE_OK; i++)
            status = quire__writer_add(w, parts[i].data, parts[i].bytes);
        if (status == QUIRE_OK && quire__writer_add(w, digest.byte, sizeof digest.byte) == QUIRE_OK)
            quire__writer_commit(w);
        quire__writer_abort(w);
    }
    free(w);
}
