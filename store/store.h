/* The store of sealed pages. A page is stored as records (record.c), whose keys are hashes of what
 * they contain (key.c). A backend only stores bytes under keys and drops the least recently used
 * ones. To write another one, fill a quire_backend.
 *
 *   store_*.c       what records mean: put, get, import, export, walk, verify
 *   quire_backend   where they are stored: lmdb*.c, redis_*.c, memory_store.c; tiers*.c stack them
 *   place.c         opens the backend that a place names
 */
#ifndef QUIRE_STORE_STORE_H
#define QUIRE_STORE_STORE_H

#include <pthread.h>
#include <string.h>

#include "file/page_piece.h"
#include "quire_store.h"

/* ---- the id of a record */
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

/* Since the store was created. */
typedef struct quire_backend_counts {
    uint64_t hit_pages, missed_pages, added_pages, evicted_pages, bad_records;
} quire_backend_counts;

typedef struct quire_backend_room {
    int64_t records, nodes, roots; /* a node: all records of a key; a root is a node too */
    uint64_t bytes;                /* of records */
    uint64_t file_bytes, max_bytes;
} quire_backend_room;

/* The bytes are valid during the call. False ends a walk. */
typedef bool (*quire_backend_view)(void *user, const quire_record_id *id, const uint8_t *bytes,
                                   size_t n_bytes, int64_t used /* seconds since 1970 */);

/* All functions get `backend` itself. Several processes may use it at once, so a record may
 * disappear between two calls. */
typedef struct quire_backend {
    bool read_only;
    /* A call costs a round trip, so callers pass many ids at once, and look for pages with `has`
     * instead of reading them twice. */
    bool is_far;
    size_t batch_bytes; /* upper bound for the records of one write */
    void (*close)(struct quire_backend *backend);
    quire_status (*has)(struct quire_backend *backend, const quire_record_id *ids, size_t n,
                        bool *present);
    /* Optional. Which records need not be put again; may answer from memory, without asking a far
     * place, and may be wrong. NULL: as `has`. */
    quire_status (*may_skip)(struct quire_backend *backend, const quire_record_id *ids, size_t n,
                             bool *skip);
    /* Optional. The caller will read these records next, in this order, after those that it has
     * asked for before: far places send them together. n 0: forget what was asked for. */
    quire_status (*ask)(struct quire_backend *backend, const quire_record_id *ids, size_t n);
    /* The view gets `used` 0. *found false: there is no such record. */
    quire_status (*read)(struct quire_backend *backend, const quire_record_id *id,
                         quire_backend_view view, void *user, bool *found);
    /* Writes items of the text of `keys`, parents before children, and records a use of that text.
     * `keys` start at its root; not all of them need exist. Existing records stay. Each item is
     * written completely or not at all; on failure the items before it may have been written. Makes
     * room by dropping what was least recently used, but never a node whose children stay, nor one
     * of this text. E_TOO_BIG: nothing else is left to drop. E_BUSY: try again later. */
    quire_status (*write)(struct quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                          const quire_backend_item *items, size_t n, quire_store_added *added);
    quire_status (*remove)(struct quire_backend *backend, const quire_record_id *ids, size_t n);
    /* Records a use of the nodes of a text, from its root on. Everything that was read of it since
     * ask(0) has been checked. */
    quire_status (*touch)(struct quire_backend *backend, const quire_store_key *keys, size_t n);
    /* Visits the records after `after` (NULL: all), in the order of ids. Not a snapshot: what
     * others write meanwhile may be seen or not. */
    quire_status (*walk)(struct quire_backend *backend, const quire_record_id *after,
                         quire_backend_view view, void *user);
    /* Checks the backend's own structures: those of one record or, if NULL, those that all share.
     * E_CORRUPT, E_TRUNCATED .. */
    quire_status (*check)(struct quire_backend *backend, const quire_record_id *id);
    void (*count)(struct quire_backend *backend, const quire_backend_counts *more);
    quire_status (*room)(struct quire_backend *backend, quire_backend_room *room,
                         quire_backend_counts *counts);
} quire_backend;

void quire__counts_add(quire_backend_counts *counts, const quire_backend_counts *more);

/* Options have been checked. */
quire_status quire__lmdb_open(quire_backend **backend, const char *directory,
                              const quire_store_options *options);
quire_status quire__memory_open(quire_backend **backend, uint64_t max_bytes);
/* must_connect false: a server that cannot be reached now is tried again later; a wrong password
 * and the like fail nevertheless. E_UNSUPPORTED: built without it. */
quire_status quire__redis_open(quire_backend **backend, const char *url,
                               const quire_store_options *options, bool must_connect);
quire_status quire__tiers_open(quire_backend **backend, const char *const *places, size_t n,
                               const quire_store_options *options);
bool quire__is_tiers(const quire_backend *backend);
void quire__tiers_describe(quire_backend *backend, size_t tier, quire_store_tier *to);
size_t quire__tiers_count(const quire_backend *backend);
void quire__tiers_drain(quire_backend *backend);

/* ---- place.c */
typedef enum quire_place_kind {
    QUIRE_PLACE_DIRECTORY,
    QUIRE_PLACE_MEMORY,
    QUIRE_PLACE_REDIS
} quire_place_kind;
quire_place_kind quire__place_kind(const char *place);
quire_status quire__place_open(quire_backend **backend, const char *place,
                               const quire_store_options *options, bool must_connect);

struct quire_store {
    pthread_mutex_t lock; /* one call at a time */
    quire_backend *backend;
    char name[QUIRE_STORE_PLACE_TEXT]; /* of its only place, if it has no tiers */
};

/* ---- key.c */
enum { QUIRE_SALT_DIGEST = 32 };

