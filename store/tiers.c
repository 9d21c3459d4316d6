/* Several backends as one: looking up, promoting, writing. */
#include "store/tiers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BATCH_BYTES = 8 << 20 };

static bool is_behind(const quire_tiers *all, size_t i) {
    return all->tier[i].kind == QUIRE_PLACE_REDIS ||
           (all->tier[i].kind == QUIRE_PLACE_DIRECTORY && i > 0);
}

quire_backend *quire__tier_begin(quire_tier *t) {
    if (t->kind == QUIRE_PLACE_DIRECTORY)
        pthread_mutex_lock(&t->lock);
    return t->reader;
}

void quire__tier_end(quire_tier *t) {
    if (t->kind == QUIRE_PLACE_DIRECTORY)
        pthread_mutex_unlock(&t->lock);
}

static quire_status no_memory(void) {
    return quire__fail(QUIRE_E_NOMEM, "out of memory in the tiers of the store");
}

/* ------------------------------------------------------------------ records known to be stored */

static quire_record_id *known_place(const quire_tiers *all, const quire_record_id *id) {
    uint32_t hash;
    memcpy(&hash, id->key.byte, sizeof hash); /* keys are digests */
    return &all->known[(hash + id->piece) % QUIRE_TIERS_KNOWN];
}

static bool is_known(const quire_tiers *all, const quire_record_id *id) {
    return quire__same_id(known_place(all, id), id);
}

static void know(quire_tiers *all, const quire_record_id *id) { *known_place(all, id) = *id; }

static void forget(quire_tiers *all, const quire_record_id *id) {
    if (is_known(all, id))
        known_place(all, id)->piece = UINT32_MAX;
}

/* ------------------------------------------------------------------ which records there are */

/* Asks one place for those that are not present yet. */
static quire_status ask_tier(quire_tier *t, const quire_record_id *ids, size_t n, bool *present,
                             quire_record_id *some, size_t *place, bool *found) {
    size_t n_some = 0;
    for (size_t i = 0; i < n; i++)
        if (!present[i]) {
            some[n_some] = ids[i];
            place[n_some++] = i;
        }
    if (n_some == 0)
        return QUIRE_OK;
    quire_backend *b = quire__tier_begin(t);
    const quire_status status = b->has(b, some, n_some, found);
    quire__tier_end(t);
    quire__tier_note(t, QUIRE_TIER_READ, status); /* a place that fails has nothing */
    for (size_t i = 0; status == QUIRE_OK && i < n_some; i++)
        present[place[i]] = found[i];
    return status;
}

/* near_only: places that cost a round trip are not asked. */
static quire_status ask_tiers(quire_tiers *all, const quire_record_id *ids, size_t n, bool *present,
                              bool near_only) {
    quire_record_id *some = malloc((n + 1) * sizeof *some);
    size_t *place = malloc((n + 1) * sizeof *place);
    bool *found = malloc(n + 1);
    const bool good = some && place && found;
    for (size_t i = 0; good && i < all->n; i++)
        if (!near_only || !all->tier[i].reader->is_far)
            ask_tier(&all->tier[i], ids, n, present, some, place, found);
    free(some);
    free(place);
    free(found);
    return good ? QUIRE_OK : no_memory();
}

static quire_status tiers_has(quire_backend *backend, const quire_record_id *ids, size_t n,
                              bool *present) {
    quire_tiers *all = (quire_tiers *)backend;
    memset(present, 0, n * sizeof *present);
    QUIRE_TRY(ask_tiers(all, ids, n, present, false));
    for (size_t i = 0; i < n; i++)
        if (!present[i])
            forget(all, &ids[i]);
    return QUIRE_OK;
}

