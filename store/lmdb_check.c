/* Checks LMDB's own pages: meta pages, trees, free list (lmdb_pages.h). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "store/lmdb_pages.h"

enum { LEAST_PAGE = 1 << 12, MOST_PAGE = 1 << 15, TRIES = 100, N_TREES = 4 };

static const uint32_t MAGIC = 0xBEEFC0DE, VERSION = 1;
static const size_t NO_PAGE = SIZE_MAX;

/* ------------------------------------------------------------------ meta pages */

/* Checks the values that LMDB uses from a meta page without checking them. */
static quire_status check_meta_page(const quire_pages *p, int which, const quire_page_meta *m) {
    const size_t page = m->free.pad;
    if (page < LEAST_PAGE || page > MOST_PAGE || (page & (page - 1)) != 0)
        return quire__page_damaged(p, (size_t)which, "it has an impossible page size");
    if (m->last_page < 1 || m->last_page >= SIZE_MAX / 2 / page)
        return quire__page_damaged(p, (size_t)which, "it has an impossible number of pages");
    if (m->transaction >= SIZE_MAX / 2 ||
        (m->transaction != 0 && m->transaction % 2 != (size_t)which))
        return quire__page_damaged(p, (size_t)which, "it has an impossible transaction");
    if (m->free.flags != MDB_INTEGERKEY)
        return quire__page_damaged(p, (size_t)which, "it has unknown flags");
    return QUIRE_OK;
}

static quire_status check_both(quire_pages *p) {
    p->page_bytes = 0;
    for (int i = 0; i < 2; i++) {
        quire_page_head head;
        quire_page_meta m;
        const quire_status status = quire__page_read_meta(p, i, &head, &m);
        if (status == QUIRE_E_TRUNCATED ||
            (status == QUIRE_OK &&
             (head.flags != QUIRE_PAGE_META || m.magic != MAGIC || m.version != VERSION)))
            return QUIRE_OK; /* LMDB checks these itself */
        QUIRE_TRY(status);
        QUIRE_TRY(check_meta_page(p, i, &m));
        if (i == 1 && m.free.pad != p->page_bytes)
            return quire__page_damaged(p, 1, "it has another page size than page 0");
        p->page_bytes = m.free.pad;
    }
    return QUIRE_OK;
}

