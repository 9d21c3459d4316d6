/* The thread that reads ahead, and its hand-over to the caller. */
#include "base/read_ahead.h"

#include <stdio.h>

#include "base/file.h"
#include "base/thread.h"

static void *read_ahead(void *argument) {
    quire_read_ahead *a = argument;
    quire_status status = QUIRE_OK;
    bool stop = false;
    for (size_t i = 0; i < a->n_buffers && status == QUIRE_OK && !stop; i++) {
        status = quire__read_at(a->fd, a->offset, a->buffer[i].to, a->buffer[i].n_bytes);
        a->offset += a->buffer[i].n_bytes;
        pthread_mutex_lock(&a->lock);
        a->n_read += status == QUIRE_OK;
        if (status != QUIRE_OK) { /* messages are per thread: the caller repeats it in its own */
            a->status = status;
            snprintf(a->reason, sizeof a->reason, "%s", quire_last_error());
        }
        stop = a->stop;
        pthread_cond_signal(&a->arrived);
        pthread_mutex_unlock(&a->lock);
    }
    return NULL;
}

void quire__read_ahead_start(quire_read_ahead *a, int fd, uint64_t offset,
                             const quire_read_buffer *buffer, size_t n_buffers) {
    *a = (quire_read_ahead){
        .fd = fd, .offset = offset, .buffer = buffer, .n_buffers = n_buffers, .status = QUIRE_OK};
    if (n_buffers < 2 || pthread_mutex_init(&a->lock, NULL) != 0)
        return;
    if (pthread_cond_init(&a->arrived, NULL) == 0) {
        a->threaded = quire__thread_start(&a->thread, read_ahead, a) == 0;
        if (a->threaded)
            return;
        pthread_cond_destroy(&a->arrived);
    }
    pthread_mutex_destroy(&a->lock);
}

quire_status quire__read_ahead_next(quire_read_ahead *a) {
    const size_t i = a->n_taken++;
    if (!a->threaded) {
        const uint64_t at = a->offset;
        a->offset += a->buffer[i].n_bytes;
        return quire__read_at(a->fd, at, a->buffer[i].to, a->buffer[i].n_bytes);
    }
    pthread_mutex_lock(&a->lock);
    while (a->n_read <= i && a->status == QUIRE_OK)
        pthread_cond_wait(&a->arrived, &a->lock);
    const bool there = a->n_read > i;
    pthread_mutex_unlock(&a->lock);
    return there ? QUIRE_OK : quire__fail(a->status, "%s", a->reason);
}

void quire__read_ahead_end(quire_read_ahead *a) {
    if (!a->threaded)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->arrived);
    pthread_mutex_destroy(&a->lock);
    a->threaded = false;
}
