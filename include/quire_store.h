/* quire_store.h: sealed pages, found by the tokens that they were computed from. They are kept in a
 * directory, in a Redis server that several machines share, in memory, or in tiers of these.
 *
 * A prompt
 *   quire_store_get    makes a sequence from the longest stored prefix of the prompt; the caller
 *                      computes the rest
 *   quire_store_put    stores the sealed pages that the store lacks; call it after every batch of
 *                      the prompt
 *
 * Rules
 * - A page is found by a hash of everything it depends on: identity, layers, codecs, and all tokens
 *   up to its last one. Pages come back bit for bit as they were put: packed, never decoded.
 *   `identity` must cover every input that changes page bytes and is not in quire_layer,
 *   quire_policy or the raw type; k_feedback is such an input.
 * - Put only what computing a prompt gives. Pages that a deep trim, a change of policy, `reseal` or
 *   a shift has touched, and pages computed after such pages (quire_history), are refused with
 *   E_HISTORY. The caller must leave out rows that were computed in another way (in steps that
 *   were not exact, for example).
 * - Pages of layers with a window are stored separately and needed only while the window sees
 *   them. They leave a sequence with the window, so a prefix can be found only if its last window
 *   was put in time: use batches no longer than the window.
 * - Nothing in the directory is trusted. A record that fails a check counts as a miss: it is
 *   removed and counted. A sequence is returned only after all of it has been checked, in pages
 *   that nothing else can see yet.
 * - LMDB's own pages (trees, free list) are checked when a store is opened and by
 *   quire_store_verify. If one is damaged, the store is refused: E_CORRUPT, with the number of the
 *   page. Remove the directory then. Not covered: another program that overwrites the file while
 *   the store is open.
 * - Processes: any number may use a directory at once, on one machine (LMDB does not support
 *   network file systems). Within a process open it once, and do not use it across fork(). Killing
 *   a process at any moment does no damage; after a power cut the last pages put may be missing.
 * - Threads: any number may use a store; a lock serializes the calls.
 * - Size: the file never grows beyond its limit (a file that is already larger when the limit is
 *   lowered stays about as large). A full store makes room for a new text by dropping the least
 *   recently used text, from its end to its start, so that what remains can still be found. Uses
 *   by other processes count with a delay of up to touch_seconds.
 * - Long readers: LMDB cannot reuse the space of dropped pages while a process reads a snapshot in
 *   which they exist. Calls of this library hold a snapshot for milliseconds. If another program
 *   (mdb_stat, a backup, a stopped process) holds one longer, puts fail with E_BUSY until it is
 *   done; quire_last_error names the process.
 * - Errors are those of quire.h: a status, and a sentence from quire_last_error().
 *
 * Sections are marked "stable" or "experimental" as in quire.h.
 */
#ifndef QUIRE_STORE_H
#define QUIRE_STORE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------ places
 *
 * A store is opened at a place:
 *
 *   DIR              a directory of this machine (LMDB). "./redis:x" for one whose name looks
 *                    like another place
 *   mem:SIZE         memory of this process: bytes, or with K, M, G or T ("mem:256M")
 *   redis://[USER:PASSWORD@]HOST[:PORT][/DB][?NAME=VALUE&..]
 *                    Redis or Valkey (tested: Redis 7.0). rediss:// uses TLS, redis+cluster:// a
 *                    cluster (HOST is any of its nodes), rediss+cluster:// both. Names:
 *                      ttl=SECONDS         pages expire that long after their last use; default:
 *                                          they stay until the server evicts them
 *                      timeout=MS          limit of connecting, and of each call; default 1000
 *                      prefix=TEXT         of all keys; default "quire:1:"
 *                      password_file=FILE  its first line is the password
 *                      cacert=FILE         whom TLS trusts; default: as OpenSSL is set up
 *                      cert=FILE key=FILE  this program's own certificate
 *                    A password in a URL is visible to other users of the machine: use a file or
 *                    the variable QUIRE_REDIS_PASSWORD. No message contains it. %XX stands for a
 *                    byte.
 *
 * Rules of Redis
 * - Pages of a text may be evicted or expire in any order; what follows a missing page is not
 *   found until that page is put again.
 * - A server that is dead, slow, full or read-only makes calls fail: E_IO (cannot be reached, or no
 *   answer in time), E_BUSY (it refuses to work now). A call waits for at most `timeout`;
 *   quire_store_get for that time per 16 MiB of pages. Then the server is left alone for 0.5 to 15
 *   seconds, and calls fail at once.
 * - A HOST that is a name is looked up, within `timeout`, whenever it is connected to, and when its
 *   server turns out to be a replica: it may lead to another server by then.
 * - quire_store_get_stats, quire_store_walk and the like ask for every key of the server, and count
 *   as a use of every page: not for a server that is busy. (quire_store_get_stats of tiers does not
 *   ask a server.)
 *
 * Rules of tiers
 * - Pages are looked for in the first place first. What a slower place has is copied to the faster
 *   ones.
 * - quire_store_put writes to memory, and to the first place if that is a directory. A thread
 *   copies to the other places, from a queue of bounded size: if it is full, or the place fails,
 *   pages are dropped and counted.
 * - A place that fails is skipped: the calls succeed without it. quire_store_get_tier tells how
 *   each is.
 */

