/* routes.h: who may ask for what, and which function answers. */
#ifndef SERVER_HTTP_ROUTES_H
#define SERVER_HTTP_ROUTES_H

#include "http/http_server.h"

#include <microhttpd.h>

typedef struct srv_route {
    const char *path; /* ends with *: all paths that begin so */
    bool is_post;     /* else GET and HEAD */
    bool is_open;     /* needs no key */
    enum MHD_Result (*answer)(srv_request *request);
} srv_route;

/* Finds the route of a request whose headers have come, and whether to refuse it. */
void srv_route_choose(srv_request *request);
/* Sends the reply to a request that has come whole. */
enum MHD_Result srv_route_answer(srv_request *request);
/* The route's path for metrics; a fixed word if there is no route. */
const char *srv_route_name(const srv_request *request);

#endif
