#include "base/memory.h"

#include <stdlib.h>

static void *default_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *memory = NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

const quire_allocator quire__default_allocator = {default_alloc, default_free, NULL};

void *quire__alloc(const quire_allocator *allocator, size_t bytes, size_t alignment) {
    return allocator->alloc(allocator->user, bytes, alignment);
}

void quire__free(const quire_allocator *allocator, void *memory) {
    if (memory)
        allocator->free(allocator->user, memory);
}
