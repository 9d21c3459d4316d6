/* Background read-ahead of a byte range of a file into a list of buffers. The caller works on the
 * buffers that are filled while a thread reads the next ones. */
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
    uint64_t offset; /* of the first buffer; the others follow it without gaps */
    const quire_read_buffer *buffer;
    size_t n_buffers, n_taken;
    bool threaded; /* false: read in quire__read_ahead_next */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    size_t n_read; /* this and the following fields: under the lock */
    bool stop;
    quire_status status;
    char reason[160];
} quire_read_ahead;

/* The buffers must stay valid until quire__read_ahead_end. If no thread can be started, each buffer
 * is read when it is asked for. */
void quire__read_ahead_start(quire_read_ahead *ahead, int fd, uint64_t offset,
                             const quire_read_buffer *buffer, size_t n_buffers);
/* Waits until the next buffer is filled. E_IO, E_TRUNCATED. */
quire_status quire__read_ahead_next(quire_read_ahead *ahead);
/* May be called before the last buffer is filled. */
void quire__read_ahead_end(quire_read_ahead *ahead);

#endif
