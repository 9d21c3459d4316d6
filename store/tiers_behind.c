/* Writing behind: a queue and a thread for each slow place. */
#include "store/tiers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void quire__tier_note(quire_tier *t, quire_tier_call call, quire_status status) {
    pthread_mutex_lock(&t->queue_lock);
    *(call == QUIRE_TIER_READ ? &t->fails_reads : &t->fails_writes) = status != QUIRE_OK;
    const bool was_failing = t->stats.is_failing;
    t->stats.is_failing = t->fails_reads || t->fails_writes;
    if (status != QUIRE_OK) {
        t->stats.errors++;
        snprintf(t->stats.error, sizeof t->stats.error, "%s", quire_last_error());
    }
    const quire_store_tier now = t->stats;
    pthread_mutex_unlock(&t->queue_lock);
    if (now.is_failing != was_failing && t->all->on_tier)
        t->all->on_tier(t->all->user, &now);
}

void quire__tier_count(quire_tier *t, uint64_t *counter, uint64_t more) {
    pthread_mutex_lock(&t->queue_lock);
    *counter += more;
    pthread_mutex_unlock(&t->queue_lock);
}

/* ------------------------------------------------------------------ what is written */

quire_behind *quire__behind_make(const quire_store_key *keys, size_t n_keys,
                                 const quire_backend_item *items, size_t n) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++)
        n_bytes += items[i].n_bytes;
    quire_behind *b = malloc(sizeof *b);
    quire_store_key *own_keys = malloc(n_keys * sizeof *own_keys + 1);
    quire_backend_item *own = malloc(n * sizeof *own + 1);
    uint8_t *bytes = malloc(n_bytes + 1);
    if (!b || !own_keys || !own || !bytes) {
        free(b), free(own_keys), free(own), free(bytes);
        return NULL;
    }
    memcpy(own_keys, keys, n_keys * sizeof *own_keys);
    *b = (quire_behind){.refs = 1,
                        .keys = own_keys,
                        .n_keys = n_keys,
                        .items = own,
                        .n = n,
                        .bytes = bytes,
                        .n_bytes = n_bytes + n_keys * sizeof *own_keys};
    for (size_t i = 0, at = 0; i < n; i++) {
        own[i] = items[i];
        own[i].bytes = memcpy(bytes + at, items[i].bytes, items[i].n_bytes);
        at += items[i].n_bytes;
    }
    return b;
}

void quire__behind_release(quire_tiers *all, quire_behind *b) {
    if (!b)
        return;
    pthread_mutex_lock(&all->behind_lock);
    const bool is_last = --b->refs == 0;
    pthread_mutex_unlock(&all->behind_lock);
    if (!is_last)
        return;
    free(b->keys);
    free(b->items);
    free(b->bytes);
    free(b);
}

static uint64_t record_bytes(const quire_behind *b) {
    return b->n_bytes - b->n_keys * sizeof *b->keys;
}

bool quire__behind_add(quire_tier *t, quire_behind *b) {
    quire_behind_job *job = b ? malloc(sizeof *job) : NULL;
    pthread_mutex_lock(&t->queue_lock);
    const bool fits = job && t->stats.queued_bytes + b->n_bytes <= t->all->queue_bytes;
    if (fits) {
        *job = (quire_behind_job){.what = b};
        pthread_mutex_lock(&t->all->behind_lock);
        b->refs++;
        pthread_mutex_unlock(&t->all->behind_lock);
        *(t->last ? &t->last->next : &t->first) = job;
        t->last = job;
        t->stats.queued_records += b->n;
        t->stats.queued_bytes += b->n_bytes;
        pthread_cond_signal(&t->has_work);
    } else if (b) {
        t->stats.dropped_records += b->n;
        t->stats.dropped_bytes += record_bytes(b);
    }
    pthread_mutex_unlock(&t->queue_lock);
    if (!fits)
        free(job);
    return fits;
}

