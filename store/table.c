/* Reads all ids of a store into a tree in memory. */
#include "store/table.h"

#include <stdlib.h>

/* ------------------------------------------------------------------ reading */

static bool grow(void **memory, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity)
        return true;
    const size_t more = *capacity ? 2 * *capacity : 256;
    void *larger = realloc(*memory, more * size);
    if (!larger)
        return false;
    *memory = larger;
    *capacity = more;
    return true;
}

static bool note(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                 int64_t used) {
    quire_table *t = user;
    quire_record r;
    void *ids = t->id, *nodes = t->node;
    t->no_memory = !grow(&ids, t->n_ids, &t->id_capacity, sizeof *t->id) ||
                   !grow(&nodes, t->n_nodes, &t->node_capacity, sizeof *t->node);
    t->id = ids;
    t->node = nodes;
    if (t->no_memory)
        return false;
    t->id[t->n_ids++] = *id;
    if (!quire__record_read(bytes, n_bytes, id, &r))
        return true;
    quire_table_node *n = t->n_nodes ? &t->node[t->n_nodes - 1] : NULL;
    if (!n || !quire__same_key(&n->key, &id->key)) {
        n = &t->node[t->n_nodes++];
        *n = (quire_table_node){.key = id->key,
                                .parent = r.parent,
                                .root = r.root,
                                .depth = r.depth,
                                .used = used,
                                .first = t->n_ids - 1,
                                .up = -1,
                                .top = -1};
    }
    n->n = t->n_ids - n->first; /* unreadable records in between belong to it */
    n->bytes += n_bytes;
    n->has_tokens = n->has_tokens || id->piece == 0;
    return true;
}

static int compare(const void *a, const void *b) {
    return memcmp(((const quire_table_node *)a)->key.byte, ((const quire_table_node *)b)->key.byte,
                  sizeof(quire_store_key));
}

int64_t quire__table_find(const quire_table *t, const quire_store_key *key) {
    const quire_table_node wanted = {.key = *key};
    const quire_table_node *found =
        t->n_nodes ? bsearch(&wanted, t->node, t->n_nodes, sizeof wanted, compare) : NULL;
    return found ? found - t->node : -1;
}

static quire_status read_roots(quire_store *store, quire_table *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_nodes; i++)
        n += t->node[i].depth == 0;
    t->root = calloc(n + 1, sizeof *t->root);
    if (!t->root)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while reading the store");
    for (size_t i = 0; i < t->n_nodes; i++) {
        if (t->node[i].depth != 0)
            continue;
        quire_known_root *root = &t->root[t->n_roots];
        const quire_status status = quire__known_root(store, &t->node[i].key, root);
        if (status == QUIRE_E_NOMEM || status == QUIRE_E_IO)
            return status;
        if (status == QUIRE_OK)
            t->node[i].top = (int64_t)t->n_roots++;
        else
            quire__known_root_free(root); /* bad, gone, or of a newer program: no `top` */
    }
    return QUIRE_OK;
}

quire_status quire__table_read(quire_store *store, quire_table *t) {
    *t = (quire_table){0};
    QUIRE_TRY(store->backend->walk(store->backend, NULL, note, t));
    if (t->no_memory)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while reading the store");
    const quire_status status = read_roots(store, t);
    quire__store_end_reading(store);
    QUIRE_TRY(status);
    for (size_t i = 0; i < t->n_nodes; i++) {
        quire_table_node *n = &t->node[i];
        if (n->depth == 0)
            continue;
        const int64_t root = quire__table_find(t, &n->root), up = quire__table_find(t, &n->parent);
        n->top = root >= 0 && t->node[root].depth == 0 ? t->node[root].top : -1;
        if (up >= 0 && t->node[up].depth + 1 == n->depth) {
            n->up = up;
            t->node[up].n_below++;
        }
    }
    return QUIRE_OK;
}

void quire__table_free(quire_table *t) {
    for (size_t i = 0; i < t->n_roots; i++)
        quire__known_root_free(&t->root[i]);
    free(t->root);
    free(t->node);
    free(t->id);
    *t = (quire_table){0};
}

/* ------------------------------------------------------------------ whole texts */

static bool has_piece(const quire_table *t, const quire_table_node *n, int32_t piece) {
    for (size_t i = n->first; i < n->first + n->n; i++)
        if (t->id[i].piece == (uint32_t)piece)
            return true;
    return false;
}

bool quire__table_whole(const quire_table *t, size_t place) {
    const quire_table_node *n = &t->node[place];
    if (n->top < 0)
        return false;
    const quire_pieces pieces = quire__form_pieces(&t->root[n->top].form);
    const int32_t n_pages = (int32_t)n->depth, n_pieces = quire__piece_count(pieces);
    for (; n->depth > 0; n = &t->node[n->up]) {
        if (n->up < 0 || !n->has_tokens)
            return false;
        for (int32_t piece = 1; piece < n_pieces; piece++)
            if (quire__piece_needed(pieces, piece, (int32_t)n->depth - 1, n_pages) &&
                !has_piece(t, n, piece))
                return false;
    }
    return true;
}