static quire_status tiers_may_skip(quire_backend *backend, const quire_record_id *ids, size_t n,
                                   bool *skip) {
    quire_tiers *all = (quire_tiers *)backend;
    for (size_t i = 0; i < n; i++)
        skip[i] = is_known(all, &ids[i]);
    quire_tier *first = &all->tier[0];
    if (first->reader->is_far)
        return QUIRE_OK;
    bool *there = malloc(n + 1);
    if (!there)
        return no_memory();
    quire_backend *b = quire__tier_begin(first);
    const quire_status status = b->has(b, ids, n, there);
    quire__tier_end(first);
    quire__tier_note(first, QUIRE_TIER_READ, status);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        skip[i] = skip[i] || there[i];
    free(there);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ reading */

static void forget_promotions(quire_tiers *all) {
    for (size_t i = 0; i < all->n_promotions; i++)
        free(all->promotions[i].bytes);
    all->n_promotions = 0;
    all->promotion_bytes = 0;
}

static quire_status tiers_ask(quire_backend *backend, const quire_record_id *ids, size_t n) {
    quire_tiers *all = (quire_tiers *)backend;
    quire_tier *far = NULL;
    for (size_t i = all->n; i-- > 0;)
        if (all->tier[i].reader->ask) {
            far = &all->tier[i];
            if (n == 0)
                far->reader->ask(far->reader, NULL, 0);
        }
    if (n == 0)
        forget_promotions(all);
    if (n == 0 || !far)
        return QUIRE_OK;
    bool *near = calloc(n, sizeof *near);
    quire_record_id *rest = malloc(n * sizeof *rest);
    size_t n_rest = 0;
    quire_status status = near && rest ? ask_tiers(all, ids, n, near, true) : no_memory();
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        if (!near[i])
            rest[n_rest++] = ids[i];
    if (status == QUIRE_OK && n_rest > 0)
        quire__tier_note(far, QUIRE_TIER_READ, far->reader->ask(far->reader, rest, n_rest));
    free(near);
    free(rest);
    return status;
}

typedef struct reading {
    quire_tiers *all;
    size_t tier;
    quire_backend_view view;
    void *user;
} reading;

/* If there is no memory, or too much waits, the record stays where it is. */
static void copy_for_promotion(quire_tiers *all, const quire_record_id *id, size_t tier,
                               const uint8_t *bytes, size_t n_bytes) {
    if (all->promotion_bytes + n_bytes > all->queue_bytes)
        return;
    if (all->n_promotions == all->promotion_capacity) {
        const size_t more = all->promotion_capacity ? 2 * all->promotion_capacity : 64;
        quire_promotion *larger = realloc(all->promotions, more * sizeof *larger);
        if (!larger)
            return;
        all->promotions = larger;
        all->promotion_capacity = more;
    }
    uint8_t *own = malloc(n_bytes + 1);
    if (!own)
        return;
    memcpy(own, bytes, n_bytes);
    all->promotions[all->n_promotions++] =
        (quire_promotion){.id = *id, .tier = tier, .bytes = own, .n_bytes = n_bytes};
    all->promotion_bytes += n_bytes;
}

static bool look_at(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                    int64_t used) {
    const reading *r = user;
    if (r->tier > 0 && !r->all->backend.read_only)
        copy_for_promotion(r->all, id, r->tier, bytes, n_bytes);
    return r->view(r->user, id, bytes, n_bytes, used);
}

static quire_status tiers_read(quire_backend *backend, const quire_record_id *id,
                               quire_backend_view view, void *user, bool *found) {
    quire_tiers *all = (quire_tiers *)backend;
    *found = false;
    for (size_t i = 0; i < all->n && !*found; i++) {
        quire_tier *t = &all->tier[i];
        reading r = {.all = all, .tier = i, .view = view, .user = user};
        quire_backend *b = quire__tier_begin(t);
        const quire_status status = b->read(b, id, look_at, &r, found);
        quire__tier_end(t);
        if (status != QUIRE_OK)
            quire__tier_note(t, QUIRE_TIER_READ, status);
        if (*found)
            quire__tier_count(t, &t->stats.hit_records, 1);
    }
    if (*found)
        know(all, id);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ writing */

/* What one place does with a write. `shared` is made when the first place needs it. */
static quire_status write_tier(quire_tiers *all, size_t i, const quire_store_key *keys,
                               size_t n_keys, const quire_backend_item *items, size_t n,
                               quire_behind **shared, bool now, quire_store_added *added) {
    quire_tier *t = &all->tier[i];
    *added = (quire_store_added){0};
    if (!now) {
        if (!*shared)
            *shared = quire__behind_make(keys, n_keys, items, n);
        if (!*shared)
            return no_memory();
        return quire__behind_add(t, *shared)
                   ? QUIRE_OK
                   : quire__fail(QUIRE_E_BUSY, "the queue of %.150s is full", t->stats.place);
    }
    quire_backend *b = quire__tier_begin(t);
    const quire_status status = quire__write_parts(b, keys, n_keys, items, n, added);
    quire__tier_end(t);
    if (status != QUIRE_E_TOO_BIG) /* a text that is larger than the place is no failure */
        quire__tier_note(t, QUIRE_TIER_WRITE, status);
    quire__tier_count(t, &t->stats.written_bytes, added->bytes);
    quire__tier_count(t, status == QUIRE_OK ? &t->stats.written_records : &t->stats.dropped_records,
                      n);
    return status;
}

static quire_status tiers_write(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                                const quire_backend_item *items, size_t n,
                                quire_store_added *added) {
    quire_tiers *all = (quire_tiers *)backend;
    quire_behind *shared = NULL;
    quire_status failed = QUIRE_OK;
    bool is_taken = false;
    for (size_t i = 0; i < all->n; i++) {
        quire_store_added more;
        const quire_status status =
            write_tier(all, i, keys, n_keys, items, n, &shared, !is_behind(all, i), &more);
        failed = failed == QUIRE_OK ? status : failed;
        is_taken = is_taken || status == QUIRE_OK;
    }
    *added = (quire_store_added){0};
    for (size_t i = 0; i < n; i++) {
        know(all, &items[i].id); /* also if it was dropped: the next put must not repeat it */
        added->pages += is_taken && items[i].id.piece == 0 && items[i].depth > 0;
        added->bytes += is_taken ? items[i].n_bytes : 0;
    }
    all->counts.added_pages += (uint64_t)added->pages;
    quire__behind_release(all, shared);
    return is_taken ? QUIRE_OK : failed;
}

static quire_status tiers_remove(quire_backend *backend, const quire_record_id *ids, size_t n) {
    quire_tiers *all = (quire_tiers *)backend;
    quire_status failed = QUIRE_OK;
    for (size_t i = 0; i < n; i++)
        forget(all, &ids[i]);
    for (size_t i = all->n; i-- > 0;) { /* the slow ones first: else one could be promoted again */
        quire_tier *t = &all->tier[i];
        quire_backend *b = quire__tier_begin(t);
        const quire_status status = b->remove(b, ids, n);
        quire__tier_end(t);
        if (status != QUIRE_OK) /* that a full server lets go does not mean that it takes */
            quire__tier_note(t, QUIRE_TIER_WRITE, status);
        failed = failed == QUIRE_OK ? status : failed;
    }
    return failed;
}

/* ------------------------------------------------------------------ uses and promotion */

/* The items that came from behind place i. */
static size_t items_for(const quire_tiers *all, size_t i, quire_backend_item *items) {
    size_t n = 0;
    for (size_t p = 0; p < all->n_promotions; p++) {
        const quire_promotion *from = &all->promotions[p];
        quire_record record;
        if (from->tier > i && quire__record_read(from->bytes, from->n_bytes, &from->id, &record))
            items[n++] = (quire_backend_item){.id = from->id,
                                              .parent = record.parent,
                                              .depth = record.depth,
                                              .bytes = from->bytes,
                                              .n_bytes = from->n_bytes};
    }
    return n;
}

static void promote(quire_tiers *all, const quire_store_key *keys, size_t n_keys) {
    quire_backend_item *items =
        all->n_promotions ? malloc(all->n_promotions * sizeof *items) : NULL;
    for (size_t i = 0; items && i < all->n; i++) {
        const size_t n = items_for(all, i, items);
        quire_behind *own = NULL; /* nobody waits for a disk here */
        quire_store_added unused;
        if (n > 0)
            write_tier(all, i, keys, n_keys, items, n, &own,
                       all->tier[i].kind == QUIRE_PLACE_MEMORY, &unused);
        quire__behind_release(all, own);
    }
    free(items);
    forget_promotions(all);
}

static quire_status tiers_touch(quire_backend *backend, const quire_store_key *keys, size_t n) {
    quire_tiers *all = (quire_tiers *)backend;
    quire_behind *use = NULL;
    promote(all, keys, n);
    for (size_t i = 0; i < all->n; i++) {
        quire_tier *t = &all->tier[i];
        if (!is_behind(all, i)) {
            quire_backend *b = quire__tier_begin(t);
            const quire_status status = b->touch(b, keys, n);
            quire__tier_end(t);
            if (status != QUIRE_OK) /* most uses are not written at once: success says nothing */
                quire__tier_note(t, QUIRE_TIER_WRITE, status);
            continue;
        }
        if (!use)
            use = quire__behind_make(keys, n, NULL, 0);
        quire__behind_add(t, use);
    }
    quire__behind_release(all, use);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ checking */

static quire_status tiers_check(quire_backend *backend, const quire_record_id *id) {
    quire_tiers *all = (quire_tiers *)backend;
    for (size_t i = 0; i < all->n; i++) {
        quire_tier *t = &all->tier[i];
        bool present = true;
        quire_backend *b = quire__tier_begin(t);
        quire_status status = id ? b->has(b, id, 1, &present) : QUIRE_OK;
        if (status == QUIRE_OK && present)
            status = b->check(b, id);
        quire__tier_end(t);
        QUIRE_TRY(status);
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ counting */

static void tiers_count(quire_backend *backend, const quire_backend_counts *more) {
    quire__counts_add(&((quire_tiers *)backend)->counts, more);
}

/* Of the first place that is near. A far one would look at every key, while all callers wait, and
 * servers ask for this each second. */
static quire_status tiers_room(quire_backend *backend, quire_backend_room *room,
                               quire_backend_counts *counts) {
    quire_tiers *all = (quire_tiers *)backend;
    quire_status status = QUIRE_OK;
    size_t i = 0;
    while (i < all->n && all->tier[i].reader->is_far)
        i++;
    *room = (quire_backend_room){0};
    *counts = (quire_backend_counts){0};
    if (i < all->n) {
        quire_backend *b = quire__tier_begin(&all->tier[i]);
        status = b->room(b, room, counts);
        quire__tier_end(&all->tier[i]);
    }
    const uint64_t evicted = counts->evicted_pages;
    *counts = all->counts;
    counts->evicted_pages = evicted;
    return status;
}

size_t quire__tiers_count(const quire_backend *backend) {
    return ((const quire_tiers *)backend)->n;
}

void quire__tiers_describe(quire_backend *backend, size_t i, quire_store_tier *to) {
    quire_tier *t = &((quire_tiers *)backend)->tier[i];
    pthread_mutex_lock(&t->queue_lock);
    *to = t->stats;
    pthread_mutex_unlock(&t->queue_lock);
}

void quire__tiers_drain(quire_backend *backend) {
    quire_tiers *all = (quire_tiers *)backend;
    for (size_t i = 0; i < all->n; i++)
        quire__behind_wait(&all->tier[i]);
}

/* ------------------------------------------------------------------ opening */

static void tiers_close(quire_backend *backend) {
    quire_tiers *all = (quire_tiers *)backend;
    forget_promotions(all);
    for (size_t i = 0; i < all->n; i++) {
        quire_tier *t = &all->tier[i];
        quire__behind_end(t);
        if (t->writer && t->writer != t->reader)
            t->writer->close(t->writer);
        if (t->reader)
            t->reader->close(t->reader);
        pthread_mutex_destroy(&t->lock);
        pthread_mutex_destroy(&t->queue_lock);
        pthread_cond_destroy(&t->has_work);
        pthread_cond_destroy(&t->is_idle);
    }
    pthread_mutex_destroy(&all->behind_lock);
    free(all->promotions);
    free(all->known);
    free(all);
}

bool quire__is_tiers(const quire_backend *backend) { return backend->close == tiers_close; }

static quire_status open_tier(quire_tiers *all, const char *place, const quire_store_options *o) {
    quire_tier *t = &all->tier[all->n++];
    t->all = all;
    t->kind = quire__place_kind(place);
    quire_store_place_text(place, t->stats.place);
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->queue_lock, NULL);
    pthread_cond_init(&t->has_work, NULL);
    pthread_cond_init(&t->is_idle, NULL);
    QUIRE_TRY(quire__place_open(&t->reader, place, o, false));
    t->writer = t->reader;
    if (t->kind == QUIRE_PLACE_REDIS) {
        t->writer = NULL;
        QUIRE_TRY(quire__place_open(&t->writer, place, o, false));
    }
    return t->kind == QUIRE_PLACE_MEMORY || o->read_only ? QUIRE_OK : quire__behind_start(t);
}

/* A directory has many names: a slash at its end, a link. One that is not there yet has none. */
static bool is_same_place(const char *a, const char *b) {
    struct stat of_a, of_b;
    if (strcmp(a, b) == 0)
        return true;
    return quire__place_kind(a) == QUIRE_PLACE_DIRECTORY &&
           quire__place_kind(b) == QUIRE_PLACE_DIRECTORY && stat(a, &of_a) == 0 &&
           stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* The same directory twice would be opened twice by one process, which LMDB forbids: to close one
 * gives up the locks of the other. */
static quire_status check_places(const char *const *places, size_t n) {
    char text[QUIRE_STORE_PLACE_TEXT];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (is_same_place(places[i], places[j])) {
                quire_store_place_text(places[i], text);
                return quire__fail(QUIRE_E_INVALID,
                                   "two tiers of the store are the same place: %.150s", text);
            }
    return QUIRE_OK;
}

static quire_status open_all(quire_tiers *all, const char *const *places, size_t n,
                             const quire_store_options *o) {
    QUIRE_TRY(check_places(places, n));
    for (size_t i = 0; i < n; i++) {
        QUIRE_TRY(check_places(places, i + 1)); /* opening the last one may have made this one */
        QUIRE_TRY(open_tier(all, places[i], o));
    }
    return QUIRE_OK;
}

quire_status quire__tiers_open(quire_backend **backend, const char *const *places, size_t n,
                               const quire_store_options *o) {
    quire_tiers *all = calloc(1, sizeof *all);
    quire_record_id *known = malloc(QUIRE_TIERS_KNOWN * sizeof *known);
    if (!all || !known) {
        free(all);
        free(known);
        return no_memory();
    }
    memset(known, 0xff, QUIRE_TIERS_KNOWN * sizeof *known);
    all->known = known;
    all->queue_bytes = o->queue_bytes;
    all->on_tier = o->on_tier;
    all->user = o->user;
    pthread_mutex_init(&all->behind_lock, NULL);
    all->backend = (quire_backend){.read_only = o->read_only,
                                   .is_far = true,
                                   .batch_bytes = BATCH_BYTES,
                                   .close = tiers_close,
                                   .has = tiers_has,
                                   .may_skip = tiers_may_skip,
                                   .ask = tiers_ask,
                                   .read = tiers_read,
                                   .write = tiers_write,
                                   .remove = tiers_remove,
                                   .touch = tiers_touch,
                                   .walk = quire__tiers_walk,
                                   .check = tiers_check,
                                   .count = tiers_count,
                                   .room = tiers_room};
    const quire_status status = open_all(all, places, n, o);
    if (status != QUIRE_OK) {
        tiers_close(&all->backend);
        return status;
    }
    *backend = &all->backend;
    return QUIRE_OK;
}
