/* clock.h: seconds of a clock that never goes back, for durations. */
#ifndef ENGINE_SESSION_CLOCK_H
#define ENGINE_SESSION_CLOCK_H

#include <time.h>

static inline double quire__seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
