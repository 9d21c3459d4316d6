/* Verifies every byte and every value of a store. */
#include <stdlib.h>
#include <string.h>

#include "store/table.h"

void quire_store_verify_options_default(quire_store_verify_options *options) {
    if (options)
        *options = (quire_store_verify_options){.struct_size = sizeof *options};
}

typedef struct verifier {
    const quire_table *table;
    const quire_store_verify_options *options;
    quire_store_verdict *verdict;
    int64_t total;
    uint8_t *payload; /* aligned like records in a pool */
    size_t capacity;
    quire_record_id *bad;
    size_t bad_capacity;
    quire_record_id last; /* seen */
    bool seen;
    quire_status status;
} verifier;

static bool key_right(const quire_record *r) {
    int32_t tokens[QUIRE_PAGE_TOKENS];
    quire_store_key key;
    for (int i = 0; i < QUIRE_PAGE_TOKENS; i++)
        tokens[i] = (int32_t)quire__get32(r->tokens + 4 * i);
    quire__page_key(&r->parent, tokens, &key);
    return quire__same_key(&key, &r->id.key);
}

/* LMDB does not align values; decoders need the alignment of a pool. */
static bool align_payload(verifier *v, const quire_record *r) {
    if (r->payload_bytes > v->capacity) {
        free(v->payload);
        v->payload = NULL;
        v->capacity = 0;
        void *payload = NULL;
        if (posix_memalign(&payload, QUIRE_SECTION_ALIGN, r->payload_bytes) != 0) {
            v->status = quire__fail(QUIRE_E_NOMEM, "out of memory while verifying a record");
            return false;
        }
        v->payload = payload;
        v->capacity = r->payload_bytes;
    }
    if (r->payload_bytes > 0)
        memcpy(v->payload, r->payload, r->payload_bytes);
    return true;
}

/* Checks a page whose form is known. */
static bool page_right(verifier *v, const quire_record *r, const quire_form *form) {
    const quire_pieces pieces = quire__form_pieces(form);
    const int32_t piece = (int32_t)r->id.piece, page = (int32_t)r->depth - 1;
    if (!quire__piece_exists(pieces, piece, page) ||
        r->payload_bytes != quire__piece_bytes(pieces, piece, page))
        return false;
    return align_payload(v, r) && quire__piece_valid(form, piece, page, v->payload);
}

static bool record_right(verifier *v, const quire_record_id *id, const uint8_t *bytes,
                         size_t n_bytes) {
    quire_record r;
    quire_root root;
    if (!quire__record_read(bytes, n_bytes, id, &r) || !quire__record_sound(bytes, n_bytes))
        return false;
    if (r.depth == 0)
        return quire__root_read(&r, &root);
    if (!key_right(&r))
        return false;
    const int64_t place = quire__table_find(v->table, &id->key);
    const quire_table_node *n = place < 0 ? NULL : &v->table->node[place];
    v->verdict->lost +=
        n && (n->up < 0 || n->top < 0); /* else it was put after the table was read */
    return !n || n->top < 0 || page_right(v, &r, &v->table->root[n->top].form);
}

/* Reads one record at a time, so that the backend holds no snapshot while it reports progress to
 * the caller. */
static bool look_at(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                    int64_t used) {
    (void)used;
    verifier *v = user;
    v->seen = true;
    v->last = *id;
    v->verdict->records++;
    const bool right = record_right(v, id, bytes, n_bytes);
    if (!right && v->status == QUIRE_OK) {
        const size_t n = (size_t)v->verdict->bad++;
        if (n == v->bad_capacity) {
            const size_t more = n ? 2 * n : 64;
            quire_record_id *larger = realloc(v->bad, more * sizeof *larger);
            if (!larger)
                v->status = quire__fail(QUIRE_E_NOMEM, "out of memory while verifying the store");
            else
                v->bad = larger;
            v->bad_capacity = larger ? more : n;
        }
        if (v->status == QUIRE_OK)
            v->bad[n] = *id;
    }
    return false;
}

static quire_status look_at_all(quire_store *store, verifier *v) {
    const quire_store_verify_options *o = v->options;
    for (bool is_first = true;; is_first = false) {
        v->seen = false;
        const quire_record_id last = v->last;
        QUIRE_TRY(store->backend->walk(store->backend, is_first ? NULL : &last, look_at, v));
        QUIRE_TRY(v->status);
        if (!v->seen)
            return QUIRE_OK;
        QUIRE_TRY(store->backend->check(store->backend, &v->last));
        if (o->on_progress)
            o->on_progress(o->user, v->verdict->records, v->total);
        if (o->stop && o->stop(o->user))
            return quire__fail(QUIRE_E_ABORTED, "verifying was stopped by the caller");
    }
}

static quire_status verify(quire_store *store, verifier *v, quire_table *table) {
    QUIRE_TRY(store->backend->check(store->backend, NULL));
    QUIRE_TRY(quire__table_read(store, table));
    v->total = (int64_t)table->n_ids;
    QUIRE_TRY(look_at_all(store, v));
    quire_status status = QUIRE_OK;
    for (int64_t i = 0; v->options->remove && i < v->verdict->bad && status == QUIRE_OK; i++)
        status = quire__store_drop_bad(store, &v->bad[i]);
    return status;
}

quire_status quire_store_verify(quire_store *store, const quire_store_verify_options *options,
                                quire_store_verdict *verdict) {
    quire_store_verify_options o;
    quire_store_verify_options_default(&o);
    if (options)
        o = *options;
    if (!store || !verdict || o.struct_size != sizeof o)
        return quire__fail(QUIRE_E_INVALID, "store or verdict is NULL, or options were not set up "
                                            "by quire_store_verify_options_default");
    if (o.remove && store->backend->read_only)
        return quire__fail(QUIRE_E_STATE, "the store was opened read-only");
    *verdict = (quire_store_verdict){0};
    quire_table table = {0};
    verifier v = {.table = &table, .options = &o, .verdict = verdict};
    pthread_mutex_lock(&store->lock);
    const quire_status status = verify(store, &v, &table);
    pthread_mutex_unlock(&store->lock);
    quire__table_free(&table);
    free(v.payload);
    free(v.bad);
    return status;
}
