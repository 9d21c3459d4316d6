/* Errors of a batch, and checks of a call on one. */
#include "batch/batch.h"

#include <stdio.h>

static quire_status note(quire_batch *batch, quire_status status, bool fails) {
    pthread_mutex_lock(&batch->pool->lock);
    if (batch->error[0] == 0 || (fails && !atomic_load(&batch->failed)))
        snprintf(batch->error, sizeof batch->error, "%s", quire_last_error());
    if (fails)
        atomic_store(&batch->failed, true);
    pthread_mutex_unlock(&batch->pool->lock);
    return status;
}

quire_status quire__batch_note(quire_batch *batch, quire_status status) {
    return note(batch, status, false);
}

quire_status quire__batch_fail(quire_batch *batch, quire_status status) {
    return note(batch, status, true);
}

bool quire__batch_appended(const quire_batch *batch, int32_t layer) {
    const int nth = atomic_load(&batch->appended_nth[layer]);
    const atomic_int *by = batch->appended + (ptrdiff_t)layer * batch->pool->max_workers;
    for (int i = 0; i < nth; i++)
        if (atomic_load(&by[i]) != nth)
            return false;
    return nth > 0;
}

static quire_status check_numbers(const quire_batch *batch, int32_t layer, int32_t ith,
                                  int32_t nth) {
    if (layer < 0 || layer >= batch->pool->n_layers)
        return quire__fail(QUIRE_E_INVALID, "there is no layer %d: the pool has %d layers",
                           (int)layer, (int)batch->pool->n_layers);
    if (nth < 1 || nth > batch->pool->max_workers || ith < 0 || ith >= nth)
        return quire__fail(QUIRE_E_INVALID,
                           "worker %d of %d: the pool has at most %d workers (max_workers)",
                           (int)ith, (int)nth, (int)batch->pool->max_workers);
    return QUIRE_OK;
}

quire_status quire__batch_check_call(quire_batch *batch, int32_t layer, int32_t ith, int32_t nth) {
    if (!batch || !batch->used)
        return quire__fail(QUIRE_E_INVALID, "batch is NULL, or was already committed or aborted");
    const quire_status status = check_numbers(batch, layer, ith, nth);
    return status == QUIRE_OK ? QUIRE_OK : quire__batch_note(batch, status);
}

const char *quire_batch_error(const quire_batch *batch) { return batch ? batch->error : ""; }
int32_t quire_batch_rows(const quire_batch *batch) { return batch ? batch->n_rows : 0; }
