/* reply.c: the events of a job -> one JSON reply. */
#include "api/reply.h"
#include "api/json_utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ begin, end */

static char *copy(const char *text) {
    char *made = malloc(strlen(text) + 1);
    return made ? strcpy(made, text) : NULL;
}

static bool fill(api_reply *r, const api_request *request, const char *id, const char *model) {
    r->id = copy(id);
    r->model = copy(model);
    r->choices = calloc((size_t)r->n_choices, sizeof *r->choices);
    if (request->echo && request->prompt_text)
        r->echo = copy(request->prompt_text);
    return r->id && r->model && r->choices && (r->echo || !request->echo || !request->prompt_text);
}

api_reply *api_reply_begin(const api_request *request, const char *id, int64_t created,
                           const char *model_name) {
    api_reply *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->kind = request->kind;
    r->include_usage = request->include_usage;
    r->tools = request->tools;
    r->one_call = request->one_call;
    r->n_choices = request->work.n_choices;
    r->n_logprobs = request->work.n_logprobs;
    r->created = created;
    if (!fill(r, request, id, model_name)) {
        api_reply_free(r);
        return NULL;
    }
    return r;
}

void api_reply_free(api_reply *r) {
    if (!r)
        return;
    for (int32_t i = 0; r->choices && i < r->n_choices; i++) {
        srv_text_free(&r->choices[i].text);
        json_decref(r->choices[i].calls);
        json_decref(r->choices[i].logprobs);
        api_splitter_free(&r->choices[i].splitter);
    }
    free(r->choices);
    free(r->id);
    free(r->model);
    free(r->echo);
    free(r);
}

/* ------------------------------------------------------------------ parts */

json_t *reply_usage(const srv_usage *u) {
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", (int)u->prompt_tokens,
                     "completion_tokens", (int)u->completion_tokens, "total_tokens",
                     (int)(u->prompt_tokens + u->completion_tokens), "prompt_tokens_details",
                     "cached_tokens", (int)u->cached_tokens);
}

const char *reply_finish(const api_reply *r, const reply_choice *choice) {
    if (choice->finish != SRV_STOP)
        return "length";
    return r->tools && choice->n_calls > 0 ? "tool_calls" : "stop";
}

json_t *reply_call(const api_reply *r, int32_t choice, int number, const json_t *call,
                   bool in_delta) {
    char id[128];
    const char *unique = strchr(r->id, '-');
    snprintf(id, sizeof id, "call_%.80s_%d_%d", unique ? unique + 1 : r->id, (int)choice, number);
    json_t *made = in_delta ? json_pack("{s:i}", "index", number) : json_object();
    json_object_set_new(made, "id", json_string(id));
    json_object_set_new(made, "type", json_string("function"));
    json_object_set(made, "function", (json_t *)call);
    return made;
}

bool reply_split(api_reply *r, const srv_event *event, srv_text *content, json_t *calls) {
    reply_choice *choice = &r->choices[event->choice];
    if (r->echo && !choice->begun)
        srv_text_put(content, r->echo);
    if (!r->tools) {
        srv_text_add(content, event->text ? event->text : "", event->n_text);
        return !content->failed;
    }
    const size_t n_before = json_array_size(calls);
    const bool good = api_split(&choice->splitter, event->text ? event->text : "", event->n_text,
                                event->finish, content, calls);
    while (r->one_call && json_array_size(calls) > n_before &&
           choice->n_calls + (int)(json_array_size(calls) - n_before) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
    choice->n_calls += (int)(json_array_size(calls) - n_before);
    return good;
}

/* ------------------------------------------------------------------ the whole reply */

bool api_reply_add(api_reply *r, const srv_event *event) {
    if (event->choice < 0 || event->choice >= r->n_choices)
        return true;
    reply_choice *choice = &r->choices[event->choice];
    if (!choice->calls)
        choice->calls = json_array();
    if (!choice->logprobs)
        choice->logprobs = json_array();
    if (!choice->calls || !choice->logprobs || !reply_split(r, event, &choice->text, choice->calls))
        return false;
    choice->begun = true;
    choice->finish = event->finish;
    if (r->n_logprobs < 0)
        return true;
    json_t *tokens = reply_tokens(event);
    const bool good = tokens && json_array_extend(choice->logprobs, tokens) == 0;
    json_decref(tokens);
    return good;
}

static json_t *message(const api_reply *r, int32_t index) {
    const reply_choice *choice = &r->choices[index];
    const bool empty = choice->n_calls > 0 && choice->text.n == 0;
    json_t *content =
        empty ? json_null()
              : api_json_utf8(choice->text.bytes ? choice->text.bytes : "", choice->text.n);
    json_t *made = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
    if (made && choice->n_calls > 0) {
        json_t *calls = json_array();
        for (int i = 0; i < choice->n_calls; i++)
            json_array_append_new(
                calls, reply_call(r, index, i, json_array_get(choice->calls, (size_t)i), false));
        json_object_set_new(made, "tool_calls", calls);
    }
    return made;
}

static json_t *choice_json(api_reply *r, int32_t index) {
    reply_choice *choice = &r->choices[index];
    json_t *logprobs = reply_logprobs(r, choice, choice->logprobs);
    choice->logprobs = NULL;
    json_t *body = r->kind == API_CHAT ? message(r, index)
                                       : api_json_utf8(choice->text.bytes ? choice->text.bytes : "",
                                                       choice->text.n);
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)index,
                     r->kind == API_CHAT ? "message" : "text", body, "logprobs", logprobs,
                     "finish_reason", reply_finish(r, choice));
}

char *api_reply_json(api_reply *r, const srv_usage *usage) {
    json_t *choices = json_array();
    for (int32_t i = 0; i < r->n_choices; i++)
        if (json_array_append_new(choices, choice_json(r, i)) != 0) {
            json_decref(choices);
            return NULL;
        }
    json_t *root = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", r->id, "object",
                             r->kind == API_CHAT ? "chat.completion" : "text_completion", "created",
                             (json_int_t)r->created, "model", r->model, "choices", choices, "usage",
                             reply_usage(usage));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
