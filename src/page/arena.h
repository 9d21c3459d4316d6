/* Byte ranges of one fixed arena. Ranges are described outside the arena, so that it may lie
 * anywhere.
 *
 * Packed leaves are taken from the bottom and raw ones from the top: the two kinds, which differ
 * much in size and life, then leave holes that their own kind refills exactly. The first that
 * fits, from its end, is taken.
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
    quire_extent *hole; /* (capacity) by address, never adjacent */
    int32_t n_holes, capacity;
    size_t bytes, free_bytes;
} quire_arena;

typedef enum quire_end { QUIRE_BOTTOM, QUIRE_TOP } quire_end;

/* `hole` is the caller's; capacity must be at least the number of ranges ever taken at once,
 * plus one. */
void quire__arena_init(quire_arena *arena, size_t bytes, quire_extent *hole, int32_t capacity);
bool quire__arena_take(quire_arena *arena, size_t bytes, quire_end end, size_t *offset);
void quire__arena_give(quire_arena *arena, size_t offset, size_t bytes);
/* Gives n ranges at once, in linear time: they stand in the last n places of `hole`, by address.
 * n_holes + 2 n must not exceed the capacity. */
void quire__arena_give_sorted(quire_arena *arena, int32_t n);
size_t quire__arena_largest(const quire_arena *arena);

#endif
