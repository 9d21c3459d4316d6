/* Lists of sequences that are decoded together (elsewhere called a batched cache). */
#include "seq/seq.h"

static quire_status check_list(const quire_list *list) {
    if (!list || list->n < 0 || list->n > list->capacity || (list->capacity > 0 && !list->seq))
        return quire__fail(QUIRE_E_INVALID,
                           "list is NULL, or its n and capacity do not fit its array");
    return QUIRE_OK;
}

quire_status quire_list_merge(quire_list *list, quire_seq *const *seqs, int32_t n) {
    QUIRE_TRY(check_list(list));
    if (n < 0 || (n > 0 && !seqs))
        return quire__fail(
            QUIRE_E_INVALID,
            "cannot merge %d sequences: the number is negative, or the array is NULL", (int)n);
    if (n > list->capacity - list->n)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "a list for %d sequences has %d and cannot take %d more",
                           (int)list->capacity, (int)list->n, (int)n);
    const quire_seq *first = list->n > 0 ? list->seq[0] : n > 0 ? seqs[0] : NULL;
    for (int32_t i = 0; i < n; i++)
        if (!seqs[i] || seqs[i]->pool != first->pool)
            return quire__fail(QUIRE_E_INVALID,
                               "sequence %d to merge is NULL or belongs to another pool", (int)i);
    for (int32_t i = 0; i < n; i++) {
        const quire_status status = quire_seq_fork(seqs[i], &list->seq[list->n + i]);
        if (status == QUIRE_OK)
            continue;
        while (i-- > 0)
            quire_seq_free(list->seq[list->n + i]);
        return status;
    }
    list->n += n;
    return QUIRE_OK;
}

static quire_status check_index(const quire_list *list, int32_t index) {
    if (index < 0 || index >= list->n)
        return quire__fail(QUIRE_E_INVALID, "there is no sequence %d in a list of %d", (int)index,
                           (int)list->n);
    return QUIRE_OK;
}

quire_status quire_list_extract(const quire_list *list, int32_t index, quire_seq **seq) {
    QUIRE_TRY(check_list(list));
    QUIRE_TRY(check_index(list, index));
    return quire_seq_fork(list->seq[index], seq);
}

/* Gives every sequence its new place: its index in `keep`, or NOT_KEPT. The caller holds the
 * lock. */
enum { UNSEEN = -1, NOT_KEPT = -2 };

static quire_status assign_places(const quire_list *list, const int32_t *keep, int32_t n_keep) {
    for (int32_t i = 0; i < list->n; i++)
        list->seq[i]->place = UNSEEN;
    for (int32_t i = 0; i < list->n; i++) {
        if (list->seq[i]->place != UNSEEN)
            return quire__fail(QUIRE_E_INVALID, "sequence %d occurs twice in the list", (int)i);
        list->seq[i]->place = NOT_KEPT;
    }
    for (int32_t i = 0; i < n_keep; i++) {
        QUIRE_TRY(check_index(list, keep[i]));
        quire_seq *seq = list->seq[keep[i]];
        if (seq->place != NOT_KEPT)
            return quire__fail(QUIRE_E_INVALID, "index %d occurs twice in keep", (int)keep[i]);
        seq->place = i;
    }
    for (int32_t i = 0; i < list->n; i++)
        if (list->seq[i]->place == NOT_KEPT && list->seq[i]->batch)
            return quire__fail(QUIRE_E_BUSY, "sequence %d of the list is in a batch", (int)i);
    return QUIRE_OK;
}

quire_status quire_list_filter(quire_list *list, const int32_t *keep, int32_t n_keep) {
    QUIRE_TRY(check_list(list));
    if (n_keep < 0 || n_keep > list->n || (n_keep > 0 && !keep))
        return quire__fail(QUIRE_E_INVALID, "cannot keep %d of %d sequences", (int)n_keep,
                           (int)list->n);
    for (int32_t i = 0; i < list->n; i++)
        if (!list->seq[i] || !list->seq[i]->used || list->seq[i]->pool != list->seq[0]->pool)
            return quire__fail(QUIRE_E_INVALID, "item %d of the list is not a sequence of its pool",
                               (int)i);
    if (list->n == 0)
        return QUIRE_OK;
    quire_pool *pool = list->seq[0]->pool;
    pthread_mutex_lock(&pool->lock);
    const quire_status status = assign_places(list, keep, n_keep);
    if (status == QUIRE_OK) {
        int32_t n = 0;
        for (int32_t i = 0; i < list->n; i++) {
            if (list->seq[i]->place == NOT_KEPT)
                quire__seq_release(list->seq[i]);
            else
                list->seq[n++] = list->seq[i];
        }
        list->n = n;
        for (int32_t i = 0; i < n; i++)
            while (list->seq[i]->place != i) {
                const int32_t place = list->seq[i]->place;
                quire_seq *other = list->seq[place];
                list->seq[place] = list->seq[i];
                list->seq[i] = other;
            }
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

quire_status quire_list_extend(quire_list *list, quire_list *other) {
    QUIRE_TRY(check_list(list));
    QUIRE_TRY(check_list(other));
    if (list == other)
        return quire__fail(QUIRE_E_INVALID, "a list cannot be extended by itself");
    if (other->n > list->capacity - list->n)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "a list for %d sequences has %d and cannot take %d more",
                           (int)list->capacity, (int)list->n, (int)other->n);
    if (list->n > 0 && other->n > 0 && list->seq[0]->pool != other->seq[0]->pool)
        return quire__fail(QUIRE_E_INVALID, "the two lists belong to different pools");
    for (int32_t i = 0; i < other->n; i++)
        list->seq[list->n++] = other->seq[i];
    other->n = 0;
    return QUIRE_OK;
}

quire_status quire_list_clear(quire_list *list) { return quire_list_filter(list, NULL, 0); }