/* A salt itself is never stored, only this digest of it. */
void quire__salt_digest(const void *salt, size_t salt_bytes, uint8_t digest[QUIRE_SALT_DIGEST]);
/* The root of all texts with this identity, these layers and this salt. salt_digest NULL: none. */
void quire__root_key(const void *identity, size_t identity_bytes, const uint8_t *layers,
                     size_t layers_bytes, const uint8_t *salt_digest, quire_store_key *key);
void quire__page_key(const quire_store_key *parent, const int32_t *tokens /* (64) */,
                     quire_store_key *key);
static inline bool quire__same_key(const quire_store_key *a, const quire_store_key *b) {
    return memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}
static inline bool quire__same_id(const quire_record_id *a, const quire_record_id *b) {
    return a->piece == b->piece && quire__same_key(&a->key, &b->key);
}
/* The order of records: for qsort, of ids or of anything that begins with one. */
int quire__compare_ids(const void *a, const void *b);
/* Where the first id behind `after` (NULL: the first of all) is in a sorted list of n elements of
 * `size` bytes, each of which begins with its id. */
size_t quire__first_behind(const void *list, size_t n, size_t size, const quire_record_id *after);

/* The keys of a text. */
typedef struct quire_chain {
    uint8_t *layers; /* the section "layers" of a file */
    size_t layers_bytes;
    bool has_salt;
    uint8_t salt[QUIRE_SALT_DIGEST]; /* digest */
    quire_store_key *key;            /* (n_pages + 1) the root's, then the pages' */
    int32_t n_pages;
} quire_chain;

/* Keys of the first n_pages pages of a text. Takes ownership of `layers`, also on failure.
 * E_NOMEM. */
quire_status quire__chain_init(quire_chain *chain, const quire_store_text *text, uint8_t *layers,
                               size_t layers_bytes, int32_t n_pages);
/* The same for the layers of a pool, whose form must not change meanwhile. */
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
/* Writes header and tokens, and returns where the payload goes. Call quire__record_seal last. */
uint8_t *quire__record_start(uint8_t *bytes, const quire_record *record, const int32_t *tokens);
void quire__record_seal(uint8_t *bytes, size_t n_bytes);
/* Whether it is a record of the right length and with this id. Does not look at the payload. */
bool quire__record_read(const uint8_t *bytes, size_t n_bytes, const quire_record_id *id,
                        quire_record *record);
bool quire__record_sound(const uint8_t *bytes, size_t n_bytes); /* whether its checksum is right */
bool quire__record_has_tokens(const quire_record *record, const int32_t *tokens);

/* A root's payload. */
typedef struct quire_root {
    const uint8_t *identity, *layers;
    size_t identity_bytes, layers_bytes;
    const uint8_t *salt_digest; /* NULL: none */
} quire_root;

size_t quire__root_bytes(size_t identity_bytes, size_t layers_bytes, bool has_salt);
void quire__root_write(uint8_t *payload, const quire_root *root);
/* Also checks its key. */
bool quire__root_read(const quire_record *record, quire_root *root);

/* ---- store_open.c; the caller holds the lock */
/* Removes a bad record, and counts it. */
quire_status quire__store_drop_bad(quire_store *store, const quire_record_id *id);
/* Must be called after reads: what was asked for ahead, or copied for nearer places, is forgotten.
 */
void quire__store_end_reading(quire_store *store);
/* Copies a record into memory that the caller frees; NULL: there is no such record. E_NOMEM,
 * E_IO. */
quire_status quire__store_copy(quire_store *store, const quire_record_id *id, uint8_t **bytes,
                               size_t *n_bytes);

/* A root that was read and parsed. */
typedef struct quire_known_root {
    quire_store_key key;
    uint8_t *bytes; /* of the record */
    quire_root root;
    quire_form form;
} quire_known_root;

/* E_GONE: there is no such root. E_CORRUPT: it is bad. E_VERSION, E_FORMAT, E_NOMEM, E_IO. Must be
 * freed also on failure. */
quire_status quire__known_root(quire_store *store, const quire_store_key *key,
                               quire_known_root *root);
void quire__known_root_free(quire_known_root *root);

/* ---- store_put.c: where pages come from */
typedef struct quire_piece_source {
    quire_pieces pieces;
    bool (*has)(const void *user, int32_t piece, int32_t page);
    quire_status (*read)(const void *user, int32_t piece, int32_t page, uint8_t *to);
    const void *user;
    void (*on_progress)(void *user, int32_t done, int32_t total); /* or NULL */
    void *on_progress_user;
} quire_piece_source;

/* E_HISTORY: the pages differ from a fresh computation of their text. */
quire_status quire__store_check_history(uint32_t history, int32_t exact_tokens, int32_t n_pages);
quire_status quire__store_put_chain(quire_store *store, const quire_chain *chain,
                                    const quire_store_text *text, const quire_piece_source *source,
                                    quire_store_added *added);

/* ---- store_get.c */
/* E_INVALID. */
quire_status quire__store_check_text(const quire_store *store, const quire_store_text *text);
/* How many pages of a chain can be found. Looks only at headers; drops bad records. */
quire_status quire__store_reach(quire_store *store, const quire_chain *chain,
                                const quire_store_text *text, quire_pieces pieces,
                                int32_t *n_pages);
/* Passes the payload, valid during the call, to `view`. A bad record is dropped; *found is false if
 * the record is missing or bad. */
typedef quire_status (*quire_payload_view)(void *user, const uint8_t *payload);
quire_status quire__store_payload(quire_store *store, const quire_record *wanted,
                                  const int32_t *tokens, quire_payload_view view, void *user,
                                  bool *found);

#endif
