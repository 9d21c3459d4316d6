/* Sequences: page tables that share leaves. */
#include "seq/seq.h"

static void clear(quire_seq *seq) {
    seq->length = 0;
    seq->last_page = -1;
    seq->history = 0;
    seq->exact = INT32_MAX;
    seq->batch = NULL;
    for (int32_t g = 0; g < seq->pool->n_classes; g++) {
        quire_seq_class *class = &seq->class[g];
        class->live_from = 0;
        class->open = class->last_raw = class->sinks = QUIRE_NO_LEAF;
    }
}

static quire_seq *take_slot(quire_pool *pool) {
    quire_seq *seq = pool->free_seq;
    if (!seq)
        return NULL;
    pool->free_seq = seq->next_free;
    seq->used = true;
    clear(seq);
    return seq;
}

static quire_status no_slot(const quire_pool *pool) {
    return quire__fail(QUIRE_E_NO_SLOT,
                       "all %d sequences of the pool are in use; free one, or raise max_seqs",
                       (int)pool->max_seqs);
}

quire_status quire_seq_create(quire_pool *pool, quire_seq **result) {
    if (!pool || !result)
        return quire__fail(QUIRE_E_INVALID, "pool or result is NULL");
    pthread_mutex_lock(&pool->lock);
    *result = take_slot(pool);
    pthread_mutex_unlock(&pool->lock);
    return *result ? QUIRE_OK : no_slot(pool);
}

quire_status quire_seq_fork(quire_seq *seq, quire_seq **result) {
    if (!seq || !result)
        return quire__fail(QUIRE_E_INVALID, "sequence or result is NULL");
    quire_pool *pool = seq->pool;
    *result = NULL;
    pthread_mutex_lock(&pool->lock);
    if (seq->batch) {
        pthread_mutex_unlock(&pool->lock);
        return quire__fail(QUIRE_E_BUSY, "cannot fork a sequence that is in a batch");
    }
    quire_seq *child = take_slot(pool);
    if (child) {
        const int32_t n_pages = seq->length / QUIRE_T;
        child->length = seq->length;
        child->last_page = seq->last_page;
        child->history = seq->history;
        child->exact = seq->exact;
        for (int32_t g = 0; g < pool->n_classes; g++) {
            const quire_seq_class *from = &seq->class[g];
            quire_seq_class *to = &child->class[g];
            to->live_from = from->live_from;
            to->open = from->open;
            to->last_raw = from->last_raw;
            to->sinks = from->sinks;
            quire__leaf_share(pool, to->open);
            quire__leaf_share(pool, to->last_raw);
            quire__leaf_share(pool, to->sinks);
            for (int32_t p = 0; p < n_pages; p++) {
                to->table[p] = from->table[p];
                quire__leaf_share(pool, to->table[p]);
            }
        }
    }
    pthread_mutex_unlock(&pool->lock);
    *result = child;
    return child ? QUIRE_OK : no_slot(pool);
}

void quire__seq_release(quire_seq *seq) {
    quire_pool *pool = seq->pool;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_seq_class *class = &seq->class[g];
        for (int32_t p = 0; p < seq->length / QUIRE_T; p++)
            quire__leaf_drop(pool, class->table[p]);
        quire__leaf_drop(pool, class->open);
        quire__leaf_drop(pool, class->last_raw);
        quire__leaf_drop(pool, class->sinks);
    }
    clear(seq);
    seq->used = false;
    seq->next_free = pool->free_seq;
    pool->free_seq = seq;
}

quire_status quire_seq_free(quire_seq *seq) {
    if (!seq)
        return QUIRE_OK;
    quire_pool *pool = seq->pool;
    pthread_mutex_lock(&pool->lock);
    const bool busy = seq->batch != NULL, used = seq->used;
    if (!busy && used)
        quire__seq_release(seq);
    pthread_mutex_unlock(&pool->lock);
    if (!used)
        return quire__fail(QUIRE_E_INVALID, "the sequence has already been freed");
    return busy ? quire__fail(QUIRE_E_BUSY, "cannot free a sequence that is in a batch") : QUIRE_OK;
}

void quire__seq_in_file(const quire_seq *seq, bool in_file) {
    pthread_mutex_lock(&seq->pool->lock);
    /* Saving changes nothing that a caller can see. */
    ((quire_seq *)(uintptr_t)seq)->in_file = in_file;
    pthread_mutex_unlock(&seq->pool->lock);
}

int32_t quire_seq_length(const quire_seq *seq) { return seq ? seq->length : 0; }

void quire__seq_drop_last_raw(quire_seq *seq) {
    for (int32_t g = 0; g < seq->pool->n_classes; g++) {
        quire__leaf_drop(seq->pool, seq->class[g].last_raw);
        seq->class[g].last_raw = QUIRE_NO_LEAF;
    }
    seq->last_page = -1;
}

/* The page sealed last stays even if the window has moved past it: a roll-back may reopen it. */
void quire__seq_recycle(quire_seq *seq) {
    quire_pool *pool = seq->pool;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        quire_seq_class *s = &seq->class[g];
        const int32_t first_seen = quire__window_start(class, seq->length) / QUIRE_T,
                      last = seq->last_page >= 0 ? seq->last_page : seq->length / QUIRE_T;
        for (; s->live_from < first_seen && s->live_from < last; s->live_from++) {
            int32_t *leaf = &s->table[s->live_from];
            if (*leaf == QUIRE_NO_LEAF || quire__pinned(quire__class_of(pool, *leaf), s->live_from))
                continue;
            quire__leaf_drop(pool, *leaf);
            *leaf = QUIRE_NO_LEAF;
        }
        if (!quire__sinks_needed(class, s)) {
            quire__leaf_drop(pool, s->sinks);
            s->sinks = QUIRE_NO_LEAF;
        }
    }
}
