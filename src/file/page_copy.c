/* Copies the bytes of sealed pages out of a sequence and into one. */
#include <stdint.h>
#include <string.h>

#include "file/page_piece.h"

static bool has_sinks(const quire_class *class, int32_t page) {
    return page == 0 && class->sinks > 0;
}

static size_t page_bytes(const quire_pool *pool, int32_t page) {
    size_t bytes = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        bytes += quire__piece_leaf_bytes(&pool->class[g]) +
                 (has_sinks(&pool->class[g], page) ? pool->class[g].sink_bytes : 0);
    return bytes;
}

size_t quire_seq_page_bytes(const quire_pool *constant, int32_t page) {
    quire_pool *pool = (quire_pool *)(uintptr_t)constant; /* changes only its lock */
    if (!pool)
        return 0;
    pthread_mutex_lock(&pool->lock);
    const size_t bytes = page_bytes(pool, page);
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}

/* The caller holds the lock, so that the policy cannot change. `status`: room of the wrong size
 * is a caller's mistake, but bytes from elsewhere may be anything. */
static quire_status check_bytes(const quire_pool *pool, int32_t page, size_t n_bytes,
                                quire_status status) {
    const size_t wanted = page_bytes(pool, page);
    if (n_bytes != wanted)
        return quire__fail(status, "page %d has %zu bytes in this pool, not %zu", (int)page, wanted,
                           n_bytes);
    return QUIRE_OK;
}

static quire_status check_held(const quire_seq *seq, int32_t page) {
    const quire_pool *pool = seq->pool;
    if (page < 0 || page >= seq->length / QUIRE_T)
        return quire__fail(QUIRE_E_INVALID, "page %d is not sealed: the sequence has %d tokens",
                           (int)page, (int)seq->length);
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (seq->class[g].table[page] == QUIRE_NO_LEAF)
            return quire__fail(QUIRE_E_GONE, "page %d has left the window of %d tokens", (int)page,
                               (int)pool->class[g].window);
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (quire__leaf_stale(pool, seq->class[g].table[page]))
            return quire__fail(QUIRE_E_STATE,
                               "page %d still has the previous codecs: finish requantizing first",
                               (int)page);
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (has_sinks(&pool->class[g], page) && seq->class[g].sinks == QUIRE_NO_LEAF)
            return quire__fail(QUIRE_E_GONE, "page 0 has left the window of %d tokens",
                               (int)pool->class[g].window);
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (quire__rows_held(seq, g, page) != UINT64_MAX)
            return quire__fail(QUIRE_E_GONE, "page %d has lost tokens to the window of %d tokens",
                               (int)page, (int)pool->class[g].window);
    return QUIRE_OK;
}

static void copy_page(const quire_seq *seq, int32_t page, uint8_t *to) {
    const quire_pool *pool = seq->pool;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        const int32_t leaf = seq->class[g].table[page];
        memcpy(to, quire__leaf_memory(pool, leaf), pool->leaf[leaf].bytes);
        to += pool->leaf[leaf].bytes;
        if (has_sinks(class, page)) {
            memcpy(to, quire__leaf_memory(pool, seq->class[g].sinks), class->sink_bytes);
            to += class->sink_bytes;
        }
    }
}

quire_status quire_seq_page_save(const quire_seq *seq, int32_t page, void *bytes, size_t n_bytes) {
    if (!seq || !bytes)
        return quire__fail(QUIRE_E_INVALID, "sequence or bytes is NULL");
    quire_pool *pool = seq->pool;
    pthread_mutex_lock(&pool->lock);
    quire_status status = check_bytes(pool, page, n_bytes, QUIRE_E_INVALID);
    if (status == QUIRE_OK)
        status = check_held(seq, page);
    if (status == QUIRE_OK)
        copy_page(seq, page, bytes);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Attending over any bytes that pass must be safe. Whoever stores the bytes is responsible for
 * their integrity and identity. */
static quire_status check_values(const quire_pool *pool, int32_t page, const uint8_t *bytes) {
    const quire_leaf_layers layers = {pool->layer, pool->n_layers, pool->raw};
    int32_t layer, head;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        if (!quire__leaf_valid(layers, g, QUIRE_PART_SEALED, QUIRE_T, bytes, &layer, &head))
            return quire__page_invalid(layer, head);
        bytes += quire__piece_leaf_bytes(class);
        if (!has_sinks(class, page))
            continue;
        if (!quire__leaf_valid(layers, g, QUIRE_PART_SINKS, 0, bytes, &layer, &head))
            return quire__page_invalid(layer, head);
        bytes += class->sink_bytes;
    }
    return QUIRE_OK;
}

