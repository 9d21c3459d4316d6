/* request_body.h: the body of a request, collected piece by piece within limits. */
#ifndef SERVER_HTTP_REQUEST_BODY_H
#define SERVER_HTTP_REQUEST_BODY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What all bodies together may take, so that many connections cannot fill the memory. */
typedef struct srv_body_budget {
    size_t max_body; /* of one */
    size_t max_all;
    _Atomic size_t used;
} srv_body_budget;

typedef struct srv_body {
    srv_body_budget *budget;
    char *bytes; /* (n) and a 0 */
    size_t n, capacity;
    uint64_t n_seen; /* of the request, also if they were not kept */
} srv_body;

typedef enum srv_body_status {
    SRV_BODY_OK,
    SRV_BODY_TOO_LARGE, /* more than max_body */
    SRV_BODY_NO_ROOM    /* other bodies take too much now */
} srv_body_status;

void srv_body_init(srv_body *body, srv_body_budget *budget);
/* Not OK: nothing was added. */
srv_body_status srv_body_add(srv_body *body, const char *bytes, size_t n);
void srv_body_free(srv_body *body); /* gives its room back; may be called again */

#endif
