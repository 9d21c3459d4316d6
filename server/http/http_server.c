/* http_server.c: the daemon, and a request from its headers to its line in the log. */
#include "http/http_server.h"

#include "http/access_log.h"
#include "http/connections.h"
#include "http/generation.h"
#include "http/http_reply.h"
#include "http/metrics.h"
#include "base/monotonic.h"
#include "http/peer.h"
#include "http/routes.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    /* Headers and the URL must fit; more is answered with 431 or 414. */
    CONNECTION_MEMORY = 64 * 1024,
    /* A refused body is read up to so many times its limit, so that the client gets to read why. */
    MAX_DISCARDED = 8,
    /* Bodies of so many largest requests may be in memory at once. */
    BODIES_AT_ONCE = 16,
    /* So many connections more are accepted to be told that there are too many. */
    SPARE_CONNECTIONS = 32,
    /* How much later than the clock of a body libmicrohttpd closes a silent connection: the clock
     * says 408 first. */
    AFTER_BODY_SECONDS = 5
};

/* ------------------------------------------------------------------ where a request ends */

/* What headers say about it. A proxy in front of this server must come to the same end, or the rest
 * of one client's request is read as a request of another (RFC 9112, sections 6 and 11.2).
 * libmicrohttpd takes the first of two lengths, prefers chunks to a length, and waits forever for
 * an encoding that it does not know; its MHD_OPTION_STRICT_FOR_CLIENT looks for a Host alone. */
typedef struct framing {
    int n_hosts, n_lengths, n_encodings;
    bool is_chunked; /* the last encoding is what libmicrohttpd knows */
    bool is_named_badly;
} framing;

