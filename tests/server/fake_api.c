/* fake_api.c: see fake_parts.h. */
#include "api/api.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct fake_request {
    api_request request;
    const char *stop;
    json_t *root;
} fake_request;

static void fail(api_error *error, const char *message) {
    *error = (api_error){.status = 400, .type = "invalid_request_error"};
    snprintf(error->message, sizeof error->message, "%s", message);
}

api_request *api_request_parse(api_kind kind, const char *body, size_t n_body,
                               const api_limits *limits, api_error *error) {
    (void)limits;
    json_t *root = json_loadb(body, n_body, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        fail(error, "The body is not a JSON object.");
        return NULL;
    }
    fake_request *fake = calloc(1, sizeof *fake);
    const char *prompt = json_string_value(json_object_get(root, "prompt"));
    fake->root = root;
    fake->stop = json_string_value(json_object_get(root, "script"));
    fake->request.kind = kind;
    fake->request.stream = json_is_true(json_object_get(root, "stream"));
    fake->request.prompt_text = strdup(prompt ? prompt : "");
    fake->request.work.stops = &fake->stop;
    fake->request.work.n_stops = fake->stop != NULL;
    return &fake->request;
}

void api_request_free(api_request *request) {
    if (!request)
        return;
    fake_request *fake = (fake_request *)request;
    json_decref(fake->root);
    free(request->prompt_text);
    free(fake);
}

char *api_tokenize(const char *body, size_t n_body, const quire_model *model, api_error *error) {
    (void)model;
    if (n_body == 0) {
        fail(error, "There is no body.");
        return NULL;
    }
    json_t *reply = json_pack("{s:s#}", "body", body, (int)n_body);
    char *text = json_dumps(reply, 0);
    json_decref(reply);
    return text;
}

/* ------------------------------------------------------------------ replies */

struct api_reply {
    char id[64];
    char *text;
    size_t n, capacity;
};

api_reply *api_reply_begin(const api_request *request, const char *id, int64_t created,
                           const char *model_name) {
    (void)request;
    (void)created;
    (void)model_name;
    api_reply *reply = calloc(1, sizeof *reply);
    snprintf(reply->id, sizeof reply->id, "%s", id);
    reply->text = strdup("");
    return reply;
}

void api_reply_free(api_reply *reply) {
    if (reply)
        free(reply->text);
    free(reply);
}

char *api_reply_chunk(api_reply *reply, const srv_event *event) {
    const size_t n = event->n_text + sizeof reply->id + 64;
    char *chunk = malloc(n);
    snprintf(chunk, n, "data: {\"id\": \"%s\", \"text\": \"%s\"}\n\n", reply->id, event->text);
    return chunk;
}

char *api_reply_end(api_reply *reply, const srv_usage *usage) {
    (void)reply;
    (void)usage;
    return strdup("data: [DONE]\n\n");
}

bool api_reply_add(api_reply *reply, const srv_event *event) {
    if (reply->n + event->n_text >= reply->capacity) {
        reply->capacity = 2 * (reply->n + event->n_text) + 1;
        reply->text = realloc(reply->text, reply->capacity);
    }
    memcpy(reply->text + reply->n, event->text, event->n_text + 1);
    reply->n += event->n_text;
    return true;
}

char *api_reply_json(api_reply *reply, const srv_usage *usage) {
    json_t *root = json_pack("{s:s, s:s, s:i}", "id", reply->id, "text", reply->text,
                             "completion_tokens", usage->completion_tokens);
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

char *api_error_json(const api_error *error) {
    json_t *root = json_pack("{s:{s:s, s:s, s:s?}}", "error", "message", error->message, "type",
                             error->type, "code", error->code);
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

char *api_models_json(const char *model_name, int64_t created, const api_limits *limits) {
    (void)limits;
    json_t *root = json_pack("{s:s, s:[{s:s, s:I}]}", "object", "list", "data", "id", model_name,
                             "created", (json_int_t)created);
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}
