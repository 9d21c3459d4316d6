/* Memory through a quire_allocator, so that it can be counted, replaced and made to fail. */
#ifndef QUIRE_BASE_MEMORY_H
#define QUIRE_BASE_MEMORY_H

#include "quire.h"

extern const quire_allocator quire__default_allocator; /* posix_memalign and free */

/* NULL on failure. */
void *quire__alloc(const quire_allocator *allocator, size_t bytes, size_t alignment);
void quire__free(const quire_allocator *allocator, void *memory);
/* The same for a range of which little will be used, here and there. A large one comes from the
 * default allocator as addresses alone, which the system charges as they are written to: it may be
 * larger than all memory. Free it with the same number of bytes. */
void *quire__reserve(const quire_allocator *allocator, size_t bytes);
void quire__release(const quire_allocator *allocator, void *memory, size_t bytes);
/* Of this memory little will be used, here and there: small pages, so that little becomes resident.
 */
void quire__expect_little_use(void *memory, size_t bytes);
/* The system may use this memory for something else until it is written to again: its content is
 * lost. Without effect on memory of another allocator than the default one, whose physical pages
 * a device may know. */
void quire__give_back(const quire_allocator *allocator, void *memory, size_t bytes);

#endif
