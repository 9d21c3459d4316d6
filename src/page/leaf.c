/* Leaves: reference-counted ranges of the arena.
 *
 * A leaf that is no longer referenced keeps its range and waits for the next of its class and
 * kind, which has the same size: freeing a long sequence then costs a few instructions for a
 * page. Ranges go back to the arena, where neighbours join, only when a range of another size is
 * needed, or when the largest free range is asked for. */
#include "page/pages.h"

static size_t size_of(const quire_class *g, quire_leaf_kind kind) {
    return kind == QUIRE_LEAF_SEALED ? g->sealed_bytes
           : kind == QUIRE_LEAF_RAW  ? g->raw_bytes
                                     : g->sink_bytes;
}

/* The list of spare leaves for a class and kind; the last list is for sizes no longer in use. */
static int32_t *spare_list(quire_pool *pool, int32_t class, quire_leaf_kind kind, size_t bytes) {
    const bool current = bytes == size_of(&pool->class[class], kind);
    return &pool->spare_leaf[current ? class * QUIRE_LEAF_KINDS + (int)kind
                                     : pool->n_classes * QUIRE_LEAF_KINDS];
}

static int32_t merge_by_address(quire_pool *pool, int32_t a, int32_t b) {
    int32_t first = QUIRE_NO_LEAF, *tail = &first;
    while (a != QUIRE_NO_LEAF && b != QUIRE_NO_LEAF) {
        int32_t *lower = pool->leaf[a].offset < pool->leaf[b].offset ? &a : &b;
        *tail = *lower;
        tail = &pool->leaf[*lower].next_free;
        *lower = *tail;
    }
    *tail = a != QUIRE_NO_LEAF ? a : b;
    return first;
}

/* Merges all spare leaves into one list, by address, and empties the others. */
static int32_t sort_spares(quire_pool *pool, int32_t *n) {
    int32_t run[32]; /* run[i] has 2^i leaves, or none */
    int32_t sorted = QUIRE_NO_LEAF;
    for (int i = 0; i < 32; i++)
        run[i] = QUIRE_NO_LEAF;
    for (int32_t list = 0; list <= pool->n_classes * QUIRE_LEAF_KINDS; list++)
        for (int32_t leaf; (leaf = pool->spare_leaf[list]) != QUIRE_NO_LEAF; ++*n) {
            pool->spare_leaf[list] = pool->leaf[leaf].next_free;
            pool->leaf[leaf].next_free = QUIRE_NO_LEAF;
            int i = 0;
            for (; run[i] != QUIRE_NO_LEAF; i++) {
                leaf = merge_by_address(pool, run[i], leaf);
                run[i] = QUIRE_NO_LEAF;
            }
            run[i] = leaf;
        }
    for (int i = 0; i < 32; i++)
        sorted = merge_by_address(pool, run[i], sorted);
    return sorted;
}

void quire__leaf_settle(quire_pool *pool) {
    quire_arena *arena = &pool->arena;
    int32_t n = 0, leaf = sort_spares(pool, &n);
    const bool at_once = n <= (arena->capacity - arena->n_holes) / 2;
    quire_extent *place = arena->hole + arena->capacity - n;
    while (leaf != QUIRE_NO_LEAF) {
        quire_leaf *l = &pool->leaf[leaf];
        const int32_t next = l->next_free;
        if (at_once)
            *place++ = (quire_extent){l->offset, l->bytes};
        else
            quire__arena_free(arena, l->offset, l->bytes);
        l->next_free = pool->free_leaf;
        pool->free_leaf = leaf;
        leaf = next;
    }
    if (at_once)
        quire__arena_free_sorted(arena, n);
    pool->spare_bytes = 0;
}

/* A leaf with a new range, or NO_LEAF. */
static int32_t take_fresh(quire_pool *pool, size_t bytes, quire_end end) {
    const int32_t leaf = pool->free_leaf;
    size_t offset;
    if (leaf == QUIRE_NO_LEAF || !quire__arena_alloc(&pool->arena, bytes, end, &offset))
        return QUIRE_NO_LEAF;
    pool->free_leaf = pool->leaf[leaf].next_free;
    pool->leaf[leaf].offset = offset;
    return leaf;
}

int32_t quire__leaf_take(quire_pool *pool, int32_t class, quire_leaf_kind kind) {
    const quire_class *g = &pool->class[class];
    const size_t bytes = size_of(g, kind);
    const quire_end end = kind == QUIRE_LEAF_SEALED || g->raw ? QUIRE_BOTTOM : QUIRE_TOP;
    int32_t *spare = spare_list(pool, class, kind, bytes), leaf = *spare;
    if (leaf != QUIRE_NO_LEAF) {
        *spare = pool->leaf[leaf].next_free;
        pool->spare_bytes -= bytes;
    } else {
        leaf = take_fresh(pool, bytes, end);
        if (leaf == QUIRE_NO_LEAF && pool->spare_bytes > 0) {
            quire__leaf_settle(pool);
            leaf = take_fresh(pool, bytes, end);
        }
        if (leaf == QUIRE_NO_LEAF)
            return QUIRE_NO_LEAF;
    }
    pool->leaf[leaf] = (quire_leaf){.offset = pool->leaf[leaf].offset,
                                    .bytes = bytes,
                                    .refs = 1,
                                    .next_free = QUIRE_NO_LEAF,
                                    .class = class,
                                    .kind = kind};
    return leaf;
}

void quire__leaf_share(quire_pool *pool, int32_t leaf) {
    if (leaf != QUIRE_NO_LEAF)
        pool->leaf[leaf].refs++;
}

void quire__leaf_drop(quire_pool *pool, int32_t leaf) {
    if (leaf == QUIRE_NO_LEAF || --pool->leaf[leaf].refs > 0)
        return;
    quire_leaf *l = &pool->leaf[leaf];
    int32_t *spare = spare_list(pool, l->class, l->kind, l->bytes);
    l->next_free = *spare;
    *spare = leaf;
    pool->spare_bytes += l->bytes;
}
