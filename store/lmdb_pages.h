/* LMDB's file, read page by page with every bound checked.
 *
 * LMDB trusts the pages that it maps: a wrong number in one of them makes it read outside the page
 * or the file, and the process dies of a signal or of LMDB's own assert(). So opening a store
 * checks LMDB's pages first, and LMDB sees only valid trees. Pages are read with pread, so a
 * truncated file or a failing disk is an error, not a signal.
 *
 * Not covered: a file that is overwritten while this process has the store open.
 * quire_store_verify checks again; the other calls rely on the check at open.
 *
 *   meta 0, meta 1   magic, version, page size, last page, transaction, roots of the two trees
 *                    below
 *   free             transaction -> pages that it freed: a count, then page numbers from high to
 *                    low
 *   main             name -> root of a tree: the four trees of lmdb_store.h
 *   branch, leaf     header, offsets of nodes in the order of keys, free room, nodes
 *   overflow         header, then a value that does not fit into a leaf, over as many pages as
 *                    it needs
 */
#ifndef QUIRE_STORE_LMDB_PAGES_H
#define QUIRE_STORE_LMDB_PAGES_H

#include "store/lmdb_store.h"

#if MDB_VERSION_MAJOR != 0
#error "lmdb_pages.c reads the files of LMDB 0.9"
#endif

typedef struct quire_page_head {
    size_t number;
    uint16_t pad, flags;
    /* Start and end of the free space; in an overflow page both together: the number of pages. */
    uint16_t lower, upper;
} quire_page_head;

typedef struct quire_page_tree {
    uint32_t pad; /* of `free`: the page size */
    uint16_t flags, depth;
    size_t branches, leaves, overflows, entries;
    size_t root;
} quire_page_tree;

typedef struct quire_page_meta {
    uint32_t magic, version;
    size_t address, map_bytes;
    quire_page_tree free, main;
    size_t last_page, transaction;
} quire_page_meta;

enum {
    QUIRE_PAGE_BRANCH = 1,
    QUIRE_PAGE_LEAF = 2,
    QUIRE_PAGE_OVERFLOW = 4,
    QUIRE_PAGE_META = 8,
    QUIRE_NODE_BIG = 1,  /* its value lies in overflow pages */
    QUIRE_NODE_TREE = 2, /* its value is a quire_page_tree */
    QUIRE_NODE_HEAD = 8,
    QUIRE_PAGE_DEPTH = 32 /* deepest tree that LMDB's cursors support */
};

/* A node of a page that has been checked. */
typedef struct quire_page_node {
    const uint8_t *key, *data; /* data of QUIRE_NODE_BIG: the number of the first overflow page */
    size_t key_bytes, data_bytes;
    uint16_t flags; /* of a leaf */
    size_t child;   /* of a branch */
} quire_page_node;

typedef struct quire_pages {
    int fd;
    const char *directory;
    size_t page_bytes;
    uint64_t file_bytes;
    quire_page_meta meta;
} quire_pages;

/* E_CORRUPT, with a message that names the page. */
quire_status quire__page_damaged(const quire_pages *p, size_t page, const char *why);
/* Reads one of the two meta pages, which are page_bytes apart. E_TRUNCATED, E_IO. */
quire_status quire__page_read_meta(const quire_pages *p, int which, quire_page_head *head,
                                   quire_page_meta *meta);
/* Reads n_bytes from the start of a page. `from` is the page that refers to it. E_CORRUPT,
 * E_TRUNCATED, E_IO. */
quire_status quire__page_read(const quire_pages *p, size_t from, size_t page, void *to,
                              size_t n_bytes);
/* Reads and checks a page of a tree on its own. */
quire_status quire__page_read_tree(const quire_pages *p, size_t from, size_t page, uint8_t *to);
bool quire__page_is_leaf(const uint8_t *page);
size_t quire__page_nodes(const uint8_t *page);
quire_page_node quire__page_node(const uint8_t *page, size_t i);
/* Overflow pages of a value: how many there must be, and whether the header agrees. */
size_t quire__page_overflows(const quire_pages *p, size_t n_bytes);
quire_status quire__page_check_overflow(const quire_pages *p, size_t from, size_t page,
                                        size_t n_bytes, size_t *n_pages);

/* ---- lmdb_check.c */
/* Before LMDB opens the file: checks the meta pages. OK also if there is no file, or if LMDB itself
 * detects what is wrong. */
quire_status quire__lmdb_check_meta(const char *directory);
/* Checks the current snapshot: the overflow pages of one record or, if NULL, all trees and the free
 * list, but no overflow pages. E_CORRUPT, E_TRUNCATED, E_FOREIGN, E_IO, E_NOMEM. */
quire_status quire__lmdb_check_now(quire_lmdb *l, const MDB_val *name);
/* For a writing transaction, before it deletes a record that it has not touched: LMDB frees as many
 * pages as the header of the first one says. 0 or QUIRE_LMDB_REPORTED. */
int quire__lmdb_check_record(quire_lmdb *l, MDB_txn *txn, const MDB_val *name);

#endif
