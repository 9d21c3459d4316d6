/* One connection to a Redis server: commands out, replies in, each with a deadline. hiredis parses
 * the replies; the socket is our own, because a deadline must cover a whole call, and TLS must work
 * with any version of hiredis.
 *
 * A link that fails is closed and rests: until the rest is over, every call fails at once. */
#ifndef QUIRE_STORE_REDIS_LINK_H
#define QUIRE_STORE_REDIS_LINK_H

#include <hiredis.h> /* pkg-config names its folder */
#include <poll.h>

#include "store/host_lookup.h"
#include "store/redis_url.h"

enum { QUIRE_LINK_WHY = 160 };

typedef struct quire_redis_link {
    const quire_redis_url *url;
    char host[256], port[8]; /* "": retired */
    char name[270];          /* "host:port" */
    quire_host found;        /* what `host` was last known to be */
    bool is_number;          /* `host` is, and need not be looked up */
    int lookup;              /* -1, or what quire__lookup_end takes */
    int fd;                  /* -1: closed */
    struct quire_tls *tls;
    redisReader *reader;
    uint8_t *out; /* commands that have not been sent */
    size_t n_out, n_sent, capacity;
    char *in;            /* buffer of one read */
    size_t n_waiting;    /* commands whose replies have not been read */
    uint64_t generation; /* number of the connection: replies of an earlier one are lost */
    bool has_answered;   /* on this connection */
    bool was_stale;      /* it was closed by the server while it was not used: try again at once */
    bool was_refused;    /* wrong password and the like */
    bool is_replica;     /* it says so: its name may lead to another server by now */
    int64_t rest_until, rest_millis;
    char why[QUIRE_LINK_WHY]; /* it failed last */
} quire_redis_link;

/* The link is zeroed or retired. E_NOMEM. Must be freed also on failure. */
quire_status quire__link_init(quire_redis_link *link, const quire_redis_url *url, const char *host,
                              const char *port);
void quire__link_free(quire_redis_link *link);
/* Frees what it holds; link_init may use it for another server. What waits for a reply of the
 * earlier one still finds out that there will be none. */
void quire__link_retire(quire_redis_link *link);
/* Connects and logs in, unless that has been done. The host is looked up each time. E_IO. */
quire_status quire__link_ready(quire_redis_link *link, int64_t deadline);
/* Adds a command to those that are sent next. E_NOMEM. */
quire_status quire__link_add(quire_redis_link *link, int n_words, const char *const *words,
                             const size_t *word_bytes);
quire_status quire__link_send(quire_redis_link *link, int64_t deadline);
/* The reply to the oldest command that waits for one; freeReplyObject frees it. */
quire_status quire__link_reply(quire_redis_link *link, int64_t deadline, redisReply **reply);
/* Closes the link and lets it rest. Returns E_IO: "Redis at NAME WHY". */
quire_status quire__link_fail(quire_redis_link *link, const char *format, ...) QUIRE_PRINTF(2, 3);
void quire__link_close(quire_redis_link *link);

/* ---- what a socket can do now */
typedef enum quire_io {
    QUIRE_IO_DONE,
    QUIRE_IO_WAIT_READ, /* nothing was done: wait until the socket can be read */
    QUIRE_IO_WAIT_WRITE,
    QUIRE_IO_CLOSED,
    QUIRE_IO_FAILED /* errno */
} quire_io;

quire_io quire__socket_read(int fd, void *to, size_t n, size_t *done);
quire_io quire__socket_write(int fd, const void *from, size_t n, size_t *done);

/* ---- redis_tls.c: the same through TLS */
typedef struct quire_tls quire_tls;
/* Why TLS cannot be used, or NULL. */
const char *quire__tls_missing(void);
quire_tls *quire__tls_open(const quire_redis_url *url, const char *host, int fd, char *why,
                           size_t n_why);
void quire__tls_close(quire_tls *tls);
quire_io quire__tls_handshake(quire_tls *tls, char *why, size_t n_why);
quire_io quire__tls_read(quire_tls *tls, void *to, size_t n, size_t *done);
quire_io quire__tls_write(quire_tls *tls, const void *from, size_t n, size_t *done);

#endif
