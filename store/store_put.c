/* Puts the pages that a store lacks, first to last, one batch at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

/* All pieces that the source has, in the order of pages. */
typedef struct wanted {
    quire_record_id *id;
    int32_t *page; /* -1: the root */
    bool *present;
    size_t n;
} wanted;

typedef struct putter {
    quire_store *store;
    const quire_chain *chain;
    const quire_store_text *text;
    const quire_piece_source *source;
    wanted all;
    uint8_t *buffer; /* records of a batch, one after the other */
    size_t n_bytes, capacity;
    quire_backend_item *items;
    size_t n_items;
    quire_store_added *added;
} putter;

static quire_status no_memory(void) {
    return quire__fail(QUIRE_E_NOMEM, "out of memory while storing pages");
}

static void wanted_free(wanted *w) {
    free(w->id);
    free(w->page);
    free(w->present);
}

static void want(wanted *w, const quire_store_key *key, int32_t piece, int32_t page) {
    w->id[w->n] = (quire_record_id){.key = *key, .piece = (uint32_t)piece};
    w->page[w->n++] = page;
}

static quire_status list_wanted(putter *p) {
    const int32_t n_pieces = quire__piece_count(p->source->pieces), n_pages = p->chain->n_pages;
    size_t n = 1;
    for (int32_t page = 0; page < n_pages; page++)
        for (int32_t piece = 0; piece < n_pieces; piece++)
            n += p->source->has(p->source->user, piece, page);
    wanted *w = &p->all;
    w->id = malloc(n * sizeof *w->id);
    w->page = malloc(n * sizeof *w->page);
    w->present = malloc(n * sizeof *w->present);
    if (!w->id || !w->page || !w->present)
        return no_memory();
    want(w, &p->chain->key[0], 0, -1);
    for (int32_t page = 0; page < n_pages; page++)
        for (int32_t piece = 0; piece < n_pieces; piece++)
            if (p->source->has(p->source->user, piece, page))
                want(w, &p->chain->key[page + 1], piece, page);
    quire_backend *b = p->store->backend;
    return (b->may_skip ? b->may_skip : b->has)(b, w->id, w->n, w->present);
}

/* ------------------------------------------------------------------ records */

static size_t payload_bytes(const putter *p, size_t i) {
    return p->all.page[i] < 0
               ? quire__root_bytes(p->text->identity_bytes, p->chain->layers_bytes,
                                   p->chain->has_salt)
               : quire__piece_bytes(p->source->pieces, (int32_t)p->all.id[i].piece, p->all.page[i]);
}

static quire_status fill_record(const putter *p, size_t i, uint8_t *bytes, size_t n_bytes) {
    const int32_t page = p->all.page[i];
    const quire_record_id id = p->all.id[i];
    quire_record record = {.id = id,
                           .root = p->chain->key[0],
                           .depth = (uint32_t)(page + 1),
                           .payload_bytes = payload_bytes(p, i)};
    if (page >= 0)
        record.parent = p->chain->key[page];
    uint8_t *payload = quire__record_start(
        bytes, &record, page < 0 ? NULL : p->text->tokens + (size_t)page * QUIRE_PAGE_TOKENS);
    if (page >= 0) {
        QUIRE_TRY(p->source->read(p->source->user, (int32_t)id.piece, page, payload));
    } else {
        const quire_root root = {.identity = p->text->identity,
                                 .layers = p->chain->layers,
                                 .identity_bytes = p->text->identity_bytes,
                                 .layers_bytes = p->chain->layers_bytes,
                                 .salt_digest = p->chain->has_salt ? p->chain->salt : NULL};
        quire__root_write(payload, &root);
    }
    quire__record_seal(bytes, n_bytes);
    return QUIRE_OK;
}

static quire_status flush(putter *p) {
    if (p->n_items == 0)
        return QUIRE_OK;
    quire_store_added more;
    const quire_status status =
        p->store->backend->write(p->store->backend, p->chain->key, (size_t)p->chain->n_pages + 1,
                                 p->items, p->n_items, &more);
    p->added->pages += more.pages;
    p->added->bytes += more.bytes;
    p->n_items = 0;
    p->n_bytes = 0;
    return status;
}

static quire_status add_record(putter *p, size_t i) {
    const int32_t page = p->all.page[i];
    const size_t n_bytes = quire__record_bytes((uint32_t)(page + 1), payload_bytes(p, i));
    if (p->n_bytes + n_bytes > p->capacity)
        QUIRE_TRY(flush(p));
    if (n_bytes > p->capacity) {
        uint8_t *larger = realloc(p->buffer, n_bytes); /* nothing points into it now */
        if (!larger)
            return no_memory();
        p->buffer = larger;
        p->capacity = n_bytes;
    }
    uint8_t *bytes = p->buffer + p->n_bytes;
    QUIRE_TRY(fill_record(p, i, bytes, n_bytes));
    quire_backend_item *item = &p->items[p->n_items++];
    *item = (quire_backend_item){
        .id = p->all.id[i], .depth = (uint32_t)(page + 1), .bytes = bytes, .n_bytes = n_bytes};
    if (page >= 0)
        item->parent = p->chain->key[page];
    p->n_bytes += n_bytes;
    return QUIRE_OK;
}