/* RFC 9110, section 5.6.2. */
static bool is_token(const char *text) {
    const size_t n = strspn(text, "!#$%&'*+-.^_`|~0123456789"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
    return n > 0 && text[n] == 0;
}

static enum MHD_Result add_header(void *user, enum MHD_ValueKind kind, const char *name,
                                  const char *value) {
    (void)kind;
    framing *f = user;
    /* "Content-Length : 9" has the name "Content-Length " here, which is no length to
     * libmicrohttpd, but may be one to a proxy. */
    f->is_named_badly |= !is_token(name);
    f->n_hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    f->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        f->n_encodings++;
        f->is_chunked = value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

/* Why the headers are refused; NULL: they are not. */
static const char *misframed(struct MHD_Connection *connection, const char *version) {
    const bool is_old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    framing f = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &f);
    if (f.is_named_badly)
        return "The name of a header has a blank or another character that may not be there.";
    if (f.n_lengths > 1)
        return "The request has more than one Content-Length.";
    if (f.n_lengths > 0 && f.n_encodings > 0)
        return "The request has both Content-Length and Transfer-Encoding.";
    if (f.n_encodings > 0 && is_old)
        return "HTTP/1.0 has no Transfer-Encoding.";
    if (f.n_encodings > 1 || (f.n_encodings == 1 && !f.is_chunked))
        return "The only Transfer-Encoding that is known here is 'chunked'.";
    if (f.n_hosts == 0 && !is_old)
        return "HTTP/1.1 needs a Host header.";
    return f.n_hosts > 1 ? "The request has more than one Host header." : NULL;
}

/* ------------------------------------------------------------------ a request's life */

static srv_connection *clock_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

const char *srv_header(const srv_request *request, const char *name) {
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

static void refuse_body(srv_request *request, srv_body_status status) {
    const size_t limit = request->server->bodies.max_body;
    request->is_refused = true;
    if (status == SRV_BODY_TOO_LARGE) {
        request->refusal = srv_error(413, "The body is larger than %zu bytes.", limit);
    } else {
        request->refusal = srv_error(503, "The server has no room for this request now.");
        request->extra_name = MHD_HTTP_HEADER_RETRY_AFTER;
        request->extra_value = "2";
    }
    srv_body_free(&request->body);
}

/* /health and the page are answered in any case. */
static void refuse_crowd(srv_request *request) {
    const int64_t open = srv_connections_count(request->server->connections).open;
    if (open <= request->server->options->max_connections)
        return;
    request->closes = true;
    if (request->is_refused || request->route->is_open)
        return;
    request->is_refused = true;
    request->refusal = srv_error(503, "The server has too many connections now.");
    request->extra_name = MHD_HTTP_HEADER_RETRY_AFTER;
    request->extra_value = "2";
}

/* The length that the client announced; 0: none, or chunks. */
static uint64_t announced(const srv_request *request) {
    const char *text = srv_header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return text ? strtoull(text, NULL, 10) : 0;
}

static uint64_t discard_limit(const srv_request *request) {
    return (uint64_t)request->server->bodies.max_body * MAX_DISCARDED;
}

/* libmicrohttpd closes a connection that is silent for so long. Not while a body comes: that has a
 * time of its own, and who runs out of it is told. */
static void set_idle_limit(const srv_request *request, bool has_body_to_come) {
    const srv_options *o = request->server->options;
    const unsigned idle = (unsigned)o->idle_seconds;
    const unsigned body = (unsigned)o->body_seconds + AFTER_BODY_SECONDS;
    MHD_set_connection_option(request->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              has_body_to_come && body > idle ? body : idle);
}

static enum MHD_Result answer(srv_request *request) {
    set_idle_limit(request, false);
    srv_connection_enter(request->clock, SRV_ANSWERING);
    return srv_route_answer(request);
}

/* Nothing else counts then, and what follows the headers is not read: nobody knows what it is. */
static void refuse_framing(srv_request *request, const char *why) {
    request->is_refused = true;
    request->closes = true;
    request->refusal = srv_error(400, "%s", why);
    request->extra_name = request->extra_value = NULL;
}

/* The headers are there. */
static enum MHD_Result begin(srv_http *server, struct MHD_Connection *connection,
                             const char *method, const char *path, const char *version,
                             void **context) {
    srv_request *request = calloc(1, sizeof *request);
    srv_connection *clock = clock_of(connection);
    if (!request || !clock) {
        free(request);
        return MHD_NO;
    }
    *request = (srv_request){.server = server,
                             .connection = connection,
                             .clock = clock,
                             .method = method,
                             .path = path,
                             .began = srv_monotonic()};
    *context = request;
    srv_body_init(&request->body, &server->bodies);
    srv_connection_enter(clock, SRV_BODY);
    set_idle_limit(request, true);
    srv_route_choose(request);
    refuse_crowd(request);
    const char *why = misframed(connection, version);
    if (why) {
        refuse_framing(request, why);
        return answer(request);
    }
    if (!request->is_refused && announced(request) > server->bodies.max_body)
        refuse_body(request, SRV_BODY_TOO_LARGE);
    if (!request->is_refused)
        return MHD_YES;
    /* A client that asks before it sends its body is told at once, as is one whose body is too
     * large even to be read and thrown away; others when their body has come. */
    if (!srv_header(request, MHD_HTTP_HEADER_EXPECT) &&
        announced(request) <= discard_limit(request))
        return MHD_YES;
    return answer(request);
}

/* A piece of the body. */
static enum MHD_Result go_on(srv_request *request, const char *bytes, size_t *n) {
    request->body.n_seen += *n;
    if (!request->is_refused) {
        const srv_body_status status = srv_body_add(&request->body, bytes, *n);
        if (status != SRV_BODY_OK)
            refuse_body(request, status);
    }
    if (request->body.n_seen > discard_limit(request)) {
        request->status = request->refusal.status;
        return MHD_NO;
    }
    *n = 0;
    return MHD_YES;
}

/* The whole request is there. */
static enum MHD_Result finish(srv_request *request) {
    request->arrived = srv_monotonic();
    return answer(request);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *bytes,
                                  size_t *n_bytes, void **context) {
    srv_request *request = *context;
    if (!request)
        return begin(user, connection, method, path, version, context);
    return *n_bytes ? go_on(request, bytes, n_bytes) : finish(request);
}

/* ------------------------------------------------------------------ its end */

static void log_request(const srv_request *request, double seconds) {
    char peer[80], method[64], path[512], tokens[160] = "";
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    srv_peer_name(info ? info->client_addr : NULL, peer, sizeof peer);
    srv_log_escape(request->method, method, sizeof method);
    srv_log_escape(request->path, path, sizeof path);
    const srv_generation *g = request->generation;
    if (g && g->has_token) {
        const srv_usage usage = srv_job_usage(g->job);
        snprintf(tokens, sizeof tokens, " prompt=%d cached=%d generated=%d queue=%.0fms",
                 usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
                 1e3 * usage.queue_seconds);
    }
    srv_log_line(request->server->log, "%s \"%s %s\" %d %lluB %.0fms%s%s%s", peer, method, path,
                 request->status, (unsigned long long)request->reply_bytes, 1e3 * seconds, tokens,
                 request->id[0] ? " " : "", request->id);
}

/* What a client has not been told, because it left or was cut off, is logged as such. */
static int final_status(const srv_request *request, enum MHD_RequestTerminationCode how) {
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        return request->status;
    return request->status == 0 || request->status == 200 ? SRV_CLIENT_LEFT : request->status;
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode how) {
    (void)user;
    (void)connection;
    srv_request *request = *context;
    if (!request)
        return;
    *context = NULL;
    const double seconds = srv_monotonic() - request->began;
    request->status = final_status(request, how);
    srv_metrics_request(request->server->metrics, srv_route_name(request), request->status,
                        seconds);
    log_request(request, seconds);
    srv_connection_enter(request->clock, SRV_KEPT);
    srv_generation_free(request->generation);
    srv_body_free(&request->body);
    free(request);
}

/* ------------------------------------------------------------------ connections */

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what) {
    srv_http *server = user;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? srv_connection_add(server->connections, info->connect_fd) : NULL;
    } else if (*context) {
        srv_connection_remove(*context);
        *context = NULL;
    }
}

