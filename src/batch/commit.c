/* Ends a batch: commit hands its leaves to the sequences, abort gives them back. */
#include "batch/batch.h"

/* Whether an item may end at token `cut`: between pages, or in a page whose raw rows lie in a leaf.
 * Those of the others were scratch memory (reserve, in plan.c). */
static bool may_end(const quire_batch *batch, int32_t item, int32_t cut) {
    const int32_t before = batch->before[item], end = before + batch->item[item].n_tokens;
    return cut % QUIRE_T == 0 || cut / QUIRE_T >= end / QUIRE_T - 1 ||
           (before % QUIRE_T != 0 && cut / QUIRE_T == before / QUIRE_T);
}

static quire_status check_commit(const quire_batch *batch, const int32_t *n_accept) {
    if (atomic_load(&batch->failed))
        return quire__fail(QUIRE_E_STATE, "batch failed and can only be aborted: %.200s",
                           batch->error);
    for (int32_t i = 0; i < batch->pool->n_layers && batch->n_rows > 0; i++)
        if (batch->pool->layer[i].source == i && !quire__batch_appended(batch, i))
            return quire__fail(QUIRE_E_STATE, "layer %d was not appended to by all workers",
                               (int)i);
    for (int32_t i = 0; n_accept && i < batch->n_items; i++) {
        const int32_t n = batch->item[i].n_tokens;
        if (n_accept[i] < 0 || n_accept[i] > n)
            return quire__fail(QUIRE_E_INVALID,
                               "item %d: n_accept is %d, but the item has %d tokens", (int)i,
                               (int)n_accept[i], (int)n);
        const int32_t cut = batch->before[i] + n_accept[i];
        if (!may_end(batch, i, cut))
            return quire__fail(QUIRE_E_INVALID,
                               "item %d: n_accept cuts at token %d, inside a page of which only "
                               "the packed rows are left",
                               (int)i, (int)cut);
    }
    return QUIRE_OK;
}

/* Hands the leaves of one item's tiles and one class to its sequence, which gets `length` tokens.
 * What lies beyond is dropped, including the sealed form of a page that is no longer full;
 * check_commit made sure that the raw rows of that page exist. */
static void adopt(quire_batch *batch, int32_t item, int32_t g, int32_t length) {
    quire_pool *pool = batch->pool;
    quire_seq_class *s = &batch->item[item].seq->class[g];
    const int32_t n_pages = length / QUIRE_T;
    int32_t open = QUIRE_NO_LEAF;
    for (int32_t i = 0; i < batch->n_tiles; i++) {
        const quire_tile *tile = &batch->tile[i];
        const quire_tile_class *plan = &tile->class[g];
        if (tile->item != item)
            continue;
        const bool sealed = tile->page < n_pages,
                   opens = tile->page == n_pages && length % QUIRE_T != 0;
        /* The shared page that this sequence no longer uses. */
        quire__leaf_drop(pool, plan->copy_from);
        if (!sealed && plan->seal != plan->raw)
            quire__leaf_drop(pool, plan->seal);
        if (!sealed && plan->sinks != QUIRE_NO_LEAF) {
            quire__leaf_drop(pool, plan->sinks);
            s->sinks = QUIRE_NO_LEAF;
        }
        if (opens) {
            open = plan->raw;
        } else if (sealed && tile->page == n_pages - 1) {
            quire__leaf_drop(pool, s->last_raw);
            s->last_raw = pool->class[g].raw ? QUIRE_NO_LEAF : plan->raw;
        } else if (!(sealed && plan->seal == plan->raw)) { /* else it is in the table as it is */
            quire__leaf_drop(pool, plan->raw);
        }
    }
    s->open = open;
}

quire_status quire_batch_commit(quire_batch *batch, const int32_t *n_accept) {
    if (!batch || !batch->used)
        return quire__fail(QUIRE_E_INVALID, "batch is NULL, or was already committed or aborted");
    quire_pool *pool = batch->pool;
    pthread_mutex_lock(&pool->lock);
    const quire_status status = check_commit(batch, n_accept);
    for (int32_t i = 0; i < batch->n_items && status == QUIRE_OK; i++) {
        quire_seq *seq = batch->item[i].seq;
        const int32_t n = batch->item[i].n_tokens,
                      length = seq->length + (n_accept ? n_accept[i] : n);
        if (n > 0) {
            for (int32_t g = 0; g < pool->n_classes; g++)
                adopt(batch, i, g, length);
            if (length / QUIRE_T > seq->length / QUIRE_T)
                seq->last_page = length / QUIRE_T - 1;
            seq->length = length;
            if (!pool->exact_trim)
                quire__seq_drop_last_raw(seq);
            quire__seq_recycle(seq);
        }
        seq->batch = NULL;
    }
    if (status == QUIRE_OK)
        batch->used = false;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void quire__batch_release(quire_batch *batch, quire_tile *tile, int32_t g) {
    quire_pool *pool = batch->pool;
    quire_seq_class *s = &batch->item[tile->item].seq->class[g];
    quire_tile_class *plan = &tile->class[g];
    if (plan->raw != s->open)
        quire__leaf_drop(pool, plan->raw);
    if (!pool->class[g].raw)
        quire__leaf_drop(pool, plan->seal);
    if (plan->sinks != QUIRE_NO_LEAF)
        s->sinks = QUIRE_NO_LEAF;
    quire__leaf_drop(pool, plan->sinks);
}

void quire_batch_abort(quire_batch *batch) {
    if (!batch || !batch->used)
        return;
    quire_pool *pool = batch->pool;
    pthread_mutex_lock(&pool->lock);
    for (int32_t i = 0; i < batch->n_tiles; i++)
        for (int32_t g = 0; g < pool->n_classes; g++)
            quire__batch_release(batch, &batch->tile[i], g);
    for (int32_t i = 0; i < batch->n_items; i++)
        batch->item[i].seq->batch = NULL;
    batch->used = false;
    pthread_mutex_unlock(&pool->lock);
}