quire_status quire__lmdb_check_meta(const char *directory) {
    char path[QUIRE_PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/data.mdb", directory);
    quire_pages p = {.directory = directory};
    if (n <= 0 || n >= (int)sizeof path || (p.fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return QUIRE_OK; /* LMDB reports it */
    const quire_status status = check_both(&p);
    close(p.fd);
    return status;
}

/* ------------------------------------------------------------------ trees */

/* What a tree holds. */
typedef enum tree_kind { FREE, MAIN, META, RECORDS, NODES, USES } tree_kind;

/* Bytes of keys and values; 0: any. */
static const struct {
    const char *name;
    size_t key_bytes, data_bytes;
    bool no_data;
} trees[] = {[FREE] = {"free", sizeof(size_t), 0, false},
             [MAIN] = {"main", 0, 0, false},
             [META] = {"meta", 0, 0, false},
             [RECORDS] = {"records", QUIRE_LMDB_ID, 0, false},
             [NODES] = {"nodes", sizeof(quire_store_key), QUIRE_LMDB_NODE, false},
             [USES] = {"uses", QUIRE_LMDB_USE, 0, true}};

typedef struct checker {
    quire_pages pages;
    uint8_t *used;                     /* one bit per page: something refers to it */
    uint8_t *buffer[QUIRE_PAGE_DEPTH]; /* one page per level */
    tree_kind kind;                    /* of the tree being checked */
    size_t depth, entries;
    size_t n_free; /* pages in the free list */
    quire_page_tree tree[N_TREES];
    size_t at[N_TREES]; /* the leaf that has it; 0: none */
} checker;

/* Marks pages, each of which must have one owner. */
static quire_status claim(checker *c, size_t from, size_t first, size_t n) {
    if (first < 2 || first > c->pages.meta.last_page || n > c->pages.meta.last_page + 1 - first)
        return quire__page_damaged(&c->pages, from, "it refers to a page that does not exist");
    for (size_t i = first; i < first + n; i++) {
        if (c->used[i / 8] >> i % 8 & 1)
            return quire__page_damaged(&c->pages, from,
                                       "it refers to a page that something else uses");
        c->used[i / 8] |= (uint8_t)(1 << i % 8);
    }
    return QUIRE_OK;
}

static quire_status claim_stored(checker *c, size_t from, size_t first, size_t n) {
    QUIRE_TRY(claim(c, from, first, n));
    return (uint64_t)(first + n) * c->pages.page_bytes <= c->pages.file_bytes
               ? QUIRE_OK
               : quire__fail(QUIRE_E_TRUNCATED, "'%.200s/data.mdb' is cut off", c->pages.directory);
}

static size_t number_at(const uint8_t *bytes) {
    size_t number;
    memcpy(&number, bytes, sizeof number);
    return number;
}

/* The page numbers that a transaction has freed: their count, then the numbers in descending
 * order. */
static quire_status check_free_pages(checker *c, size_t page, const quire_page_node *n,
                                     const uint8_t *list) {
    const size_t id = number_at(n->key),
                 count = n->data_bytes >= sizeof(size_t) ? number_at(list) : SIZE_MAX;
    if (id == 0 || id > c->pages.meta.transaction || n->data_bytes % sizeof(size_t) != 0 ||
        count >= n->data_bytes / sizeof(size_t))
        return quire__page_damaged(&c->pages, page, "its list of free pages is impossible");
    for (size_t i = 1, before = SIZE_MAX; i <= count; i++) {
        const size_t number = number_at(list + i * sizeof(size_t));
        if (number >= before)
            return quire__page_damaged(&c->pages, page, "its list of free pages is not in order");
        QUIRE_TRY(claim(c, page, number, 1));
        before = number;
    }
    c->n_free += count;
    return QUIRE_OK;
}

static quire_status check_free(checker *c, size_t page, const quire_page_node *n) {
    if (!(n->flags & QUIRE_NODE_BIG))
        return check_free_pages(c, page, n, n->data);
    const size_t first = number_at(n->data);
    size_t n_pages;
    QUIRE_TRY(quire__page_check_overflow(&c->pages, page, first, n->data_bytes, &n_pages));
    QUIRE_TRY(claim_stored(c, page, first, n_pages));
    const size_t n_bytes = sizeof(quire_page_head) + n->data_bytes;
    uint8_t *value = malloc(n_bytes);
    if (!value)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while checking the store");
    quire_status status = quire__page_read(&c->pages, page, first, value, n_bytes);
    if (status == QUIRE_OK)
        status = check_free_pages(c, page, n, value + sizeof(quire_page_head));
    free(value);
    return status;
}

static void note_tree(checker *c, size_t page, const quire_page_node *n) {
    if (n->flags != QUIRE_NODE_TREE || n->data_bytes != sizeof(quire_page_tree))
        return;
    for (int i = 0; i < N_TREES; i++)
        if (n->key_bytes == strlen(trees[META + i].name) &&
            memcmp(n->key, trees[META + i].name, n->key_bytes) == 0) {
            memcpy(&c->tree[i], n->data, sizeof c->tree[i]);
            c->at[i] = page;
        }
}

static quire_status check_item(checker *c, size_t page, const quire_page_node *n) {
    const size_t key = trees[c->kind].key_bytes, data = trees[c->kind].data_bytes;
    if ((key > 0 && n->key_bytes != key) ||
        ((data > 0 || trees[c->kind].no_data) && n->data_bytes != data))
        return quire__page_damaged(&c->pages, page, "a key or value has an impossible length");
    if (c->kind == MAIN) {
        note_tree(c, page, n);
        return QUIRE_OK;
    }
    if (n->flags & ~(c->kind == FREE || c->kind == RECORDS ? QUIRE_NODE_BIG : 0))
        return quire__page_damaged(&c->pages, page, "a node has unknown flags");
    if (c->kind == FREE)
        return check_free(c, page, n);
    if (!(n->flags & QUIRE_NODE_BIG))
        return QUIRE_OK;
    /* The overflow pages are not read here: that would be one disk read per record. */
    return claim_stored(c, page, number_at(n->data),
                        quire__page_overflows(&c->pages, n->data_bytes));
}

/* Compares like LMDB. */
static int compare(tree_kind kind, const quire_page_node *a, const quire_page_node *b) {
    if (kind == FREE && a->key_bytes == sizeof(size_t) && b->key_bytes == sizeof(size_t)) {
        const size_t x = number_at(a->key), y = number_at(b->key);
        return (x > y) - (x < y);
    }
    const size_t n = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    const int by_bytes = memcmp(a->key, b->key, n);
    return by_bytes ? by_bytes : (a->key_bytes > b->key_bytes) - (a->key_bytes < b->key_bytes);
}

/* Keys of a page must ascend, from `low` on and below `high` (NULL: no bound). The first key of a
 * branch is unused. */
static quire_status check_order(checker *c, size_t page, const uint8_t *bytes,
                                const quire_page_node *low, const quire_page_node *high) {
    const size_t n = quire__page_nodes(bytes), first = quire__page_is_leaf(bytes) ? 0 : 1;
    quire_page_node before = {0}, node;
    for (size_t i = first; i < n; i++, before = node) {
        node = quire__page_node(bytes, i);
        if ((i > first && compare(c->kind, &before, &node) >= 0) ||
            (low && compare(c->kind, low, &node) > 0) ||
            (high && compare(c->kind, &node, high) >= 0))
            return quire__page_damaged(&c->pages, page, "its keys are not in order");
    }
    return QUIRE_OK;
}

/* Starts a read that is needed soon, so that a tree that is not in memory costs its depth in disk
 * reads, not its number of pages. */
static void read_ahead(const quire_pages *p, size_t page) {
#ifdef POSIX_FADV_WILLNEED
    posix_fadvise(p->fd, (off_t)(page * p->page_bytes), (off_t)p->page_bytes, POSIX_FADV_WILLNEED);
#else
    (void)p, (void)page;
#endif
}

static quire_status check_page(checker *c, size_t from, size_t page, size_t level,
                               const quire_page_node *low, const quire_page_node *high) {
    if (!c->buffer[level] && !(c->buffer[level] = malloc(c->pages.page_bytes)))
        return quire__fail(QUIRE_E_NOMEM, "out of memory while checking the store");
    const uint8_t *bytes = c->buffer[level];
    QUIRE_TRY(claim_stored(c, from, page, 1));
    QUIRE_TRY(quire__page_read_tree(&c->pages, from, page, c->buffer[level]));
    QUIRE_TRY(check_order(c, page, bytes, low, high));
    const size_t n = quire__page_nodes(bytes);
    const bool is_leaf = quire__page_is_leaf(bytes);
    if (is_leaf != (level + 1 == c->depth))
        return quire__page_damaged(&c->pages, page, "it is at the wrong depth of its tree");
    for (size_t i = 0; is_leaf && i < n; i++) {
        const quire_page_node node = quire__page_node(bytes, i);
        QUIRE_TRY(check_item(c, page, &node));
        c->entries++;
    }
    for (size_t i = 0; !is_leaf && i < n; i++) {
        const size_t child = quire__page_node(bytes, i).child;
        if (child <= c->pages.meta.last_page)
            read_ahead(&c->pages, child);
    }
    for (size_t i = 0; !is_leaf && i < n; i++) {
        const quire_page_node node = quire__page_node(bytes, i);
        quire_page_node next;
        if (i + 1 < n)
            next = quire__page_node(bytes, i + 1);
        QUIRE_TRY(check_page(c, page, node.child, level + 1, i > 0 ? &node : low,
                             i + 1 < n ? &next : high));
    }
    return QUIRE_OK;
}

/* `from`: the page that refers to the tree. */
static quire_status check_tree(checker *c, tree_kind kind, size_t from, const quire_page_tree *t) {
    c->kind = kind;
    c->depth = t->depth;
    c->entries = 0;
    if (t->root == NO_PAGE)
        return t->depth == 0 && t->entries == 0
                   ? QUIRE_OK
                   : quire__page_damaged(&c->pages, from, "it has lost the root of a tree");
    if (t->depth < 1 || t->depth > QUIRE_PAGE_DEPTH)
        return quire__page_damaged(&c->pages, from, "a tree has an impossible depth");
    QUIRE_TRY(check_page(c, from, t->root, 0, NULL, NULL));
    return c->entries == t->entries
               ? QUIRE_OK
               : quire__page_damaged(&c->pages, from, "a tree has the wrong number of entries");
}

static quire_status foreign(const checker *c) {
    return quire__fail(QUIRE_E_FOREIGN, "'%.200s' is an LMDB database, but not a store",
                       c->pages.directory);
}

static quire_status check_named(checker *c) {
    int n_there = 0;
    for (int i = 0; i < N_TREES; i++)
        n_there += c->at[i] != 0;
    if (n_there == 0)
        return c->pages.meta.main.entries == 0 ? QUIRE_OK : foreign(c);
    for (int i = 0; i < N_TREES; i++) {
        if (c->at[i] == 0)
            return quire__page_damaged(&c->pages, c->pages.meta.main.root, "it has lost a tree");
        if (c->tree[i].flags != 0)
            return quire__page_damaged(&c->pages, c->at[i], "a tree has unknown flags");
        QUIRE_TRY(check_tree(c, (tree_kind)(META + i), c->at[i], &c->tree[i]));
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ a snapshot */

static quire_status check_trees(checker *c, size_t which) {
    const quire_page_meta *m = &c->pages.meta;
    const uint64_t page = c->pages.page_bytes, n_stored = c->pages.file_bytes / page;
    QUIRE_TRY(check_meta_page(&c->pages, (int)which, m));
    /* Pages beyond the end of the file are free and were never written; each is a number in the
     * free list. */
    if (m->free.pad != page || m->last_page >= n_stored + c->pages.file_bytes / sizeof(size_t))
        return quire__page_damaged(&c->pages, which, "it has an impossible number of pages");
    if (m->main.flags != 0)
        return foreign(c);
    c->used = calloc(m->last_page / 8 + 1, 1);
    if (!c->used)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while checking the store");
    QUIRE_TRY(check_tree(c, FREE, which, &m->free));
    QUIRE_TRY(check_tree(c, MAIN, which, &m->main));
    QUIRE_TRY(check_named(c));
    return m->last_page + 1 <= n_stored + c->n_free
               ? QUIRE_OK
               : quire__fail(QUIRE_E_TRUNCATED, "'%.200s/data.mdb' is cut off", c->pages.directory);
}

static quire_status check_state(checker *c, size_t which) {
    const quire_status status = check_trees(c, which);
    free(c->used);
    for (int i = 0; i < QUIRE_PAGE_DEPTH; i++)
        free(c->buffer[i]);
    return status;
}

/* Opens the file of an environment, and reads the meta page that a transaction has written. *moved:
 * that page has been written again, or is being written right now. Otherwise a page with another
 * transaction number is damaged. */
static quire_status open_pages(const quire_lmdb *l, size_t id, quire_pages *p, bool *moved) {
    const int which = (int)(id % 2);
    quire_page_head head;
    quire_page_meta again;
    struct stat file;
    *p = (quire_pages){.page_bytes = l->page_bytes};
    if (mdb_env_get_path(l->env, &p->directory) != 0 || mdb_env_get_fd(l->env, &p->fd) != 0 ||
        fstat(p->fd, &file) != 0)
        return quire__fail(QUIRE_E_IO, "the file of the store cannot be accessed");
    p->file_bytes = (uint64_t)file.st_size;
    QUIRE_TRY(quire__page_read_meta(p, which, &head, &p->meta));
    QUIRE_TRY(quire__page_read_meta(p, which, &head, &again));
    *moved = p->meta.transaction != id || memcmp(&p->meta, &again, sizeof again) != 0;
    return *moved ? quire__page_damaged(p, (size_t)which, "it has an impossible transaction")
                  : QUIRE_OK;
}

/* ------------------------------------------------------------------ one record */

/* Finds the node of a key in a tree. `page` has room for a page; the node points into it. */
static quire_status find(const quire_pages *p, tree_kind kind, size_t from,
                         const quire_page_tree *t, const void *key, size_t key_bytes, uint8_t *page,
                         quire_page_node *node, bool *found) {
    const quire_page_node wanted = {.key = key, .key_bytes = key_bytes};
    size_t number = t->root;
    *found = false;
    for (size_t level = 0; t->root != NO_PAGE && level < QUIRE_PAGE_DEPTH; level++) {
        QUIRE_TRY(quire__page_read_tree(p, from, number, page));
        const size_t n = quire__page_nodes(page);
        const bool is_leaf = quire__page_is_leaf(page);
        /* The first node after the key; the first key of a branch is unused. */
        size_t after = is_leaf ? 0 : 1;
        for (; after < n; after++) {
            const quire_page_node at = quire__page_node(page, after);
            if (compare(kind, &at, &wanted) > 0)
                break;
        }
        if (is_leaf && after == 0)
            return QUIRE_OK;
        *node = quire__page_node(page, after - 1);
        *found = is_leaf && compare(kind, node, &wanted) == 0;
        if (is_leaf)
            return QUIRE_OK;
        from = number;
        number = node->child;
    }
    return QUIRE_OK;
}

static quire_status check_overflow_of(const quire_pages *p, const MDB_val *name, uint8_t *page) {
    quire_page_node node;
    quire_page_tree records;
    bool found;
    size_t n_pages;
    QUIRE_TRY(find(p, MAIN, 0, &p->meta.main, trees[RECORDS].name, strlen(trees[RECORDS].name),
                   page, &node, &found));
    if (!found || node.flags != QUIRE_NODE_TREE || node.data_bytes != sizeof records)
        return quire__page_damaged(p, p->meta.main.root, "it has lost a tree");
    memcpy(&records, node.data, sizeof records);
    QUIRE_TRY(find(p, RECORDS, p->meta.main.root, &records, name->mv_data, name->mv_size, page,
                   &node, &found));
    if (!found || !(node.flags & QUIRE_NODE_BIG))
        return QUIRE_OK;
    const size_t first = number_at(node.data);
    QUIRE_TRY(quire__page_check_overflow(p, p->meta.main.root, first, node.data_bytes, &n_pages));
    return n_pages == quire__page_overflows(p, node.data_bytes)
               ? QUIRE_OK
               : quire__page_damaged(p, first, "it has an impossible length");
}

/* Checks the snapshot that a transaction has written: one record or, if NULL, the trees. */
static quire_status check_in(quire_lmdb *l, size_t id, const MDB_val *name, bool *moved) {
    checker c = {0};
    *moved = false;
    QUIRE_TRY(open_pages(l, id, &c.pages, moved));
    if (!name)
        return check_state(&c, id % 2);
    uint8_t *page = malloc(l->page_bytes);
    if (!page)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while checking the store");
    const quire_status status = check_overflow_of(&c.pages, name, page);
    free(page);
    return status;
}

quire_status quire__lmdb_check_now(quire_lmdb *l, const MDB_val *name) {
    quire_status status = QUIRE_OK;
    bool moved = true;
    for (int i = 0; moved && i < TRIES; i++) {
        MDB_txn *txn; /* while it is open, the pages of its snapshot are not overwritten */
        const int rc = quire__lmdb_begin(l, false, &txn);
        if (rc != 0)
            return quire__lmdb_failed(l, "be read", rc);
        status = check_in(l, mdb_txn_id(txn), name, &moved);
        mdb_txn_abort(txn);
    }
    return status;
}

int quire__lmdb_check_record(quire_lmdb *l, MDB_txn *txn, const MDB_val *name) {
    bool moved;
    l->reported = check_in(l, mdb_txn_id(txn) - 1, name, &moved);
    return l->reported == QUIRE_OK ? 0 : QUIRE_LMDB_REPORTED;
}
