/* api_keys.c: see api_keys.h. */
#include "http/api_keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

typedef struct key {
    unsigned char bytes[SRV_KEY_BYTES]; /* the rest is 0 */
} key;

struct srv_api_keys {
    char *path;
    key *all; /* (n) */
    int n;
    bool is_exposed;
    pthread_rwlock_t lock; /* of the fields above, after the first reading */
};

/* ------------------------------------------------------------------ the file */

static bool add(key **all, int *n, const char *text, size_t n_text) {
    if ((*n & (*n - 1)) == 0) { /* 0, 1, 2, 4 .. */
        key *more = realloc(*all, sizeof **all * (size_t)(*n ? 2 * *n : 1));
        if (!more)
            return false;
        *all = more;
    }
    key *next = &(*all)[(*n)++];
    *next = (key){{0}};
    memcpy(next->bytes, text, n_text);
    return true;
}

/* Takes the spaces off both ends. */
static const char *trimmed(const char *line, size_t *n) {
    while (*line == ' ' || *line == '\t')
        line++;
    *n = strlen(line);
    while (*n > 0 && strchr(" \t\r\n", line[*n - 1]))
        (*n)--;
    return line;
}

static bool read_keys(FILE *file, const char *path, key **all, int *n, char *why, size_t n_why) {
    char line[2 * SRV_KEY_BYTES];
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        size_t length;
        const char *text = trimmed(line, &length);
        if (*text == '#') { /* a comment of any length */
            while (!strchr(line, '\n') && fgets(line, sizeof line, file))
                ;
            continue;
        }
        if (length == 0)
            continue;
        if (length >= SRV_KEY_BYTES || (!strchr(line, '\n') && !feof(file))) {
            snprintf(why, n_why, "line %d of %s is too long: a key has at most %d bytes", number,
                     path, SRV_KEY_BYTES - 1);
            return false;
        }
        if (!add(all, n, text, length)) {
            snprintf(why, n_why, "out of memory");
            return false;
        }
    }
    if (ferror(file)) {
        snprintf(why, n_why, "the API keys in %s cannot be read: %s", path, strerror(errno));
        return false;
    }
    if (*n == 0)
        snprintf(why, n_why, "%s has no API key; write one per line", path);
    return *n > 0;
}

/* Overwrites keys before their memory goes back. */
static void forget(key *all, int n) {
    volatile unsigned char *bytes = (unsigned char *)all;
    for (size_t i = 0; i < (size_t)n * sizeof *all; i++)
        bytes[i] = 0;
    free(all);
}

bool srv_api_keys_reload(srv_api_keys *keys, char *why, size_t n_why) {
    FILE *file = fopen(keys->path, "r");
    struct stat about;
    if (!file || fstat(fileno(file), &about) != 0) {
        snprintf(why, n_why, "the API keys in %s cannot be read: %s", keys->path, strerror(errno));
        if (file)
            fclose(file);
        return false;
    }
    key *all = NULL;
    int n = 0;
    const bool ok = read_keys(file, keys->path, &all, &n, why, n_why);
    fclose(file);
    if (!ok) {
        forget(all, n);
        return false;
    }
    pthread_rwlock_wrlock(&keys->lock);
    key *old = keys->all;
    const int n_old = keys->n;
    keys->all = all;
    keys->n = n;
    keys->is_exposed = (about.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0;
    pthread_rwlock_unlock(&keys->lock);
    forget(old, n_old);
    return true;
}

srv_api_keys *srv_api_keys_open(const char *path, char *why, size_t n_why) {
    srv_api_keys *keys = calloc(1, sizeof *keys);
    if (!keys || !(keys->path = strdup(path))) {
        snprintf(why, n_why, "out of memory");
        free(keys);
        return NULL;
    }
    pthread_rwlock_init(&keys->lock, NULL);
    if (!srv_api_keys_reload(keys, why, n_why)) {
        srv_api_keys_close(keys);
        return NULL;
    }
    return keys;
}

void srv_api_keys_close(srv_api_keys *keys) {
    if (!keys)
        return;
    forget(keys->all, keys->n);
    pthread_rwlock_destroy(&keys->lock);
    free(keys->path);
    free(keys);
}

int srv_api_keys_count(srv_api_keys *keys) {
    pthread_rwlock_rdlock(&keys->lock);
    const int n = keys->n;
    pthread_rwlock_unlock(&keys->lock);
    return n;
}

const char *srv_api_keys_warning(srv_api_keys *keys) {
    pthread_rwlock_rdlock(&keys->lock);
    const bool is_exposed = keys->is_exposed;
    pthread_rwlock_unlock(&keys->lock);
    return is_exposed ? "warning: other users may read or change the file of API keys (chmod 600)"
                      : NULL;
}

/* ------------------------------------------------------------------ comparing */

/* 0 if both are equal. Looks at every byte in any case. */
static unsigned differ(const key *a, const key *b) {
    const volatile unsigned char *x = a->bytes, *y = b->bytes;
    unsigned bits = 0;
    for (int i = 0; i < SRV_KEY_BYTES; i++)
        bits |= x[i] ^ y[i];
    return bits;
}

bool srv_api_keys_allow(srv_api_keys *keys, const char *authorization) {
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    size_t n;
    /* libmicrohttpd leaves blanks at the end, which are no part of a header's value (RFC 9110). */
    const char *text = trimmed(authorization + 7, &n);
    if (n == 0 || n >= SRV_KEY_BYTES)
        return false;
    key sent = {{0}};
    memcpy(sent.bytes, text, n);

    volatile bool is_known = false;
    pthread_rwlock_rdlock(&keys->lock);
    for (int i = 0; i < keys->n; i++)
        is_known |= differ(&sent, &keys->all[i]) == 0;
    pthread_rwlock_unlock(&keys->lock);
    return is_known;
}
