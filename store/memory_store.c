/* Records in memory, with a limit in bytes.
 *
 * Nodes are in a list from the most to the least recently used. Using a text moves its nodes to the
 * front, the root first, so a node always comes before its children, and the last node of the list
 * has none: it is evicted first. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/store.h"

enum { BATCH_BYTES = 8 << 20, FIRST_BUCKETS = 1024 };

typedef struct piece {
    struct piece *next;
    uint32_t number;
    size_t n_bytes;
    uint8_t bytes[];
} piece;

typedef struct node {
    quire_store_key key;
    uint32_t depth;
    uint64_t moment; /* of its last use */
    int64_t used;    /* the same in seconds since 1970 */
    piece *pieces;
    struct node *newer, *older, *next_in_bucket;
} node;

typedef struct memory {
    quire_backend backend; /* first: what callers hold */
    uint64_t max_bytes, bytes, record_bytes;
    node **bucket;
    size_t n_buckets, n_nodes, n_records, n_roots;
    node *newest, *oldest;
    uint64_t moment;
    quire_backend_counts counts;
    quire_record_id *listed; /* what the last walk from the start has found */
    size_t n_listed;
} memory;

/* ------------------------------------------------------------------ finding */

static node **bucket_of(const memory *m, const quire_store_key *key) {
    uint64_t hash;
    memcpy(&hash, key->byte, sizeof hash); /* keys are digests */
    return &m->bucket[hash & (m->n_buckets - 1)];
}

static node *find_node(const memory *m, const quire_store_key *key) {
    node *n = *bucket_of(m, key);
    while (n && !quire__same_key(&n->key, key))
        n = n->next_in_bucket;
    return n;
}

static piece *find_piece(const memory *m, const quire_record_id *id) {
    const node *n = find_node(m, &id->key);
    piece *p = n ? n->pieces : NULL;
    while (p && p->number != id->piece)
        p = p->next;
    return p;
}

/* ------------------------------------------------------------------ the list */

static void unlink_node(memory *m, node *n) {
    *(n->newer ? &n->newer->older : &m->newest) = n->older;
    *(n->older ? &n->older->newer : &m->oldest) = n->newer;
}

/* after NULL: at the front. */
static void link_node(memory *m, node *n, node *after) {
    n->newer = after;
    n->older = after ? after->older : m->newest;
    *(n->newer ? &n->newer->older : &m->newest) = n;
    *(n->older ? &n->older->newer : &m->oldest) = n;
}

static void use(memory *m, const quire_store_key *keys, size_t n) {
    const int64_t now = (int64_t)time(NULL);
    m->moment++;
    for (size_t i = n; i-- > 0;) {
        node *used = find_node(m, &keys[i]);
        if (!used)
            continue;
        unlink_node(m, used);
        link_node(m, used, NULL);
        used->moment = m->moment;
        used->used = now;
    }
}

/* ------------------------------------------------------------------ dropping and adding */

static size_t piece_room(size_t n_bytes) { return sizeof(piece) + n_bytes; }

static void drop_piece(memory *m, piece **at) {
    piece *p = *at;
    *at = p->next;
    m->bytes -= piece_room(p->n_bytes);
    m->record_bytes -= p->n_bytes;
    m->n_records--;
    free(p);
}

static void drop_node(memory *m, node *n) {
    while (n->pieces)
        drop_piece(m, &n->pieces);
    node **at = bucket_of(m, &n->key);
    while (*at != n)
        at = &(*at)->next_in_bucket;
    *at = n->next_in_bucket;
    unlink_node(m, n);
    m->bytes -= sizeof *n;
    m->n_nodes--;
    m->n_roots -= n->depth == 0;
    free(n);
}