/* ------------------------------------------------------------ open (stable) */

#define QUIRE_STORE_FORMAT 1 /* docs/FORMAT.md, section 11 */

typedef struct quire_store quire_store;

struct quire_store_tier;

typedef struct quire_store_options {
    size_t struct_size; /* set by quire_store_options_default */
    bool create;        /* make the directory and the store if there is none; default true */
    bool read_only;     /* keep bad records, and do not record uses */
    /* Sets the size limit of the file. 0: keep the current limit (8 GiB when created). At least
     * 1 MiB. */
    uint64_t max_bytes;
    /* Finding pages writes nothing unless their last use on disk is this old; default 60. */
    int32_t touch_seconds;
    uint64_t queue_bytes; /* tiers: most bytes that wait for one place; default 256 MiB */
    /* Tiers: called when a place begins to fail, and when it works again. Comes from the thread
     * that has noticed it, and must not call the store. NULL: none. */
    void (*on_tier)(void *user, const struct quire_store_tier *tier);
    void *user;
} quire_store_options;

QUIRE_API void quire_store_options_default(quire_store_options *options);
/* Opens a directory, which checks LMDB's pages and takes about 0.2 microseconds per record (3 ms
 * for 16,000), or another place. options NULL: the defaults. E_FOREIGN: the directory is neither a
 * store nor empty. E_VERSION: made by a newer program. E_TRUNCATED: its file is cut off. E_CORRUPT:
 * a page of LMDB is damaged. E_IO: cannot be created, read, written or reached. E_UNSUPPORTED: the
 * library was built without Redis or TLS. E_INVALID, E_NOMEM. */
QUIRE_API quire_status quire_store_open(quire_store **store, const char *place,
                                        const quire_store_options *options);
/* Waits until queues of tiers are empty, unless their places fail. NULL is fine. */
QUIRE_API void quire_store_close(quire_store *store);

/* ------------------------------------------------------------ tiers (experimental) */

enum { QUIRE_STORE_TIERS_MAX = 8, QUIRE_STORE_PLACE_TEXT = 300 };

/* Opens n places as one store, the fastest first. One place is allowed: a Redis server is then
 * written to by a thread. options->max_bytes is the limit of a directory. A Redis server that
 * cannot be reached now does not fail, but a wrong password does. Errors: as quire_store_open. */
QUIRE_API quire_status quire_store_open_tiers(quire_store **store, const char *const *places,
                                              size_t n, const quire_store_options *options);

typedef struct quire_store_tier {
    char place[QUIRE_STORE_PLACE_TEXT]; /* without password */
    uint64_t hit_records;               /* read from it */
    uint64_t written_records, written_bytes;
    uint64_t dropped_records, dropped_bytes; /* because its queue was full, or it failed */
    uint64_t queued_records, queued_bytes;   /* that wait now */
    uint64_t errors;                         /* calls that failed */
    bool is_failing;                         /* the last read or the last write failed */
    char error[200];                         /* why the last call that failed did; "" if none */
} quire_store_tier;

