/* A clock for time-outs. */
#ifndef QUIRE_STORE_MILLIS_H
#define QUIRE_STORE_MILLIS_H

#include <stdint.h>
#include <time.h>

static inline int64_t quire__millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