static quire_status make_room(memory *m, size_t n_bytes) {
    while (m->bytes + n_bytes > m->max_bytes) {
        node *last = m->oldest;
        if (!last || last->moment == m->moment)
            return quire__fail(QUIRE_E_TOO_BIG,
                               "the pages of this text do not fit into %llu bytes of memory",
                               (unsigned long long)m->max_bytes);
        m->counts.evicted_pages += last->depth > 0;
        drop_node(m, last);
    }
    return QUIRE_OK;
}

/* If there is no memory, the table only becomes slower. */
static void widen(memory *m) {
    node **larger = calloc(2 * m->n_buckets, sizeof *larger), **old = m->bucket;
    const size_t n_old = m->n_buckets;
    if (!larger)
        return;
    m->bucket = larger;
    m->n_buckets *= 2;
    for (size_t i = 0; i < n_old; i++)
        for (node *n = old[i], *next; n; n = next) {
            next = n->next_in_bucket;
            node **at = bucket_of(m, &n->key);
            n->next_in_bucket = *at;
            *at = n;
        }
    free(old);
}

static node *add_node(memory *m, const quire_backend_item *item) {
    node *n = calloc(1, sizeof *n), *parent = item->depth > 0 ? find_node(m, &item->parent) : NULL;
    if (!n)
        return NULL;
    if (m->n_nodes >= 2 * m->n_buckets)
        widen(m);
    n->key = item->id.key;
    n->depth = item->depth;
    n->moment = m->moment;
    n->used = (int64_t)time(NULL);
    node **at = bucket_of(m, &n->key);
    n->next_in_bucket = *at;
    *at = n;
    link_node(m, n, parent);
    m->bytes += sizeof *n;
    m->n_nodes++;
    m->n_roots += n->depth == 0;
    return n;
}

