/* One connection to a Redis server. */
#include "store/redis_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h> /* gai_strerror */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/millis.h"

enum { IN_BYTES = 1 << 17, REST_LEAST = 500, REST_MOST = 15000 };

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS has SO_NOSIGPIPE instead */
#endif

/* ------------------------------------------------------------------ failing */

void quire__link_close(quire_redis_link *l) {
    quire__tls_close(l->tls);
    l->tls = NULL;
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    if (l->reader)
        redisReaderFree(l->reader);
    l->reader = NULL;
    l->n_out = l->n_sent = l->n_waiting = 0;
    l->has_answered = l->is_replica = false;
    l->generation++;
}

quire_status quire__link_fail(quire_redis_link *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(l->why, sizeof l->why, format, args);
    va_end(args);
    quire__link_close(l);
    l->rest_millis = l->rest_millis < REST_LEAST ? REST_LEAST : 2 * l->rest_millis;
    l->rest_millis = l->rest_millis > REST_MOST ? REST_MOST : l->rest_millis;
    l->rest_until = quire__millis() + l->rest_millis;
    return quire__fail(QUIRE_E_IO, "Redis at %s %s", l->name, l->why);
}

static quire_status no_answer(quire_redis_link *l) {
    return quire__link_fail(l, "did not answer within %d ms", (int)l->url->timeout_millis);
}

static quire_status broken(quire_redis_link *l, quire_io io) {
    const int error = errno;
    /* A server that was restarted, or that closes idle connections. */
    const bool is_stale =
        l->has_answered && (io == QUIRE_IO_CLOSED || error == ECONNRESET || error == EPIPE);
    const quire_status status = io == QUIRE_IO_CLOSED
                                    ? quire__link_fail(l, "closed the connection")
                                    : quire__link_fail(l, "cannot be reached: %s", strerror(error));
    l->was_stale = is_stale;
    if (is_stale)
        l->rest_until = l->rest_millis = 0;
    return status;
}

/* ------------------------------------------------------------------ sockets */

static quire_io io_of(ssize_t n, bool writes, size_t *done) {
    *done = n > 0 ? (size_t)n : 0;
    if (n > 0)
        return QUIRE_IO_DONE;
    if (n == 0)
        return QUIRE_IO_CLOSED;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return writes ? QUIRE_IO_WAIT_WRITE : QUIRE_IO_WAIT_READ;
    return QUIRE_IO_FAILED;
}

quire_io quire__socket_read(int fd, void *to, size_t n, size_t *done) {
    return io_of(recv(fd, to, n, 0), false, done);
}

quire_io quire__socket_write(int fd, const void *from, size_t n, size_t *done) {
    return io_of(send(fd, from, n, MSG_NOSIGNAL), true, done);
}

/* False: the deadline has passed. */
static bool wait_for(int fd, short events, int64_t deadline) {
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        const int64_t left = deadline - quire__millis();
        if (left <= 0)
            return false;
        const int n = poll(&p, 1, (int)left);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static void set_up_socket(int fd) {
    const int yes = 1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes);
#endif
}

