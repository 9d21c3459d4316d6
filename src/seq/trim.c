/* Trims a sequence, also inside a sealed page.
 *
 * Let the cut lie in page p. If p is open, or the cut lies between pages, only references are
 * dropped. If p is the page sealed last, its raw rows (last_raw) become the open page again:
 * exact. Otherwise p is reopened from its packed values, which is counted.
 */
#include "seq/seq.h"

/* Every row that the next query of the shorter sequence would see must still exist, and so must
 * the page that is cut. */
static quire_status check_window(const quire_seq *seq, int32_t n_tokens) {
    const quire_pool *pool = seq->pool;
    const int32_t n_pages = seq->length / QUIRE_T;
    if (n_tokens == 0)
        return QUIRE_OK;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        const int32_t first = quire__window_start(class, n_tokens) / QUIRE_T;
        for (int32_t p = 0; p <= (n_tokens - 1) / QUIRE_T; p++) {
            const uint64_t seen = quire__rows_seen(class, p, n_tokens);
            const bool gone = p >= first && p < n_pages && seq->class[g].table[p] == QUIRE_NO_LEAF;
            if (gone || (seen & ~quire__rows_held(seq, g, p)))
                return quire__fail(
                    QUIRE_E_GONE,
                    "cannot trim to %d tokens: the window of %d tokens has moved past page %d",
                    (int)n_tokens, (int)class->window, (int)p);
        }
    }
    return QUIRE_OK;
}

/* A leaf with the raw rows of a sealed page: an existing one, shared, or a new one. NO_LEAF: no
 * room. */
static int32_t reopen(quire_seq *seq, int32_t g, int32_t page, bool *decoded) {
    quire_pool *pool = seq->pool;
    const quire_page_source source = quire__page_source(seq, g, page);
    if (source.raw != QUIRE_NO_LEAF) {
        quire__leaf_share(pool, source.raw);
        return source.raw;
    }
    const int32_t leaf = quire__leaf_take(pool, g, QUIRE_LEAF_RAW);
    if (leaf == QUIRE_NO_LEAF)
        return QUIRE_NO_LEAF;
    *decoded = true;
    pool->leaf[leaf].lost = ~quire__source_held(pool, &source);
    for (int32_t i = 0; i < pool->n_layers; i++)
        for (int32_t head = 0; pool->layer[i].class == g && pool->layer[i].source == i &&
                               head < pool->layer[i].config.n_kv_heads;
             head++)
            for (int v = 0; v < 2; v++) {
                /* Clamped to the form that the page has. If it is stale, `seal` refuses values
                 * that are too large for the new form. */
                const quire_format *form = &quire__layer_of(pool, i, source.leaf)->format;
                const quire_side_format *side = v ? &form->v : &form->k;
                quire__page_rows(pool, &source, i, head, v, pool->rows[0]);
                quire__clamp_rows(pool->rows[0], QUIRE_T * (size_t)side->dim,
                                  quire__largest_value(pool->raw, side));
                quire__raw_rows(pool, i, head, v, pool->rows[0], leaf);
            }
    return leaf;
}

/* The new open leaves of all classes, all or none, in pool->reserved. */
static quire_status reopen_all(quire_seq *seq, int32_t page) {
    quire_pool *pool = seq->pool;
    bool decoded = false;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        pool->reserved[g] = reopen(seq, g, page, &decoded);
        if (pool->reserved[g] != QUIRE_NO_LEAF)
            continue;
        while (g-- > 0)
            quire__leaf_drop(pool, pool->reserved[g]);
        return quire__fail(QUIRE_E_NO_PAGES,
                           "the pool is out of pages: none is free to reopen page %d", (int)page);
    }
    pool->reopened_pages += decoded;
    if (decoded)
        quire__history_note(seq, QUIRE_HISTORY_TRIMMED, page * QUIRE_T);
    return QUIRE_OK;
}

