/* quire_store.h: sealed pages kept in a directory, and found again by the tokens they were
 * computed from.
 *
 * The life of a prompt
 *   quire_store_get    the longest stored prefix of its tokens, as a new sequence of a pool; the
 *                      rest is computed
 *   quire_store_put    the sealed pages that the store does not have yet; call it after every
 *                      batch of the prompt
 *
 * Caveats, before the functions
 * - A page is found by a hash of everything it depends on: identity, layers, codecs, and all
 *   tokens up to its last. What is found is what was put, bit for bit: packed, never decoded.
 *   The caller says who computes (identity): whatever changes the bytes of a page and is not in
 *   quire_layer, quire_policy or the raw type belongs into it, k_feedback too.
 * - Put only what a prompt gives. Pages that a deep trim, a change of the policy, `reseal` or a
 *   shift has touched, or that were computed behind such pages (quire_history), are refused:
 *   E_HISTORY. Rows that were computed in another way (one at a time, say) are for the caller to
 *   leave out.
 * - Pages of layers with a window are kept apart and needed only while the window sees them.
 *   They leave a sequence with the window, so a prefix can be found only if its last window was
 *   put in time: batches no longer than the window.
 * - Nothing that comes out of the directory is believed. A record that is not what it should be
 *   is a miss: it is removed, and counted. A sequence is handed out only after all of it has
 *   been checked in pages that nobody else can see.
 * - LMDB's own pages (trees, free list) are checked when a store is opened, and by
 *   quire_store_verify. If one is damaged, the store is refused: E_CORRUPT, with the number of
 *   the page. The way out is to remove the directory. Not covered: another program that
 *   overwrites the file while the store is open.
 * - Processes: any number may use a directory at once, on one machine (LMDB, not on network file
 *   systems). Within a process open it once, and not across fork(). Killing a process at any
 *   moment harms nothing; after a power cut the last pages put may be missing.
 * - Threads: a store may be used by many threads, one call at a time (a lock sees to it).
 * - Size: the directory's file never grows beyond its limit (one that is larger when the limit
 *   is lowered stays as large, give or take). A full store makes room for a new text by dropping
 *   the text used least recently, from its end to its start, so that what stays can be found.
 *   Uses by other processes count with a delay of up to touch_seconds.
 * - Long readers: LMDB cannot reuse the room of dropped pages while a process still reads a
 *   state in which they exist. Calls here read one state for milliseconds. If another program
 *   (mdb_stat, a backup, a stopped process) reads one for longer, puts fail with E_BUSY until it
 *   is done; quire_last_error names the process.
 * - Errors are those of quire.h: a status, and quire_last_error() with the sentence.
 */
#ifndef QUIRE_STORE_H
#define QUIRE_STORE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_STORE_FORMAT 1 /* docs/FORMAT.md, section 11 */

typedef struct quire_store quire_store;

/* Of a page and all tokens up to its last; 64 digits in text. */
typedef struct quire_store_key {
    uint8_t byte[32];
} quire_store_key;

enum { QUIRE_STORE_KEY_TEXT = 65 };

typedef struct quire_store_options {
    size_t struct_size; /* set by quire_store_options_default */
    bool create; /* make the directory, or the store in an empty one, if there is none; default */
    bool read_only; /* bad records stay, uses are not noted */
    uint64_t
        max_bytes; /* of the file, from now on; 0: as it is, 8 GiB for a new one. At least 1 MiB */
    int32_t touch_seconds; /* finding pages writes nothing unless the last use on disk is this old;
                              default 60 */
} quire_store_options;

QUIRE_API void quire_store_options_default(quire_store_options *options);
/* Takes about 6 microseconds for each record that the store has: LMDB's pages are checked. options
 * NULL: the defaults. E_FOREIGN: not a store, and not empty. E_VERSION: made by a newer program.
 * E_TRUNCATED: its file is cut off. E_CORRUPT: a page of LMDB is damaged. E_IO: cannot be made,
 * read or written. E_INVALID, E_NOMEM. */
QUIRE_API quire_status quire_store_open(quire_store **store, const char *directory,
                                        const quire_store_options *options);
QUIRE_API void quire_store_close(quire_store *store); /* NULL is fine */

/* A text, and who computes its cache: bytes as in quire_save_options. Borrowed during a call. */
typedef struct quire_store_text {
    const void *identity;
    size_t identity_bytes;
    const int32_t *tokens; /* (n_tokens) from the first on */
    int32_t n_tokens;
} quire_store_text;

typedef struct quire_store_added {
    int32_t pages;  /* of 64 tokens, in whatever layers */
    uint64_t bytes; /* of records */
} quire_store_added;

/* Keeps the full pages that the sequence and text->tokens have in common and the store lacks.
 * `added` may be NULL; it is set also on failure, for what comes before stays. Pages that have lost
 * tokens to a window are left out. E_HISTORY: not all of these pages are what computing the text
 * gives; none is put then. E_TOO_BIG: the text alone is larger than the limit. E_BUSY: the sequence
 * is in a batch, or another process holds the room that is needed: try again later. E_CORRUPT:
 * LMDB's pages are damaged. E_STATE: not all of its pages have been requantized yet, or the store
 * is read-only. E_INVALID, E_IO, E_NOMEM. */
