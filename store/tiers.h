/* Several backends as one, the fastest first.
 *
 *   lookup      every record is read from the first place that has it
 *   promotion   records that came from a slower place wait, as copies, until the caller has checked
 *               all of them (touch); then they go to the faster places
 *   write       now to memory, and to a directory that is the first place; behind to the others
 *
 * Threads: calls come one at a time (the store's lock). A place that is written behind has a thread
 * of its own, and a queue. That thread shares a directory's backend with the callers (tier.lock);
 * of a Redis server it has a backend of its own, so that nobody waits for its writes. */
#ifndef QUIRE_STORE_TIERS_H
#define QUIRE_STORE_TIERS_H

#include "store/store.h"

enum { QUIRE_TIERS_KNOWN = 1 << 15 };

/* Records to write, or (n 0) a use of a text. Several queues may share it. */
typedef struct quire_behind {
    int refs; /* under behind_lock of the tiers */
    quire_store_key *keys;
    size_t n_keys;
    quire_backend_item *items;
    size_t n;
    uint8_t *bytes;
    uint64_t n_bytes; /* that it takes in a queue */
} quire_behind;

typedef struct quire_behind_job {
    struct quire_behind_job *next;
    quire_behind *what;
} quire_behind_job;

typedef struct quire_tier {
    quire_place_kind kind;
    quire_backend *reader, *writer; /* the same, unless it is far */
    pthread_mutex_t lock;           /* of both, if they are the same and there is a thread */
    pthread_t thread;
    bool has_thread;
    struct quire_tiers *all;

    pthread_mutex_t queue_lock; /* of what follows */
    pthread_cond_t has_work, is_idle;
    quire_behind_job *first, *last;
    bool is_working, is_ending;
    bool fails_reads, fails_writes; /* a full server takes nothing, but can be read */
    quire_store_tier stats;
} quire_tier;

/* A copy of a record that came from a slower place. */
typedef struct quire_promotion {
    quire_record_id id;
    size_t tier; /* where it came from */
    uint8_t *bytes;
    size_t n_bytes;
} quire_promotion;

typedef struct quire_tiers {
    quire_backend backend; /* first: what callers hold */
    quire_tier tier[QUIRE_STORE_TIERS_MAX];
    size_t n;
    uint64_t queue_bytes;
    void (*on_tier)(void *user, const quire_store_tier *tier);
    void *user;
    pthread_mutex_t behind_lock;
    /* Records that need not be put again. A record's place follows from its id; a later one
     * replaces it. */
    quire_record_id *known; /* (QUIRE_TIERS_KNOWN) piece UINT32_MAX: none */
    quire_promotion *promotions;
    size_t n_promotions, promotion_capacity;
    uint64_t promotion_bytes;
    quire_backend_counts counts;
} quire_tiers;

/* ---- tiers.c */
/* The backend of a place for a caller, until quire__tier_end. A directory's is shared with the
 * thread that writes behind. That of a far place is the callers' own, and needs no lock. */
quire_backend *quire__tier_begin(quire_tier *tier);
void quire__tier_end(quire_tier *tier);

/* ---- tiers_walk.c */
quire_status quire__tiers_walk(quire_backend *backend, const quire_record_id *after,
                               quire_backend_view view, void *user);

/* ---- tiers_behind.c */
quire_status quire__behind_start(quire_tier *tier);
/* Finishes the queue, unless the place fails, and ends the thread. */
void quire__behind_end(quire_tier *tier);
void quire__behind_wait(quire_tier *tier);
/* NULL: out of memory. */
quire_behind *quire__behind_make(const quire_store_key *keys, size_t n_keys,
                                 const quire_backend_item *items, size_t n);
void quire__behind_release(quire_tiers *all, quire_behind *what);
/* Adds it to the queue, or counts it as dropped if the queue is full. */
bool quire__behind_add(quire_tier *tier, quire_behind *what);
/* Writes in parts that the backend can take. */
quire_status quire__write_parts(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                                const quire_backend_item *items, size_t n,
                                quire_store_added *added);
typedef enum quire_tier_call { QUIRE_TIER_READ, QUIRE_TIER_WRITE } quire_tier_call;
/* Remembers how a call ended, with quire_last_error(), and reports a change to the caller. */
void quire__tier_note(quire_tier *tier, quire_tier_call call, quire_status status);
void quire__tier_count(quire_tier *tier, uint64_t *counter, uint64_t more);

#endif
