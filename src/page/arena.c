/* Byte ranges: first fit from either end, neighbours joined when freed. */
#include "page/arena.h"

#include <string.h>

void quire__arena_init(quire_arena *arena, size_t bytes, quire_extent *hole, int32_t capacity) {
    *arena = (quire_arena){hole, bytes > 0, capacity, bytes, bytes};
    if (bytes)
        hole[0] = (quire_extent){0, bytes};
}

static void remove_hole(quire_arena *arena, int32_t i) {
    arena->n_holes--;
    memmove(arena->hole + i, arena->hole + i + 1,
            (size_t)(arena->n_holes - i) * sizeof *arena->hole);
}

bool quire__arena_alloc(quire_arena *arena, size_t bytes, quire_end end, size_t *offset) {
    /* First fit from its end keeps packed and raw pages at the two ends of the memory. Best fit
     * would put packed pages into the holes of raw ones and fragment the middle. */
    int32_t found = end == QUIRE_BOTTOM ? 0 : arena->n_holes - 1;
    while (found >= 0 && found < arena->n_holes && arena->hole[found].bytes < bytes)
        found += end == QUIRE_BOTTOM ? 1 : -1;
    if (found < 0 || found >= arena->n_holes)
        return false;
    quire_extent *hole = &arena->hole[found];
    hole->bytes -= bytes;
    *offset = end == QUIRE_TOP ? hole->offset + hole->bytes : hole->offset;
    if (end == QUIRE_BOTTOM)
        hole->offset += bytes;
    if (hole->bytes == 0)
        remove_hole(arena, found);
    arena->free_bytes -= bytes;
    return true;
}

void quire__arena_free(quire_arena *arena, size_t offset, size_t bytes) {
    int32_t low = 0, high = arena->n_holes; /* first hole above the range */
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (arena->hole[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    quire_extent *above = low < arena->n_holes ? &arena->hole[low] : NULL;
    quire_extent *below = low > 0 ? &arena->hole[low - 1] : NULL;
    const bool joins_above = above && offset + bytes == above->offset;
    const bool joins_below = below && below->offset + below->bytes == offset;
    arena->free_bytes += bytes;
    if (joins_below && joins_above) {
        below->bytes += bytes + above->bytes;
        remove_hole(arena, low);
    } else if (joins_below) {
        below->bytes += bytes;
    } else if (joins_above) {
        above->offset = offset;
        above->bytes += bytes;
    } else {
        memmove(arena->hole + low + 1, arena->hole + low,
                (size_t)(arena->n_holes - low) * sizeof *arena->hole);
        arena->hole[low] = (quire_extent){offset, bytes};
        arena->n_holes++;
    }
}

void quire__arena_free_sorted(quire_arena *arena, int32_t n) {
    const quire_extent *given = arena->hole + arena->capacity - n;
    /* Moved where they are not overwritten. */
    quire_extent *holes = arena->hole + arena->capacity - n - arena->n_holes;
    const int32_t n_holes = arena->n_holes;
    memmove(holes, arena->hole, (size_t)n_holes * sizeof *holes);
    arena->n_holes = 0;
    for (int32_t i = 0, j = 0; i < n_holes || j < n;) {
        const bool take_given = i == n_holes || (j < n && given[j].offset < holes[i].offset);
        const quire_extent next = take_given ? given[j] : holes[i];
        quire_extent *last = arena->n_holes > 0 ? &arena->hole[arena->n_holes - 1] : NULL;
        if (take_given)
            arena->free_bytes += next.bytes;
        if (last && last->offset + last->bytes == next.offset)
            last->bytes += next.bytes;
        else
            arena->hole[arena->n_holes++] = next;
        i += !take_given;
        j += take_given;
    }
}

size_t quire__arena_largest(const quire_arena *arena) {
    size_t largest = 0;
    for (int32_t i = 0; i < arena->n_holes; i++)
        if (arena->hole[i].bytes > largest)
            largest = arena->hole[i].bytes;
    return largest;
}
