/* generation.h: chat and completions: a request becomes a job, and the job's events its reply. */
#ifndef SERVER_HTTP_GENERATION_H
#define SERVER_HTTP_GENERATION_H

#include "http/http_server.h"

#include <microhttpd.h>

typedef struct srv_generation {
    srv_request *request;
    api_request *asked;
    api_reply *reply;
    srv_job *job;
    bool has_token; /* a first event was read */
    double looked;  /* when the client's socket was last looked at */

    /* event_stream.c: what is to be sent next */
    srv_event *first; /* read before the reply began */
    char *pending;
    size_t n_pending, sent;
    bool is_over; /* `pending` is the last */
} srv_generation;

/* Answers a request for text, streaming or not. */
enum MHD_Result srv_generate(srv_request *request, api_kind kind);
/* Gives the job back, which cancels it if it runs. NULL is fine. */
void srv_generation_free(srv_generation *generation);

typedef enum srv_next {
    SRV_NEXT_EVENT,
    SRV_NEXT_DONE,
    SRV_NEXT_NOTHING, /* until `deadline` */
    SRV_NEXT_CLIENT_LEFT
} srv_next;

/* The next event of the job; watches the client meanwhile. deadline: of srv_monotonic. */
srv_next srv_generation_next(srv_generation *generation, double deadline, srv_event **event);
/* Whether an event says that the job cannot go on; *error is what to tell the client. */
bool srv_generation_failed(srv_generation *generation, const srv_event *event, api_error *error);

#endif
