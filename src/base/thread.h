/* Threads of the library: they block all signals, which are for the program's own. */
#ifndef QUIRE_BASE_THREAD_H
#define QUIRE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Returns 0, or what pthread_create does. */
static inline int quire__thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error != 0)
        return error;
    error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
