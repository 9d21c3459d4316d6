/* libFuzzer target: bytes as bodies of requests, schemas, grammars, and texts of a model.
 * docs/TESTING.md says how to build and run it.
 *
 * The first byte chooses. The engine is not there: each byte is a token. What is refused must have
 * an error that is JSON; what is taken is answered, streaming and not; a text must become the same
 * content and calls in whatever pieces it comes. */
#include "api/api.h"
#include "api/call_splitter.h"
#include "api/gbnf_check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ------------------------------------------------------------------ instead of the engine */

enum { N_VOCAB = 300, CONTEXT = 4096 };

void quire_model_get_info(const quire_model *model, quire_model_info *info) {
    (void)model;
    *info = (quire_model_info){.architecture = "llama", .n_vocab = N_VOCAB, .context = CONTEXT};
}

bool quire_model_can_chat(const quire_model *model) {
    (void)model;
    return true;
}

const char *quire_last_error(void) { return "the fuzzer refuses"; }

int32_t quire_session_context(const quire_session *session) {
    (void)session;
    return CONTEXT;
}

void quire_sampler_options_default(quire_sampler_options *options) {
    *options = (quire_sampler_options){.struct_size = sizeof *options, .repeat_penalty = 1};
}

static quire_status put_bytes(const char *text, size_t n_bytes, int32_t *tokens, int32_t capacity,
                              int32_t *n) {
    for (size_t i = 0; i < n_bytes; i++, ++*n)
        if (*n < capacity)
            tokens[*n] = 3 + (unsigned char)text[i];
    return *n > capacity ? QUIRE_E_TOO_BIG : QUIRE_OK;
}

quire_status quire_model_tokenize(const quire_model *model, const char *text, size_t n_bytes,
                                  int flags, int32_t *tokens, int32_t capacity, int32_t *n_tokens) {
    (void)model;
    CHECK(!(flags & QUIRE_TOKENIZE_SPECIAL));
    *n_tokens = 0;
    if (flags & QUIRE_TOKENIZE_START)
        put_bytes("\1", 1, tokens, capacity, n_tokens);
    return put_bytes(text, n_bytes, tokens, capacity, n_tokens);
}

quire_status quire_model_tokenize_chat(const quire_model *model, const quire_message *messages,
                                       size_t n_messages, int flags, int32_t *tokens,
                                       int32_t capacity, int32_t *n_tokens) {
    (void)model;
    (void)flags;
    *n_tokens = 0;
    quire_status status = put_bytes("\1", 1, tokens, capacity, n_tokens);
    for (size_t i = 0; i < n_messages; i++)
        status =
            put_bytes(messages[i].content, strlen(messages[i].content), tokens, capacity, n_tokens);
    return status;
}