static quire_status add_item(memory *m, const quire_backend_item *item, quire_store_added *added) {
    if (find_piece(m, &item->id))
        return QUIRE_OK;
    node *n = find_node(m, &item->id.key);
    QUIRE_TRY(make_room(m, piece_room(item->n_bytes) + (n ? 0 : sizeof *n)));
    n = find_node(m, &item->id.key); /* it may have been dropped */
    const bool is_new = !n;
    piece *p = malloc(piece_room(item->n_bytes));
    if (p && !n)
        n = add_node(m, item);
    if (!p || !n) {
        free(p);
        return quire__fail(QUIRE_E_NOMEM, "out of memory while keeping a page");
    }
    p->next = n->pieces;
    p->number = item->id.piece;
    p->n_bytes = item->n_bytes;
    memcpy(p->bytes, item->bytes, item->n_bytes);
    n->pieces = p;
    m->bytes += piece_room(p->n_bytes);
    m->record_bytes += p->n_bytes;
    m->n_records++;
    added->pages += is_new && item->depth > 0;
    added->bytes += item->n_bytes;
    m->counts.added_pages += is_new && item->depth > 0;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ calls */

static quire_status memory_has(quire_backend *backend, const quire_record_id *ids, size_t n,
                               bool *present) {
    for (size_t i = 0; i < n; i++)
        present[i] = find_piece((memory *)backend, &ids[i]) != NULL;
    return QUIRE_OK;
}

static quire_status memory_read(quire_backend *backend, const quire_record_id *id,
                                quire_backend_view view, void *user, bool *found) {
    const piece *p = find_piece((memory *)backend, id);
    *found = p != NULL;
    if (p)
        view(user, id, p->bytes, p->n_bytes, 0);
    return QUIRE_OK;
}

static quire_status memory_write(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                                 const quire_backend_item *items, size_t n,
                                 quire_store_added *added) {
    memory *m = (memory *)backend;
    *added = (quire_store_added){0};
    use(m, keys, n_keys);
    for (size_t i = 0; i < n; i++)
        QUIRE_TRY(add_item(m, &items[i], added));
    return QUIRE_OK;
}

static quire_status memory_remove(quire_backend *backend, const quire_record_id *ids, size_t n) {
    memory *m = (memory *)backend;
    for (size_t i = 0; i < n; i++) {
        node *owner = find_node(m, &ids[i].key);
        piece **at = owner ? &owner->pieces : NULL;
        while (at && *at && (*at)->number != ids[i].piece)
            at = &(*at)->next;
        if (at && *at)
            drop_piece(m, at);
        if (owner && !owner->pieces)
            drop_node(m, owner);
    }
    return QUIRE_OK;
}

static quire_status memory_touch(quire_backend *backend, const quire_store_key *keys, size_t n) {
    use((memory *)backend, keys, n);
    return QUIRE_OK;
}

/* Verifying walks a record at a time, so the ids are listed and sorted once. */
static quire_status list_all(memory *m) {
    quire_record_id *all = malloc((m->n_records + 1) * sizeof *all);
    if (!all)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while listing the pages in memory");
    free(m->listed);
    m->listed = all;
    m->n_listed = 0;
    for (const node *n = m->newest; n; n = n->older)
        for (const piece *p = n->pieces; p; p = p->next)
            all[m->n_listed++] = (quire_record_id){.key = n->key, .piece = p->number};
    qsort(all, m->n_listed, sizeof *all, quire__compare_ids);
    return QUIRE_OK;
}

static quire_status memory_walk(quire_backend *backend, const quire_record_id *after,
                                quire_backend_view view, void *user) {
    memory *m = (memory *)backend;
    if (!after || !m->listed) /* else the list of the walk that this one continues */
        QUIRE_TRY(list_all(m));
    bool goes_on = true;
    for (size_t i = quire__first_behind(m->listed, m->n_listed, sizeof *m->listed, after);
         goes_on && i < m->n_listed; i++) {
        const quire_record_id *id = &m->listed[i];
        const piece *p = find_piece(m, id); /* it may be gone */
        goes_on = !p || view(user, id, p->bytes, p->n_bytes, find_node(m, &id->key)->used);
    }
    return QUIRE_OK;
}

static quire_status memory_check(quire_backend *backend, const quire_record_id *id) {
    (void)backend, (void)id;
    return QUIRE_OK;
}

static void memory_count(quire_backend *backend, const quire_backend_counts *more) {
    quire__counts_add(&((memory *)backend)->counts, more);
}

static quire_status memory_room(quire_backend *backend, quire_backend_room *room,
                                quire_backend_counts *counts) {
    const memory *m = (memory *)backend;
    *room = (quire_backend_room){.records = (int64_t)m->n_records,
                                 .nodes = (int64_t)m->n_nodes,
                                 .roots = (int64_t)m->n_roots,
                                 .bytes = m->record_bytes,
                                 .file_bytes = m->bytes,
                                 .max_bytes = m->max_bytes};
    *counts = m->counts;
    return QUIRE_OK;
}

static void memory_close(quire_backend *backend) {
    memory *m = (memory *)backend;
    while (m->oldest)
        drop_node(m, m->oldest);
    free(m->bucket);
    free(m->listed);
    free(m);
}

quire_status quire__memory_open(quire_backend **backend, uint64_t max_bytes) {
    memory *m = calloc(1, sizeof *m);
    node **bucket = calloc(FIRST_BUCKETS, sizeof *bucket);
    if (!m || !bucket) {
        free(m);
        free(bucket);
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    }
    m->backend = (quire_backend){.batch_bytes = BATCH_BYTES,
                                 .close = memory_close,
                                 .has = memory_has,
                                 .read = memory_read,
                                 .write = memory_write,
                                 .remove = memory_remove,
                                 .touch = memory_touch,
                                 .walk = memory_walk,
                                 .check = memory_check,
                                 .count = memory_count,
                                 .room = memory_room};
    m->max_bytes = max_bytes;
    m->bucket = bucket;
    m->n_buckets = FIRST_BUCKETS;
    *backend = &m->backend;
    return QUIRE_OK;
}
