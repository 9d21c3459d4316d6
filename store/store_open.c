/* Opens and closes a store, reports statistics, and reads single records. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

void quire_store_options_default(quire_store_options *options) {
    if (options)
        *options = (quire_store_options){.struct_size = sizeof *options,
                                         .create = true,
                                         .touch_seconds = 60,
                                         .queue_bytes = (uint64_t)256 << 20};
}

static quire_status check_options(const quire_store_options *given, quire_store_options *o) {
    quire_store_options_default(o);
    if (given)
        *o = *given;
    if (o->struct_size != sizeof *o || o->touch_seconds < 0)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_store_options_default");
    o->create = o->create && !o->read_only;
    return QUIRE_OK;
}

/* places: (n) one place opens without tiers unless `as_tiers`. */
static quire_status open_store(quire_store **result, const char *const *places, size_t n,
                               bool as_tiers, const quire_store_options *options) {
    quire_store_options o;
    *result = NULL;
    QUIRE_TRY(check_options(options, &o));
    quire_store *store = calloc(1, sizeof *store);
    if (!store || sodium_init() < 0) {
        free(store);
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    }
    const quire_status status = as_tiers ? quire__tiers_open(&store->backend, places, n, &o)
                                         : quire__place_open(&store->backend, places[0], &o, true);
    if (status != QUIRE_OK) {
        free(store);
        return status;
    }
    quire_store_place_text(places[0], store->name);
    pthread_mutex_init(&store->lock, NULL);
    *result = store;
    return QUIRE_OK;
}

quire_status quire_store_open(quire_store **result, const char *place,
                              const quire_store_options *options) {
    if (!result || !place || !*place)
        return quire__fail(QUIRE_E_INVALID, "store or place is NULL or empty");
    return open_store(result, &place, 1, false, options);
}

quire_status quire_store_open_tiers(quire_store **result, const char *const *places, size_t n,
                                    const quire_store_options *options) {
    if (!result || !places || n < 1 || n > QUIRE_STORE_TIERS_MAX)
        return quire__fail(QUIRE_E_INVALID, "store or places is NULL, or there are not 1 to %d",
                           QUIRE_STORE_TIERS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!places[i] || !*places[i])
            return quire__fail(QUIRE_E_INVALID, "the name of place %zu is empty", i + 1);
    return open_store(result, places, n, true, options);
}

void quire_store_close(quire_store *store) {
    if (!store)
        return;
    store->backend->close(store->backend);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

quire_status quire_store_get_stats(quire_store *store, quire_store_stats *stats) {
    if (!store || !stats)
        return quire__fail(QUIRE_E_INVALID, "store or stats is NULL");
    quire_backend_room room;
    quire_backend_counts counts;
    pthread_mutex_lock(&store->lock);
    const quire_status status = store->backend->room(store->backend, &room, &counts);
    pthread_mutex_unlock(&store->lock);
    if (status == QUIRE_OK)
        *stats = (quire_store_stats){.records = room.records,
                                     .pages = room.nodes - room.roots,
                                     .bytes = room.bytes,
                                     .file_bytes = room.file_bytes,
                                     .max_bytes = room.max_bytes,
                                     .hit_pages = counts.hit_pages,
                                     .missed_pages = counts.missed_pages,
                                     .added_pages = counts.added_pages,
                                     .evicted_pages = counts.evicted_pages,
                                     .bad_records = counts.bad_records};
    return status;
}

quire_status quire_store_get_tier(quire_store *store, size_t tier, quire_store_tier *to) {
    if (!store || !to)
        return quire__fail(QUIRE_E_INVALID, "store or result is NULL");
    *to = (quire_store_tier){0};
    const bool has_tiers = quire__is_tiers(store->backend);
    const size_t n = has_tiers ? quire__tiers_count(store->backend) : 1;
    if (tier >= n)
        return quire__fail(QUIRE_E_UNKNOWN, "there is no tier %zu: the store has %zu", tier, n);
    if (has_tiers)
        quire__tiers_describe(store->backend, tier, to);
    else
        memcpy(to->place, store->name, sizeof to->place);
    return QUIRE_OK;
}

void quire_store_drain(quire_store *store) {
    if (store && quire__is_tiers(store->backend))
        quire__tiers_drain(store->backend);
}

void quire__counts_add(quire_backend_counts *c, const quire_backend_counts *more) {
    c->hit_pages += more->hit_pages;
    c->missed_pages += more->missed_pages;
    c->added_pages += more->added_pages;
    c->evicted_pages += more->evicted_pages;
    c->bad_records += more->bad_records;
}

quire_status quire__store_drop_bad(quire_store *store, const quire_record_id *id) {
    const quire_backend_counts one = {.bad_records = 1};
    store->backend->count(store->backend, &one);
    return store->backend->read_only ? QUIRE_OK : store->backend->remove(store->backend, id, 1);
}

void quire__store_end_reading(quire_store *store) {
    if (store->backend->ask)
        store->backend->ask(store->backend, NULL, 0);
}

typedef struct copy {
    uint8_t *bytes;
    size_t n_bytes;
} copy;

static bool copy_view(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                      int64_t used) {
    (void)id, (void)used;
    copy *c = user;
    c->n_bytes = n_bytes;
    c->bytes = malloc(n_bytes + 1);
    if (c->bytes)
        memcpy(c->bytes, bytes, n_bytes);
    return true;
}

quire_status quire__store_copy(quire_store *store, const quire_record_id *id, uint8_t **bytes,
                               size_t *n_bytes) {
    bool found;
    copy c = {0};
    *bytes = NULL;
    QUIRE_TRY(store->backend->read(store->backend, id, copy_view, &c, &found));
    if (found && !c.bytes)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while reading a record");
    *bytes = c.bytes;
    *n_bytes = c.n_bytes;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ roots */

quire_status quire__known_root(quire_store *store, const quire_store_key *key,
                               quire_known_root *root) {
    const quire_record_id id = {.key = *key};
    size_t n_bytes = 0;
    quire_record record;
    *root = (quire_known_root){.key = *key};
    QUIRE_TRY(quire__store_copy(store, &id, &root->bytes, &n_bytes));
    if (!root->bytes)
        return quire__fail(QUIRE_E_GONE,
                           "the identity that this page belongs to is no longer in the store");
    if (!quire__record_read(root->bytes, n_bytes, &id, &record) ||
        !quire__record_sound(root->bytes, n_bytes) || !quire__root_read(&record, &root->root))
        return quire__fail(QUIRE_E_CORRUPT,
                           "the record with the identity that this page belongs to is damaged");
    return quire__form_read(&root->form, root->root.layers, root->root.layers_bytes);
}

void quire__known_root_free(quire_known_root *root) {
    quire__form_free(&root->form);
    free(root->bytes);
    *root = (quire_known_root){0};
}