/* -1 and errno (ETIMEDOUT: the deadline has passed). */
static int connect_to(const quire_host_address *a, int64_t deadline) {
    const int fd = socket(a->family, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    set_up_socket(fd);
    int error = 0;
    socklen_t n = sizeof error;
    if (connect(fd, (const struct sockaddr *)a->bytes, (socklen_t)a->n_bytes) != 0) {
        if (errno != EINPROGRESS)
            error = errno;
        else if (!wait_for(fd, POLLOUT, deadline))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
            error = errno;
    }
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* ------------------------------------------------------------------ opening */

quire_status quire__link_init(quire_redis_link *l, const quire_redis_url *url, const char *host,
                              const char *port) {
    *l = (quire_redis_link){.url = url, .fd = -1, .lookup = -1, .generation = l->generation};
    snprintf(l->host, sizeof l->host, "%s", host);
    snprintf(l->port, sizeof l->port, "%s", port);
    snprintf(l->name, sizeof l->name, strchr(host, ':') ? "[%s]:%s" : "%s:%s", l->host, l->port);
    l->is_number = quire__host_of_number(l->host, l->port, &l->found);
    l->in = malloc(IN_BYTES);
    return l->in ? QUIRE_OK
                 : quire__fail(QUIRE_E_NOMEM, "out of memory while opening Redis at %s", l->name);
}

static void drop_lookup(quire_redis_link *l) {
    if (l->lookup >= 0)
        close(l->lookup);
    l->lookup = -1;
}

void quire__link_free(quire_redis_link *l) {
    quire__link_close(l);
    drop_lookup(l);
    free(l->out);
    free(l->in);
    *l = (quire_redis_link){.fd = -1, .lookup = -1};
}

void quire__link_retire(quire_redis_link *l) {
    const uint64_t generation = l->generation + 1;
    quire__link_free(l);
    l->generation = generation;
}

/* A name is looked up whenever its server must be found again: it may have moved. While that takes
 * long or fails, the server is where it was. A lookup that was too slow for one call serves the
 * next. */
static quire_status find_host(quire_redis_link *l, int64_t deadline) {
    const bool is_known = l->found.n_addresses > 0;
    if (l->is_number)
        return QUIRE_OK;
    if (l->lookup < 0)
        l->lookup = quire__lookup_start(l->host, l->port);
    if (l->lookup < 0)
        return is_known ? QUIRE_OK
                        : quire__link_fail(l, "cannot be looked up: %s", strerror(errno));
    const int64_t now = quire__millis();
    if (!wait_for(l->lookup, POLLIN, is_known ? now + (deadline - now) / 2 : deadline))
        return is_known
                   ? QUIRE_OK
                   : quire__link_fail(l, "was not found within %d ms", (int)l->url->timeout_millis);
    quire_host host;
    quire__lookup_end(l->lookup, &host);
    l->lookup = -1;
    if (host.error == 0)
        l->found = host;
    return host.error == 0 || is_known
               ? QUIRE_OK
               : quire__link_fail(l, "cannot be found: %s", gai_strerror(host.error));
}

static quire_status open_tls(quire_redis_link *l, int64_t deadline) {
    char why[QUIRE_LINK_WHY / 2] = "";
    l->tls = quire__tls_open(l->url, l->host, l->fd, why, sizeof why);
    if (!l->tls) {
        l->was_refused = true;
        return quire__link_fail(l, "cannot be used with TLS: %s", why);
    }
    for (;;) {
        const quire_io io = quire__tls_handshake(l->tls, why, sizeof why);
        if (io == QUIRE_IO_DONE)
            return QUIRE_OK;
        if (io != QUIRE_IO_WAIT_READ && io != QUIRE_IO_WAIT_WRITE) {
            l->was_refused = io != QUIRE_IO_CLOSED; /* by a proxy, perhaps, whose server is down */
            return quire__link_fail(l, "cannot be used with TLS: %s",
                                    why[0] ? why : "it closed the connection");
        }
        if (!wait_for(l->fd, io == QUIRE_IO_WAIT_READ ? POLLIN : POLLOUT, deadline))
            return no_answer(l);
    }
}

static quire_status add_login(quire_redis_link *l, int *n) {
    char db[16];
    snprintf(db, sizeof db, "%d", (int)l->url->db);
    const char *user = l->url->user[0] ? l->url->user : "default";
    const char *const auth[] = {"AUTH", user, l->url->password},
                      *const old_auth[] = {"AUTH", l->url->password},
                      *const select_db[] = {"SELECT", db}, *const ping[] = {"PING"};
    /* Servers before 6 have no users. */
    const bool has_user = l->url->user[0] && strcmp(l->url->user, "default") != 0;
    *n = 0;
    if (l->url->password[0]) {
        QUIRE_TRY(quire__link_add(l, has_user ? 3 : 2, has_user ? auth : old_auth, NULL));
        ++*n;
    }
    if (l->url->db != 0) {
        QUIRE_TRY(quire__link_add(l, 2, select_db, NULL));
        ++*n;
    }
    QUIRE_TRY(quire__link_add(l, 1, ping, NULL));
    ++*n;
    return QUIRE_OK;
}

/* What the server says is part of the message, cut off; it does not repeat passwords. */
static quire_status log_in(quire_redis_link *l, int64_t deadline) {
    int n;
    quire_status status = add_login(l, &n);
    if (status != QUIRE_OK) {
        quire__link_close(l); /* half of a login is none, and what is open counts as logged in */
        return status;
    }
    QUIRE_TRY(quire__link_send(l, deadline));
    for (int i = 0; i < n && status == QUIRE_OK; i++) {
        redisReply *reply;
        QUIRE_TRY(quire__link_reply(l, deadline, &reply));
        if (reply->type == REDIS_REPLY_ERROR) {
            static const char *const later[] = {"LOADING", "MASTERDOWN", "BUSY", "max number of"};
            l->was_refused = true;
            for (size_t w = 0; w < sizeof later / sizeof later[0]; w++)
                if (strstr(reply->str, later[w]))
                    l->was_refused = false;
            status = quire__link_fail(l, "refuses to let this program in: %.100s", reply->str);
        }
        freeReplyObject(reply);
    }
    return status;
}

/* Each address has its share of the time that is left: one that does not answer, often that of
 * IPv6, must not keep the others from being tried. -1 and errno. */
static int connect_to_any(const quire_redis_link *l, int64_t deadline) {
    int fd = -1;
    const quire_host *host = &l->found;
    for (size_t i = 0; i < host->n_addresses && fd < 0; i++) {
        const int64_t now = quire__millis();
        fd = connect_to(&host->address[i],
                        now + (deadline - now) / (int64_t)(host->n_addresses - i));
    }
    return fd;
}

quire_status quire__link_ready(quire_redis_link *l, int64_t deadline) {
    if (l->is_replica && !l->is_number && l->n_waiting == 0)
        quire__link_close(l);
    if (l->fd >= 0)
        return QUIRE_OK;
    const int64_t left = l->rest_until - quire__millis();
    if (left > 0)
        return quire__fail(QUIRE_E_IO, "Redis at %s %s; the next attempt is in %d ms", l->name,
                           l->why, (int)left);
    l->was_stale = l->was_refused = false;
    const int64_t rest = l->rest_millis;
    QUIRE_TRY(find_host(l, deadline));
    l->fd = connect_to_any(l, deadline);
    if (l->fd < 0)
        return quire__link_fail(l, "cannot be reached: %s", strerror(errno));
    drop_lookup(l); /* by the next time it would be out of date */
    l->reader = redisReaderCreate();
    if (!l->reader)
        return quire__link_fail(l, "cannot be used: out of memory");
    l->reader->maxbuf = 0; /* keep the buffer: records are larger than hiredis expects */
    if (l->url->has_tls)
        QUIRE_TRY(open_tls(l, deadline));
    QUIRE_TRY(log_in(l, deadline));
    l->rest_millis = rest; /* letting us in is not enough: it may hang at the first command */
    l->has_answered = false;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ commands and replies */

static bool make_room(quire_redis_link *l, size_t more) {
    if (l->n_out + more <= l->capacity)
        return true;
    const size_t larger = 2 * l->capacity > l->n_out + more ? 2 * l->capacity : l->n_out + more;
    uint8_t *out = realloc(l->out, larger);
    if (!out)
        return false;
    l->out = out;
    l->capacity = larger;
    return true;
}

static void add_bytes(quire_redis_link *l, const void *bytes, size_t n) {
    memcpy(l->out + l->n_out, bytes, n);
    l->n_out += n;
}

static void add_length(quire_redis_link *l, char mark, size_t length) {
    char text[24];
    add_bytes(l, text, (size_t)snprintf(text, sizeof text, "%c%zu\r\n", mark, length));
}

quire_status quire__link_add(quire_redis_link *l, int n_words, const char *const *words,
                             const size_t *word_bytes) {
    size_t more = 24;
    for (int i = 0; i < n_words; i++)
        more += 26 + (word_bytes ? word_bytes[i] : strlen(words[i]));
    if (!make_room(l, more))
        return quire__fail(QUIRE_E_NOMEM, "out of memory while writing to Redis at %s", l->name);
    add_length(l, '*', (size_t)n_words);
    for (int i = 0; i < n_words; i++) {
        const size_t n = word_bytes ? word_bytes[i] : strlen(words[i]);
        add_length(l, '$', n);
        add_bytes(l, words[i], n);
        add_bytes(l, "\r\n", 2);
    }
    l->n_waiting++;
    return QUIRE_OK;
}

static quire_io read_some(quire_redis_link *l, size_t *n) {
    return l->tls ? quire__tls_read(l->tls, l->in, IN_BYTES, n)
                  : quire__socket_read(l->fd, l->in, IN_BYTES, n);
}

/* Reads what has come, for the parser. */
static quire_io take_in(quire_redis_link *l) {
    size_t n;
    const quire_io io = read_some(l, &n);
    if (io == QUIRE_IO_DONE && redisReaderFeed(l->reader, l->in, n) != REDIS_OK) {
        errno = ENOMEM;
        return QUIRE_IO_FAILED;
    }
    return io;
}

static bool is_waiting(quire_io io) {
    return io == QUIRE_IO_WAIT_READ || io == QUIRE_IO_WAIT_WRITE;
}

quire_status quire__link_send(quire_redis_link *l, int64_t deadline) {
    while (l->n_sent < l->n_out) {
        size_t n;
        const uint8_t *from = l->out + l->n_sent;
        quire_io io = l->tls ? quire__tls_write(l->tls, from, l->n_out - l->n_sent, &n)
                             : quire__socket_write(l->fd, from, l->n_out - l->n_sent, &n);
        if (io == QUIRE_IO_DONE) {
            l->n_sent += n;
            continue;
        }
        if (!is_waiting(io))
            return broken(l, io);
        /* Replies are taken meanwhile: a server that cannot send does not read either. */
        if (!wait_for(l->fd, POLLIN | POLLOUT, deadline))
            return no_answer(l);
        io = take_in(l);
        if (io != QUIRE_IO_DONE && !is_waiting(io))
            return broken(l, io);
    }
    l->n_out = l->n_sent = 0;
    return QUIRE_OK;
}

quire_status quire__link_reply(quire_redis_link *l, int64_t deadline, redisReply **reply) {
    for (bool late = false;;) {
        void *got = NULL;
        if (redisReaderGetReply(l->reader, &got) != REDIS_OK)
            return quire__link_fail(l, "sent what is not the protocol of Redis: %.80s",
                                    l->reader->errstr);
        if (got) {
            *reply = got;
            l->n_waiting--;
            l->has_answered = true;
            l->rest_millis = 0;
            return QUIRE_OK;
        }
        if (late) /* also while bytes of it keep coming */
            return no_answer(l);
        const quire_io io = take_in(l);
        late = quire__millis() >= deadline;
        if (io == QUIRE_IO_DONE)
            continue;
        if (!is_waiting(io))
            return broken(l, io);
        if (!wait_for(l->fd, io == QUIRE_IO_WAIT_READ ? POLLIN : POLLOUT, deadline))
            return no_answer(l);
    }
}
