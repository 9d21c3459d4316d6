/* stats_json.h: /stats, what the page at / shows. docs/SERVER.md lists the fields. */
#ifndef SERVER_HTTP_STATS_JSON_H
#define SERVER_HTTP_STATS_JSON_H

#include "http/http_server.h"

char *srv_stats_json(srv_http *server); /* malloced; NULL: out of memory */

#endif
