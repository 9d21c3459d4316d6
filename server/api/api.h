/* api.h: OpenAI's requests and replies as JSON. Nothing here knows of sockets or of the scheduler's
 * threads, so that fuzzers can call it. */
#ifndef SERVER_API_API_H
#define SERVER_API_API_H

#include "sched/sched.h"

/* ------------------------------------------------------------------ requests */

typedef struct api_error {
    int status;        /* HTTP: 400, 413 .. */
    const char *type;  /* "invalid_request_error" */
    const char *code;  /* NULL, or e.g. "context_length_exceeded" */
    char param[64];    /* "" or the field at fault */
    char message[512]; /* a sentence */
} api_error;

/* What a request may ask for, as the server was started. */
typedef struct api_limits {
    const quire_model *model;
    const srv_cache *caches;
    int32_t n_caches;
    int32_t max_choices;
    bool no_grammar; /* requests that need a grammar are refused */
} api_limits;

typedef enum api_kind { API_CHAT, API_COMPLETION } api_kind;

/* A parsed request: what to compute, and how to answer. */
typedef struct api_request {
    api_kind kind;
    srv_work work; /* points into this request */
    bool stream, include_usage, echo;
    bool tools;        /* the reply may be tool calls */
    bool one_call;     /* one at most */
    char *prompt_text; /* for `echo` and for logs */
    void *owned;       /* private: what `work` points to */
} api_request;

/* Parses a body and tokenizes its prompt. NULL: *error says what is wrong. */
api_request *api_request_parse(api_kind kind, const char *body, size_t n_body,
                               const api_limits *limits, api_error *error);
void api_request_free(api_request *request);

/* {"content": "...", "add_special": false} -> {"tokens": [...]}. malloced JSON; NULL: *error. */
char *api_tokenize(const char *body, size_t n_body, const quire_model *model, api_error *error);

/* ------------------------------------------------------------------ replies */

typedef struct api_reply api_reply; /* collects the events of a job */

/* id: "chatcmpl-..."; created: seconds since 1970. */
api_reply *api_reply_begin(const api_request *request, const char *id, int64_t created,
                           const char *model_name);
void api_reply_free(api_reply *reply);
/* Streaming: the JSON of the chunks that this event gives, each as "data: {...}\n\n", in one
 * malloced string; "" if there is nothing to say yet. Not for SRV_FAILED and SRV_TIMED_OUT. */
char *api_reply_chunk(api_reply *reply, const srv_event *event);
/* Streaming, after the last event: the usage chunk if it was asked for, and
 * "data: [DONE]\n\n". */
char *api_reply_end(api_reply *reply, const srv_usage *usage);
/* Not streaming: takes in an event. False: out of memory. */
bool api_reply_add(api_reply *reply, const srv_event *event);
/* Not streaming, after the last event: the whole reply. malloced. */
char *api_reply_json(api_reply *reply, const srv_usage *usage);

/* {"error": {...}}, malloced. */
char *api_error_json(const api_error *error);
/* The body of /v1/models, malloced. */
char *api_models_json(const char *model_name, int64_t created, const api_limits *limits);

#endif
