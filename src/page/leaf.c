/* Leaves: reference-counted ranges of the arena. */
#include "page/pool.h"

int32_t quire__leaf_take(quire_pool *pool, int32_t group, quire_leaf_kind kind) {
    const quire_group *g = &pool->group[group];
    const size_t bytes = kind == QUIRE_LEAF_SEALED ? g->sealed_bytes
                         : kind == QUIRE_LEAF_RAW  ? g->raw_bytes
                                                   : g->sink_bytes;
    const int32_t id = pool->free_leaf;
    size_t offset;
    if (id == QUIRE_NO_LEAF)
        return QUIRE_NO_LEAF;
    if (!quire__arena_take(&pool->arena, bytes, kind == QUIRE_LEAF_SEALED || g->raw ? QUIRE_BOTTOM : QUIRE_TOP,
                           &offset))
        return QUIRE_NO_LEAF;
    pool->free_leaf = pool->leaf[id].next_free;
    pool->leaf[id] = (quire_leaf){offset, bytes, 1, QUIRE_NO_LEAF, group, kind, 0};
    return id;
}

void quire__leaf_share(quire_pool *pool, int32_t leaf) {
    if (leaf != QUIRE_NO_LEAF)
        pool->leaf[leaf].refs++;
}

void quire__leaf_drop(quire_pool *pool, int32_t leaf) {
    if (leaf == QUIRE_NO_LEAF || --pool->leaf[leaf].refs > 0)
        return;
    quire__arena_give(&pool->arena, pool->leaf[leaf].offset, pool->leaf[leaf].bytes);
    pool->leaf[leaf].next_free = pool->free_leaf;
    pool->free_leaf = leaf;
}