QUIRE_API quire_status quire_store_put(quire_store *store, const quire_seq *seq,
                                       const quire_store_text *text, quire_store_added *added);
/* A new sequence with the longest prefix of the text that is there, but for its last `leave`
 * tokens at least: one must be left to compute if logits are wanted. Whole pages;
 * quire_seq_length says how much, 0 if there is nothing. E_NO_SLOT, E_NO_PAGES, E_IO, E_NOMEM:
 * no sequence. */
QUIRE_API quire_status quire_store_get(quire_store *store, quire_pool *pool,
                                       const quire_store_text *text, int32_t leave,
                                       quire_seq **seq);

/* ------------------------------------------------------------------ files */

typedef struct quire_store_file_options {
    size_t struct_size; /* set by quire_store_file_options_default */
    void (*on_progress)(void *user, int32_t done, int32_t total);
    void *user;
} quire_store_file_options;

QUIRE_API void quire_store_file_options_default(quire_store_file_options *options);
/* The pages up to `key` as a saved sequence (quire.h). options NULL: the defaults. E_UNKNOWN: no
 * such page. E_GONE: pages that come before it, or that its windows see, are not there any more.
 * E_CORRUPT: a record was bad. E_VERSION, E_IO, E_NOMEM. */
QUIRE_API quire_status quire_store_export(quire_store *store, const quire_store_key *key,
                                          const char *path,
                                          const quire_store_file_options *options);
/* The full pages of a saved sequence, after every byte of it has been checked; *key is that of
 * the last (may be NULL). Its identity is the file's. options NULL: the defaults. E_FORMAT: it
 * has no tokens, or no full page. Else as quire_store_put and quire_file_check. */
QUIRE_API quire_status quire_store_import(quire_store *store, quire_file *file,
                                          const quire_store_file_options *options,
                                          quire_store_key *key, quire_store_added *added);

/* ------------------------------------------------------------------ what is there */

QUIRE_API void quire_store_key_text(const quire_store_key *key, char text[QUIRE_STORE_KEY_TEXT]);
/* The key of the longest prefix of a text that is there, as quire_store_get finds it. E_UNKNOWN:
 * nothing is. */
QUIRE_API quire_status quire_store_find(quire_store *store, quire_pool *pool,
                                        const quire_store_text *text, quire_store_key *key,
                                        int32_t *n_tokens);
/* The page whose key begins with these digits; one that ends a text is preferred. E_UNKNOWN:
 * none, or several. */
QUIRE_API quire_status quire_store_key_find(quire_store *store, const char *digits,
                                            quire_store_key *key);

typedef struct quire_store_entry {
    quire_store_key key;
    int32_t n_tokens; /* from the first to the last of this page */
    bool is_end;      /* no page follows it */
    bool whole;     /* it can be found: all pages before it, and those its windows see, are there */
    uint64_t bytes; /* of this page's records */
    uint64_t text_bytes; /* and of all before it */
    int64_t used;        /* seconds since 1970, when it was last put or found */
    /* Whose it is, during the call; NULL and 0 where that has been lost. */
    const void *identity;
    size_t identity_bytes;
    const quire_layer *layers; /* (n_layers) as quire_file_info has them */
    int32_t n_layers, sinks;
    quire_type raw;
} quire_store_entry;

/* Every page, in the order of keys, while others may write; false from `visit` ends it. No other
 * call on the store from there. */
QUIRE_API quire_status quire_store_walk(quire_store *store,
                                        bool (*visit)(void *user, const quire_store_entry *entry),
                                        void *user);
/* Drops a page, those that follow it, and those before it that lead nowhere else. key NULL:
 * everything. n_pages may be NULL. */
QUIRE_API quire_status quire_store_remove(quire_store *store, const quire_store_key *key,
                                          int32_t *n_pages);

typedef struct quire_store_verify_options {
    size_t struct_size; /* set by quire_store_verify_options_default */
    bool remove;        /* what is bad; also counts it */
    void (*on_progress)(void *user, int64_t done, int64_t total);
    bool (*stop)(void *user); /* true ends it with E_ABORTED */
    void *user;
} quire_store_verify_options;

typedef struct quire_store_verdict {
    int64_t records, bad;
    /* Sound, but a page before it or its identity is missing: of use only if that is put again.
     * While others write, pages that are just being put may be counted. */
    int64_t lost;
} quire_store_verdict;

QUIRE_API void quire_store_verify_options_default(quire_store_verify_options *options);
/* Reads every byte and every value. OK also if some are bad: the verdict says. options NULL: the
 * defaults. E_CORRUPT: the damage is to LMDB's own pages, and no record can be trusted to be
 * found. */
QUIRE_API quire_status quire_store_verify(quire_store *store,
                                          const quire_store_verify_options *options,
                                          quire_store_verdict *verdict);

typedef struct quire_store_stats {
    int64_t records, pages;
    uint64_t bytes;                   /* of records */
    uint64_t file_bytes, max_bytes;   /* on disk, and the limit */
    uint64_t hit_pages, missed_pages; /* of all texts that were asked for: found, and not */
    uint64_t added_pages, evicted_pages, bad_records;
} quire_store_stats;

/* Of the directory, all processes since it was made; what this one has not written yet is in it. */
QUIRE_API quire_status quire_store_get_stats(quire_store *store, quire_store_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