quire_status quire__write_parts(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                                const quire_backend_item *items, size_t n,
                                quire_store_added *added) {
    *added = (quire_store_added){0};
    for (size_t first = 0; first < n;) {
        size_t end = first, n_bytes = 0;
        while (end < n && (end == first || n_bytes + items[end].n_bytes <= backend->batch_bytes))
            n_bytes += items[end++].n_bytes;
        quire_store_added more;
        const quire_status status =
            backend->write(backend, keys, n_keys, items + first, end - first, &more);
        added->pages += more.pages;
        added->bytes += more.bytes;
        QUIRE_TRY(status);
        first = end;
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ the thread */

/* Moves the items that the place lacks to the front; returns how many these are. */
static quire_status leave_lacking(quire_backend *backend, const quire_behind *b,
                                  quire_backend_item *items, size_t *n) {
    quire_record_id *ids = malloc(b->n * sizeof *ids);
    bool *present = malloc(b->n * sizeof *present);
    quire_status status = QUIRE_OK;
    *n = 0;
    if (!ids || !present)
        status = quire__fail(QUIRE_E_NOMEM, "out of memory while writing behind");
    for (size_t i = 0; status == QUIRE_OK && i < b->n; i++)
        ids[i] = b->items[i].id;
    if (status == QUIRE_OK)
        status = backend->has(backend, ids, b->n, present);
    for (size_t i = 0; status == QUIRE_OK && i < b->n; i++)
        if (!present[i])
            items[(*n)++] = b->items[i];
    free(ids);
    free(present);
    return status;
}

/* *has_written false: nothing was to be written, so its success says nothing of the next write. */
static quire_status write_behind(quire_tier *t, const quire_behind *b, bool *has_written) {
    quire_backend *w = t->writer;
    *has_written = false;
    if (b->n == 0)
        return w->touch(w, b->keys, b->n_keys);
    size_t n = 0;
    quire_store_added added = {0};
    quire_backend_item *items = malloc(b->n * sizeof *items); /* other threads read b->items */
    if (!items)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while writing behind");
    quire_status status = leave_lacking(w, b, items, &n);
    if (status == QUIRE_OK)
        status = quire__write_parts(w, b->keys, b->n_keys, items, n, &added);
    free(items);
    *has_written = n > 0;
    pthread_mutex_lock(&t->queue_lock);
    if (status == QUIRE_OK) {
        t->stats.written_records += n;
        t->stats.written_bytes += added.bytes;
    } else {
        t->stats.dropped_records += b->n;
        t->stats.dropped_bytes += record_bytes(b);
    }
    pthread_mutex_unlock(&t->queue_lock);
    return status;
}

/* The caller holds the lock of the queue. */
static quire_behind *take_job(quire_tier *t) {
    quire_behind_job *job = t->first;
    quire_behind *b = job->what;
    t->first = job->next;
    t->last = t->first ? t->last : NULL;
    free(job);
    return b;
}

static void *work(void *user) {
    quire_tier *t = user;
    bool gives_up = false; /* the store is being closed, and the place fails */
    pthread_mutex_lock(&t->queue_lock);
    for (;;) {
        while (!t->first && !t->is_ending)
            pthread_cond_wait(&t->has_work, &t->queue_lock);
        if (!t->first)
            break;
        quire_behind *b = take_job(t);
        t->is_working = true;
        if (gives_up) {
            t->stats.dropped_records += b->n;
            t->stats.dropped_bytes += record_bytes(b);
        }
        pthread_mutex_unlock(&t->queue_lock);
        if (!gives_up) {
            pthread_mutex_lock(&t->lock);
            bool has_written;
            const quire_status status = write_behind(t, b, &has_written);
            pthread_mutex_unlock(&t->lock);
            /* A text that is larger than the place is no failure of the place. */
            gives_up = status != QUIRE_OK && status != QUIRE_E_TOO_BIG;
            if (gives_up || (has_written && status == QUIRE_OK))
                quire__tier_note(t, QUIRE_TIER_WRITE, status);
        }
        pthread_mutex_lock(&t->queue_lock);
        t->stats.queued_records -= b->n;
        t->stats.queued_bytes -= b->n_bytes;
        t->is_working = false;
        gives_up = gives_up && t->is_ending;
        quire__behind_release(t->all, b);
        if (!t->first)
            pthread_cond_broadcast(&t->is_idle);
    }
    pthread_mutex_unlock(&t->queue_lock);
    return NULL;
}

quire_status quire__behind_start(quire_tier *t) {
    t->has_thread = pthread_create(&t->thread, NULL, work, t) == 0;
    return t->has_thread ? QUIRE_OK
                         : quire__fail(QUIRE_E_NOMEM, "a thread for writing cannot be started");
}

void quire__behind_end(quire_tier *t) {
    if (!t->has_thread)
        return;
    pthread_mutex_lock(&t->queue_lock);
    t->is_ending = true;
    pthread_cond_signal(&t->has_work);
    pthread_mutex_unlock(&t->queue_lock);
    pthread_join(t->thread, NULL);
    t->has_thread = false;
}

void quire__behind_wait(quire_tier *t) {
    pthread_mutex_lock(&t->queue_lock);
    while (t->has_thread && (t->first || t->is_working))
        pthread_cond_wait(&t->is_idle, &t->queue_lock);
    pthread_mutex_unlock(&t->queue_lock);
}
