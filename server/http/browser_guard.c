/* browser_guard.c: see browser_guard.h. */
#include "http/browser_guard.h"

#include <microhttpd.h>
#include <string.h>
#include <strings.h>

/* Whether "host", "host:port" or "[host]:port" names this host. */
static bool names_host(const char *text, const char *host) {
    const bool has_brackets = text[0] == '[';
    text += has_brackets;
    const size_t n = has_brackets ? strcspn(text, "]") : strcspn(text, ":");
    return n == strlen(host) && strncasecmp(text, host, n) == 0;
}

static bool host_is_ours(const srv_request *request, const char *host) {
    return names_host(host, "localhost") || names_host(host, "127.0.0.1") ||
           names_host(host, "::1") || names_host(host, request->server->options->host);
}

static bool is_allowed_origin(const srv_request *request, const char *origin) {
    const char *allowed = request->server->options->cors_origin;
    return allowed && (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0);
}

/* An Origin is "http://host:port" or "null". */
static bool is_same_origin(const char *origin, const char *host) {
    const char *after_scheme = strstr(origin, "://");
    return host && after_scheme && strcasecmp(after_scheme + 3, host) == 0;
}

const char *srv_browser_refuses(const srv_request *request) {
    if (request->server->keys)
        return NULL;
    const char *host = srv_header(request, MHD_HTTP_HEADER_HOST);
    if (host && request->server->listening.is_loopback && !host_is_ours(request, host))
        return "The Host header names another host than this loopback server. Use localhost or "
               "127.0.0.1, or start the server with --api-keys.";
    const char *origin = srv_header(request, MHD_HTTP_HEADER_ORIGIN);
    if (origin && !is_same_origin(origin, host) && !is_allowed_origin(request, origin))
        return "Pages of this origin may not use the server. Start it with --cors ORIGIN, or with "
               "--api-keys.";
    return NULL;
}

/* ------------------------------------------------------------------ CORS */

void srv_cors_add(const srv_request *request, struct MHD_Response *response) {
    const char *allowed = request->server->options->cors_origin;
    if (!allowed)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", allowed);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (strcmp(allowed, "*") != 0)
        MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Origin");
}

bool srv_cors_is_preflight(const srv_request *request) {
    return request->server->options->cors_origin &&
           strcmp(request->method, MHD_HTTP_METHOD_OPTIONS) == 0;
}

/* A list of header names, so that it can be sent back. */
static bool is_list_of_names(const char *text) {
    return strlen(text) < 1024 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789-_, ") == strlen(text);
}

void srv_cors_add_preflight(const srv_request *request, struct MHD_Response *response,
                            const char *allow) {
    /* OpenAI's client for browsers sends headers of its own, and * does not cover Authorization:
     * so what is asked for is allowed. */
    const char *asked = srv_header(request, "Access-Control-Request-Headers");
    MHD_add_response_header(response, "Access-Control-Allow-Methods", allow);
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            asked && is_list_of_names(asked) ? asked
                                                             : "Authorization, Content-Type");
    MHD_add_response_header(response, "Access-Control-Max-Age", "600");
}
