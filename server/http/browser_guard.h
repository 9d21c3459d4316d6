/* browser_guard.h: pages of other sites in a user's browser, allowed (CORS) and not.
 *
 * A browser lets any page send requests to any server, and a server that needs no key would answer
 * them: a page could read its replies by giving its own host name the address 127.0.0.1 (DNS
 * rebinding), or waste its time with requests whose replies it cannot read. So a server without
 * keys checks where a request comes from. With keys there is nothing to check: a page does not
 * know them. */
#ifndef SERVER_HTTP_BROWSER_GUARD_H
#define SERVER_HTTP_BROWSER_GUARD_H

#include "http/http_server.h"

struct MHD_Response;

/* NULL: the request is allowed; else a sentence for the client. */
const char *srv_browser_refuses(const srv_request *request);
/* Adds the headers that let pages of options->cors_origin read this reply, if there is one. */
void srv_cors_add(const srv_request *request, struct MHD_Response *response);
/* Whether the request asks if another one would be allowed, and CORS is on. */
bool srv_cors_is_preflight(const srv_request *request);
/* Adds what answers a preflight. allow: "GET, HEAD". */
void srv_cors_add_preflight(const srv_request *request, struct MHD_Response *response,
                            const char *allow);

#endif