static quire_status put_missing(putter *p) {
    size_t n = 0, n_bytes = 0;
    for (size_t i = 0; i < p->all.n; i++)
        if (!p->all.present[i]) {
            n++;
            n_bytes += quire__record_bytes((uint32_t)(p->all.page[i] + 1), payload_bytes(p, i));
        }
    if (n == 0) { /* losing a use does no harm */
        p->store->backend->touch(p->store->backend, p->chain->key, (size_t)p->chain->n_pages + 1);
        return QUIRE_OK;
    }
    p->capacity =
        n_bytes < p->store->backend->batch_bytes ? n_bytes : p->store->backend->batch_bytes;
    p->buffer = malloc(p->capacity);
    p->items = malloc(n * sizeof *p->items);
    if (!p->buffer || !p->items)
        return no_memory();
    for (size_t i = 0; i < p->all.n; i++) {
        if (!p->all.present[i])
            QUIRE_TRY(add_record(p, i));
        if (p->source->on_progress && p->all.page[i] >= 0)
            p->source->on_progress(p->source->on_progress_user, p->all.page[i] + 1,
                                   p->chain->n_pages);
    }
    return flush(p);
}

quire_status quire__store_check_history(uint32_t history, int32_t exact_tokens, int32_t n_pages) {
    if (exact_tokens / QUIRE_PAGE_TOKENS >= n_pages)
        return QUIRE_OK;
    char what[80] = "";
    for (uint32_t one = 1; one <= QUIRE_HISTORY_ALL; one <<= 1)
        if (history & one)
            snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s", what[0] ? ", " : "",
                     quire_history_name((quire_history)one));
    return quire__fail(QUIRE_E_HISTORY,
                       "the cache was %s, so from token %d on it differs from a fresh computation "
                       "of its text; compute the text again to store it",
                       what, (int)exact_tokens);
}

quire_status quire__store_put_chain(quire_store *store, const quire_chain *chain,
                                    const quire_store_text *text, const quire_piece_source *source,
                                    quire_store_added *added) {
    putter p = {.store = store, .chain = chain, .text = text, .source = source, .added = added};
    quire_status status = list_wanted(&p);
    if (status == QUIRE_OK)
        status = put_missing(&p);
    wanted_free(&p.all);
    free(p.buffer);
    free(p.items);
    return status;
}

/* ------------------------------------------------------------------ of a sequence */

static bool seq_has(const void *user, int32_t piece, int32_t page) {
    return quire__seq_has_piece(user, piece, page);
}

static quire_status seq_read(const void *user, int32_t piece, int32_t page, uint8_t *to) {
    quire__seq_piece(user, piece, page, to);
    return QUIRE_OK;
}

static quire_status put_held(quire_store *store, const quire_seq *seq, const quire_store_text *text,
                             quire_store_added *added) {
    const int32_t length = quire_seq_length(seq),
                  n = text->n_tokens < length ? text->n_tokens : length;
    if (n / QUIRE_PAGE_TOKENS == 0)
        return QUIRE_OK;
    int32_t exact_tokens;
    const uint32_t history = quire_seq_history(seq, &exact_tokens);
    QUIRE_TRY(quire__store_check_history(history, exact_tokens, n / QUIRE_PAGE_TOKENS));
    quire_chain chain;
    QUIRE_TRY(quire__chain_of_pool(&chain, text, seq->pool, n / QUIRE_PAGE_TOKENS));
    const quire_piece_source source = {
        .pieces = quire__pool_pieces(seq->pool), .has = seq_has, .read = seq_read, .user = seq};
    pthread_mutex_lock(&store->lock);
    const quire_status status = quire__store_put_chain(store, &chain, text, &source, added);
    pthread_mutex_unlock(&store->lock);
    quire__chain_free(&chain);
    return status;
}

quire_status quire_store_put(quire_store *store, const quire_seq *seq, const quire_store_text *text,
                             quire_store_added *added) {
    quire_store_added unused;
    added = added ? added : &unused;
    *added = (quire_store_added){0};
    QUIRE_TRY(quire__store_check_text(store, text));
    if (!seq)
        return quire__fail(QUIRE_E_INVALID, "sequence is NULL");
    if (store->backend->read_only)
        return quire__fail(QUIRE_E_STATE, "the store was opened read-only");
    QUIRE_TRY(quire__seq_hold(seq));
    const quire_status status = put_held(store, seq, text, added);
    quire__seq_in_file(seq, false);
    return status;
}
