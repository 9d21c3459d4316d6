/* page_route.h: the page at / and its files, which are part of the program. */
#ifndef SERVER_HTTP_PAGE_ROUTE_H
#define SERVER_HTTP_PAGE_ROUTE_H

#include "http/http_server.h"

#include <microhttpd.h>

bool srv_page_has(const char *path); /* "/" or "/index.html" */
enum MHD_Result srv_page_answer(srv_request *request);

#endif
