/* server_samples.c: what server/api makes, for tests/py/test_server_replies.py to look at.
 *   server_samples MODEL replies        one reply per line, after the name of its type
 *   server_samples MODEL texts N SEED   stdin: the body of a chat request. N lines: texts that its
 *                                       grammar allows, at random; one that grew too long is ""
 */
#include "api/api.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_BYTES = 1 << 20, TEXT_TOKENS = 3000 };

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "server_samples: %s (%s)\n", what, quire_last_error());
    exit(1);
}

static api_request *parse(const quire_model *model, api_kind kind, const char *body) {
    static const srv_cache cache = {.kv = "k4v4"};
    const api_limits limits = {.model = model, .caches = &cache, .n_caches = 1, .max_choices = 4};
    api_error error;
    api_request *request = api_request_parse(kind, body, strlen(body), &limits, &error);
    require(request != NULL, error.message);
    return request;
}

/* ------------------------------------------------------------------ replies */

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOLS                                                                                      \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{}}}]"

static const struct {
    api_kind kind;
    const char *body;
    bool calls;
} REQUESTS[] = {
    {API_CHAT, "{" MESSAGES "}", false},
    {API_CHAT, "{" MESSAGES ",\"n\":2,\"logprobs\":true,\"top_logprobs\":2}", false},
    {API_CHAT, "{" MESSAGES TOOLS "}", true},
    {API_CHAT, "{" MESSAGES ",\"stream\":true}", false},
    {API_CHAT,
     "{" MESSAGES ",\"n\":2,\"stream\":true,\"logprobs\":true,\"top_logprobs\":2,"
     "\"stream_options\":{\"include_usage\":true}}",
     false},
    {API_CHAT, "{" MESSAGES TOOLS ",\"stream\":true}", true},
    {API_COMPLETION, "{\"prompt\":\"hi\",\"echo\":true}", false},
    {API_COMPLETION, "{\"prompt\":\"hi\",\"n\":2,\"logprobs\":2}", false},
    {API_COMPLETION, "{\"prompt\":\"hi\",\"logprobs\":0}", false},
    {API_COMPLETION,
     "{\"prompt\":\"hi\",\"stream\":true,\"logprobs\":2,\"stream_options\":{\"include_usage\":true}"
     "}",
     false},
};

/* Prints "TYPE {..}" for each "data: {..}". */
static void print_chunks(const char *type, char *chunks) {
    require(chunks != NULL, "no memory");
    for (char *line = strtok(chunks, "\n"); line; line = strtok(NULL, "\n"))
        printf("%s %s\n", type, line + strlen("data: "));
    free(chunks);
}

static void print_reply(const api_request *request, bool calls) {
    static char text[][80] = {"Say \"", "\xC3\xA9", "\"\n"},
                called[][80] = {"I add. <tool_",
                                "call>{\"name\": \"add\", \"arguments\": {\"a\": [1, ",
                                "0.1]}}</tool_call>\n<tool_call>{\"name\": \"add\"}</tool_call>"};
    const bool chat = request->kind == API_CHAT, stream = request->stream;
    const char *type = stream && chat ? "ChatCompletionChunk"
                       : chat         ? "ChatCompletion"
                                      : "Completion";
    const srv_usage usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3};
    static srv_token_logprob top[2] = {{.logprob = -0.25f, .bytes = "\xC3", .n_bytes = 1},
                                       {.logprob = -INFINITY, .bytes = "x", .n_bytes = 1}};
    srv_token token = {.chosen = top[0], .n_top = request->work.n_logprobs > 0 ? 2 : 0, .top = top};
    api_reply *reply = api_reply_begin(request, chat ? "chatcmpl-1" : "cmpl-1", 1700000000, "tiny");
    require(reply != NULL, "no memory");
    printf("request %s\n", request->stream ? "stream" : "whole");
    for (int32_t i = 0; i < 3 * request->work.n_choices; i++) {
        char *piece =
            calls ? called[i / request->work.n_choices] : text[i / request->work.n_choices];
        const srv_event event = {.choice = i % request->work.n_choices,
                                 .text = piece,
                                 .n_text = strlen(piece),
                                 .tokens = &token,
                                 .n_tokens = request->work.n_logprobs >= 0,
                                 .finish =
                                     i / request->work.n_choices < 2 ? SRV_RUNNING : SRV_STOP};
        if (stream)
            print_chunks(type, api_reply_chunk(reply, &event));
        else
            require(api_reply_add(reply, &event), "no memory");
    }
    if (stream) {
        print_chunks(type, api_reply_end(reply, &usage));
    } else {
        char *json = api_reply_json(reply, &usage);
        printf("%s %s\n", type, json);
        free(json);
    }
    api_reply_free(reply);
}

