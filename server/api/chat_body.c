/* chat_body.c: the body of /v1/chat/completions. libllama's templates know three roles, so what
 * others say is put into these. */
#include "api/request.h"
#include "api/response_format.h"
#include "api/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages as the template gets them. */
typedef struct conversation {
    quire_message *list;
    srv_text *contents; /* list[i].content is that of contents[i], once all are there */
    size_t n;
    size_t n_bytes;
    bool after_tool; /* the last one holds the results of tools; more go into the same message */
} conversation;

/* ------------------------------------------------------------------ contents */

static bool add_part(api_parser *p, const json_t *part, const char *name, srv_text *text) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const bool refusal = type && strcmp(type, "refusal") == 0;
    const json_t *content = json_object_get(part, refusal ? "refusal" : "text");
    if (!type || !(refusal || strcmp(type, "text") == 0))
        return api_fail(p->error, 400, name,
                        "A part of '%s' is of type '%.40s'; this server takes only 'text'.", name,
                        type ? type : "");
    if (!json_is_string(content))
        return api_fail(p->error, 400, name, "A part of '%s' has no text.", name);
    srv_text_add(text, json_string_value(content), json_string_length(content));
    return true;
}

/* A string, or a list of parts. */
static bool add_content(api_parser *p, const json_t *content, const char *name, srv_text *text) {
    if (json_is_string(content)) {
        srv_text_add(text, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return api_wrong_type(p->error, name, "a string or a list of parts");
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!add_part(p, json_array_get(content, i), name, text))
            return false;
    return true;
}

/* ------------------------------------------------------------------ messages */

static const char *template_role(const char *role) {
    static const char *const roles[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"},
                                           {"tool", "user"}};
    for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(roles[i][0], role) == 0)
            return roles[i][1];
    return NULL;
}

static srv_text *new_message(conversation *c, const char *role) {
    c->list[c->n].role = role;
    return &c->contents[c->n++];
}

static bool add_message(api_parser *p, conversation *c, size_t i, const json_t *message) {
    char name[64], calls_name[64];
    snprintf(name, sizeof name, "messages[%zu].content", i);
    snprintf(calls_name, sizeof calls_name, "messages[%zu].tool_calls", i);
    const char *role = json_string_value(json_object_get(message, "role"));
    const char *as = template_role(role);
    if (!json_is_object(message) || !as) {
        snprintf(name, sizeof name, "messages[%zu]", i);
        return api_fail(p->error, 400, name,
                        "'%s' must be an object whose role is system, developer, user, assistant "
                        "or tool.",
                        name);
    }
    const json_t *content = api_field(message, "content");
    const json_t *calls = api_field(message, "tool_calls");
    const bool is_tool = strcmp(role, "tool") == 0, calls_allowed = strcmp(as, "assistant") == 0;
    if (calls && !calls_allowed)
        return api_fail(p->error, 400, calls_name, "'%s': only the assistant has tool calls.",
                        calls_name);
    if (!content && !calls && !calls_allowed)
        return api_fail(p->error, 400, name, "'%s' is missing.", name);
    srv_text *text = is_tool && c->after_tool ? &c->contents[c->n - 1] : new_message(c, as);
    const size_t n_before = text->n;
    if (is_tool)
        srv_text_print(text, "%s<tool_response>\n", c->after_tool ? "\n" : "");
    c->after_tool = is_tool;
    if ((content && !add_content(p, content, name, text)) ||
        (calls && !api_tools_recall(calls, calls_name, text, p->error)))
        return false;
    if (is_tool)
        srv_text_put(text, "\n</tool_response>");
    c->n_bytes += text->n - n_before;
    return true;
}

/* Tools are described in front, at the end of the system message if there is one. */
static bool add_tools(api_parser *p, conversation *c, const api_tools *tools,
                      const json_t *messages, size_t *from) {
    if (tools->choice == API_TOOLS_NONE)
        return true;
    const json_t *first = json_array_get(messages, 0);
    const char *as = template_role(json_string_value(json_object_get(first, "role")));
    if (as && strcmp(as, "system") == 0) {
        if (!add_message(p, c, 0, first))
            return false;
        *from = 1;
        srv_text_put(&c->contents[0], "\n\n");
    } else {
        new_message(c, "system");
    }
    const size_t n_before = c->contents[0].n;
    const bool good = api_tools_describe(tools, &c->contents[0], p->error);
    c->n_bytes += c->contents[0].n - n_before;
    return good;
}