/* Since the store was opened; never waits for a place. A store without tiers has one, with nothing
 * but its place. E_UNKNOWN: there is no such tier. */
QUIRE_API quire_status quire_store_get_tier(quire_store *store, size_t tier, quire_store_tier *to);
/* Waits until what was put has been written or dropped in every tier. */
QUIRE_API void quire_store_drain(quire_store *store);
/* A place as messages may show it: without password. */
QUIRE_API void quire_store_place_text(const char *place, char text[QUIRE_STORE_PLACE_TEXT]);

/* ------------------------------------------------------------ put and get (stable) */

/* A text, and the identity of what computes its cache (as in quire_save_options). Borrowed during
 * a call. */
typedef struct quire_store_text {
    const void *identity;
    size_t identity_bytes;
    const int32_t *tokens; /* (n_tokens) from the first on */
    int32_t n_tokens;
    /* Optional (0 bytes: none). Texts with different salts never share pages, so that one user
     * cannot find out, by how fast an answer comes, what another user has asked. Use a secret per
     * user or group of users. Not for quire_store_import. */
    const void *salt;
    size_t salt_bytes;
} quire_store_text;

typedef struct quire_store_added {
    int32_t pages;  /* of 64 tokens, in any layers */
    uint64_t bytes; /* of records */
} quire_store_added;

/* Stores the full pages that the sequence and text->tokens have in common and the store lacks.
 * Pages that have lost tokens to a window are left out. `added` may be NULL; it is set on failure
 * too, because pages written before the failure stay. E_HISTORY: some of these pages differ from
 * what computing the text gives; nothing is put. E_TOO_BIG: the text alone exceeds the limit.
 * E_BUSY: the sequence is in a batch, or another process holds the space that is needed; try again
 * later. E_CORRUPT: LMDB's pages are damaged. E_STATE: requantizing is not finished, or the store
 * is read-only. E_INVALID, E_IO, E_NOMEM. */
QUIRE_API quire_status quire_store_put(quire_store *store, const quire_seq *seq,
                                       const quire_store_text *text, quire_store_added *added);
/* Makes a new sequence with the longest stored prefix of the text, in whole pages, leaving out at
 * least the last `leave` tokens: to get logits, at least one token must be left to compute.
 * quire_seq_length gives the length of the prefix, 0 if nothing was found. E_NO_SLOT, E_NO_PAGES,
 * E_IO, E_NOMEM: no sequence is made. */
QUIRE_API quire_status quire_store_get(quire_store *store, quire_pool *pool,
                                       const quire_store_text *text, int32_t leave,
                                       quire_seq **seq);

/* ------------------------------------------------------------ statistics (stable) */

typedef struct quire_store_stats {
    int64_t records, pages;
    uint64_t bytes;                   /* of records */
    uint64_t file_bytes, max_bytes;   /* on disk, and the limit */
    uint64_t hit_pages, missed_pages; /* of all texts looked up: found, and not found */
    uint64_t added_pages, evicted_pages, bad_records;
} quire_store_stats;

/* Totals of the directory since it was created, over all processes, including what this process
 * has not written yet. Redis: file_bytes, max_bytes and evicted_pages are those of the server
 * (its memory, maxmemory, keys evicted since it started). Tiers: counts begin when the store was
 * opened. Records, pages, all sizes and evicted_pages are those of the first place that is not a
 * Redis server; without such a place they are 0, also max_bytes, which a directory and memory
 * always have. No server is asked, but another thread's call on the store, which may wait for one,
 * comes first. */
QUIRE_API quire_status quire_store_get_stats(quire_store *store, quire_store_stats *stats);

/* ------------------------------------------------------------ keys and contents (experimental) */

/* Identifies a page together with all tokens up to its last one; 64 hexadecimal digits as text. */
typedef struct quire_store_key {
    uint8_t byte[32];
} quire_store_key;

enum { QUIRE_STORE_KEY_TEXT = 65 };

QUIRE_API void quire_store_key_text(const quire_store_key *key, char text[QUIRE_STORE_KEY_TEXT]);
/* The key of the longest stored prefix of a text, as quire_store_get finds it. E_UNKNOWN: no page
 * of the text is stored. */
