/* The Redis backend. A node is a hash: its key is PREFIX and the 64 hexadecimal digits of the
 * node's key, its fields are the numbers of its pieces. So a node is used, expires and is evicted
 * as a whole. The hash of a root also has the field "r". PREFIX "counts" is a hash of counters.
 *
 *   redis_url.c       reads the URL
 *   redis_link.c      one connection; redis_tls.c: through TLS; host_lookup.c: to which address
 *   redis_run.c       sends many commands together, to the right nodes of a cluster
 *   redis_cluster.c   which nodes these are
 *   redis_backend.c   the calls of a quire_backend; redis_walk.c: those that look at all keys
 */
#ifndef QUIRE_STORE_REDIS_STORE_H
#define QUIRE_STORE_REDIS_STORE_H

#include "store/redis_link.h"

enum {
    QUIRE_REDIS_KEY = QUIRE_REDIS_PREFIX + QUIRE_STORE_KEY_TEXT,
    QUIRE_REDIS_WORDS = 6,
    QUIRE_REDIS_SLOTS = 16384,
    QUIRE_REDIS_LINKS = 256
};

typedef struct quire_redis_command {
    int n_words;
    const char *word[QUIRE_REDIS_WORDS]; /* borrowed */
    size_t bytes[QUIRE_REDIS_WORDS];
    int key; /* the word that says which node of a cluster; -1: any */
    quire_redis_link *link;
    redisReply *reply;
} quire_redis_command;

/* A record that was asked for. */
typedef struct quire_redis_asked {
    quire_record_id id;
    quire_redis_link *link;
    uint64_t generation;
    bool is_first;     /* of those that were asked for together */
    redisReply *reply; /* NULL: not read yet */
} quire_redis_asked;

typedef struct quire_redis_listed {
    quire_record_id id;
    int64_t used;
    bool is_root;
} quire_redis_listed;

typedef struct quire_redis {
    quire_backend backend; /* first: what callers hold */
    quire_redis_url url;
    quire_redis_link *links[QUIRE_REDIS_LINKS]; /* (n_links) the first is that of the URL */
    size_t n_links;
    uint16_t *slot; /* (QUIRE_REDIS_SLOTS) of a cluster: 1 + index of a link; 0: nobody serves it */
    bool is_map_stale;
    int64_t map_millis; /* when the map was read */
    quire_redis_asked *asked;
    size_t n_asked, first_asked, asked_capacity;
    int64_t window_deadline;
    int64_t full_until, full_rest; /* writes rest while the server takes nothing */
    char full_why[200];
    quire_backend_counts counted; /* not written yet */
    quire_redis_listed *listed;   /* what the last walk from the start has found */
    size_t n_listed, listed_capacity;
} quire_redis;

/* ---- redis_run.c */
void quire__redis_key(const quire_redis *r, const quire_store_key *key, char text[QUIRE_REDIS_KEY]);
/* Sends all commands, and reads their replies, which quire__redis_replies_free frees. Follows a
 * cluster's redirections. A reply may be an error. */
quire_status quire__redis_run(quire_redis *r, quire_redis_command *commands, size_t n);
void quire__redis_replies_free(quire_redis_command *commands, size_t n);
/* A status for a reply that is an error. */
quire_status quire__redis_refused(quire_redis_link *link, const redisReply *reply);
static inline bool quire__reply_is(const redisReply *reply, const char *error) {
    return reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, error, strlen(error)) == 0;
}
/* Closes links that wait for replies which nobody reads. */
void quire__redis_abandon(quire_redis *r);
int64_t quire__redis_deadline(const quire_redis *r);
/* Reads the reply to one record that was asked for. E_IO: also where its connection is gone. */
quire_status quire__redis_await(quire_redis_asked *asked, int64_t deadline);
/* Reads the replies to all that was asked for, so that links are free for other commands. */
quire_status quire__redis_settle(quire_redis *r);
void quire__redis_forget_asked(quire_redis *r);

/* ---- redis_cluster.c */
uint32_t quire__redis_slot(const char *key, size_t n_bytes);
/* The link for a key (NULL: any), not necessarily connected. E_IO, E_BUSY, E_NOMEM. */
quire_status quire__redis_route(quire_redis *r, const char *key, size_t n_bytes, int64_t deadline,
                                quire_redis_link **link);
/* The link to a node, which is made if there is none yet. E_TOO_BIG, E_IO, E_NOMEM. */
quire_status quire__redis_link_to(quire_redis *r, const char *host, const char *port,
                                  quire_redis_link **link);
/* Whether a link serves slots: replicas and nodes that have left do not. */
bool quire__redis_serves(const quire_redis *r, size_t link);
/* Follows MOVED and ASK of one command. */
quire_status quire__redis_follow(quire_redis *r, quire_redis_command *command, int64_t deadline);

/* ---- redis_walk.c */
quire_status quire__redis_walk(quire_backend *backend, const quire_record_id *after,
                               quire_backend_view view, void *user);
quire_status quire__redis_room(quire_backend *backend, quire_backend_room *room,
                               quire_backend_counts *counts);

/* ---- redis_backend.c */
quire_status quire__redis_ask(quire_backend *backend, const quire_record_id *ids, size_t n);
quire_status quire__redis_read(quire_backend *backend, const quire_record_id *id,
                               quire_backend_view view, void *user, bool *found);

#endif
