/* Walks the contents of a store, finds pages by the first digits of their keys, and removes them.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "store/table.h"

enum { IDS_AT_ONCE = 1000 };

/* ------------------------------------------------------------------ walk */

static void describe(const quire_table *t, size_t i, quire_store_entry *entry) {
    const quire_table_node *n = &t->node[i];
    *entry = (quire_store_entry){.key = n->key,
                                 .n_tokens = (int32_t)n->depth * QUIRE_PAGE_TOKENS,
                                 .is_end = n->n_below == 0,
                                 .whole = quire__table_whole(t, i),
                                 .bytes = n->bytes,
                                 .used = n->used};
    for (const quire_table_node *m = n; m->depth > 0; m = &t->node[m->up]) {
        entry->text_bytes += m->bytes;
        if (m->up < 0)
            break;
    }
    if (n->top < 0)
        return;
    const quire_known_root *root = &t->root[n->top];
    entry->identity = root->root.identity;
    entry->identity_bytes = root->root.identity_bytes;
    entry->layers = root->form.config;
    entry->n_layers = root->form.n_layers;
    entry->sinks = root->form.sinks;
    entry->raw = root->form.raw;
}

quire_status quire_store_walk(quire_store *store,
                              bool (*visit)(void *user, const quire_store_entry *entry),
                              void *user) {
    if (!store || !visit)
        return quire__fail(QUIRE_E_INVALID, "store or visit is NULL");
    quire_table t;
    pthread_mutex_lock(&store->lock);
    const quire_status status = quire__table_read(store, &t);
    bool more = status == QUIRE_OK;
    for (size_t i = 0; more && i < t.n_nodes; i++) {
        quire_store_entry entry;
        if (t.node[i].depth == 0)
            continue;
        describe(&t, i, &entry);
        more = visit(user, &entry);
    }
    quire__table_free(&t);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ------------------------------------------------------------------ named */

static bool begins_with(const quire_store_key *key, const char *digits, size_t n) {
    char text[QUIRE_STORE_KEY_TEXT];
    quire_store_key_text(key, text);
    for (size_t i = 0; i < n; i++)
        if (text[i] != tolower((unsigned char)digits[i]))
            return false;
    return true;
}

quire_status quire_store_key_find(quire_store *store, const char *digits, quire_store_key *key) {
    if (!store || !digits || !key)
        return quire__fail(QUIRE_E_INVALID, "store, digits or key is NULL");
    const size_t n = strlen(digits);
    if (n == 0 || n >= QUIRE_STORE_KEY_TEXT || strspn(digits, "0123456789abcdefABCDEF") != n)
        return quire__fail(QUIRE_E_UNKNOWN, "'%.80s' is not a key: give 1 to 64 hexadecimal digits",
                           digits);
    quire_table t;
    int64_t n_ends = 0, n_pages = 0, end = -1, page = -1;
    pthread_mutex_lock(&store->lock);
    const quire_status status = quire__table_read(store, &t);
    for (size_t i = 0; status == QUIRE_OK && i < t.n_nodes; i++) {
        if (t.node[i].depth == 0 || !begins_with(&t.node[i].key, digits, n))
            continue;
        page = (int64_t)i;
        n_pages++;
        if (t.node[i].n_below == 0) {
            end = (int64_t)i;
            n_ends++;
        }
    }
    const int64_t only = n_ends == 1 ? end : n_pages == 1 ? page : -1;
    if (only >= 0)
        *key = t.node[only].key;
    quire__table_free(&t);
    pthread_mutex_unlock(&store->lock);
    QUIRE_TRY(status);
    if (only >= 0)
        return QUIRE_OK;
    return n_pages == 0
               ? quire__fail(QUIRE_E_UNKNOWN, "the store has no page whose key begins with %.80s",
                             digits)
               : quire__fail(QUIRE_E_UNKNOWN,
                             "%lld pages have keys that begin with %.80s: give more digits",
                             (long long)n_pages, digits);
}

/* ------------------------------------------------------------------ removed */

static void mark_up(quire_table *t, bool *marked, int64_t i) {
    while (i >= 0 && t->node[i].n_below == 0 && !marked[i]) {
        marked[i] = true;
        i = t->node[i].up;
        if (i >= 0)
            t->node[i].n_below--;
    }
}

/* Marks the page, the pages that follow it, and those before it that lead to nothing else. */
static void mark(quire_table *t, bool *marked, int64_t start) {
    bool more = true;
    marked[start] = true;
    /* Nodes are in the order of hashes, so a pass gets about two pages further in a text. That is
     * enough for what is removed by hand. */
    while (more) {
        more = false;
        for (size_t i = 0; i < t->n_nodes; i++)
            if (!marked[i] && t->node[i].up >= 0 && marked[t->node[i].up])
                more = marked[i] = true;
    }
    const int64_t up = t->node[start].up;
    if (up >= 0) {
        t->node[up].n_below--;
        mark_up(t, marked, up);
    }
}

static quire_status remove_ids(quire_store *store, const quire_record_id *ids, size_t n) {
    for (size_t at = 0; at < n; at += IDS_AT_ONCE)
        QUIRE_TRY(store->backend->remove(store->backend, ids + at,
                                         n - at < IDS_AT_ONCE ? n - at : IDS_AT_ONCE));
    return QUIRE_OK;
}

static quire_status remove_marked(quire_store *store, quire_table *t, const quire_store_key *key,
                                  int32_t *n_pages) {
    const int64_t start = key ? quire__table_find(t, key) : -1;
    if (key && (start < 0 || t->node[start].depth == 0))
        return quire__fail(QUIRE_E_UNKNOWN, "the store has no such page");
    bool *marked = calloc(t->n_nodes + 1, sizeof *marked);
    if (!marked)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while removing pages");
    if (key)
        mark(t, marked, start);
    size_t n_ids = key ? 0 : t->n_ids; /* everything, also unreadable records */
    for (size_t i = 0; i < t->n_nodes; i++) {
        const quire_table_node *n = &t->node[i];
        *n_pages += (!key || marked[i]) && n->depth > 0;
        if (key && marked[i]) { /* moved to the front, never past its own place */
            memmove(t->id + n_ids, t->id + n->first, n->n * sizeof *t->id);
            n_ids += n->n;
        }
    }
    const quire_status status = remove_ids(store, t->id, n_ids);
    free(marked);
    return status;
}

quire_status quire_store_remove(quire_store *store, const quire_store_key *key, int32_t *n_pages) {
    int32_t unused;
    n_pages = n_pages ? n_pages : &unused;
    *n_pages = 0;
    if (!store)
        return quire__fail(QUIRE_E_INVALID, "store is NULL");
    if (store->backend->read_only)
        return quire__fail(QUIRE_E_STATE, "the store was opened read-only");
    quire_table t;
    pthread_mutex_lock(&store->lock);
    quire_status status = quire__table_read(store, &t);
    if (status == QUIRE_OK)
        status = remove_marked(store, &t, key, n_pages);
    quire__table_free(&t);
    pthread_mutex_unlock(&store->lock);
    return status;
}
