/* Allocator of byte ranges in one fixed arena. Its bookkeeping lies outside the arena, so the arena
 * may be any kind of memory.
 *
 * Packed leaves are allocated from the bottom and raw leaves from the top. The two kinds differ
 * much in size and lifetime; this way each leaves holes that its own kind refills exactly. Each
 * takes the first hole that fits, searching from its end.
 */
#ifndef QUIRE_PAGE_ARENA_H
#define QUIRE_PAGE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct quire_extent {
    size_t offset, bytes;
} quire_extent;

typedef struct quire_arena {
    quire_extent *hole; /* (capacity) free ranges by address, never adjacent */
    int32_t n_holes, capacity;
    size_t bytes, free_bytes;
} quire_arena;

typedef enum quire_end { QUIRE_BOTTOM, QUIRE_TOP } quire_end;

/* `hole` belongs to the caller; capacity must be at least one more than the number of ranges ever
 * allocated at once. */
void quire__arena_init(quire_arena *arena, size_t bytes, quire_extent *hole, int32_t capacity);
bool quire__arena_alloc(quire_arena *arena, size_t bytes, quire_end end, size_t *offset);
void quire__arena_free(quire_arena *arena, size_t offset, size_t bytes);
/* Frees n ranges at once, in linear time. They are in the last n entries of `hole`, by address.
 * n_holes + 2 n must not exceed the capacity. */
void quire__arena_free_sorted(quire_arena *arena, int32_t n);
size_t quire__arena_largest(const quire_arena *arena);

#endif
