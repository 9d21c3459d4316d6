/* tokenize_body.c: the body of /tokenize -> its reply. */
#include "api/request.h"

#include <stdlib.h>

static json_t *list_of(const int32_t *tokens, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; list && i < n; i++)
        if (json_array_append_new(list, json_integer(tokens[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static char *tokenize(const json_t *body, const quire_model *model, api_error *error) {
    const char *text = NULL;
    bool start = false;
    int32_t *tokens, n;
    if (!api_read_string(body, "content", &text, error) ||
        !api_read_bool(body, "add_special", &start, error))
        return NULL;
    if (!text) {
        api_fail(error, 400, "content", "'content' is missing: the text to tokenize.");
        return NULL;
    }
    if (!api_tokens_of(model, text, json_string_length(api_field(body, "content")),
                       start ? QUIRE_TOKENIZE_START : QUIRE_TOKENIZE_PLAIN, "content", &tokens, &n,
                       error))
        return NULL;
    json_t *root = json_pack("{s:o}", "tokens", list_of(tokens, n));
    free(tokens);
    char *reply = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!reply)
        api_no_memory(error);
    return reply;
}

char *api_tokenize(const char *body, size_t n_body, const quire_model *model, api_error *error) {
    *error = (api_error){0};
    json_t *root = api_read_body(body, n_body, error);
    char *reply = root ? tokenize(root, model, error) : NULL;
    json_decref(root);
    return reply;
}
