/* Begins a batch: checks it, reserves its leaves and plans its attention. Everything that can fail
 * fails here, before a byte is written. */
#include "batch/batch.h"

static quire_status check_items(quire_pool *pool, const quire_batch_item *items, size_t n_items,
                                const int32_t *pad) {
    if (n_items < 1 || n_items > (size_t)pool->max_seqs)
        return quire__fail(QUIRE_E_INVALID, "a batch of %zu sequences: must be 1 to %d (max_seqs)",
                           n_items, (int)pool->max_seqs);
    int64_t rows = 0, padding = 0;
    for (size_t i = 0; i < n_items; i++) {
        const quire_seq *seq = items[i].seq;
        if (!seq || seq->pool != pool || !seq->used)
            return quire__fail(QUIRE_E_INVALID, "item %zu is not a sequence of this pool", i);
        if (seq->batch)
            return quire__fail(QUIRE_E_BUSY, "the sequence of item %zu is already in a batch", i);
        if (items[i].n_tokens < 0)
            return quire__fail(QUIRE_E_INVALID, "item %zu has %d tokens: must not be negative", i,
                               (int)items[i].n_tokens);
        if ((int64_t)seq->length + items[i].n_tokens > pool->max_tokens)
            return quire__fail(QUIRE_E_TOO_BIG,
                               "item %zu: %d + %d tokens; a sequence holds at most %d (max_tokens)",
                               i, (int)seq->length, (int)items[i].n_tokens, (int)pool->max_tokens);
        if (pad && pad[i] < 0)
            return quire__fail(QUIRE_E_INVALID,
                               "item %zu has %d rows of padding: must not be negative", i,
                               (int)pad[i]);
        rows += items[i].n_tokens;
        padding += pad ? pad[i] : 0;
    }
    if (rows > pool->max_batch_tokens)
        return quire__fail(QUIRE_E_INVALID,
                           "a batch of %lld rows: the pool takes at most %d (max_batch_tokens)",
                           (long long)rows, (int)pool->max_batch_tokens);
    if (rows + padding > INT32_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "%lld rows of padding are too many",
                           (long long)padding);
    return QUIRE_OK;
}

static quire_batch *take_slot(quire_pool *pool) {
    for (int32_t i = 0; i < pool->max_batches; i++)
        if (!pool->batch[i].used)
            return &pool->batch[i];
    return NULL;
}

/* Cuts each item's rows at page boundaries. */
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

/* Reserves the leaves for one tile and class. false: the pool is out of pages; the tile records
 * what has been taken. */
static bool reserve(quire_batch *batch, quire_tile *tile, int32_t g) {
    quire_pool *pool = batch->pool;
    const quire_class *class = &pool->class[g];
    quire_seq *seq = batch->item[tile->item].seq;
    quire_seq_class *s = &seq->class[g];
    quire_tile_class *plan = &tile->class[g];
    const int32_t last_full =
        (batch->before[tile->item] + batch->item[tile->item].n_tokens) / QUIRE_T - 1;

    /* All new rows exist; of the earlier ones, those that the open page has. */
    const uint64_t lost =
        tile->offset > 0 ? pool->leaf[s->open].lost & quire__rows_below(tile->offset) : 0;
    if (tile->offset > 0 && pool->leaf[s->open].refs == 1) {
        plan->raw = s->open;
        pool->leaf[plan->raw].lost = lost;
    } else if (tile->full && tile->page < last_full && tile->offset == 0 && !class->raw) {
        /* Its raw rows are needed only while their layer is attended. */
        plan->scratch = batch->n_scratch;
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

static quire_status reserve_all(quire_batch *batch) {
    quire_pool *pool = batch->pool;
    batch->n_scratch = 0;
    for (int32_t i = 0; i < batch->n_tiles; i++) {
        bool scratch = false;
        for (int32_t g = 0; g < pool->n_classes; g++) {
            if (!reserve(batch, &batch->tile[i], g)) {
                for (int32_t j = 0; j <= i; j++)
                    for (int32_t h = 0; h < pool->n_classes; h++)
                        quire__batch_release(batch, &batch->tile[j], h);
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

/* Finds the chunks that a tile's queries see, and divides its attention among workers. The division
 * never changes results: chunks are always merged in order. */
static void plan_attention(quire_batch *batch) {
    /* A tile with more rows is enough work for one worker. */
    enum { MOST_SPLIT_ROWS = 8 };
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
            /* Chunks first_chunk .. end-1 are in the window; none if the window lies within the
             * tile's own page. */
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
        status = quire__fail(
            QUIRE_E_NO_SLOT,
            "all %d batches of the pool are in flight; commit or abort one, or raise max_batches",
            (int)pool->max_batches);
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
            atomic_store(&batch->appended_nth[i], 0);
            for (int32_t w = 0; w < pool->max_workers; w++) /* no worker has the batch yet */
                atomic_store_explicit(&batch->appended[(ptrdiff_t)i * pool->max_workers + w], 0,
                                      memory_order_relaxed);
        }
        for (int32_t i = 0; i < batch->n_tiles * batch->tile_done_stride; i++)
            atomic_store(&batch->tile_done[i], 0);
        atomic_store(&batch->next_unit, 0);
        atomic_store(&batch->n_finished, 0);
        atomic_store(&batch->uncounted, false);
        atomic_store(&batch->failed, false);
        batch->error[0] = 0;
        batch->used = true;
        *result = batch;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
