/* Exports texts of a store as saved files, and imports them, without a pool. */
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

void quire_store_file_options_default(quire_store_file_options *options) {
    if (options)
        *options = (quire_store_file_options){.struct_size = sizeof *options};
}

/* The caller's options, or the defaults. */
static quire_status options_of(const quire_store_file_options *given, quire_store_file_options *o) {
    quire_store_file_options_default(o);
    if (given)
        *o = *given;
    return o->struct_size == sizeof *o
               ? QUIRE_OK
               : quire__fail(QUIRE_E_INVALID,
                             "options were not set up by quire_store_file_options_default");
}

/* ------------------------------------------------------------------ import */

static bool file_has(const void *user, int32_t piece, int32_t page) {
    return quire__file_has_piece(user, piece, page);
}

static quire_status file_read(const void *user, int32_t piece, int32_t page, uint8_t *to) {
    return quire__file_piece(user, piece, page, to);
}

static quire_status import_checked(quire_store *store, const quire_file *file,
                                   const quire_store_file_options *o, quire_store_key *key,
                                   quire_store_added *added) {
    quire_file_info info;
    quire_file_get_info(file, &info);
    const quire_store_text text = {.identity = info.identity,
                                   .identity_bytes = info.identity_bytes,
                                   .tokens = info.tokens,
                                   .n_tokens = info.n_tokens};
    size_t n_bytes;
    const uint8_t *layers = quire__file_layers(file, &n_bytes);
    uint8_t *own = malloc(n_bytes);
    if (own)
        memcpy(own, layers, n_bytes);
    quire_chain chain;
    QUIRE_TRY(quire__chain_init(&chain, &text, own, n_bytes, info.length / QUIRE_PAGE_TOKENS));
    const quire_piece_source source = {.pieces = quire__form_pieces(&file->form),
                                       .has = file_has,
                                       .read = file_read,
                                       .user = file,
                                       .on_progress = o->on_progress,
                                       .on_progress_user = o->user};
    pthread_mutex_lock(&store->lock);
    const quire_status status = quire__store_put_chain(store, &chain, &text, &source, added);
    pthread_mutex_unlock(&store->lock);
    if (key)
        *key = chain.key[chain.n_pages];
    quire__chain_free(&chain);
    return status;
}

quire_status quire_store_import(quire_store *store, quire_file *file,
                                const quire_store_file_options *options, quire_store_key *key,
                                quire_store_added *added) {
    quire_store_file_options o;
    quire_store_added unused;
    added = added ? added : &unused;
    *added = (quire_store_added){0};
    QUIRE_TRY(options_of(options, &o));
    if (!store || !file)
        return quire__fail(QUIRE_E_INVALID, "store or file is NULL");
    if (store->backend->read_only)
        return quire__fail(QUIRE_E_STATE, "the store was opened read-only");
    if (file->info.n_tokens == 0)
        return quire__fail(QUIRE_E_FORMAT,
                           "the file has no token ids, without which its pages cannot be found");
    if (file->info.length < QUIRE_PAGE_TOKENS)
        return quire__fail(QUIRE_E_FORMAT, "the file has %d tokens: no full page of %d",
                           (int)file->info.length, QUIRE_PAGE_TOKENS);
    QUIRE_TRY(quire__store_check_history(file->info.history, file->info.exact_tokens,
                                         file->info.length / QUIRE_PAGE_TOKENS));
    QUIRE_TRY(quire_file_check(file));
    return import_checked(store, file, &o, key, added);
}

/* ------------------------------------------------------------------ export */

typedef struct exporter {
    quire_store *store;
    quire_known_root root;
    quire_chain chain;
    int32_t *tokens; /* (64 n_pages) */
    int32_t n_pages;
    quire_snapshot *to;
    uint8_t *payload; /* of one record, aligned like records in a pool */
    int32_t piece, page, class;
    bool sinks; /* the sinks of the layer class are wanted, not its leaf */
    quire_store_file_options options;
} exporter;

/* One step on the way back from a page to its root. */
typedef struct way_step {
    quire_record record; /* its pointers are invalid */
    int32_t tokens[QUIRE_PAGE_TOKENS];
    bool good;
} way_step;

static bool read_link(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                      int64_t used) {
    (void)used;
    way_step *l = user;
    quire_store_key key;
    l->good = quire__record_read(bytes, n_bytes, id, &l->record) && l->record.depth > 0 &&
              quire__record_sound(bytes, n_bytes);
    for (int i = 0; l->good && i < QUIRE_PAGE_TOKENS; i++)
        l->tokens[i] = (int32_t)quire__get32(l->record.tokens + 4 * i);
    if (l->good) {
        quire__page_key(&l->record.parent, l->tokens, &key);
        l->good = quire__same_key(&key, &id->key);
    }
    return true;
}

