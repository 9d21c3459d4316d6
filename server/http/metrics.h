/* metrics.h: what the HTTP layer counts, and /metrics in Prometheus' text format. */
#ifndef SERVER_HTTP_METRICS_H
#define SERVER_HTTP_METRICS_H

#include "http/http_server.h"

typedef struct srv_metrics srv_metrics;

/* NULL: out of memory. */
srv_metrics *srv_metrics_create(void);
void srv_metrics_free(srv_metrics *metrics); /* NULL is fine */

/* route: the pattern of a route, never what a client sent: the number of series is bounded. */
void srv_metrics_request(srv_metrics *metrics, const char *route, int status, double seconds);
void srv_metrics_first_token(srv_metrics *metrics, double seconds);

/* malloced; NULL: out of memory. */
char *srv_metrics_text(srv_http *server, size_t *n_text);

#endif
