/* deep_stack.c: a thread for one call. */
#include "model/deep_stack.h"

#include <pthread.h>

enum { PAGE = 1 << 16 };

typedef struct deep_call {
    void (*call)(void *user);
    void *user;
} deep_call;

static void *run(void *argument) {
    const deep_call *deep = argument;
    deep->call(deep->user);
    return NULL;
}

bool quire__call_deep(size_t stack_bytes, void (*call)(void *user), void *user) {
    deep_call deep = {.call = call, .user = user};
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    const size_t rounded = (stack_bytes + 2 * PAGE - 1) / PAGE * PAGE;
    const bool good = pthread_attr_setstacksize(&attributes, rounded) == 0 &&
                      pthread_create(&thread, &attributes, run, &deep) == 0 &&
                      pthread_join(thread, NULL) == 0;
    pthread_attr_destroy(&attributes);
    return good;
}
