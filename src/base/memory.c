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

/* Smaller ranges stay with malloc, where sanitizers see what is written beyond their end. */
enum { RESERVED_BYTES = 64 << 20 };

#if defined(__linux__)
static bool is_reserved(const quire_allocator *allocator, size_t bytes) {
    return allocator->alloc == default_alloc && bytes >= RESERVED_BYTES;
}
static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}
static void unmap(void *memory, size_t bytes) { munmap(memory, bytes); }
#else
static bool is_reserved(const quire_allocator *allocator, size_t bytes) {
    return (void)allocator, (void)bytes, false;
}
static void *map(size_t bytes) { return (void)bytes, NULL; }
static void unmap(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

void *quire__reserve(const quire_allocator *allocator, size_t bytes) {
    void *memory =
        is_reserved(allocator, bytes) ? map(bytes) : quire__alloc(allocator, bytes, 4096);
    if (memory)
        quire__expect_little_use(memory, bytes);
    return memory;
}

void quire__release(const quire_allocator *allocator, void *memory, size_t bytes) {
    if (memory && is_reserved(allocator, bytes))
        unmap(memory, bytes);
    else
        quire__free(allocator, memory);
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
