/* All records of several backends, in one order: a merge of their walks. */
#include <stdlib.h>
#include <string.h>

#include "store/tiers.h"

/* The next record of one place in a walk. */
typedef struct head {
    quire_record_id id;
    uint8_t *bytes;
    size_t n_bytes;
    int64_t used;
    bool is_there, no_memory;
} head;

static bool take_head(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                      int64_t used) {
    head *h = user;
    uint8_t *own = realloc(h->bytes, n_bytes + 1);
    h->no_memory = !own;
    h->is_there = own != NULL;
    if (!own)
        return false;
    memcpy(own, bytes, n_bytes);
    h->bytes = own;
    h->n_bytes = n_bytes;
    h->id = *id;
    h->used = used;
    return false;
}

static quire_status next_head(quire_tier *t, const quire_record_id *after, head *h) {
    h->is_there = false;
    quire_backend *b = quire__tier_begin(t);
    const quire_status status = b->walk(b, after, take_head, h);
    quire__tier_end(t);
    quire__tier_note(t, QUIRE_TIER_READ, status);
    if (status == QUIRE_OK && h->no_memory)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while walking the tiers of the store");
    return status;
}

static quire_status merge(quire_tiers *all, const quire_record_id *after, head *heads,
                          quire_backend_view view, void *user) {
    for (size_t i = 0; i < all->n; i++)
        QUIRE_TRY(next_head(&all->tier[i], after, &heads[i]));
    for (;;) {
        const head *least = NULL;
        for (size_t i = 0; i < all->n; i++)
            if (heads[i].is_there && (!least || quire__compare_ids(&heads[i].id, &least->id) < 0))
                least = &heads[i];
        if (!least)
            return QUIRE_OK;
        const quire_record_id id = least->id;
        if (!view(user, &id, least->bytes, least->n_bytes, least->used))
            return QUIRE_OK;
        for (size_t i = 0; i < all->n; i++)
            if (heads[i].is_there && quire__same_id(&heads[i].id, &id))
                QUIRE_TRY(next_head(&all->tier[i], &id, &heads[i]));
    }
}

quire_status quire__tiers_walk(quire_backend *backend, const quire_record_id *after,
                               quire_backend_view view, void *user) {
    quire_tiers *all = (quire_tiers *)backend;
    head heads[QUIRE_STORE_TIERS_MAX] = {0};
    if (!after)
        quire__tiers_drain(backend);
    const quire_status status = merge(all, after, heads, view, user);
    for (size_t i = 0; i < all->n; i++)
        free(heads[i].bytes);
    return status;
}
