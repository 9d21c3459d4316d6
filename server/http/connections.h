/* connections.h: the clocks of all connections.
 *
 * libmicrohttpd closes a connection that is silent for a while, but not one that sends a byte now
 * and then. So each connection has a phase, and a thread of its own cuts those that have been in a
 * phase for too long. */
#ifndef SERVER_HTTP_CONNECTIONS_H
#define SERVER_HTTP_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum srv_phase {
    SRV_OPENED,    /* no request yet: header_seconds */
    SRV_KEPT,      /* between two requests: idle_seconds */
    SRV_HEADERS,   /* the request line is there: header_seconds */
    SRV_BODY,      /* the headers are there: body_seconds */
    SRV_ANSWERING, /* no limit here: libmicrohttpd notices a client that reads nothing */
    SRV_CUT
} srv_phase;

typedef struct srv_connections srv_connections;
typedef struct srv_connection srv_connection;

/* NULL: out of memory, or no thread. */
srv_connections *srv_connections_start(int32_t header_seconds, int32_t body_seconds,
                                       int32_t idle_seconds);
/* After all connections were removed. NULL is fine. */
void srv_connections_stop(srv_connections *connections);

/* NULL: out of memory. */
srv_connection *srv_connection_add(srv_connections *connections, int socket);
/* Must be called before the socket is closed. */
void srv_connection_remove(srv_connection *connection);
void srv_connection_enter(srv_connection *connection, srv_phase phase);
int srv_connection_socket(const srv_connection *connection);

typedef struct srv_connection_counts {
    int64_t open, answering; /* now */
    int64_t accepted, cut;   /* since the start */
} srv_connection_counts;

srv_connection_counts srv_connections_count(srv_connections *connections);

#endif
