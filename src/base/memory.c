/* The default allocator: aligned memory, in huge pages where it is large. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/memory.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

static void *default_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *memory = NULL;
    const size_t huge = (size_t)2 << 20;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (bytes >= 2 * huge && alignment < huge)
        alignment = huge;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= 2 * huge)
        /* Prefetches are dropped on a TLB miss; huge pages make those rare. */
        madvise(memory, bytes & ~(huge - 1), MADV_HUGEPAGE);
#endif
    return memory;
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

#if defined(__linux__)
/* For the pages that lie whole in this memory. A failure does no harm. */
static void advise(void *memory, size_t bytes, int advice) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)memory + page - 1) & ~(page - 1);
    const uintptr_t to = ((uintptr_t)memory + bytes) & ~(page - 1);
    if (to > from)
        madvise((void *)from, to - from, advice);
}
#endif

void quire__expect_little_use(void *memory, size_t bytes) {
#if defined(__linux__) && defined(MADV_NOHUGEPAGE)
    advise(memory, bytes, MADV_NOHUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

void quire__give_back(const quire_allocator *allocator, void *memory, size_t bytes) {
#if defined(__linux__)
    if (allocator->alloc == default_alloc)
        advise(memory, bytes, MADV_DONTNEED);
#else
    (void)allocator, (void)memory, (void)bytes;
#endif
}
