/* Plan, commit, abort. Everything that can fail fails in begin, before a byte is written. */
#include "batch/batch.h"

#include <string.h>

/* ------------------------------------------------------------------ checks of a call on a batch */

quire_status quire__batch_note(quire_batch *batch, quire_status status) {
    pthread_mutex_lock(&batch->pool->lock);
    if (batch->error[0] == 0)
        strncpy(batch->error, quire_last_error(), sizeof batch->error - 1);
    pthread_mutex_unlock(&batch->pool->lock);
    return status;
}

quire_status quire__batch_fail(quire_batch *batch, quire_status status) {
    quire__batch_note(batch, status);
    atomic_store(&batch->failed, true);
    return status;
}

quire_status quire__batch_check_call(const quire_batch *batch, int32_t layer, int32_t ith,
                                     int32_t nth) {
    if (!batch || !batch->used)
        return quire__fail(QUIRE_E_INVALID, "batch is NULL or over");
    if (layer < 0 || layer >= batch->pool->n_layers)
        return quire__fail(QUIRE_E_INVALID, "layer %d: the pool has %d", (int)layer,
                           (int)batch->pool->n_layers);
    if (nth < 1 || nth > batch->pool->max_workers || ith < 0 || ith >= nth)
        return quire__fail(QUIRE_E_INVALID, "worker %d of %d: the pool was made for at most %d",
                           (int)ith, (int)nth, (int)batch->pool->max_workers);
    return QUIRE_OK;
}

const char *quire_batch_error(const quire_batch *batch) { return batch ? batch->error : ""; }
int32_t quire_batch_rows(const quire_batch *batch) { return batch ? batch->n_rows : 0; }

/* ------------------------------------------------------------------ begin */

static quire_status check_items(quire_pool *pool, const quire_batch_item *items, size_t n_items,
                                const int32_t *pad) {
    if (n_items < 1 || n_items > (size_t)pool->max_seqs)
        return quire__fail(QUIRE_E_INVALID, "%zu sequences in a batch: must be 1 to %d", n_items,
                           (int)pool->max_seqs);
    int64_t rows = 0, padding = 0;
    for (size_t i = 0; i < n_items; i++) {
        const quire_seq *seq = items[i].seq;
        if (!seq || seq->pool != pool || !seq->used)
            return quire__fail(QUIRE_E_INVALID, "item %zu is not a sequence of this pool", i);
        if (seq->batch)
            return quire__fail(QUIRE_E_BUSY, "the sequence of item %zu is in a batch", i);
        if (items[i].n_tokens < 0)
            return quire__fail(QUIRE_E_INVALID, "item %zu has %d tokens", i,
                               (int)items[i].n_tokens);
        if ((int64_t)seq->length + items[i].n_tokens > pool->max_tokens)
            return quire__fail(QUIRE_E_TOO_BIG,
                               "item %zu: %d + %d tokens, a sequence holds at most %d", i,
                               (int)seq->length, (int)items[i].n_tokens, (int)pool->max_tokens);
        if (pad && pad[i] < 0)
            return quire__fail(QUIRE_E_INVALID, "item %zu has %d rows of padding", i, (int)pad[i]);
        rows += items[i].n_tokens;
        padding += pad ? pad[i] : 0;
    }
    if (rows > pool->max_batch_tokens)
        return quire__fail(QUIRE_E_INVALID,
                           "%lld rows in a batch: the pool was made for at most %d",
                           (long long)rows, (int)pool->max_batch_tokens);
    if (rows + padding > INT32_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "%lld rows of padding", (long long)padding);
    return QUIRE_OK;
}

static quire_batch *take_slot(quire_pool *pool) {
    for (int32_t i = 0; i < pool->max_batches; i++)
        if (!pool->batch[i].used)
            return &pool->batch[i];
    return NULL;
}

