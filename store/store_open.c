/* Opens and closes a store, reports statistics, and reads single records. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

void quire_store_options_default(quire_store_options *options) {
    if (options)
        *options = (quire_store_options){
            .struct_size = sizeof *options, .create = true, .touch_seconds = 60};
}

static quire_status open_backend(quire_store *store, const char *directory,
                                 const quire_store_options *given) {
    quire_store_options o;
    quire_store_options_default(&o);
    if (given)
        o = *given;
    if (o.struct_size != sizeof o || o.touch_seconds < 0)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_store_options_default");
    o.create = o.create && !o.read_only;
    return quire__lmdb_open(&store->backend, directory, &o);
}

quire_status quire_store_open(quire_store **result, const char *directory,
                              const quire_store_options *options) {
    if (!result || !directory || !*directory)
        return quire__fail(QUIRE_E_INVALID, "store or directory is NULL or empty");
    *result = NULL;
    quire_store *store = calloc(1, sizeof *store);
    if (!store || sodium_init() < 0) {
        free(store);
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    }
    const quire_status status = open_backend(store, directory, options);
    if (status != QUIRE_OK) {
        free(store);
        return status;
    }
    pthread_mutex_init(&store->lock, NULL);
    *result = store;
    return QUIRE_OK;
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

quire_status quire__store_drop_bad(quire_store *store, const quire_record_id *id) {
    const quire_backend_counts one = {.bad_records = 1};
    store->backend->count(store->backend, &one);
    return store->backend->read_only ? QUIRE_OK : store->backend->remove(store->backend, id, 1);
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
