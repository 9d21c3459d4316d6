/* Leaves: reference-counted ranges of the arena.
 *
 * A leaf that is no longer referenced keeps its range and waits for the next of its group and kind, which has the same
 * size: freeing a long sequence then costs a few instructions for a page. Ranges go back to the arena, where neighbours
 * join, only when somebody needs a range of another size, or asks how large the largest is. */
#include "page/pool.h"

static size_t size_of(const quire_group *g, quire_leaf_kind kind) {
    return kind == QUIRE_LEAF_SEALED ? g->sealed_bytes : kind == QUIRE_LEAF_RAW ? g->raw_bytes : g->sink_bytes;
}

static void free_leaf(quire_pool *pool, int32_t leaf) {
    quire__arena_give(&pool->arena, pool->leaf[leaf].offset, pool->leaf[leaf].bytes);
    pool->leaf[leaf].next_free = pool->free_leaf;
    pool->free_leaf = leaf;
}

void quire__leaf_settle(quire_pool *pool) {
    for (int32_t i = 0; i < pool->n_groups * QUIRE_LEAF_KINDS; i++)
        for (int32_t leaf; (leaf = pool->spare_leaf[i]) != QUIRE_NO_LEAF;) {
            pool->spare_leaf[i] = pool->leaf[leaf].next_free;
            free_leaf(pool, leaf);
        }
    pool->spare_bytes = 0;
}

/* A leaf and its range, or NO_LEAF. */
static int32_t take_fresh(quire_pool *pool, size_t bytes, quire_end end) {
    const int32_t leaf = pool->free_leaf;
    size_t offset;
    if (leaf == QUIRE_NO_LEAF || !quire__arena_take(&pool->arena, bytes, end, &offset))
        return QUIRE_NO_LEAF;
    pool->free_leaf = pool->leaf[leaf].next_free;
    pool->leaf[leaf].offset = offset;
    return leaf;
}

int32_t quire__leaf_take(quire_pool *pool, int32_t group, quire_leaf_kind kind) {
    const quire_group *g = &pool->group[group];
    const size_t bytes = size_of(g, kind);
    const quire_end end = kind == QUIRE_LEAF_SEALED || g->raw ? QUIRE_BOTTOM : QUIRE_TOP;
    int32_t *spare = &pool->spare_leaf[group * QUIRE_LEAF_KINDS + (int)kind], leaf = *spare;
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
                                    .group = group,
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
    if (l->bytes != size_of(&pool->group[l->group], l->kind)) { /* of the form before: nobody will ask for it again */
        free_leaf(pool, leaf);
        return;
    }
    int32_t *spare = &pool->spare_leaf[l->group * QUIRE_LEAF_KINDS + (int)l->kind];
    l->next_free = *spare;
    *spare = leaf;
    pool->spare_bytes += l->bytes;
}