/* Cut each item's rows at page boundaries. */
static void make_tiles(quire_batch *batch) {
    batch->n_tiles = batch->n_rows = batch->n_tokens = 0;
    for (int32_t i = 0; i < batch->n_items; i++) {
        int32_t position = batch->before[i], left = batch->item[i].n_tokens;
        batch->n_rows += batch->pad[i];
        while (left > 0) {
            quire_tile *tile = &batch->tile[batch->n_tiles];
            const int32_t offset = position % QUIRE_T, room = QUIRE_T - offset,
                          n = left < room ? left : room;
            *tile = (quire_tile){.item = i,
                                 .page = position / QUIRE_T,
                                 .row = batch->n_rows,
                                 .n_rows = n,
                                 .offset = offset,
                                 .full = n == room};
            tile->class =
                batch->tile_class + (size_t)batch->n_tiles * (size_t)batch->pool->n_classes;
            for (int32_t g = 0; g < batch->pool->n_classes; g++)
                tile->class[g] = (quire_tile_class){.raw = QUIRE_NO_LEAF,
                                                    .scratch = -1,
                                                    .seal = QUIRE_NO_LEAF,
                                                    .copy_from = QUIRE_NO_LEAF,
                                                    .sinks = QUIRE_NO_LEAF};
            batch->n_tiles++;
            batch->n_rows += n;
            batch->n_tokens += n;
            position += n;
            left -= n;
        }
    }
}

/* Leaves for one tile and class. false: the pool is out of pages, and what was taken is noted in
 * the tile. */
static bool reserve(quire_batch *batch, quire_tile *tile, int32_t g) {
    quire_pool *pool = batch->pool;
    const quire_class *class = &pool->class[g];
    quire_seq *seq = batch->item[tile->item].seq;
    quire_seq_class *s = &seq->class[g];
    quire_tile_class *plan = &tile->class[g];
    const int32_t last_full =
        (batch->before[tile->item] + batch->item[tile->item].n_tokens) / QUIRE_T - 1;

    /* The new rows are there; of those before them, what the open page has. */
    const uint64_t lost =
        tile->offset > 0 ? pool->leaf[s->open].lost & quire__rows_below(tile->offset) : 0;
    if (tile->offset > 0 && pool->leaf[s->open].refs == 1) {
        plan->raw = s->open;
        pool->leaf[plan->raw].lost = lost;
    } else if (tile->full && tile->page < last_full && tile->offset == 0 && !class->raw) {
        plan->scratch =
            batch->n_scratch; /* its raw rows are needed only while their layer is attended */
    } else {
        plan->raw = quire__leaf_take(pool, g, QUIRE_LEAF_RAW);
        if (plan->raw == QUIRE_NO_LEAF)
            return false;
        if (tile->offset > 0)
            plan->copy_from = s->open;
        pool->leaf[plan->raw].lost = lost;
    }
    if (!tile->full)
        return true;
    plan->seal = class->raw ? plan->raw : quire__leaf_take(pool, g, QUIRE_LEAF_SEALED);
    if (plan->seal == QUIRE_NO_LEAF)
        return false;
    s->table[tile->page] = plan->seal;
    pool->leaf[plan->seal].lost = lost;
    if (tile->page == 0 && class->sinks > 0) {
        plan->sinks = s->sinks = quire__leaf_take(pool, g, QUIRE_LEAF_SINKS);
        if (plan->sinks == QUIRE_NO_LEAF)
            return false;
        pool->leaf[plan->sinks].lost = lost;
    }
    return true;
}

