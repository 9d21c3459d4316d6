/* models_json.c: the body of /v1/models. */
#include "api/api.h"

#include <jansson.h>

static json_t *codecs(const api_limits *limits) {
    json_t *list = json_array();
    for (int32_t i = 0; i < limits->n_caches; i++)
        json_array_append_new(list, json_string(limits->caches[i].kv));
    return list;
}

static json_t *details(const api_limits *limits) {
    quire_model_info info;
    quire_model_get_info(limits->model, &info);
    const quire_session *session = limits->n_caches > 0 ? limits->caches[0].session : NULL;
    return json_pack("{s:s, s:i, s:i, s:i, s:I, s:b, s:o}", "architecture", info.architecture,
                     "context", session ? (int)quire_session_context(session) : (int)info.context,
                     "context_trained", (int)info.context, "vocabulary", (int)info.n_vocab,
                     "parameters", (json_int_t)info.n_parameters, "chat",
                     (int)quire_model_can_chat(limits->model), "kv", codecs(limits));
}

char *api_models_json(const char *model_name, int64_t created, const api_limits *limits) {
    json_t *root = json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:o}]}", "object", "list", "data", "id",
                             model_name, "object", "model", "created", (json_int_t)created,
                             "owned_by", "quire", "quire", details(limits));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
