/* Where sealed pages are kept outside RAM. Records are the same everywhere (record.c) and named
 * by what they hold (key.c); a backend only keeps bytes under names, and forgets what was used
 * longest ago. lmdb.c is one; to write another, fill a quire_backend.
 *
 *   put, get, import, export, walk, verify        what records mean: store_*.c
 *   quire_backend                                  where they lie: lmdb.c
 */
#ifndef QUIRE_STORE_STORE_H
#define QUIRE_STORE_STORE_H

#include <pthread.h>
#include <string.h>

#include "file/page_piece.h"
#include "quire_store.h"

/* ---- a record's name */
typedef struct quire_record_id {
    quire_store_key key; /* of the page, or of the root */
    uint32_t piece;      /* page_piece.h; 0 for a root */
} quire_record_id;

/* ---- backends */
typedef struct quire_backend_item {
    quire_record_id id;
    quire_store_key parent;
    uint32_t depth; /* 0: a root; 1 + page */
    const uint8_t *bytes;
    size_t n_bytes;
} quire_backend_item;

/* Since the store was made. */
typedef struct quire_backend_counts {
    uint64_t hit_pages, missed_pages, added_pages, evicted_pages, bad_records;
} quire_backend_counts;

typedef struct quire_backend_room {
    int64_t records, nodes, roots; /* a node: all records of a key, a root too */
    uint64_t bytes;                /* of records */
    uint64_t file_bytes, max_bytes;
} quire_backend_room;

/* The bytes live during the call. False ends a walk. */
typedef bool (*quire_backend_view)(void *user, const quire_record_id *id, const uint8_t *bytes,
                                   size_t n_bytes, int64_t used /* seconds since 1970 */);

/* All calls get `backend`. Several processes may be at it at once: what was there a moment ago
 * may be gone. */
typedef struct quire_backend {
    bool read_only;
    size_t batch_bytes; /* of records that one write should have at most */
    void (*close)(struct quire_backend *backend);
    quire_status (*has)(struct quire_backend *backend, const quire_record_id *ids, size_t n,
                        bool *present);
    /* `used` is 0. Not there: *found is false. */
    quire_status (*read)(struct quire_backend *backend, const quire_record_id *id,
                         quire_backend_view view, void *user, bool *found);
    /* Items of the text of `keys` (from its root on, not all need be there), which is in use:
     * parents before children. A record that is there stays. Each is written whole or not at all;
     * on failure those before it may have been. Makes room by dropping what was used least
     * recently, and never a node whose children stay, nor of this text. E_TOO_BIG: there is nothing
     * else. E_BUSY: later it may succeed. */
    quire_status (*write)(struct quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                          const quire_backend_item *items, size_t n, quire_store_added *added);
    quire_status (*remove)(struct quire_backend *backend, const quire_record_id *ids, size_t n);
    /* The nodes of a text, from its root on, are in use. */
    quire_status (*touch)(struct quire_backend *backend, const quire_store_key *keys, size_t n);
    /* In the order of ids, those behind `after` (NULL: all). Not a state at one moment: what others
     * write meanwhile may be seen or not. */
    quire_status (*walk)(struct quire_backend *backend, const quire_record_id *after,
                         quire_backend_view view, void *user);
    /* Whether the backend's own structure is sound: that of a record, or, NULL, what all share.
     * E_CORRUPT, E_TRUNCATED .. */
    quire_status (*check)(struct quire_backend *backend, const quire_record_id *id);
    void (*count)(struct quire_backend *backend, const quire_backend_counts *more);
    quire_status (*room)(struct quire_backend *backend, quire_backend_room *room,
                         quire_backend_counts *counts);
} quire_backend;

quire_status quire__lmdb_open(quire_backend **backend, const char *directory,
                              const quire_store_options *options);

struct quire_store {
    pthread_mutex_t lock; /* one call at a time */
    quire_backend *backend;
};

/* ---- key.c */
/* Who computes, and how: the root that all texts of one identity and form start from. */
void quire__root_key(const void *identity, size_t identity_bytes, const uint8_t *layers,
                     size_t layers_bytes, quire_store_key *key);
void quire__page_key(const quire_store_key *parent, const int32_t *tokens /* (64) */,
                     quire_store_key *key);
static inline bool quire__same_key(const quire_store_key *a, const quire_store_key *b) {
    return memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}

/* The keys of a text. */
typedef struct quire_chain {
    uint8_t *layers; /* the section "layers" of a file */
    size_t layers_bytes;
    quire_store_key *key; /* (n_pages + 1) the root's, then the pages' */
    int32_t n_pages;
} quire_chain;

