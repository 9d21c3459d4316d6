/* event_stream.c: see event_stream.h. */
#include "http/event_stream.h"

#include "http/http_reply.h"
#include "base/monotonic.h"

#include <stdlib.h>
#include <string.h>

enum {
    COMMENT_SECONDS = 10, /* without an event a comment is sent, which shows a dead connection */
    BLOCK_BYTES = 16384   /* of events that are there at once, sent together */
};

/* Less than what libmicrohttpd takes for a dead connection. */
static double comment_seconds(const srv_generation *g) {
    const double half = 0.5 * g->request->server->options->idle_seconds;
    return half > 0 && half < COMMENT_SECONDS ? half : COMMENT_SECONDS;
}

/* ------------------------------------------------------------------ what is to be sent */

/* Appends a malloced text to `pending`, and frees it. NULL: out of memory. */
static bool append(srv_generation *g, char *text) {
    if (!text)
        return false;
    const size_t n = strlen(text);
    char *pending = realloc(g->pending, g->n_pending + n + 1);
    if (pending) {
        memcpy(pending + g->n_pending, text, n + 1);
        g->pending = pending;
        g->n_pending += n;
    }
    free(text);
    return pending != NULL;
}

static bool append_end(srv_generation *g) {
    g->is_over = true;
    const srv_usage usage = srv_job_usage(g->job);
    return append(g, api_reply_end(g->reply, &usage));
}

/* The reply has begun, so that its status cannot say it. */
static bool append_error(srv_generation *g, const api_error *error) {
    g->is_over = true;
    return append(g, strdup("data: ")) && append(g, api_error_json(error)) &&
           append(g, strdup("\n\ndata: [DONE]\n\n"));
}

static bool append_event(srv_generation *g, srv_event *event) {
    api_error error;
    const bool ok = srv_generation_failed(g, event, &error)
                        ? append_error(g, &error)
                        : append(g, api_reply_chunk(g->reply, event));
    srv_event_free(event);
    return ok;
}

/* Fills `pending`; waits for an event if there is none. False: the connection must be closed. */
static bool refill(srv_generation *g) {
    g->n_pending = g->sent = 0;
    if (g->first) {
        srv_event *event = g->first;
        g->first = NULL;
        if (!append_event(g, event))
            return false;
    }
    const double deadline = srv_monotonic() + comment_seconds(g);
    while (!g->is_over && g->n_pending < BLOCK_BYTES) {
        srv_event *event = NULL;
        switch (srv_generation_next(g, g->n_pending ? 0 : deadline, &event)) {
        case SRV_NEXT_CLIENT_LEFT:
            g->request->status = SRV_CLIENT_LEFT;
            return false;
        case SRV_NEXT_DONE:
            return append_end(g);
        case SRV_NEXT_NOTHING:
            return g->n_pending > 0 || append(g, strdup(": waiting\n\n"));
        case SRV_NEXT_EVENT:
            if (!append_event(g, event))
                return false;
        }
    }
    return true;
}

/* libmicrohttpd asks for the next bytes of the reply. */
static ssize_t read_stream(void *user, uint64_t position, char *out, size_t n_out) {
    (void)position;
    srv_generation *g = user;
    if (g->sent == g->n_pending) {
        if (g->is_over)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!refill(g))
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = g->n_pending - g->sent;
    if (n > n_out)
        n = n_out;
    memcpy(out, g->pending + g->sent, n);
    g->sent += n;
    g->request->reply_bytes += n;
    return (ssize_t)n;
}

/* ------------------------------------------------------------------ beginning */

enum MHD_Result srv_event_stream(srv_generation *g) {
    api_error error;
    switch (srv_generation_next(g, srv_monotonic() + comment_seconds(g), &g->first)) {
    case SRV_NEXT_CLIENT_LEFT:
        g->request->status = SRV_CLIENT_LEFT;
        return MHD_NO;
    case SRV_NEXT_EVENT:
        if (srv_generation_failed(g, g->first, &error))
            return srv_reply_error(g->request, &error);
        break;
    default:
        break;
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, g, NULL);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* nginx passes events on */
    return srv_reply(g->request, 200, response);
}