/* Reserves leaves for one page in every class, all or none. */
static bool take_page(quire_pool *pool, int32_t page, int32_t *leaves, int32_t *sinks) {
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        leaves[g] = quire__leaf_take(pool, g, class->raw ? QUIRE_LEAF_RAW : QUIRE_LEAF_SEALED);
        sinks[g] = has_sinks(class, page) && leaves[g] != QUIRE_NO_LEAF
                       ? quire__leaf_take(pool, g, QUIRE_LEAF_SINKS)
                       : QUIRE_NO_LEAF;
        if (leaves[g] != QUIRE_NO_LEAF && (sinks[g] != QUIRE_NO_LEAF || !has_sinks(class, page)))
            continue;
        for (; g >= 0; g--) {
            quire__leaf_drop(pool, leaves[g]);
            quire__leaf_drop(pool, sinks[g]);
        }
        return false;
    }
    return true;
}

static quire_status load_locked(quire_seq *seq, const uint8_t *from) {
    quire_pool *pool = seq->pool;
    const int32_t page = seq->length / QUIRE_T;
    if (seq->batch)
        return quire__fail(QUIRE_E_BUSY, "cannot load into a sequence that is in a batch");
    if (seq->length % QUIRE_T)
        return quire__fail(
            QUIRE_E_STATE,
            "the sequence has %d tokens: a page can be loaded only after a multiple of %d",
            (int)seq->length, QUIRE_T);
    if (seq->length > pool->max_tokens - QUIRE_T)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "a sequence of this pool holds at most %d tokens (max_tokens)",
                           (int)pool->max_tokens);
    QUIRE_TRY(check_values(pool, page, from));
    int32_t *leaves = pool->reserved, *sinks = pool->reserved + pool->n_classes;
    if (!take_page(pool, page, leaves, sinks))
        return quire__fail(QUIRE_E_NO_PAGES, "pool is out of pages: %zu bytes free",
                           pool->arena.free_bytes + pool->spare_bytes);
    for (int32_t g = 0; g < pool->n_classes; g++) {
        quire_seq_class *s = &seq->class[g];
        memcpy(quire__leaf_memory(pool, leaves[g]), from, pool->leaf[leaves[g]].bytes);
        from += pool->leaf[leaves[g]].bytes;
        if (sinks[g] != QUIRE_NO_LEAF) {
            memcpy(quire__leaf_memory(pool, sinks[g]), from, pool->class[g].sink_bytes);
            from += pool->class[g].sink_bytes;
            s->sinks = sinks[g];
        }
        s->table[page] = leaves[g];
    }
    /* They belong to an earlier page than the one that is now last. */
    quire__seq_drop_last_raw(seq);
    seq->length += QUIRE_T;
    quire__seq_recycle(seq);
    return QUIRE_OK;
}

quire_status quire_seq_page_load(quire_seq *seq, const void *bytes, size_t n_bytes) {
    if (!seq || !bytes)
        return quire__fail(QUIRE_E_INVALID, "sequence or bytes is NULL");
    pthread_mutex_lock(&seq->pool->lock);
    quire_status status = check_bytes(seq->pool, seq->length / QUIRE_T, n_bytes, QUIRE_E_FORMAT);
    if (status == QUIRE_OK)
        status = load_locked(seq, bytes);
    pthread_mutex_unlock(&seq->pool->lock);
    return status;
}
