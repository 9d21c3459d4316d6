/* request.c: a body -> api_request. */
#include "api/request.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ tokens */

bool api_tokenize_failed(quire_status status, const char *param, api_error *error) {
    if (status == QUIRE_E_NOMEM || status == QUIRE_E_TOO_BIG)
        return api_fail(error, 413, param, "'%s' is too long: %s.", param, quire_last_error());
    return api_fail(error, 400, param, "'%s' cannot be tokenized: %s.", param, quire_last_error());
}

/* Of white space, or of anything else. */
static size_t longest_word(const char *text, size_t n_bytes) {
    size_t longest = 0, start = 0;
    for (size_t i = 1; i <= n_bytes; i++) {
        if (i < n_bytes && !isspace((unsigned char)text[i]) == !isspace((unsigned char)text[i - 1]))
            continue;
        longest = i - start > longest ? i - start : longest;
        start = i;
    }
    return longest;
}

bool api_check_words(const char *text, size_t n_bytes, const char *param, api_error *error) {
    const size_t longest = longest_word(text, n_bytes);
    return longest <= API_WORD_BYTES ||
           api_fail(error, 413, param,
                    "'%s' has a word, or white space, of %zu bytes; at most %d are allowed.", param,
                    longest, (int)API_WORD_BYTES);
}

bool api_tokens_of(const quire_model *model, const char *text, size_t n_bytes, int flags,
                   const char *param, int32_t **tokens, int32_t *n_tokens, api_error *error) {
    if (n_bytes > API_PROMPT_BYTES)
        return api_fail(error, 413, param, "'%s' has %zu bytes; at most %d are allowed.", param,
                        n_bytes, (int)API_PROMPT_BYTES);
    if (!api_check_words(text, n_bytes, param, error))
        return false;
    /* A text has more tokens than bytes only where the model adds some. */
    int32_t capacity = (int32_t)n_bytes + 8;
    for (;;) {
        int32_t *list = malloc((size_t)capacity * sizeof *list), n = 0;
        if (!list)
            return api_no_memory(error);
        const quire_status status =
            quire_model_tokenize(model, text, n_bytes, flags, list, capacity, &n);
        if (status == QUIRE_OK) {
            *tokens = list;
            *n_tokens = n;
            return true;
        }
        free(list);
        if (status != QUIRE_E_TOO_BIG || n <= capacity)
            return api_tokenize_failed(status, param, error);
        capacity = n;
    }
}

/* ------------------------------------------------------------------ request */

static bool read_cache(api_parser *p) {
    const char *kv = NULL;
    if (!api_read_string(p->body, "kv", &kv, p->error))
        return false;
    const api_limits *limits = p->limits;
    int32_t chosen = kv ? -1 : 0;
    for (int32_t i = 0; kv && i < limits->n_caches; i++)
        if (strcmp(limits->caches[i].kv, kv) == 0)
            chosen = i;
    if (chosen < 0) {
        srv_text names = {0};
        for (int32_t i = 0; i < limits->n_caches; i++)
            srv_text_print(&names, "%s%s", i > 0 ? ", " : "", limits->caches[i].kv);
        api_fail(p->error, 400, "kv", "'kv' is '%.40s'; this server was started with %.300s.", kv,
                 names.bytes ? names.bytes : "none");
        srv_text_free(&names);
        return false;
    }
    p->request->work.cache = chosen;
    const quire_session *session = limits->n_caches > 0 ? limits->caches[chosen].session : NULL;
    if (session)
        p->context = quire_session_context(session);
    return true;
}

static bool read_all(api_parser *p) {
    const char *model = NULL; /* there is one model: any name will do */
    quire_model_info info;
    quire_model_get_info(p->limits->model, &info);
    p->n_vocab = info.n_vocab;
    p->context = info.context;
    return api_read_string(p->body, "model", &model, p->error) && read_cache(p) &&
           api_read_sampling(p) &&
           (p->request->kind == API_CHAT ? api_read_chat(p) : api_read_completion(p));
}

api_request *api_request_parse(api_kind kind, const char *body, size_t n_body,
                               const api_limits *limits, api_error *error) {
    *error = (api_error){0};
    json_t *root = api_read_body(body, n_body, error);
    if (!root)
        return NULL;
    api_request *request = calloc(1, sizeof *request);
    api_owned *owned = calloc(1, sizeof *owned);
    if (!request || !owned) {
        free(request);
        free(owned);
        json_decref(root);
        api_no_memory(error);
        return NULL;
    }
    request->kind = kind;
    request->owned = owned;
    owned->body = root;
    api_parser parser = {
        .body = root, .limits = limits, .request = request, .owned = owned, .error = error};
    if (!read_all(&parser)) {
        api_request_free(request);
        return NULL;
    }
    request->work.tokens = owned->tokens;
    return request;
}

void api_request_free(api_request *request) {
    if (!request)
        return;
    api_owned *owned = request->owned;
    json_decref(owned->body);
    free(owned->tokens);
    free(owned->grammar);
    free(owned->bias);
    free(owned);
    free(request->prompt_text);
    free(request);
}
