/* server.h: an OpenAI-compatible server over sessions of one model. What `quire serve` runs.
 *
 *   connection threads (http/)     read a request, parse it (api/), submit a job, write its events
 *   one scheduler thread (sched/)  owns the sessions and their pools; a step computes the rows of
 *                                  many jobs
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "quire_engine.h"

#include <stdio.h>

struct quire_store;

/* A cache that requests may choose: a codec and the session that was opened with it. */
typedef struct srv_cache {
    const char *kv; /* "k4v4" */
    quire_session *session;
} srv_cache;

typedef struct srv_options {
    const quire_model *model;
    const char *model_name;  /* what /v1/models lists */
    const srv_cache *caches; /* (n_caches) the first is the default */
    int32_t n_caches;
    struct quire_store *store; /* NULL: none */
    bool exact;                /* exact steps in decoding too */

    /* scheduling */
    int32_t max_running;  /* sequences computed at once. The sessions need slots for these, for
                             max_prefixes more, and for two */
    int32_t max_prefixes; /* finished texts whose pages stay for prompts that begin alike */
    int32_t max_queue;    /* jobs that wait; beyond that 429 */
    int32_t chunk;        /* most prefill rows of a step */
    const char *swap_dir; /* where sequences go when the pool is full: a directory */

    /* network */
    const char *host; /* default "127.0.0.1" */
    uint16_t port;    /* 0: any free one; the log names it */
    int32_t max_connections;
    size_t max_body; /* bytes */
    int32_t header_seconds, body_seconds,
        idle_seconds;        /* time-outs of reading and of a dead peer */
    int32_t max_choices;     /* of n */
    bool no_grammar;         /* refuse grammars, JSON formats and tool calls that are required */
    const char *api_keys;    /* a file with one key per line; NULL: no keys */
    bool isolate;            /* requests with different keys share no pages */
    const char *cors_origin; /* NULL: no CORS headers */
    const char *log_path;    /* NULL: stderr; SIGHUP opens it again */
    int32_t request_seconds; /* time-out of a whole request; 0: none */
    bool log_prompts;
} srv_options;

void srv_options_default(srv_options *options);
/* Serves until SIGTERM or SIGINT, then finishes what runs (a second signal stops at once). False:
 * it could not start; `why` is a sentence. */
bool srv_run(const srv_options *options, char *why, size_t n_why);
/* Writes a line into the log of the server that runs. False: none does. From any thread. */
bool srv_log_note(const char *line);

#endif