static quire_status follow(quire_store *store, const quire_store_key *key, way_step *l,
                           bool is_first) {
    const quire_record_id id = {.key = *key};
    bool found;
    QUIRE_TRY(store->backend->read(store->backend, &id, read_link, l, &found));
    if (!found)
        return is_first ? quire__fail(QUIRE_E_UNKNOWN, "the store has no such page")
                        : quire__fail(QUIRE_E_GONE, "a page before it is no longer in the store");
    if (l->good)
        return QUIRE_OK;
    QUIRE_TRY(quire__store_drop_bad(store, &id));
    return quire__fail(QUIRE_E_CORRUPT, "a record of the store is damaged");
}

/* Collects the pages from the last to the first. */
static quire_status read_way(exporter *e, const quire_store_key *key) {
    way_step l;
    QUIRE_TRY(follow(e->store, key, &l, true));
    const quire_store_key root = l.record.root;
    const int32_t n = e->n_pages = (int32_t)l.record.depth;
    e->tokens = malloc((size_t)n * sizeof l.tokens);
    e->chain.key = malloc(((size_t)n + 1) * sizeof *e->chain.key);
    if (!e->tokens || !e->chain.key)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while exporting %d pages", (int)n);
    e->chain.n_pages = n;
    for (int32_t page = n - 1; page >= 0; page--) {
        memcpy(e->tokens + (size_t)page * QUIRE_PAGE_TOKENS, l.tokens, sizeof l.tokens);
        e->chain.key[page + 1] = l.record.id.key;
        e->chain.key[page] = l.record.parent;
        if (page == 0)
            break;
        const quire_store_key parent = l.record.parent;
        QUIRE_TRY(follow(e->store, &parent, &l, false));
        if (l.record.depth != (uint32_t)page || !quire__same_key(&l.record.root, &root))
            return quire__fail(QUIRE_E_CORRUPT, "pages of the store do not follow each other");
    }
    if (!quire__same_key(&e->chain.key[0], &root))
        return quire__fail(QUIRE_E_CORRUPT, "pages of the store do not follow each other");
    const quire_record_id id = {.key = root};
    const quire_status status = quire__known_root(e->store, &root, &e->root);
    if (status == QUIRE_E_CORRUPT)
        QUIRE_TRY(quire__store_drop_bad(e->store, &id));
    return status;
}

static quire_status gone(void) {
    return quire__fail(QUIRE_E_GONE, "pages that its sliding windows see are not in the store");
}

static quire_status prepare(exporter *e, const quire_store_key *key) {
    QUIRE_TRY(read_way(e, key));
    const quire_pieces pieces = quire__form_pieces(&e->root.form);
    const int32_t n_pieces = quire__piece_count(pieces);
    size_t most = QUIRE_FILE_ALIGN;
    for (int32_t piece = 0; piece < n_pieces; piece++) {
        const size_t bytes =
            quire__piece_bytes(pieces, piece, 0); /* page 0 is the largest: it has the sinks too */
        most = bytes > most ? bytes : most;
        for (int32_t page = 0; piece > 0 && page < e->n_pages; page++) {
            const quire_record_id id = {.key = e->chain.key[page + 1], .piece = (uint32_t)piece};
            bool present = true;
            if (quire__piece_needed(pieces, piece, page, e->n_pages))
                QUIRE_TRY(e->store->backend->has(e->store->backend, &id, 1, &present));
            if (!present)
                return gone();
        }
    }
    void *payload = NULL;
    if (posix_memalign(&payload, QUIRE_SECTION_ALIGN, most) != 0)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while exporting a page");
    e->payload = payload;
    return QUIRE_OK;
}

/* Copies a payload after checking every value. The copy is written later, so that the store does
 * not wait for the output file's disk. */
static quire_status take_payload(void *user, const uint8_t *payload) {
    exporter *e = user;
    memcpy(e->payload, payload,
           quire__piece_bytes(quire__form_pieces(&e->root.form), e->piece, e->page));
    return quire__piece_valid(&e->root.form, e->piece, e->page, e->payload) ? QUIRE_OK
                                                                            : QUIRE_E_FORMAT;
}

/* The part that is wanted. */
static quire_status add_payload(exporter *e) {
    const quire_pieces pieces = quire__form_pieces(&e->root.form);
    const quire_class *class = &e->root.form.class[e->class];
    const size_t leaf = quire__piece_leaf_bytes(class);
    const size_t start =
        e->piece == 0 ? quire__piece_offset(pieces, e->page, e->class) + (e->sinks ? leaf : 0) : 0;
    return quire__snapshot_add(e->to, e->payload + start, e->sinks ? class->sink_bytes : leaf);
}

