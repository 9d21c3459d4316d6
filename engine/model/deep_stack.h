/* deep_stack.h: a call that needs more stack than the caller's thread may have. */
#ifndef ENGINE_MODEL_DEEP_STACK_H
#define ENGINE_MODEL_DEEP_STACK_H

#include <stdbool.h>
#include <stddef.h>

/* Runs call(user) to its end in a thread with that much stack. False: there is no memory for one,
 * and nothing ran. */
bool quire__call_deep(size_t stack_bytes, void (*call)(void *user), void *user);

#endif