/* The request line is there. */
static void *on_request_line(void *user, const char *line, struct MHD_Connection *connection) {
    (void)user;
    (void)line;
    srv_connection *clock = clock_of(connection);
    if (clock)
        srv_connection_enter(clock, SRV_HEADERS);
    return NULL;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes %XX in place. %00 stays as it is: it would end the path here, but not in a proxy that
 * decides what to let through. */
static size_t unescape(void *user, struct MHD_Connection *connection, char *text) {
    (void)user;
    (void)connection;
    char *out = text;
    for (const char *p = text; *p; out++) {
        const int high = *p == '%' ? hex_digit(p[1]) : -1;
        const int low = high >= 0 ? hex_digit(p[2]) : -1;
        const bool is_escape = low >= 0 && 16 * high + low != 0;
        *out = is_escape ? (char)(16 * high + low) : *p;
        p += is_escape ? 3 : 1;
    }
    *out = 0;
    return (size_t)(out - text);
}

/* What libmicrohttpd has to say, such as why it refused a malformed request. A client that left is
 * no news: the line of its request says so. */
static void on_message(void *user, const char *format, va_list args) {
    srv_http *server = user;
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    char *page = strstr(text, " ('<html");
    if (page) /* the whole reply */
        strcpy(page, ")");
    if (!strstr(text, "pplication reported internal error") && !strstr(text, "application error"))
        srv_log_line(server->log, "http: %s", text);
}

/* ------------------------------------------------------------------ start and stop */

static void free_server(srv_http *server) {
    srv_connections_stop(server->connections);
    srv_metrics_free(server->metrics);
    free(server);
}

srv_http *srv_http_start(const srv_options *options, srv_sched *sched, srv_log *log,
                         struct srv_api_keys *keys, const srv_listen_socket *listening, char *why,
                         size_t n_why) {
    srv_http *server = calloc(1, sizeof *server);
    if (!server) {
        close(listening->fd);
        snprintf(why, n_why, "out of memory");
        return NULL;
    }
    server->options = options;
    server->sched = sched;
    server->log = log;
    server->keys = keys;
    server->listening = *listening;
    server->limits = (api_limits){.model = options->model,
                                  .caches = options->caches,
                                  .n_caches = options->n_caches,
                                  .max_choices = options->max_choices,
                                  .no_grammar = options->no_grammar};
    server->bodies.max_body = options->max_body;
    server->bodies.max_all = options->max_body * BODIES_AT_ONCE;
    server->started = (int64_t)time(NULL);
    server->started_monotonic = srv_monotonic();
    server->metrics = srv_metrics_create();
    server->connections = srv_connections_start(options->header_seconds, options->body_seconds,
                                                options->idle_seconds);
    if (!server->metrics || !server->connections) {
        close(listening->fd);
        free_server(server);
        snprintf(why, n_why, "out of memory");
        return NULL;
    }
    /* ITC: a connection that ends is cleaned up at once, not when the next one comes. */
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                           MHD_USE_AUTO | MHD_USE_ITC | MHD_USE_ERROR_LOG |
                           (listening->is_ipv6 ? MHD_USE_IPv6 : 0);
    server->daemon = MHD_start_daemon(
        flags, listening->port, NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER,
        on_message, server, MHD_OPTION_LISTEN_SOCKET, listening->fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)options->max_connections + SPARE_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)options->idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_URI_LOG_CALLBACK,
        on_request_line, server, MHD_OPTION_UNESCAPE_CALLBACK, unescape, server, MHD_OPTION_END);
    if (!server->daemon) {
        close(listening->fd);
        free_server(server);
        snprintf(why, n_why, "libmicrohttpd could not start: see the log");
        return NULL;
    }
    return server;
}

void srv_http_drain(srv_http *server) { atomic_store(&server->is_draining, true); }

int64_t srv_http_busy(srv_http *server) {
    return srv_connections_count(server->connections).answering;
}

void srv_http_stop(srv_http *server) {
    if (!server)
        return;
    MHD_stop_daemon(server->daemon);
    free_server(server);
}
