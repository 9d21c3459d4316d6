/* reply_stream.c: the events of a job -> chunks, as server-sent events. */
#include "api/json_utf8.h"
#include "api/reply.h"

#include <stdlib.h>

/* Writes "data: {...}\n\n". Takes the reference. */
static void write_data(srv_text *out, json_t *root) {
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text)
        srv_text_print(out, "data: %s\n\n", text);
    else
        out->failed = true;
    free(text);
}

/* choices: the reference is taken. usage: likewise; NULL: a null if usage was asked for. */
static void write_chunk(const api_reply *r, srv_text *out, json_t *choices, json_t *usage) {
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", r->id, "object",
                  r->kind == API_CHAT ? "chat.completion.chunk" : "text_completion", "created",
                  (json_int_t)r->created, "model", r->model, "choices", choices);
    if (r->include_usage && json_object_set_new(root, "usage", usage ? usage : json_null()) != 0)
        out->failed = true;
    write_data(out, root);
}

/* body: the delta of a chat, or a text. finish: NULL: not yet. References are taken. */
static void write_choice(const api_reply *r, srv_text *out, int32_t index, json_t *body,
                         json_t *logprobs, const char *finish) {
    write_chunk(r, out,
                json_pack("[{s:i, s:o, s:o, s:s?}]", "index", (int)index,
                          r->kind == API_CHAT ? "delta" : "text", body, "logprobs", logprobs,
                          "finish_reason", finish),
                NULL);
}

static void write_content(api_reply *r, srv_text *out, const srv_event *event,
                          const srv_text *content) {
    reply_choice *choice = &r->choices[event->choice];
    json_t *tokens = r->n_logprobs >= 0 ? reply_tokens(event) : json_array();
    if (!tokens) {
        out->failed = true;
        return;
    }
    if (content->n == 0 && json_array_size(tokens) == 0) {
        json_decref(tokens);
        return;
    }
    json_t *text = api_json_utf8(content->bytes ? content->bytes : "", content->n);
    json_t *body = r->kind == API_CHAT ? json_pack("{s:o}", "content", text) : text;
    /* Without tokens of its own a chunk has no logprobs. */
    json_t *logprobs = reply_logprobs(r, choice, tokens);
    write_choice(r, out, event->choice, body, logprobs, NULL);
}

static void write_calls(api_reply *r, srv_text *out, int32_t index, const json_t *calls) {
    const int before = r->choices[index].n_calls - (int)json_array_size(calls);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = reply_call(r, index, before + (int)i, json_array_get(calls, i), true);
        write_choice(r, out, index, json_pack("{s:[o]}", "tool_calls", call), json_null(), NULL);
    }
}

static void write_event(api_reply *r, srv_text *out, const srv_event *event, json_t *calls) {
    reply_choice *choice = &r->choices[event->choice];
    srv_text content = {0};
    if (!choice->begun && r->kind == API_CHAT)
        write_choice(r, out, event->choice,
                     json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null(),
                     NULL);
    if (!reply_split(r, event, &content, calls))
        out->failed = true;
    choice->begun = true;
    choice->finish = event->finish;
    write_content(r, out, event, &content);
    write_calls(r, out, event->choice, calls);
    srv_text_free(&content);
    if (event->finish != SRV_RUNNING)
        write_choice(r, out, event->choice, r->kind == API_CHAT ? json_object() : json_string(""),
                     json_null(), reply_finish(r, choice));
}

char *api_reply_chunk(api_reply *r, const srv_event *event) {
    srv_text out = {0};
    if (event->choice >= 0 && event->choice < r->n_choices) {
        json_t *calls = json_array();
        if (!calls)
            return NULL;
        write_event(r, &out, event, calls);
        json_decref(calls);
    }
    return srv_text_take(&out);
}

char *api_reply_end(api_reply *r, const srv_usage *usage) {
    srv_text out = {0};
    if (r->include_usage)
        write_chunk(r, &out, json_array(), reply_usage(usage));
    srv_text_put(&out, "data: [DONE]\n\n");
    return srv_text_take(&out);
}