static bool read_messages(api_parser *p, conversation *c, const api_tools *tools) {
    const json_t *messages = api_field(p->body, "messages");
    const size_t n = json_array_size(messages);
    if (!json_is_array(messages) || n == 0)
        return api_fail(p->error, 400, "messages",
                        "'messages' must be a list of at least one message.");
    if (n > API_MESSAGES)
        return api_fail(p->error, 400, "messages",
                        "'messages' has %zu messages; at most %d are allowed.", n,
                        (int)API_MESSAGES);
    c->list = calloc(n + 1, sizeof *c->list);
    c->contents = calloc(n + 1, sizeof *c->contents);
    if (!c->list || !c->contents)
        return api_no_memory(p->error);
    size_t from = 0;
    if (!add_tools(p, c, tools, messages, &from))
        return false;
    for (size_t i = from; i < n; i++)
        if (!add_message(p, c, i, json_array_get(messages, i)))
            return false;
    for (size_t i = 0; i < c->n; i++) {
        srv_text_add(&c->contents[i], "", 0);
        if (c->contents[i].failed)
            return api_no_memory(p->error);
        if (!api_check_words(c->contents[i].bytes, c->contents[i].n, "messages", p->error))
            return false;
        c->list[i].content = c->contents[i].bytes;
    }
    return c->n_bytes <= API_PROMPT_BYTES ||
           api_fail(p->error, 413, "messages", "'messages' have %zu bytes; at most %d are allowed.",
                    c->n_bytes, (int)API_PROMPT_BYTES);
}

/* ------------------------------------------------------------------ tokens */

static bool tokenize(api_parser *p, const conversation *c) {
    srv_work *work = &p->request->work;
    int32_t capacity = (int32_t)(c->n_bytes / 2) + 64 * (int32_t)c->n + 64;
    for (;;) {
        int32_t *tokens = malloc((size_t)capacity * sizeof *tokens), n = 0;
        if (!tokens)
            return api_no_memory(p->error);
        const quire_status status = quire_model_tokenize_chat(
            p->limits->model, c->list, c->n, QUIRE_TOKENIZE_START | QUIRE_TOKENIZE_REPLY, tokens,
            capacity, &n);
        if (status == QUIRE_OK) {
            p->owned->tokens = tokens;
            work->n_tokens = n;
            return n > 0 || api_fail(p->error, 400, "messages", "'messages' are empty.");
        }
        free(tokens);
        if (status != QUIRE_E_TOO_BIG || n <= capacity)
            return api_tokenize_failed(status, "messages", p->error);
        capacity = n;
    }
}

static bool keep_text(api_parser *p, const conversation *c) {
    srv_text text = {0};
    for (size_t i = 0; i < c->n; i++)
        srv_text_print(&text, "%s%s: %s", i > 0 ? "\n" : "", c->list[i].role, c->list[i].content);
    p->request->prompt_text = srv_text_take(&text);
    return p->request->prompt_text || api_no_memory(p->error);
}

/* ------------------------------------------------------------------ all */

static bool read_logprobs(api_parser *p) {
    bool wanted = false;
    int64_t top = 0;
    if (!api_read_bool(p->body, "logprobs", &wanted, p->error) ||
        !api_read_int(p->body, "top_logprobs", 0, SRV_TOP_LOGPROBS, &top, p->error))
        return false;
    if (!wanted && api_field(p->body, "top_logprobs") && top > 0)
        return api_fail(p->error, 400, "top_logprobs",
                        "'top_logprobs' is allowed only if 'logprobs' is true.");
    p->request->work.n_logprobs = wanted ? (int32_t)top : -1;
    return true;
}

/* Sound is not among what this server makes. */
static bool read_modalities(api_parser *p) {
    const json_t *list = api_field(p->body, "modalities");
    if (list && !json_is_array(list))
        return api_wrong_type(p->error, "modalities", "a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || strcmp(name, "text") != 0)
            return api_fail(p->error, 400, "modalities", "'modalities' may be [\"text\"] only.");
    }
    return !api_field(p->body, "audio") ||
           api_fail(p->error, 400, "audio", "'audio' is not supported.");
}

bool api_read_chat(api_parser *p) {
    api_tools tools;
    if (!quire_model_can_chat(p->limits->model))
        return api_fail(p->error, 400, "messages",
                        "This model has no chat template that is known: use /v1/completions.");
    if (!read_logprobs(p) || !read_modalities(p) || !api_tools_read(p->body, &tools, p->error) ||
        !api_read_format(p, &tools))
        return false;
    p->request->tools = tools.choice != API_TOOLS_NONE;
    p->request->one_call = !tools.parallel;
    conversation c = {0};
    const bool good = read_messages(p, &c, &tools) && tokenize(p, &c) && keep_text(p, &c);
    for (size_t i = 0; c.contents && i < c.n; i++)
        srv_text_free(&c.contents[i]);
    free(c.contents);
    free(c.list);
    return good;
}