/* Of the first n_pages pages of a text, for `layers`, which it takes over also on failure.
 * E_NOMEM. */
quire_status quire__chain_init(quire_chain *chain, const quire_store_text *text, uint8_t *layers,
                               size_t layers_bytes, int32_t n_pages);
/* For the layers of a pool whose form does not change meanwhile. */
quire_status quire__chain_of_pool(quire_chain *chain, const quire_store_text *text,
                                  const quire_pool *pool, int32_t n_pages);
void quire__chain_free(quire_chain *chain);

/* ---- record.c: docs/FORMAT.md, section 11 */
enum {
    QUIRE_RECORD_HEAD = 128,
    QUIRE_RECORD_TOKENS = QUIRE_PAGE_TOKENS * 4,
    QUIRE_RECORD_SUM = 16
};

typedef struct quire_record {
    quire_record_id id;
    quire_store_key parent, root;
    uint32_t depth;
    const uint8_t *tokens; /* (64) little-endian i32, or NULL: a root */
    const uint8_t *payload;
    size_t payload_bytes;
} quire_record;

size_t quire__record_bytes(uint32_t depth, size_t payload_bytes);
/* Header and tokens; returns where the payload goes. quire__record_seal comes last. */
uint8_t *quire__record_start(uint8_t *bytes, const quire_record *record, const int32_t *tokens);
void quire__record_seal(uint8_t *bytes, size_t n_bytes);
/* Whether it is a record at all, of its own length and of this name; its payload has not been
 * looked at. */
bool quire__record_read(const uint8_t *bytes, size_t n_bytes, const quire_record_id *id,
                        quire_record *record);
bool quire__record_sound(const uint8_t *bytes, size_t n_bytes); /* its checksum is right */
bool quire__record_has_tokens(const quire_record *record, const int32_t *tokens);

/* A root's payload. */
typedef struct quire_root {
    const uint8_t *identity, *layers;
    size_t identity_bytes, layers_bytes;
} quire_root;

size_t quire__root_bytes(size_t identity_bytes, size_t layers_bytes);
void quire__root_write(uint8_t *payload, const quire_root *root);
bool quire__root_read(const quire_record *record,
                      quire_root *root); /* also whether its key is right */

/* ---- store_open.c; the caller holds the lock */
quire_status quire__store_drop_bad(quire_store *store,
                                   const quire_record_id *id); /* removed, and counted */
/* The bytes of a record into memory that the caller frees; NULL: it is not there. E_NOMEM, E_IO. */
quire_status quire__store_copy(quire_store *store, const quire_record_id *id, uint8_t **bytes,
                               size_t *n_bytes);

/* A root that was read and understood. */
typedef struct quire_known_root {
    quire_store_key key;
    uint8_t *bytes; /* of the record */
    quire_root root;
    quire_form form;
} quire_known_root;

/* E_GONE: not there. E_CORRUPT: bad. E_VERSION, E_FORMAT, E_NOMEM, E_IO. To be freed also on
 * failure. */
quire_status quire__known_root(quire_store *store, const quire_store_key *key,
                               quire_known_root *root);
void quire__known_root_free(quire_known_root *root);

/* ---- store_put.c: what pages are put from */
typedef struct quire_piece_source {
    quire_pieces pieces;
    bool (*has)(const void *user, int32_t piece, int32_t page);
    quire_status (*read)(const void *user, int32_t piece, int32_t page, uint8_t *to);
    const void *user;
    void (*on_progress)(void *user, int32_t done, int32_t total); /* or NULL */
    void *on_progress_user;
} quire_piece_source;

/* Pages that computing their text would not give must not be found under its name. E_HISTORY. */
quire_status quire__store_check_history(uint32_t history, int32_t exact_tokens, int32_t n_pages);
quire_status quire__store_put_chain(quire_store *store, const quire_chain *chain,
                                    const quire_store_text *text, const quire_piece_source *source,
                                    quire_store_added *added);

/* ---- store_get.c */
quire_status quire__store_check_text(const quire_store *store,
                                     const quire_store_text *text); /* E_INVALID */
/* How many pages of a chain can be found; looks at headers alone. Bad ones are dropped. */
quire_status quire__store_reach(quire_store *store, const quire_chain *chain,
                                const quire_store_text *text, quire_pieces pieces,
                                int32_t *n_pages);
/* *payload, in memory that is valid during `view`. Bad: dropped; missing or bad: *found is
 * false. */
typedef quire_status (*quire_payload_view)(void *user, const uint8_t *payload);
quire_status quire__store_payload(quire_store *store, const quire_record *wanted,
                                  const int32_t *tokens, quire_payload_view view, void *user,
                                  bool *found);

#endif