static void release(quire_batch *batch, quire_tile *tile, int32_t g) {
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

static quire_status reserve_all(quire_batch *batch) {
    quire_pool *pool = batch->pool;
    batch->n_scratch = 0;
    for (int32_t i = 0; i < batch->n_tiles; i++) {
        bool scratch = false;
        for (int32_t g = 0; g < pool->n_classes; g++) {
            if (!reserve(batch, &batch->tile[i], g)) {
                for (int32_t j = 0; j <= i; j++)
                    for (int32_t h = 0; h < pool->n_classes; h++)
                        release(batch, &batch->tile[j], h);
                quire__leaf_settle(pool);
                return quire__fail(QUIRE_E_NO_PAGES,
                                   "pool is out of pages: %zu bytes free, largest piece %zu",
                                   pool->arena.free_bytes, quire__arena_largest(&pool->arena));
            }
            scratch = scratch || batch->tile[i].class[g].scratch >= 0;
        }
        batch->n_scratch += scratch;
    }
    return QUIRE_OK;
}

/* Whether a tile's queries see a page that awaits conversion. */
static bool sees_stale(const quire_pool *pool, const quire_seq_class *s, const quire_tile *tile) {
    for (int32_t p = 0; pool->changing && p < tile->page; p++)
        if (s->table[p] != QUIRE_NO_LEAF && quire__leaf_stale(pool, s->table[p]))
            return true;
    return false;
}

/* Which chunks a tile's queries see, and how its attention is divided among workers. Division
 * never changes results: chunks are merged in order either way. */
static void plan_attention(quire_batch *batch) {
    enum {
        MOST_SPLIT_ROWS = 8
    }; /* with more rows than this a tile is work enough for one worker */
    const quire_pool *pool = batch->pool;
    int32_t slots = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        batch->n_units[g] = 0;
    for (int32_t i = 0; i < batch->n_tiles; i++) {
        quire_tile *tile = &batch->tile[i];
        int32_t most = 0;
        for (int32_t g = 0; g < pool->n_classes; g++) {
            quire_tile_class *plan = &tile->class[g];
            const quire_class *class = &pool->class[g];
            if (tile->page == 0)
                continue;
            const int32_t first_seen =
                quire__window_start(class, tile->page * QUIRE_T + tile->offset) / QUIRE_T;
            const int32_t pinned_pages = (class->keep + QUIRE_T - 1) / QUIRE_T;
            /* Chunks first_chunk .. end-1 are in the window: none if it lies within the own
             * page. */
            const int32_t end = (tile->page - 1) / QUIRE_CHUNK_PAGES + 1;
            plan->first_chunk = first_seen < tile->page ? first_seen / QUIRE_CHUNK_PAGES : end;
            plan->n_pinned = (pinned_pages + QUIRE_CHUNK_PAGES - 1) / QUIRE_CHUNK_PAGES;
            if (plan->n_pinned > plan->first_chunk)
                plan->n_pinned = plan->first_chunk;
            plan->n_chunks = plan->n_pinned + end - plan->first_chunk;
            plan->sees_stale = sees_stale(pool, &batch->item[tile->item].seq->class[g], tile);
            if (quire__tile_parts(plan) > most)
                most = quire__tile_parts(plan);
        }
        const int32_t wanted = tile->n_rows * (most + 1);
        tile->split =
            most > 1 && tile->n_rows <= MOST_SPLIT_ROWS && wanted <= pool->split_rows - slots;
        tile->first_slot = slots;
        if (tile->split)
            slots += wanted;
        for (int32_t g = 0; g < pool->n_classes; g++) {
            tile->class[g].first_unit = batch->n_units[g];
            batch->n_units[g] += tile->split ? quire__tile_parts(&tile->class[g]) + 1 : 1;
        }
    }
}

quire_status quire_batch_begin(quire_pool *pool, const quire_batch_item *items, size_t n_items,
                               quire_batch **result) {
    return quire_batch_begin_padded(pool, items, n_items, NULL, result);
}

quire_status quire_batch_begin_padded(quire_pool *pool, const quire_batch_item *items,
                                      size_t n_items, const int32_t *pad, quire_batch **result) {
    if (!pool || !items || !result)
        return quire__fail(QUIRE_E_INVALID, "pool, items or result is NULL");
    *result = NULL;
    pthread_mutex_lock(&pool->lock);
    quire_status status = check_items(pool, items, n_items, pad);
    quire_batch *batch = take_slot(pool);
    if (status == QUIRE_OK && !batch)
        status =
            quire__fail(QUIRE_E_NO_SLOT, "all %d batches are in flight", (int)pool->max_batches);
    if (status == QUIRE_OK) {
        batch->n_items = 0;
        batch->padded = false;
        for (size_t i = 0; i < n_items && status == QUIRE_OK; i++) {
            if (items[i].seq->batch)
                status = quire__fail(QUIRE_E_INVALID,
                                     "the sequence of item %zu is in the batch twice", i);
            else {
                items[i].seq->batch = batch;
                batch->item[batch->n_items] = items[i];
                batch->pad[batch->n_items] = pad ? pad[i] : 0;
                batch->padded = batch->padded || batch->pad[batch->n_items] > 0;
                batch->before[batch->n_items++] = items[i].seq->length;
            }
        }
        if (status == QUIRE_OK) {
            make_tiles(batch);
            status = reserve_all(batch);
        }
        if (status != QUIRE_OK)
            for (int32_t i = 0; i < batch->n_items; i++)
                batch->item[i].seq->batch = NULL;
    }
    if (status == QUIRE_OK) {
        plan_attention(batch);
        for (int32_t i = 0; i < pool->n_regions; i++)
            atomic_store(&batch->region_layer[i], -1);
        for (int32_t i = 0; i < pool->n_layers; i++) {
            atomic_store(&batch->appended[i], 0);
            atomic_store(&batch->appended_nth[i], 1);
        }
        for (int32_t i = 0; i < batch->n_tiles * batch->tile_done_stride; i++)
            atomic_store(&batch->tile_done[i], 0);
        atomic_store(&batch->next_unit, 0);
        atomic_store(&batch->n_finished, 0);
        atomic_store(&batch->failed, false);
        batch->error[0] = 0;
        batch->used = true;
        *result = batch;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ------------------------------------------------------------------ commit and abort */

static quire_status check_commit(const quire_batch *batch, const int32_t *n_accept) {
    if (atomic_load(&batch->failed))
        return quire__fail(QUIRE_E_STATE, "batch failed and can only be aborted: %.200s",
                           batch->error);
    for (int32_t i = 0; i < batch->pool->n_layers && batch->n_rows > 0; i++)
        if (batch->pool->layer[i].source == i && !quire__batch_appended(batch, i))
            return quire__fail(QUIRE_E_STATE, "layer %d was not stored by all workers", (int)i);
    for (int32_t i = 0; n_accept && i < batch->n_items; i++) {
        const int32_t n = batch->item[i].n_tokens;
        if (n_accept[i] < 0 || n_accept[i] > n)
            return quire__fail(QUIRE_E_INVALID, "item %d keeps %d of %d tokens", (int)i,
                               (int)n_accept[i], (int)n);
        const int32_t kept = batch->before[i] + n_accept[i], end = batch->before[i] + n;
        if (kept % QUIRE_T != 0 && kept / QUIRE_T < end / QUIRE_T - 1)
            return quire__fail(QUIRE_E_INVALID, "item %d: token %d lies before the last two pages",
                               (int)i, (int)kept);
    }
    return QUIRE_OK;
}

/* Hand the leaves of one item's tiles and one class to its sequence, which is to have `length`
 * tokens; what lies beyond is given up, and with it the seal of a page that is no longer full.
 * check_commit has seen that its raw rows are there. */
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
        quire__leaf_drop(pool, plan->copy_from); /* the shared page this sequence has now left */
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
        } else if (!(sealed && plan->seal == plan->raw)) { /* that one is in the table as it is */
            quire__leaf_drop(pool, plan->raw);
        }
    }
    s->open = open;
}

quire_status quire_batch_commit(quire_batch *batch, const int32_t *n_accept) {
    if (!batch || !batch->used)
        return quire__fail(QUIRE_E_INVALID, "batch is NULL or over");
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

void quire_batch_abort(quire_batch *batch) {
    if (!batch || !batch->used)
        return;
    quire_pool *pool = batch->pool;
    pthread_mutex_lock(&pool->lock);
    for (int32_t i = 0; i < batch->n_tiles; i++)
        for (int32_t g = 0; g < pool->n_classes; g++)
            release(batch, &batch->tile[i], g);
    for (int32_t i = 0; i < batch->n_items; i++)
        batch->item[i].seq->batch = NULL;
    batch->used = false;
    pthread_mutex_unlock(&pool->lock);
}