static quire_status add_part(exporter *e, int32_t class, int32_t page, bool sinks) {
    const bool windowed = e->root.form.class[class].window > 0;
    e->piece = !windowed ? 0 : sinks ? 2 + 2 * class : 1 + 2 * class;
    e->page = page;
    e->class = class;
    e->sinks = sinks;
    const quire_record wanted = {
        .id = {.key = e->chain.key[page + 1], .piece = (uint32_t)e->piece},
        .parent = e->chain.key[page],
        .root = e->chain.key[0],
        .depth = (uint32_t)(page + 1),
        .payload_bytes = quire__piece_bytes(quire__form_pieces(&e->root.form), e->piece, page)};
    bool found;
    QUIRE_TRY(quire__store_payload(e->store, &wanted, e->tokens + (size_t)page * QUIRE_PAGE_TOKENS,
                                   take_payload, e, &found));
    return found ? add_payload(e)
                 : quire__fail(QUIRE_E_CORRUPT,
                               "a record of the store is damaged, or was just removed");
}

static bool holds_sinks(const exporter *e, int32_t g) {
    const quire_class *class = &e->root.form.class[g];
    return class->window == 0
               ? class->sinks > 0
               : quire__piece_needed(quire__form_pieces(&e->root.form), 2 + 2 * g, 0, e->n_pages);
}

static bool holds_page(const exporter *e, int32_t g, int32_t page) {
    return e->root.form.class[g].window == 0 ||
           quire__piece_needed(quire__form_pieces(&e->root.form), 1 + 2 * g, page, e->n_pages);
}

static quire_status add_state(const exporter *e, quire_snapshot *to) {
    const quire_form *form = &e->root.form;
    const int32_t n_pages = e->n_pages, n_tokens = n_pages * QUIRE_PAGE_TOKENS;
    QUIRE_TRY(quire__snapshot_add_state(to, n_tokens, -1, 0, n_tokens));
    for (int32_t g = 0; g < form->n_classes; g++) {
        const bool sinks = holds_sinks(e, g);
        const int32_t live_from = quire__live_from(&form->class[g], n_pages);
        QUIRE_TRY(quire__snapshot_add_class(to, live_from, sinks ? (uint32_t)QUIRE_HELD_SINKS : 0,
                                            sinks ? quire__rows_below(form->class[g].sinks) : 0,
                                            0));
        for (int32_t page = 0; page < n_pages; page++)
            /* The store has only pages with all their rows. */
            QUIRE_TRY(quire__snapshot_add_rows(to, holds_page(e, g, page) ? UINT64_MAX : 0));
    }
    return QUIRE_OK;
}

static quire_status add_pages(exporter *e, int32_t g) {
    if (holds_sinks(e, g))
        QUIRE_TRY(add_part(e, g, 0, true));
    const int32_t n_classes = e->root.form.n_classes;
    for (int32_t page = 0; page < e->n_pages; page++) {
        if (holds_page(e, g, page))
            QUIRE_TRY(add_part(e, g, page, false));
        if (e->options
                .on_progress) /* counted in pages, though each is visited once per layer class */
            e->options.on_progress(e->options.user,
                                   (int32_t)(((int64_t)g * e->n_pages + page + 1) / n_classes),
                                   e->n_pages);
    }
    return QUIRE_OK;
}

static quire_status add_section(void *user, quire_snapshot *to, int32_t index) {
    exporter *e = user;
    e->to = to;
    switch (index) {
    case QUIRE_SECTION_IDENTITY:
        return quire__snapshot_add(to, e->root.root.identity, e->root.root.identity_bytes);
    case QUIRE_SECTION_LAYERS:
        return quire__snapshot_add(to, e->root.root.layers, e->root.root.layers_bytes);
    case QUIRE_SECTION_TOKENS:
        return quire__snapshot_add(to, e->tokens, (size_t)e->n_pages * QUIRE_RECORD_TOKENS);
    case QUIRE_SECTION_STATE:
        return add_state(e, to);
    default:
        return add_pages(e, index - QUIRE_SECTION_PAGES);
    }
}

quire_status quire_store_export(quire_store *store, const quire_store_key *key, const char *path,
                                const quire_store_file_options *options) {
    if (!store || !key || !path)
        return quire__fail(QUIRE_E_INVALID, "store, key or path is NULL");
    exporter e = {.store = store};
    QUIRE_TRY(options_of(options, &e.options));
    pthread_mutex_lock(&store->lock);
    quire_status status = prepare(&e, key);
    if (status == QUIRE_OK)
        status = quire__snapshot_write(path, e.root.form.n_classes, add_section, &e);
    quire__store_end_reading(store);
    pthread_mutex_unlock(&store->lock);
    quire__known_root_free(&e.root);
    quire__chain_free(&e.chain);
    free(e.tokens);
    free(e.payload);
    return status;
}
