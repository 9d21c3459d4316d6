/* reply_logprobs.c: probabilities of tokens, in the form of chats and in the older one. */
#include "api/json_utf8.h"
#include "api/reply.h"

#include <math.h>

/* JSON has no infinity; this is what OpenAI writes for it. */
static json_t *number(float logprob) {
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

static json_t *bytes_of(const srv_token_logprob *t) {
    json_t *list = json_array();
    for (size_t i = 0; i < t->n_bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)t->bytes[i]));
    return list;
}

static json_t *entry(const srv_token_logprob *t) {
    return json_pack("{s:o, s:o, s:o}", "token", api_json_utf8(t->bytes, t->n_bytes), "logprob",
                     number(t->logprob), "bytes", bytes_of(t));
}

json_t *reply_tokens(const srv_event *event) {
    json_t *list = json_array();
    for (int32_t i = 0; list && i < event->n_tokens; i++) {
        const srv_token *token = &event->tokens[i];
        json_t *one = entry(&token->chosen), *top = json_array();
        for (int32_t k = 0; k < token->n_top; k++)
            json_array_append_new(top, entry(&token->top[k]));
        json_object_set_new(one, "top_logprobs", top);
        if (!one || json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* ------------------------------------------------------------------ the older form */

/* Characters that begin in a token: one may be spread over several. */
static size_t count_chars(const json_t *bytes) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(bytes); i++)
        n += (json_integer_value(json_array_get(bytes, i)) & 0xC0) != 0x80;
    return n;
}

static json_t *older_top(const json_t *token) {
    const json_t *top = json_object_get(token, "top_logprobs");
    json_t *map = json_object();
    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *one = json_array_get(top, i);
        const char *text = json_string_value(json_object_get(one, "token"));
        /* Of several tokens with the same text the likeliest comes first. */
        if (text && !json_object_get(map, text))
            json_object_set(map, text, json_object_get(one, "logprob"));
    }
    return map;
}

static json_t *older_form(const api_reply *reply, reply_choice *choice, const json_t *list) {
    json_t *tokens = json_array(), *logprobs = json_array(), *top = json_array(),
           *offsets = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        json_array_append(tokens, json_object_get(token, "token"));
        json_array_append(logprobs, json_object_get(token, "logprob"));
        json_array_append_new(top, older_top(token));
        json_array_append_new(offsets, json_integer((json_int_t)choice->n_chars));
        choice->n_chars += count_chars(json_object_get(token, "bytes"));
    }
    if (reply->n_logprobs == 0) {
        json_decref(top);
        top = json_null();
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs,
                     "top_logprobs", top, "text_offset", offsets);
}

json_t *reply_logprobs(const api_reply *reply, reply_choice *choice, json_t *tokens) {
    if (reply->n_logprobs < 0) {
        json_decref(tokens);
        return json_null();
    }
    if (reply->kind == API_CHAT)
        return json_pack("{s:o, s:n}", "content", tokens, "refusal");
    json_t *form = older_form(reply, choice, tokens);
    json_decref(tokens);
    return form;
}
