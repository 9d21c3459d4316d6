/* call_splitter.c: see call_splitter.h. */
#include "api/call_splitter.h"
#include "api/tools.h"

#include <string.h>

static const char OPEN[] = API_CALL_OPEN, CLOSE[] = API_CALL_CLOSE;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* ------------------------------------------------------------------ one call */

/* Reads one JSON value; *n: the bytes it has. NULL: there is none. */
static json_t *value_at(const char *text, size_t n_text, size_t *n) {
    json_error_t end;
    json_t *value =
        json_loadb(text, n_text, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &end);
    *n = value ? (size_t)end.position : 0;
    return value;
}

static size_t skip_space(const char *text, size_t n, size_t at) {
    while (at < n && is_space(text[at]))
        at++;
    return at;
}

/* The text of a member of an object that jansson could read, as the model wrote it: "0.1" stays
 * "0.1". */
static bool find_member(const char *text, size_t n, const char *name, size_t *from, size_t *to) {
    size_t at = skip_space(text, n, 0) + 1; /* behind '{' */
    for (;;) {
        size_t n_key, n_value;
        at = skip_space(text, n, at);
        json_t *key = value_at(text + at, n - at, &n_key);
        const char *key_text = json_string_value(key);
        const bool found = key_text && strcmp(key_text, name) == 0;
        json_decref(key);
        at = skip_space(text, n, at + n_key);
        if (n_key == 0 || at >= n || text[at] != ':')
            return false;
        at = skip_space(text, n, at + 1);
        json_t *value = value_at(text + at, n - at, &n_value);
        json_decref(value);
        if (n_value == 0)
            return false;
        *from = at;
        *to = at + n_value;
        if (found)
            return true;
        at = skip_space(text, n, *to);
        if (at >= n || text[at] != ',')
            return false;
        at++;
    }
}

static json_t *arguments_of(const char *text, size_t n, const json_t *call) {
    static const char *const names[] = {"arguments", "parameters"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(call, names[i]);
        size_t from, to;
        const char *string = json_string_value(value);
        if (string && strlen(string) == json_string_length(value)) /* clients take no NUL */
            return json_string(string);
        if (value && find_member(text, n, names[i], &from, &to))
            return json_stringn(text + from, to - from);
    }
    return json_string("{}");
}

/* False: this is no call. *failed: out of memory. */
static bool add_call(const char *text, size_t n, json_t *calls, bool *failed) {
    json_t *call = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *name = json_object_get(call, "name");
    const bool good =
        json_is_string(name) && api_is_tool_name(json_string_value(name), json_string_length(name));
    if (good) {
        json_t *one =
            json_pack("{s:O, s:o}", "name", name, "arguments", arguments_of(text, n, call));
        *failed = *failed || json_array_append_new(calls, one) != 0;
    }
    json_decref(call);
    return good;
}

/* ------------------------------------------------------------------ the stream */

/* Where the tag begins; n: it is not there. */
static size_t find(const char *text, size_t n, size_t from, const char *tag, size_t n_tag) {
    for (; from + n_tag <= n; from++) {
        const char *next = memchr(text + from, tag[0], n - n_tag + 1 - from);
        if (!next)
            break;
        from = (size_t)(next - text);
        if (memcmp(next, tag, n_tag) == 0)
            return from;
    }
    return n;
}

/* How many bytes at the end could be the beginning of <tool_call>. */
static size_t tag_begun(const char *text, size_t n) {
    for (size_t length = sizeof OPEN - 2 < n ? sizeof OPEN - 2 : n; length > 0; length--)
        if (memcmp(text + n - length, OPEN, length) == 0)
            return length;
    return 0;
}

static size_t without_space(const char *text, size_t n) {
    while (n > 0 && is_space(text[n - 1]))
        n--;
    return n;
}

static void drop(api_splitter *s, size_t n) {
    srv_text_drop(&s->held, n);
    s->n_seen = 0;
}

/* False: no whole tag is held. */
static bool take_text(api_splitter *s, srv_text *content) {
    const size_t n_tag = sizeof OPEN - 1;
    const size_t at = find(s->held.bytes, s->held.n, 0, OPEN, n_tag);
    if (at < s->held.n) {
        srv_text_add(content, s->held.bytes, without_space(s->held.bytes, at));
        drop(s, at + n_tag);
        s->in_call = true;
        return true;
    }
    const size_t n_certain =
        without_space(s->held.bytes, s->held.n - tag_begun(s->held.bytes, s->held.n));
    srv_text_add(content, s->held.bytes, n_certain);
    drop(s, n_certain);
    return false;
}

static void add_broken_call(const api_splitter *s, size_t n, srv_text *content) {
    srv_text_put(content, OPEN);
    srv_text_add(content, s->held.bytes, n);
}

static bool take_call(api_splitter *s, srv_text *content, json_t *calls, bool *failed) {
    const size_t n_tag = sizeof CLOSE - 1;
    const size_t from = s->n_seen > n_tag ? s->n_seen - n_tag : 0;
    const size_t at = find(s->held.bytes, s->held.n, from, CLOSE, n_tag);
    s->n_seen = s->held.n;
    if (at == s->held.n)
        return false;
    if (add_call(s->held.bytes, at, calls, failed))
        s->any_calls = true;
    else
        add_broken_call(s, at + n_tag, content);
    drop(s, at + n_tag);
    s->in_call = false;
    return true;
}

static void take_rest(api_splitter *s, srv_finish finish, srv_text *content, json_t *calls,
                      bool *failed) {
    const char *text = s->held.bytes;
    size_t n = s->held.n;
    if (s->in_call) {
        if (!add_call(text, n, calls, failed) && finish == SRV_STOP)
            add_broken_call(s, n, content);
    } else {
        if (finish != SRV_STOP)
            n -= tag_begun(text, n);
        if (s->any_calls)
            n = without_space(text, n);
        srv_text_add(content, text, n);
    }
    drop(s, s->held.n);
}

bool api_split(api_splitter *s, const char *text, size_t n, srv_finish finish, srv_text *content,
               json_t *calls) {
    bool failed = false;
    srv_text_add(&s->held, text, n);
    if (s->held.failed)
        return false;
    while (s->in_call ? take_call(s, content, calls, &failed) : take_text(s, content))
        ;
    if (finish != SRV_RUNNING)
        take_rest(s, finish, content, calls, &failed);
    return !failed && !content->failed;
}

void api_splitter_free(api_splitter *s) { srv_text_free(&s->held); }