QUIRE_API quire_status quire_store_find(quire_store *store, quire_pool *pool,
                                        const quire_store_text *text, quire_store_key *key,
                                        int32_t *n_tokens);
/* The page whose key begins with these digits; a page that ends a text is preferred. E_UNKNOWN:
 * none, or several. */
QUIRE_API quire_status quire_store_key_find(quire_store *store, const char *digits,
                                            quire_store_key *key);

typedef struct quire_store_entry {
    quire_store_key key;
    int32_t n_tokens; /* from the first token of the text to the last of this page */
    bool is_end;      /* no page follows it */
    bool whole;       /* it can be found: all pages before it, and those its windows see, exist */
    uint64_t bytes;   /* of this page's records */
    uint64_t text_bytes; /* of this page's records and of all before it */
    int64_t used;        /* when it was last put or found, in seconds since 1970 */
    /* Valid during the call; NULL and 0 if this information has been lost. */
    const void *identity;
    size_t identity_bytes;
    const quire_layer *layers; /* (n_layers) as in quire_file_info */
    int32_t n_layers, sinks;
    quire_type raw;
} quire_store_entry;

/* Calls `visit` for every page, in the order of keys, while others may write; false from `visit`
 * ends the walk. `visit` must not call the store. */
QUIRE_API quire_status quire_store_walk(quire_store *store,
                                        bool (*visit)(void *user, const quire_store_entry *entry),
                                        void *user);
/* Removes a page, the pages that follow it, and the pages before it that lead to nothing else. key
 * NULL: removes everything. n_pages may be NULL. */
QUIRE_API quire_status quire_store_remove(quire_store *store, const quire_store_key *key,
                                          int32_t *n_pages);

typedef struct quire_store_verify_options {
    size_t struct_size; /* set by quire_store_verify_options_default */
    bool remove;        /* remove bad records, and count them */
    void (*on_progress)(void *user, int64_t done, int64_t total);
    bool (*stop)(void *user); /* true ends it with E_ABORTED */
    void *user;
} quire_store_verify_options;

typedef struct quire_store_verdict {
    int64_t records, bad;
    /* Valid, but a page before it or its identity is missing: useless until that is put again.
     * While others write, pages that are just being put may be counted. */
    int64_t lost;
} quire_store_verdict;

QUIRE_API void quire_store_verify_options_default(quire_store_verify_options *options);
/* Reads every byte and checks every value. Returns OK even if some records are bad: see the
 * verdict. options NULL: the defaults. E_CORRUPT: LMDB's own pages are damaged, so that no record
 * can be relied on to be found. */
QUIRE_API quire_status quire_store_verify(quire_store *store,
                                          const quire_store_verify_options *options,
                                          quire_store_verdict *verdict);

/* ------------------------------------------------------------ files (experimental) */

typedef struct quire_store_file_options {
    size_t struct_size; /* set by quire_store_file_options_default */
    void (*on_progress)(void *user, int32_t done, int32_t total);
    void *user;
} quire_store_file_options;

QUIRE_API void quire_store_file_options_default(quire_store_file_options *options);
/* Writes the pages up to `key` as a saved sequence (quire.h). options NULL: the defaults.
 * E_UNKNOWN: no such page. E_GONE: pages before it, or pages that its windows see, are no longer
 * stored. E_CORRUPT: a record was bad. E_VERSION, E_IO, E_NOMEM. */
QUIRE_API quire_status quire_store_export(quire_store *store, const quire_store_key *key,
                                          const char *path,
                                          const quire_store_file_options *options);
/* Stores the full pages of a saved sequence, under the file's identity, after every byte of the
 * file has been checked. *key (may be NULL) is the key of the last page. options NULL: the
 * defaults. E_FORMAT: the file has no tokens or no full page. Other errors: as quire_store_put and
 * quire_file_check. */
QUIRE_API quire_status quire_store_import(quire_store *store, quire_file *file,
                                          const quire_store_file_options *options,
                                          quire_store_key *key, quire_store_added *added);

#ifdef __cplusplus
}
#endif
#endif
