/* http_server.h: the server and one request, as the files of this folder share them.
 *
 * Each connection has a thread of its own (libmicrohttpd's), so that it may wait for the events of
 * its job. A request goes through
 *   http_server.c   headers, then the body, then a reply
 *   routes.c        who may ask for what; which function answers
 *   generation.c    chat and completions: parse, submit, collect events
 *   event_stream.c  the same with a reply that is sent while it is generated
 *   http_reply.c    headers that all replies have
 */
#ifndef SERVER_HTTP_HTTP_SERVER_H
#define SERVER_HTTP_HTTP_SERVER_H

#include "api/api.h"
#include "http/listen_socket.h"
#include "http/request_body.h"

#include <stdatomic.h>

struct MHD_Connection;
struct MHD_Daemon;
struct srv_api_keys;
struct srv_connection;
struct srv_connections;
struct srv_generation;
struct srv_log;
struct srv_metrics;
struct srv_route;

typedef struct srv_http {
    const srv_options *options;
    srv_sched *sched;
    api_limits limits;
    srv_listen_socket listening;
    struct MHD_Daemon *daemon;
    int64_t started; /* seconds since 1970 */
    double started_monotonic;
    struct srv_log *log;
    struct srv_api_keys *keys; /* NULL: none are needed */
    struct srv_metrics *metrics;
    struct srv_connections *connections;
    srv_body_budget bodies;
    atomic_bool is_draining;
} srv_http;

/* A status that is only logged: the client left before its reply (as nginx has it). */
enum { SRV_CLIENT_LEFT = 499 };

typedef struct srv_request {
    srv_http *server;
    struct MHD_Connection *connection;
    struct srv_connection *clock;
    const struct srv_route *route; /* NULL: no such path */
    const char *method, *path;
    double began, arrived; /* the headers; the whole request */
    srv_body body;
    /* A refusal that was decided on before the body came. It is sent after it: who is still
     * writing does not read. */
    bool is_refused;
    api_error refusal;
    bool closes; /* the connection ends with the reply */

    struct srv_generation *generation;    /* NULL, or what is being generated; freed with this */
    char id[48];                          /* "" or "chatcmpl-..": in the reply and in the log */
    const char *extra_name, *extra_value; /* one header more for the reply, or NULL */
    int status;                           /* of the reply */
    uint64_t reply_bytes;                 /* of its body, as far as they were handed over */
} srv_request;

/* NULL: the request has no such header. */
const char *srv_header(const srv_request *request, const char *name);
/* Takes over listening->fd, in any case. NULL: `why` is a sentence. */
srv_http *srv_http_start(const srv_options *options, srv_sched *sched, struct srv_log *log,
                         struct srv_api_keys *keys, const srv_listen_socket *listening, char *why,
                         size_t n_why);
/* From now on /health fails and replies close their connections. */
void srv_http_drain(srv_http *server);
/* How many replies are not sent to the end yet. */
int64_t srv_http_busy(srv_http *server);
/* Closes all connections. NULL is fine. */
void srv_http_stop(srv_http *server);

#endif