quire_status quire_model_piece(const quire_model *model, int32_t token, char *bytes,
                               size_t capacity, size_t *n_bytes) {
    (void)model;
    CHECK(token >= 0 && token < N_VOCAB && capacity > 0);
    *n_bytes = token >= 3 && token < 259 ? 1 : 0;
    bytes[0] = (char)(token - 3);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ replies */

static void check_error(const api_error *error) {
    CHECK(error->status >= 400 && error->status < 500 && error->message[0] && error->type);
    char *text = api_error_json(error);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    CHECK(json);
    json_decref(json);
    free(text);
}

static void answer(const api_request *request) {
    static char pieces[][32] = {"a <tool", "_call>{\"name\"", ": \"f\"}</tool_call>", "\xC3\xA9",
                                ""};
    srv_token_logprob top = {.logprob = -1, .bytes = "\xC3", .n_bytes = 1};
    srv_token token = {.chosen = top, .n_top = 1, .top = &top};
    const srv_usage usage = {.prompt_tokens = request->work.n_tokens};
    api_reply *reply = api_reply_begin(request, "chatcmpl-x", 1, "m");
    CHECK(reply);
    for (int32_t i = 0; i < request->work.n_choices; i++)
        for (int k = 0; k < 5; k++) {
            const srv_event event = {.choice = i,
                                     .text = pieces[k],
                                     .n_text = strlen(pieces[k]),
                                     .tokens = &token,
                                     .n_tokens = request->work.n_logprobs >= 0,
                                     .finish = k == 4 ? SRV_STOP : SRV_RUNNING};
            char *chunk = request->stream ? api_reply_chunk(reply, &event) : NULL;
            CHECK(request->stream ? chunk != NULL : api_reply_add(reply, &event));
            free(chunk);
        }
    char *end = request->stream ? api_reply_end(reply, &usage) : api_reply_json(reply, &usage);
    CHECK(end);
    free(end);
    api_reply_free(reply);
}

/* ------------------------------------------------------------------ inputs */

static const srv_cache CACHES[] = {{.kv = "k4v4"}, {.kv = "raw"}};
static const api_limits LIMITS = {.caches = CACHES, .n_caches = 2, .max_choices = 8};

static void request(api_kind kind, const char *body, size_t n) {
    api_error error;
    api_request *made = api_request_parse(kind, body, n, &LIMITS, &error);
    if (!made) {
        check_error(&error);
        return;
    }
    CHECK(made->work.n_tokens > 0 && made->work.n_choices > 0 && made->work.n_choices <= 8);
    CHECK(made->prompt_text);
    answer(made);
    api_request_free(made);
}

/* Something as the value of a field. */
static void inside(const char *before, const char *body, size_t n, const char *after) {
    const size_t n_before = strlen(before), n_after = strlen(after);
    char *all = malloc(n_before + n + n_after);
    CHECK(all);
    memcpy(all, before, n_before);
    memcpy(all + n_before, body, n);
    memcpy(all + n_before + n, after, n_after);
    request(API_CHAT, all, n_before + n + n_after);
    free(all);
}

static void tokenize(const char *body, size_t n) {
    api_error error;
    char *reply = api_tokenize(body, n, NULL, &error);
    if (!reply)
        check_error(&error);
    free(reply);
}

static void grammar(const char *body, size_t n) {
    char why[200], *text = malloc(n + 1);
    CHECK(text);
    memcpy(text, body, n);
    text[n] = '\0';
    api_gbnf_check(text, why, sizeof why);
    free(text);
}

typedef struct split_result {
    srv_text content;
    json_t *calls;
} split_result;

static split_result split(const char *text, size_t n, size_t step, srv_finish finish) {
    split_result result = {.calls = json_array()};
    api_splitter splitter = {0};
    for (size_t i = 0; i < n || i == 0; i += step) {
        const size_t size = n - i < step ? n - i : step;
        CHECK(api_split(&splitter, text + i, size, i + step >= n ? finish : SRV_RUNNING,
                        &result.content, result.calls));
    }
    api_splitter_free(&splitter);
    return result;
}

static void splits(const char *text, size_t n) {
    if (n == 0)
        return;
    const srv_finish finish = text[0] & 1 ? SRV_STOP : SRV_LENGTH;
    const size_t step = 1 + ((unsigned char)text[0] >> 1) % 20;
    split_result whole = split(text + 1, n - 1, n, finish);
    split_result parts = split(text + 1, n - 1, step, finish);
    CHECK(whole.content.n == parts.content.n);
    CHECK(whole.content.n == 0 ||
          memcmp(whole.content.bytes, parts.content.bytes, whole.content.n) == 0);
    CHECK(json_equal(whole.calls, parts.calls));
    srv_text_free(&whole.content);
    srv_text_free(&parts.content);
    json_decref(whole.calls);
    json_decref(parts.calls);
}

/* QUIRE_FUZZ_SEED names a directory that gets these, to begin with. */
static const char *const SEEDS[] = {
    "0{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{"
    "\"type\":"
    "\"text\",\"text\":\"a\"}]}],\"n\":2,\"stop\":[\"x\"],\"logit_bias\":{\"5\":-1},\"logprobs\":"
    "true,"
    "\"top_logprobs\":2,\"temperature\":0.5,\"seed\":1,\"stream\":true,\"stream_options\":{"
    "\"include_usage\":true},\"kv\":\"raw\",\"max_tokens\":9}",
    "0{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"grammar\":\"root ::= [a-z]+ "
    "\\\"x\\\"\"}",
    "1{\"prompt\":\"abc\",\"echo\":true,\"n\":2,\"best_of\":2,\"stream\":true,\"max_tokens\":3}",
    "1{\"prompt\":[[5,6]],\"logprobs\":3,\"response_format\":{\"type\":\"json_object\"}}",
    "2{\"content\":\"abc\",\"add_special\":true}",
    "3{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\",\"minimum\":-12,"
    "\"maximum\":345},"
    "\"a\":{\"$ref\":\"#/$defs/"
    "x\"}},\"required\":[\"ab\"],\"additionalProperties\":{\"enum\":[1,null,"
    "\"z\"]},\"$defs\":{\"x\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":[\"array\",\"null\"],"
    "\"items\":{"
    "\"const\":0.5},\"minItems\":1,\"maxItems\":4}]}}}",
    "3{\"type\":\"string\",\"pattern\":\"^[a-f\\\\d]{2,3}(x|\\\\u0041?)*.[^\\\\s-]$\"}",
    "3{\"type\":\"string\",\"minLength\":1,\"maxLength\":5}",
    "4[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"boolean\"}}}}},{\"type\":\"function\",\"function\":{"
    "\"name\":"
    "\"g\"}}]",
    "5root ::= a (\"b\" | [^c-d\\x41])* # e\na ::= \"\\\"\"? b{2,3}\nb ::= . \"x\"+\n",
    "6%text <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
    "[1]}}</tool_call>\n<tool_call>{\"name\":"
    "\"g\"}</tool_call> more",
    "7[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"tool\",\"content\":"
    "\"2\"}]",
};

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    const char *folder = getenv("QUIRE_FUZZ_SEED");
    for (size_t i = 0; folder && i < sizeof SEEDS / sizeof SEEDS[0]; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *file = fopen(path, "wb");
        CHECK(file && fwrite(SEEDS[i], 1, strlen(SEEDS[i]), file) == strlen(SEEDS[i]));
        CHECK(fclose(file) == 0);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    const char *body = (const char *)data + 1;
    switch (data[0] % 8) {
    case 0:
        request(API_CHAT, body, size - 1);
        break;
    case 1:
        request(API_COMPLETION, body, size - 1);
        break;
    case 2:
        tokenize(body, size - 1);
        break;
    case 3:
        inside(
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":"
            "\"json_schema\",\"json_schema\":{\"schema\":",
            body, size - 1, "}}}");
        break;
    case 4:
        inside("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\","
               "\"stream\":true,\"tools\":",
               body, size - 1, "}");
        break;
    case 5:
        grammar(body, size - 1);
        break;
    case 6:
        splits(body, size - 1);
        break;
    default:
        inside("{\"messages\":", body, size - 1, "}");
        break;
    }
    return 0;
}
