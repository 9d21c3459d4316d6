/* Loads the longest stored prefix of a text into fresh pages of a pool. */
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

quire_status quire__store_check_text(const quire_store *store, const quire_store_text *text) {
    if (!store || !text || text->n_tokens < 0 || (text->n_tokens > 0 && !text->tokens))
        return quire__fail(QUIRE_E_INVALID, "store, text or its tokens is NULL");
    if (text->identity_bytes > QUIRE_IDENTITY_MAX || (text->identity_bytes > 0 && !text->identity))
        return quire__fail(QUIRE_E_INVALID, "identity is NULL or longer than %d bytes",
                           QUIRE_IDENTITY_MAX);
    if (text->salt_bytes > 0 && !text->salt)
        return quire__fail(QUIRE_E_INVALID, "salt is NULL, but has %zu bytes", text->salt_bytes);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ one record */

typedef struct look {
    const quire_record *wanted;
    const int32_t *tokens;
    quire_payload_view view; /* NULL: only the header is checked */
    void *user;
    bool good;
    quire_status status; /* of the view */
} look;

static bool as_wanted(const look *l, const quire_record *r) {
    const quire_record *w = l->wanted;
    return r->depth == w->depth && quire__same_key(&r->parent, &w->parent) &&
           quire__same_key(&r->root, &w->root) && r->payload_bytes == w->payload_bytes &&
           quire__record_has_tokens(r, l->tokens);
}

static bool look_at(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                    int64_t used) {
    (void)used;
    look *l = user;
    quire_record record;
    l->good = quire__record_read(bytes, n_bytes, id, &record) && as_wanted(l, &record) &&
              (!l->view || quire__record_sound(bytes, n_bytes));
    if (l->good && l->view)
        l->status = l->view(l->user, record.payload);
    return true;
}

quire_status quire__store_payload(quire_store *store, const quire_record *wanted,
                                  const int32_t *tokens, quire_payload_view view, void *user,
                                  bool *found) {
    look l = {.wanted = wanted, .tokens = tokens, .view = view, .user = user};
    QUIRE_TRY(store->backend->read(store->backend, &wanted->id, look_at, &l, found));
    if (!*found || (l.good && l.status == QUIRE_OK))
        return QUIRE_OK;
    if (l.good && l.status != QUIRE_E_FORMAT)
        return l.status;
    *found = false;                            /* E_FORMAT: invalid values */
    quire__store_drop_bad(store, &wanted->id); /* even if that fails, it is a miss */
    return QUIRE_OK;
}

static quire_record wanted_record(const quire_chain *chain, quire_pieces pieces, int32_t piece,
                                  int32_t page) {
    return (quire_record){.id = {.key = chain->key[page + 1], .piece = (uint32_t)piece},
                          .parent = chain->key[page],
                          .root = chain->key[0],
                          .depth = (uint32_t)(page + 1),
                          .payload_bytes = quire__piece_bytes(pieces, piece, page)};
}

static const int32_t *tokens_of(const quire_store_text *text, int32_t page) {
    return text->tokens + (size_t)page * QUIRE_PAGE_TOKENS;
}

/* ------------------------------------------------------------------ how far it goes */

/* Whether a sequence of n_pages pages finds all pieces it needs; there[page * n_pieces + piece]. */
static bool complete(quire_pieces pieces, const bool *there, int32_t n_pages) {
    const int32_t n_pieces = quire__piece_count(pieces);
    for (int32_t page = n_pages - 1; page >= 0; page--)
        for (int32_t piece = 1; piece < n_pieces; piece++)
            if (!there[(size_t)page * (size_t)n_pieces + (size_t)piece] &&
                quire__piece_needed(pieces, piece, page, n_pages))
                return false;
    return true;
}

static bool has_windows(quire_pieces pieces) {
    for (int32_t g = 0; g < pieces.n_classes; g++)
        if (pieces.class[g].window > 0)
            return true;
    return false;
}

/* Looks at headers, page after page, until one is missing; drops bad records. */
static quire_status look_near(quire_store *store, const quire_chain *chain,
                              const quire_store_text *text, quire_pieces pieces, bool *there,
                              int32_t *n_pages) {
    const int32_t n_pieces = quire__piece_count(pieces);
    quire_status status = QUIRE_OK;
    int32_t n = 0;
    for (bool found = true; n < chain->n_pages && status == QUIRE_OK; n += found) {
        const quire_record first = wanted_record(chain, pieces, 0, n);
        status = quire__store_payload(store, &first, tokens_of(text, n), NULL, NULL, &found);
        if (status != QUIRE_OK || !found)
            break;
        for (int32_t piece = 1; piece < n_pieces && status == QUIRE_OK; piece++) {
            const quire_record more = wanted_record(chain, pieces, piece, n);
            if (quire__piece_exists(pieces, piece, n))
                status = quire__store_payload(store, &more, tokens_of(text, n), NULL, NULL,
                                              &there[(size_t)n * (size_t)n_pieces + (size_t)piece]);
        }
    }
    *n_pages = n;
    return status;
}

/* Asks for all pages at once. What is bad is found out when it is read. */
static quire_status look_far(quire_store *store, const quire_chain *chain, quire_pieces pieces,
                             bool *there, int32_t *n_pages) {
    const size_t n_pieces = (size_t)quire__piece_count(pieces),
                 most = (size_t)chain->n_pages * n_pieces;
    quire_record_id *ids = malloc((most + 1) * sizeof *ids);
    size_t *place = malloc((most + 1) * sizeof *place), n = 0;
    bool *present = calloc(most + 1, sizeof *present);
    quire_status status = QUIRE_OK;
    if (!ids || !place || !present)
        status = quire__fail(QUIRE_E_NOMEM, "out of memory while looking for pages");
    for (size_t i = 0; status == QUIRE_OK && i < most; i++) {
        const int32_t page = (int32_t)(i / n_pieces), piece = (int32_t)(i % n_pieces);
        if (!quire__piece_exists(pieces, piece, page))
            continue;
        ids[n] = (quire_record_id){.key = chain->key[page + 1], .piece = (uint32_t)piece};
        place[n++] = i;
    }
    if (status == QUIRE_OK && n > 0)
        status = store->backend->has(store->backend, ids, n, present);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        there[place[i]] = present[i];
    *n_pages = 0;
    while (status == QUIRE_OK && *n_pages < chain->n_pages && there[(size_t)*n_pages * n_pieces])
        ++*n_pages;
    free(ids);
    free(place);
    free(present);
    return status;
}

quire_status quire__store_reach(quire_store *store, const quire_chain *chain,
                                const quire_store_text *text, quire_pieces pieces,
                                int32_t *n_pages) {
    const int32_t n_pieces = quire__piece_count(pieces);
    bool *there = calloc((size_t)chain->n_pages * (size_t)n_pieces + 1, sizeof *there);
    if (!there)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while looking for pages");
    int32_t n = 0;
    const quire_status status = store->backend->is_far
                                    ? look_far(store, chain, pieces, there, &n)
                                    : look_near(store, chain, text, pieces, there, &n);
    while (has_windows(pieces) && n > 0 && !complete(pieces, there, n))
        n--;
    free(there);
    *n_pages = n;
    return status;
}

/* ------------------------------------------------------------------ into a sequence */

typedef struct taking {
    quire_seq *seq;
    int32_t piece, page;
} taking;

static quire_status take(void *user, const uint8_t *payload) {
    const taking *t = user;
    return quire__seq_write_piece(t->seq, t->piece, t->page, payload);
}

static quire_status only_look(void *user, const uint8_t *payload) {
    (void)user, (void)payload;
    return QUIRE_OK;
}

/* The records of a sequence, in the order in which they are read. */
typedef struct needs {
    quire_record_id *id;
    int32_t *page;
    size_t n;
    size_t asked, last; /* asked for so far; the first of those asked for last */
} needs;

static void needs_free(needs *all) {
    free(all->id);
    free(all->page);
}

static quire_status list_needs(const quire_chain *chain, quire_pieces pieces, int32_t n_pages,
                               needs *all) {
    const int32_t n_pieces = quire__piece_count(pieces);
    const size_t most = (size_t)n_pages * (size_t)n_pieces + 1;
    *all = (needs){.id = malloc(most * sizeof *all->id), .page = malloc(most * sizeof *all->page)};
    if (!all->id || !all->page)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while reading pages");
    for (int32_t p = 0; p < n_pages; p++)
        for (int32_t piece = 0; piece < n_pieces; piece++)
            if (quire__piece_needed(pieces, piece, p, n_pages)) {
                all->id[all->n] =
                    (quire_record_id){.key = chain->key[p + 1], .piece = (uint32_t)piece};
                all->page[all->n++] = p;
            }
    return QUIRE_OK;
}

/* Before record i is read: asks a far backend for the records after those that it sends now, so
 * that it never waits for the next request, and never has more than two of these windows to send.
 */
static quire_status ask_ahead(quire_backend *backend, quire_pieces pieces, needs *all, size_t i) {
    enum { WINDOW_BYTES = 8 << 20 };
    if (!backend->ask || i < all->last || all->asked == all->n)
        return QUIRE_OK;
    const size_t first = all->last = all->asked;
    for (size_t n_bytes = 0; all->asked < all->n && n_bytes < WINDOW_BYTES; all->asked++)
        n_bytes +=
            quire__record_bytes(1, quire__piece_bytes(pieces, (int32_t)all->id[all->asked].piece,
                                                      all->page[all->asked]));
    return backend->ask(backend, all->id + first, all->asked - first);
}

/* *whole false: a record was bad, or was just removed; *reach is then the most pages that another
 * attempt may load, fewer than this one. Damage seldom affects one record only, so the others are
 * checked too, and all bad ones are gone when this text is put again. */
static quire_status fill(quire_store *store, const quire_chain *chain, const quire_store_text *text,
                         quire_seq *seq, needs *all, bool *whole, int32_t *reach) {
    const quire_pieces pieces = quire__pool_pieces(seq->pool);
    const int32_t n_pages = quire_seq_length(seq) / QUIRE_PAGE_TOKENS;
    *whole = true;
    for (size_t i = 0; i < all->n; i++) {
        const int32_t page = all->page[i], piece = (int32_t)all->id[i].piece;
        taking t = {.seq = seq, .piece = piece, .page = page};
        const quire_record wanted = wanted_record(chain, pieces, piece, page);
        bool found;
        QUIRE_TRY(ask_ahead(store->backend, pieces, all, i));
        QUIRE_TRY(quire__store_payload(store, &wanted, tokens_of(text, page),
                                       *whole ? take : only_look, &t, &found));
        if (!found && *whole) /* if a piece of a window is missing, only this length fails */
            *reach = piece == 0 ? page : n_pages - 1;
        *whole = *whole && found;
    }
    return QUIRE_OK;
}

static quire_status read_all(quire_store *store, const quire_chain *chain,
                             const quire_store_text *text, quire_seq *seq, bool *whole,
                             int32_t *reach) {
    needs all;
    quire_status status = list_needs(chain, quire__pool_pieces(seq->pool),
                                     quire_seq_length(seq) / QUIRE_PAGE_TOKENS, &all);
    if (status == QUIRE_OK)
        status = fill(store, chain, text, seq, &all, whole, reach);
    needs_free(&all);
    return status;
}

/* One attempt. The new sequence keeps the pool's form from changing. *whole false: another attempt
 * may load up to *reach pages. */
static quire_status attempt(quire_store *store, const quire_store_text *text, int32_t max_pages,
                            quire_seq *seq, bool *whole, int32_t *reach) {
    quire_chain chain;
    int32_t n_pages;
    QUIRE_TRY(quire__chain_of_pool(&chain, text, seq->pool, *reach));
    quire_status status =
        quire__store_reach(store, &chain, text, quire__pool_pieces(seq->pool), &n_pages);
    if (status == QUIRE_OK)
        status = quire__seq_reserve_pieces(seq, n_pages);
    if (status == QUIRE_OK && store->backend->ask)
        status = store->backend->ask(store->backend, NULL, 0);
    if (status == QUIRE_OK)
        status = read_all(store, &chain, text, seq, whole, reach);
    if (status == QUIRE_OK && *whole) {
        const quire_backend_counts counts = {.hit_pages = (uint64_t)n_pages,
                                             .missed_pages = (uint64_t)(max_pages - n_pages)};
        store->backend->count(store->backend, &counts);
        if (n_pages > 0 && !store->backend->read_only) /* losing a use does no harm */
            store->backend->touch(store->backend, chain.key, (size_t)n_pages + 1);
    }
    quire__store_end_reading(store);
    quire__chain_free(&chain);
    return status;
}

/* Pages of a text that may be loaded, and that a sequence of the pool can hold. */
static int32_t pages_of(const quire_store_text *text, const quire_pool *pool, int32_t leave) {
    const int32_t n = text->n_tokens > leave ? text->n_tokens - leave : 0;
    return (n < pool->max_tokens ? n : pool->max_tokens) / QUIRE_PAGE_TOKENS;
}

quire_status quire_store_get(quire_store *store, quire_pool *pool, const quire_store_text *text,
                             int32_t leave, quire_seq **result) {
    QUIRE_TRY(quire__store_check_text(store, text));
    if (!pool || !result || leave < 0)
        return quire__fail(QUIRE_E_INVALID, "pool or result is NULL, or leave is negative");
    *result = NULL;
    quire_seq *seq = NULL;
    quire_status status = QUIRE_OK;
    const int32_t max_pages = pages_of(text, pool, leave);
    int32_t reach = max_pages;
    pthread_mutex_lock(&store->lock);
    for (bool whole = false; status == QUIRE_OK && !whole;) { /* each attempt loads fewer pages */
        status = quire__seq_begin_pieces(pool, &seq);
        if (status == QUIRE_OK)
            status = attempt(store, text, max_pages, seq, &whole, &reach);
        if (seq)
            quire__seq_end_pieces(seq, status == QUIRE_OK && whole);
    }
    pthread_mutex_unlock(&store->lock);
    *result = status == QUIRE_OK ? seq : NULL;
    return status;
}

quire_status quire_store_find(quire_store *store, quire_pool *pool, const quire_store_text *text,
                              quire_store_key *key, int32_t *n_tokens) {
    QUIRE_TRY(quire__store_check_text(store, text));
    if (!pool || !key)
        return quire__fail(QUIRE_E_INVALID, "pool or key is NULL");
    quire_chain chain;
    int32_t n_pages = 0;
    quire__form_hold(pool);
    quire_status status = quire__chain_of_pool(&chain, text, pool, pages_of(text, pool, 0));
    if (status == QUIRE_OK) {
        pthread_mutex_lock(&store->lock);
        status = quire__store_reach(store, &chain, text, quire__pool_pieces(pool), &n_pages);
        pthread_mutex_unlock(&store->lock);
        *key = chain.key[n_pages];
        quire__chain_free(&chain);
    }
    quire__form_release(pool);
    if (n_tokens)
        *n_tokens = n_pages * QUIRE_PAGE_TOKENS;
    if (status == QUIRE_OK && n_pages == 0)
        return quire__fail(QUIRE_E_UNKNOWN, "the store has no page of this text");
    return status;
}