quire_status quire__seq_trim(quire_seq *seq, int32_t n_tokens) {
    quire_pool *pool = seq->pool;
    const int32_t page = n_tokens / QUIRE_T, n_pages = seq->length / QUIRE_T;
    const bool in_open = page == n_pages && n_tokens % QUIRE_T != 0,
               reopens = !in_open && n_tokens % QUIRE_T != 0;
    QUIRE_TRY(check_window(seq, n_tokens));
    if (reopens)
        QUIRE_TRY(reopen_all(seq, page));
    for (int32_t g = 0; g < pool->n_classes; g++) {
        quire_seq_class *s = &seq->class[g];
        /* check_window made sure that these pages exist. */
        const int32_t seen = quire__window_start(&pool->class[g], n_tokens) / QUIRE_T;
        if (s->live_from > seen)
            s->live_from = seen;
        if (in_open)
            continue;
        quire__leaf_drop(pool, s->open);
        s->open = reopens ? pool->reserved[g] : QUIRE_NO_LEAF;
        for (int32_t p = page; p < n_pages; p++)
            quire__leaf_drop(pool, s->table[p]);
        if (seq->last_page >= page) {
            quire__leaf_drop(pool, s->last_raw);
            s->last_raw = QUIRE_NO_LEAF;
        }
        if (page == 0) { /* page 0 is open again and has them, or is gone */
            quire__leaf_drop(pool, s->sinks);
            s->sinks = QUIRE_NO_LEAF;
        }
    }
    if (seq->last_page >= page)
        seq->last_page = -1;
    seq->length = n_tokens;
    quire__history_cut(seq);
    return QUIRE_OK;
}

static bool shares_pages(const quire_seq *seq) {
    const quire_pool *pool = seq->pool;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_seq_class *s = &seq->class[g];
        const int32_t beside[3] = {s->open, s->last_raw, s->sinks};
        for (int i = 0; i < 3; i++)
            if (beside[i] != QUIRE_NO_LEAF && pool->leaf[beside[i]].refs > 1)
                return true;
        for (int32_t p = 0; p < seq->length / QUIRE_T; p++)
            if (s->table[p] != QUIRE_NO_LEAF && pool->leaf[s->table[p]].refs > 1)
                return true;
    }
    return false;
}

static void forget(quire_seq *seq) {
    quire_pool *pool = seq->pool;
    quire__seq_drop_last_raw(seq);
    quire__seq_recycle(seq); /* pages that no query can see */
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        const quire_seq_class *s = &seq->class[g];
        for (int32_t p = 0; p <= seq->length / QUIRE_T; p++) {
            const uint64_t unseen = ~quire__rows_seen(class, p, seq->length);
            const int32_t leaf = p < seq->length / QUIRE_T ? s->table[p] : s->open;
            if (leaf != QUIRE_NO_LEAF)
                pool->leaf[leaf].lost |= unseen;
            if (p == 0 && s->sinks != QUIRE_NO_LEAF)
                pool->leaf[s->sinks].lost |= unseen;
        }
    }
}

quire_status quire_seq_forget(quire_seq *seq) {
    if (!seq)
        return quire__fail(QUIRE_E_INVALID, "sequence is NULL");
    pthread_mutex_lock(&seq->pool->lock);
    quire_status status = QUIRE_OK;
    if (seq->batch)
        status = quire__fail(QUIRE_E_BUSY, "cannot change a sequence that is in a batch");
    else if (shares_pages(seq))
        status = quire__fail(QUIRE_E_STATE,
                             "another sequence shares its pages and may still see those tokens");
    else
        forget(seq);
    pthread_mutex_unlock(&seq->pool->lock);
    return status;
}

quire_status quire_seq_trim(quire_seq *seq, int32_t n_tokens) {
    if (!seq)
        return quire__fail(QUIRE_E_INVALID, "sequence is NULL");
    quire_pool *pool = seq->pool;
    pthread_mutex_lock(&pool->lock);
    quire_status status;
    if (seq->batch)
        status = quire__fail(QUIRE_E_BUSY, "cannot trim a sequence that is in a batch");
    else if (n_tokens < 0 || n_tokens > seq->length)
        status = quire__fail(QUIRE_E_INVALID, "cannot trim a sequence of %d tokens to %d",
                             (int)seq->length, (int)n_tokens);
    else
        status = quire__seq_trim(seq, n_tokens);
    pthread_mutex_unlock(&pool->lock);
    return status;
}
