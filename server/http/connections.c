/* connections.c: see connections.h. */
#include "http/connections.h"

#include "base/monotonic.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { SWEEP_MILLISECONDS = 250 };

struct srv_connection {
    srv_connections *all;
    srv_connection *previous, *next;
    int socket;
    srv_phase phase;
    double since; /* when it entered this phase */
};

struct srv_connections {
    double limit[SRV_CUT]; /* seconds in a phase; 0: none */
    pthread_mutex_t lock;
    pthread_cond_t stop_now;
    bool is_stopping;
    srv_connection *first;
    srv_connection_counts counts;
    pthread_t thread;
};

/* ------------------------------------------------------------------ cutting */

/* Nothing has been sent for the request that times out, so this is a whole reply. */
static void say_timed_out(int socket) {
#define BODY                                                                                       \
    "{\"error\": {\"message\": \"The request took too long to arrive.\", "                         \
    "\"type\": \"timeout_error\", \"param\": null, \"code\": null}}"
    char reply[512];
    const int n = snprintf(reply, sizeof reply,
                           "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                           sizeof BODY - 1, BODY);
#undef BODY
    (void)!send(socket, reply, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void cut(srv_connection *c) {
    if (c->phase == SRV_HEADERS || c->phase == SRV_BODY)
        say_timed_out(c->socket);
    shutdown(c->socket, SHUT_RDWR); /* wakes the connection's thread, which closes it */
    c->phase = SRV_CUT;
    c->all->counts.cut++;
}

static void sweep(srv_connections *all) {
    const double now = srv_monotonic();
    for (srv_connection *c = all->first; c; c = c->next)
        if (c->phase != SRV_CUT && all->limit[c->phase] > 0 &&
            now - c->since > all->limit[c->phase])
            cut(c);
}

static void *watch(void *user) {
    srv_connections *all = user;
    pthread_mutex_lock(&all->lock);
    while (!all->is_stopping) {
        sweep(all);
        const struct timespec until = srv_deadline(SWEEP_MILLISECONDS);
        pthread_cond_timedwait(&all->stop_now, &all->lock, &until);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* ------------------------------------------------------------------ life */

srv_connections *srv_connections_start(int32_t header_seconds, int32_t body_seconds,
                                       int32_t idle_seconds) {
    srv_connections *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    all->limit[SRV_OPENED] = all->limit[SRV_HEADERS] = header_seconds;
    all->limit[SRV_KEPT] = idle_seconds;
    all->limit[SRV_BODY] = body_seconds;
    pthread_mutex_init(&all->lock, NULL);
    srv_cond_init(&all->stop_now);
    if (pthread_create(&all->thread, NULL, watch, all) != 0) {
        pthread_cond_destroy(&all->stop_now);
        pthread_mutex_destroy(&all->lock);
        free(all);
        return NULL;
    }
    return all;
}

void srv_connections_stop(srv_connections *all) {
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    all->is_stopping = true;
    pthread_cond_signal(&all->stop_now);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->thread, NULL);
    pthread_cond_destroy(&all->stop_now);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

srv_connection *srv_connection_add(srv_connections *all, int socket) {
    srv_connection *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (srv_connection){
        .all = all, .socket = socket, .phase = SRV_OPENED, .since = srv_monotonic()};
    pthread_mutex_lock(&all->lock);
    c->next = all->first;
    if (c->next)
        c->next->previous = c;
    all->first = c;
    all->counts.open++;
    all->counts.accepted++;
    pthread_mutex_unlock(&all->lock);
    return c;
}

void srv_connection_remove(srv_connection *c) {
    srv_connections *all = c->all;
    pthread_mutex_lock(&all->lock);
    if (c->previous)
        c->previous->next = c->next;
    else
        all->first = c->next;
    if (c->next)
        c->next->previous = c->previous;
    all->counts.open--;
    pthread_mutex_unlock(&all->lock);
    free(c);
}

void srv_connection_enter(srv_connection *c, srv_phase phase) {
    pthread_mutex_lock(&c->all->lock);
    if (c->phase != SRV_CUT) {
        c->phase = phase;
        c->since = srv_monotonic();
    }
    pthread_mutex_unlock(&c->all->lock);
}

int srv_connection_socket(const srv_connection *c) { return c->socket; }

srv_connection_counts srv_connections_count(srv_connections *all) {
    pthread_mutex_lock(&all->lock);
    srv_connection_counts counts = all->counts;
    counts.answering = 0;
    for (const srv_connection *c = all->first; c; c = c->next)
        counts.answering += c->phase == SRV_ANSWERING;
    pthread_mutex_unlock(&all->lock);
    return counts;
}