static void print_replies(const quire_model *model) {
    for (size_t i = 0; i < sizeof REQUESTS / sizeof REQUESTS[0]; i++) {
        api_request *request = parse(model, REQUESTS[i].kind, REQUESTS[i].body);
        print_reply(request, REQUESTS[i].calls);
        api_request_free(request);
    }
    const api_error error = {
        .status = 400, .type = "invalid_request_error", .param = "n", .message = "No."};
    char *json = api_error_json(&error);
    printf("error %s\n", json);
    free(json);
    static const srv_cache cache = {.kv = "k4v4"};
    const api_limits limits = {.model = model, .caches = &cache, .n_caches = 1};
    json = api_models_json("tiny", 1700000000, &limits);
    printf("SyncPage %s\n", json);
    free(json);
}

/* ------------------------------------------------------------------ texts */

/* ASCII, what ends something first. Not other bytes: libllama takes any byte for the second of a
 * character. */
static void fill_logits(const quire_model *model, float *logits, int32_t n_vocab) {
    for (int32_t i = 0; i < n_vocab; i++) {
        char bytes[64];
        size_t n;
        const bool known = quire_model_piece(model, i, bytes, sizeof bytes, &n) == QUIRE_OK;
        const unsigned char byte = known && n == 1 ? (unsigned char)bytes[0] : 0;
        logits[i] = quire_model_ends_text(model, i) ? 4.0f
                    : n != 1 || byte >= 0x80        ? -INFINITY
                    : strchr("\"]}", byte)          ? 3.5f
                    : strchr(",:{[ ", byte)         ? 1.5f
                    : byte == '\\'                  ? -2.0f
                                                    : 0.0f;
    }
}

static void print_text(const quire_model *model, quire_sampler_options options,
                       const float *logits) {
    quire_sampler *sampler;
    char text[TEXT_TOKENS + 1];
    int n = 0;
    bool ended = false;
    require(quire_sampler_create(&sampler, model, &options) == QUIRE_OK, "sampler");
    while (n < TEXT_TOKENS && !ended) {
        int32_t token;
        size_t n_bytes;
        require(quire_sampler_next(sampler, logits, &token) == QUIRE_OK, "next");
        ended = quire_model_ends_text(model, token);
        require(ended || (quire_model_piece(model, token, &text[n], 1, &n_bytes) == QUIRE_OK),
                "piece");
        n += !ended;
    }
    text[ended ? n : 0] = '\0';
    json_t *string = json_string(text);
    require(string != NULL, "the text is not UTF-8");
    json_dumpf(string, stdout, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    printf("\n");
    json_decref(string);
    quire_sampler_free(sampler);
}

static void print_texts(const quire_model *model, int n, uint32_t seed) {
    static char body[BODY_BYTES];
    body[fread(body, 1, sizeof body - 1, stdin)] = '\0';
    quire_model_info info;
    quire_model_get_info(model, &info);
    float *logits = malloc((size_t)info.n_vocab * sizeof *logits);
    require(logits != NULL, "no memory");
    fill_logits(model, logits, info.n_vocab);
    api_request *request = parse(model, API_CHAT, body);
    for (int i = 0; i < n; i++) {
        quire_sampler_options options = request->work.sampling;
        options.seed = seed + (uint32_t)i;
        print_text(model, options, logits);
    }
    api_request_free(request);
    free(logits);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    quire_model *model;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "load");
    if (strcmp(argv[2], "replies") == 0)
        print_replies(model);
    else if (strcmp(argv[2], "texts") == 0 && argc == 5)
        print_texts(model, atoi(argv[3]), (uint32_t)atoi(argv[4]));
    else
        return 2;
    quire_model_free(model);
    return 0;
}
