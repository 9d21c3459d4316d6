/* Statistics, counted from the leaves in use. */
#include "batch/batch.h"

#include <string.h>

typedef enum use { USED_TABLE = 1, USED_OPEN = 2, USED_LAST_RAW = 4, USED_SINKS = 8 } use;

static void mark(quire_pool *pool, int32_t leaf, use how) {
    if (leaf != QUIRE_NO_LEAF)
        pool->leaf[leaf].marks |= (uint8_t)how;
}

/* Marks every leaf with what refers to it. The caller holds the lock. */
static void mark_leaves(quire_pool *pool) {
    for (int32_t i = 0; i < pool->max_leaves; i++)
        pool->leaf[i].marks = 0;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        for (int32_t i = 0; i < pool->max_seqs; i++) {
            const quire_seq *seq = &pool->seq[i];
            if (!seq->used)
                continue;
            const quire_seq_class *s = &seq->class[g];
            mark(pool, s->open, USED_OPEN);
            mark(pool, s->last_raw, USED_LAST_RAW);
            mark(pool, s->sinks, USED_SINKS);
            for (int32_t p = 0; p < seq->length / QUIRE_T; p++)
                mark(pool, s->table[p], USED_TABLE);
        }
        for (int32_t i = 0; i < pool->max_batches;
             i++) { /* leaves reserved by a batch will become one of these */
            const quire_batch *batch = &pool->batch[i];
            for (int32_t t = 0; batch->used && t < batch->n_tiles; t++) {
                mark(pool, batch->tile[t].class[g].seal, USED_TABLE);
                mark(pool, batch->tile[t].class[g].raw, USED_OPEN);
                mark(pool, batch->tile[t].class[g].sinks, USED_SINKS);
            }
        }
    }
}

void quire_pool_get_stats(const quire_pool *constant, quire_pool_stats *stats) {
    /* Changes its lock, its spare leaves and their marks: nothing that a caller can see. */
    quire_pool *pool = (quire_pool *)constant;
    memset(stats, 0, sizeof *stats);
    pthread_mutex_lock(&pool->lock);
    stats->budget_bytes = pool->budget_bytes;
    stats->total_bytes = pool->total_bytes;
    stats->arena_bytes = pool->arena.bytes;
    quire__leaf_settle(pool);
    stats->free_bytes = pool->arena.free_bytes;
    stats->largest_free_bytes = quire__arena_largest(&pool->arena);
    mark_leaves(pool);
    for (int32_t i = 0; i < pool->max_leaves; i++) {
        const quire_leaf *leaf = &pool->leaf[i];
        const int uses = leaf->marks;
        if (leaf->refs == 0)
            continue;
        if (uses & USED_TABLE)
            stats->sealed_bytes += leaf->bytes;
        else if (uses & USED_OPEN)
            stats->open_bytes += leaf->bytes;
        else if (uses & USED_LAST_RAW)
            stats->last_raw_bytes += leaf->bytes;
        else if (uses & USED_SINKS)
            stats->sink_bytes += leaf->bytes;
        else
            stats->shadow_bytes += leaf->bytes;
    }
    for (int32_t i = 0; i < pool->max_seqs; i++)
        if (pool->seq[i].used) {
            stats->n_seqs++;
            stats->tokens += pool->seq[i].length;
        }
    for (int32_t i = 0; i < pool->max_batches; i++)
        stats->n_batches += pool->batch[i].used;
    stats->sealed_pages = atomic_load(&pool->sealed_pages);
    stats->reopened_pages = pool->reopened_pages;
    stats->resealed_pages = pool->resealed_pages;
    pthread_mutex_unlock(&pool->lock);
}

quire_status quire_layer_get_stats(const quire_pool *constant, int32_t index,
                                   quire_layer_stats *stats) {
    quire_pool *pool = (quire_pool *)constant;
    if (!pool || !stats)
        return quire__fail(QUIRE_E_INVALID, "pool or stats is NULL");
    if (index < 0 || index >= pool->n_layers)
        return quire__fail(QUIRE_E_INVALID, "there is no layer %d: the pool has %d layers",
                           (int)index, (int)pool->n_layers);
    quire_layer_state *layer = &pool->layer[index];
    const quire_layer *config = &layer->config;
    const size_t n_heads = (size_t)config->n_kv_heads;
    memset(stats, 0, sizeof *stats);
    pthread_mutex_lock(&pool->lock);
    stats->pair = (quire_pair){config->k, config->v};
    stats->kernel = layer->packed->name;
    stats->record_bytes = layer->format.bytes;
    stats->bits_per_element =
        8.0 * (double)layer->format.bytes / (double)(QUIRE_T * (config->k_dim + config->v_dim));
    stats->packed_read = atomic_load(&layer->packed_read);
    stats->raw_read = atomic_load(&layer->raw_read);
    stats->attended_rows = atomic_load(&layer->attended_rows);
    stats->fallbacks = atomic_load(&layer->fallbacks);
    mark_leaves(pool);
    for (int32_t i = 0; layer->source == index && i < pool->max_leaves;
         i++) { /* a layer that shares a cache owns no memory */
        const quire_leaf *leaf = &pool->leaf[i];
        if (leaf->refs == 0 || leaf->class != layer->class)
            continue;
        const quire_layer_state *form = leaf->stale ? &pool->layer_before[index] : layer;
        if (leaf->kind == QUIRE_LEAF_SEALED)
            stats->sealed_bytes += n_heads * form->format.bytes;
        else if (leaf->kind == QUIRE_LEAF_SINKS)
            stats->raw_bytes += n_heads * form->sink_record_bytes;
        else if (leaf->marks & USED_TABLE)
            stats->sealed_bytes += n_heads * layer->raw_record_bytes;
        else
            stats->raw_bytes += n_heads * layer->raw_record_bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    return QUIRE_OK;
}
