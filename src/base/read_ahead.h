/* A run of bytes of a file, read by a thread of its own into the places that wait for them,
 * while the caller works on those that are there. */
#ifndef QUIRE_BASE_READ_AHEAD_H
#define QUIRE_BASE_READ_AHEAD_H

#include <pthread.h>

#include "base/status.h"

typedef struct quire_read_buffer {
    void *to;
    size_t n_bytes;
} quire_read_buffer;

typedef struct quire_read_ahead {
    int fd;
    uint64_t offset; /* of the first place; the others follow it without gaps */
    const quire_read_buffer *place;
    size_t n_places, n_taken;
    bool threaded; /* else: read when asked for */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    size_t n_read; /* from here on under the lock */
    bool stop;
    quire_status status;
    char reason[160];
} quire_read_ahead;

/* The places must stay where they are until the end. A machine that has no thread to give only
 * makes it slower. */
void quire__read_ahead_start(quire_read_ahead *ahead, int fd, uint64_t offset,
                             const quire_read_buffer *place, size_t n_places);
quire_status quire__read_ahead_next(
    quire_read_ahead *ahead); /* returns when the next place is filled; E_IO, E_TRUNCATED */
void quire__read_ahead_end(quire_read_ahead *ahead); /* also before the last is */

#endif
