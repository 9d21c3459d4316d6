/* monotonic.h: seconds of a clock that never goes back, for durations and time-outs. */
#ifndef SERVER_BASE_MONOTONIC_H
#define SERVER_BASE_MONOTONIC_H

#include <time.h>

static inline double srv_monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
