/* Copies the bytes of sealed pages out of a sequence and into one. */
#include <stdint.h>
#include <string.h>

#include "base/element.h"
#include "seq/seq.h"

static size_t class_bytes(const quire_class *class, int32_t page) {
    return (class->raw ? class->raw_bytes : class->sealed_bytes) +
           (page == 0 && class->sinks ? class->sink_bytes : 0);
}

static size_t page_bytes(const quire_pool *pool, int32_t page) {
    size_t bytes = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        bytes += class_bytes(&pool->class[g], page);
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

/* The caller holds the lock, so that the policy cannot change. */
static quire_status check_bytes(const quire_pool *pool, int32_t page, size_t n_bytes) {
    const size_t wanted = page_bytes(pool, page);
    if (n_bytes != wanted)
        return quire__fail(QUIRE_E_FORMAT, "page %d has %zu bytes in this pool, not %zu", (int)page,
                           wanted, n_bytes);
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
        if (page == 0 && pool->class[g].sinks && seq->class[g].sinks == QUIRE_NO_LEAF)
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
        if (page == 0 && class->sinks) {
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
    quire_status status = check_bytes(pool, page, n_bytes);
    if (status == QUIRE_OK)
        status = check_held(seq, page);
    if (status == QUIRE_OK)
        copy_page(seq, page, bytes);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Attending over any bytes that pass must be safe. Whoever stores the bytes is responsible for
 * their integrity and identity. */
static quire_status check_records(const quire_pool *pool, int32_t page, const uint8_t *bytes) {
    size_t at = 0;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        const size_t leaf_bytes = class->raw ? class->raw_bytes : class->sealed_bytes;
        for (int32_t i = 0; i < pool->n_layers; i++) {
            const quire_layer_state *layer = &pool->layer[i];
            if (layer->class != g || layer->source != i)
                continue;
            for (int32_t head = 0; head < layer->config.n_kv_heads; head++) {
                const uint8_t *record =
                    bytes + at + layer->sealed_offset + (size_t)head * layer->format.bytes;
                if (!quire__side_valid(&layer->format.k, record) ||
                    !quire__side_valid(&layer->format.v, record))
                    return quire__fail(QUIRE_E_FORMAT,
                                       "page %d, layer %d, KV head %d: a value is not finite",
                                       (int)page, (int)i, (int)head);
            }
        }
        at += leaf_bytes;
        if (page == 0 && class->sinks) {
            if (!quire__all_finite(pool->raw, bytes + at,
                                   class->sink_bytes / quire__type_bytes(pool->raw)))
                return quire__fail(QUIRE_E_FORMAT, "page 0: a raw sink is not finite");
            at += class->sink_bytes;
        }
    }
    return QUIRE_OK;
}

/* Reserves leaves for one page in every class, all or none. */
static bool take_page(quire_pool *pool, int32_t page, int32_t *leaves, int32_t *sinks) {
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        leaves[g] = quire__leaf_take(pool, g, class->raw ? QUIRE_LEAF_RAW : QUIRE_LEAF_SEALED);
        sinks[g] = page == 0 && class->sinks && leaves[g] != QUIRE_NO_LEAF
                       ? quire__leaf_take(pool, g, QUIRE_LEAF_SINKS)
                       : QUIRE_NO_LEAF;
        if (leaves[g] != QUIRE_NO_LEAF && (sinks[g] != QUIRE_NO_LEAF || page != 0 || !class->sinks))
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
    QUIRE_TRY(check_records(pool, page, from));
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
    quire_status status = check_bytes(seq->pool, seq->length / QUIRE_T, n_bytes);
    if (status == QUIRE_OK)
        status = load_locked(seq, bytes);
    pthread_mutex_unlock(&seq->pool->lock);
    return status;
}
