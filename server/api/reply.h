/* reply.h: what the parts of a reply share. */
#ifndef SERVER_API_REPLY_H
#define SERVER_API_REPLY_H

#include "api/api.h"
#include "api/call_splitter.h"

#include <jansson.h>

typedef struct reply_choice {
    bool begun;        /* the first chunk was written */
    srv_finish finish; /* of the last event */
    srv_text text;     /* not streaming: all content */
    json_t *calls;     /* not streaming: array of tool calls */
    int n_calls;
    json_t *logprobs; /* not streaming: array of tokens, as reply_logprobs.c makes them */
    size_t n_chars;   /* of all tokens so far, for text_offset */
    api_splitter splitter;
} reply_choice;

struct api_reply {
    api_kind kind;
    bool include_usage, tools, one_call;
    int32_t n_choices, n_logprobs;
    char *id, *model;
    int64_t created;
    char *echo; /* the prompt, if it is to be repeated; else NULL */
    reply_choice *choices;
};

/* The array entries of an event's tokens. NULL: out of memory. */
json_t *reply_tokens(const srv_event *event);
/* The `logprobs` of a choice from such an array, in the form of its kind; takes the reference. Null
 * if they were not asked for. */
json_t *reply_logprobs(const api_reply *reply, reply_choice *choice, json_t *tokens);
json_t *reply_usage(const srv_usage *usage);
/* "stop", "length", "tool_calls". */
const char *reply_finish(const api_reply *reply, const reply_choice *choice);
/* {"name", "arguments"} -> OpenAI's form. */
json_t *reply_call(const api_reply *reply, int32_t choice, int number, const json_t *call,
                   bool in_delta);
/* Content and calls that an event adds. False: out of memory. */
bool reply_split(api_reply *reply, const srv_event *event, srv_text *content, json_t *calls);

#endif
