/* generation.c: see generation.h. */
#include "http/generation.h"

#include "http/access_log.h"
#include "http/connections.h"
#include "http/event_stream.h"
#include "http/http_reply.h"
#include "http/metrics.h"
#include "base/monotonic.h"
#include "http/peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A client that leaves is noticed after so long. */
enum { LOOK_MILLISECONDS = 250 };

/* ------------------------------------------------------------------ events */

static bool client_left(srv_generation *g) {
    const double now = srv_monotonic();
    if (now - g->looked < 1e-3 * LOOK_MILLISECONDS)
        return false;
    g->looked = now;
    return srv_peer_is_gone(srv_connection_socket(g->request->clock));
}

srv_next srv_generation_next(srv_generation *g, double deadline, srv_event **event) {
    for (;;) {
        const double left = deadline - srv_monotonic();
        const int32_t wait = left <= 0                         ? 0
                             : left < 1e-3 * LOOK_MILLISECONDS ? (int32_t)ceil(1e3 * left)
                                                               : LOOK_MILLISECONDS;
        const srv_wait got = srv_job_next(g->job, wait, event);
        if (got == SRV_DONE)
            return SRV_NEXT_DONE;
        if (client_left(g)) {
            if (got == SRV_EVENT)
                srv_event_free(*event);
            *event = NULL;
            return SRV_NEXT_CLIENT_LEFT;
        }
        if (got == SRV_EVENT) {
            if (!g->has_token && (*event)->finish < SRV_FAILED)
                srv_metrics_first_token(g->request->server->metrics,
                                        srv_monotonic() - g->request->arrived);
            g->has_token = true;
            return SRV_NEXT_EVENT;
        }
        if (srv_monotonic() >= deadline)
            return SRV_NEXT_NOTHING;
    }
}

bool srv_generation_failed(srv_generation *g, const srv_event *event, api_error *error) {
    if (event->finish == SRV_FAILED) {
        const char *why = srv_job_error(g->job);
        const int status = atomic_load(&g->request->server->is_draining) ? 503 : 500;
        *error = srv_error(status, "%s", why && *why ? why : "The text could not be generated.");
    } else if (event->finish == SRV_TIMED_OUT) {
        *error = srv_error(504, "The text took longer than the time limit of the request.");
    }
    return event->finish == SRV_FAILED || event->finish == SRV_TIMED_OUT;
}

/* ------------------------------------------------------------------ without streaming */

static enum MHD_Result collect(srv_generation *g) {
    for (;;) {
        srv_event *event = NULL;
        const srv_next next = srv_generation_next(g, HUGE_VAL, &event);
        if (next == SRV_NEXT_CLIENT_LEFT) {
            g->request->status = SRV_CLIENT_LEFT;
            return MHD_NO;
        }
        if (next == SRV_NEXT_DONE)
            break;
        if (next != SRV_NEXT_EVENT)
            continue;
        api_error error;
        const bool failed = srv_generation_failed(g, event, &error);
        const bool added = failed || api_reply_add(g->reply, event);
        srv_event_free(event);
        if (failed)
            return srv_reply_error(g->request, &error);
        if (!added)
            return srv_reply_json(g->request, 500, NULL);
    }
    const srv_usage usage = srv_job_usage(g->job);
    return srv_reply_json(g->request, 200, api_reply_json(g->reply, &usage));
}

/* ------------------------------------------------------------------ beginning and end */

static enum MHD_Result refuse(srv_request *request, srv_refusal refusal, const char *why) {
    static const int status[] = {[SRV_TOO_LONG] = 413,
                                 [SRV_QUEUE_FULL] = 429,
                                 [SRV_INVALID] = 400,
                                 [SRV_SHUTTING_DOWN] = 503,
                                 [SRV_NO_MEMORY] = 500};
    api_error error = srv_error(status[refusal], "%s", why);
    if (refusal == SRV_TOO_LONG)
        error.code = "context_length_exceeded";
    if (refusal == SRV_QUEUE_FULL || refusal == SRV_SHUTTING_DOWN) {
        request->extra_name = MHD_HTTP_HEADER_RETRY_AFTER;
        request->extra_value = refusal == SRV_QUEUE_FULL ? "2" : "10";
    }
    return srv_reply_error(request, &error);
}

/* "chatcmpl-" and 24 hexadecimal digits. */
static void make_id(api_kind kind, char *id, size_t n_id) {
    unsigned char random[12] = {0};
    FILE *source = fopen("/dev/urandom", "r");
    if (source) {
        (void)!fread(random, sizeof random, 1, source);
        fclose(source);
    }
    int n = snprintf(id, n_id, kind == API_CHAT ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(id + n, n_id - (size_t)n, "%02x", random[i]);
}

static void log_prompt(const srv_request *request, const api_request *asked) {
    char before[96];
    snprintf(before, sizeof before, "prompt %s", request->id);
    if (request->server->options->log_prompts && asked->prompt_text)
        srv_log_quoted(request->server->log, before, asked->prompt_text);
}

enum MHD_Result srv_generate(srv_request *request, api_kind kind) {
    srv_http *server = request->server;
    make_id(kind, request->id, sizeof request->id);
    srv_generation *g = calloc(1, sizeof *g);
    if (!g)
        return srv_reply_json(request, 500, NULL);
    g->request = request;
    request->generation = g; /* freed with the request */

    api_error error = {0};
    g->asked = api_request_parse(kind, request->body.bytes ? request->body.bytes : "",
                                 request->body.n, &server->limits, &error);
    srv_body_free(&request->body); /* it may be large, and the job may take long */
    if (!g->asked)
        return srv_reply_error(request, &error);
    log_prompt(request, g->asked);
    g->reply =
        api_reply_begin(g->asked, request->id, (int64_t)time(NULL), server->options->model_name);
    if (!g->reply)
        return srv_reply_json(request, 500, NULL);

    g->asked->work.seconds = server->options->request_seconds;
    if (server->options->isolate)
        g->asked->work.salt = srv_header(request, MHD_HTTP_HEADER_AUTHORIZATION);
    char why[256] = "";
    const srv_refusal refusal =
        srv_sched_submit(server->sched, &g->asked->work, &g->job, why, sizeof why);
    if (refusal != SRV_ACCEPTED) {
        g->job = NULL;
        return refuse(request, refusal, why);
    }
    const bool stream = g->asked->stream;
    api_request_free(g->asked); /* the job and the reply have their copies; it may be large, too */
    g->asked = NULL;
    return stream ? srv_event_stream(g) : collect(g);
}

void srv_generation_free(srv_generation *g) {
    if (!g)
        return;
    if (g->first)
        srv_event_free(g->first);
    if (g->job)
        srv_job_release(g->job);
    api_reply_free(g->reply);
    api_request_free(g->asked);
    free(g->pending);
    free(g);
}
